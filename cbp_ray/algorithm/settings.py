"""The settings of generate-and-test, validated once."""

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from cbp_ray.errors import InputError
from cbp_ray.presets import PRESETS, Preset, Utility
from cbp_ray.validation import as_number


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of generate-and-test; a wrong one is refused with an `InputError`."""

    replacement_rate: float
    """ρ, the fraction of a layer's units replaced per step."""
    maturity_threshold: int
    """m; only units older than m steps may be replaced."""
    decay_rate: float
    """η of the running averages f and u."""
    utility: Utility
    """Which measure decides; see `cbp_ray.algorithm.utility`."""
    preset: str
    """A name in `PRESETS`."""
    replacement: str
    """`accumulate` carries the fraction of n·ρ from step to step; `bernoulli` rounds it at random."""
    seed: int | Sequence[int]
    """Seed of new units' weights and of every other random draw here; in a stack of several runs, one for each."""

    def __post_init__(self) -> None:
        _choice("preset", self.preset, tuple(PRESETS))
        checked: dict[str, Any] = {
            "replacement_rate": _number("replacement_rate", self.replacement_rate, "in [0, 1]", lambda x: 0 <= x <= 1),
            "decay_rate": _number("decay_rate", self.decay_rate, "in [0, 1); 0.99 is the paper's", lambda x: 0 <= x < 1),
            "maturity_threshold": _whole("maturity_threshold", self.maturity_threshold, 2**63),
            "seed": _seeds(self.seed),
        }
        _choice("utility", self.utility, get_args(Utility))
        _choice("replacement", self.replacement, ("accumulate", "bernoulli"))
        for name, value in checked.items():  # NumPy's numbers become Python's, so that states can be compared
            object.__setattr__(self, name, value)

    @property
    def variant(self) -> Preset:
        """The preset's choices."""
        return PRESETS[self.preset]


def _number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    if not holds(number := as_number(value)):
        raise InputError(f"GenerateAndTest: {name} must be a number {rule}, got {value!r}")
    return number


def _whole(name: str, value: Any, limit: int) -> int:
    whole = isinstance(value, numbers.Integral) or as_number(value).is_integer()
    if isinstance(value, bool) or not whole or not 0 <= int(value) < limit:
        raise InputError(f"GenerateAndTest: {name} must be a whole number from 0 to {limit - 1}, got {value!r}")
    return int(value)


def _seeds(seed: Any) -> int | tuple[int, ...]:
    if isinstance(seed, list | tuple | range):
        return tuple(_whole("seed", each, 2**64) for each in seed)
    return _whole("seed", seed, 2**64)


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"GenerateAndTest: {name} must be one of {', '.join(choices)}; got {value!r}")
