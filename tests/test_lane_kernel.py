"""The lane kernel against the oracle and the torch engine, in float64; block invariance; denormals.

The oracle takes a second or more for 20,000 examples even of a tiny network. So the full cross algorithm × optimizer ×
activation is compared with the oracle at 4 inputs and 3 units, with the kernel compiled *once* for all choices
(`general_learner`); the version that is compiled for constant choices, which is what users run, is then compared with the
general one bit for bit in one case per choice, and with torch in a few cases at the paper's size.
"""

import functools
import itertools
import time

import numpy as np
import pytest

from cbp_ray.experiments import run_online
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.kernel_engine import KernelEngine, choices_of
from cbp_ray.kernels.lanes import WIDTH
from cbp_ray.kernels.learner import general_learner, specialised_learner
from cbp_ray.kernels.learner_state import unit_parameters
from online_reference import NaiveRun

ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish")
CBP = {"name": "cbp", "replacement_rate": 1e-3, "maturity_threshold": 20}
ALGORITHMS = {
    "bp": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 1e-3},
    "online_norm": {"name": "online_norm", "alpha_forward": 0.999, "alpha_backward": 0.99},
    "cbp": CBP,
}
OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.01}, "adam": {"name": "adam", "step_size": 0.003}}
TINY = {"inputs": 4, "flipping_bits": 2, "flip_period": 700, "target_units": 10}
UTILITIES = ("random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall")


def make_config(algorithm, optimizer="sgd", activation="tanh", examples=20_000, dtype="float64", **problem):
    step = OPTIMIZERS[optimizer]
    if algorithm == "online_norm":
        # At larger steps OnlineNorm is chaotic here: the oracle parts from itself after a change of 1e-15 in one weight.
        step = step | {"step_size": 0.1 * step["step_size"]}
    return OnlineConfig.make(
        {
            "problem": problem or TINY,
            "network": {"hidden": [3], "activation": activation},
            "algorithm": ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, str) else algorithm,
            "optimizer": step,
            "examples": examples,
            "bin_size": 5_000,
            "dtype": dtype,
        }
    )


def with_choices(config):
    """The general learner with the signature of a specialised one."""
    learner, choices = general_learner(), choices_of(config)

    def learn(state, scratch, bits, targets, draws, *rest):
        learner(state, scratch, bits, targets, draws, choices, *rest)

    return learn


def compare_with_oracle(config, seed=5):
    oracle, kernel = NaiveRun(config, seed), KernelEngine(config, [seed], with_choices(config))
    for _ in range(config.bins):
        ref = oracle.advance(config.bin_size).mean()
        comp = kernel.advance(config.bin_size)
        # Rounding differences of 1e-16 grow while the network learns; replacement at a different step would show at 1e-2.
        assert comp["error"][0] == pytest.approx(ref, rel=1e-9)
    block = kernel._blocks[0]
    units = unit_parameters(block.state.parameters, block.shape)[:, :, 0]
    m = config.problem.inputs
    np.testing.assert_allclose(units[:, :m], oracle.network.weights[0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(units[:, m], oracle.network.biases[0], rtol=1e-7, atol=1e-9)
    if len(oracle.network.weights) > 1:
        np.testing.assert_allclose(units[:, m + 1], oracle.network.weights[1][0], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(block.state.parameters[-1, 0], oracle.network.biases[1][0], rtol=1e-7, atol=1e-9)
    if oracle.gnt is not None:
        assert oracle.gnt.replaced[0] > 20
        assert block.state.replaced[0, 0] == oracle.gnt.replaced[0]
        np.testing.assert_array_equal(block.state.age[:, 0], oracle.gnt.age[0])


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "activation"), list(itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS))
)
def test_kernel_equals_oracle(algorithm, optimizer, activation):
    compare_with_oracle(make_config(algorithm, optimizer, activation))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_linear_tracker_equals_oracle(optimizer):
    compare_with_oracle(make_config({"name": "linear"}, optimizer))


@pytest.mark.parametrize(("utility", "preset"), list(itertools.product(UTILITIES, ("paper", "nature2024"))))
def test_utilities_equal_oracle(utility, preset):
    compare_with_oracle(make_config(CBP | {"utility": utility, "preset": preset}, "adam"))


@pytest.mark.parametrize("preset", ["paper", "nature2024"])
def test_bernoulli_equals_oracle(preset):
    compare_with_oracle(make_config(CBP | {"preset": preset, "replacement": "bernoulli"}))


def test_several_replacements_in_one_step_equal_oracle():
    compare_with_oracle(make_config(CBP | {"replacement_rate": 0.4, "weight_decay": 1e-3}))
