"""The runs of one block on a worker: advanced a few seconds at a time, kept in checkpoints, stored in the end."""

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from cbp_ray.errors import InputError
from cbp_ray.experiments.curves import Curves
from cbp_ray.experiments.engines.engine import Metrics
from cbp_ray.experiments.online import Bin, Pause, iterate_with_pauses
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.store import Block, Store
from cbp_ray.results.warnings import never_acted
from cbp_ray.sweeps import unfinished
from cbp_ray.sweeps.compile_lock import compile_once
from cbp_ray.sweeps.provenance import environment


class Patience(NamedTuple):
    """A time that a variable of the environment may change."""

    variable: str
    default: float
    """Seconds without it."""

    def seconds(self) -> float:
        """The time in seconds.

        Raises:
          InputError: if the variable is no such time.
        """
        text = os.environ.get(self.variable, str(self.default))
        with contextlib.suppress(ValueError):
            if 0 <= float(text) < math.inf:
                return float(text)
        raise InputError(f"{self.variable}: must be a number of seconds, 0 or more, got {text!r}; use {self.default:g}")


STEP_SECONDS = 4.0
"""A worker reports about this often. Ctrl-C waits for the step that runs, and Tune waits no longer than 15 s."""

LONGEST_STEP_SECONDS = 12.0
REPORTS_PER_SECOND = 250
"""Where so many trials run that their reports would be more than this, each reports less often, up to the longest step: the
driver needs about 1 ms for each, and has other things to do."""

CHECKPOINT_SECONDS = Patience("CBP_RAY_CHECKPOINT_SECONDS", 45.0)
"""A trial that lasts longer leaves a checkpoint behind this often; the variable is read on the nodes."""

STORAGE_SECONDS = Patience("CBP_RAY_STORAGE_SECONDS", 60.0)
"""A trial that is done tries for so long to store its results if it can't; the variable is read on the nodes."""

STORAGE_PAUSE_SECONDS = 2.0
"""Pause between two of these tries."""

TASK_CHECKPOINT_SECONDS = 1.0
"""Permuted MNIST leaves one behind after every task, but of tasks that are shorter than this only after some."""

FIRST_LIVE_SECONDS, LIVE_SECONDS = 10.0, 20.0
"""A trial tells of its curves after the first of these times, and then every so often: short trials only store them."""

LIVE_BINS = 512
"""Most bins that one report tells of; the next tells of those behind them."""

SPEED = "examples_per_second"
"""A number of reports that results do not have: examples per second, of all seeds of a block together."""


def check_patience() -> None:
    """Refuses variables that are no times, before a sweep starts.

    Raises:
      InputError: if one is none.
    """
    for each in (CHECKPOINT_SECONDS, STORAGE_SECONDS):
        each.seconds()


def pace_of(at_once: int) -> float:
    """How many times the usual time passes between two reports of a trial where so many run at the same time."""
    return min(LONGEST_STEP_SECONDS, max(STEP_SECONDS, at_once / REPORTS_PER_SECOND)) / STEP_SECONDS


class LivePart(NamedTuple):
    """A part of the curves of a block that runs: what its worker reports while it learns."""

    first: int
    """Number of the first bin that it tells of."""
    summary: CurveSummary
    """These bins, over all seeds of the block."""

    def __repr__(self) -> str:
        # Tune writes out every report for logs that nobody reads: all numbers of the curves took a tenth of the driver's time.
        return f"LivePart(first={self.first}, bins={len(self.summary.examples)})"


def report(
    *,
    done: bool = False,
    stored: bool = False,
    examples: int = 0,
    new_examples: int = 0,
    engine_seconds: float = 0.0,
    live: LivePart | None = None,
    warning: str | None = None,
    notice: str | None = None,
    phase: str | None = None,
) -> dict[str, Any]:
    """What a worker tells the driver of its trial.

    Args:
      done: whether the trial is over. Tune sets this itself when a scheduler stops a trial.
      stored: whether its results are stored.
      examples: examples that each run has seen.
      new_examples: those of all runs together that this worker has learned from.
      engine_seconds: CPU time in the engine.
      live: what is new of the curves.
      warning: what a person should know of the runs.
      notice: what a person should know of how they are made.
      phase: what the worker is about to do before the first bin.
    """
    return dict(locals())


class BlockRun:
    """The runs of one block, begun or resumed from their checkpoint.

    Args:
      store: where results go.
      block: what to run.
      device: where engine `torch` computes.
      metric: a metric to report the latest value of.
      every_bins: how many bins to report after, if that is sooner than a few seconds; 0 for time alone.
      stop: where an earlier start of a search stopped this trial, as examples and value of the metric: it is only reported.
      pace: how many times the usual time passes between two reports.
    """

    def __init__(
        self,
        store: Store,
        block: Block,
        device: str = "cpu",
        metric: str | None = None,
        every_bins: int = 0,
        stop: tuple[int, float] | None = None,
        pace: float = 1.0,
    ) -> None:
        self.store, self.block, self.device = store, block, device
        self.metric, self.every_bins, self.stop = metric, every_bins, stop
        self.pace = pace
        self.examples: list[int] = []
        self.points: list[Metrics] = []
        self.beside: list[dict[str, float]] = []
        self.last: Bin | None = None
        self.begun = self.saved = time.monotonic()
        self.engine_seconds = 0.0
        self.bin_begun: float | None = None
        self.told_bins, self.next_live = 0, self.begun + FIRST_LIVE_SECONDS
        self.partway: int | None = None
        self.warning: str | None = None
        self.notice: str | None = None
        """What is to be said once while the block runs."""
        self.finished = False
        self.already = stop is None and store.has(block)
        self.bins: Iterator[Bin | Pause] | None = None
        if stop is None and not self.already:
            compile_once(block.config, block.engine)
            self.bins = self._iterate()
        self.resumed_examples = self.saved_examples = self.examples[-1] if self.examples else 0

    @property
    def curves(self) -> Curves:
        """The curves so far."""
        return Curves.of(self.block.seeds, self.examples, self.points, self.block.config.metrics)

    def _iterate(self) -> Iterator[Bin | Pause]:
        config, seeds, engine = self.block.config, self.block.seeds, self.block.engine
        try:
            kept = unfinished.load(self.store, self.block)
        except InputError as error:
            kept, self.notice = None, str(error)
        if kept is not None:
            state, curves = kept
            try:
                bins = iterate_with_pauses(config, seeds, engine, state, self.device)  # type: ignore[arg-type]
            except (InputError, KeyError, ValueError):
                self.notice = f"checkpoint {self.block.trial_id} is of another version or damaged; the trial begins anew"
            else:
                self.examples, self.points = curves.examples.tolist(), curves.points()
                self.beside = [{} for _ in self.points]
                return bins
        return iterate_with_pauses(config, seeds, engine, device=self.device)  # type: ignore[arg-type]

    def advance(self) -> dict[str, Any]:
        """Runs for some seconds. Returns what the driver shows; `done` once the results are stored."""
        if self.stop is not None or self.bins is None:
            return self._report(done=True)
        until, bins = time.monotonic() + self.pace * STEP_SECONDS, 0
        bin_begun = self.bin_begun or time.monotonic()
        while True:
            begun = time.thread_time()
            point = next(self.bins, None)
            self.engine_seconds += time.thread_time() - begun
            if point is None:
                break
            if isinstance(point, Pause):
                # A search hears of whole bins only.
                if time.monotonic() >= until and self.metric is None:
                    self.partway, self.bin_begun = point.examples, bin_begun
                    return self._report(done=False)
                continue
            self.partway = self.bin_begun = None
            self.last = point
            self.examples.append(point.examples)
            self.points.append(point.metrics)
            now, bins = time.monotonic(), bins + 1
            self._note(point, now - bin_begun)
            bin_begun = now
            if now - self.saved >= CHECKPOINT_SECONDS.seconds() or self._task_ended(now):
                self._save()
            # The last bin is reported together with the end: a scheduler that counts examples would stop the trial before.
            if (now >= until or bins == self.every_bins) and point.index + 1 < point.bins:
                return self._report(done=False)
        times = {"seconds": time.monotonic() - self.begun, "engine_seconds": self.engine_seconds, "finished": time.time()}
        self.warning = never_acted(self.block.config, self.curves)
        about = environment() | {"device": self.device, "warning": self.warning or ""} | times
        self._store(about)
        with contextlib.suppress(OSError):  # the end of the sweep removes it
            unfinished.remove(self.store, self.block)
        self.finished = True
        return self._report(done=True)

    def _store(self, about: dict[str, Any]) -> None:
        until = time.monotonic() + STORAGE_SECONDS.seconds()
        while True:
            try:
                self.store.write(self.block, self.curves, about)
                return
            except OSError:
                if time.monotonic() >= until:
                    raise
                time.sleep(min(STORAGE_PAUSE_SECONDS, STORAGE_SECONDS.seconds()))

    def interrupt(self) -> None:
        """Keeps what is done so far, if it took long enough to be worth keeping."""
        # There is no checkpoint within a bin; the one before it stays.
        if not self.finished and self.engine_seconds > 1 and self.partway is None:
            self._save()
        if not self.finished and self.metric is not None and self.points:
            # A search has perhaps stopped it: its curves are kept, although it is not complete.
            with contextlib.suppress(OSError):
                self.store.write_partial(self.block, self.curves)

    def _task_ended(self, now: float) -> bool:
        """Whether a task has ended that a checkpoint would save."""
        length = self.block.config.problem.examples_per_task
        if length is None or now - self.saved < TASK_CHECKPOINT_SECONDS:
            return False
        return self.examples[-1] // length > self.saved_examples // length

    def _note(self, point: Bin, seconds: float) -> None:
        """Keeps what reports tell of a bin and results do not have."""
        seen = point.examples - (self.examples[-2] if len(self.examples) > 1 else 0)
        units = {name: float(values.mean()) for name, values in point.units.items()}
        self.beside.append(units | {SPEED: seen * len(self.block.seeds) / max(seconds, 1e-9)})

    def _live(self, done: bool) -> LivePart | None:
        """The bins that the driver has not heard of, if it is time to tell; in the end, only what results do not have."""
        now, known = time.monotonic(), len(self.points)
        if done:
            # Of what was not told while the trial ran, the speed says little.
            names = {name for beside in self.beside for name in beside if name != SPEED or self.told_bins}
            if not names or self.bins is None:
                return None
            first, last, metrics = 0, known, [self.block.config.problem.performance]
        else:
            if self.told_bins == known or (now < self.next_live and self.metric is None):
                return None
            names = {name for beside in self.beside for name in beside}
            first, metrics = self.told_bins, list(self.block.config.metrics)
            self.told_bins = last = min(known, first + LIVE_BINS)
            self.next_live = now + self.pace * LIVE_SECONDS
        curves = Curves.of(self.block.seeds, self.examples[first:last], self.points[first:last], metrics)
        beside = {name: np.array([each.get(name, np.nan) for each in self.beside[first:last]]) for name in sorted(names)}
        return LivePart(first, CurveSummary.of(curves, self.block.config.problem.performance).beside(beside))

    def _save(self) -> None:
        if self.last is not None:
            # Not to be able to keep one is no reason to end a trial: the next one may be kept, or none be needed.
            with contextlib.suppress(OSError):
                unfinished.save(self.store, self.block, self.last.checkpoint(), self.curves)
            self.saved, self.saved_examples = time.monotonic(), self.examples[-1]

    def _report(self, done: bool) -> dict[str, Any]:
        seen = self.block.config.examples if done else self.partway or (self.examples[-1] if self.examples else 0)
        seen = seen if self.stop is None else self.stop[0]
        notice, self.notice = self.notice, None
        found = report(
            done=done,
            notice=notice,
            stored=done and self.stop is None,
            examples=seen,
            new_examples=0 if self.bins is None else (seen - self.resumed_examples) * len(self.block.seeds),
            engine_seconds=self.engine_seconds,
            live=self._live(done),
            warning=self.warning,
        )
        return found if self.metric is None else found | {self.metric: self._value(self.metric)}

    def _value(self, metric: str) -> float:
        """The metric's mean over seeds in the latest bin."""
        if self.stop is not None:
            return self.stop[1]
        if self.already:
            return float(self.store.read_curves(self.block.config, self.block.seeds, self.block.engine).mean(metric)[-1])
        return float(self.points[-1][metric].mean()) if self.points else float("nan")
