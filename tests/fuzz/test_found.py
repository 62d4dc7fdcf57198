"""Inputs that once gave a traceback, a crash or a wrong result, found by the property tests beside this file: one case each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz_help import answer, bounded_memory
from torch import nn

from cbp_ray import Adam, Distribution, GenerateAndTest, HiddenLayer, OnlineNorm, initialize, results, run_online
from cbp_ray.algorithm.unit_resets import SelfNormalizedResets
from cbp_ray.algorithm.weights import UPGD, L2Init, ShrinkAndPerturb, WeightClipping
from cbp_ray.errors import InputError
from cbp_ray.sweeps import load_sweep

FILE = "sweep: a\nseeds: 0:2\nbase: {optimizer: {name: sgd, step_size: 0.1}, algorithm: {name: bp}, examples: 300}\n"
CONFIG: dict[str, Any] = {
    "optimizer": {"name": "sgd", "step_size": 0.1},
    "algorithm": {"name": "bp"},
    "examples": 20,
    "bin_size": 10,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a sweep file."""
    (tmp_path / "file.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("variable", ["CBP_RAY_CHECKPOINT_SECONDS", "CBP_RAY_STORAGE_SECONDS", "CBP_RAY_METHODS"])
@pytest.mark.parametrize("value", ["abc", "nan", "inf", "-1", ".x", ".x:y"])
def test_variables_of_the_environment(variable: str, value: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(variable, value)
    said = answer(["run", "file.yaml", "--storage", "results"])
    assert said.code == 2 and variable in said.err
    assert [path.name for path in folder.iterdir()] == ["file.yaml"]


def test_a_sweep_file_must_be_named_by_its_path() -> None:
    with pytest.raises(InputError, match="path"):
        load_sweep(3)  # type: ignore[arg-type]


def test_a_sweep_that_has_no_results_yet_is_shown() -> None:
    assert answer(["results", "file.yaml"]).code == 0


@pytest.mark.parametrize(
    "options",
    [
        ["run", "file.yaml", "--dry-run", "--seeds", "0:" + "9" * 30],
        ["run", "file.yaml", "--dry-run", "--seeds", "9" * 5000],
        ["run", "file.yaml", "--dry-run", "--set", "x" * 5000 + "=1"],
        ["run", "file.yaml", "--dry-run", "--storage", "x" * 300],
        ["status", "--storage", "file.yaml/x"],
        ["status", "--storage", "file:///dev/null/x"],
        ["status", "--storage", "\udcff"],
        ["status", "--storage", "a\0b"],
        ["results", "file.yaml", "--csv", ""],
        ["results", "file.yaml", "--best", "nowhere/best.yaml"],
        ["data", "mnist", "--dir", "x/" * 2000],
    ],
    ids=lambda options: " ".join(options)[:40].encode("ascii", "replace").decode().replace("\0", "?"),
)
def test_words_on_the_command_line(options: list[str], folder: Path) -> None:
    assert answer(options).code == 2
    assert [path.name for path in folder.iterdir()] == ["file.yaml"]


def test_of_two_limits_of_a_setting_both_hold(folder: Path) -> None:
    """Pydantic kept the weaker one: a scheduler was let in that would have kept more trials than there are."""
    tune = "tune: {samples: 2, space: {optimizer.step_size: {uniform: [0.1, 1]}}, scheduler: {reduction_factor: 0.5}}\n"
    (folder / "file.yaml").write_text(FILE + tune)
    with pytest.raises(InputError, match=r"tune\.scheduler\.reduction_factor"):
        load_sweep("file.yaml")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def parts() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = network()
    return model, torch.optim.SGD(model.parameters(), 0.1)


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "betas": lambda: Adam(network().parameters(), betas=0.9),  # type: ignore[arg-type]
    "lr": lambda: Adam(network().parameters(), lr=np.zeros(3)),  # type: ignore[arg-type]
    "infinite lr": lambda: Adam(network().parameters(), lr=10**400),
    "amsgrad": lambda: Adam(network().parameters(), amsgrad=np.zeros(3)),  # type: ignore[arg-type]
    "params": lambda: Adam([{}]),
    "num_features": lambda: OnlineNorm("3"),  # type: ignore[arg-type]
    "alpha_forward": lambda: OnlineNorm(3, alpha_forward=torch.zeros(2)),  # type: ignore[arg-type]
    "no examples": lambda: OnlineNorm(3)(torch.ones(0, 3)),
    "rate": lambda: GenerateAndTest(*parts(), replacement_rate=10**400),
    "strict": lambda: GenerateAndTest(*parts(), strict=np.zeros(3)),  # type: ignore[arg-type]
    "init": lambda: GenerateAndTest(*parts(), init=np.zeros(3)),  # type: ignore[arg-type]
    "optimizer": lambda: L2Init(network(), np.array(1.0)),  # type: ignore[arg-type]
    "strength": lambda: L2Init(*parts(), strength=1e308),
    "variant": lambda: ShrinkAndPerturb(*parts(), 0.1, variant=np.zeros(3)),  # type: ignore[arg-type]
    "seed": lambda: UPGD(*parts(), seed=2**64),
    "layers": lambda: WeightClipping(*parts(), layers=["0"]),  # type: ignore[list-item]
    "layer": lambda: GenerateAndTest(*parts(), layers=[HiddenLayer(0, ("2",))]),  # type: ignore[arg-type]
    "kind": lambda: Distribution("gamma", 1.0),  # type: ignore[arg-type]
    "size": lambda: Distribution("orthogonal", 1.0, size=2**62),
    "scheme": lambda: initialize(network(), np.zeros(3)),  # type: ignore[arg-type]
    "seeds": lambda: run_online(CONFIG, np.array(2.0), "torch"),  # type: ignore[arg-type]
    "many seeds": lambda: run_online(CONFIG, range(10**12), "torch"),
    "engine": lambda: run_online(CONFIG, [0], np.zeros(3)),  # type: ignore[arg-type]
    "device": lambda: run_online(CONFIG, [0], "torch", device="nowhere"),
    "bins": lambda: run_online({**CONFIG, "examples": 10**12, "bin_size": 1}, [0], "torch"),
    "weights": lambda: run_online({**CONFIG, "network": {"hidden": [10**6, 10**6]}}, [0], "torch"),
    "target": lambda: run_online({**CONFIG, "problem": {"inputs": 10**6, "target_units": 10**6}}, [0], "torch"),
    "state": lambda: run_online(CONFIG, [0], "torch", state=3),  # type: ignore[arg-type]
    "storage": lambda: results.load("file.yaml", "a"),
    "storage of no text": lambda: results.load(3, "a"),  # type: ignore[arg-type]
}


def test_whole_numbers_that_no_machine_word_holds_are_rates_like_others() -> None:
    model = network()
    optimizer = Adam(model.parameters(), lr=1, eps=2**64, weight_decay=10**30, fused=False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_python_arguments(name: str) -> None:
    with bounded_memory(), pytest.raises(InputError) as caught:
        ARGUMENTS[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "garble",
    [
        lambda s: {**s, "steps": None},
        lambda s: {**s, "silence": s["silence"][:1]},
        lambda s: {**s, "layers": None},
        lambda s: 3,
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(garble: Callable[[Any], Any]) -> None:
    method = SelfNormalizedResets(*parts())
    before = method.state_dict()
    with pytest.raises(InputError, match="load_state_dict"):
        method.load_state_dict(garble(before))
    after = method.state_dict()
    assert after["steps"] == before["steps"] and torch.equal(after["silence"], before["silence"])
