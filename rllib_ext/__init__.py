"""Continual Backprop for RLlib: the Slippery Ant environment and learners with generate-and-test."""

from rllib_ext.ant.algorithm_mixin import slippery
from rllib_ext.config import ContinualPPOConfig
from rllib_ext.registration import register

__all__ = ["ContinualPPOConfig", "slippery"]

register()
