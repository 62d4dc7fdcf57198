"""What an engine is: something that advances many runs of one config together, example by example."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import Linear, OnlineConfig
from cbp_ray.experiments.representation import Representation

Metrics = dict[str, NDArray[np.float64]]
Arrays = dict[str, NDArray[Any]]

METRICS: dict[str, dict[str, str]] = {
    "bit_flipping": {
        "error": "mean of (y - ŷ)² over the bin, each prediction made before the update",
        "input_weight_magnitude": "mean |w| of the input layer at the bin's end",
        "output_weight_magnitude": "mean |w| of the output layer at the bin's end",
        "saturated": "fraction of (unit, example) with |h| > 0.9",
        "input_gradient": "mean |∂loss/∂w| over the first layer's weights and the examples of the bin",
        "dead": "fraction of units that gave 0 on every example of the bin",
        "replacements": "units replaced in the bin",
        "nonfinite_utilities": "eligible units passed over because their utility was not finite",
    },
    "permuted_mnist": {
        "accuracy": "fraction of the bin's examples classified rightly, each before the update",
        "loss": "mean cross-entropy over the bin, each before the update",
        "weight_magnitude_{layer}": "mean |w| into each hidden layer, 1 the first, at the bin's end",
        "output_weight_magnitude": "mean |w| of the output layer at the bin's end",
        "dead_{layer}": "fraction of a hidden layer's units that give 0 on all of 2000 held examples, at the bin's end",
        "stable_rank_{layer}": "of a hidden layer's outputs on these examples",
        "effective_rank_{layer}": "of a hidden layer's outputs on these examples",
        "replacements": "units replaced in the bin",
        "nonfinite_utilities": "eligible units passed over because their utility was not finite",
    },
    "slippery_ant": {
        "episode_return": "mean return of the episodes that ended in the bin; not a number if none did",
        "episodes": "how many did",
        "friction": "at the bin's end",
        "weight_magnitude": "mean |w| into the hidden layers of both networks, mean over layers, at the last update of the bin",
        "saturated": "fraction of (unit, example) with |h| > 0.9, likewise",
        "dormant": "fraction of units with a mean |h| of at most 1% of their layer's, likewise",
        "stable_rank": "of the hidden layers' outputs, likewise",
        "replacements": "units replaced in the bin",
    },
}
"""What every bin records for every run, by problem. `{layer}` stands for one metric per hidden layer. The linear tracker has no
hidden units: what is about them is not a number in Bit-Flipping, and not there in Permuted MNIST."""

HIDDEN_METRICS = ("output_weight_magnitude", "saturated", "dead")


def metrics_of(config: OnlineConfig) -> dict[str, str]:
    """The metrics of an experiment and what they mean, in the order of the results' columns."""
    layers = 0 if isinstance(config.algorithm, Linear) else len(config.network.hidden)
    found: dict[str, str] = {}
    for name, meaning in METRICS[config.problem.name].items():
        numbers = range(1, layers + 1) if "{layer}" in name else range(1)
        found |= {name.format(layer=number): meaning for number in numbers}
    return found


def layer_metrics(magnitudes: Sequence[float], layers: Sequence[Representation]) -> dict[str, float]:
    """The metrics of one run of Permuted MNIST that are about its state at a bin's end.

    Args:
      magnitudes: mean |w| of every layer, the output layer last.
      layers: of the hidden layers.
    """
    found = {f"weight_magnitude_{number}": magnitude for number, magnitude in enumerate(magnitudes[:-1], 1)}
    found["output_weight_magnitude"] = magnitudes[-1]
    for field in Representation._fields:
        found |= {f"{field}_{number}": getattr(layer, field) for number, layer in enumerate(layers, 1)}
    return found


class Engine(Protocol):
    """Runs of one config, one per seed."""

    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples and returns `metrics_of` the config over them, each an array [seeds]."""
        ...

    def state(self) -> Arrays:
        """Everything that `load_state` needs to continue to the last bit."""
        ...

    def load_state(self, state: Arrays, examples: int) -> None:
        """Continues where `state` was taken, after `examples` examples.

        Raises:
          InputError: if the state lacks something.
        """
        ...


def check_complete(state: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuses a checkpoint, or a part of one, that lacks one of `names`."""
    missing = [name for name in names if name not in state]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(f"state: must be a whole checkpoint, got one that lacks {shown}; start anew")
