"""Runs stacked in one process equal the same runs one by one, in float64, whatever the runs beside them are."""

import itertools

import numpy as np
import pytest
from mnist_help import make_config, small_images

from cbp_ray.errors import InputError
from cbp_ray.experiments import run_online, run_stacked
from cbp_ray.experiments.engines.torch_permuted_mnist import MnistRun
from cbp_ray.experiments.stacked import StackedRuns

CBP = {"name": "cbp", "replacement_rate": 0.02, "maturity_threshold": 20}
ALGORITHMS = {
    "bp": [{"name": "bp"}] * 3,
    "l2": [{"name": "l2", "weight_decay": decay} for decay in (0.0, 0.01, 0.1)],
    "online_norm": [{"name": "online_norm", "alpha_forward": a, "alpha_backward": b} for a, b in ((0.9, 0.99), (0.99, 0.9))],
    "cbp": [CBP, CBP | {"replacement_rate": 0.2, "maturity_threshold": 5}, CBP | {"decay_rate": 0.9, "weight_decay": 0.01}],
    "nature": [CBP | {"preset": "nature2024"}, CBP | {"preset": "nature2024", "replacement_rate": 0.1}],
    "bernoulli": [
        CBP | {"replacement": "bernoulli", "utility": "adaptation", "replacement_rate": rate} for rate in (0.02, 0.1)
    ],
    "random": [CBP | {"utility": "random"}, CBP | {"utility": "random", "replacement_rate": 0.1}],
    "linear": [{"name": "linear"}] * 2,
}
OPTIMIZERS = {
    "sgd": [{"name": "sgd", "step_size": step} for step in (0.03, 0.01, 0.05)],
    "adam": [{"name": "adam", "step_size": a, "betas": b} for a, b in ((3e-3, (0.9, 0.99)), (1e-3, (0.5, 0.999)))],
}


def close(comp, ref, run=None):
    for name in ref:
        # Small singular values come from the square of the matrix, which doubles their rounding errors.
        tolerance = 1e-5 if "rank" in name else 1e-8
        found = comp[name] if run is None else comp[name][run]
        np.testing.assert_allclose(found, ref[name], rtol=tolerance, err_msg=name)


@pytest.mark.parametrize(("algorithm", "optimizer"), list(itertools.product(ALGORITHMS, OPTIMIZERS)))
def test_stacked_runs_equal_single_runs(algorithm, optimizer):
    """Other seeds, step sizes and settings in every run."""
    pairs = zip(ALGORITHMS[algorithm], itertools.cycle(OPTIMIZERS[optimizer]), strict=False)
    activation = "tanh" if algorithm == "l2" else "relu"
    configs = [make_config(a, o, hidden=(12, 9), activation=activation, task_length=70) for a, o in pairs]
    seeds = [2**64 - 1, 3, 8][: len(configs)]
    stacked = StackedRuns(configs, seeds, small_images())
    singles = [MnistRun(config, seed, small_images()) for config, seed in zip(configs, seeds, strict=True)]
    for examples in (130, 60):
        comp = stacked.advance(examples)
        for run, single in enumerate(singles):
            close(comp, single.advance(examples), run)
    if configs[0].algorithm.name == "cbp":
        assert (comp["replacements"] >= 10).all()


@pytest.mark.parametrize("activation", ["sigmoid", "leaky_relu", "elu", "swish"])
def test_every_activation_equals_single_runs(activation):
    config = make_config(CBP, hidden=(8, 8), activation=activation)
    ref, comp = MnistRun(config, 1, small_images()).advance(80), StackedRuns([config] * 2, [1, 2], small_images()).advance(80)
    close(comp, ref, run=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("algorithm", ["cbp", "online_norm"])
def test_resumed_runs_equal_unbroken_ones_bit_for_bit(algorithm, optimizer):
    config = make_config(ALGORITHMS[algorithm][0], OPTIMIZERS[optimizer][0], dtype="float32", task_length=70)
    whole, half, rest = (StackedRuns([config] * 2, [4, 2], small_images()) for _ in range(3))
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


def test_settings_and_seeds_are_stacked_and_come_back_apart():
    rates = (0.02, 0.2)
    configs = [make_config(CBP | {"replacement_rate": rate}, hidden=(10,), examples=60, bin_size=30) for rate in rates]
    points = []
    stacked = run_stacked(configs, seeds=[3, 4], progress=points.append)
    assert len(stacked) == 2 and [len(point.metrics["accuracy"]) for point in points] == [4, 4]
    for config, comp in zip(configs, stacked, strict=True):
        ref = run_online(config, [3, 4], engine="torch")
        assert comp.seeds == ref.seeds and comp.examples.tolist() == ref.examples.tolist() == [30, 60]
        close(comp.metrics, ref.metrics)
    assert stacked[1]["replacements"].sum() > 2 * stacked[0]["replacements"].sum()


def test_runs_of_different_kinds_are_refused():
    others = ({"name": "bp"}, {}), (CBP, {"hidden": (3,)}), (CBP, {"examples": 9_000}), (CBP | {"preset": "nature2024"}, {})
    for other in (make_config(algorithm, **settings) for algorithm, settings in others):
        with pytest.raises(InputError, match="configs: must be at least one, alike"):
            StackedRuns([make_config(CBP), other], [0, 1], small_images())
    with pytest.raises(InputError, match="configs: must be at least one"):
        run_stacked([], seeds=[0])
    with pytest.raises(InputError, match="must be of permuted_mnist to be stacked, got bit_flipping"):
        run_stacked([{"algorithm": {"name": "bp"}, "optimizer": {"name": "sgd", "step_size": 0.01}}], seeds=[0])
