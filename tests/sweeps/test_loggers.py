"""Weights & Biases and MLflow: one run per configuration, only if asked for, and never in the way of a sweep."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_results import store_made_up
from ray.tune import Callback
from ray.tune.experiment import Trial

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.results import Block, Store
from cbp_ray.sweeps import Sweep, load_sweep, loggers, run_sweep
from cbp_ray.sweeps.loggers import ConfigurationRun, LoggerUpdates, MLflow, Tracker, Wandb
from cbp_ray.sweeps.trainable import PACKED, pack

LOGGED = """
sweep: logged
seeds: 0:4
loggers: [mlflow]
base: {optimizer: {name: sgd, step_size: 0.01}, examples: 3000, bin_size: 1000}
groups:
  cbp: {algorithm: {name: cbp,replacement_rate: [1e-3, 1e-2]}}
"""


def sweep_of(tmp_path: Path, text: str = LOGGED, seeds: str | None = None) -> Sweep:
    (tmp_path / "logged.yaml").write_text(text)
    return load_sweep(tmp_path / "logged.yaml", seeds=seeds)


class Listed(Callback):
    """In place of a callback of Ray Tune: keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def log_trial_start(self, run: ConfigurationRun) -> None:
        self.told.append(("start", run))

    def log_trial_result(self, iteration: int, run: ConfigurationRun, result: dict[str, Any]) -> None:
        self.told.append(("result", result))

    def log_trial_end(self, run: ConfigurationRun) -> None:
        self.told.append(("end", run))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Listed:
    """What the logger `mlflow` is told, in place of MLflow."""
    callback = Listed()

    class ListedTracker(Tracker):
        name = "mlflow"

        def make(self) -> Any:
            return callback

    monkeypatch.setitem(loggers.TRACKERS, "mlflow", ListedTracker)
    return callback


class Told:
    """A trial as Tune has it when the results of its block are stored."""

    status = Trial.TERMINATED

    def __init__(self, store: Store, block: Block) -> None:
        self.config = {PACKED: pack(store, block, "cbp")}


def update(sweep: Sweep, store: Store, *blocks: Block) -> list[str]:
    """A start of the sweep in which these blocks come in. Returns the warnings."""
    warnings: list[str] = []
    arrived = [block.name for block in blocks]
    updates = LoggerUpdates(sweep, store, [name for name in store.names() if name not in arrived], warnings.append)
    updates.setup()
    trials: Any = [Told(store, block) for block in blocks]
    for trial in trials:
        updates.on_trial_result(0, trials, trial, {"stored": True})
    updates.on_experiment_end(trials)
    return warnings


def test_a_configuration_is_one_run_when_all_its_seeds_are_stored(listed: Listed, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    store = store_made_up(sweep, tmp_path, [0.4, np.nan], block=2)
    config = sweep.configurations[0].config
    blocks = [Block(config, sweep.engine, seeds) for seeds in ((0, 1), (2, 3))]
    assert update(sweep, store, blocks[1]) == []
    kinds = [kind for kind, _ in listed.told]
    assert kinds == ["start", "result", "result", "result", "end"]
    run = listed.told[0][1]
    assert str(run) == "cbp,replacement_rate=0.001" and run.config["seeds"] == 4
    curves = store.read_curves(config, range(4))
    points = [result for kind, result in listed.told if kind == "result"]
    assert [point["training_iteration"] for point in points] == [1000, 2000, 3000]
    assert [point["error"] for point in points] == curves.mean("error").tolist()
    assert [point["dead"] for point in points] == curves.mean("dead").tolist()
    assert points[0]["error_low"] < points[0]["error"] < points[0]["error_high"]
    assert points[-1]["performance"] == pytest.approx(curves.error.mean())

    # Told once, whatever starts again; and once more when there are more seeds.
    listed.told.clear()
    assert update(sweep, store) == [] and listed.told == []
    more = sweep_of(tmp_path, seeds="0:6")
    store_made_up(more, tmp_path, [0.4, np.nan], seeds=(4, 5))
    update(more, store)
    assert listed.told[0][1].trial_id == run.trial_id and listed.told[0][1].config["seeds"] == 6


def test_part_of_the_seeds_is_no_run(listed: Listed, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    store = store_made_up(sweep, tmp_path, [0.4, 0.3], seeds=(0, 1, 2))
    update(sweep, store, Block(sweep.configurations[0].config, sweep.engine, (0, 1, 2)))
    assert listed.told == []


def test_what_was_complete_before_is_told_without_running_anything(listed: Listed, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, LOGGED.replace("loggers: [mlflow]\n", ""))
    store = store_made_up(sweep, tmp_path, [0.4, 0.3])
    update(sweep, store)
    assert listed.told == []
    update(sweep_of(tmp_path), store)
    assert [str(about) for kind, about in listed.told if kind == "start"] == [
        "cbp,replacement_rate=0.001",
        "cbp,replacement_rate=0.01",
    ]


def test_a_logger_that_fails_warns_once_and_is_told_the_next_time(
    listed: Listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path)
    store = store_made_up(sweep, tmp_path, [0.4, 0.3])

    def fail(run: ConfigurationRun) -> None:
        raise ConnectionError("no\nserver")

    with monkeypatch.context() as patch:
        patch.setattr(listed, "log_trial_start", fail)
        assert update(sweep, store) == ["no more runs for mlflow: no server"]
    update(sweep, store)
    assert [kind for kind, _ in listed.told].count("start") == 2


@pytest.mark.parametrize("value", ["[wandbb]", "{wandb: true}", "[1]"])
def test_an_unknown_logger_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"logged.yaml: loggers: must be a list of wandb and mlflow, got "):
        sweep_of(tmp_path, LOGGED.replace("[mlflow]", value))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_logger_that_is_not_installed_is_refused_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cbp_ray.extras.find_spec", lambda module: None if module == name else True)
    sweep_of(tmp_path, LOGGED.replace("mlflow", name))
    assert main(["run", str(tmp_path / "logged.yaml"), "--storage", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"pip install 'cbp-ray[{name}]'" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_wandb_without_an_account_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    sweep_of(tmp_path, LOGGED.replace("mlflow", "wandb"))
    assert main(["run", str(tmp_path / "logged.yaml"), "--storage", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "loggers: " in error and "WANDB_MODE=offline" in error and error.count("\n") == 1


def test_a_bucket_needs_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cbp_ray.sweeps.loggers.need", lambda *_: None)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for tracker in (MLflow, Wandb):
        with pytest.raises(InputError, match=r"loggers: .* must have "):
            tracker(Store("mock://bucket", "logged")).check()


def test_mlflow_has_one_run_per_configuration_with_the_stored_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # As the product leaves it for itself, and no longer than this test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    sweep = sweep_of(tmp_path)
    store = store_made_up(sweep, tmp_path, [0.4, 0.3], seeds=(0, 1, 2, 3))
    assert update(sweep, store) == []
    more = sweep_of(tmp_path, seeds="0:5")
    store_made_up(more, tmp_path, [0.4, 0.3], seeds=(4,))
    assert update(more, store) == []
    client = mlflow.MlflowClient((tmp_path / "logged" / "mlflow").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("logged").experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["cbp,replacement_rate=0.001", "cbp,replacement_rate=0.01"]
    first = next(run for run in runs if run.data.params["algorithm.replacement_rate"] == "0.001")
    history = client.get_metric_history(first.info.run_id, "error")
    stored = store.read_curves(sweep.configurations[0].config, range(5)).mean("error")
    assert [(point.step, point.value) for point in history] == list(zip([1000, 2000, 3000], stored.tolist(), strict=True))
    assert (first.data.params["seeds"], first.info.status) == ("5", "FINISHED")
    assert MLflow(store).folder == tmp_path / "logged"


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_wandb_offline_has_one_run_per_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    sweep = sweep_of(tmp_path, LOGGED.replace("mlflow", "wandb"))
    store_made_up(sweep, tmp_path, [0.4, np.nan], seeds=(0, 1, 2, 3))
    outcome = run_sweep(sweep, tmp_path)
    assert (outcome.runs_done, outcome.failed) == (4, 0)
    folders = sorted(tmp_path.glob("logged/wandb/offline-run-*"))
    contents = [next(folder.glob("*.wandb")).read_bytes() for folder in folders]
    assert len(folders) == 2
    # Protocol buffers: the next field's tag stands behind a name.
    names = sorted(re.findall(rb"cbp,replacement_rate=[0-9.]+", content)[0] for content in contents)
    assert names == [b"cbp,replacement_rate=0.001", b"cbp,replacement_rate=0.01"]
    assert all(b"error_low" in content and b"performance" in content for content in contents)
