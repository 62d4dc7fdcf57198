"""Continual Backprop: the algorithm, experiments on loss of plasticity, and their distribution with Ray."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbp_ray.algorithm import Adam as Adam
    from cbp_ray.algorithm import Distribution as Distribution
    from cbp_ray.algorithm import GenerateAndTest as GenerateAndTest
    from cbp_ray.algorithm import HiddenLayer as HiddenLayer
    from cbp_ray.algorithm import OnlineNorm as OnlineNorm
    from cbp_ray.algorithm import initialize as initialize
    from cbp_ray.experiments import run_online as run_online
    from cbp_ray.experiments import run_stacked as run_stacked

_HOMES = {
    "Adam": "cbp_ray.algorithm",
    "Distribution": "cbp_ray.algorithm",
    "GenerateAndTest": "cbp_ray.compiled",
    "HiddenLayer": "cbp_ray.algorithm",
    "OnlineNorm": "cbp_ray.algorithm",
    "initialize": "cbp_ray.algorithm",
    "run_online": "cbp_ray.experiments",
    "run_stacked": "cbp_ray.experiments",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports on first use: `cbp-ray --help` must not wait for torch, nor a kernel worker for what it does not need."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cbp_ray' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
