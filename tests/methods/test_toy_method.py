"""A new method costs one file: it runs, is swept, drawn and named, and whoever does not know it refuses it."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from long_tests import first
from matplotlib.legend import Legend
from sweep_help import assert_bit_equal

from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments import OnlineConfig, iterate_online, run_online
from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep
from cbp_ray.sweeps.block_run import BlockRun
from cbp_ray.sweeps.plan import find_missing, make_plan
from cbp_ray.sweeps.resolved import record_sweep

pytestmark = pytest.mark.xdist_group("ray")
HERE = Path(__file__).parents[1] / "support"
TOY = {"name": "toy", "shrinkage": 0.01}
SWEEP = """
sweep: toys
seeds: 0:2
engine: torch
base:
  algorithm: [{name: bp}, {name: toy, shrinkage: [0.01, 0.1]}]
  optimizer: {name: sgd, step_size: 0.01}
  problem: {flip_period: 50}
  examples: 120
  bin_size: 40
"""


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CBP_RAY_METHODS", "toy_method:Toy")
    # For the processes that a test starts; those know nothing of pytest's path.
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def config(algorithm: dict[str, Any], **more: Any) -> OnlineConfig:
    settings = {
        "optimizer": {"name": "sgd", "step_size": 0.01},
        "problem": {"flip_period": 50},
        "examples": 120,
        "bin_size": 40,
    }
    return OnlineConfig.make(settings | {"algorithm": algorithm} | more)


def test_it_acts_and_switched_off_it_is_backprop_bit_for_bit() -> None:
    bp, toy, off = (run_online(config(a), (0, 3), "torch") for a in ({"name": "bp"}, TOY, TOY | {"shrinkage": 0}))
    for metric in bp.metrics:
        np.testing.assert_array_equal(off[metric], bp[metric])
    assert (toy["input_weight_magnitude"] < bp["input_weight_magnitude"]).all()


def test_a_split_run_equals_the_unbroken_run_bit_for_bit() -> None:
    _, *whole = iterate_online(config(TOY), (3,), "torch")
    state = next(iter(iterate_online(config(TOY), (3,), "torch"))).checkpoint()
    resumed = list(iterate_online(config(TOY), (3,), "torch", state))
    for ref, comp in zip(whole, resumed, strict=True):
        np.testing.assert_equal(comp.metrics, ref.metrics)


@pytest.mark.parametrize("through_ray", first(1, [False, True]))
def test_it_is_swept_drawn_and_named(
    through_ray: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "toys.yaml"
    file.write_text(SWEEP)
    sweep = load_sweep(file)
    if through_ray:
        ray.shutdown()  # of tests before, whose workers don't know the method
        assert main(["run", str(file), "--storage", str(tmp_path)]) == 0
        assert "6 runs in 3 trials" in capsys.readouterr().out
    else:
        store = Store(tmp_path, sweep.name)
        record_sweep(sweep, store)
        for trial in make_plan(find_missing(sweep, store), 1).trials:
            run = BlockRun(store, trial.block)
            while not run.advance()["done"]:
                pass
    assert_bit_equal(sweep, tmp_path)

    legends: list[list[str]] = []
    make = Legend.__init__

    def keep(self: Legend, parent: Any, handles: Any, labels: Any, **more: Any) -> None:
        legends.append(list(labels))
        make(self, parent, handles, labels, **more)

    monkeypatch.setattr(Legend, "__init__", keep)
    assert main(["plot", str(file), "--storage", str(tmp_path)]) == 0
    names = ["BP", "Toy shrinkage, shrinkage 0.01", "Toy shrinkage, shrinkage 0.1"]
    assert legends == [names]
    rows = csv.DictReader((tmp_path / "figures" / "paper" / "toys.csv").read_text().splitlines())
    assert list(dict.fromkeys(row["configuration"] for row in rows)) == names


@pytest.mark.parametrize(
    ("problem", "engine", "fix"),
    [
        ("bit_flipping", "kernel", "use engine: torch"),
        ("permuted_mnist", "kernel", "use engine: torch"),
        ("slippery_ant", "rllib", "use cbp, say"),
    ],
)
def test_who_does_not_know_it_refuses_it_in_one_line(
    problem: str, engine: Any, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(TOY, problem={"name": problem}, optimizer={"name": "adam", "step_size": 0.01})
    with pytest.raises(InputError, match=r"^algorithm\.name: "):
        iterate_online(settings, (0,), engine)
    file = tmp_path / "toys.yaml"
    file.write_text(
        f"sweep: toys\nseeds: 1\nengine: {engine}\nbase: {{problem: {{name: {problem}}}, algorithm: {TOY}, "
        "optimizer: {name: adam, step_size: 0.01}}\n"
    )
    assert main(["run", str(file), "--storage", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("cbp-ray run: toys.yaml: base.algorithm.name: ") and error.endswith(f"; {fix}\n")
    assert error.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["toys.yaml"]


def test_stacked_runs_have_it_or_refuse_it_but_do_not_learn_by_backprop() -> None:
    def mnist(algorithm: dict[str, Any]) -> OnlineConfig:
        return config(algorithm, problem={"name": "permuted_mnist"}, network={"hidden": [5]}, examples=40, bin_size=20)

    toy, bp = (run_online(mnist(algorithm), (0, 1), "torch") for algorithm in (TOY, {"name": "bp"}))
    assert (toy["output_weight_magnitude"] < bp["output_weight_magnitude"]).all()


def test_without_the_variable_nobody_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CBP_RAY_METHODS")
    with pytest.raises(InputError, match=r"^algorithm\.name: "):
        config(TOY)
