"""The rivals in the MLP kernel: against torch in float64, switched off, and resumed."""

from typing import Any

import numpy as np
import pytest
from long_tests import first
from mnist_help import general_engine, make_config, small_images
from test_lane_rivals import CASES, COUNTED, OFF, RIVALS

from cbp_ray.experiments import OnlineConfig
from cbp_ray.experiments.engines.mlp_permuted_mnist import MlpEngine
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun
from cbp_ray.kernels.mlp_reinitialization import smallest

OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.03}, "adam": {"name": "adam", "step_size": 0.003}}
IN_MAKE_TEST = ("perturbed", "upgd", "swr", "l2_init", "clipping")


def config_of(algorithm: dict[str, Any], optimizer: str = "sgd", layer_norm: bool = False) -> OnlineConfig:
    activation = "tanh" if algorithm["name"] == "redo" else "relu"
    made: OnlineConfig = make_config(algorithm, OPTIMIZERS[optimizer], activation=activation, task_length=60)
    return made.model_copy(update={"network": made.network.model_copy(update={"layer_norm": layer_norm})})


def engine(config: OnlineConfig, seeds: list[int]) -> MlpEngine:
    return MlpEngine(config, seeds, small_images())


ORDERED = sorted(CASES, key=lambda case: case not in [(name, "sgd", False) for name in IN_MAKE_TEST] + [("upgd", "adam", True)])


@pytest.mark.parametrize(("rival", "optimizer", "layer_norm"), first(len(IN_MAKE_TEST) + 1, ORDERED))
def test_kernel_equals_torch(rival: str, optimizer: str, layer_norm: bool) -> None:
    """Hidden layers of 7 and 5 units, so that groups of four weights and whole vectors have remainders."""
    config = config_of(RIVALS[rival], optimizer, layer_norm)
    torch, kernel = MnistRun(config, 5, small_images()), engine(config, [5])
    acted = 0.0
    for examples in (150, 130):
        ref, comp = torch.advance(examples), kernel.advance(examples)
        acted += ref["replacements"]
        for name in ref:
            np.testing.assert_allclose(comp[name][0], ref[name], rtol=1e-8, atol=1e-14, err_msg=name)
    assert acted >= 5 or config.algorithm.name not in COUNTED


EDGES: dict[str, dict[str, Any]] = {
    "initial weights beyond the bound": {"name": "clipping", "factor": 0.4},
    "half of the distance goes in a step": {"name": "l2_init", "strength": 0.5 / 0.03},
    "all of the distance goes in a step": {"name": "l2_init", "strength": 1 / 0.03},
    "half of the weight goes in a step": {"name": "l2", "weight_decay": 0.5 / 0.03},
    "all of the weight goes in a step": {"name": "l2", "weight_decay": 1 / 0.03},
    "most of the weight, and noise": {"name": "upgd", "noise": 0.3, "decay_rate": 0.9, "weight_decay": 0.9 / 0.03},
}
"""Where what is kept of weights is not the weights themselves, or rows whose input is 0 must move all the same."""


@pytest.mark.parametrize("edge", EDGES)
def test_kernel_equals_torch_also_at_the_edge(edge: str) -> None:
    config = config_of(EDGES[edge])
    torch, kernel = MnistRun(config, 5, small_images()), general_engine(config, [5])
    ref, comp = torch.advance(150), kernel.advance(150)
    for name in ref:
        np.testing.assert_allclose(comp[name][0], ref[name], rtol=1e-8, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("rival", first(2, OFF))
def test_switched_off_it_is_backprop_bit_for_bit(rival: str) -> None:
    config = config_of(OFF[rival])
    plain = config.model_copy(update={"algorithm": config_of({"name": "bp"}).algorithm})
    ref, comp = engine(plain, [3]).advance(200), engine(config, [3]).advance(200)
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name], err_msg=name)


@pytest.mark.parametrize("rival", first(5, sorted(RIVALS, key=lambda name: name not in IN_MAKE_TEST)))
def test_a_run_goes_on_to_the_last_bit(rival: str) -> None:
    config = config_of(RIVALS[rival])
    whole, resumed = engine(config, [4]), engine(config, [4])
    whole.advance(130)
    resumed.load_state(whole.state(), 130)
    ref, comp = whole.advance(100), resumed.advance(100)
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name], err_msg=name)


@pytest.mark.long
def test_online_norm_without_scale_and_bias_equals_torch() -> None:
    config = config_of({"name": "online_norm", "affine": False})
    ref, comp = MnistRun(config, 5, small_images()).advance(150), engine(config, [5]).advance(150)
    for name in ref:
        np.testing.assert_allclose(comp[name][0], ref[name], rtol=1e-8, err_msg=name)


def test_the_smallest_numbers_are_found() -> None:
    draws = np.random.default_rng(0)
    for count in (1, 2, 7, 100, 1001):
        values = draws.integers(0, count // 2 + 1, count).astype(float)
        for rank in {0, count // 3, count - 1}:
            assert smallest.py_func(values.copy(), count, rank) == np.sort(values)[rank]  # type: ignore[attr-defined]
