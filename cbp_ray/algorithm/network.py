"""Which unit feeds which weights, read from the network itself.

A *hidden layer* is a Linear or Conv2d whose outputs (features, channels) reach other Linear or Conv2d modules through
operations that keep units apart: activations, norms, dropout, pooling, flatten. Everything else is refused by name.
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from cbp_ray.algorithm.initialization import UNIT_MODULES, UnitModule
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.errors import InputError

NORMS = (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, OnlineNorm)

_Modules = tuple[type[nn.Module], ...]
_NAMED_IN_LOWER_CASE: _Modules = (nn.Tanh, nn.Sigmoid, nn.ReLU, nn.ELU, nn.GELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus)
_NAMED_IN_LOWER_CASE += (nn.Softsign, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid)
ACTIVATION_MODULES: dict[type[nn.Module], str] = {
    **{module: module.__name__.lower() for module in _NAMED_IN_LOWER_CASE},
    **{nn.LeakyReLU: "leaky_relu", nn.SiLU: "swish"},
}
ACTIVATION_FUNCTIONS: dict[Any, str] = {
    **{getattr(F, "silu" if name == "swish" else name): name for name in ACTIVATION_MODULES.values()},
    **{torch.tanh: "tanh", torch.sigmoid: "sigmoid", torch.relu: "relu"},
    **{method: method for method in ("tanh", "sigmoid", "relu")},
}
PASSING_MODULES: _Modules = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
PASSING_MODULES += (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
PASSING_FUNCTIONS: set[Any] = {F.dropout, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, torch.abs, torch.neg, operator.neg}
PASSING_FUNCTIONS |= {torch.clone, torch.detach, "clone", "detach", "contiguous", "float", "double", "half", "to", "type_as"}
COMBINING_FUNCTIONS: set[Any] = {torch.add, torch.sub, torch.mul, torch.div, "add", "add_", "sub", "mul", "mul_", "div"}
COMBINING_FUNCTIONS |= {operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.imul}
SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


@dataclass(frozen=True)
class HiddenLayer:
    """One layer of units that generate-and-test may replace. Modules go by their names in `model.named_modules()`.

    Example:
      >>> HiddenLayer(unit="encoder.0", outgoing=("policy.0", "value.0"), activation="tanh").unit
      'encoder.0'
    """

    unit: str
    """The Linear or Conv2d whose outputs are the units."""
    outgoing: tuple[str, ...]
    """The Linear or Conv2d modules that the units feed. The input of the first is what is measured as h."""
    norms: tuple[str, ...] = ()
    """Norm layers between `unit` and `outgoing`, whose entry for a unit is reset with it."""
    activation: str | None = None
    """Name of the activation, for the gain of `init="kaiming"`."""


@dataclass
class _Units:
    """What flows along an edge of the graph: the outputs of one unit module, still apart from each other."""

    unit: str
    outgoing: list[str] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    activations: list[str] = field(default_factory=list)
    is_output: bool = False


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, OnlineNorm | UnitModule) or super().is_leaf_module(m, module_qualified_name)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s and DistributedDataParallel's wrappers."""
    # The first is torch.compile's; naming its class would import all of dynamo.
    inner = getattr(model, "_orig_mod", model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def find_hidden_layers(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers of `model`, in the order in which they are computed, from a `torch.fx` trace.

    Raises:
      InputError: naming the module, where units meet (residual sums, concatenation), weights are tied, or an operation is
        not known to keep units apart; and if `torch.fx` can't trace the model.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises many types, all meaning the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"model: torch.fx can't trace {type(model).__name__} ({reason}); "
            "name its layers yourself: layers=[HiddenLayer(unit=..., outgoing=(...,)), ...]"
        ) from error
    return _GraphReader(model).read(graph)


class _GraphReader:
    """Follows the outputs of every unit module through the graph."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = dict(model.named_modules())
        self.flows: dict[fx.Node, _Units | None] = {}
        self.flat: set[fx.Node] = set()
        """Nodes where a channel's positions stand side by side with its units, behind a flatten."""
        self.found: dict[str, _Units] = {}

    def read(self, graph: fx.Graph) -> list[HiddenLayer]:
        for node in graph.nodes:
            inputs = [units for n in node.all_input_nodes if (units := self.flows.get(n)) is not None]
            match node.op:
                case "call_module":
                    self.flows[node] = self.through_module(node, inputs)
                case "call_function" | "call_method":
                    self.flows[node] = self.through_function(node, inputs)
                case "output":
                    for units in inputs:
                        units.is_output = True
                case _:
                    self.flows[node] = None
        hidden = []
        for units in self.found.values():
            if units.outgoing and units.is_output:
                raise InputError(
                    f"model: the units of {units.unit!r} feed {units.outgoing[0]!r} and are also an output of the "
                    "network, which a replacement would change; give the layers to replace explicitly with layers=[...]"
                )
            if units.outgoing:
                activation = units.activations[0] if len(units.activations) == 1 else None if units.activations else "linear"
                hidden.append(HiddenLayer(units.unit, tuple(units.outgoing), tuple(units.norms), activation))
        return hidden

    def through_module(self, node: fx.Node, inputs: list[_Units]) -> _Units | None:
        name = str(node.target)
        module = self.modules[name]
        if name in self.found or any(name in units.norms for units in self.found.values()):
            raise InputError(f"model: {name!r} is used more than once in a forward pass; tied weights can't be reset")
        if isinstance(module, UNIT_MODULES):
            for units in inputs:
                # A Linear reads the last dimension: behind a Conv2d those are units only after a flatten.
                conv_feeds_linear = isinstance(self.modules[units.unit], nn.Conv2d) and isinstance(module, nn.Linear)
                if conv_feeds_linear and not self.is_flat(node):
                    raise InputError(
                        f"model: {name!r} reads the width of the images from {units.unit!r} and not its channels; "
                        "put a flatten between them"
                    )
                units.outgoing.append(name)
            self.found[name] = _Units(name)
            return self.found[name]
        if not inputs:
            return None
        units = inputs[0]
        self.pass_on_layout(node)
        if isinstance(module, NORMS):
            units.norms.append(name)
        elif type(module) in ACTIVATION_MODULES:
            units.activations.append(ACTIVATION_MODULES[type(module)])
        elif isinstance(module, nn.Flatten):
            self.flatten(node, units, (module.start_dim, module.end_dim))
        elif not isinstance(module, PASSING_MODULES):
            raise InputError(
                f"model: {name!r} ({type(module).__name__}) after {units.unit!r} is not known to keep units apart; "
                "use another activation, or give the layers explicitly with layers=[...]"
            )
        return units

    def through_function(self, node: fx.Node, inputs: list[_Units]) -> _Units | None:
        about_shape = node.target in ("size", "dim") or (node.target is getattr and node.args[1] in SHAPE_ATTRIBUTES)
        if not inputs or about_shape:
            return None
        units = inputs[0]
        self.pass_on_layout(node)
        if node.target in ACTIVATION_FUNCTIONS:
            units.activations.append(ACTIVATION_FUNCTIONS[node.target])
        elif node.target in COMBINING_FUNCTIONS:
            others = [n for n in node.all_input_nodes if self.flows.get(n) is not units]
            if others:
                names = " and ".join(repr(u.unit) for u in inputs) if len(inputs) > 1 else f"{units.unit!r} and {others[0]}"
                raise InputError(
                    f"model: {node.name!r} combines the outputs of {names}; "
                    "units in a sum or product with others can't be replaced one by one"
                )
            units.activations.append("combined")  # x·sigmoid(x), say: no activation that has a name
        elif node.target in (torch.flatten, "flatten"):
            dims = [node.kwargs.get("start_dim", 0), node.kwargs.get("end_dim", -1)]
            dims[: len(node.args) - 1] = node.args[1:]
            self.flatten(node, units, tuple(dims))
        elif node.target in (torch.reshape, "view", "reshape"):
            self.reshape(node, units)
        elif node.target not in PASSING_FUNCTIONS:
            what = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
            raise InputError(
                f"model: {what!r} after {units.unit!r} is not known to keep units apart; "
                "use another activation, or give the layers explicitly with layers=[...]"
            )
        return units

    def is_flat(self, node: fx.Node) -> bool:
        return any(n in self.flat for n in node.all_input_nodes)

    def pass_on_layout(self, node: fx.Node) -> None:
        if self.is_flat(node):
            self.flat.add(node)

    def flatten(self, node: fx.Node, units: _Units, dims: tuple[Any, ...]) -> None:
        """Only a flatten of everything behind the batch leaves a channel's positions side by side."""
        if dims != (1, -1):
            raise InputError(
                f"model: {node.name!r} flattens dimensions {dims[0]} to {dims[1]} of the outputs of {units.unit!r}; "
                "only a flatten of dimensions 1 to -1 keeps units apart"
            )
        self.flat.add(node)

    def reshape(self, node: fx.Node, units: _Units) -> None:
        """`x.view(x.size(0), -1)` flattens; `x.reshape(-1, units)` joins examples; anything else may mix units."""
        shape = node.args[1:] if len(node.args) != 2 or not isinstance(node.args[1], tuple | list) else tuple(node.args[1])
        unit = self.modules[units.unit]
        if len(shape) == 2 and isinstance(shape[0], fx.Node) and shape[1] == -1:
            self.flat.add(node)
        elif not (isinstance(unit, nn.Linear) and len(shape) == 2 and shape[1] == unit.out_features):
            raise InputError(
                f"model: {node.name!r} reshapes the outputs of {units.unit!r} to {shape}, which is not known to keep units "
                "apart; use nn.Flatten() or x.view(x.size(0), -1), or give the layers explicitly with layers=[...]"
            )


def check_layers(model: nn.Module, layers: Iterable[HiddenLayer]) -> list[HiddenLayer]:
    """The layers, once every module that they name is there, has the right kind and shape, and shares no weights.

    Raises:
      InputError: naming the module.
    """
    layers = list(layers)
    if not layers:
        raise InputError(f"model: {type(model).__name__} has no hidden layer: no Linear or Conv2d feeds another")
    modules = dict(model.named_modules())
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    seen: set[str] = set()
    for layer in layers:
        for name in (layer.unit, *layer.norms):
            if name in seen:
                raise InputError(f"layers: {name!r} is given twice")
            seen.add(name)
        if len(set(layer.outgoing)) < len(layer.outgoing):
            raise InputError(f"layers: {layer.unit!r} names an outgoing module twice: {', '.join(layer.outgoing)}")
        if not layer.outgoing:
            raise InputError(f"layers: {layer.unit!r} has no outgoing module")
        unit = _unit_module(modules, layer.unit)
        for name in layer.outgoing:
            consumer = _unit_module(modules, name)
            if inputs_per_unit(unit, consumer) is None:
                raise InputError(
                    f"model: {name!r} takes {consumer.weight.shape[1]} inputs"
                    f"{f' in {consumer.groups} groups' if isinstance(consumer, nn.Conv2d) else ''}, "
                    f"which don't divide into the {units_per_run(unit)} units of {layer.unit!r}"
                )
        for name in layer.norms:
            _check_norm(modules, name, layer.unit, units_per_run(unit) * getattr(unit, "runs", 1))
        for name in (layer.unit, *layer.outgoing, *layer.norms):
            for parameter in modules[name].parameters(recurse=False):
                if len(owners[id(parameter)]) > 1:
                    raise InputError(
                        f"model: {' and '.join(owners[id(parameter)])} are one tensor; tied weights can't be reset"
                    )
    return layers


def units_per_run(unit: UnitModule) -> int:
    """Number of units of a module; of each run, in a stack of several runs."""
    return unit.out_features if isinstance(unit, nn.Linear) else unit.out_channels


def inputs_per_unit(unit: UnitModule, consumer: UnitModule) -> int | None:
    """How many consecutive inputs of `consumer` one unit fills: 1, or the positions of a flattened channel; None: no fit."""
    units = units_per_run(unit)
    if getattr(unit, "runs", None) != getattr(consumer, "runs", None):
        return None
    if isinstance(consumer, nn.Conv2d):
        return 1 if consumer.groups == 1 and consumer.in_channels == units else None
    if isinstance(unit, nn.Linear):
        return 1 if consumer.in_features == units else None
    return consumer.in_features // units if consumer.in_features % units == 0 else None


def _unit_module(modules: dict[str, nn.Module], name: str) -> UnitModule:
    module = modules.get(name)
    if not isinstance(module, UNIT_MODULES):
        found = "missing" if module is None else f"a {type(module).__name__}"
        raise InputError(f"layers: {name!r} must be a Linear or Conv2d of the model, it is {found}")
    if not isinstance(module.weight, nn.Parameter):
        raise InputError(f"model: the weight of {name!r} is computed (weight_norm or a parametrization) and can't be reset")
    return module


def _check_norm(modules: dict[str, nn.Module], name: str, unit: str, units: int) -> None:
    norm = modules.get(name)
    if not isinstance(norm, NORMS):
        raise InputError(f"layers: {name!r} must be a norm layer ({', '.join(n.__name__ for n in NORMS)})")
    if isinstance(norm, nn.LayerNorm):
        features = norm.normalized_shape[0]
        if isinstance(modules[unit], nn.Conv2d) and len(norm.normalized_shape) != 3:
            raise InputError(f"model: {name!r} normalizes {norm.normalized_shape}, not the channels and positions of {unit!r}")
    else:
        features = norm.num_channels if isinstance(norm, nn.GroupNorm) else norm.num_features
    if features != units:
        raise InputError(f"model: {name!r} normalizes {features} features, but {unit!r} has {units} units")
