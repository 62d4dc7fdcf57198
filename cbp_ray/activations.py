"""The activations of hidden units: what each is called, how large its initial weights are, and what it computes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAKY_SLOPE = 0.01
"""Slope of the leaky ReLU below zero; PyTorch's default."""
SATURATION = 0.9
"""A unit is saturated when the magnitude of its output is more than this (appendix F of the paper)."""
SMALLEST_LOSS = 1e-8
"""A loss below this counts as this, where another is divided by it."""
NORM_EPSILON = 1e-5
"""ε of OnlineNorm, which stands before an activation: added to the variance."""


class Activation(NamedTuple):
    """One activation function."""

    gain: float
    """Gain of Kaiming's initial distribution (section 3 of the paper); ELU's and Swish's are those of their original works."""
    label: str
    """What figures and tables call it."""
    module: str
    """Name of its module in `torch.nn`."""
    function: Callable[[NDArray[Any]], NDArray[Any]]
    """The function in NumPy."""


ACTIVATIONS = {
    "tanh": Activation(5 / 3, "tanh", "Tanh", np.tanh),
    "sigmoid": Activation(1.0, "sigmoid", "Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "relu": Activation(math.sqrt(2), "ReLU", "ReLU", lambda x: np.maximum(x, 0)),
    "leaky_relu": Activation(
        math.sqrt(2 / (1 + LEAKY_SLOPE**2)),
        "leaky ReLU",
        "LeakyReLU",
        lambda x: np.where(x > 0, x, x.dtype.type(LEAKY_SLOPE) * x),
    ),
    "elu": Activation(math.sqrt(2), "ELU", "ELU", lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "swish": Activation(math.sqrt(2), "swish", "SiLU", lambda x: x / (1 + np.exp(-x))),
}
"""Every activation by the name that it has in configs."""

GAINS = {"linear": 1.0, **{name: activation.gain for name, activation in ACTIVATIONS.items()}}
"""Gains by activation; the output layer is linear."""
