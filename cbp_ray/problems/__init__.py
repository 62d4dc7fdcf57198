"""Streams of examples: each a function of its seed and position alone."""

from cbp_ray.problems.bit_flipping import BitFlipping as BitFlipping
from cbp_ray.problems.permuted_mnist import PermutedMnist as PermutedMnist
