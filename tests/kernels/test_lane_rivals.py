"""The rivals in the lane kernel: against torch in float64, switched off, alone and in a block, resumed, and what they cost."""

import time
from typing import Any

import numpy as np
import pytest
from long_tests import first

from cbp_ray.experiments import OnlineConfig, iterate_online, run_online
from cbp_ray.experiments.engines.lane_bit_flipping import LaneEngine
from cbp_ray.experiments.engines.torch_bit_flipping import make_engine
from cbp_ray.kernels.lanes import WIDTH

RIVALS: dict[str, dict[str, Any]] = {
    "perturbed": {"name": "shrink_perturb", "noise": 0.01, "weight_decay": 1e-3},
    "upgd": {"name": "upgd", "noise": 0.3, "decay_rate": 0.9, "weight_decay": 1e-3},
    "swr": {"name": "swr", "rate": 0.1, "every": 7, "decay_rate": 0.5},
    "redo": {"name": "redo", "threshold": 0.8, "every": 10, "decay_rate": 0.9},
    "snr": {"name": "snr_geometric", "rejection": 0.05, "maturity_threshold": 5, "decay_rate": 0.9},
    "l2_init": {"name": "l2_init", "strength": 0.05},
    "clipping": {"name": "clipping", "factor": 0.7},
    "full_reset": {"name": "full_reset"},
    "perturbed gradient": {"name": "shrink_perturb", "noise": 0.5, "variant": "gradient"},
    "perturbed initial": {"name": "shrink_perturb", "noise": 0.01, "variant": "initial", "shrinkage": 0.01},
    "clipping of hidden units": {"name": "clipping", "factor": 0.7, "last_layer": False},
    "free upgd": {"name": "upgd", "noise": 0.3, "decay_rate": 0.9, "protects": False},
    "swr by magnitude": {"name": "swr", "rate": 0.1, "every": 7, "utility": "magnitude", "decay_rate": 0.5},
    "swr by chance": {"name": "swr", "rate": 0.1, "every": 7, "utility": "random"},
    "backprop": {"name": "bp"},
    "cbp": {"name": "cbp", "replacement_rate": 0.02, "maturity_threshold": 20},
}
COUNTED = ("swr", "redo", "snr_geometric", "clipping", "cbp")
OFF: dict[str, dict[str, Any]] = {
    "perturbed": {"name": "shrink_perturb", "noise": 0.0},
    "upgd": {"name": "upgd", "noise": 0.0, "protects": False},
    "swr": {"name": "swr", "rate": 0.0},
    "redo": {"name": "redo", "threshold": 0.0},
    "snr": {"name": "snr_geometric", "rejection": 0.0},
    "l2_init": {"name": "l2_init", "strength": 0.0},
    "clipping": {"name": "clipping", "factor": 1e9},
}


def make_config(algorithm: dict[str, Any], optimizer: str = "sgd", **changes: Any) -> OnlineConfig:
    silent = algorithm["name"] == "snr_geometric"
    return OnlineConfig.make(
        {
            "problem": {"inputs": 5, "flipping_bits": 2, "flip_period": 60, "target_units": 10},
            "network": {
                "hidden": [3],
                "activation": "relu" if silent else "tanh",
                "layer_norm": changes.pop("layer_norm", False),
            },
            "algorithm": algorithm,
            "optimizer": {"name": optimizer, "step_size": 0.01 if optimizer == "sgd" else 0.003},
            "examples": 300,
            "bin_size": 100,
            "dtype": "float64",
            **changes,
        }
    )


CASES = [
    *((name, "sgd", False) for name in list(RIVALS)[:8]),
    ("upgd", "adam", True),
    *((name, "adam", False) for name in RIVALS),
    *((name, "sgd", False) for name in list(RIVALS)[8:]),
    *((name, optimizer, True) for name in RIVALS for optimizer in ("sgd", "adam") if (name, optimizer) != ("upgd", "adam")),
]


@pytest.mark.parametrize(("rival", "optimizer", "layer_norm"), first(9, CASES))
def test_kernel_equals_torch(rival: str, optimizer: str, layer_norm: bool) -> None:
    config = make_config(RIVALS[rival], optimizer, layer_norm=layer_norm)
    torch, kernel = make_engine(config, [5], "cpu"), LaneEngine(config, [5])
    acted = 0.0
    for examples in (150, 130):
        ref, comp = torch.advance(examples), kernel.advance(examples)
        acted += ref["replacements"][0]
        for name in ref:
            np.testing.assert_allclose(comp[name], ref[name], rtol=1e-9, atol=1e-15, err_msg=name)
    assert acted >= 5 or config.algorithm.name not in COUNTED


@pytest.mark.parametrize("rival", OFF)
def test_switched_off_it_is_backprop_bit_for_bit(rival: str) -> None:
    config = make_config(OFF[rival])
    plain = config.model_copy(update={"algorithm": make_config({"name": "bp"}).algorithm})
    for name, values in run_online(plain, range(3)).metrics.items():
        np.testing.assert_array_equal(run_online(config, range(3))[name], values)


@pytest.mark.parametrize("rival", list(RIVALS)[:8])
def test_a_run_depends_neither_on_its_block_nor_on_where_it_was_resumed(rival: str) -> None:
    config = make_config(RIVALS[rival])
    block = run_online(config, range(WIDTH + 3))
    alone = run_online(config, [WIDTH + 1])
    state = next(iterate_online(config, [7, 4])).checkpoint()
    resumed = run_online(config, [7, 4], state=state)
    for name, values in block.metrics.items():
        np.testing.assert_array_equal(alone[name][0], values[WIDTH + 1], err_msg=name)
        np.testing.assert_array_equal(resumed[name], values[[7, 4], 1:], err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("rival", RIVALS)
def test_float32_stays_near_float64(rival: str) -> None:
    """Single runs part after a while; the first bins must not."""
    config = make_config(RIVALS[rival], examples=60, bin_size=20)
    single = config.model_copy(update={"dtype": "float32"})
    np.testing.assert_allclose(run_online(single, [3]).error, run_online(config, [3]).error, rtol=1e-3)


@pytest.mark.long
def test_no_rival_costs_much_more_than_backprop() -> None:
    """The least of many short times, taken in turn; generous, because the cores may be shared. UPGD needs two more passes."""
    made = {name: make_config(RIVALS[name], dtype="float32", problem={}, network={"hidden": [5]}) for name in RIVALS}
    engines = {name: LaneEngine(config, range(WIDTH)) for name, config in made.items() if name != "snr"}
    least = dict.fromkeys(engines, np.inf)
    for _ in range(20):
        for name, engine in engines.items():
            start = time.thread_time()
            engine.advance(2_000)
            least[name] = min(least[name], time.thread_time() - start)
    ratios = {name: seconds / least["backprop"] for name, seconds in least.items()}
    assert all(ratio < (8 if "upgd" in name else 4) for name, ratio in ratios.items()), ratios


def test_online_norm_without_scale_and_bias_equals_torch() -> None:
    config = make_config({"name": "online_norm", "affine": False})
    assert "affine" not in make_config({"name": "online_norm"}).model_dump()["algorithm"]
    torch, kernel = make_engine(config, [5], "cpu"), LaneEngine(config, [5])
    ref, comp = torch.advance(150), kernel.advance(150)
    for name in ref:
        np.testing.assert_allclose(comp[name], ref[name], rtol=1e-9, err_msg=name)
    assert (ref["error"] != run_online(make_config({"name": "online_norm"}, examples=150, bin_size=150), [5]).error[:, 0]).all()


def test_the_linear_tracker_has_nothing_to_normalize() -> None:
    """With layer norm as a setting of all networks in a sweep, it stays what it is, in both engines."""
    config = make_config({"name": "linear"}, layer_norm=True)
    ref, comp = make_engine(config, [5], "cpu").advance(150), LaneEngine(config, [5]).advance(150)
    np.testing.assert_allclose(comp["error"], ref["error"], rtol=1e-9)
    np.testing.assert_array_equal(comp["error"], LaneEngine(make_config({"name": "linear"}), [5]).advance(150)["error"])


def test_shrinkage_of_another_variant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^algorithm\.shrinkage: .*weight_decay$"):
        make_config({"name": "shrink_perturb", "noise": 1e-3, "shrinkage": 0.1})


def test_layer_norm_and_online_norm_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^network\.layer_norm: "):
        make_config({"name": "online_norm"}, layer_norm=True)
