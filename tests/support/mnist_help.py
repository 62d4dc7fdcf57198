"""Small stand-ins for MNIST, and Permuted MNIST through the oracle of `naive.py`."""

import functools

import numpy as np
from online_reference import NaiveLearner

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.mlp_permuted_mnist import MlpEngine
from cbp_ray.kernels.mlp_step import unspecialised_classifier
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
    return Images(images, labels, images[:60, ::-1].copy(), labels[:60])


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
    return MlpEngine(config, seeds, images or small_images(), unspecialised_classifier())


class NaiveMnistRun(NaiveLearner):
    """One run in plain loops."""

    def __init__(self, config, seed, images):
        self.problem = PermutedMnist(seed, images, config.problem.task_length)
        super().__init__(config, seed, self.problem.inputs, 10)

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
