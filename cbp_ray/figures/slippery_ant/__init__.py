"""The figures about Slippery Ant."""

from cbp_ray.figures.slippery_ant.figures import FIGURES as FIGURES
from cbp_ray.figures.slippery_ant.figures import LONG as LONG
