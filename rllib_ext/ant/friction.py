"""Which friction holds at which time-step: section 2 of the paper, Slippery Ant.

"In the standard problem, the value of the friction is 1.5. We change the friction after every 10M time-steps by log-uniformly
sampling it from [1e-4, 1e4]." Here it is a function of a seed and the global time-step alone: nothing is drawn one after the
other, so every process that knows the step knows the friction.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cbp_ray.errors import InputError
from cbp_ray.problems import SlipperyAntConfig
from cbp_ray.randomness import Purpose, uniforms
from cbp_ray.validation import SEEDS, suggest, whole_number

PAPER = SlipperyAntConfig()
"""The settings of section 2 and appendix D of the paper."""
FRICTION = "friction"
"""Name of the friction in an environment's settings, among its attributes and in RLlib's results."""
STANDARD_FRICTION = PAPER.friction_initial
"""Friction of the robot's geoms in PyBullet's Ant. The ground's is 0.8; what acts between them is the product."""


def positive(name: str, value: Any, example: float = STANDARD_FRICTION) -> float:
    """`value` as a finite number above zero, or an `InputError`; text such as `1e-4`, as YAML reads that number, is one."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"{name}: must be a finite number above 0, got {value!r}; use {example}, say")
    return number


@dataclass(frozen=True)
class FrictionSchedule:
    """Friction by global time-step.

    Example:
      >>> schedule = FrictionSchedule(seed=3, period=1000)
      >>> schedule.friction(999), schedule.friction(1000) == schedule.friction(1999)
      (1.5, True)
    """

    seed: int = 0
    """Fixes the sequence; the same for every algorithm that is compared."""
    period: int = PAPER.friction_period
    """Time-steps between two changes."""
    low: float = PAPER.friction_low
    """Least friction."""
    high: float = PAPER.friction_high
    """Largest friction."""
    initial: float = PAPER.friction_initial
    """Friction of the first `period` time-steps."""

    def __post_init__(self) -> None:
        whole_number("friction.seed", self.seed, below=SEEDS)
        # 1e7 is a usual way to write a period.
        period = int(p) if (p := positive("friction.period", self.period, PAPER.friction_period)).is_integer() else self.period
        object.__setattr__(self, "period", whole_number("friction.period", period, least=1))
        for name in ("low", "high", "initial"):
            object.__setattr__(self, name, positive(f"friction.{name}", getattr(self, name)))
        if self.low > self.high:
            raise InputError(f"friction.low: must be at most friction.high = {self.high}, got {self.low}; swap them")

    @classmethod
    def make(cls, settings: "FrictionSchedule | Mapping[str, Any] | float | None", *, seed: int = 0) -> "FrictionSchedule":
        """A schedule from what a person may write: nothing, one number (it never changes), a mapping, a schedule.

        `seed` is for a mapping without one, or nothing. What can't be understood is refused with an `InputError`.
        """
        if isinstance(settings, cls):
            return settings
        if settings is None:
            return cls(seed=seed)
        if not isinstance(settings, Mapping):
            constant = positive("friction", settings)
            return cls(low=constant, high=constant, initial=constant)
        known = [field.name for field in fields(cls)]
        for name, value in settings.items():
            if name not in known:
                raise InputError(f"friction.{name}: unknown setting, got {value!r}; {suggest(str(name), known)}")
        return cls(**{"seed": seed, **settings})

    def friction(self, step: int) -> float:
        """The friction during the global time-step `step`, counted from 0."""
        change = step // self.period
        if change == 0:
            return self.initial
        uniform = float(uniforms(self.seed, Purpose.FRICTION, 1, first=change - 1)[0])
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + uniform * (high - low)), self.low), self.high)

    def next_change(self, step: int) -> int:
        """The first global time-step after `step` with a friction of its own."""
        return (step // self.period + 1) * self.period


def schedule_of(config: Any) -> FrictionSchedule:
    """The schedule that a config of RLlib asks for."""
    return FrictionSchedule.make(config.env_config.get(FRICTION), seed=config.seed or 0)
