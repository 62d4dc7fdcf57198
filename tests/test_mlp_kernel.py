"""The sparse MLP kernel against the oracle and the torch engine, in float64; resuming; Σ|w|; denormals; real MNIST.

As in `test_lane_kernel`: the cross of choices goes through the kernel compiled *once* for all of them, and the version that
users run, compiled for constant choices, is compared with that one bit for bit.
"""

import itertools
import time

import numpy as np
import pytest
from mnist_help import NaiveMnistRun, general_engine, make_config, small_images

from cbp_ray.experiments import iterate_online, load_checkpoint, run_online, save_checkpoint
from cbp_ray.experiments.engine import metrics_of
from cbp_ray.experiments.mnist_engine import MnistKernelEngine
from cbp_ray.experiments.torch_mnist import MnistRun
from cbp_ray.kernels.mlp import REFRESH
from cbp_ray.kernels.mlp_state import State, matrix, of_level

ACTIVATIONS = ("tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish")
CBP = {"name": "cbp", "replacement_rate": 3e-3, "maturity_threshold": 20}
ALGORITHMS = {
    "bp": {"name": "bp"},
    "l2": {"name": "l2", "weight_decay": 0.03},
    "online_norm": {"name": "online_norm", "alpha_forward": 0.99, "alpha_backward": 0.9},
    "cbp": CBP,
}
OPTIMIZERS = {"sgd": {"name": "sgd", "step_size": 0.03}, "adam": {"name": "adam", "step_size": 0.003}}
UTILITIES = ("random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall")


def compare_with_oracle(config, seed=5, least_replaced=20):
    images = small_images()
    oracle, kernel = NaiveMnistRun(config, seed, images), general_engine(config, [seed])
    for _ in range(config.bins):
        accuracy, loss = oracle.advance(config.bin_size)
        comp = kernel.advance(config.bin_size)
        assert comp["accuracy"][0] == accuracy
        # Rounding differences of 1e-16 grow while the network learns; a replacement at a different step would show at 1e-2.
        assert comp["loss"][0] == pytest.approx(loss, rel=1e-8)
    (run,) = kernel.runs
    for layer, (w, b) in enumerate(zip(oracle.network.weights, oracle.network.biases, strict=True)):
        np.testing.assert_allclose(run.weights(layer), w.T, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(of_level(run.state.bias, run.layout, layer + 1), b, rtol=1e-6, atol=1e-8)
    if oracle.gnt is not None:
        assert min(oracle.gnt.replaced) >= least_replaced
        assert run.state.replaced[1:-1].tolist() == oracle.gnt.replaced
        for level in range(1, run.layers):
            ages = run.state.steps[0] - of_level(run.state.birth, run.layout, level)
            np.testing.assert_array_equal(ages, oracle.gnt.age[level - 1])
            # Selection looks at the order of utilities only, so the values are compared as well.
            for comp_array, ref in ((run.state.utility, oracle.gnt.u), (run.state.activation, oracle.gnt.f)):
                np.testing.assert_allclose(of_level(comp_array, run.layout, level), ref[level - 1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("algorithm", "optimizer", "activation"), list(itertools.product(ALGORITHMS, OPTIMIZERS, ACTIVATIONS)))
def test_kernel_equals_oracle(algorithm, optimizer, activation):
    examples = {"sgd": 2_000, "adam": 300}[optimizer]  # the oracle's Adam takes 1 ms per example
    settings = CBP | {"replacement_rate": 3e-3 if optimizer == "sgd" else 0.02} if algorithm == "cbp" else ALGORITHMS[algorithm]
    compare_with_oracle(
        make_config(settings, OPTIMIZERS[optimizer], activation=activation, examples=examples, bin_size=examples // 2)
    )
