"""Continual Backprop in torch: the method itself, for any network and optimizer."""

from cbp_ray.algorithm.adam import Adam, AdamW
from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.initialization import initialize
from cbp_ray.algorithm.network import HiddenLayer, find_hidden_layers
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.initial_weights import Distribution

__all__ = [
    "Adam",
    "AdamW",
    "Distribution",
    "GenerateAndTest",
    "HiddenLayer",
    "OnlineNorm",
    "StepReport",
    "find_hidden_layers",
    "initialize",
]
