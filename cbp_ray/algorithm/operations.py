"""What torch's modules and functions do with units: which treat every unit by itself, which join them, which pass them on."""

import math
import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cbp_ray.algorithm.online_norm import OnlineNorm

Modules = tuple[type[nn.Module], ...]

CHANNEL_NORMS: Modules = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, OnlineNorm)
CHANNEL_NORMS += (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Norms with an entry per channel, along dimension 1."""
SHAPE_NORMS: Modules = (nn.LayerNorm, nn.RMSNorm)
"""Norms with an entry per feature of the last dimensions."""
NORMS = (*SHAPE_NORMS, *CHANNEL_NORMS)

_NAMED_IN_LOWER_CASE: Modules = (nn.Tanh, nn.Sigmoid, nn.ReLU, nn.ELU, nn.GELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus)
_NAMED_IN_LOWER_CASE += (nn.Softsign, nn.Hardtanh, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink)
_NAMED_IN_LOWER_CASE += (nn.Hardshrink, nn.Softshrink, nn.RReLU, nn.Threshold, nn.PReLU)
ACTIVATION_MODULES: dict[type[nn.Module], str] = {
    **{module: module.__name__.lower() for module in _NAMED_IN_LOWER_CASE},
    **{nn.LeakyReLU: "leaky_relu", nn.SiLU: "swish"},
}
_FUNCTIONS = "tanh sigmoid relu elu gelu selu celu mish softplus softsign hardtanh relu6 hardswish hardsigmoid logsigmoid"
_FUNCTIONS += " tanhshrink hardshrink softshrink rrelu threshold leaky_relu silu"
_METHODS = "tanh sigmoid relu sin cos exp square"
ACTIVATION_FUNCTIONS: dict[Any, str] = {
    **{getattr(F, name): "swish" if name == "silu" else name for name in _FUNCTIONS.split()},
    **{getattr(torch, name): name for name in (*_METHODS.split(), "selu", "celu", "rrelu", "threshold", "hardshrink")},
    **{name: name for name in _METHODS.split()},
    **{f"{name}_": name for name in ("tanh", "sigmoid", "relu")},
    **{getattr(torch, f"{name}_"): name for name in ("tanh", "sigmoid", "relu", "selu", "celu")},
    **{getattr(F, f"{name}_"): name for name in ("relu", "elu", "selu", "celu", "leaky_relu", "hardtanh")},
}
"""Functions of every unit by itself, and what they are called."""

PASSING_MODULES: Modules = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
PASSING_MODULES += (nn.FeatureAlphaDropout,)
_ALIKE = "abs neg log log1p sqrt rsqrt reciprocal sign clamp clip erf sinh cosh atan expm1 nan_to_num floor ceil round"
PASSING_FUNCTIONS: set[Any] = {F.dropout, F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, operator.neg}
PASSING_FUNCTIONS |= {getattr(torch, name) for name in _ALIKE.split()} | set(_ALIKE.split()) | {"clamp_", "abs_", "neg_"}
PASSING_FUNCTIONS |= {torch.clone, torch.detach, "clone", "detach", "contiguous", "float", "double", "half", "bfloat16", "to"}
PASSING_FUNCTIONS |= {"type_as", "type", "requires_grad_"}
"""Functions that treat every unit by itself, or do nothing to the numbers, and are no activation that has a gain."""

POOLING_MODULES: dict[type[nn.Module], int] = {
    getattr(nn, f"{kind}Pool{dims}d"): dims for kind in ("Max", "Avg", "AdaptiveAvg", "AdaptiveMax", "LP") for dims in (1, 2, 3)
}
PADDING_MODULES: dict[type[nn.Module], int] = {
    getattr(nn, f"{kind}Pad{dims}d"): dims for kind in ("Zero", "Constant", "Reflection", "Replication") for dims in (1, 2, 3)
}
UPSAMPLING_MODULES: Modules = (nn.Upsample, nn.UpsamplingBilinear2d, nn.UpsamplingNearest2d)
POOLING_FUNCTIONS: dict[Any, int] = {
    getattr(owner, f"{kind}_pool{dims}d"): dims
    for kind in ("max", "avg", "adaptive_avg", "adaptive_max")
    for dims in (1, 2, 3)
    for owner in (F, torch)
    if hasattr(owner, f"{kind}_pool{dims}d")
}
"""What works on the last dimensions, and on how many of them."""

SUMS: set[Any] = {torch.add, torch.sub, "add", "add_", "sub", "sub_", operator.add, operator.sub, operator.iadd, operator.isub}
SUMS |= {torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.where, torch.lerp, "maximum", "minimum", "lerp", "where"}
PRODUCTS: set[Any] = {torch.mul, torch.div, "mul", "mul_", "div", "div_", operator.mul, operator.truediv, operator.imul}
PRODUCTS |= {torch.pow, operator.pow, "pow", "masked_fill", "masked_fill_", torch.multiply, torch.divide, operator.itruediv}
COMPARISONS: set[Any] = {operator.gt, operator.lt, operator.ge, operator.le, torch.gt, torch.lt, torch.ge, torch.le}
CONCATENATIONS: set[Any] = {torch.cat, torch.concat, torch.concatenate}
SPLITS: set[Any] = {torch.chunk, torch.split, torch.tensor_split, "chunk", "split", "tensor_split"}
REDUCTIONS: set[Any] = {torch.mean, torch.sum, torch.amax, torch.amin, "mean", "sum", "amax", "amin"}
SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device", "is_cuda"}
SHAPE_METHODS = {"size", "dim", "numel"}


PASSING_NAMES = {"stochastic_depth"}
"""Functions of torchvision that leave units apart."""


def name_of(function: Any) -> str:
    """What a function or method is called in messages."""
    return function if isinstance(function, str) else getattr(function, "__name__", str(function))


def features_of(norm: nn.Module) -> int:
    """Number of features that a norm has an entry for."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_channels
    return math.prod(norm.normalized_shape) if isinstance(norm, SHAPE_NORMS) else int(norm.num_features)  # type: ignore[arg-type]
