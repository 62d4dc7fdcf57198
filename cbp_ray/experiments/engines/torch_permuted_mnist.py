"""`engine="torch"` for Permuted MNIST: the reference for the sparse kernel and for stacked runs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbp_ray.experiments import hidden_outputs
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Engine
from cbp_ray.experiments.engines.torch_learner import Learner
from cbp_ray.experiments.engines.torch_runs import TorchRuns
from cbp_ray.problems.mnist_files import Images
from cbp_ray.problems.permuted_mnist import WHITE, PermutedMnist, PermutedMnistConfig

TAKEN_AT_ONCE = 4096
"""Number of examples whose images are made at a time, which bounds the memory."""


def make_engine(config: OnlineConfig, seeds: Sequence[int], device: str) -> Engine:
    """The engine with one run per seed; several runs, and those on another device than the CPU, are stacked if they can be."""
    if (len(seeds) > 1 or device != "cpu") and config.algorithm.stacks:
        from cbp_ray.experiments.engines.stacked_permuted_mnist import StackedRuns

        return StackedRuns(config, seeds, device)
    return TorchRuns(config, lambda seed: MnistRun(config, seed, device=device), seeds)


def make_problem(config: OnlineConfig, seed: int, images: Images | None) -> PermutedMnist:
    """The stream of one run; `images` replace the config's data set."""
    assert isinstance(config.problem, PermutedMnistConfig)
    return config.problem.stream(seed, images)


class MnistRun(Learner):
    """One run of Permuted MNIST. Tests give `images` instead of the config's data set."""

    def __init__(self, config: OnlineConfig, seed: int, images: Images | None = None, device: str = "cpu") -> None:
        self.problem = make_problem(config, seed, images)
        super().__init__(config, seed, self.problem.inputs, nn.functional.cross_entropy, device)

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples and returns the metrics over them."""
        replaced, nonfinite = self.replacements()
        right, loss, end = 0, 0.0, self.examples + examples
        while self.examples < end:
            count = min(TAKEN_AT_ONCE, end - self.examples)
            xs, ys = take(self, self.problem, count)
            for t in range(count):
                prediction, example_loss = self.learn(xs[t : t + 1], ys[t : t + 1])
                right += int(prediction.argmax() == ys[t])
                loss += float(example_loss)
            self.examples += count
        replaced_now, nonfinite_now = self.replacements()
        return {
            "accuracy": right / examples,
            "loss": loss / examples,
            **describe(self, self.problem, self.model),
            "replacements": float(replaced_now - replaced),
            "nonfinite_utilities": float(nonfinite_now - nonfinite),
        }


def take(learner: Learner, problem: PermutedMnist, count: int) -> tuple[Tensor, Tensor]:
    """The next images [count, pixels] in [0, 1] and their labels, where the learner is."""
    images, labels = problem.take(count, learner.examples)
    on_device = torch.from_numpy(images).to(learner.device, learner.dtype).div_(WHITE)
    return on_device, torch.from_numpy(labels).to(learner.device, torch.int64)


@torch.no_grad()
def describe(learner: Learner, problem: PermutedMnist, model: nn.Sequential) -> dict[str, float]:
    """The metrics of a network's weights, and of its hidden layers on held examples of the latest task."""
    task = (learner.examples - 1) // problem.task_length
    held = problem.permuted(problem.data.held_images[: hidden_outputs.HELD_EXAMPLES], task)
    x = torch.from_numpy(held).to(learner.device, learner.dtype).div_(WHITE)
    layers = [module for module in model if isinstance(module, nn.Linear)]
    hidden = []
    model.eval()
    for module in model:
        if module in layers[1:]:
            hidden.append(hidden_outputs.describe(x.cpu().numpy()))
        x = module(x)
    model.train()
    return hidden_outputs.layer_metrics([float(layer.weight.detach().abs().double().mean()) for layer in layers], hidden)
