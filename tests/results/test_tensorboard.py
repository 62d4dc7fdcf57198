"""TensorBoard runs: one per configuration, the same while it runs and at its end, as TensorBoard's own loaders see it."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cbp_ray.experiments import Curves, OnlineConfig
from cbp_ray.results import Block, Store, config_key
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.run_names import RunNames, flat_settings
from cbp_ray.results.tensorboard import Boards
from cbp_ray.sweeps.block_run import LivePart
from cbp_ray.sweeps.board_updates import BoardUpdates
from cbp_ray.sweeps.live_curves import LiveCurves
from cbp_ray.sweeps.resolved import record_sweep
from cbp_ray.sweeps.sweep import Configuration, Sweep, load_sweep

RATES = (1e-4, 1e-3)


def make_config(rate: float | None = 1e-4, **settings: object) -> OnlineConfig:
    algorithm = {"name": "bp"} if rate is None else {"name": "cbp", "replacement_rate": rate}
    given = {"algorithm": algorithm, "optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 60, "bin_size": 20}
    return OnlineConfig.make(given | settings)


def make_sweep(*configs: OnlineConfig, seeds: int = 4, source: str = "mine") -> Sweep:
    found = tuple(Configuration("cppo" if c.algorithm.name == "cbp" else "ppo", c) for c in configs)
    return Sweep("sweep", tuple(range(seeds)), "kernel", found, source=source)


def curves(seeds: tuple[int, ...], bins: int = 3) -> Curves:
    values = np.array(seeds, dtype=float)[:, None] + np.array([0.0, 0.1, 0.2])[:bins]
    return Curves(seeds, np.array([20, 40, 60])[:bins], {"error": values, "dead": values / 7, "replacements": values})


class Driver:
    """What a sweep's driver does to the runs, without Ray: reports and results come in by hand."""

    def __init__(self, folder: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("board_updates", "live_curves"):
            monkeypatch.setattr(f"cbp_ray.sweeps.{module}.LIVE_SECONDS", 0.0)
        self.store, self.sweep, self.warnings = Store(folder, sweep.name), sweep, list[str]()
        record_sweep(sweep, self.store)
        self.live = LiveCurves(self.store)
        self.boards = BoardUpdates(sweep, self.store, self.store.names(), self.live, self.warnings.append)
        self.boards.catch_up()

    def report(self, config: OnlineConfig, seeds: tuple[int, ...], first: int, last: int, **beside: float) -> None:
        block = Block(config, "kernel", seeds)
        summary = CurveSummary.of(curves(seeds, last)).part(first)
        part = LivePart(first, summary.beside({name: np.full(last - first, value) for name, value in beside.items()}))
        self.live.report(block, part)
        self.boards.report(block, "cppo")

    def store_block(self, config: OnlineConfig, seeds: tuple[int, ...], **beside: float) -> None:
        block, found = Block(config, "kernel", seeds), curves(seeds)
        self.store.write(block, found, {})
        part = LivePart(0, CurveSummary.of(found).beside({name: np.full(3, value) for name, value in beside.items()}))
        self.live.drop(block.name)
        self.boards.stored(block, "cppo", part if beside else None)
        self.boards.tick()


def root(folder: Path) -> Path:
    return folder / "sweep" / "tensorboard"


def runs(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(root(folder))) for path in root(folder).rglob("events*")}


class Watcher:
    """A TensorBoard that was started before, with its loader in Python, and looks again now and then."""

    def __init__(self, folder: Path, run: str) -> None:
        self._loader = EventAccumulator(str(root(folder) / run))

    def scalars(self, tag: str) -> list[tuple[int, float]]:
        self._loader.Reload()
        found = self._loader.Scalars(tag) if tag in self._loader.Tags()["scalars"] else []
        return [(event.step, round(event.value, 5)) for event in found]


def test_a_run_grows_with_reports_and_ends_as_the_stored_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Across bins that come one by one, seeds that join, a driver that is killed, and the end, as one TensorBoard sees it."""
    config = make_config()
    sweep = make_sweep(config, make_config(None))
    driver = Driver(tmp_path, sweep, monkeypatch)
    driver.report(config, (0, 1), 0, 1, age=5.0)
    assert runs(tmp_path) == {"cppo"}
    watcher, mean, seeds = Watcher(tmp_path, "cppo"), "performance/error", "support/seeds"
    late = Watcher(tmp_path, "cppo")
    assert watcher.scalars(mean) == late.scalars(mean) == [(20, 0.5)]
    driver.report(config, (0, 1), 1, 2, age=6.0)
    assert watcher.scalars(mean) == [(20, 0.5), (40, 0.6)]
    assert watcher.scalars("replacement/age") == [(20, 5), (40, 6)]
    (file,) = (path for path in (root(tmp_path) / "cppo").iterdir() if "head" not in path.name)
    # Two other seeds begin: the mean of the bins that they have come to is that of all four.
    driver.report(config, (2, 3), 0, 1)
    assert watcher.scalars(mean) == [(20, 1.5), (40, 0.6)]
    assert watcher.scalars(seeds) == [(20, 4), (40, 2)]
    # The driver is killed, and the next one's worker begins at its checkpoint: nothing that was there goes away.
    driver = Driver(tmp_path, sweep, monkeypatch)
    assert watcher.scalars(mean) == [(20, 1.5), (40, 0.6)]
    driver.report(config, (0, 1), 0, 1)
    assert watcher.scalars(mean) == [(20, 1.5), (40, 0.6)]
    assert watcher.scalars("replacement/age") == [(20, 5), (40, 6)]
    driver.store_block(config, (0, 1), age=7.0)
    assert [step for step, _ in watcher.scalars(mean)] == [20, 40, 60]
    assert watcher.scalars(seeds) == [(20, 4), (40, 2), (60, 2)]
    driver.store_block(config, (2, 3))
    expected = [(20, 1.5), (40, 1.6), (60, 1.7)]
    assert watcher.scalars(mean) == expected
    assert watcher.scalars(seeds) == [(20, 4), (40, 4), (60, 4)]
    assert watcher.scalars("summary/error_whole_run") == [(60, 1.6)]
    assert Watcher(tmp_path, "cppo").scalars(mean) == expected
    # All of this was so quick that a TensorBoard may still have been reading the first file.
    assert late.scalars(mean) == expected
    # A minute later only the newest file is left, and it has all that a TensorBoard that starts now needs.
    monkeypatch.setattr("cbp_ray.results.tensorboard.READ_SECONDS", 0.0)
    Driver(tmp_path, sweep, monkeypatch).boards.close()
    assert len([path for path in file.parent.iterdir() if "head" not in path.name]) == 1
    assert Watcher(tmp_path, "cppo").scalars(mean) == expected == watcher.scalars(mean)
    assert driver.warnings == [] and not list((tmp_path / "sweep" / "live").iterdir())


def test_a_folder_that_cannot_be_written_for_a_while_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cbp_ray.sweeps.board_updates.AGAIN_SECONDS", 3600.0)
    config = make_config()
    driver = Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch)
    driver.report(config, (0, 1), 0, 1)
    away = root(tmp_path).rename(tmp_path / "away")
    root(tmp_path).write_text("a file where a folder should be")
    driver.report(config, (0, 1), 1, 2)
    driver.boards.tick()
    assert len(driver.warnings) == 1
    root(tmp_path).unlink()
    away.rename(root(tmp_path))
    driver.report(config, (0, 1), 2, 3)
    watcher = Watcher(tmp_path, "cppo")
    assert [step for step, _ in watcher.scalars("performance/error")] == [20], "it is not time yet"
    monkeypatch.setattr("cbp_ray.sweeps.board_updates.time", type("Later", (), {"monotonic": lambda: time.monotonic() + 4000}))
    driver.boards.tick()
    assert [step for step, _ in watcher.scalars("performance/error")] == [20, 40, 60]
    driver.store_block(config, (0, 1))
    assert watcher.scalars("performance/error") == [(20, 0.5), (40, 0.6), (60, 0.7)] and len(driver.warnings) == 1


def test_seeds_that_are_added_later_replace_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch).store_block(config, (0, 1))
    watcher = Watcher(tmp_path, "cppo")
    assert watcher.scalars("performance/error")[0] == (20, 0.5)
    lower = watcher.scalars("support/lower")[0][1]
    assert lower < 0.5
    Driver(tmp_path, make_sweep(config), monkeypatch).store_block(config, (2, 3))
    assert [value for _, value in watcher.scalars("performance/error")] == [1.5, 1.6, 1.7]
    assert [value for _, value in watcher.scalars("support/seeds")] == [4, 4, 4]


def test_what_is_complete_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch).store_block(config, (0, 1))
    before = {path: path.stat().st_mtime_ns for path in root(tmp_path).rglob("events*")}
    Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch).boards.close()
    assert {path: path.stat().st_mtime_ns for path in root(tmp_path).rglob("events*")} == before
    # What was removed is there again.
    for path in before:
        path.unlink()
    Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch)
    assert runs(tmp_path) == {"cppo"}


def test_run_names_say_what_differs_and_follow_when_more_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, bp = make_config(RATES[0]), make_config(RATES[1]), make_config(None)
    driver = Driver(tmp_path, make_sweep(first, bp, seeds=2), monkeypatch)
    driver.store_block(first, (0, 1))
    driver.store_block(bp, (0, 1))
    assert runs(tmp_path) == {"cppo", "ppo"}
    driver = Driver(tmp_path, make_sweep(first, second, bp, seeds=2), monkeypatch)
    driver.store_block(second, (0, 1))
    assert runs(tmp_path) == {"cppo,replacement_rate=0.0001", "cppo,replacement_rate=0.001", "ppo"}
    # Another file shares the sweep: a longer run, say.
    longer = make_config(RATES[0], examples=80)
    driver = Driver(tmp_path, make_sweep(longer, seeds=2, source="other"), monkeypatch)
    driver.report(longer, (0, 1), 0, 3)
    names = {"replacement_rate=0.0001,examples=60", "replacement_rate=0.001,examples=60", "replacement_rate=0.0001,examples=80"}
    assert runs(tmp_path) == {"ppo", *(f"cppo,{name}" for name in names)}
    assert len(list(root(tmp_path).rglob("*-head-*"))) == 1


def test_hyper_parameters_are_those_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_config(RATES[0]), make_config(RATES[1])
    driver = Driver(tmp_path, make_sweep(first, second, seeds=2), monkeypatch)
    driver.store_block(first, (0, 1))
    run = EventAccumulator(str(root(tmp_path) / "cppo,replacement_rate=0.0001")).Reload()
    settings = run.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    columns = run.SummaryMetadata("_hparams_/experiment").plugin_data.content
    for content in (settings, columns):
        assert b"algorithm.replacement_rate" in content
        assert b"optimizer.step_size" not in content and b"engine" not in content
    assert b"summary/error_whole_run" in columns
    assert "custom_scalars__config__" in run.Tags()["tensors"]


def test_many_configurations_have_charts_of_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [make_config(rate) for rate in np.linspace(0.01, 0.2, 20)]
    driver = Driver(tmp_path, make_sweep(*configs, seeds=2), monkeypatch)
    tags = set()
    for config in configs:
        driver.store_block(config, (0, 1))
    for name in runs(tmp_path):
        found = EventAccumulator(str(root(tmp_path) / name)).Reload().Tags()["scalars"]
        tags |= {tag for tag in found if tag.startswith("support/lower")}
    assert tags == {"support/lower_01", "support/lower_02", "support/lower_03"}


def test_runs_of_an_earlier_version_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    key = config_key(config, "kernel")
    old = root(tmp_path) / "cbp" / "sgd"
    old.mkdir(parents=True)
    (old / f"events.out.tfevents.{key}-{'0' * 16}").touch()
    (old / f"events.out.tfevents.head-{'0' * 16}").touch()
    Driver(tmp_path, make_sweep(config, seeds=2), monkeypatch).store_block(config, (0, 1))
    assert runs(tmp_path) == {"cppo"}
    assert os.listdir(root(tmp_path)) == ["cppo"]


def test_every_configuration_of_every_file_has_a_name_of_its_own() -> None:
    folder = Path(__file__).parents[2] / "tune_configs"
    for path in (*folder.glob("bit_flipping/fig*.yaml"), *folder.glob("examples/*.yaml")):
        sweep = load_sweep(path)
        names = RunNames([(c.group, flat_settings(c.config)) for c in sweep.configurations])
        found = [names.of(c.group, flat_settings(c.config)) for c in sweep.configurations]
        assert len(set(found)) == len(found)
        assert max(map(len, found)) < 200


def test_names_are_exact_and_sections_are_said_only_where_needed() -> None:
    close = [flat_settings(make_config(rate)) for rate in (0.12345678901, 0.12345678902)]
    names = RunNames([("g", each) for each in close])
    assert [names.of("g", each) for each in close] == ["g,replacement_rate=0.12345678901", "g,replacement_rate=0.12345678902"]
    assert flat_settings(make_config())["problem.inputs"] == 20.0
    sizes = [flat_settings(make_config(network={"hidden": hidden})) for hidden in ([5, 10], [5])]
    assert RunNames([("g", each) for each in sizes]).of("g", sizes[0]) == "g,hidden=5x10"


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    driver = Driver(tmp_path, make_sweep(config), monkeypatch)
    root(tmp_path).parent.mkdir(exist_ok=True)
    root(tmp_path).write_text("a file")
    for bins in (1, 2, 3):
        driver.report(config, (0, 1), bins - 1, bins)
    assert len(driver.warnings) == 1


def test_boards_of_nothing_are_empty(tmp_path: Path) -> None:
    boards = Boards(Store(tmp_path, "sweep"), lambda: pytest.fail("nothing is written"))
    assert not boards.has("0" * 20, (0,)) and boards.name("0" * 20) is None
