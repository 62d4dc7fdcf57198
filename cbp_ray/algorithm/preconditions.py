"""What generate-and-test asks of a network, its optimizer, the settings that name its layers, and a saved state."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm.initialization import Scheme
from cbp_ray.algorithm.network import Found, HiddenLayer, check_layers, find_units, refuse_nothing
from cbp_ray.algorithm.settings import Settings
from cbp_ray.algorithm.units import UnitLayer
from cbp_ray.algorithm.watched_layer import Population, WatchedLayer
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.validation import listed, truth_value


def check_same_place(layers: list[WatchedLayer]) -> None:
    """Refuses layers of several devices or dtypes: the averages of all layers stand end to end."""
    for layer in layers[1:]:
        if (layer.device, layer.dtype) != (layers[0].device, layers[0].dtype):
            raise InputError(
                f"model: layer {layer.name!r} is {layer.dtype} on {layer.device}, layer {layers[0].name!r} is "
                f"{layers[0].dtype} on {layers[0].device}; make one GenerateAndTest for each with layers=[...]"
            )


def check_init(init: Any, names: list[str] | None = None) -> None:
    """Refuses what is neither distributions by layer name nor the name of a scheme, and layers that are not among `names`."""
    if init is not None and not isinstance(init, dict) and (not isinstance(init, str) or init not in get_args(Scheme)):
        known = ", ".join(get_args(Scheme))
        raise InputError(f"init: must be one of {known}, or distributions by layer name, got {init!r}; use 'kaiming', say")
    for name, distribution in init.items() if isinstance(init, dict) else ():
        if names is not None and name not in names:
            raise InputError(f"init: {name!r} is not a hidden layer; the hidden layers are {', '.join(names)}")
        if not isinstance(distribution, Distribution):
            raise InputError(
                f"init: must have a Distribution for {name!r}, got {distribution!r}; use Distribution.uniform(0.1), say"
            )


def optimizers_by_parameter(optimizer: Optimizer | Iterable[Optimizer]) -> dict[Tensor, Optimizer]:
    """The optimizer of each parameter."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else listed(optimizer)
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise InputError(f"optimizer: must be a torch optimizer, or several in a list; got {type(optimizer).__name__}")
    return {p: o for o in optimizers for group in o.param_groups for p in group["params"]}


def treatable(
    model: nn.Module,
    layers: Iterable[HiddenLayer] | None,
    optimizers: Mapping[Tensor, Optimizer],
    *,
    biases: bool,
    preset: str,
    strict: bool,
) -> Found:
    """The layers that generate-and-test will treat, given or found, and what it leaves alone.

    Raises:
      InputError: if there is nothing to treat; if a layer that was given can't be; and with `strict`, if anything can't be.
    """
    truth_value("strict", strict)
    found = find_units(model) if layers is None else Found(check_layers(model, layers), {})
    refuse_nothing(model, found)
    if strict and found.untreated:
        raise InputError("model: " + "; ".join(dict.fromkeys(found.untreated.values())))
    kept = []
    for layer in found.layers:
        assert layer.units is not None
        reason = _not_held(layer.units, optimizers) or (_no_bias(layer.units, preset) if biases else None)
        if reason is None:
            kept.append(layer)
        elif strict or layers is not None:
            raise InputError(reason)
        else:
            found.untreated[layer.name] = reason
    if not kept:
        raise InputError("; ".join(dict.fromkeys(found.untreated.values())))
    found.layers = kept
    return found


def _not_held(units: UnitLayer, optimizers: Mapping[Tensor, Optimizer]) -> str | None:
    """Why the optimizer is none for a layer: it does not hold all parameters."""
    for name, parameter in units.parameters():
        if parameter not in optimizers:
            return (
                f"optimizer: it does not hold the model's parameter '{name}'; make the optimizer from this model's parameters()"
            )
    return None


def _no_bias(units: UnitLayer, preset: str) -> str | None:
    """Why a preset that moves mean contributions into biases can't treat a layer: one that it feeds has none."""
    for site in units.sites:
        for reader in site.readers:
            if reader.bias is None and getattr(reader.norm, "running_mean", None) is None:
                return (
                    f"preset: {preset!r} moves a removed unit's mean contribution into the bias of {reader.name!r}, which has "
                    "none; give it a bias or use preset='paper'"
                )
    return None


def say_once(layers: list[WatchedLayer], untreated: Mapping[str, str], init: Any) -> None:
    """Tells what is left alone, and where new units come from nothing better than the weights as they are."""
    if untreated:
        reasons = "; ".join(f"{name or 'the network'!r}: {reason}" for name, reason in untreated.items())
        warnings.warn(f"GenerateAndTest leaves a part of the network alone ({reasons})", UserWarning, stacklevel=3)
    guessed = [
        part.name
        for layer in layers
        for part, distribution in zip((*layer.units.producers, *layer.units.followers), layer.distributions, strict=True)
        if distribution.kind == "empirical"
    ]
    if guessed and init != "empirical":
        warnings.warn(
            f"GenerateAndTest: the initial distribution of {', '.join(map(repr, guessed))} is not known; new units' weights "
            "are drawn from the layer's present ones (init='empirical' says the same, and init= takes others)",
            UserWarning,
            stacklevel=3,
        )


def saved_origin(layer: WatchedLayer) -> dict[str, Any]:
    """For a state: the distributions that new units of a layer come from, and what its scales go back to."""
    first, *others = (asdict(distribution) for distribution in layer.distributions)
    saved: dict[str, Any] = {"distribution": first}
    if others:
        saved["other_distributions"] = others
    if layer.units.scales:
        saved["scales"] = [scale.initial.clone() for scale in layer.units.scales]
    return saved


def load_origin(layer: WatchedLayer, saved: Mapping[str, Any]) -> None:
    """Takes over what `saved_origin` gave."""
    layer.distributions = _distributions(saved)
    for scale, initial in zip(layer.units.scales, saved.get("scales", []), strict=True):
        scale.initial.copy_(initial)


def _distributions(saved: Mapping[str, Any]) -> list[Distribution]:
    return [Distribution(**each) for each in (saved["distribution"], *saved.get("other_distributions", []))]


def check_state(state: Mapping[str, Any], settings: Settings, populations: list[Population], init: Any) -> None:
    """Refuses a state of other layers, sizes or settings than these."""
    missing = {"settings", "steps", "layers"} - set(state)
    if missing:
        raise InputError(f"load_state_dict: the state lacks {', '.join(sorted(missing))}; pass what state_dict() gave")
    ours = asdict(settings)
    for name, value in state["settings"].items():
        if ours.get(name) != (tuple(value) if isinstance(value, list) else value):
            raise InputError(
                f"load_state_dict: {name} was {value!r} when the state was saved and is {ours.get(name)!r} here; "
                "make GenerateAndTest with the saved settings"
            )
    names = [units.name for units in populations]
    if list(state["layers"]) != names:
        raise InputError(f"load_state_dict: the state is of layers {list(state['layers'])}, here are {names}")
    for units in populations:
        saved = len(state["layers"][units.name]["birth"])
        if saved != units.count:
            raise InputError(f"load_state_dict: layer {units.name!r} had {saved} units, this model's has {units.count}")
        for distribution, here in zip(_distributions(state["layers"][units.name]), units.layer.distributions, strict=True):
            if init is not None and distribution != here:
                raise InputError(
                    f"load_state_dict: new units of layer {units.name!r} came from {distribution} when the state was saved; "
                    f"init={init!r} says {here}; leave init out"
                )
