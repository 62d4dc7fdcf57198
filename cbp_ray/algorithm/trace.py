"""Units followed through a network: the graph of `torch.fx`, in which every tensor says which of its features are which units.

A tensor that depends on units has, along one dimension, a *label* per feature: the number of a unit, or -1. Activations, norms
and pooling pass labels on; a sum or product of two tensors makes one unit of two (union-find); concatenations and slices do to
labels what they do to features; flattening repeats them. What reads a tensor (Linear, convolutions) has a column per label.
Where an operation is not known, or may mix units, these are marked with the reason, and the rest is treated all the same.

No example input is needed. Dimensions count from the last, which is known; how often a flattened channel repeats, or how many
features an input has, follows from the size of the layer that reads it. Where sizes contradict what was assumed (that
`cat([a, b], 1)` joins features, say), the units are left alone.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from cbp_ray.algorithm import operations as ops
from cbp_ray.algorithm.input_norm import InputNorm
from cbp_ray.algorithm.labels import (
    EXPLICIT,
    OTHER,
    Labels,
    Piece,
    Reading,
    Units,
    Value,
    argument,
    flat,
    simple,
    spread_out,
    taps_of,
)
from cbp_ray.algorithm.layouts import Layouts
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.algorithm.units import (
    COMPUTED,
    RECURRENT,
    TRANSPOSED,
    UNIT_MODULES,
    UnitModule,
    inputs_of,
    outputs_of,
    spatial_dims,
)


class Trace(Layouts):
    """Follows units through the graph of one module."""

    def __init__(self, model: nn.Module, graph: fx.Graph, rename: Callable[[str], str] = str) -> None:
        self.rename = rename
        """What a module of the graph is called in the network."""
        self.modules = dict(model.named_modules())
        self.tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.units = Units()
        self.values: dict[fx.Node, Any] = {}
        self.called: set[str] = set()
        self.readings: list[Reading] = []
        self.norms: list[Reading] = []
        self.followers: list[Reading] = []
        self.scales: list[Reading] = []
        self.outputs: dict[str, Hashable] = {}
        """Keys of what modules give, by their names in the graph."""
        self.recurrent: dict[str, str] = {}
        """Why recurrent modules are left alone, by name."""
        self.activations: dict[int, dict[str, None]] = {}
        keys: dict[Hashable, int] = {}
        for node in graph.nodes:
            value = self._visit(node)
            # A number for every key, or keys would grow along a chain.
            if isinstance(value, Value):
                value = replace(value, key=keys.setdefault(value.key, len(keys)))
                self.outputs.setdefault(str(node.target), value.key)
            self.values[node] = value

    def _visit(self, node: fx.Node) -> Any:
        inputs = [value for n in node.all_input_nodes for value in flat(self.values.get(n))]
        if node.op == "output":
            for value in inputs:
                self.units.outputs.update(set(value.labels) - {OTHER})
        if node.op == "call_module":
            return self._module(node, inputs)
        if node.op in ("call_function", "call_method") and inputs:
            return self._function(node, inputs)
        return None

    # Modules

    def _module(self, node: fx.Node, inputs: list[Value]) -> Any:
        target = str(node.target)
        module, name = self.modules[target], self.rename(target)
        again, parameters = name in self.called, any(True for _ in module.parameters())
        self.called.add(name)
        if again and parameters:
            return self._used_again(name, module, inputs)
        if isinstance(module, UNIT_MODULES):
            return self._through_weights(name, module, inputs)
        if isinstance(module, RECURRENT):
            return self._into_recurrent(name, module, inputs)
        if not inputs:
            return None
        if len(inputs) > 1:
            return self._unknown(name, f"{name!r} ({type(module).__name__})", inputs, parameters)
        value, kind = inputs[0], type(module)
        if not value.pieces:
            if parameters:
                self.units.reached |= value.mixed
            return value
        key = (kind, str(module), value.key) if not parameters and not isinstance(module, ops.PASSING_MODULES) else node
        if isinstance(module, ops.SHAPE_NORMS):
            return self._through_shape_norm(name, module, value, node)
        if isinstance(module, ops.CHANNEL_NORMS):
            return self._through_norm(name, module, value, ops.features_of(module), node)
        if kind is nn.PReLU and module.num_parameters > 1:
            value = self._through_norm(name, module, value, module.num_parameters, node)
        if kind in ops.ACTIVATION_MODULES:
            return self._activate(value, ops.ACTIVATION_MODULES[kind], key)
        if isinstance(module, nn.Flatten):
            return self._flatten(node, value, module.start_dim, module.end_dim, key)
        if isinstance(module, nn.GLU):
            return self._gate(node, value, module.dim, name)
        dims = ops.POOLING_MODULES.get(kind, ops.PADDING_MODULES.get(kind, 1 if kind in ops.UPSAMPLING_MODULES else 0))
        if isinstance(module, ops.PASSING_MODULES) or dims:
            if value.axis >= -dims and dims:
                return self._unknown(name, f"{name!r} ({kind.__name__}) reduces the features and", inputs, parameters)
            return replace(value, key=key)
        return self._unknown(name, f"{name!r} ({kind.__name__})", inputs, parameters)

    def _used_again(self, name: str, module: nn.Module, inputs: list[Value]) -> Value:
        reason = f"{name!r} is used more than once in a forward pass; tied weights can't be reset"
        touched = [u for value in inputs for u in (*value.labels, *value.mixed)]
        touched += [u for r in (*self.readings, *self.norms, *self.followers) if r.name == name for u in r.labels]
        own = [unit for unit, (owner, _) in enumerate(self.units.owners) if owner == name]
        self.units.reached |= {u for value in inputs for u in (*value.labels, *value.mixed) if u != OTHER}
        self.units.mark((*touched, *own), reason)
        return Value((), mixed=frozenset(u for u in (*touched, *own) if u != OTHER))

    def _through_weights(self, name: str, module: UnitModule, inputs: list[Value]) -> Value | None:
        dims, computed = spatial_dims(module), not isinstance(module.weight, nn.Parameter)
        reason = COMPUTED.format(name=name)
        for value in inputs:
            if not value.pieces:
                self.units.reached |= value.mixed
                continue
            groups = getattr(module, "groups", 1)
            if value.axis != -1 - dims:
                self._mix(value, f"{name!r} reads the width of the images from {self._names(value)} and not its channels; "
                          f"put a flatten between them, {EXPLICIT}", reached=True)  # fmt: skip
            elif groups > 1 and groups == module.in_channels and not isinstance(module, TRANSPOSED) and not computed:
                labels = self._resolve(name, value, inputs_of(module))
                return None if labels is None else self._through_depthwise(name, module, value, labels)
            elif groups > 1:
                self._mix(value, f"{name!r} takes {module.weight.shape[1]} inputs in {groups} groups, which are no columns of "
                          f"units of {self._names(value)}", reached=True)  # fmt: skip
            elif self._read(name, module, value, inputs_of(module)) and computed:
                self.units.mark(value.labels, reason)
        if isinstance(module, TRANSPOSED) and module.groups > 1:
            return None
        labels = self.units.add(name, outputs_of(module))
        if computed:
            self.units.mark(labels, reason)
        ndim = dims + 2 if dims else next((value.ndim for value in inputs), None)
        return Value((Piece(labels),), -1 - dims, ndim, ("units", name))

    def _read(
        self, name: str, module: nn.Module, value: Value, size: int, parameter: str = "weight", bias: str = "bias"
    ) -> bool:
        labels = self._resolve(name, value, size)
        if labels is not None:
            taps = taps_of(value, size)
            self.readings.append(Reading(name, module, labels, value.key, value.axis, *taps, parameter=parameter, bias=bias))
        return labels is not None

    def _through_depthwise(self, name: str, module: UnitModule, value: Value, labels: Labels) -> Value:
        labels = tuple(np.repeat(labels, outputs_of(module) // inputs_of(module)).tolist())
        self.followers.append(Reading(name, module, labels))
        return replace(value, pieces=(Piece(labels),), key=("units", name))

    def _into_recurrent(self, name: str, module: nn.Module, inputs: list[Value]) -> None:
        self.recurrent[name] = (
            f"{name!r} ({type(module).__name__}) is recurrent: its units feed themselves from step to step, so that a new unit "
            "can't be kept from changing the function; only what feeds it and what it feeds is treated"
        )
        for value in inputs:
            size = int(module.input_size)  # type: ignore[arg-type]
            if value is not inputs[0] or not value.pieces or value.axis != -1:
                self._mix(
                    value, f"{name!r} ({type(module).__name__}) is recurrent and reads {self._names(value)} as its state", True
                )
                continue
            endings = [""] if isinstance(module, nn.RNNCellBase) else ["_l0", "_l0_reverse"][: 1 + bool(module.bidirectional)]
            for ending in endings:
                self._read(name, module, value, size, parameter=f"weight_ih{ending}", bias=f"bias_ih{ending}")

    def _through_shape_norm(self, name: str, module: Any, value: Value, node: fx.Node) -> Value:
        shape = tuple(module.normalized_shape)
        if -value.axis > len(shape):
            return self._mix(value, f"{name!r} normalizes {shape}, not the channels and positions of {self._names(value)}; "
                             f"normalize [channels, positions...] or use nn.GroupNorm, {EXPLICIT}", True)  # fmt: skip
        dim = len(shape) + value.axis
        return self._through_norm(name, module, value, shape[dim], node, dim)

    def _through_norm(self, name: str, module: nn.Module, value: Value, size: int, node: fx.Node, dim: int = 0) -> Value:
        labels = self._resolve(name, value, size, "normalizes {size} features, but {names} has {count} units")
        if labels is None:
            return Value((), mixed=frozenset(set(value.labels) - {OTHER}))
        self.norms.append(Reading(name, module, labels, value.key, dim=dim))
        return replace(value, key=node)

    def _resolve(self, name: str, value: Value, size: int, message: str = "") -> Labels | None:
        """A label for each of `size` features, or None if it doesn't fit; the units are marked then."""
        known = sum(len(piece.labels) for piece in value.pieces if not piece.spread)
        spread = [piece for piece in value.pieces if piece.spread]
        rest = size - known
        each = len(spread[0].labels) if spread and spread[0].labels else 1
        fits = rest == 0 if not spread else len(spread) == 1 and rest > 0 and rest % each == 0
        if not fits:
            count = len(value.labels)
            unlike = (
                f"takes {{size}} inputs, which don't divide into the {{count}} units of {{names}}; make them fit, {EXPLICIT}"
            )
            text = (message or unlike).format(size=size, count=count, names=self._names(value))
            if len(spread) > 1:
                text = f"joins features of {self._names(value)} with others of unknown size; make sizes known, {EXPLICIT}"
            self._mix(value, f"{name!r} {text}", reached=True)
            return None
        return tuple(label for piece in value.pieces for label in spread_out(piece, rest))

    # Functions

    def _function(self, node: fx.Node, inputs: list[Value]) -> Any:
        target, value = node.target, inputs[0]
        if target in ops.SHAPE_METHODS or (target is getattr and node.args[1] in ops.SHAPE_ATTRIBUTES):
            return None
        if target is torch._assert or ops.name_of(target) == "_assert_is_none":
            return None
        if not any(v.pieces for v in inputs):
            self._reach_weights(node, inputs)
            return Value((), mixed=frozenset().union(*(v.mixed for v in inputs)))
        key = (target, str(node.args[1:]), str(node.kwargs), value.key) if simple(node) else node
        if target in ops.SUMS or target in ops.PRODUCTS or target in ops.COMPARISONS:
            return self._combine(node)
        if target in ops.CONCATENATIONS:
            return self._concatenate(node)
        if ops.name_of(target) == "getitem":
            return self._getitem(node, value, key)
        if len(inputs) > 1 or not value.pieces:
            return self._unknown(node.name, repr(ops.name_of(target)), inputs, node)
        if target in ops.ACTIVATION_FUNCTIONS:
            return self._activate(value, ops.ACTIVATION_FUNCTIONS[target], key)
        if target in ops.PASSING_FUNCTIONS or ops.name_of(target) in ops.PASSING_NAMES:
            return replace(value, key=node if "drop" in ops.name_of(target) or "depth" in ops.name_of(target) else key)
        if target in ops.POOLING_FUNCTIONS and value.axis < -ops.POOLING_FUNCTIONS[target]:
            return replace(value, key=key)
        if target is F.interpolate and value.axis < -1:
            return replace(value, key=key)
        pad = argument(node, 1, "pad", None)
        if target is F.pad and isinstance(pad, list | tuple) and len(pad) <= -2 * (value.axis + 1):
            return replace(value, key=key)
        if target in (torch.flatten, "flatten"):
            return self._flatten(node, value, argument(node, 1, "start_dim", 0), argument(node, 2, "end_dim", -1), key)
        if target in (torch.reshape, "view", "reshape"):
            return self._reshape(node, value, key)
        if target in ops.SPLITS:
            return self._split(node, value)
        if target in ops.REDUCTIONS:
            return self._reduce(node, value, key)
        if target in (
            torch.permute,
            "permute",
            torch.transpose,
            "transpose",
            torch.swapaxes,
            "swapaxes",
            torch.unsqueeze,
            "unsqueeze",
        ):
            return self._move(node, value, key)
        if target is F.glu:
            return self._gate(node, value, argument(node, 1, "dim", -1), node.name)
        return self._unknown(node.name, repr(ops.name_of(target)), inputs, node)

    def _combine(self, node: fx.Node) -> Value:
        """A sum or a product, feature by feature: units that meet are one unit from here on."""
        nodes = [n for n in node.all_input_nodes if not self._is_number(n)]
        values = [self.values[n] for n in nodes if isinstance(self.values.get(n), Value)]
        labelled: list[Value] = [value for value in values if value.pieces]
        mixed = frozenset().union(*(value.mixed for value in values))
        if not labelled:
            return Value((), mixed=mixed)
        largest = max(labelled, key=lambda v: len(v.labels))
        for value in labelled:
            if len(value.labels) == 1 < len(largest.labels):
                self._mix(value, f"{node.name!r} joins the unit of {self._names(value)} with all of {self._names(largest)}")
        if any(1 < len(value.labels) < len(largest.labels) for value in labelled):
            # Beside features of a size that is not known: which meet which can't be told.
            return self._unknown(node.name, f"{node.name!r} combines outputs of other sizes and", labelled, node)
        labelled = [value for value in labelled if len(value.labels) == len(largest.labels)]
        layouts = {(v.axis, tuple((len(p.labels), p.spread) for p in v.pieces)) for v in labelled}
        if len(layouts) > 1:
            return self._unknown(node.name, f"{node.name!r} combines outputs of other layouts and", labelled, node)
        for value in labelled[1:]:
            self._join(node, labelled[0].labels, value.labels)
        others = [n for n in nodes if not isinstance(self.values.get(n), Value) or not self.values[n].pieces]
        for other in others:
            if other.op == "get_attr" and str(other.target) in self.tensors:
                mixed |= self._scale(str(other.target), labelled[0])
            elif node.target in ops.SUMS:
                what = f"{node.name!r} combines the outputs of {self._names(labelled[0])} and {other.name}, which is no unit"
                self._mix(labelled[0], f"{what}; they can't be replaced by themselves: leave it out of the sum, {EXPLICIT}")
        if node.target in ops.PRODUCTS and len(labelled) > 1:
            self._activate(labelled[0], "combined", None)  # x·sigmoid(x), say: no activation that has a name
        return replace(labelled[0], key=node, mixed=mixed, ndim=max((v.ndim for v in labelled if v.ndim), default=None))

    def _is_number(self, node: fx.Node) -> bool:
        """Whether a node is a number of Python's that was read from a shape, or one that is made of such."""
        about_shape = node.target in ops.SHAPE_METHODS or (node.target is getattr and node.args[1] in ops.SHAPE_ATTRIBUTES)
        if node.op in ("placeholder", "get_attr", "call_module") or isinstance(self.values.get(node), Value):
            return False
        return about_shape or (bool(node.all_input_nodes) and all(self._is_number(n) for n in node.all_input_nodes))

    def _scale(self, name: str, value: Value) -> frozenset[int]:
        """A parameter that multiplies units, or is added to them; a buffer, or one number for all units, is a constant."""
        tensor = self.tensors[name]
        dim = tensor.ndim + value.axis
        if not isinstance(tensor, nn.Parameter) or dim < 0 or tensor.shape[dim] == 1:
            return frozenset()
        path, _, parameter = name.rpartition(".")
        module, full = self.modules[path], f"{self.rename(path)}.{parameter}".strip(".")
        if any(scale.module is module and scale.parameter == parameter for scale in self.scales):
            return self._mix(value, f"{full!r} is used more than once in a forward pass; tied weights can't be reset").mixed
        labels = self._resolve(full, value, tensor.shape[dim])
        if labels is not None:
            self.scales.append(Reading(self.rename(path), module, labels, parameter=parameter, dim=dim))
        return frozenset()


class Tracer(fx.Tracer):
    """`torch.fx`, with modules that produce or normalize units as a whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, OnlineNorm | InputNorm | UnitModule) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """An activation made during the forward pass is no part of the network: what it calls is."""
        if not any(True for _ in m.parameters()) and not any(m is module for module in self.root.modules()):
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)
