"""Tune, with the failure of a worker between two of its trials counted once and as the failure of a try.

A worker that ends a trial is used again for the next. If it is dead by then, Tune 2.60 tells the next trial of it twice: as of
a worker that could not be started, after which the trial waits for another one, and as of a reset that failed, at which a trial
that waits is given up. So it is also if the worker lives and only its reset failed, as it may when a disk is full. Tune would
also believe for ever that the trial is being reset, and give it no other worker.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.tune import tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial


class ForgivingController(TuneController):
    """Lets a trial be tried again that failed, or whose worker died, before the trial began."""

    _last_told: tuple[Trial, Exception] | None = None

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        told, self._last_told = self._last_told, (trial, exception)
        twice = told is not None and told[0] is trial and told[1] is exception
        if trial in self._resetting_trials:
            self._resetting_trials.discard(trial)
            if not twice and trial.status == Trial.PENDING:
                # Only what runs is tried again.
                self._set_trial_status(trial, Trial.RUNNING)
                self._unstage_trial_with_resources(trial)
        if not twice:
            super()._trial_task_failure(trial, exception)


@contextlib.contextmanager
def counted_once() -> Iterator[None]:
    """Tune uses our controller meanwhile."""
    module: Any = tune
    before = module.TuneController
    module.TuneController = ForgivingController
    try:
        yield
    finally:
        module.TuneController = before
