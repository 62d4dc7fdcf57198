"""The figures about Slippery Ant."""

from cbp_ray.figures.slippery_ant.figures import FIGURES as FIGURES
