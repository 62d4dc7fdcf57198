"""The generator at work: the one place where weights and optimizer state change."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.adam import of_run
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.algorithm.optimizer_state import reset_weights
from cbp_ray.algorithm.replacement import new_units
from cbp_ray.algorithm.units import TRANSPOSED, Part, Reader
from cbp_ray.algorithm.watched_layer import Population
from cbp_ray.initial_weights import Distribution


class Generator:
    """Makes new units in place of old ones, and lets the optimizers forget these."""

    def __init__(self, optimizers: dict[Tensor, Optimizer]) -> None:
        self.optimizers = optimizers

    def replace(self, units: Population, index: Tensor) -> None:
        """Gives the units at `index` new input weights, no output weights, and fresh norms."""
        layer = units.layer.units
        numbers = range(units.replaced, units.replaced + len(index))
        for number, (part, distribution) in enumerate(
            zip((*layer.producers, *layer.followers), units.layer.distributions, strict=True)
        ):
            self._redraw(units, part, distribution, index, numbers, number)
        in_layer = index + units.offset
        for part in layer.consumers:
            columns = part.of(index)
            of_run(part.tensor, units.run).index_fill_(part.dim, columns, 0)
            self._forget(part.tensor, part.dim, columns, units.run)
        for part in layer.norms:
            self._reset_norm(part, part.of(in_layer))
        for scale in layer.scales:
            rows = scale.of(index)
            scale.tensor.index_copy_(scale.dim, rows, scale.initial.to(scale.tensor).index_select(scale.dim, rows))
            self._forget(scale.tensor, scale.dim, rows)

    def _redraw(
        self, units: Population, part: Part, distribution: Distribution, index: Tensor, numbers: Sequence[int], number: int
    ) -> None:
        """Draws the rows of new units in one of the weights that produce them."""
        per_unit = part.index.shape[1]
        fan_in = part.share // per_unit
        weights, biases = new_units(distribution, fan_in, units.seed, units.layer.number, numbers, per_unit, number)
        weight, rows = of_run(part.tensor, units.run), part.of(index)
        if part.dim == 0:
            weight[rows] = weights.to(weight).view(len(rows), *weight.shape[1:])
        else:
            shape = (len(rows), weight.shape[0], *weight.shape[2:])
            weight.index_copy_(1, rows, weights.to(weight).view(shape).transpose(0, 1))
        self._forget(part.tensor, part.dim, rows, units.run)
        bias: Any = part.module.bias
        if bias is not None:
            rows = rows + units.offset
            bias[rows] = biases.to(bias)
            self._forget(bias, 0, rows)

    def _reset_norm(self, part: Part, index: Tensor) -> None:
        fresh = {"running_mean": 0.0, "running_var": 1.0, **OnlineNorm.fresh_statistics()}
        for name, buffer in part.module.named_buffers(recurse=False):
            if name in fresh:
                buffer.index_fill_(0, index, fresh[name])
        scale = part.module.init if isinstance(part.module, nn.PReLU) else 1.0
        for name, parameter in part.module.named_parameters(recurse=False):
            parameter.index_fill_(part.dim, index, scale if name == "weight" else 0.0)
            self._forget(parameter, part.dim, index)

    def _forget(self, parameter: Tensor, dim: int, index: Tensor, run: int | None = None) -> None:
        reset_weights(self.optimizers[parameter], parameter, dim, index, run)


def transfer_bias(units: Population, index: Tensor, f_hat: Tensor) -> None:
    """Moves the mean contribution of the units about to go into the biases that they feed; `f_hat` has one of every tap.

    Exact for the mean of a Linear layer's input. A channel's mean over examples and positions stands for each of its
    positions, and a convolution's zero padding is not accounted for. Without a bias, but with batch normalization right behind,
    nothing is lost in training, and the running mean makes up for it in evaluation.
    """
    for site in units.layer.sites:
        for reader in site.site.readers:
            bias: Any = reader.bias
            if site.site.only_layer() is units.layer.units and not site.site.segments[0].tiled:
                weight = of_run(reader.tensor, units.run)
                outputs = weight.shape[1 - reader.dim]
                by_unit = (weight if reader.dim else weight.transpose(0, 1)).reshape(outputs, units.count, -1)
                leaving = by_unit[:, index].sum(2)  # [outputs, replaced units]
                means = f_hat[units.at][index] if units.run is not None else f_hat[site.at][index]
            else:
                columns, taps = _columns(reader, units, index, site.site.owners)
                leaving = reader.tensor.index_select(reader.dim, columns)
                leaving = (
                    (leaving if reader.dim else leaving.transpose(0, 1)).flatten(2).sum(2) if leaving.ndim > 2 else leaving
                )
                means, outputs = f_hat[site.at][taps], leaving.shape[0]
            if isinstance(reader.module, TRANSPOSED):
                leaving = leaving / math.prod(reader.module.stride)
            lost = leaving @ means.to(leaving.dtype)
            if bias is None:
                norm: Any = reader.norm
                norm.running_mean -= lost.to(norm.running_mean)
            else:
                bias.view(-1, outputs)[units.run or 0] += lost


def _columns(reader: Reader, units: Population, index: Tensor, owners: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Inputs of a reader that some units fill, and the tap of each."""
    leaving = set(index.tolist())
    ours = [o is not None and o[0] is units.layer.units and o[1] in leaving for o in owners]
    columns = [i for i, tap in enumerate(reader.taps.tolist()) if tap >= 0 and ours[tap]]
    found = torch.tensor(columns, dtype=torch.int64)
    return found.to(index.device), reader.taps[found].to(index.device)
