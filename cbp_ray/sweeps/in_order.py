"""The trials of a grid for Ray Tune: one after the other, found at once, however many there are.

Tune's own grid copies all of itself for each of its points, and its own scheduler looks through all trials, from the first
on, at every event of every trial. For 10,000 trials the first took a quarter of a minute before anything ran, and the second a
fifth of the driver's time in the end; both grow with the square of their number.
"""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


class Listed(Searcher):
    """Gives trials their settings from a list, in order; each is made when its trial is.

    Args:
      settings: the settings of all trials.
    """

    def __init__(self, settings: Iterator[dict[str, Any]]) -> None:
        super().__init__()
        self._settings = settings

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles it with its own snapshot, which is never read.
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        # Tune's own base class says that it takes no text, and takes this one.
        finished: Any = Searcher.FINISHED
        return next(self._settings, finished)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Does nothing: what comes next does not depend on it."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a sweep goes on from its results."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing, as `save`."""


class InOrder(FIFOScheduler):
    """Runs trials in the order in which they came; one that has failed comes last."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._waiting: deque[Trial] = deque()

    def on_trial_add(self, tune_controller: "TuneController", trial: Trial) -> None:
        """Takes in a trial, new or about to be tried again."""
        super().on_trial_add(tune_controller, trial)
        self._waiting.append(trial)

    def choose_trial_to_run(self, tune_controller: "TuneController") -> Trial | None:
        """The first trial that waits, until it runs."""
        while self._waiting and self._waiting[0].status != Trial.PENDING:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None


class Halving(InOrder, ASHAScheduler):
    """Asynchronous successive halving, whose trials begin in order."""
