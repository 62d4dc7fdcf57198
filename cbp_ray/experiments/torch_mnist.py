"""One learner and its Permuted MNIST, in torch: the reference for the sparse kernel and for stacked runs."""

import torch
from torch import Tensor, nn

from cbp_ray.experiments import representation
from cbp_ray.experiments.config import OnlineConfig, PermutedMnistConfig
from cbp_ray.experiments.engine import layer_metrics
from cbp_ray.experiments.torch_learner import Learner
from cbp_ray.problems.mnist_files import Images
from cbp_ray.problems.permuted_mnist import WHITE, PermutedMnist

TAKEN_AT_ONCE = 4096
"""Examples whose images are made at a time: bounds the memory."""


class MnistRun(Learner):
    """One run. `images` instead of the config's data set are for tests."""

    def __init__(self, config: OnlineConfig, seed: int, images: Images | None = None, device: str = "cpu") -> None:
        assert isinstance(config.problem, PermutedMnistConfig)
        self.problem = PermutedMnist(seed, images or config.problem.dataset, config.problem.task_length)
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
        return {
            "accuracy": right / examples,
            "loss": loss / examples,
            **layer_metrics([float(layer.weight.detach().abs().double().mean()) for layer in self.layers], self._describe()),
            "replacements": float(replaced_now - replaced),
            "nonfinite_utilities": float(nonfinite_now - nonfinite),
        }

    @torch.no_grad()
    def _describe(self) -> list[representation.Representation]:
        """The hidden layers on held examples of the latest task."""
        task = (self.examples - 1) // self.problem.task_length
        held = self.problem.permuted(self.problem.data.held_images[: representation.HELD_EXAMPLES], task)
        x = torch.from_numpy(held).to(self.device, self.dtype).div_(WHITE)
        found = []
        self.model.eval()
        for module in list(self.model)[:-1]:
            x = module(x)
            if module in self.activations:
                found.append(representation.describe(x.cpu().numpy()))
        self.model.train()
        return found
