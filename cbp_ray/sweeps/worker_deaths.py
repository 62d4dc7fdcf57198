"""Tune, with the death of a worker between two of its trials counted once.

A worker that ends a trial is used again for the next. If it is dead by then, Tune 2.60 tells the next trial of it twice: as of
a worker that could not be started, after which the trial waits for another one, and as of a reset that failed, at which a trial
that waits is given up. It would also believe for ever that the trial is being reset, and give it no other worker.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from ray.tune import tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial


class ForgivingController(TuneController):
    """Lets a trial be tried again whose worker died before the trial began."""

    _last_told: tuple[Trial, Exception] | None = None

    def _trial_task_failure(self, trial: Trial, exception: Exception) -> None:
        self._resetting_trials.discard(trial)
        told, self._last_told = self._last_told, (trial, exception)
        if told is None or told[0] is not trial or told[1] is not exception:
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
