"""Which units a network has, read from the network itself or given by the names of its layers.

`find_units` follows units through a trace of `torch.fx` (`trace.py`). A network that can't be traced as a whole is read part by
part: whichever of its modules can be traced has its hidden units found, and what lies between them is left alone.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx, nn

from cbp_ray.algorithm.labels import EXPLICIT, OTHER, Reading
from cbp_ray.algorithm.operations import ACTIVATION_FUNCTIONS, ACTIVATION_MODULES, NORMS, SHAPE_NORMS, features_of
from cbp_ray.algorithm.trace import Trace, Tracer
from cbp_ray.algorithm.units import (
    COMPUTED,
    CONVOLUTIONS,
    UNIT_MODULES,
    Part,
    Reader,
    Scale,
    Segment,
    Site,
    UnitLayer,
    UnitModule,
    inputs_of,
    outputs_of,
    unit_dim,
)
from cbp_ray.errors import InputError
from cbp_ray.validation import listed

BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules of torch that `torch.fx` takes as a whole, with hidden units between `linear1` and `linear2`."""


@dataclass(frozen=True)
class HiddenLayer:
    """One layer of units that generate-and-test may replace. Modules go by their names in `model.named_modules()`.

    Example:
      >>> HiddenLayer(unit="encoder.0", outgoing=("policy.0", "value.0"), activation="tanh").unit
      'encoder.0'
    """

    unit: str
    """The Linear or convolution whose outputs are the units; of several that a sum or a gate joins, the first."""
    outgoing: tuple[str, ...]
    """The Linear or convolution modules that the units feed. The input of the first is what is measured as h."""
    norms: tuple[str, ...] = ()
    """Norm layers between `unit` and `outgoing`, whose entry for a unit is reset with it."""
    activation: str | None = None
    """Name of the activation, for the gain of `init="kaiming"`."""
    units: UnitLayer | None = field(default=None, compare=False, repr=False)
    """All weights of the units, if the layer was found and not given."""

    @property
    def name(self) -> str:
        """What the layer is called in reports; `unit`, unless its units are of several makes."""
        return self.unit if self.units is None else self.units.name


@dataclass
class Found:
    """The hidden layers of a network, and what of it can't be treated."""

    layers: list[HiddenLayer]
    untreated: dict[str, str]
    """Reasons by module."""
    parts: list[tuple[str, nn.Module]] = field(default_factory=list)
    """Modules that were read by themselves, because what calls them can't be traced."""
    assumed: list[tuple[str, nn.Module, dict[str, Any]]] = field(default_factory=list)
    """Modules that were read with these arguments."""


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s and DistributedDataParallel's wrappers."""
    # The first is torch.compile's; naming its class would import all of dynamo.
    inner = getattr(model, "_orig_mod", model.module if isinstance(model, nn.parallel.DistributedDataParallel) else None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def find_hidden_layers(model: nn.Module) -> list[HiddenLayer]:
    """The hidden layers of `model` that can be treated, in the order in which they are computed.

    Raises:
      InputError: if there are hidden layers and none can be treated, naming what is in the way.
    """
    found = find_units(model)
    if found.untreated:
        refuse_nothing(model, found)
    return found.layers


def refuse_nothing(model: nn.Module, found: Found) -> None:
    """Refuses a network of which nothing can be treated, and says why."""
    if not found.layers and found.untreated:
        raise InputError("model: " + "; ".join(dict.fromkeys(found.untreated.values())))
    if not found.layers:
        raise InputError(f"model: {type(model).__name__} has no hidden layer: no Linear or convolution feeds another")


def find_units(model: nn.Module, rename: Callable[[str], str] = str) -> Found:
    """Reads the network, as a whole if that is possible, otherwise part by part. `rename` gives modules other names."""
    found = Found([], {})
    for name, block in model.named_modules():
        if type(block) in BLOCKS:
            _add_block(block, rename(name), found)
    _read(model, "", rename, found)
    _check_sharing(model, found)
    return found


def _read(module: nn.Module, path: str, rename: Callable[[str], str], found: Found) -> None:
    """Reads a module, or if that can't be its parts one by one."""
    if type(module) in BLOCKS or (path and isinstance(module, UNIT_MODULES)):
        return
    graphs = Graphs(module)
    if graphs.traced:
        if path:
            found.parts.append((rename(path), module))
        if graphs.assumed:
            found.assumed.append((rename(path), module, graphs.assumed))
        read = [build(Trace(module, graph, lambda name: rename(f"{path}.{name}".strip(".")))) for graph in graphs.traced]
        layers, untreated = reduce(_agreed, read)
        found.layers += layers
        found.untreated |= untreated
        return
    if graphs.reason:
        kind = f"{type(module).__name__}{f' ({rename(path)!r})' if path else ''}"
        found.untreated[rename(path)] = (
            f"torch.fx can't trace {kind} ({graphs.reason}), so what lies between its parts is left alone; name its layers "
            "yourself: layers=[HiddenLayer(unit=..., outgoing=(...,)), ...]"
        )
    for name, child in module.named_children():
        if any(isinstance(m, UNIT_MODULES) for m in child.modules()):
            _read(child, f"{path}.{name}".strip("."), rename, found)


class Graphs:
    """The graphs of a module: in training and evaluation, with all its arguments open, and with those that have defaults at
    their defaults."""

    def __init__(self, module: nn.Module) -> None:
        self.traced: list[fx.Graph] = []
        self.assumed: dict[str, Any] = {}
        """Arguments that must have their defaults, because otherwise there is no graph."""
        self.reason = ""
        """Why there is no graph; nothing to say where that is no news."""
        if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Transformer | nn.TransformerEncoder | nn.TransformerDecoder):
            return
        parameters = inspect.signature(module.forward).parameters.items()
        defaults = {name: p.default for name, p in parameters if p.default is not inspect.Parameter.empty}
        modes = {each: each.training for each in module.modules()}
        seen: set[str] = set()
        try:
            for training, concrete in product((True, False), (None, defaults) if defaults else (None,)):
                for each in modes:
                    each.training = training
                try:
                    graph = Tracer().trace(module, concrete)
                except Exception as error:  # fx raises many types, all meaning the same
                    self.reason = self.reason or (str(error).strip().splitlines() or [type(error).__name__])[0]
                    if concrete is None:
                        self.assumed = defaults
                    continue
                if str(graph) not in seen:
                    seen.add(str(graph))
                    self.traced.append(graph)
        finally:
            for each, was in modes.items():
                each.training = was


def _agreed(
    first: tuple[list[HiddenLayer], dict[str, str]], second: tuple[list[HiddenLayer], dict[str, str]]
) -> tuple[list[HiddenLayer], dict[str, str]]:
    """What two readings of a module (with and without its optional arguments, in training and evaluation) have in common."""
    untreated = {**second[1], **first[1]}
    layers = []
    for layer in first[0]:
        other = next((each for each in second[0] if each.name == layer.name), None)
        alike = other is not None and [_place(p) for p in layer.units.parts] == [_place(p) for p in other.units.parts]  # type: ignore[union-attr]
        if alike and layer.name not in untreated:
            layers.append(layer)
        elif layer.name not in untreated:
            untreated[layer.name] = (
                f"what the units of {layer.unit!r} feed depends on optional arguments of the forward pass, or on training mode"
            )
    return layers, untreated


def _place(part: Part) -> tuple[Any, ...]:
    return part.name, part.parameter, part.dim, part.index.tolist()


def _add_block(block: nn.Module, name: str, found: Found) -> None:
    """The hidden units of the feed-forward part of one of torch's own transformer layers."""
    prefix = f"{name}." if name else ""
    activation: Any = block.activation
    known = {**ACTIVATION_FUNCTIONS, **{type(activation): ACTIVATION_MODULES.get(type(activation))}}
    given = HiddenLayer(f"{prefix}linear1", (f"{prefix}linear2",), (), known.get(activation, known.get(type(activation))))
    modules = {f"{prefix}{inner}": module for inner, module in block.named_modules()}
    found.layers.append(HiddenLayer(given.unit, given.outgoing, (), given.activation, from_names(given, modules)))


def build(trace: Trace) -> tuple[list[HiddenLayer], dict[str, str]]:
    """The layers of units that can be treated, and reasons by module for those that can't."""
    units = trace.units
    readings = (trace.readings, trace.norms, trace.followers, trace.scales)
    members: dict[int, list[int]] = {}
    for unit in range(len(units.parents)):
        members.setdefault(units.root(unit), []).append(unit)
    # For every kind of reading and every group: (number of the reading, position) of each of its features.
    places: list[dict[int, list[tuple[int, int]]]] = [{} for _ in readings]
    for place, kind in zip(places, readings, strict=True):
        for number, reading in enumerate(kind):
            for position, label in enumerate(reading.labels):
                if label != OTHER:
                    place.setdefault(units.root(label), []).append((number, position))
    untreated = dict(trace.recurrent)
    makes: dict[Any, list[int]] = {}
    for root, group in members.items():
        feeds = places[0].get(root, [])
        if not feeds and not units.reached.intersection(group):
            continue  # an output of the network
        reasons = [units.reasons[unit] for unit in group if unit in units.reasons]
        if units.outputs.intersection(group) and not reasons:
            fed = f" feed {trace.readings[feeds[0][0]].name!r} and" if feeds else ""
            reasons.append(
                f"the units of {units.owners[root][0]!r}{fed} are also an output of the network, which a replacement would "
                "change; return something computed from them instead, " + EXPLICIT
            )
        if reasons or not feeds:
            for unit in group:
                untreated.setdefault(units.owners[unit][0], reasons[0] if reasons else "it feeds what can't be followed")
            continue
        rows = [units.owners[unit][0] for unit in group]
        numbers = [tuple(n for n, _ in place.get(root, [])) for place in places]
        makes.setdefault((tuple(rows), *numbers), []).append(root)
    ordered = sorted(makes.items(), key=lambda make: make[1][0])
    firsts = [make[0][0] for make, _ in ordered]
    layers, sites = [], _Sites(trace)
    for (rows, *_), roots in ordered:
        name = rows[0]
        if firsts.count(name) > 1:
            name = f"{name}:{units.owners[roots[0]][1]}-{units.owners[roots[-1]][1]}"
        layer = _layer(trace, name, [members[root] for root in roots], [[p.get(r, []) for r in roots] for p in places])
        sites.add(layer, roots)
        layers.append(_described(layer))
    return layers, untreated


def _layer(trace: Trace, name: str, groups: list[list[int]], places: list[list[list[tuple[int, int]]]]) -> UnitLayer:
    """One layer of groups that are made alike."""
    owners, modules = trace.units.owners, {trace.rename(n): m for n, m in trace.modules.items()}
    producers, activations = [], []
    for module_name in dict.fromkeys(owners[unit][0] for unit in groups[0]):
        module: Any = modules[module_name]
        index = [[owners[unit][1] for unit in group if owners[unit][0] == module_name] for group in groups]
        producers.append(Part(module_name, module, torch.tensor(index), outputs_of(module), unit_dim(module)))
        own = [unit for group in groups for unit in group if owners[unit][0] == module_name]
        behind = dict.fromkeys(act for unit in own for act in trace.activations.get(unit, ()))
        activations.append(next(iter(behind)) if len(behind) == 1 else None if behind else "linear")

    def parts(kind: int, readings: list[Reading]) -> list[tuple[Reading, Tensor]]:
        numbers = dict.fromkeys(number for number, _ in places[kind][0])
        return [
            (readings[n], torch.tensor([[position for number, position in place if number == n] for place in places[kind]]))
            for n in numbers
        ]

    return UnitLayer(
        name,
        len(groups),
        producers,
        activations,
        [Part(r.name, r.module, i, len(r.labels), 1 - unit_dim(r.module), r.parameter) for r, i in parts(0, trace.readings)],
        [Part(r.name, r.module, i, len(r.labels), r.dim) for r, i in parts(1, trace.norms)],
        [Part(r.name, r.module, i, len(r.labels)) for r, i in parts(2, trace.followers)],
        [_scale(r, i) for r, i in parts(3, trace.scales)],
    )


def _scale(reading: Reading, index: Tensor) -> Scale:
    initial = getattr(reading.module, reading.parameter).detach().clone()
    return Scale(reading.name, reading.module, index, len(reading.labels), reading.dim, reading.parameter, initial)


class _Sites:
    """The sites of a trace: readings of one tensor are one site."""

    def __init__(self, trace: Trace) -> None:
        self.by_key: dict[Any, Site] = {}
        self.labels: dict[Any, list[int]] = {}
        norms = _norms_behind(trace)
        for reading in trace.readings:
            taps, labels = torch.tensor(reading.taps), torch.tensor(reading.labels)
            taken = torch.where(labels == OTHER, -1, taps)
            key = (reading.key, tuple(reading.segments), reading.axis)
            if key not in self.by_key:
                count = sum(segment.taps for segment in reading.segments)
                self.by_key[key] = Site([], reading.segments, [None] * count, reading.axis)
                self.labels[key] = [OTHER] * count
                for tap, label in zip(reading.taps, reading.labels, strict=True):
                    self.labels[key][tap] = label
            norm = norms.get(reading.name)
            self.by_key[key].readers.append(Reader(reading.name, reading.module, taken, reading.parameter, reading.bias, norm))

        self.taps: dict[int, list[tuple[Any, int]]] = {}
        """Sites and taps there of every group."""
        for key, of_taps in self.labels.items():
            for tap, label in enumerate(of_taps):
                if label != OTHER:
                    self.taps.setdefault(trace.units.root(label), []).append((key, tap))

    def add(self, layer: UnitLayer, roots: list[int]) -> None:
        """Enters the units of a layer where they are read."""
        for number, root in enumerate(roots):
            for key, tap in self.taps[root]:
                self.by_key[key].owners[tap] = (layer, number)
        layer.sites += [self.by_key[key] for key in dict.fromkeys(key for key, _ in self.taps[roots[0]])]


def _norms_behind(trace: Trace) -> dict[str, nn.Module]:
    """For the names of modules: the batch normalization that reads their outputs as they are."""
    behind = {reading.key: reading.module for reading in trace.norms if hasattr(reading.module, "running_mean")}
    return {trace.rename(name): behind[key] for name, key in trace.outputs.items() if key in behind and name in trace.modules}


def _described(layer: UnitLayer) -> HiddenLayer:
    outgoing, norms = (tuple(dict.fromkeys(part.name for part in parts)) for parts in (layer.consumers, layer.norms))
    return HiddenLayer(layer.producers[0].name, outgoing, norms, layer.activations[0], layer)


def _check_sharing(model: nn.Module, found: Found) -> None:
    """Leaves layers alone whose parameters other modules have, too."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    kept = []
    for layer in found.layers:
        assert layer.units is not None
        shared = [owners.get(id(p), []) for _, p in layer.units.parameters() if len(owners.get(id(p), [])) > 1]
        if shared:
            found.untreated[layer.name] = f"{' and '.join(shared[0])} are one tensor; tied weights can't be reset"
        else:
            kept.append(layer)
    found.layers = kept


def check_layers(model: nn.Module, layers: Iterable[HiddenLayer]) -> list[HiddenLayer]:
    """The layers with all their weights, once every module that they name is there and has the right kind and shape.

    Raises:
      InputError: naming the module; also where a trace of the network shows that a layer feeds a module that is not named,
        or that something else is joined with its units.
    """
    several = [] if isinstance(layers, str) else listed(layers)
    # What says that it can be gone through, and can't, is one that is wrong.
    layers = several if several or isinstance(layers, list | tuple) else [layers]  # type: ignore[list-item]
    for layer in layers:
        if not isinstance(layer, HiddenLayer):
            raise InputError(
                f"layers: must be a list of HiddenLayer(unit=..., outgoing=(...,)), got {layer!r} ({type(layer).__name__})"
            )
        activation = "" if layer.activation is None else layer.activation
        names = [layer.unit, activation, *listed(layer.outgoing), *listed(layer.norms)]
        if not all(isinstance(name, str) for name in names) or not all(
            isinstance(part, tuple | list) for part in (layer.outgoing, layer.norms)
        ):
            raise InputError(f"layers: must name modules, and an activation, as in named_modules(), got {layer!r}; use names")
    modules = dict(model.named_modules())
    seen: set[str] = set()
    for layer in layers:
        for name in (layer.name, *layer.norms) if layer.units is None else (layer.name,):
            if name in seen:
                raise InputError(f"layers: {name!r} is given twice")
            seen.add(name)
    given = [layer for layer in layers if layer.units is None]
    checked = {id(layer): from_names(layer, modules) for layer in given}
    if given:
        _compare_with_trace(model, given)
    complete = [
        HiddenLayer(layer.unit, layer.outgoing, layer.norms, layer.activation, layer.units or checked[id(layer)])
        for layer in layers
    ]
    found = Found(list(complete), {})
    _check_sharing(model, found)
    if found.untreated:
        raise InputError(f"model: {next(iter(found.untreated.values()))}")
    refuse_nothing(model, found)
    return complete


def _compare_with_trace(model: nn.Module, given: list[HiddenLayer]) -> None:
    """Refuses layers of which a trace knows more consumers, or other producers of the same units."""
    for graph in Graphs(model).traced:
        _compare(Trace(model, graph), given)


def _compare(trace: Trace, given: list[HiddenLayer]) -> None:
    units = trace.units
    for layer in given:
        own = {unit for unit, (name, _) in enumerate(units.owners) if name == layer.unit}
        roots = {units.root(unit) for unit in own}
        fed = [r.name for r in trace.readings if any(u != OTHER and units.root(u) in roots for u in r.labels)]
        missing = [name for name in fed if name not in layer.outgoing]
        if missing:
            raise InputError(
                f"layers: the units of {layer.unit!r} also feed {missing[0]!r}; name it in outgoing, or leave layers out "
                "and let the network be read"
            )
        joined = [
            units.owners[u][0] for u in range(len(units.owners)) if units.root(u) in roots and units.owners[u][0] != layer.unit
        ]
        if joined:
            raise InputError(
                f"layers: the units of {layer.unit!r} are joined with those of {joined[0]!r} by a sum or product and can't be "
                "replaced by themselves; leave layers out and let the network be read"
            )
        if own & units.outputs:
            raise InputError(
                f"layers: the units of {layer.unit!r} are an output of the network, which a replacement would change"
            )


def from_names(layer: HiddenLayer, modules: dict[str, nn.Module]) -> UnitLayer:
    """A layer of one producer, whose consumers all read the same features."""
    if len(set(layer.outgoing)) < len(layer.outgoing):
        raise InputError(f"layers: {layer.unit!r} names an outgoing module twice: {', '.join(layer.outgoing)}")
    if not layer.outgoing:
        raise InputError(f"layers: {layer.unit!r} has no outgoing module")
    unit: Any = _unit_module(modules, layer.unit)
    count = outputs_of(unit)
    units = torch.arange(count)[:, None]
    made = UnitLayer(layer.unit, count, [Part(layer.unit, unit, units, count, unit_dim(unit))], [layer.activation], [])
    readers = []
    for name in layer.outgoing:
        consumer: Any = _unit_module(modules, name)
        each = inputs_per_unit(unit, consumer)
        if each is None:
            groups = getattr(consumer, "groups", 1)
            raise InputError(
                f"model: {name!r} takes {consumer.weight.shape[1 - unit_dim(consumer)]} inputs"
                f"{f' in {groups} groups' if groups > 1 else ''}, which don't divide into the {count} units of {layer.unit!r}"
            )
        columns = units * each + torch.arange(each)
        made.consumers.append(Part(name, consumer, columns, count * each, 1 - unit_dim(consumer)))
        readers.append(Reader(name, consumer, torch.arange(count).repeat_interleave(each)))
    first: Any = readers[0].module
    axis = -1 if isinstance(first, nn.Linear) else 1 - first.weight.ndim
    each = len(readers[0].taps) // count
    made.sites.append(Site(readers, [Segment(0, count, each)], [(made, number) for number in range(count)], axis))
    for name in layer.norms:
        norm: Any = _norm(modules, name, layer.unit, count)
        made.norms.append(Part(name, norm, units, count))
    return made


def inputs_per_unit(unit: UnitModule, consumer: UnitModule) -> int | None:
    """How many consecutive inputs of `consumer` one unit fills: 1, or the positions of a flattened channel; None: no fit."""
    units, inputs = outputs_of(unit), inputs_of(consumer)
    if getattr(unit, "runs", None) != getattr(consumer, "runs", None):
        return None
    if not isinstance(consumer, nn.Linear):
        return 1 if consumer.groups == 1 and inputs == units else None
    if isinstance(unit, nn.Linear):
        return 1 if inputs == units else None
    return inputs // units if inputs % units == 0 else None


def _unit_module(modules: dict[str, nn.Module], name: str) -> nn.Module:
    module: Any = modules.get(name)
    if not isinstance(module, UNIT_MODULES):
        found = "missing" if module is None else f"a {type(module).__name__}"
        raise InputError(f"layers: {name!r} must be a Linear or convolution of the model, it is {found}")
    if not isinstance(module.weight, nn.Parameter):
        raise InputError(f"layers: {COMPUTED.format(name=name)}")
    return module


def _norm(modules: dict[str, nn.Module], name: str, unit: str, units: int) -> nn.Module:
    norm: Any = modules.get(name)
    if not isinstance(norm, NORMS):
        raise InputError(f"layers: {name!r} must be a norm layer ({', '.join(n.__name__ for n in NORMS)})")
    shape: Any = getattr(norm, "normalized_shape", ())
    features = shape[0] if isinstance(norm, SHAPE_NORMS) else features_of(norm)
    if isinstance(norm, SHAPE_NORMS) and isinstance(modules[unit], CONVOLUTIONS) and len(shape) == 1:
        raise InputError(f"model: {name!r} normalizes {shape}, not the channels and positions of {unit!r}")
    if features != units:
        raise InputError(f"model: {name!r} normalizes {features} features, but {unit!r} has {units} units")
    return norm
