"""Sweeps: many configurations times many seeds, distributed with Ray Tune. Nothing finished is ever run again."""

from cbp_ray.sweeps.definition import Configuration as Configuration
from cbp_ray.sweeps.definition import Sweep as Sweep
from cbp_ray.sweeps.definition import load_sweep as load_sweep
from cbp_ray.sweeps.run import Outcome as Outcome
from cbp_ray.sweeps.run import run_sweep as run_sweep
