"""Slippery Ant as an experiment of ours: engine `rllib`, its checkpoints, and the sweeps of figures 9 and 17b."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rllib_ext
from cbp_ray.cli import main
from cbp_ray.errors import InputError
from cbp_ray.experiments.checkpoint import load_checkpoint, save_checkpoint
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.online import iterate_online
from cbp_ray.methods import ContinualBackprop
from cbp_ray.results import Store
from cbp_ray.sweeps import load_sweep
from rllib_ext.ant.friction import FrictionSchedule
from rllib_ext.engine import algorithm_config
from rllib_ext.plain_state import flatten, unflatten

pytestmark = pytest.mark.xdist_group("ray")
CONFIGS = Path(__file__).parents[2] / "tune_configs" / "slippery_ant"
CPPO = {"name": "cbp", "replacement_rate": 0.05, "maturity_threshold": 1}
PAIRS = {(1e-3, 100), (1e-3, 500), (1e-4, 5_000), (1e-4, 500), (1e-5, 10_000), (1e-5, 50_000)}


def small(algorithm: dict[str, Any], **problem: Any) -> dict[str, Any]:
    ant = {"name": "slippery_ant", "friction_period": 150, "iteration_size": 100, "epochs": 1, "minibatch_size": 50}
    return {
        "problem": ant | problem,
        "network": {"hidden": [8, 8]},
        "algorithm": algorithm,
        "optimizer": {"name": "adam", "step_size": 1e-4},
        "examples": 1000,
        "bin_size": 250,
    }


def test_the_sweeps_have_all_settings_of_appendix_d() -> None:
    fig9 = load_sweep(CONFIGS / "fig9.yaml")
    algorithms = [configuration.config.algorithm for configuration in fig9.configurations]
    assert {a.weight_decay for a in algorithms if a.name == "l2"} == {1e-3, 1e-4, 1e-5, 1e-6}
    assert {(a.replacement_rate, a.maturity_threshold) for a in algorithms if a.name == "cbp"} == PAIRS
    assert len(algorithms) == 11 and fig9.engine == "rllib"
    fig17b = load_sweep(CONFIGS / "fig17b.yaml")
    for utility in ("overall", "mean_corrected_contribution"):
        found = [c.config.algorithm for c in fig17b.configurations]
        cbp = [a for a in found if isinstance(a, ContinualBackprop) and a.utility == utility]
        assert {(a.replacement_rate, a.maturity_threshold) for a in cbp} == PAIRS
    assert len({c.config for c in fig17b.configurations} & {c.config for c in fig9.configurations}) == 7


def test_the_defaults_are_those_of_appendix_d() -> None:
    """Of our config and of RLlib's that is made from it."""
    config = OnlineConfig.make(
        {"problem": {"name": "slippery_ant"}, "algorithm": {"name": "bp"}, "optimizer": {"name": "adam", "step_size": 1e-4}}
    )
    assert (config.network.hidden, config.examples, config.bin_size) == ((256, 256), 100_000_000, 40_000)
    rllib, plain = algorithm_config(config, seed=4), rllib_ext.ContinualPPOConfig()
    assert rllib.seed == 4 and rllib.model_config["fcnet_hiddens"] == [256, 256]
    for name in ("lr", "train_batch_size_per_learner", "num_epochs", "minibatch_size", "gamma", "lambda_", "clip_param"):
        assert getattr(rllib, name) == getattr(plain, name), name
    assert rllib.continual_backprop_settings is None and rllib.weight_decay == 0
    l2 = algorithm_config(OnlineConfig.make(small({"name": "l2", "weight_decay": 1e-3})), 0)
    assert l2.weight_decay == 1e-3 and l2.continual_backprop_settings is None
    cppo = algorithm_config(OnlineConfig.make(small(CPPO)), 0).continual_backprop_settings
    assert cppo is not None and (cppo["replacement_rate"], cppo["maturity_threshold"], cppo["utility"]) == (0.05, 1, "overall")


def test_a_split_run_equals_the_unbroken_run_bit_for_bit_and_so_does_one_beside_another(tmp_path: Path) -> None:
    config = small(CPPO)
    bins = []
    for point in iterate_online(config, (3,), "rllib"):
        bins.append(point)
        if point.index == 1:
            save_checkpoint(tmp_path / "state.npz", point.checkpoint())
    schedule = FrictionSchedule(seed=3, period=150)
    assert [point.examples for point in bins] == [250, 500, 750, 1000]
    for point in bins:
        assert list(point.metrics) == list(OnlineConfig.make(config).metrics)
        assert point.metrics["friction"] == [schedule.friction(point.examples - 1)]
    assert sum(point.metrics["replacements"][0] for point in bins) > 5
    assert sum(point.metrics["episodes"][0] for point in bins) > 0

    beside = list(iterate_online(config, (4, 3), "rllib"))
    for ref, comp in zip(bins, beside, strict=True):
        np.testing.assert_equal({name: values[1:] for name, values in comp.metrics.items()}, ref.metrics)
    assert any(point.metrics["saturated"][0] != point.metrics["saturated"][1] for point in beside)

    state = load_checkpoint(tmp_path / "state.npz")
    assert all(array.dtype != object for array in state.values())
    resumed = list(iterate_online(config, (3,), "rllib", state))
    assert [(point.index, point.examples) for point in resumed] == [(2, 750), (3, 1000)]
    for ref, comp in zip(bins[2:], resumed, strict=True):
        np.testing.assert_equal(comp.metrics, ref.metrics)


def test_states_of_rllib_become_plain_arrays_and_back() -> None:
    nested = {"a": [np.arange(3), (1, None, "text", 2.5)], 7: OrderedDict(b=np.ones((2, 2), np.float32)), "c": np.float64(3)}
    flat = flatten(nested)
    assert json.loads(str(flat["tree"])) and all(array.dtype != object for array in flat.values())
    back = unflatten(flat)
    np.testing.assert_array_equal(back["a"][0], np.arange(3))
    assert back["a"][1] == (1, None, "text", 2.5) and back["c"] == 3.0 and back[7]["b"].dtype == np.float32
    with pytest.raises(TypeError):
        flatten({"a": object()})


@pytest.mark.parametrize(
    ("settings", "engine", "field"),
    [
        ({}, "kernel", "engine"),
        ({"problem": {"name": "bit_flipping"}}, "rllib", "engine"),
        ({"optimizer": {"name": "sgd", "step_size": 0.1}}, "rllib", "optimizer"),
        ({"algorithm": {"name": "linear"}}, "rllib", "algorithm.name"),
        ({"problem": {"name": "slippery_ant", "friction_low": 2, "friction_high": 1}}, "rllib", "problem.friction_low"),
        ({"problem": {"name": "slippery_ant", "friction_perod": 2}}, "rllib", "problem.friction_perod"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(settings: dict[str, Any], engine: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        iterate_online({**small(CPPO), **settings}, (0,), engine)
    assert str(caught.value).startswith(f"{field}: ") and "\n" not in str(caught.value)


@pytest.mark.long
def test_figures_9_and_17b_at_smoke_scale_run_once_are_drawn_and_judged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "fig9", "--scale", "smoke", "--storage", str(tmp_path)]
    assert main(command) == 0
    sweep, store = load_sweep(CONFIGS / "fig9.yaml", scale="smoke"), Store(tmp_path, "slippery_ant")
    names = set()
    for configuration in sweep.configurations:
        curves = store.read_curves(configuration.config, sweep.seeds, "rllib")
        assert curves.examples.tolist() == [1200, 2400, 3600, 4800, 6000]
        assert all(np.isfinite(values).all() for values in curves.metrics.values())
        assert curves.performance == "episode_return"
        assert (curves["replacements"].sum() > 0) == (configuration.group == "cppo")
        assert not np.array_equal(curves["policy_weight_magnitude_1"], curves["value_weight_magnitude_1"])
        names.add(configuration.group)
    assert names == {"ppo", "l2", "cppo"}
    stored = len(list((tmp_path / "slippery_ant" / "runs").iterdir()))
    assert main(["reproduce", "fig17b", "--scale", "smoke", "--storage", str(tmp_path)]) == 0
    # PPO and the overall utility are figure 9's.
    assert len(list((tmp_path / "slippery_ant" / "runs").iterdir())) == stored + 1
    for key in ("fig9", "fig17b"):
        assert (tmp_path / "figures" / "smoke" / f"{key}.png").stat().st_size > 20_000
        claims = json.loads((tmp_path / "figures" / "smoke" / f"{key}_claims.json").read_text())
        assert {claim["verdict"] for claim in claims} == {"undecided"}
