"""What an engine is: something that advances many runs of one config together, example by example."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError

Metrics = dict[str, NDArray[np.float64]]
Arrays = dict[str, NDArray[Any]]


class Engine(Protocol):
    """Runs of one config, one per seed."""

    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples and returns the config's `metrics` over them, each an array [seeds]."""
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
