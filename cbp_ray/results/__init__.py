"""Results of sweeps: Parquet in and out, aggregates, TensorBoard."""

from cbp_ray.results.aggregates import Interval as Interval
from cbp_ray.results.aggregates import mean_interval as mean_interval
from cbp_ray.results.keys import RESULT_VERSION as RESULT_VERSION
from cbp_ray.results.keys import BlockName as BlockName
from cbp_ray.results.keys import config_key as config_key
from cbp_ray.results.storage import Folder as Folder
from cbp_ray.results.store import Block as Block
from cbp_ray.results.store import MissingResults as MissingResults
from cbp_ray.results.store import Store as Store
from cbp_ray.results.store import read_curves as read_curves
