"""The paper's figures: what each shows, the sweeps behind it, and its claims as code."""

from cbp_ray.extras import need

need("service", "matplotlib", "scipy")
