"""Continual Backprop for RLlib: the Slippery Ant environment and learners with generate-and-test."""

from cbp_ray.extras import need

need("rllib", "ray", "gymnasium", "pybullet")

from rllib_ext.ant.algorithm_mixin import slippery  # noqa: E402
from rllib_ext.config import ContinualPPOConfig  # noqa: E402

__all__ = ["ContinualPPOConfig", "slippery"]
