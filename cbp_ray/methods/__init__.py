"""The methods: one object each, which says everything that others ask of it.

A method of your own is one class in a module of your own, named in the environment variable `CBP_RAY_METHODS` as
`module:Class` (several with commas between). Sweeps tell their workers of it. A method of this package has a line in `OWN`.
"""

import functools
import importlib
import os
from collections.abc import Iterable, Mapping

from cbp_ray.errors import InputError
from cbp_ray.methods.backprop import BP as BP
from cbp_ray.methods.backprop import L2 as L2
from cbp_ray.methods.backprop import FullReset as FullReset
from cbp_ray.methods.backprop import Linear as Linear
from cbp_ray.methods.backprop import OnlineNormalization as OnlineNormalization
from cbp_ray.methods.continual_backprop import ContinualBackprop as ContinualBackprop
from cbp_ray.methods.method import AfterStep as AfterStep
from cbp_ray.methods.method import Method as Method
from cbp_ray.methods.units import ReDo as ReDo
from cbp_ray.methods.units import SelfNormalizedResets as SelfNormalizedResets
from cbp_ray.methods.weights import ClippedBackprop as ClippedBackprop
from cbp_ray.methods.weights import L2Init as L2Init
from cbp_ray.methods.weights import PerturbedBackprop as PerturbedBackprop
from cbp_ray.methods.weights import UtilityPerturbedBackprop as UtilityPerturbedBackprop
from cbp_ray.methods.weights import WassersteinRegularization as WassersteinRegularization
from cbp_ray.methods.weights import WeightReinitialization as WeightReinitialization

OWN: tuple[type[Method], ...] = (
    *(BP, L2, OnlineNormalization, ContinualBackprop, Linear, FullReset),
    *(
        L2Init,
        WassersteinRegularization,
        PerturbedBackprop,
        ClippedBackprop,
        UtilityPerturbedBackprop,
        WeightReinitialization,
        ReDo,
        SelfNormalizedResets,
    ),
)
VARIABLE = "CBP_RAY_METHODS"


def methods() -> Mapping[str, type[Method]]:
    """All methods by name: those of this package, and those that the environment variable names.

    Raises:
      InputError: if the variable names something that is no method, or one whose name is taken.
    """
    return _table(os.environ.get(VARIABLE, ""))


def know_methods(references: Iterable[str]) -> None:
    """Makes methods of somebody's own known to this process and those that it starts, by `module:Class` each."""
    known = [reference for reference in os.environ.get(VARIABLE, "").split(",") if reference]
    os.environ[VARIABLE] = ",".join([*known, *(reference for reference in references if reference not in known)])


@functools.cache
def _table(references: str) -> dict[str, type[Method]]:
    table: dict[str, type[Method]] = {_name(method): method for method in OWN}
    for reference in filter(None, references.split(",")):
        method = _load(reference.strip())
        if _name(method) in table:
            raise InputError(f"{VARIABLE}: must have names of their own, got {_name(method)!r} twice; rename one")
        table[_name(method)] = method
    return table


def _name(method: type[Method]) -> str:
    return str(method.model_fields["name"].default)


def _load(reference: str) -> type[Method]:
    module, _, name = reference.partition(":")
    try:
        method = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{VARIABLE}: must be MODULE:CLASS, got {reference!r} ({error}); correct it") from None
    if not isinstance(method, type) or not issubclass(method, Method):
        raise InputError(f"{VARIABLE}: must name a subclass of cbp_ray.methods.Method, got {reference!r}; correct it")
    return method
