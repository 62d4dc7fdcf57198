"""Σ|w| into every unit and out of every tap, reading each weight once per step."""

from typing import NamedTuple

import torch
from torch import Tensor

from cbp_ray.algorithm.adam import of_run
from cbp_ray.algorithm.units import Part, Reader
from cbp_ray.algorithm.watched_layer import Population, WatchedLayer
from cbp_ray.algorithm.watched_site import Scratch, Statistics, WatchedSite
from cbp_ray.presets import Needs

CHUNK = 2**17
"""Weights whose magnitudes are held at a time on a CPU: half a MiB of float32 stays in the second-level cache."""


class _Rows(NamedTuple):
    """Rows of a weight, which go into the units of a layer."""

    layer: WatchedLayer
    part: Part

    @property
    def direct(self) -> bool:
        """Whether the sums over rows are the units' as they are."""
        return self.part.plain and len(self.layer.units.producers) == 1


class _Columns(NamedTuple):
    """Columns of a weight, which come from the taps of a site."""

    site: WatchedSite
    reader: Reader
    each: int
    """Columns per tap, if all taps have the same number side by side; otherwise 0."""

    @property
    def direct(self) -> bool:
        """Whether the sums over columns are the taps' as they are."""
        return self.each == 1 and len(self.site.site.readers) == 1

    def add(self, sums: Tensor, taps: Tensor) -> None:
        """Adds sums over columns to the taps that the columns belong to."""
        if self.each:
            taps += sums.view(self.site.count, self.each).sum(1)
        else:
            index = self.reader.taps.to(taps.device)
            taps.index_add_(0, index[index >= 0], sums[index >= 0])


class Magnitudes:
    """`incoming` of all units and `outgoing` of all taps, end to end: Σ|w|, or its mean per connection.

    A matrix between two hidden layers is the output of one and the input of the other. Both sums come from one pass over it.
    """

    def __init__(
        self, layers: list[WatchedLayer], sites: list[WatchedSite], needs: Needs, scratch: Scratch, *, mean: bool
    ) -> None:
        self.layers, self.sites, self.scratch, self.mean = layers, sites, scratch, mean
        self.statistics: Statistics | None = None
        self.rows_of: dict[Tensor, list[_Rows]] = {}
        self.columns_of: dict[Tensor, list[_Columns]] = {}
        if needs.magnitude_in:
            for layer in layers:
                for part in layer.units.producers:
                    self.rows_of.setdefault(part.tensor, []).append(_Rows(layer, part))
        if needs.magnitude_out:
            for site in sites:
                for reader in site.site.readers:
                    each = len(reader.taps) // site.count
                    even = torch.equal(reader.taps, torch.arange(site.count).repeat_interleave(each))
                    self.columns_of.setdefault(reader.tensor, []).append(_Columns(site, reader, each if even else 0))
        self.allocate()

    def allocate(self) -> None:
        """Makes the two vectors beside the weights."""
        last = self.layers[-1]
        self.incoming = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self.outgoing = torch.zeros(self.sites[-1].at.stop, dtype=last.dtype, device=last.device)
        self.fan_out = torch.ones_like(self.outgoing)
        if self.mean:
            for layer in self.layers:
                self.fan_out[layer.taps.flatten().to(last.device)] = layer.fan_out
        self.sums: list[SumsOfMagnitudes] = []
        self.added: list[tuple[SumsOfMagnitudes, list[_Rows], list[_Columns]]] = []
        """Sums that are not where they belong, and where that is."""
        for weight in {**self.rows_of, **self.columns_of}:
            self._prepare_sums(weight)
        self.zeroed = list({id(r.layer): self.incoming[r.layer.at] for _, rows, _ in self.added for r in rows}.values())
        self.zeroed += {id(c.site): self.outgoing[c.site.at] for _, _, columns in self.added for c in columns}.values()

    def _prepare_sums(self, weight: Tensor) -> None:
        to_rows, to_columns = self.rows_of.get(weight, []), self.columns_of.get(weight, [])
        dim = to_rows[0].part.dim if to_rows else 1 - to_columns[0].reader.dim
        modules = [rows.part.module for rows in to_rows] + [columns.reader.module for columns in to_columns]
        rows = columns = None
        if to_rows:
            direct = len(to_rows) == 1 and to_rows[0].direct
            rows = self.incoming[to_rows[0].layer.at] if direct else self.incoming.new_empty(to_rows[0].part.size)
            to_rows = [] if direct else to_rows
        if to_columns:
            direct = len(to_columns) == 1 and to_columns[0].direct
            columns = (
                self.outgoing[to_columns[0].site.at] if direct else self.outgoing.new_empty(len(to_columns[0].reader.taps))
            )
            to_columns = [] if direct else to_columns
        stacked = any(hasattr(module, "runs") for module in modules)
        self.sums.append(SumsOfMagnitudes(weight, rows, columns, self.scratch, stacked=stacked, transposed=dim == 1))
        if to_rows or to_columns:
            self.added.append((self.sums[-1], to_rows, to_columns))

    def measure(self) -> None:
        """Reads all weights."""
        for sums in self.sums:
            if (
                self.statistics is None
                or sums.widen is not None
                or sums.transposed
                or not self.statistics.magnitudes(sums.weight, sums.rows, sums.columns)
            ):
                sums.read()
        for vector in self.zeroed:
            vector.zero_()
        for sums, all_rows, all_columns in self.added:
            for rows in all_rows:
                self._add_rows(rows, sums.rows)
            for columns in all_columns:
                assert sums.columns is not None
                columns.add(sums.columns, self.outgoing[columns.site.at])
        if self.mean:
            for layer in self.layers:
                self.incoming[layer.at].div_(layer.fan_in)
            self.outgoing.div_(self.fan_out)

    def _add_rows(self, rows: _Rows, sums: Tensor | None) -> None:
        assert sums is not None
        self.incoming[rows.layer.at] += sums[rows.part.index.to(sums.device)].sum(1)

    def measure_again(self, layer: WatchedLayer) -> None:
        """Reads the weights of one layer again, some of which have changed."""
        self.incoming[layer.at] = 0
        for weight, all_rows in self.rows_of.items():
            for rows in all_rows:
                if rows.layer is layer:
                    sums = self.incoming.new_empty(rows.part.size)
                    SumsOfMagnitudes(weight, sums, None, self.scratch, transposed=rows.part.dim == 1).read()
                    self._add_rows(rows, sums / layer.fan_in if self.mean else sums)
        for site in layer.sites:
            self.outgoing[site.at] = 0
            for weight, all_columns in self.columns_of.items():
                for columns in all_columns:
                    if columns.site is site:
                        sums = self.outgoing.new_empty(len(columns.reader.taps))
                        SumsOfMagnitudes(weight, None, sums, self.scratch, transposed=columns.reader.dim == 0).read()
                        columns.add(sums, self.outgoing[site.at])
            if self.mean:
                self.outgoing[site.at].div_(self.fan_out[site.at])

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
    and `columns` are those of all runs, end to end, and a few runs are read at a time. A `transposed` weight has its units
    along dimension 1.
    """

    def __init__(
        self,
        weight: Tensor,
        rows: Tensor | None,
        columns: Tensor | None,
        scratch: Scratch,
        *,
        stacked: bool = False,
        transposed: bool = False,
    ) -> None:
        self.weight, self.rows, self.columns, self.scratch = weight, rows, columns, scratch
        self.stacked, self.transposed = stacked, transposed
        self.over_rows = (2,) if stacked else (0, *range(2, weight.ndim))
        self.over_columns = (1,) if stacked else tuple(range(1, weight.ndim))
        kept = rows if rows is not None else columns
        self.widen = None if kept is None or kept.dtype == weight.dtype else kept.dtype
        self.prepare()

    def prepare(self) -> None:
        """Cuts the weight into chunks."""
        weight = self.weight.detach()
        self.address = weight.data_ptr()
        if self.transposed:
            weight = weight.transpose(0, 1)
        step = weight.shape[0]
        if weight.device.type == "cpu":
            step = min(step, max(1, CHUNK * weight.shape[0] // weight.numel()))
        rows, columns = self.rows, self.columns
        self.chunks: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]] = []
        partial = None
        for start in range(0, weight.shape[0], step):
            part = slice(start, start + step)
            if self.stacked:
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
