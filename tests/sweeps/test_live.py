"""What a sweep tells while it runs: reports of workers, the start, `status --watch`, and methods that never acted."""

import json
import time
from pathlib import Path
from typing import Any

import mnist_help
import numpy as np
import pytest

from cbp_ray.cli import main
from cbp_ray.cli.display import Lines, beginning, standing
from cbp_ray.cli.watch import spark
from cbp_ray.experiments import OnlineConfig, run_online
from cbp_ray.experiments.engines.mlp_permuted_mnist import MlpEngine
from cbp_ray.experiments.online import Bin, Pause, iterate_online, iterate_with_pauses
from cbp_ray.methods import ContinualBackprop
from cbp_ray.results import Block, Store, warnings
from cbp_ray.sweeps import block_run, load_sweep
from cbp_ray.sweeps.block_run import BlockRun
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.progress import Event, Heartbeat, Totals
from cbp_ray.sweeps.resolved import record_sweep

CONFIG = OnlineConfig.make(
    {
        "algorithm": {"name": "cbp", "replacement_rate": 0.01, "maturity_threshold": 20},
        "optimizer": {"name": "sgd", "step_size": 0.01},
        "problem": {"flip_period": 500},
        "examples": 3000,
        "bin_size": 500,
    }
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers report after every bin."""
    for name in ("STEP_SECONDS", "FIRST_LIVE_SECONDS", "LIVE_SECONDS"):
        monkeypatch.setattr(block_run, name, 0.0)
    monkeypatch.setattr("cbp_ray.sweeps.live_curves.LIVE_SECONDS", 0.0)


def reports(run: BlockRun) -> list[dict[str, Any]]:
    found = [run.advance()]
    while not found[-1]["done"]:
        found.append(run.advance())
    return found


@pytest.mark.usefixtures("quick")
def test_reports_together_are_the_curves_and_each_bin_is_told_once(tmp_path: Path) -> None:
    store, block = Store(tmp_path, "sweep"), Block(CONFIG, "kernel", (0, 1, 2))
    live, told = LiveCurves(store), []
    for report in reports(BlockRun(store, block)):
        part = report["live"]
        assert part is not None
        if not report["done"]:
            told += range(part.first, part.first + len(part.summary.examples))
            live.report(block, part)
    # The last bin comes with the results.
    assert told == list(range(5))
    ref, comp = run_online(CONFIG, (0, 1, 2)), live.of(block.name)
    assert comp is not None
    for name in CONFIG.metrics:
        np.testing.assert_allclose(comp.means[name], ref.mean(name)[:5], rtol=1e-12)
    assert (comp.means["age"] > 0).all() and (comp.means["utility"] > 0).all() and (comp.means["examples_per_second"] > 0).all()
    # In the end only what results do not have.
    assert set(part.summary.means) == {"error", "age", "utility", "examples_per_second"} and len(part.summary.examples) == 6
    assert LiveCurves(store).names(block.name.key) == []
    assert live.glance(block)["value"] == pytest.approx(ref.mean()[4])


@pytest.mark.usefixtures("quick")
def test_a_worker_that_goes_on_from_a_checkpoint_tells_all_bins_again(tmp_path: Path) -> None:
    store, block = Store(tmp_path, "sweep"), Block(CONFIG, "kernel", (0, 1))
    first = BlockRun(store, block)
    live = LiveCurves(store)
    for _ in range(3):
        live.report(block, first.advance()["live"])
    first._save()
    live.report(block, first.advance()["live"])
    # Another driver finds what was shown, and loses none of it.
    live, again = LiveCurves(store), BlockRun(store, block)
    part = again.advance()["live"]
    assert (part.first, len(part.summary.examples)) == (0, 4)
    live.report(block, part)
    found = live.of(block.name)
    assert found is not None and len(found.examples) == 4 and np.isfinite(found.means["age"]).all()


def test_a_short_trial_reports_once_and_tells_only_of_its_units(tmp_path: Path) -> None:
    store = Store(tmp_path, "sweep")
    (report,) = reports(BlockRun(store, Block(CONFIG, "kernel", (0, 1))))
    assert set(report["live"].summary.means) == {"error", "age", "utility"}
    bp = OnlineConfig.make({**CONFIG.model_dump(), "algorithm": {"name": "bp"}})
    (report,) = reports(BlockRun(store, Block(bp, "kernel", (0, 1))))
    assert report["live"] is None and report["warning"] is None


def test_a_report_has_a_limited_number_of_bins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_run, "LIVE_BINS", 2)
    monkeypatch.setattr(block_run, "STEP_SECONDS", 0.0)
    run = BlockRun(Store(tmp_path, "sweep"), Block(CONFIG, "kernel", (0,)))
    monkeypatch.setattr(block_run, "LIVE_SECONDS", 0.0)
    for _ in range(3):
        assert run.advance()["live"] is None
    run.next_live = 0.0
    parts = [run.advance()["live"] for _ in range(2)]
    assert [(part.first, len(part.summary.examples)) for part in parts] == [(0, 2), (2, 2)]


def test_pauses_change_nothing_and_tell_how_far_a_bin_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # A kernel that other tests need as well.
    method, adam = {"name": "cbp", "replacement_rate": 0.01, "maturity_threshold": 20}, {"name": "adam", "step_size": 0.003}
    config = mnist_help.make_config(method, adam, dtype="float32")
    images, seeds = mnist_help.small_images(), (0, 1)
    ref = MlpEngine(config, seeds, images)
    whole = [ref.advance(100) for _ in range(2)]
    monkeypatch.setattr("cbp_ray.experiments.engines.mlp_permuted_mnist.EXAMPLES_AT_ONCE", 40)
    comp = MlpEngine(config, seeds, images)
    for expected in whole:
        parts, seen = comp.advance_in_parts(100), []
        found = yield_all(parts, seen)
        # Parts also end where a task does.
        assert seen == ([20, 40, 50, 70, 90, 100] if expected is whole[0] else [20, 25, 45, 50, 70, 75, 95, 100])
        np.testing.assert_equal(found, expected)
    np.testing.assert_equal(comp.state(), ref.state())
    ages, utilities = comp.units()["age"], comp.units()["utility"]
    assert ((ages > 20) & (ages < 200)).all() and (utilities > 0).all()


def yield_all(parts: Any, seen: list[int]) -> Any:
    try:
        while True:
            seen.append(next(parts))
    except StopIteration as end:
        return end.value


class Halting:
    """An engine that pauses twice in every bin."""

    def __init__(self, config: OnlineConfig, seeds: tuple[int, ...]) -> None:
        self.seeds = len(seeds)

    def advance_in_parts(self, examples: int) -> Any:
        yield examples // 3
        yield 2 * examples // 3
        return {name: np.ones(self.seeds) for name in CONFIG.metrics}

    def units(self) -> Any:
        return {}

    def state(self) -> Any:
        return {}


@pytest.mark.usefixtures("quick")
def test_a_long_bin_is_reported_partway_and_leaves_no_checkpoint_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cbp_ray.experiments.online.make_engine", lambda config, engine, seeds, device: Halting(config, seeds))
    monkeypatch.setattr(block_run, "compile_once", lambda *_: None)
    assert [type(point) for point in iterate_with_pauses(CONFIG, (0,))][:3] == [Pause, Pause, Bin]
    assert len(list(iterate_online(CONFIG, (0,)))) == CONFIG.bins
    store, block = Store(tmp_path, "sweep"), Block(CONFIG, "kernel", (0, 1))
    run = BlockRun(store, block)
    found = [run.advance() for _ in range(4)]
    assert [report["examples"] for report in found] == [166, 333, 500, 666]
    assert found[1]["new_examples"] == 2 * 333 and found[0]["live"] is None and found[2]["live"] is not None
    run.engine_seconds = 5.0
    run.interrupt()
    assert not store.checkpoints.names()
    # A search hears of whole bins only.
    assert BlockRun(store, block, metric="error", every_bins=1).advance()["examples"] == 500


def cbp(**settings: Any) -> ContinualBackprop:
    return ContinualBackprop(**{"replacement_rate": 1e-4, "maturity_threshold": 100} | settings)


def test_a_method_that_never_acted_says_why() -> None:
    assert cbp().never_acted(replacements=3, updates=1000, units=5) is None
    assert "maturity_threshold = 100 in 50 steps" in str(cbp().never_acted(0, 50, 5))
    assert "replacement_rate = 0.0001 makes 0.45 of a layer of 5" in str(cbp().never_acted(0, 1000, 5))
    assert cbp(replacement_rate=0).never_acted(0, 50, 5) is None


def test_what_never_acted_stands_in_the_results_and_in_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "idle.yaml"
    file.write_text(
        "sweep: idle\nseeds: 0:2\nbase: {optimizer: {name: sgd, step_size: 0.01}, examples: 60, bin_size: 20,\n"
        "  algorithm: {name: cbp, replacement_rate: 1e-4}}\n"
    )
    sweep, store = load_sweep(file), Store(tmp_path, "idle")
    record_sweep(sweep, store)
    config = sweep.configurations[0].config
    (report,) = reports(BlockRun(store, Block(config, "kernel", sweep.seeds)))
    assert "never replaced a unit" in report["warning"]
    import pyarrow.parquet

    (runs,) = (tmp_path / "idle" / "runs").iterdir()
    assert set(pyarrow.parquet.read_table(runs).column("warning").to_pylist()) == {report["warning"]}
    assert warnings.record(store, config, "kernel", "cbp", report["warning"])
    assert not warnings.record(store, config, "kernel", "cbp", report["warning"])
    assert main(["status", "idle", "--storage", str(tmp_path)]) == 0
    assert "warning: idle: cbp: CBP never replaced a unit" in capsys.readouterr().out
    assert main(["status", "idle", "--storage", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["warnings"]


def test_watch_shows_what_runs_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("sweep: mine\nseeds: 0:2\nbase: {optimizer: {name: sgd, step_size: 0.01}, algorithm: {name: bp}}\n")
    store = Store(tmp_path, "mine")
    totals = Totals(trials=1, runs=2, stored_runs=0, slots=2, estimated_seconds=10.0, running={"a": 0.25})
    curve = {"metric": "error", "value": 0.512345, "curve": [1.0, None, 0.5]}
    totals.glances = [{"name": "ppo", "seeds": "0:2", "fraction": 0.25, **curve}]
    heartbeat = Heartbeat(store, record_sweep(load_sweep(file), store), totals)
    heartbeat.beat(force=True)
    monkeypatch.setattr(time, "sleep", lambda _: heartbeat.beat("interrupted", force=True))
    assert main(["status", "mine", "--watch", "--storage", str(tmp_path)]) == 0
    running, ended = capsys.readouterr().out.split("interrupted")
    assert all(word in running for word in ("running", "ppo", "25%", "error 0.5123", "█ ▁", "about 5 s left"))
    assert "ppo" not in ended
    assert main(["status", "mine", "--watch", "--json", "--storage", str(tmp_path)]) == 2


def test_small_curves() -> None:
    assert spark([]) == "" and spark([None]) == "" and spark([2.0, 2.0]) == "▁▁"
    assert spark([0.0, 3.5, None, 7.0]) == "▁▅ █"


def test_a_sweep_says_what_it_finds_and_counts_it() -> None:
    totals = Totals(trials=3, runs=6, stored_runs=4, slots=2, estimated_seconds=60.0, resumed_trials=1)
    assert (
        beginning(totals) == "4 of 10 runs are stored, 1 trial goes on from a checkpoint, 6 runs to do in 3 trials, 2 at once"
    )
    totals.doing = "starting workers"
    assert standing(totals) == "4/10 runs, 0/3 trials, starting workers, about 30 s left"
    totals.doing, totals.runs_done, totals.examples_done = "", 2, 1e9
    assert standing(totals).startswith("6/10 runs, 0/3 trials, ") and "examples/s" in standing(totals)


def test_the_time_left_counts_what_a_checkpoint_had_as_done_but_not_as_quick() -> None:
    totals = Totals(trials=2, runs=2, stored_runs=0, slots=1, estimated_seconds=1000.0)
    totals.learning, totals.ended = 5000.0, 5100.0
    totals.estimated_done, totals.estimated_resumed = 500.0, 400.0
    assert totals.remaining_seconds == pytest.approx(500.0)


def test_a_log_is_not_silent_before_the_first_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cbp_ray.cli.display.START_SECONDS", 0.0)
    lines = Lines()
    lines(Event("phase", Totals(0, 0, 0, 0, 0.0, doing="starting Ray")))
    deadline, text = time.monotonic() + 10, ""
    while "starting Ray, 0 s since the start" not in text and "starting Ray, 1 s since the start" not in text:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        text += capsys.readouterr().out
    assert text.startswith("starting Ray\n")
    lines.close()
