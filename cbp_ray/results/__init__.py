"""Results of sweeps: Parquet in and out, confidence intervals, TensorBoard."""

from cbp_ray.results.keys import BlockName as BlockName
from cbp_ray.results.keys import config_key as config_key
from cbp_ray.results.store import Block as Block
from cbp_ray.results.store import MissingResults as MissingResults
from cbp_ray.results.store import Store as Store
