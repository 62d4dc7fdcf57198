"""A method for measuring what a sweep costs besides learning: Backprop that sleeps after every step.

`CBP_RAY_METHODS=cbp_ray_benchmarks.asleep:Asleep` makes it known, as any method of somebody's own.
"""

import time
from collections.abc import Mapping
from typing import Any, Literal

from cbp_ray.methods import Method
from cbp_ray.validation import NotNegative


class Asleep(Method):
    """Backprop that sleeps after every step: a trial that takes time and no processor."""

    label = "Asleep"

    name: Literal["asleep"] = "asleep"
    """Name of the method in configs."""
    seconds: NotNegative = 1.0
    """Seconds of sleep after every step."""
    number: NotNegative = 0.0
    """Tells configurations from each other that are otherwise the same."""

    def after_step(self, model: Any, optimizer: Any, seed: Any, layers: Any = None) -> "Sleep":
        return Sleep(self.seconds)


class Sleep:
    """Sleeps when it is its turn."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self) -> None:
        time.sleep(self.seconds)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
