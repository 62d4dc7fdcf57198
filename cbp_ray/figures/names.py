"""What things are called in print."""

from typing import Any

NAMES = {
    "bp": "BP",
    "l2": "BP+L2",
    "online_norm": "BP+OnlineNorm",
    "cbp": "CBP",
    "linear": "linear",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu": "ReLU",
    "leaky_relu": "leaky ReLU",
    "elu": "ELU",
    "swish": "swish",
}
"""Algorithms and activations."""

_SETTINGS = {
    "step_size": "step size {:g}",
    "task_length": "change every {:,}",
    "width": "width {}",
}


def in_words(name: str, value: Any) -> str:
    """A setting and its value: `step size 0.01`, `change every 10,000`."""
    return _SETTINGS[name].format(value)


def rate_in_words(rate: float) -> str:
    """`1e-4`, not `0.0001` or `1e-04`."""
    mantissa, exponent = f"{rate:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
