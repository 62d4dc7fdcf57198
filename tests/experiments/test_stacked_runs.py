"""Runs stacked in one process equal the same runs one by one, in float64, whatever the runs beside them are."""

import numpy as np
import pytest
import torch
from long_tests import first
from mnist_help import make_config, small_images
from torch import nn

from cbp_ray import GenerateAndTest, initialize
from cbp_ray.algorithm.stacked_linear import stack
from cbp_ray.errors import InputError
from cbp_ray.experiments import run_online
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun, StackedRuns

CBP = {"name": "cbp", "replacement_rate": 0.05, "maturity_threshold": 10}
ALGORITHMS = {
    "bp": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 0.01},
    "online_norm": {"name": "online_norm", "alpha_forward": 0.99, "alpha_backward": 0.9},
    "cbp": CBP | {"weight_decay": 0.01},
    "nature": CBP | {"preset": "nature2024"},
    "nature-overall": CBP | {"preset": "nature2024", "utility": "overall"},
    "bernoulli": CBP | {"replacement": "bernoulli", "utility": "adaptation"},
    "random": CBP | {"utility": "random"},
    "linear": {"name": "linear"},
}
KEPT = {"cbp", "online_norm", "nature"}
OPTIMIZERS = {
    "sgd": {"name": "sgd", "step_size": 0.03},
    "adam": {"name": "adam", "step_size": 3e-3, "betas": (0.9, 0.99)},
}


def close(comp, ref, run=None):
    for name in ref:
        # Small singular values come from the square of the matrix, which doubles their rounding errors.
        tolerance = 1e-5 if "rank" in name else 1e-8
        found = comp[name] if run is None else comp[name][run]
        np.testing.assert_allclose(found, ref[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("algorithm", first(3, ["cbp", "online_norm", "nature", *sorted(ALGORITHMS.keys() - KEPT)]))
@pytest.mark.parametrize("optimizer", first(1, ["adam", "sgd"]))
def test_stacked_runs_equal_single_runs(algorithm, optimizer):
    activation = "tanh" if algorithm == "l2" else "relu"
    config = make_config(ALGORITHMS[algorithm], OPTIMIZERS[optimizer], hidden=(12, 9), activation=activation, task_length=40)
    seeds = [2**64 - 1, 3, 8]
    stacked = StackedRuns(config, seeds, images=small_images())
    singles = [MnistRun(config, seed, small_images()) for seed in seeds]
    for examples in (70, 40):
        comp = stacked.advance(examples)
        for run, single in enumerate(singles):
            close(comp, single.advance(examples), run)
    if config.algorithm.name == "cbp":
        assert (comp["replacements"] >= 10).all()


@pytest.mark.parametrize("activation", first(1, ["sigmoid", "leaky_relu", "elu", "swish"]))
def test_every_activation_equals_single_runs(activation):
    config = make_config(CBP, hidden=(8, 8), activation=activation)
    ref, comp = MnistRun(config, 1, small_images()).advance(80), StackedRuns(config, [1, 2], images=small_images()).advance(80)
    close(comp, ref, run=0)


@pytest.mark.parametrize("optimizer", first(1, OPTIMIZERS))
@pytest.mark.parametrize("algorithm", ["cbp", "online_norm"])
def test_resumed_runs_equal_unbroken_ones_bit_for_bit(algorithm, optimizer):
    config = make_config(ALGORITHMS[algorithm], OPTIMIZERS[optimizer], dtype="float32", task_length=70)
    whole, half, rest = (StackedRuns(config, [4, 2], images=small_images()) for _ in range(3))
    whole.advance(100), half.advance(100)
    rest.load_state(half.state(), 100)
    ref, comp = whole.advance(60), rest.advance(60)
    for name in ref:
        np.testing.assert_array_equal(comp[name], ref[name])
    with pytest.raises(InputError, match="state: must be a whole checkpoint"):
        rest.load_state({}, 100)


def test_several_seeds_of_the_torch_engine_are_stacked_on_real_mnist():
    config = make_config(CBP, hidden=(10,), examples=60, bin_size=30)
    comp = run_online(config, [0, 1], engine="torch")
    for row in (0, 1):
        alone = run_online(config, [row], engine="torch")
        close({name: values[row] for name, values in comp.metrics.items()}, {n: v[0] for n, v in alone.metrics.items()})


def test_a_stack_wants_a_seed_for_each_run_and_modules_that_it_knows():
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(2)]
    for seed, model in enumerate(models):
        initialize(model, seed=seed)
    stacked = stack(models)
    optimizer = torch.optim.SGD(stacked.parameters(), 0.1)
    for seed in (0, [0], [0, 1, 2]):
        with pytest.raises(InputError, match="GenerateAndTest: seed must be 2 whole numbers"):
            GenerateAndTest(stacked, optimizer, seed=seed)
    with pytest.raises(InputError, match="GenerateAndTest: seed must be one whole number"):
        GenerateAndTest(models[0], torch.optim.SGD(models[0].parameters(), 0.1), seed=[0, 1])
    with pytest.raises(InputError, match="model: BatchNorm1d can't be stacked"):
        stack([nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2)])


@pytest.mark.parametrize("algorithm", ["bp", "online_norm", "cbp"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nothing_of_a_stack_is_left_on_the_cpu(algorithm, optimizer):
    """`meta` stands for a GPU, as in `test_torch_device.py`."""
    settings = ALGORITHMS[algorithm] | ({"replacement_rate": 0.0} if algorithm == "cbp" else {})
    stacked = StackedRuns(make_config(settings, OPTIMIZERS[optimizer], dtype="float32"), [0, 1], "meta", small_images())
    for _ in range(3):
        outputs, losses = stacked.learner.learn(torch.zeros(1, 50, device="meta"), torch.zeros(2, dtype=int, device="meta"))
        assert outputs.device.type == losses.device.type == "meta"
