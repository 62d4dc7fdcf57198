"""Sweeps: many configurations times many seeds, distributed with Ray Tune. Nothing finished is ever run again."""

from cbp_ray.sweeps.progress import Totals as Totals
from cbp_ray.sweeps.run import run_sweep as run_sweep
from cbp_ray.sweeps.sweep import Configuration as Configuration
from cbp_ray.sweeps.sweep import Sweep as Sweep
from cbp_ray.sweeps.sweep import load_sweep as load_sweep
