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
from cbp_ray.problems.permuted_mnist import WHITE, PermutedMnistConfig

TAKEN_AT_ONCE = 4096
"""Examples whose images are made at a time: bounds the memory."""


def make_engine(config: OnlineConfig, seeds: Sequence[int], device: str) -> Engine:
    """The engine with one run per seed; several runs, and those on another device than the CPU, are stacked."""
    if len(seeds) > 1 or device != "cpu":
        from cbp_ray.experiments.stacked import StackedRuns

        return StackedRuns([config] * len(seeds), seeds, device=device)
    return TorchRuns(config, lambda seed: MnistRun(config, seed), seeds)


class MnistRun(Learner):
    """One run. `images` instead of the config's data set are for tests."""

    def __init__(self, config: OnlineConfig, seed: int, images: Images | None = None, device: str = "cpu") -> None:
        assert isinstance(config.problem, PermutedMnistConfig)
        self.problem = config.problem.stream(seed, images)
        super().__init__(config, seed, self.problem.inputs, nn.functional.cross_entropy, device)

    def take(self, examples: int, start: int) -> tuple[Tensor, Tensor]:
        """Images [examples, pixels] in [0, 1] and labels."""
        images, labels = self.problem.take(examples, start)
        on_device = torch.from_numpy(images).to(self.device, self.dtype).div_(WHITE)
        return on_device, torch.from_numpy(labels).to(self.device, torch.int64)

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples; the metrics over them."""
        replaced, nonfinite = self.replacements()
        right, loss, end = 0, 0.0, self.examples + examples
        while self.examples < end:
            count = min(TAKEN_AT_ONCE, end - self.examples)
            xs, ys = self.take(count, self.examples)
            for t in range(count):
                prediction, example_loss = self.learn(xs[t : t + 1], ys[t : t + 1])
                right += int(prediction.argmax() == ys[t])
                loss += float(example_loss)
            self.examples += count
        replaced_now, nonfinite_now = self.replacements()
        magnitudes = [float(layer.weight.detach().abs().double().mean()) for layer in self.layers]
        return {
            "accuracy": right / examples,
            "loss": loss / examples,
            **hidden_outputs.layer_metrics(magnitudes, self._describe()),
            "replacements": float(replaced_now - replaced),
            "nonfinite_utilities": float(nonfinite_now - nonfinite),
        }

    @torch.no_grad()
    def _describe(self) -> list[hidden_outputs.Representation]:
        """The hidden layers on held examples of the latest task."""
        task = (self.examples - 1) // self.problem.task_length
        held = self.problem.permuted(self.problem.data.held_images[: hidden_outputs.HELD_EXAMPLES], task)
        x = torch.from_numpy(held).to(self.device, self.dtype).div_(WHITE)
        found = []
        self.model.eval()
        for module in list(self.model)[:-1]:
            x = module(x)
            if module in self.activations:
                found.append(hidden_outputs.describe(x.cpu().numpy()))
        self.model.train()
        return found
