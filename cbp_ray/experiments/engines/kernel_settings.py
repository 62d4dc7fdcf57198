"""A config in the kernels' terms: what they are compiled for, and what they are told at run time."""

from typing import Any

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.initial_weights import bound
from cbp_ray.kernels.activations import Activation
from cbp_ray.kernels.learner_state import Choices, Numbers, Utility

BACKPROP: dict[str, Any] = {
    "adam": False,
    "normalized": False,
    "hidden": True,
    "replaces": False,
    "utility": "overall",
    "lagged": True,
    "mean_magnitudes": False,
    "rate_of_eligible": False,
    "transfers_bias": False,
    "bernoulli": False,
    "beta_1": 0.0,
    "beta_2": 0.0,
    "epsilon": 0.0,
    "alpha_forward": 0.0,
    "alpha_backward": 0.0,
    "norm_epsilon": 1e-5,
    "replacement_rate": 0.0,
    "maturity_threshold": 0.0,
    "decay_rate": 0.0,
}
"""What plain Backprop with SGD is to the kernels; methods and optimizers say what differs."""


def kernel_settings(config: OnlineConfig) -> tuple[Choices, Numbers]:
    """What a kernel is compiled for, and what it is told at run time."""
    method, decay = config.algorithm.kernel(), config.algorithm.decay
    assert method is not None  # the engine would have refused
    told = {
        **BACKPROP,
        "activation": config.network.activation,
        "decays": decay > 0,
        "weight_decay": decay,
        "bound": bound(config.problem.inputs, config.network.activation),
        **config.optimizer.kernel(),
        **method,
    }
    told["activation"] = int(Activation[told["activation"].upper()])
    told["utility"] = int(Utility[told["utility"].upper()])
    choices = Choices(**{name: told.pop(name) for name in Choices._fields})
    return choices, Numbers(**told)
