"""Initial distributions of a network's layers: recorded, named, or recognised from the weights."""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cbp_ray.activations import GAINS
from cbp_ray.algorithm.units import TRANSPOSED, UNIT_MODULES, UnitModule, unit_dim
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution, bound, draw_initial

Scheme = Literal["kaiming", "lecun", "xavier", "pytorch", "uniform", "normal", "truncated_normal", "orthogonal", "empirical"]
FITTED = ("uniform", "normal", "truncated_normal", "orthogonal", "empirical")
"""Schemes whose scale is that of the weights as they are."""

MARK = "_cbp_ray_initial_distribution"

QUANTILES = 1025
"""Most numbers that stand for a layer's initial weights."""
SURE = 2.4
"""Kolmogorov's distance times √n beyond which a distribution is ruled out: once in 50,000 times wrongly."""
ENOUGH = 20_000
"""Number of weights that are looked at."""
CUTOFFS = (1.0, 3.5)
"""Where, in standard deviations, a normal distribution can be seen to be cut off."""


def fans(module: UnitModule) -> tuple[int, int]:
    """Connections into one unit, and out of one input, as torch counts them."""
    weight = module.weight[0] if hasattr(module, "runs") else module.weight  # the first of a stack of runs
    return weight[0].numel(), weight.shape[0] * math.prod(weight.shape[2:])


def distribution_of(scheme: Scheme, module: UnitModule, activation: str | None) -> Distribution:
    """The distribution that `scheme` gives a layer followed by `activation`.

    `kaiming`: U(±gain·√(3/fan_in)) with the paper's gain for the activation. `lecun`: the same with gain 1. `xavier`:
    U(±√(6/(fan_in+fan_out))). All three with zero biases. `pytorch`: what `nn.Linear` and `nn.Conv2d` do by themselves,
    weights and biases in U(±1/√fan_in). `uniform`, `normal`, `truncated_normal`, `orthogonal` and `empirical`: of this kind,
    with scale and biases as in the layer's present weights.
    """
    fan_in, fan_out = fans(module)
    match scheme if isinstance(scheme, str) else None:  # an array is equal to a name in none of its parts
        case "kaiming":
            if activation not in GAINS:
                raise InputError(
                    f"init: no gain is known for the activation {activation!r} (known: {', '.join(GAINS)}); "
                    "pass init={layer name: Distribution.uniform(bound)}"
                )
            return Distribution.uniform(bound(fan_in, activation))
        case "lecun":
            return Distribution.uniform(bound(fan_in, "linear"))
        case "xavier":
            return Distribution.uniform(math.sqrt(6 / (fan_in + fan_out)))
        case "pytorch":
            return Distribution.uniform(1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        case "uniform" | "normal" | "truncated_normal" | "orthogonal" | "empirical":
            return _fitted(scheme, module, _values(module))
        case _:
            raise InputError(f"init: must be one of kaiming, lecun, xavier, pytorch, {', '.join(FITTED)}; got {scheme!r}")


@torch.no_grad()
def initialize(
    model: nn.Module,
    scheme: Scheme = "kaiming",
    *,
    activation: str = "tanh",
    seed: int = 0,
    restart: int = 0,
    biases: bool = True,
) -> None:
    """Draws new weights for every Linear and convolution of `model` and records the distribution for replacements.

    Args:
      model: a network that GnT understands.
      scheme: see `distribution_of`. The last layers, which feed nothing, get gain 1.
      activation: the hidden activation, for the gain of `kaiming`; one of `GAINS`.
      seed: seed of the draws.
      restart: number of the draw, for networks that begin again.
      biases: whether biases are drawn where the scheme draws them; otherwise they begin at 0.

    Example:
      >>> model = nn.Sequential(nn.Linear(20, 5), nn.Tanh(), nn.Linear(5, 1))
      >>> initialize(model, "kaiming", activation="tanh", seed=1)
    """
    from cbp_ray.algorithm.network import find_hidden_layers  # network.py needs the module types above

    hidden = {part.name for layer in find_hidden_layers(model) if layer.units for part in layer.units.producers}
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, UNIT_MODULES)]
    for number, (name, module) in enumerate(modules):
        distribution = distribution_of(scheme, module, activation if name in hidden else "linear")
        distribution = distribution if biases else replace(distribution, bias_scale=0.0, bias_mean=0.0)
        units = module.weight.shape[unit_dim(module)]
        weights, drawn_biases = draw_initial(distribution, units, module.weight.numel() // units, seed, number, restart)
        drawn = torch.from_numpy(weights)
        if isinstance(module, TRANSPOSED):
            drawn = drawn.view(units, module.weight.shape[0], -1).transpose(0, 1)
        module.weight.copy_(drawn.reshape(module.weight.shape))
        if module.bias is not None:
            module.bias.copy_(torch.from_numpy(drawn_biases))
        setattr(module, MARK, distribution)


def recognise(module: UnitModule) -> Distribution:
    """The distribution that `module` was created with: the recorded one, or the one that its weights look like.

    In this order: PyTorch's default; rows or columns of equal length at right angles; uniform and normal numbers, and normal
    ones that are cut off, each with the scale of the weights; and otherwise whatever the weights are (`empirical`).
    """
    recorded = getattr(module, MARK, None)
    if recorded is not None:
        return recorded  # type: ignore[no-any-return]
    default = distribution_of("pytorch", module, None)
    largest = float(module.weight.detach().abs().max())
    # The largest of n uniform draws is below 1 - 14/n of the bound once in a million.
    plausible = 1 - 14 / module.weight.numel() <= largest / default.scale <= 1 + 1e-5
    if module.bias is not None:
        plausible &= 0 < float(module.bias.detach().abs().max()) <= default.scale * (1 + 1e-5)
    if plausible:
        return default
    weights = _values(module)
    ordered = np.sort(weights.ravel()[:: math.ceil(weights.size / ENOUGH)])
    for kind in ("orthogonal", "uniform", "normal", "truncated_normal"):
        fitted = _fitted(kind, module, weights)
        if _looks_like(fitted, weights, ordered):
            return fitted
    return _fitted("empirical", module, weights)


def _values(module: UnitModule) -> NDArray[np.float64]:
    """The weights, unit by unit."""
    weight = module.weight.detach().double().cpu()
    return weight.transpose(0, unit_dim(module)).flatten(1).numpy()


def _fitted(kind: str, module: UnitModule, weights: NDArray[np.float64]) -> Distribution:
    """The distribution of one kind that is nearest to the weights and biases of a layer."""
    biases = (0.0, 0.0)
    if module.bias is not None:
        bias = module.bias.detach().double()
        mean = float(bias.mean())
        biases = (float((bias - mean).abs().max()), mean) if bool((bias != bias[0]).any()) else (0.0, mean)
        if abs(mean) < biases[0] / 2:  # around zero, as far as anybody can tell
            biases = (float(bias.abs().max()), 0.0)
    deviation = float(np.sqrt(np.square(weights).mean()))
    match kind:
        case "uniform":
            n = weights.size
            return Distribution("uniform", float(np.abs(weights).max()) * (n + 1) / n, *biases)
        case "normal":
            return Distribution("normal", deviation, *biases)
        case "truncated_normal":
            cutoff, scale = _cut_off(float(np.abs(weights).max()), deviation)
            return Distribution("truncated_normal", scale, *biases, cutoff=cutoff)
        case "orthogonal":
            return Distribution("orthogonal", deviation * math.sqrt(max(weights.shape)), *biases, size=max(weights.shape))
        case _:
            ordered = np.sort(weights, axis=None)
            places = np.linspace(0, weights.size - 1, min(QUANTILES, weights.size)).round().astype(int)
            return Distribution("empirical", deviation, *biases, quantiles=tuple(ordered[places].tolist()))


def _cut_off(largest: float, deviation: float) -> tuple[float, float]:
    """Cutoff c and scale s of a truncated normal distribution with its end at c·s and this standard deviation."""
    if deviation == 0:
        return CUTOFFS[1], 0.0
    low, high = CUTOFFS
    for _ in range(60):
        cutoff = (low + high) / 2
        density = math.exp(-cutoff * cutoff / 2) / math.sqrt(2 * math.pi)
        relative = math.sqrt(1 - 2 * cutoff * density / math.erf(cutoff / math.sqrt(2)))  # its deviation with scale 1
        low, high = (cutoff, high) if cutoff / relative < largest / deviation else (low, cutoff)
    return cutoff, largest / cutoff


def _looks_like(distribution: Distribution, weights: NDArray[np.float64], ordered: NDArray[np.float64]) -> bool:
    """Whether all weights [units, inputs], or some of them in order, may be of this distribution."""
    if distribution.scale == 0:
        return False
    if distribution.kind == "orthogonal":
        wide = (weights if weights.shape[0] <= weights.shape[1] else weights.T)[:100]
        products = wide @ wide.T / distribution.scale**2
        return min(weights.shape) > 1 and bool(np.abs(products - np.eye(len(wide))).max() < 1e-3)
    if distribution.kind == "truncated_normal" and not CUTOFFS[0] * 1.01 < distribution.cutoff < CUTOFFS[1] * 0.99:
        return False
    if distribution.kind == "normal":
        # So many normal numbers have one that is farther out, unless they are cut off.
        inside = math.erf(float(np.abs(weights).max()) / distribution.scale / math.sqrt(2))
        if inside <= 0 or weights.size * math.log(inside) < math.log(1e-5):
            return False
    n = len(ordered)
    distance = np.abs(_probability(distribution, ordered) - (np.arange(n) + 0.5) / n).max() + 0.5 / n
    # The scale is fitted, which makes the distance smaller; a handful of weights could come from anywhere.
    return n >= 30 and bool(distance * math.sqrt(n) < SURE)


def _probability(distribution: Distribution, x: NDArray[np.float64]) -> NDArray[Any]:
    """Probability of a weight below each x."""
    from scipy.special import ndtr

    if distribution.kind == "uniform":
        return np.asarray(np.clip((x / distribution.scale + 1) / 2, 0, 1))
    below = ndtr(x / distribution.scale)
    if distribution.kind == "normal":
        return np.asarray(below)
    low = ndtr(-distribution.cutoff)
    return np.asarray(np.clip((below - low) / (1 - 2 * low), 0, 1))


def resolve(
    init: Scheme | dict[str, Distribution] | None, name: str, module: UnitModule, activation: str | None
) -> Distribution:
    """The distribution of new units in a layer, from the `init` argument of `GenerateAndTest`."""
    if isinstance(init, dict) and name in init:
        return init[name]
    if init is None or isinstance(init, dict):
        return recognise(module)
    return distribution_of(init, module, activation)
