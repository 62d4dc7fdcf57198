"""Methods that act on single weights instead of units, for any torch network: rivals of generate-and-test."""

from cbp_ray.algorithm.weights.clipping import WeightClipping
from cbp_ray.algorithm.weights.l2_init import L2Init
from cbp_ray.algorithm.weights.reinitialization import WeightReinitialization
from cbp_ray.algorithm.weights.shrink_and_perturb import ShrinkAndPerturb
from cbp_ray.algorithm.weights.upgd import UPGD
from cbp_ray.algorithm.weights.wasserstein import Wasserstein

__all__ = ["UPGD", "L2Init", "ShrinkAndPerturb", "Wasserstein", "WeightClipping", "WeightReinitialization"]
