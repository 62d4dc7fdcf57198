"""The figures about Bit-Flipping."""

from cbp_ray.figures.bit_flipping.figures import FIGURES as FIGURES
from cbp_ray.figures.bit_flipping.figures import PLAIN_NORM as PLAIN_NORM
