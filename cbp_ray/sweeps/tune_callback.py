"""What Ray Tune reports of trials becomes counts, events, failures on record and TensorBoard runs."""

import contextlib
import math
import time
from functools import cached_property
from itertools import islice
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial

from cbp_ray.results import warnings
from cbp_ray.results.keys import describe_seeds
from cbp_ray.results.run_names import RunNames, flat_settings
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import cost, failures
from cbp_ray.sweeps.block_run import STEP_SECONDS, LivePart
from cbp_ray.sweeps.board_updates import BoardUpdates
from cbp_ray.sweeps.cluster import check_alive
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.plan import Plan
from cbp_ray.sweeps.progress import Event, Heartbeat, Listener, Totals
from cbp_ray.sweeps.search_log import SearchLog, Stop, search_key
from cbp_ray.sweeps.trainable import PACKED, Unpacked, unpack

PROGRESS_SECONDS = 1.0
CHECK_SECONDS = 5.0
"""Seconds between two checks that Ray is alive."""
MOST_GLANCES = 200
"""Running trials that the sign of life tells of."""
MOST_WARNINGS = 3
"""Configurations about which the log warns; `cbp-ray status` tells of all."""


class SweepCallback(Callback):
    """Listens to Tune on behalf of one sweep: keeps its totals and its sign of life, and tells `progress` of every event."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        totals: Totals,
        progress: Listener,
        heartbeat: Heartbeat,
        live: LiveCurves,
        boards: BoardUpdates | None,
    ) -> None:
        self._sweep, self._store, self._totals = plan.sweep, store, totals
        self._progress, self._heartbeat, self._live, self._boards = progress, heartbeat, live, boards
        self._running: dict[str, tuple[Block, str]] = {}
        self._learning, self._warnings = False, 0
        self._learned: set[str] = set()
        self._log = None if plan.sweep.tune is None else SearchLog(store, search_key(plan.sweep))
        self._drawn = set(self._log.drawn()) if self._log is not None else set()
        self._seconds = {trial.block.trial_id: trial.seconds for trial in plan.trials}
        self._unpacked: dict[str, Unpacked] = {}
        self._reported: dict[str, tuple[int, float]] = {}
        self._finished_estimate, self._running_estimate = 0.0, 0.0
        self._next_progress, self._next_check = 0.0, time.monotonic() + CHECK_SECONDS
        self._open: set[str] = set()
        self._told_of_trouble = False
        self._best: tuple[float, Block] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks with its own snapshot, which is never read.
        return {}

    def _about(self, trial: TuneTrial) -> Unpacked:
        """The trial's block, its group, and whether a search only hears again what it knows of it."""
        if trial.trial_id not in self._unpacked:
            self._unpacked[trial.trial_id] = unpack(trial.config[PACKED])
        return self._unpacked[trial.trial_id]

    def _tell(self, kind: str, block: Block, group: str, **about: Any) -> None:
        self._progress(Event(kind, self._totals, {"trial_id": block.trial_id, "group": group, **about}))

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        _, block, group, known, _ = self._about(trial)
        self._open.add(trial.trial_id)
        if self._log is not None and block.name not in self._drawn:
            with contextlib.suppress(OSError):  # the next start of the trial tries again
                self._log.add(block, group)
                self._drawn.add(block.name)
        if known:
            return
        self._advance(block.trial_id, 0.0)
        self._running[block.trial_id] = block, group
        self._tell("trial_start", block, group)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        _, block, group, known, _ = self._about(trial)
        # Taken out, because Tune keeps the last report of every trial.
        part: LivePart | None = result.pop("live")
        if result["phase"] is not None and not self._learning:
            self._totals.doing = result["phase"]
        if known:
            if result["stored"] and self._boards is not None:
                # Perhaps drawn for the first time: other files and other searches store blocks as well.
                self._boards.stored(block, group)
            return
        if result["notice"] is not None:
            self._progress(Event("warning", self._totals, {"message": result["notice"]}))
        totals, name = self._totals, block.trial_id
        examples, seconds = result["new_examples"], result["engine_seconds"]
        examples_before, seconds_before = self._reported.get(name, (0, 0.0))
        # A worker that begins again counts from zero again.
        totals.examples_done += examples - examples_before if examples >= examples_before else examples
        totals.engine_seconds += seconds - seconds_before if seconds >= seconds_before else seconds
        fraction = result["examples"] / block.config.examples
        if result["phase"] is None and name not in self._learned:
            self._learned.add(name)
            done_before = fraction - examples / (block.config.examples * len(block.seeds))
            totals.estimated_resumed += self._seconds.get(name, 0.0) * max(0.0, done_before)
        self._reported[name] = examples, seconds
        self._advance(name, fraction)
        if result["phase"] is None and not self._learning:
            self._learning, totals.doing = True, ""
            totals.learning = time.monotonic() - STEP_SECONDS
        if not result["stored"]:
            if part is not None:
                self._live.report(block, part)
                if self._boards is not None:
                    self._boards.report(block, group)
            return
        self._end(name)
        totals.trials_done += 1
        totals.runs_done += len(block.seeds)
        self._finished_estimate += self._seconds.pop(name, 0.0) or cost.seconds(block.config, block.engine, len(block.seeds))
        self._live.drop(block.name)
        if self._boards is not None:
            self._boards.stored(block, group, part)
        if result["warning"] is not None:
            self._warn_of(block, group, result["warning"])
        self._tell("trial_done", block, group, trial_engine_seconds=round(seconds, 3))

    def _advance(self, name: str, fraction: float) -> None:
        """Takes note how far a trial is. What all together have done is kept as a sum: there may be thousands of them."""
        before = self._totals.running.get(name, 0.0)
        self._totals.running[name] = fraction
        self._running_estimate += self._seconds.get(name, 0.0) * (fraction - before)

    def _pause(self, name: str) -> None:
        """Takes note that a trial does not run, for now."""
        self._running_estimate -= self._seconds.get(name, 0.0) * self._totals.running.pop(name, 0.0)
        self._running.pop(name, None)

    def _end(self, name: str) -> None:
        """Takes note that a trial runs no more."""
        self._pause(name)
        self._reported.pop(name, None)
        self._learned.discard(name)

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self._complete(trial)
        # Nothing more is heard of it.
        self._unpacked.pop(trial.trial_id, None)

    def _complete(self, trial: TuneTrial) -> None:
        self._open.discard(trial.trial_id)
        # Tune keeps statistics of every number that a trial ever reported: most of what thousands of trials would take.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        result, settings = trial.last_result, self._sweep.tune
        if settings is None or self._log is None:
            return
        _, block, group, known, _ = self._about(trial)
        if not result["stored"]:
            if known:
                return
            with contextlib.suppress(OSError):  # the next start of the search then makes it again
                self._log.stop(block, Stop(result["examples"], result[settings.metric]))
            self._stop(block)
            self._totals.trials_done += 1
            self._tell("trial_stopped", block, group, examples=result["examples"])
            return
        value = result[settings.metric]
        sign = 1 if settings.mode == "min" else -1
        # What diverged is not the best, nor does it hide what comes after it.
        if math.isfinite(value) and (self._best is None or sign * value < sign * self._best[0]):
            self._best = value, block

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        _, block, group, _, _ = self._about(trial)
        self._totals.retried += 1
        self._pause(block.trial_id)
        self._tell("trial_retry", block, group, attempt=trial.num_failures)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        _, block, group, _, _ = self._about(trial)
        self._totals.failed += 1
        self._open.discard(trial.trial_id)
        self._stop(block)
        error = ""
        if trial.error_file is not None:
            with open(trial.error_file, encoding="utf-8", errors="replace") as file:
                error = file.read()
        message = failures.record(self._store, block, group, trial.num_failures, error)
        self._tell("trial_failed", block, group, message=message, attempts=trial.num_failures)
        self._unpacked.pop(trial.trial_id, None)

    def _stop(self, block: Block) -> None:
        """Takes note that a trial runs no more and is not stored."""
        self._end(block.trial_id)
        self._live.keep(block.name)
        if self._boards is not None:
            self._boards.ended(block)
        self._live.forget(block.name)

    def _warn_of(self, block: Block, group: str, message: str) -> None:
        """Keeps a warning about a configuration, and says the first few."""
        if not warnings.record(self._store, block.config, block.engine, group, message):
            return
        self._warnings += 1
        if self._warnings <= MOST_WARNINGS:
            more = "; later ones: see cbp-ray status" if self._warnings == MOST_WARNINGS else ""
            message = f"{self._names.of(group, flat_settings(block.config))}: {message}{more}"
            self._progress(Event("warning", self._totals, {"message": message}))

    @cached_property
    def _names(self) -> RunNames:
        searched = {} if self._sweep.tune is None else self._sweep.tune.space
        return RunNames([(c.group, flat_settings(c.config)) for c in self._sweep.configurations], searched)

    def _glance(self, block: Block, group: str) -> dict[str, Any]:
        """What `cbp-ray status --watch` shows of a trial that runs."""
        return {
            "name": self._names.of(group, flat_settings(block.config)),
            "seeds": describe_seeds(block.seeds),
            "fraction": round(self._totals.running.get(block.trial_id, 0.0), 4),
            **self._live.glance(block),
        }

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        totals = self._totals
        totals.estimated_done = self._finished_estimate + self._running_estimate
        if self._heartbeat.due:
            totals.glances = [self._glance(block, group) for block, group in islice(self._running.values(), MOST_GLANCES)]
            self._beat()
        if self._boards is not None:
            self._boards.tick()
        # A clock of the day may be set back by hours.
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            check_alive()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self._progress(Event("progress", totals))

    def _beat(self) -> None:
        self._heartbeat.beat()
        trouble = self._heartbeat.trouble
        if trouble is None:
            self._told_of_trouble = False
        elif not self._told_of_trouble:
            self._told_of_trouble = True
            message = f"the storage can't be written ({trouble}); trials that end meanwhile wait a minute for it and then fail"
            self._progress(Event("warning", self._totals, {"message": message}))

    def finish(self) -> None:
        """Says how the sweep ended, after Tune has come to its end; raises `KeyboardInterrupt` again if Ctrl-C ended it."""
        totals = self._totals
        totals.running.clear()
        totals.glances, totals.doing = [], ""
        self._unpacked.clear()
        missing = self._sweep.tune is None and totals.trials_done + totals.failed < totals.trials
        if missing or self._open:
            self._progress(Event("interrupted", totals))
            raise KeyboardInterrupt
        self._heartbeat.beat("failed" if totals.failed else "finished", force=True)
        about = {}
        if self._best is not None:
            value, block = self._best
            about = {"best": {"value": value, "trial_id": block.trial_id, "config": block.config.model_dump(mode="json")}}
        self._progress(Event("end", totals, about))
