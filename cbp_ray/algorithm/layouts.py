"""What becomes of labels when tensors are joined, cut, flattened or turned, and when nobody knows."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from cbp_ray.algorithm import operations as ops
from cbp_ray.algorithm.labels import EXPLICIT, OTHER, Labels, Parts, Piece, Units, Value, argument, flat, merged


class Layouts:
    """Rules for the dimensions of labelled tensors."""

    units: Units
    values: dict[fx.Node, Any]
    """What is known of each node's tensor: a `Value`, `Parts`, or None if it depends on no unit."""
    tensors: dict[str, Tensor]
    activations: dict[int, dict[str, None]]
    """Names of the activations that each unit goes through."""

    def _activate(self, value: Value, activation: str, key: Hashable) -> Value:
        for label in value.labels:
            self.activations.setdefault(label, {})[activation] = None
        return replace(value, key=key)

    def _join(self, node: fx.Node, ours: Labels, theirs: Labels) -> None:
        for a, b in zip(ours, theirs, strict=True):
            if a != OTHER and b != OTHER:
                self.units.join(a, b)
            elif a != b and node.target not in ops.PRODUCTS:
                self.units.mark((a, b), f"{node.name!r} adds what is no unit to the outputs of {self.units.names((a, b))}")

    def _concatenate(self, node: fx.Node) -> Value:
        parts: Any = node.args[0] if node.args else node.kwargs["tensors"]
        dim: Any = argument(node, 1, "dim", 0)
        if not isinstance(parts, list | tuple):
            given = [value for n in node.all_input_nodes for value in flat(self.values.get(n))]
            return self._unknown(node.name, f"{node.name!r} joins parts of unknown number and", given, node)
        values = [self.values.get(part) for part in parts]
        labelled = [value for value in values if value is not None and value.pieces]
        first: Value = labelled[0]
        ndim = next((value.ndim for value in labelled if value.ndim), None)
        if isinstance(dim, int) and dim >= 0:
            # Without images or sequences, dimension 1 is that of the features; if not, sizes won't fit.
            dim = dim - (ndim or 2) if ndim or dim == 1 else None
        if dim is None or any(value.axis != first.axis for value in labelled):
            return self._unknown(node.name, f"{node.name!r} joins other dimensions and", labelled, node)
        mixed = frozenset().union(*(value.mixed for value in values if value is not None))
        if dim == first.axis:
            pieces = [
                piece for value in values for piece in (value.pieces if value and value.pieces else [Piece((), "unknown")])
            ]
            return replace(first, pieces=merged(pieces), key=node, mixed=mixed, ndim=ndim)
        for value in values:
            if value is None or (value.pieces != first.pieces and len(value.labels) != len(first.labels)):
                self._mix(first, f"{node.name!r} puts the outputs of {self._names(first)} beside what is no unit")
            else:
                self._join(node, first.labels, value.labels)
        return replace(first, key=node, mixed=mixed)

    def _split(self, node: fx.Node, value: Value) -> Any:
        """Parts of the features; parts along another dimension have all of them."""
        by: Any = argument(node, 1, "chunks" if "chunk" in ops.name_of(node.target) else "split_size_or_sections", 2)
        dim = self._dimension(argument(node, 2, "dim", 0), value)
        sizes = by if isinstance(by, list | tuple) else [by]
        known = dim is not None and all(isinstance(size, int) for size in sizes)
        if known and sizes is by and ops.name_of(node.target) == "split":
            known = dim != value.axis or sum(by) == len(value.labels)
        if not known or (dim == value.axis and not value.exact):
            return self._unknown(node.name, repr(ops.name_of(node.target)), [value], node)
        if dim != value.axis:
            return Parts([replace(value, key=node)], alike=True)
        labels: Any = torch.tensor(value.labels)
        cut: Any = {"chunk": torch.chunk, "split": torch.split, "tensor_split": torch.tensor_split}[ops.name_of(node.target)]
        parts = cut(labels, by)
        values = [replace(value, pieces=(Piece(tuple(part.tolist())),), key=(node, i)) for i, part in enumerate(parts)]
        return Parts(values, alike=False)

    def _gate(self, node: fx.Node, value: Value, dim: Any, name: str) -> Value:
        """The first half of the features times the sigmoid of the second: a unit is the pair."""
        half, odd = divmod(len(value.labels), 2)
        if self._dimension(dim, value) != value.axis or not value.exact or odd:
            return self._unknown(name, f"{name!r} (GLU)", [value], node)
        self._join(node, value.labels[:half], value.labels[half:])
        self._activate(value, "glu", None)
        return replace(value, pieces=(Piece(value.labels[:half]),), key=node)

    def _getitem(self, node: fx.Node, value: Value, key: Hashable) -> Any:
        whole = self.values[node.args[0]]  # type: ignore[index]
        item: Any = node.args[1]
        if isinstance(whole, Parts):
            return whole.at(item) or self._unknown(node.name, "'getitem'", whole.values, node)
        items = list(item) if isinstance(item, tuple) else [item]
        if items.count(...) == 1:
            after = items[items.index(...) + 1 :]
            before, items = items[: items.index(...)], after
            axes = list(range(-len(after), 0))
            plain = all(each == slice(None) for each in before)
        else:
            ndim = value.ndim or (2 if value.axis == -1 and all(isinstance(each, slice) for each in items) else 0)
            axes, plain = [i - ndim for i in range(len(items))], 0 < len(items) <= ndim
        if not plain or not all(isinstance(each, int | slice) for each in items):
            return self._unknown(node.name, "'getitem'", [value], node)
        axis, ndim_after, pieces = value.axis, value.ndim, value.pieces
        for where, each in zip(axes, items, strict=True):
            if where == value.axis and each != slice(None):
                bounds = (each.start, each.stop, each.step) if isinstance(each, slice) else (each,)
                if not value.exact or isinstance(each, int) or any(isinstance(bound, fx.Node) for bound in bounds):
                    return self._unknown(node.name, "'getitem'", [value], node)
                pieces = (Piece(value.labels[each]),)
            elif isinstance(each, int):
                axis += where > value.axis
                ndim_after = ndim_after and ndim_after - 1
        return replace(value, pieces=pieces, axis=axis, ndim=ndim_after, key=key)

    def _reduce(self, node: fx.Node, value: Value, key: Hashable) -> Value:
        """Means and the like over other dimensions than that of the units."""
        given: Any = argument(node, 1, "dim", None)
        dims = [self._dimension(d, value, exact=True) for d in (given if isinstance(given, list | tuple) else [given])]
        if any(d is None or d == value.axis for d in dims):
            return self._unknown(node.name, repr(ops.name_of(node.target)), [value], node)
        if argument(node, 2, "keepdim", False):
            return replace(value, key=key)
        behind = sum(d is not None and d > value.axis for d in dims)
        return replace(value, axis=value.axis + behind, ndim=value.ndim and value.ndim - len(dims), key=key)

    def _move(self, node: fx.Node, value: Value, key: Hashable) -> Value:
        arguments: Any = node.args[1:] or tuple(node.kwargs.values())
        dims = list(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], list | tuple) else list(arguments)
        what = ops.name_of(node.target)
        if all(isinstance(dim, int) for dim in dims):
            if what == "permute" and value.ndim in (None, len(dims)):
                axis = [dim % len(dims) for dim in dims].index(value.axis + len(dims)) - len(dims)
                return replace(value, axis=axis, ndim=len(dims), key=key)
            if what == "unsqueeze":
                dim = dims[0]
                if dim < 0 or value.ndim or dim <= 1:  # with the batch, there are at least two dimensions
                    behind = dim >= value.axis if dim < 0 else value.ndim is not None and dim > value.ndim + value.axis
                    return replace(value, axis=value.axis - behind, ndim=value.ndim and value.ndim + 1, key=key)
            elif what != "permute":
                a, b = (self._dimension(dim, value, exact=True) for dim in dims)
                if a is not None and b is not None:
                    return replace(value, axis={a: b, b: a}.get(value.axis, value.axis), key=key)
        return self._unknown(node.name, repr(what), [value], node)

    def _flatten(self, node: fx.Node, value: Value, start: Any, end: Any, key: Hashable) -> Value:
        """Only a flatten of everything behind the batch leaves the positions of a channel side by side."""
        if (start, end) == (1, value.ndim and value.ndim - 1):
            end = -1
        if (start, end) != (1, -1) and not (start == value.axis and end == -1):
            what = f"{node.name!r} flattens dimensions {start} to {end} of the outputs of {self._names(value)}"
            return self._mix(value, f"{what}; only a flatten of dimensions 1 to -1 keeps units apart, {EXPLICIT}")
        first = value.axis if start == value.axis else 1 - value.ndim if value.ndim else None
        if (value.ndim == 2 or start == -1) and value.axis == -1:
            return replace(value, key=key)
        spread: Literal["repeat", "tile"]
        if first == value.axis or (value.ndim and value.axis == 1 - value.ndim):
            spread = "repeat"
        elif value.axis == -1:
            spread = "tile"
        else:
            return self._unknown(
                node.name, f"{node.name!r} flattens dimensions before and behind the features and", [value], node
            )
        if not value.exact:
            if value.axis == -1 and value.ndim in (None, 2):
                return replace(value, key=key)
            return self._unknown(node.name, f"{node.name!r} flattens features of unknown number and", [value], node)
        return replace(value, pieces=(Piece(value.labels, spread),), axis=-1, ndim=2, key=key)

    def _reshape(self, node: fx.Node, value: Value, key: Hashable) -> Value:
        """`x.view(x.size(0), -1)` flattens; `x.reshape(-1, units)` joins examples; anything else may mix units."""
        given: Any = node.args[1:]
        shape = tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else given
        if len(shape) == 2 and _is_batch_size(shape[0]) and isinstance(shape[1], int):
            return self._flatten(node, value, 1, -1, key)
        if value.axis == -1 and value.exact and len(shape) >= 2 and shape[-1] == len(value.labels):
            return replace(value, ndim=len(shape), key=key)
        what = f"{node.name!r} reshapes the outputs of {self._names(value)} to {shape}, which is not known to keep units apart"
        return self._mix(value, f"{what}; use nn.Flatten() or x.view(x.size(0), -1), {EXPLICIT}")

    def _unknown(self, name: str, what: str, values: Sequence[Value], weights: Any) -> Value:
        """An operation that is not known to keep units apart."""
        mixed: set[int] = set()
        for value in values:
            after = f"{what} after {self._names(value)} is not known to keep units apart"
            mixed |= self._mix(value, f"{after}; use an operation that works on each feature by itself, {EXPLICIT}").mixed
        if isinstance(weights, fx.Node):
            self._reach_weights(weights, values)
        elif weights:
            self.units.reached |= mixed
        return Value((), mixed=frozenset(mixed))

    def _reach_weights(self, node: fx.Node, values: Sequence[Value]) -> None:
        """Units that meet a parameter in a function (`F.linear`, a product of matrices) feed weights."""
        if any(n.op == "get_attr" and isinstance(self.tensors.get(str(n.target)), nn.Parameter) for n in node.all_input_nodes):
            self.units.reached |= {u for v in values for u in (*v.labels, *v.mixed) if u != OTHER}

    def _mix(self, value: Value, reason: str, reached: bool = False) -> Value:
        self.units.mark(value.labels, reason)
        mixed = value.mixed | (set(value.labels) - {OTHER})
        if reached:
            self.units.reached |= mixed
        return Value((), mixed=mixed)

    def _names(self, value: Value) -> str:
        return self.units.names(value.labels or value.mixed)

    def _dimension(self, dim: Any, value: Value, *, exact: bool = False) -> int | None:
        """A dimension counted from the last; None if that is not known."""
        if not isinstance(dim, int):
            return None
        if dim < 0:
            return dim
        if value.ndim:
            return dim - value.ndim
        return -1 if dim == 1 and value.axis == -1 and not exact else None


def _is_batch_size(size: Any) -> bool:
    """Whether a node is the size of dimension 0: `x.size(0)`, `x.shape[0]` or `len(x)`."""
    if not isinstance(size, fx.Node):
        return False
    if ops.name_of(size.target) == "getitem":
        whole: Any = size.args[0]
        of_shape = whole.target == "size" or (whole.target is getattr and whole.args[1] == "shape")
        return bool(of_shape and size.args[1] == 0)
    return size.target is len or (size.target == "size" and bool(argument(size, 1, "dim", None) == 0))
