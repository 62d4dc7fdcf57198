"""Returns of episodes by time-step, as figures 9 and 17b show them: "binned among bins of 40,000 time-steps"."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from cbp_ray.errors import InputError
from cbp_ray.validation import whole_number

BIN_SIZE = 40_000

END_STEPS = "episode_end_steps"
"""In the results of an iteration, beside RLlib's own of its env runners: global time-step of the last step of each episode."""
RETURNS = "episode_returns"
"""And its return, undiscounted, in the same order."""


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
    """Mean return of the episodes that end in each bin of time-steps.

    Example:
      >>> bins = ReturnBins(bin_size=10)
      >>> bins.add([(3, 1.0), (9, 2.0), (25, 7.0)])
      >>> bins.means(25).tolist(), bins.ends(25).tolist()
      ([1.5, nan, 7.0], [10, 20, 25])
    """

    def __init__(self, bin_size: int = BIN_SIZE) -> None:
        self.bin_size = whole_number("bin_size", bin_size, least=1)
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, episodes: Iterable[tuple[int, float]]) -> None:
        """Takes note of episodes that ended, each with the number of its last step, counted from 0, and its return."""
        for step, value in episodes:
            index = step // self.bin_size
            self._sums[index] = self._sums.get(index, 0.0) + value
            self._counts[index] = self._counts.get(index, 0) + 1

    def _count(self, steps: int) -> int:
        return -(-steps // self.bin_size)

    def ends(self, steps: int) -> NDArray[np.int64]:
        """Time-steps made at the end of each bin of a run of `steps`; a last, shorter bin takes what remains."""
        return np.minimum(np.arange(1, self._count(steps) + 1, dtype=np.int64) * self.bin_size, steps)

    def episodes(self, steps: int) -> NDArray[np.int64]:
        """How many episodes ended in each bin."""
        return np.array([self._counts.get(index, 0) for index in range(self._count(steps))], dtype=np.int64)

    def means(self, steps: int) -> NDArray[np.float64]:
        """Their mean return; not a number where none ended."""
        counts = self.episodes(steps)
        sums = np.array([self._sums.get(index, 0.0) for index in range(len(counts))])
        means: NDArray[np.float64] = np.full(len(counts), np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        return means

    def state_dict(self) -> dict[str, Any]:
        """Everything, in plain numbers and lists."""
        indices = sorted(self._counts)
        return {
            "bin_size": self.bin_size,
            "bins": indices,
            "sums": [self._sums[index] for index in indices],
            "counts": [self._counts[index] for index in indices],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state["bin_size"] != self.bin_size:
            raise InputError(f"bin_size: must be {state['bin_size']} as before, got {self.bin_size}; keep it or start anew")
        self._sums = dict(zip(state["bins"], state["sums"], strict=True))
        self._counts = dict(zip(state["bins"], state["counts"], strict=True))
