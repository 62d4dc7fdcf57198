"""Σ|w| into and out of every unit, reading each weight matrix once per step."""

import torch
from torch import Tensor

from cbp_ray.algorithm.adam import of_run
from cbp_ray.algorithm.watched_layer import Population, Scratch, Statistics, WatchedLayer
from cbp_ray.presets import Needs

CHUNK = 2**17
"""Weights whose magnitudes are held at a time on a CPU: half a MiB of float32 stays in the second-level cache."""


class Magnitudes:
    """`incoming` and `outgoing`: Σ|w| (or its mean per connection) for the units of all layers, end to end.

    A matrix between two hidden layers is the output of one and the input of the other. Both sums come from one pass over it.
    """

    def __init__(self, layers: list[WatchedLayer], needs: Needs, scratch: Scratch, *, mean: bool) -> None:
        self.layers, self.scratch, self.mean = layers, scratch, mean
        self.statistics: Statistics | None = None
        self.owners = {layer.weight: layer for layer in layers} if needs.magnitude_in else {}
        self.feeders: dict[Tensor, list[tuple[WatchedLayer, int]]] = {}
        if needs.magnitude_out:
            for layer in layers:
                for consumer in layer.consumers:
                    self.feeders.setdefault(consumer.module.weight, []).append((layer, consumer.inputs_per_unit))
        self.allocate()

    def allocate(self) -> None:
        """Makes the two vectors beside the weights."""
        last = self.layers[-1]
        self.incoming = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self.outgoing = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self.rows = {layer: self.incoming[layer.at] for layer in self.layers}
        self.columns = {layer: self.outgoing[layer.at] for layer in self.layers}
        self.readers: list[SumsOfMagnitudes] = []
        for weight in {**self.owners, **self.feeders}:
            rows = self.rows[self.owners[weight]] if weight in self.owners else None
            columns = self._place_of_columns(weight)
            if columns is None and weight in self.feeders:
                layer, inputs_per_unit = self.feeders[weight][0]
                columns = self.outgoing.new_empty(layer.count * inputs_per_unit)
            self.readers.append(SumsOfMagnitudes(weight, rows, columns, self.scratch))

    def _place_of_columns(self, weight: Tensor) -> Tensor | None:
        """Where a weight's column sums can be written as they are: one layer feeds it and nothing else, unit by input."""
        feeders = self.feeders.get(weight, [])
        if len(feeders) == 1:
            layer, inputs_per_unit = feeders[0]
            if inputs_per_unit == 1 and len(layer.consumers) == 1:
                return self.columns[layer]
        return None

    def measure(self) -> None:
        """Reads all weights."""
        for layer in self.layers:
            if len(layer.consumers) > 1:
                self.columns[layer].zero_()
        for reader in self.readers:
            if (
                self.statistics is None
                or reader.widen is not None
                or not self.statistics.magnitudes(reader.weight, reader.rows, reader.columns)
            ):
                reader.read()
            for layer, inputs_per_unit in self.feeders.get(reader.weight, []):
                if reader.columns is not None and (inputs_per_unit > 1 or len(layer.consumers) > 1):
                    per_unit = reader.columns.view(layer.count, inputs_per_unit).sum(1)
                    self.columns[layer].copy_(per_unit if len(layer.consumers) == 1 else self.columns[layer] + per_unit)
        if self.mean:
            for layer in self.layers:
                self.rows[layer].div_(layer.fan_in)
                self.columns[layer].div_(layer.fan_out)

    def lose_inputs(self, units: Population, columns: Tensor) -> None:
        """The inputs `columns` of some units are about to be cut off: takes them out of the units' `incoming`."""
        layer = units.layer
        weight, rows = of_run(layer.weight.detach(), units.run), self.incoming[units.at]
        if weight.numel() <= CHUNK or 2 * len(columns) > weight.shape[1]:
            # Cheap enough, or too much to subtract without rounding: read it again.
            SumsOfMagnitudes(weight.index_fill(1, columns, 0), rows, None, self.scratch).read()
            if self.mean:
                rows.div_(layer.fan_in)
        else:
            lost = weight[:, columns].abs().flatten(1).sum(1, dtype=rows.dtype)
            rows.sub_(lost / layer.fan_in if self.mean else lost)


class SumsOfMagnitudes:
    """Writes Σ|w| over all but dimension 0 into `rows`, and over all but dimension 1 into `columns`; None: not wanted.

    On a CPU, |w| is made a few rows at a time and summed while it is in the cache. The memory for it and the views are kept
    from call to call: making them again costs as much as the sums. In a stack of several runs, [runs, units, inputs], `rows`
    and `columns` are those of all runs, end to end, and a few runs are read at a time.
    """

    def __init__(self, weight: Tensor, rows: Tensor | None, columns: Tensor | None, scratch: Scratch) -> None:
        self.weight, self.rows, self.columns, self.scratch = weight, rows, columns, scratch
        stacked = weight.ndim == 3
        self.over_rows = (2,) if stacked else (0, *range(2, weight.ndim))
        self.over_columns = (1,) if stacked else tuple(range(1, weight.ndim))
        kept = rows if rows is not None else columns
        self.widen = None if kept is None or kept.dtype == weight.dtype else kept.dtype
        self.prepare()

    def prepare(self) -> None:
        """Cuts the weight into chunks."""
        weight = self.weight.detach()
        self.address = weight.data_ptr()
        step = weight.shape[0]
        if weight.device.type == "cpu":
            step = min(step, max(1, CHUNK * weight.shape[0] // weight.numel()))
        rows, columns = self.rows, self.columns
        self.chunks: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]] = []
        partial = None
        for start in range(0, weight.shape[0], step):
            part = slice(start, start + step)
            if weight.ndim == 3:
                own = [None if sums is None else sums.view(len(weight), -1)[part] for sums in (rows, columns)]
                # As it lies in memory: [runs, inputs, units].
                self.chunks.append((weight[part].transpose(1, 2), own[0], own[1], None))
            else:
                self.chunks.append((weight[part], None if rows is None else rows[part], columns, partial))
                partial = None if columns is None else torch.empty_like(columns) if partial is None else partial

    def read(self) -> None:
        """Reads the weight and writes the sums."""
        if self.weight.data_ptr() != self.address:  # `model.to(...)` gives parameters new memory
            self.prepare()
        for chunk, rows, columns, partial in self.chunks:
            magnitudes = torch.abs(chunk, out=self.scratch.like(chunk))
            if rows is not None:
                torch.sum(magnitudes, self.over_columns, dtype=self.widen, out=rows)
            if columns is not None and partial is None:
                torch.sum(magnitudes, self.over_rows, dtype=self.widen, out=columns)
            elif columns is not None:
                columns += torch.sum(magnitudes, self.over_rows, dtype=self.widen, out=partial)
