"""Sweeps: many configurations times many seeds, distributed with Ray Tune. Nothing finished is ever run again."""

from cbp_ray.extras import need

need("service", "ray", "yaml", "pyarrow")

from cbp_ray.sweeps.progress import Totals as Totals  # noqa: E402
from cbp_ray.sweeps.run import run_sweep as run_sweep  # noqa: E402
from cbp_ray.sweeps.sweep import Configuration as Configuration  # noqa: E402
from cbp_ray.sweeps.sweep import Sweep as Sweep  # noqa: E402
from cbp_ray.sweeps.sweep import load_sweep as load_sweep  # noqa: E402
