"""Many networks of one shape, one example each at a time: batched matrix products, one optimizer step for all parameters.

Everything that differs between the runs (weights, step sizes, decays) is a tensor whose first dimension is the run. Forward and
backward are written out, so that a step is a fixed sequence of operations on fixed memory, which CUDA can record once and
replay.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cbp_ray.experiments.config import AdamConfig, OnlineConfig
from cbp_ray.experiments.initial_weights import initial_weights
from cbp_ray.methods import Linear, OnlineNormalization

NORM_EPSILON = 1e-5
LEAKY_SLOPE = 0.01


def per_run(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number per run as [runs, 1, 1]."""
    return torch.tensor(values, dtype=torch.float64).to(dtype).view(-1, 1, 1).to(device)


def activate(z: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """A layer's outputs and their derivatives."""
    match name:
        case "tanh":
            h = torch.tanh(z)
            return h, 1 - h * h
        case "sigmoid":
            h = torch.sigmoid(z)
            return h, h * (1 - h)
        case "relu":
            return torch.relu(z), (z > 0).to(z.dtype)
        case "leaky_relu":
            slope = torch.where(z > 0, 1.0, LEAKY_SLOPE).to(z.dtype)
            return slope * z, slope
        case "elu":
            return nn.functional.elu(z), torch.where(z > 0, torch.ones_like(z), z.exp())
        case _:
            s = torch.sigmoid(z)
            return z * s, s * (1 + z * (1 - s))


class StackedNetworks:
    """Networks [runs], their optimizer and what it remembers.

    Parameters lie end to end in one flat tensor, each as [runs, …]; `weights`, `biases`, `gains` and `shifts` are views of it.
    `gradient` has the same form, so that an optimizer step is a few operations however many layers there are.

    Args:
      configs: one per run, alike in everything but numbers.
      seeds: one per run, of the initial weights.
      inputs: of the networks.
      device: where they live.
    """

    def __init__(self, configs: Sequence[OnlineConfig], seeds: Sequence[int], inputs: int, device: torch.device) -> None:
        config, self.runs, self.device = configs[0], len(configs), device
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        hidden = () if isinstance(config.algorithm, Linear) else config.network.hidden
        self.sizes = [inputs, *hidden, config.problem.outputs]
        self.activation = config.network.activation
        self.normalized = isinstance(config.algorithm, OnlineNormalization)
        self.adam = isinstance(config.optimizer, AdamConfig)
        self._settings(configs)
        self._allocate()
        kinds = [self.activation] * len(hidden) + ["linear"]
        for layer, (fan_in, units) in enumerate(pairwise(self.sizes)):
            drawn = [initial_weights(seed, layer, units, fan_in, kinds[layer]).T for seed in seeds]
            self.weights[layer].copy_(torch.stack([torch.from_numpy(w.copy()) for w in drawn]))
        for gain in self.gains:
            gain.fill_(1)
        self.hidden: list[Tensor] = [self._zeros(self.runs, 1, n) for n in hidden]

    def _settings(self, configs: Sequence[OnlineConfig]) -> None:
        def number(section: str, name: str) -> Tensor:
            return per_run([getattr(getattr(c, section), name, 0.0) for c in configs], self.dtype, self.device)

        self.step_size, self.weight_decay = number("optimizer", "step_size"), number("algorithm", "weight_decay")
        self.decays = any(getattr(c.algorithm, "weight_decay", 0.0) > 0 for c in configs)
        step_sizes = [c.optimizer.step_size for c in configs]
        self.common_step_size, self.differ = step_sizes[0], len(set(step_sizes)) > 1
        if self.adam:
            betas = [c.optimizer.betas for c in configs if isinstance(c.optimizer, AdamConfig)]
            self.betas = [per_run([pair[k] for pair in betas], self.dtype, self.device) for k in (0, 1)]
            self.epsilon = number("optimizer", "epsilon")
        if self.normalized:
            self.alpha_forward = number("algorithm", "alpha_forward")
            self.alpha_backward = number("algorithm", "alpha_backward")

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _allocate(self) -> None:
        shapes = [(fan_in, units) for fan_in, units in pairwise(self.sizes)]
        shapes += [(1, units) for units in self.sizes[1:]]
        if self.normalized:
            shapes += [(1, units) for units in self.sizes[1:-1]] * 2
        lengths = [self.runs * rows * columns for rows, columns in shapes]
        self.parameters, self.gradient = self._zeros(sum(lengths)), self._zeros(sum(lengths))

        def views(flat: Tensor) -> list[Tensor]:
            parts = torch.split(flat, lengths)
            return [part.view(self.runs, *shape) for part, shape in zip(parts, shapes, strict=True)]

        def named(flat: Tensor) -> tuple[list[Tensor], ...]:
            parts, layers = views(flat), len(self.sizes) - 1
            return parts[:layers], parts[layers : 2 * layers], parts[2 * layers : 3 * layers - 1], parts[3 * layers - 1 :]

        self.weights, self.biases, self.gains, self.shifts = named(self.parameters)
        self.weight_gradients, self.bias_gradients, self.gain_gradients, self.shift_gradients = named(self.gradient)
        # What a setting is for every parameter, where runs differ in it.
        count = 2 if self.decays or self.adam else 1 if self.differ else 0
        spread = [torch.empty_like(self.gradient) for _ in range(count)]
        for flat, setting in zip(spread, (self.step_size, self.weight_decay), strict=False):
            for view in views(flat):
                view.copy_(setting.expand_as(view))
        self.spread = spread
        if self.adam:
            self.first, self.second = torch.zeros_like(self.gradient), torch.zeros_like(self.gradient)
            self.moments = [named(self.first), named(self.second)]
            self.scales = torch.empty_like(self.gradient), torch.empty_like(self.gradient)
            self.scale_views = [named(scale) for scale in self.scales]
            self.spread_betas = [torch.empty_like(self.gradient) for _ in range(3)]
            for flat, setting in zip(self.spread_betas, (*self.betas, self.epsilon), strict=True):
                for view in views(flat):
                    view.copy_(setting.expand_as(view))
            # By level, [runs, 1, units]: 1 - β₁ᵗ and 1 - β₂ᵗ of each unit.
            self.corrections = [[self._zeros(self.runs, 1, n) for n in self.sizes] for _ in range(2)]
        if self.normalized:
            fresh = {"mean": 0.0, "variance": 1.0, "control_v": 0.0, "control_u": 0.0}
            self.norms = {
                name: [torch.full_like(self.biases[layer], value) for layer in range(len(self.sizes) - 2)]
                for name, value in fresh.items()
            }

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [runs, 1, outputs] for inputs [runs, 1, inputs]. Keeps what `backward` needs."""
        self._inputs, self._derivatives = [x], list[Tensor]()
        self._normalized = list[tuple[Tensor, Tensor]]()
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            z = torch.baddbmm(b, x, w)
            if layer == len(self.weights) - 1:
                break
            if self.normalized:
                z = self._normalize(layer, z)
            x, derivative = activate(z, self.activation)
            self._inputs.append(x)
            self._derivatives.append(derivative)
            self.hidden[layer].copy_(x)
        return z

    def _normalize(self, layer: int, x: Tensor) -> Tensor:
        """OnlineNorm forward (Chiley et al. 2019, equation 8)."""
        mean, variance, a = self.norms["mean"][layer], self.norms["variance"][layer], self.alpha_forward
        sigma = (variance + NORM_EPSILON).sqrt()
        deviation = x - mean
        y = deviation / sigma
        self._normalized.append((y, sigma))
        variance.mul_(a).add_(a * (1 - a) * deviation.square())
        mean.mul_(a).add_((1 - a) * x)
        return y * self.gains[layer] + self.shifts[layer]

    def backward(self, delta: Tensor) -> None:
        """Fills `gradient`, given ∂loss/∂output [runs, 1, outputs]."""
        for layer in range(len(self.weights) - 1, -1, -1):
            if layer < len(self.weights) - 1:
                delta = delta * self._derivatives[layer]
                if self.normalized:
                    delta = self._control(layer, delta)
            torch.bmm(self._inputs[layer].transpose(1, 2), delta, out=self.weight_gradients[layer])
            self.bias_gradients[layer].copy_(delta)
            if layer > 0:
                delta = torch.bmm(delta, self.weights[layer].transpose(1, 2))

    def _control(self, layer: int, delta: Tensor) -> Tensor:
        """OnlineNorm backward (equations 10 to 12): the gradient of y becomes that of x."""
        (y, sigma), rate = self._normalized[layer], 1 - self.alpha_backward
        v, u = self.norms["control_v"][layer], self.norms["control_u"][layer]
        self.gain_gradients[layer].copy_(delta * y)
        self.shift_gradients[layer].copy_(delta)
        g: Tensor = delta * self.gains[layer]
        g = g - rate * v * y
        v.add_(g * y)
        g = g / sigma
        g = g - rate * u
        u.add_(g)
        return g

    def step(self) -> None:
        """One optimizer step for all parameters of all runs."""
        if self.adam:
            self._adam()
        elif self.decays:
            step_size, decay = self.spread
            self.gradient.addcmul_(self.parameters, decay)
            self.parameters.addcmul_(self.gradient, step_size, value=-1)
        elif self.spread:
            self.parameters.addcmul_(self.gradient, self.spread[0], value=-1)
        else:
            self.parameters.add_(self.gradient, alpha=-self.common_step_size)

    def _adam(self) -> None:
        """Algorithm 2: a weight's time step is the smaller of those of the units that it connects (see `algorithm.adam`)."""
        step_size, decay = self.spread
        beta_1, beta_2, epsilon = self.spread_betas
        if self.decays:
            self.gradient.addcmul_(self.parameters, decay)
        for beta, corrections, scale in zip(self.betas, self.corrections, self.scale_views, strict=True):
            for level, correction in enumerate(corrections):
                correction.mul_(beta).add_(1 - beta)
                if level > 0:
                    below = corrections[level - 1].transpose(1, 2)
                    torch.minimum(correction.expand_as(scale[0][level - 1]), below, out=scale[0][level - 1])
                    for views in scale[1:]:
                        if level <= len(views):
                            views[level - 1].copy_(correction)
        self.first.lerp_(self.gradient, 1 - beta_1)
        self.second.mul_(beta_2).add_((1 - beta_2) * self.gradient * self.gradient)
        denominator = (self.second / self.scales[1]).sqrt_().add_(epsilon)
        self.parameters.sub_(step_size * (self.first / self.scales[0]) / denominator)

    def forget(self, layer: int, run: int, units: Tensor) -> None:
        """What the optimizer remembers of units of a hidden layer, and of their weights."""
        if not self.adam:
            return
        for weights, biases, *_ in self.moments:
            weights[layer][run, :, units] = 0
            weights[layer + 1][run, units] = 0
            biases[layer][run, 0, units] = 0
        for corrections in self.corrections:
            corrections[layer + 1][run, 0, units] = 0

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes, by name."""
        named: dict[str, Any] = {"parameters": self.parameters}
        if self.adam:
            named |= {"first": self.first, "second": self.second}
            for k, corrections in enumerate(self.corrections):
                named |= {f"correction_{k + 1}/{level}": tensor for level, tensor in enumerate(corrections)}
        if self.normalized:
            named |= {f"{name}/{layer}": t for name, tensors in self.norms.items() for layer, t in enumerate(tensors)}
        return named
