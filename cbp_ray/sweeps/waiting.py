"""Schedulers of Ray Tune that find the next trial at once, however many trials there are.

Tune's own look through all trials, from the first on, at every event of every trial: of 10,000 trials that took half of the
driver's time in the end.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

if TYPE_CHECKING:
    from ray.tune.execution.tune_controller import TuneController


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
