"""`engine="torch"` for Permuted MNIST: the reference for the sparse kernel, run after run or with all runs stacked."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray.algorithm.stacked_linear import load_run
from cbp_ray.experiments import hidden_outputs
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, check_complete
from cbp_ray.experiments.engines.torch_learner import Learner, TorchRuns, bare_network, flatten, unflatten
from cbp_ray.problems.mnist_files import Images
from cbp_ray.problems.permuted_mnist import HELD_EXAMPLES, WHITE, PermutedMnist, PermutedMnistConfig

TAKEN_AT_ONCE, TAKEN_OF_STACK = 4096, 512
"""Number of examples whose images are made at a time, which bounds the memory: of one run, and of every run of a stack."""


def make_engine(config: OnlineConfig, seeds: Sequence[int], device: str) -> Engine:
    """The engine with one run per seed; several runs, and those on another device than the CPU, are stacked if they can be."""
    stacks = config.algorithm.stacks and not config.network.layer_norm and not config.network.input_norm
    if (len(seeds) > 1 or device != "cpu") and stacks:
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
        before = self.counts()
        right, loss, end = 0, 0.0, self.examples + examples
        while self.examples < end:
            count = min(TAKEN_AT_ONCE, end - self.examples)
            xs, ys = take(self, self.problem, count)
            for t in range(count):
                prediction, example_loss = self.learn(xs[t : t + 1], ys[t : t + 1])
                right += int(prediction.argmax() == ys[t])
                loss += float(example_loss)
        return {
            "accuracy": right / examples,
            "loss": loss / examples,
            **describe(self, self.problem, self.model),
            **{name: float(count[0] - before[name][0]) for name, count in self.counts().items()},
            **{name: float(mean[0]) for name, mean in self.sample_plasticity(examples).items()},
        }


def take(learner: Learner, problem: PermutedMnist, count: int) -> tuple[Tensor, Tensor]:
    """The next images as inputs [count, pixels], and their labels, where the learner is."""
    images, labels = problem.take(count, learner.examples)
    on_device = problem.inputs_of(torch.from_numpy(images).to(learner.device, learner.dtype).div_(WHITE))
    return on_device, torch.from_numpy(labels).to(learner.device, torch.int64)


@torch.no_grad()
def describe(learner: Learner, problem: PermutedMnist, model: nn.Sequential) -> dict[str, float]:
    """The metrics of a network's weights, and of its hidden layers on held examples of the latest task."""
    task = (learner.examples - 1) // problem.task_length
    held = problem.permuted(problem.data.held_images[:HELD_EXAMPLES], task)
    x = problem.inputs_of(torch.from_numpy(held).to(learner.device, learner.dtype).div_(WHITE))
    layers = [module for module in model if isinstance(module, nn.Linear)]
    hidden = []
    model.eval()
    for module in model:
        if module in layers[1:]:
            hidden.append(hidden_outputs.describe(x.cpu().numpy()))
        x = module(x)
    model.train()
    return hidden_outputs.layer_metrics([float(layer.weight.detach().abs().double().mean()) for layer in layers], hidden)


class StackedRuns(Engine):
    """Runs of one config of Permuted MNIST, one per seed, that advance together on a GPU or a CPU; an `Engine`.

    The networks stand side by side in one (`cbp_ray.algorithm.stacked_linear`), so a step is the same few batched operations
    however many runs there are. Equal to `MnistRun`, run by run, up to rounding: batched products may add in another order.

    Args:
      config: the experiment.
      seeds: one per run.
      device: where all of them learn.
      images: instead of the config's data set, for tests.
    """

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], device: str = "cpu", images: Images | None = None) -> None:
        self.config, self.runs = config, len(seeds)
        self.problems = [make_problem(config, seed, images) for seed in seeds]
        self.learner = Learner(config, tuple(seeds), self.problems[0].inputs, self._losses, device)
        # A plain network, which gets the weights of one run at a time.
        self.single = bare_network(config, self.problems[0].inputs).to(self.learner.device)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.view(self.runs, -1), labels, reduction="none")

    def advance(self, examples: int) -> Metrics:
        learner = self.learner
        right, loss = torch.zeros(2, self.runs, dtype=torch.float64, device=learner.device)
        before, end = learner.counts(), learner.examples + examples
        while learner.examples < end:
            count = min(TAKEN_OF_STACK, end - learner.examples)
            taken = [take(learner, problem, count) for problem in self.problems]
            xs = torch.cat([x for x, _ in taken], dim=1)  # [count, runs·pixels]
            ys = torch.stack([y for _, y in taken], dim=1)  # [count, runs]
            for t in range(count):
                outputs, losses = learner.learn(xs[t : t + 1], ys[t])
                right += outputs.view(self.runs, -1).argmax(1) == ys[t]
                loss += losses
        at_end = []
        for run, problem in enumerate(self.problems):
            load_run(self.single, learner.model, run, self.runs)
            at_end.append(describe(learner, problem, self.single))
        metrics = {
            "accuracy": right.cpu().numpy() / examples,
            "loss": loss.cpu().numpy() / examples,
            **{name: np.array([found[name] for found in at_end]) for name in at_end[0]},
            **{name: count - before[name] for name, count in learner.counts().items()},
            **learner.sample_plasticity(examples),
        }
        return {name: metrics[name] for name in self.config.engine_metrics}

    def units(self) -> Metrics:
        return self.learner.units()

    def networks(self) -> Iterator[nn.Sequential]:
        for run in range(self.runs):
            model = bare_network(self.config, self.problems[0].inputs)
            load_run(model, self.learner.model, run, self.runs)
            yield model

    def state(self) -> Arrays:
        return dict(flatten(self.learner.state()))

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step; what it does to the rest is overwritten.
        inputs = torch.zeros(1, self.runs * self.problems[0].inputs, dtype=self.learner.dtype, device=self.learner.device)
        self.learner.learn(inputs, torch.zeros(self.runs, dtype=torch.int64, device=self.learner.device))
        check_complete(state, self.state())
        self.learner.load_state(unflatten(state), examples)
