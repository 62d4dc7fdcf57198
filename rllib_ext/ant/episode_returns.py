"""Returns of episodes by time-step, as figures 9 and 17b show them: "binned among bins of 40,000 time-steps"."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from cbp_ray.errors import InputError
from cbp_ray.validation import whole_number

END_STEPS = "episode_end_steps"
"""Name of a result of the env runners: the global number of the last time-step of each episode that ended."""
RETURNS = "episode_returns"
"""Name of a result of the env runners: the undiscounted return of each episode that ended, in the same order."""


def finished_episodes(result: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Global time-step of its last step and return of each episode that ended during a training iteration, in their order.

    Args:
      result: what `algorithm.train()` returned.
    """
    results = result.get(ENV_RUNNER_RESULTS, {})
    # RLlib hands a list of one out as its element.
    steps, returns = (np.atleast_1d(results.get(key, ())) for key in (END_STEPS, RETURNS))
    return sorted((int(step), float(value)) for step, value in zip(steps, returns, strict=True))


class ReturnBins:
    """Returns of episodes by the bin of time-steps in which the episode ends, until the bin is asked for.

    Example:
      >>> bins = ReturnBins(bin_size=10)
      >>> bins.add([(3, 1.0), (9, 2.0), (25, 7.0)])
      >>> bins.take(10), bins.take(20), bins.take(25)
      ((1.5, 2), (nan, 0), (7.0, 1))
    """

    def __init__(self, bin_size: int) -> None:
        self.bin_size = whole_number("bin_size", bin_size, least=1)
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, episodes: Iterable[tuple[int, float]]) -> None:
        """Takes note of episodes that ended, each with the number of its last step, counted from 0, and its return."""
        for step, value in episodes:
            index = step // self.bin_size
            self._sums[index] = self._sums.get(index, 0.0) + value
            self._counts[index] = self._counts.get(index, 0) + 1

    def take(self, end: int) -> tuple[float, int]:
        """Removes the bin that is over when `end` time-steps are made.

        Returns:
          Mean return of its episodes, not a number if there were none, and their count.
        """
        index = (end - 1) // self.bin_size
        total, count = self._sums.pop(index, 0.0), self._counts.pop(index, 0)
        return total / count if count else math.nan, count

    def state_dict(self) -> dict[str, Any]:
        """The bins that nobody took yet, in plain numbers and lists."""
        return {
            "bin_size": self.bin_size,
            "bins": list(self._sums),
            "sums": list(self._sums.values()),
            "counts": list(self._counts.values()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state["bin_size"] != self.bin_size:
            raise InputError(f"bin_size: must be {state['bin_size']} as before, got {self.bin_size}; keep it or start again")
        self._sums = dict(zip(state["bins"], state["sums"], strict=True))
        self._counts = dict(zip(state["bins"], state["counts"], strict=True))
