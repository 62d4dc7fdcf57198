"""What an engine is: something that advances many runs of one config together, example by example."""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cbp_ray.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Metrics = dict[str, NDArray[np.float64]]
Arrays = dict[str, NDArray[Any]]

UNITS = {
    "age": "mean age of the hidden units, in steps of generate-and-test",
    "utility": "mean utility of the hidden units, of each layer and then over layers",
}
"""What `Engine.units` tells of a method with generate-and-test. It is shown while runs learn, and not stored."""


class Engine(Protocol):
    """Runs of one config, one per seed. An engine is a subclass: what it does not say stands here."""

    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples and returns the config's `metrics` over them, each an array [seeds]."""
        ...

    def advance_in_parts(self, examples: int) -> Generator[int, None, Metrics]:
        """Does what `advance` does, and pauses now and then to yield how many of the examples each run has seen, on average.

        Nothing but time may depend on the pauses. By default there are none.
        """
        yield from ()
        return self.advance(examples)

    def units(self) -> Metrics:
        """Numbers about the hidden units as generate-and-test sees them now, each [seeds]; see `UNITS`. None by default."""
        return {}

    def networks(self) -> "Iterator[nn.Sequential]":
        """The network of every run as it is now, in torch, each new: what is done to it does not change the run.

        An engine whose problems have no `diagnostics` has none to show.
        """
        return iter(())

    def state(self) -> Arrays:
        """Everything that `load_state` needs to continue to the last bit."""
        ...

    def load_state(self, state: Arrays, examples: int) -> None:
        """Continues where `state` was taken, after `examples` examples.

        Raises:
          InputError: if the state lacks something.
        """
        ...


def all_parts(parts: Generator[int, None, Metrics]) -> Metrics:
    """What `Engine.advance_in_parts` returns in the end."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            metrics: Metrics = end.value
            return metrics


def check_array(name: str, found: Any, like: NDArray[Any], shape: tuple[int, ...] | None = None) -> None:
    """Refuses an array of a checkpoint that has another shape or kind than the one that it is to replace.

    Compiled code does not look where it writes, and NumPy would stretch a smaller array.
    """
    shape = like.shape if shape is None else shape
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind != like.dtype.kind:
        kind = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise InputError(f"state: {name} must be {like.dtype} {list(shape)}, got {kind}; start again")


def check_complete(state: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuses a checkpoint, or a part of one, that lacks one of `names`."""
    missing = [name for name in names if name not in state]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise InputError(f"state: must be a whole checkpoint, got one that lacks {shown}; start anew")
