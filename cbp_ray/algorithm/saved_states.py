"""Loading what `state_dict` gave: all of it, or nothing and one line."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from cbp_ray.errors import InputError

UNFIT = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError)
"""What Python and torch raise about a state that is not what it should be."""
S = TypeVar("S")


def whole_or_not(load: Callable[[S, Any], None]) -> Callable[[S, Any], None]:
    """Makes a method `load_state_dict` refuse what does not fit with an `InputError`, and then leave all as it was."""

    @functools.wraps(load)
    def load_state_dict(self: Any, state: Any) -> None:
        before = self.state_dict()
        try:
            if not isinstance(state, Mapping):
                raise TypeError(f"it is a {type(state).__name__}")
            load(self, state)
            here, there = dict(_shapes(before)), dict(_shapes(self.state_dict()))
            wrong = next((name for name in here if there.get(name) != here[name]), None)
            if wrong is not None:
                raise ValueError(f"{wrong} has another shape")
        except UNFIT as error:
            load(self, before)
            if isinstance(error, InputError):
                raise
            reason = f"{type(error).__name__}: {error}"[:200]
            raise InputError(f"load_state_dict: must get what state_dict() gave, got another ({reason}); pass that") from None

    return load_state_dict


def _shapes(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The shape of every tensor of a state by its place in it."""
    if isinstance(state, Tensor):
        yield path, tuple(state.shape)
    elif isinstance(state, Mapping):
        for name, value in state.items():
            yield from _shapes(value, f"{path}.{name}" if path else str(name))
