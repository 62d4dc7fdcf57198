"""Continual Backprop for RLlib: the Slippery Ant environment and learners with generate-and-test."""

from rllib_ext.config import ContinualPPOConfig

__all__ = ["ContinualPPOConfig"]
