"""Continual Backprop: the algorithm, experiments on loss of plasticity, and their distribution with Ray."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbp_ray.algorithm import Adam as Adam
    from cbp_ray.algorithm import AdamW as AdamW
    from cbp_ray.algorithm import GenerateAndTest as GenerateAndTest
    from cbp_ray.algorithm import HiddenLayer as HiddenLayer
    from cbp_ray.algorithm import OnlineNorm as OnlineNorm
    from cbp_ray.algorithm import initialize as initialize
    from cbp_ray.experiments import run_online as run_online
    from cbp_ray.initial_weights import Distribution as Distribution

_HOMES = {
    "cbp_ray.algorithm": ("Adam", "AdamW", "GenerateAndTest", "HiddenLayer", "OnlineNorm", "initialize"),
    "cbp_ray.experiments": ("run_online",),
    "cbp_ray.initial_weights": ("Distribution",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Imports on first use: `cbp-ray --help` must not wait for torch, nor a kernel worker for what it does not need."""
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(home), name)
    raise AttributeError(f"module 'cbp_ray' has no attribute {name!r}")
