"""Which friction holds at which time-step: section 2 of the paper, Slippery Ant.

"In the standard problem, the value of the friction is 1.5. We change the friction after every 10M time-steps by log-uniformly
sampling it from [1e-4, 1e4]." Here it is a function of a seed and the global time-step alone: nothing is drawn one after the
other, so every process that knows the step knows the friction.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from cbp_ray.problems import SlipperyAntConfig
from cbp_ray.randomness import Purpose, uniforms
from cbp_ray.validation import Count, Model, Positive, SectionError, Seed, make

PAPER = SlipperyAntConfig()
"""The settings of section 2 and appendix D of the paper."""

FRICTION = "friction"
"""Name of the friction in an environment's settings, among its attributes and in RLlib's results."""


class FrictionSchedule(Model):
    """Friction by global time-step.

    Example:
      >>> schedule = FrictionSchedule(seed=3, period=1000)
      >>> schedule.friction(999), schedule.friction(1000) == schedule.friction(1999)
      (1.5, True)
    """

    seed: Seed = 0
    """Fixes the sequence; the same for every algorithm that is compared."""
    period: Count = PAPER.friction_period
    """Time-steps between two changes."""
    low: Positive = PAPER.friction_low
    """The least friction that is drawn."""
    high: Positive = PAPER.friction_high
    """The largest friction that is drawn."""
    initial: Positive = PAPER.friction_initial
    """Friction of the first `period` time-steps."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.low > self.high:
            raise SectionError(f".low: must be at most friction.high = {self.high}, got {self.low}; swap them")
        return self

    @classmethod
    def make(cls, settings: "FrictionSchedule | Mapping[str, Any] | float | None", *, seed: int = 0) -> "FrictionSchedule":
        """A schedule from what a person may write: nothing, one number (it never changes), a mapping, a schedule.

        Args:
          settings: see above.
          seed: the seed where the settings have none.

        Raises:
          InputError: one line with field, rule, value and fix.
        """
        if isinstance(settings, cls):
            return settings
        if settings is None or isinstance(settings, Mapping):
            return make(cls, {"seed": seed, **(settings or {})}, FRICTION)
        constant = constant_friction(settings)
        return cls(low=constant, high=constant, initial=constant)

    def friction(self, step: int) -> float:
        """The friction during the global time-step `step`, counted from 0."""
        change = step // self.period
        if change == 0:
            return self.initial
        if self.low == self.high:
            return self.low
        uniform = float(uniforms(self.seed, Purpose.FRICTION, 1, first=change - 1)[0])
        low, high = math.log(self.low), math.log(self.high)
        return min(max(math.exp(low + uniform * (high - low)), self.low), self.high)

    def next_change(self, step: int) -> int:
        """The first global time-step after `step` with a friction of its own."""
        return (step // self.period + 1) * self.period


class _Constant(Model):
    friction: Positive


def constant_friction(value: Any) -> float:
    """A friction that a person gave as a number, or as text such as `1e-4`, which is how YAML reads that number.

    Raises:
      InputError: if it is not a finite number above zero.
    """
    return make(_Constant, {FRICTION: value}).friction


def schedule_of(config: Any) -> FrictionSchedule:
    """The schedule that a config of RLlib asks for."""
    return FrictionSchedule.make(config.env_config.get(FRICTION), seed=config.seed or 0)
