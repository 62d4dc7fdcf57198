"""One online experiment: config in, curves out."""

from cbp_ray.experiments.checkpoint import load_checkpoint as load_checkpoint
from cbp_ray.experiments.checkpoint import save_checkpoint as save_checkpoint
from cbp_ray.experiments.config import OnlineConfig as OnlineConfig
from cbp_ray.experiments.curves import Curves as Curves
from cbp_ray.experiments.online import Bin as Bin
from cbp_ray.experiments.online import iterate_online as iterate_online
from cbp_ray.experiments.online import run_online as run_online
