"""`engine="torch"` for Bit-Flipping: the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray.activations import SATURATION
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.torch_learner import Learner, TorchRuns
from cbp_ray.problems.bit_flipping import BitFlippingConfig


def make_engine(config: OnlineConfig, seeds: Sequence[int], device: str) -> TorchRuns:
    """The engine with one run per seed."""
    return TorchRuns(config, lambda seed: BitFlippingRun(config, seed, device), seeds)


class BitFlippingRun(Learner):
    """One learner and its Bit-Flipping problem."""

    def __init__(self, config: OnlineConfig, seed: int, device: str = "cpu") -> None:
        assert isinstance(config.problem, BitFlippingConfig)
        super().__init__(config, seed, config.problem.inputs, nn.functional.mse_loss, device)
        self.problem, self.hidden_metrics = config.problem.stream(seed), config.problem.hidden_metrics

    def advance(self, examples: int) -> dict[str, float]:
        inputs, targets = self.problem.take(examples, start=self.examples)
        xs, ys = (torch.from_numpy(array).to(self.device, self.dtype) for array in (inputs, targets))
        outputs: list[Tensor] = []
        hooks = [module.register_forward_hook(lambda _m, _i, h: outputs.append(h.detach())) for module in self.activations]
        first, last = self.layers[0], self.layers[-1]
        # Of the loss: methods may change gradients before the optimizer's step.
        gradients: list[float] = []
        follow: Any = first.weight.register_post_accumulate_grad_hook
        hooks.append(follow(lambda p: gradients.append(float(p.grad.abs().mean()))))
        before = self.counts()
        error = saturated = 0.0
        largest = [torch.zeros(0, dtype=self.dtype)] * len(self.activations)
        units = sum(layer.out_features for layer in self.layers) - 1
        for t in range(examples):
            outputs.clear()
            error += float(self.learn(xs[t : t + 1], ys[t : t + 1, None])[1])
            for layer, h in enumerate(outputs):
                size = h[0].abs()
                saturated += int((size > SATURATION).sum())
                largest[layer] = torch.maximum(largest[layer], size) if t else size
        for hook in hooks:
            hook.remove()
        metrics = {
            "error": error / examples,
            "input_weight_magnitude": float(first.weight.detach().abs().mean()),
            "output_weight_magnitude": float(last.weight.detach().abs().mean()),
            "saturated": saturated / (examples * units) if units else np.nan,
            "input_gradient": sum(gradients) / examples,
            "dead": float((torch.cat(largest) == 0).double().mean()) if units else np.nan,
            **{name: float(count[0] - before[name][0]) for name, count in self.counts().items()},
            **{name: float(mean[0]) for name, mean in self.sample_plasticity(examples).items()},
        }
        return metrics if units else metrics | dict.fromkeys(self.hidden_metrics, np.nan)
