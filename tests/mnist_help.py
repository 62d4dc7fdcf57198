"""Small stand-ins for MNIST, and Permuted MNIST through the oracle of `naive.py`."""

import functools

import naive
import numpy as np

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.initial_weights import bound, initial_weights
from cbp_ray.experiments.mnist_engine import MnistKernelEngine
from cbp_ray.kernels.mlp import general_classifier
from cbp_ray.problems import PermutedMnist
from cbp_ray.problems.mnist_files import Images


@functools.cache
def small_images(pixels=25, count=400):
    """Ten noisy patterns with 60% zeros."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    patterns = rng.integers(30, 256, (10, pixels)) * (rng.random((10, pixels)) < 0.5)
    noisy = patterns[labels] + rng.integers(-40, 41, (count, pixels))
    images = np.where(rng.random((count, pixels)) < 0.8, np.clip(noisy, 0, 255), 0) * (patterns[labels] > 0)
    images = images.astype(np.uint8)
    return Images(images, labels, images[:60, ::-1].copy())


def make_config(algorithm, optimizer=None, hidden=(7, 5), activation="relu", task_length=150, dtype="float64", **rest):
    return OnlineConfig.make(
        {
            "problem": {"name": "permuted_mnist", "task_length": task_length},
            "network": {"hidden": hidden, "activation": activation},
            "algorithm": algorithm,
            "optimizer": optimizer or {"name": "sgd", "step_size": 0.03},
            "dtype": dtype,
            **{"examples": 2_000, "bin_size": 1_000} | rest,
        }
    )


def general_engine(config, seeds, images=None):
    """The kernel engine without a compilation for this config."""
    return MnistKernelEngine(config, seeds, images or small_images(), general_classifier())


class NaiveMnistRun:
    """One run in plain loops; after `advance`, `network` holds the weights and `gnt.log` the replacements."""

    def __init__(self, config, seed, images):
        algorithm, activation = config.algorithm, config.network.activation
        self.problem = PermutedMnist(seed, images, config.problem.task_length)
        sizes = [self.problem.inputs, *(() if algorithm.name == "linear" else config.network.hidden), 10]
        kinds = [activation] * (len(sizes) - 2) + ["linear"]
        weights = [
            initial_weights(seed, layer, units, fan_in, kind)
            for layer, (fan_in, units, kind) in enumerate(zip(sizes, sizes[1:], kinds, strict=False))
        ]
        norms = []
        if algorithm.name == "online_norm":
            norms = [naive.OnlineNorm(n, algorithm.alpha_forward, algorithm.alpha_backward) for n in sizes[1:-1]]
        self.network = naive.Network(weights, [np.zeros(n) for n in sizes[1:]], activation, norms)
        self.optimizer = naive.make_optimizer(config.optimizer, getattr(algorithm, "weight_decay", 0.0))
        self.gnt = None
        if algorithm.name == "cbp":
            self.gnt = naive.GenerateAndTest(
                self.network,
                self.optimizer,
                [bound(n, activation) for n in sizes[:-2]],
                algorithm.replacement_rate,
                algorithm.maturity_threshold,
                algorithm.decay_rate,
                algorithm.utility,
                algorithm.preset,
                algorithm.replacement,
                seed,
            )
        self.examples = 0

    def advance(self, examples):
        """Returns accuracy and mean cross-entropy."""
        xs, ys = self.problem.take(examples, start=self.examples)
        self.examples += examples
        right, loss = 0, 0.0
        for x, y in zip(xs / 255, ys, strict=True):
            gradients, hidden, outputs = self.network.classification_gradient(x, y)
            right += int(np.argmax(outputs) == y)
            loss += np.log(np.exp(outputs).sum()) - outputs[y]
            self.optimizer.step(self.network.parameters(), gradients)
            if self.gnt is not None:
                self.gnt.step(hidden)
        return right / examples, loss / examples
