"""Permuted MNIST as images through a small residual network: Backprop loses accuracy, generate-and-test keeps more of it.

Every task shows 4,000 images whose pixels are in a new order. Accuracy is that of the predictions made before each update.

    python examples/residual_images.py              # a few minutes on two cores; writes residual_images.png
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray import Adam, GenerateAndTest
from cbp_ray.problems.mnist_files import load

BATCH, STEPS = 16, 250


class Residual(nn.Module):
    """Two convolutions around which the input takes a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def network(channels: int = 8) -> nn.Sequential:
    """Patches of 4 × 4 pixels, two residual blocks on a grid of 7 × 7, and one layer that reads all of it."""
    stem = nn.Conv2d(1, channels, 4, stride=4)
    return nn.Sequential(stem, nn.ReLU(), Residual(channels), Residual(channels), nn.Flatten(), nn.Linear(49 * channels, 10))


def run(replacement_rate: float, seed: int, tasks: int, step_size: float) -> list[float]:
    """Accuracy in each task, of Backprop where the replacement rate is 0."""
    torch.set_num_threads(1)
    data = load("mnist")
    images = torch.from_numpy(data.images / np.float32(255))
    labels = torch.from_numpy(data.labels.astype(np.int64))
    torch.manual_seed(seed)
    model = network()
    optimizer = Adam(model.parameters(), lr=step_size)
    gnt = GenerateAndTest(model, optimizer, replacement_rate, maturity_threshold=200, seed=seed) if replacement_rate else None
    accuracies = []
    for task in range(tasks):
        random = torch.Generator().manual_seed(1000 * seed + task)
        pixels = torch.randperm(784, generator=random)
        order = torch.randperm(len(images), generator=random)[: BATCH * STEPS]
        right = 0
        for chosen in order.split(BATCH):
            outputs = model(images[chosen][:, pixels].view(-1, 1, 28, 28))
            right += int((outputs.argmax(1) == labels[chosen]).sum())
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, labels[chosen]).backward()
            optimizer.step()
            if gnt is not None:
                gnt.step()
        accuracies.append(right / len(order))
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--step-size", type=float, default=1e-2)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0, 1e-3])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", default="residual_images.png")
    arguments = parser.parse_args()
    settings = list(product(arguments.rates, range(arguments.seeds)))
    with ProcessPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(run, rate, seed, arguments.tasks, arguments.step_size) for rate, seed in settings]
        curves = np.array([future.result() for future in futures]).reshape(len(arguments.rates), arguments.seeds, -1)
    for rate, accuracies in zip(arguments.rates, curves, strict=True):
        label = f"generate-and-test, rate {rate:g}" if rate else "Backprop"
        first, last = accuracies[:, :10].mean(), accuracies[:, -10:].mean()
        print(f"{label}: {first:.1%} in the first ten tasks, {last:.1%} in the last ten")
        smooth = np.array([np.convolve(each, np.ones(5) / 5, "valid") for each in accuracies])
        mean, error = smooth.mean(0), smooth.std(0) / np.sqrt(len(smooth))
        plt.plot(np.arange(5, 5 + len(mean)), mean, label=label)
        plt.fill_between(np.arange(5, 5 + len(mean)), mean - error, mean + error, alpha=0.3)
    plt.xlabel("task"), plt.ylabel("accuracy, mean of five tasks"), plt.legend()
    plt.savefig(arguments.output, dpi=120)


if __name__ == "__main__":
    main()
