"""What a sweep of many thousands of trials must not do: more work for each trial the more there are, or remember each for good.

Work is counted in instructions of Python, which are the same on every machine.
"""

import subprocess
import sys
from collections.abc import Callable, Sized
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.errors import InputError
from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.results import Block, Store
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.sweeps import block_run, board_updates, live_curves, run, trainable
from cbp_ray.sweeps.block_run import LivePart, report
from cbp_ray.sweeps.board_updates import VARIABLE, BoardUpdates
from cbp_ray.sweeps.in_order import Halving, InOrder
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.plan import find_missing, make_plan
from cbp_ray.sweeps.progress import Event, Heartbeat, Totals
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.sweep import Configuration, Sweep
from cbp_ray.sweeps.trainable import PACKED, pack
from cbp_ray.sweeps.tune_callback import SweepCallback

FEW, MANY = 20, 400


def work_of(act: Callable[[], Any]) -> int:
    """How many of Python's instructions a call takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def make_sweep(size: int, seeds: int = 1) -> Sweep:
    """A sweep of so many configurations, which are short."""
    given = {"optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 60, "bin_size": 20}
    rates = [1e-6 * (1 + number) for number in range(size)]
    configs = [OnlineConfig.make(given | {"algorithm": {"name": "cbp", "replacement_rate": rate}}) for rate in rates]
    return Sweep("sweep", tuple(range(seeds)), "kernel", tuple(Configuration("cbp", config) for config in configs))


def curves(bins: int = 3) -> Curves:
    values = np.linspace(0, 1, bins)[None]
    return Curves((0,), np.array([20, 40, 60])[:bins], {"error": values, "dead": values, "replacements": values})


class Driver:
    """What Tune tells of the trials of a sweep, without Ray."""

    def __init__(self, folder: Path, size: int, boards: bool = False) -> None:
        sweep = make_sweep(size)
        self.sweep, self.store = sweep, Store(folder, sweep.name)
        self.plan = make_plan(find_missing(sweep, self.store), size)
        self.events: list[Event] = []
        self.totals = Totals(size, size, 0, size, self.plan.seconds)
        self.live = LiveCurves(self.store)
        record = record_sweep(sweep, self.store)
        self.boards = BoardUpdates(sweep, self.store, (), self.live, lambda _: None) if boards else None
        if self.boards is not None:
            self.boards.catch_up()
        heartbeat = Heartbeat(self.store, record, self.totals)
        self.callback = SweepCallback(self.plan, self.store, self.totals, self.events.append, heartbeat, self.live, self.boards)
        self.trials: list[Any] = [
            SimpleNamespace(
                trial_id=f"{number:08}",
                config={PACKED: pack(self.store, each.block, each.group)},
                block=each.block,
                metric_analysis={},
                metric_n_steps={},
                last_result={},
            )
            for number, each in enumerate(self.plan.trials)
        ]

    def start(self, trial: Any) -> None:
        self.callback.on_trial_start(0, self.trials, trial)
        self.callback.on_step_end(0, self.trials)

    def report(self, trial: Any, first: int = 0) -> None:
        part = LivePart(first, CurveSummary.of(curves(2)).part(first))
        self.callback.on_trial_result(0, self.trials, trial, report(examples=40, new_examples=40, live=part))
        self.callback.on_step_end(0, self.trials)

    def finish(self, trial: Any) -> None:
        self.store.write(trial.block, curves(), {})
        told = report(done=True, stored=True, examples=60, new_examples=60, engine_seconds=0.1)
        self.callback.on_trial_result(0, self.trials, trial, told)
        self.callback.on_trial_complete(0, self.trials, trial)
        self.callback.on_step_end(0, self.trials)

    def remembered(self) -> int:
        """How many things are kept of trials."""
        parts = [self.callback, self.live, *([self.boards] if self.boards is not None else [])]
        return sum(len(each) for part in parts for each in vars(part).values() if isinstance(each, Sized))


@pytest.mark.parametrize("scheduler", [InOrder, lambda: Halving(metric="error", mode="min")])
def test_the_next_trial_is_found_without_a_look_at_all_that_have_ended(scheduler: Callable[[], InOrder]) -> None:
    work = []
    for size in (FEW, MANY):
        order, trials = scheduler(), [SimpleNamespace(trial_id=str(number), status=Trial.PENDING) for number in range(size)]
        controller: Any = SimpleNamespace(get_trials=lambda trials=trials: trials)
        for trial in trials:
            order.on_trial_add(controller, trial)  # type: ignore[arg-type]
        for trial in trials[:-1]:
            assert order.choose_trial_to_run(controller) is trial
            trial.status = Trial.RUNNING
            order.choose_trial_to_run(controller)
            trial.status = Trial.TERMINATED
        work.append(work_of(lambda order=order, controller=controller: order.choose_trial_to_run(controller)))
        # One that failed is asked for again, and comes last.
        trials[0].status = Trial.PENDING
        order.on_trial_add(controller, trials[0])  # type: ignore[arg-type]
        assert order.choose_trial_to_run(controller) is trials[-1]
        trials[-1].status = Trial.RUNNING
        assert order.choose_trial_to_run(controller) is trials[0]
        trials[0].status = Trial.TERMINATED
        assert order.choose_trial_to_run(controller) is None
    assert work[0] == work[1]


def test_the_driver_forgets_the_trials_that_have_ended(tmp_path: Path) -> None:
    driver = Driver(tmp_path, MANY, boards=True)
    before = driver.remembered()
    for trial in driver.trials:
        driver.start(trial)
        driver.report(trial)
        driver.finish(trial)
    # Less than before: the estimates of trials that are to come are gone as well.
    assert driver.totals.trials_done == MANY and driver.remembered() <= before + 10
    assert driver.totals.estimated_done == pytest.approx(driver.plan.seconds)


def test_a_report_costs_the_same_however_many_trials_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("board_updates", "live_curves"):
        monkeypatch.setattr(f"cbp_ray.sweeps.{module}.LIVE_SECONDS", 0.0)
    work = []
    for size in (FEW, MANY):
        driver = Driver(tmp_path / str(size), size, boards=True)
        # The sign of life shows all that runs, once in some seconds.
        monkeypatch.setattr(driver.callback._heartbeat, "_next", float("inf"))
        monkeypatch.setattr(driver.callback, "_next_check", float("inf"))
        monkeypatch.setattr(driver.callback, "_next_progress", float("inf"))
        for trial in driver.trials:
            driver.start(trial)
            driver.report(trial)
        last = driver.trials[-1]
        driver.report(last, first=1)
        work.append(work_of(lambda driver=driver, last=last: driver.report(last, first=1)))
        halfway = sum(trial.seconds for trial in driver.plan.trials) * 2 / 3
        assert driver.totals.estimated_done == pytest.approx(halfway)
    assert work[1] < 1.02 * work[0]


def test_files_of_what_runs_are_written_less_often_where_much_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_curves, "KEPT_AT_ONCE", FEW / 2)
    passed, written = [0.0], []
    monkeypatch.setattr(live_curves, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    blocks = [Block(each.config, "kernel", (0,)) for each in make_sweep(FEW).configurations]
    live = LiveCurves(Store(tmp_path, "sweep"))
    monkeypatch.setattr(live, "keep", lambda name, keep=live.keep: (written.append(name), keep(name)))
    for _ in range(8):
        for block in blocks:
            live.report(block, LivePart(0, CurveSummary.of(curves())))
        passed[0] += block_run.LIVE_SECONDS
    # The first reports fill it up.
    assert FEW * 4 <= len(written) <= FEW * 5


def test_where_many_trials_run_each_reports_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [block_run.pace_of(slots) for slots in (1, 1000, 2000, 100_000)] == [1, 1, 2, 3]
    handed = {}

    class Tuner:
        def __init__(self, trainable: Any, tune_config: Any, run_config: Any) -> None:
            handed["settings"] = tune_config

        def fit(self) -> None:
            settings = handed["settings"]
            handed["first"] = settings.search_alg.suggest("first")

    monkeypatch.setattr("ray.tune.Tuner", Tuner)
    packed = []
    monkeypatch.setattr(trainable, "pack", lambda *args, **about: packed.append(args) or pack(*args, **about))
    store, callback = Store(tmp_path, "sweep"), SimpleNamespace(finish=lambda: None)
    for trials, slots, about in ((FEW, 2, {}), (FEW, 2000, {}), (2000, 2000, {"pace": 2.0})):
        packed.clear()
        plan = make_plan(find_missing(make_sweep(trials), store), 1)
        run._fit(plan, store, slots, 0, callback)  # type: ignore[arg-type]
        found = trainable.unpack(handed["first"][PACKED])
        assert found.block == plan.trials[0].block and found.about == about
        # Each is made when its trial is: Tune's own grid copies all of itself for every point.
        assert len(packed) == 1 and handed["settings"].num_samples == trials
    assert block_run.BlockRun(store, found.block, **found.about).pace == 2


def test_a_report_is_short_in_a_log() -> None:
    # Tune makes text of every report.
    assert len(repr(LivePart(0, CurveSummary.of(curves())))) < 100


def shown(folder: Path) -> set[str]:
    return {path.parent.name for path in (folder / "sweep" / "tensorboard").rglob("events*")}


def test_tensorboard_gets_no_more_runs_than_it_can_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_updates, "MOST_RUNS", 5)
    sweep, warnings, store = make_sweep(20), list[str](), Store(tmp_path, "sweep")
    record_sweep(sweep, store)

    def boards() -> BoardUpdates:
        found = BoardUpdates(sweep, store, store.names(), LiveCurves(store), warnings.append)
        found.catch_up()
        return found

    first = boards()
    for each in sweep.configurations:
        block = Block(each.config, "kernel", (0,))
        store.write(block, curves(), {})
        first.stored(block, each.group)
    first.close()
    assert len(shown(tmp_path)) == 5 and "5 of 20" in warnings[0] and VARIABLE in warnings[0]
    # From all over the grid, and each of them whole.
    rates = sorted(float(name.partition("replacement_rate=")[2]) for name in shown(tmp_path))
    assert rates == pytest.approx([1e-6, 5e-6, 9e-6, 13e-6, 17e-6])
    for name in shown(tmp_path):
        found = EventAccumulator(str(tmp_path / "sweep" / "tensorboard" / name))
        found.Reload()
        assert len(found.Scalars("performance/error")) == 3
    # Started again it shows the same, and the number that somebody wants.
    before = shown(tmp_path)
    boards().close()
    assert shown(tmp_path) == before
    monkeypatch.setenv(VARIABLE, "8")
    boards().close()
    assert len(shown(tmp_path)) == 8 and shown(tmp_path) > before
    monkeypatch.setenv(VARIABLE, "100")
    warnings.clear()
    boards().close()
    assert len(shown(tmp_path)) == 20 and warnings == []


@pytest.mark.parametrize("number", ["many", "-1", "1.5", "", "²"])
def test_a_number_of_tensorboard_runs_that_is_none_is_refused(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, number)
    with pytest.raises(InputError, match=VARIABLE):
        board_updates.most_runs()


def test_asking_for_the_status_loads_neither_ray_nor_tensorboard(tmp_path: Path) -> None:
    program = "import sys; from cbp_ray.cli import main; main(['status', '--storage', sys.argv[1]]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert not {"ray", "torch", "numba", "scipy", "tensorboard"} & set(done.stdout.split())
