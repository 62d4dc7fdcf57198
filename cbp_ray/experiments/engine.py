"""What an engine is: something that advances many runs of one config together, example by example."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError

Metrics = dict[str, NDArray[np.float64]]
Arrays = dict[str, NDArray[Any]]

METRICS = {
    "error": "mean of (y - ŷ)² over the bin, each prediction made before the update",
    "input_weight_magnitude": "mean |w| of the input layer at the bin's end",
    "output_weight_magnitude": "mean |w| of the output layer at the bin's end",
    "saturated": "fraction of (unit, example) with |h| > 0.9",
    "input_gradient": "mean |∂loss/∂w| over the first layer's weights and the examples of the bin",
    "dead": "fraction of units that gave 0 on every example of the bin",
    "replacements": "units replaced in the bin",
    "nonfinite_utilities": "eligible units passed over because their utility was not finite",
}
"""What every bin records for every run. The linear tracker has no hidden units: what is about them is not a number."""

HIDDEN_METRICS = ("output_weight_magnitude", "saturated", "dead")


class Engine(Protocol):
    """Runs of one config, one per seed."""

    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples and returns the `METRICS` over them, each an array [seeds]."""
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
