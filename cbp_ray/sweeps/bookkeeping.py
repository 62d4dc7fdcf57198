"""The driver's side of a sweep: what Tune reports becomes counts, events, failures on record and TensorBoard runs."""

from collections import defaultdict
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial as TuneTrial

from cbp_ray.errors import InputError
from cbp_ray.results.keys import config_key
from cbp_ray.results.store import Block, Store
from cbp_ray.sweeps import cost, failures
from cbp_ray.sweeps.cluster import check_alive
from cbp_ray.sweeps.definition import Sweep
from cbp_ray.sweeps.plan import Plan
from cbp_ray.sweeps.progress import Event, Heartbeat, Listener, Totals
from cbp_ray.sweeps.trainable import BLOCK, unpack

PROGRESS_SECONDS = 1.0
CHECK_SECONDS = 5.0
"""Between two looks at whether Ray is alive."""


class Bookkeeper(Callback):
    """Listens to Tune."""

    def __init__(
        self,
        sweep: Sweep,
        store: Store,
        plan: Plan,
        totals: Totals,
        progress: Listener,
        heartbeat: Heartbeat,
        tensorboard: bool,
    ) -> None:
        self._sweep, self._store, self._totals = sweep, store, totals
        self._progress, self._heartbeat = progress, heartbeat
        self._keys = {config_key(c.config, sweep.engine) for c in sweep.configurations}
        self._seconds = {trial.trial_id: trial.seconds for trial in plan.trials}
        self._reported: dict[str, dict[str, Any]] = {}
        self._finished_estimate = 0.0
        self._left: dict[str, int] = defaultdict(int)
        for trial in plan.trials:
            self._left[trial.block.name.key] += 1
        self._next_progress = 0.0
        self._next_check = CHECK_SECONDS
        self._open: set[str] = set()
        self._best: tuple[float, Block] | None = None
        self._boards = None
        if tensorboard:
            from cbp_ray.results.tensorboard import Boards

            self._boards = Boards(store, [(c.group, c.config) for c in sweep.configurations], sweep.engine)

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks with its own snapshot, which nobody reads.
        return {}

    def _block(self, trial: TuneTrial) -> tuple[Block, str]:
        _, block, extra = unpack(trial.config[BLOCK])
        return block, extra["group"]

    def _tell(self, kind: str, block: Block, group: str, **about: Any) -> None:
        self._progress(Event(kind, self._totals, {"trial_id": block.trial_id, "group": group, **about}))

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        block, group = self._block(trial)
        self._totals.running[block.trial_id] = 0.0
        self._open.add(trial.trial_id)
        self._tell("trial_start", block, group)

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        block, group = self._block(trial)
        before = self._reported.get(block.trial_id, {})
        totals = self._totals
        for name in ("new_examples", "engine_seconds"):
            # A worker that begins anew counts from zero again.
            change = result[name] - before.get(name, 0)
            change = result[name] if change < 0 else change
            if name == "new_examples":
                totals.examples_done += change
            else:
                totals.engine_seconds += change
        self._reported[block.trial_id] = {name: result[name] for name in ("new_examples", "engine_seconds")}
        totals.running[block.trial_id] = result["examples"] / block.config.examples
        if result["stored"]:
            self._done(block, group, result)

    def _done(self, block: Block, group: str, result: dict[str, Any]) -> None:
        totals = self._totals
        totals.running.pop(block.trial_id, None)
        self._reported.pop(block.trial_id, None)
        totals.trials_done += 1
        totals.runs_done += len(block.seeds)
        totals.repeated += bool(result["repeated"])
        self._finished_estimate += self._estimate(block)
        failures.forget(self._store, block)
        key = block.name.key
        self._left[key] -= 1
        if self._boards is not None and self._left[key] <= 0 and key in self._keys:
            self._write_board(block)
        self._tell("trial_done", block, group, trial_engine_seconds=round(result["engine_seconds"], 3))

    def _write_board(self, block: Block) -> None:
        assert self._boards is not None
        try:
            self._boards.write(block.config, self._sweep.seeds)
        except (OSError, InputError) as error:
            # Pictures of results must not end the making of results.
            self._boards = None
            self._progress(Event("warning", self._totals, {"message": f"no more TensorBoard runs: {error}"}))

    def _estimate(self, block: Block) -> float:
        if block.trial_id not in self._seconds:
            return cost.seconds(block.config, block.engine, len(block.seeds))
        return self._seconds[block.trial_id]

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self._open.discard(trial.trial_id)
        # Tune keeps statistics of every number that a trial ever reported: most of what thousands of trials would take.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        result, settings = trial.last_result, self._sweep.tune
        if settings is None:
            return
        block, group = self._block(trial)
        if not result["stored"]:
            self._totals.running.pop(block.trial_id, None)
            self._totals.trials_done += 1
            self._tell("trial_stopped", block, group, examples=result["examples"])
            return
        value = result[settings.metric]
        sign = 1 if settings.mode == "min" else -1
        if self._best is None or sign * value < sign * self._best[0]:
            self._best = value, block

    def on_trial_recover(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        block, group = self._block(trial)
        self._totals.retried += 1
        self._totals.running.pop(block.trial_id, None)
        self._tell("trial_retry", block, group, attempt=trial.num_failures)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        block, group = self._block(trial)
        self._totals.failed += 1
        self._open.discard(trial.trial_id)
        self._totals.running.pop(block.trial_id, None)
        error = ""
        if trial.error_file is not None:
            with open(trial.error_file, encoding="utf-8", errors="replace") as file:
                error = file.read()
        message = failures.record(self._store, block, group, trial.num_failures, error)
        self._tell("trial_failed", block, group, message=message, attempts=trial.num_failures)

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        totals = self._totals
        running = sum(self._seconds.get(name, 0.0) * fraction for name, fraction in totals.running.items())
        totals.estimated_done = self._finished_estimate + running
        self._heartbeat.beat()
        if totals.seconds >= self._next_check:
            self._next_check = totals.seconds + CHECK_SECONDS
            check_alive()
        if totals.seconds >= self._next_progress:
            self._next_progress = totals.seconds + PROGRESS_SECONDS
            self._progress(Event("progress", totals))

    def finish(self) -> None:
        """After Tune has come to its end.

        Raises:
          KeyboardInterrupt: if that was because of Ctrl-C.
        """
        totals = self._totals
        totals.running.clear()
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
