"""Results of sweeps: Parquet in and out, confidence intervals, TensorBoard."""

from cbp_ray.extras import need

need("service", "pyarrow")

from cbp_ray.results.keys import BlockName as BlockName  # noqa: E402
from cbp_ray.results.keys import config_key as config_key  # noqa: E402
from cbp_ray.results.store import Block as Block  # noqa: E402
from cbp_ray.results.store import MissingResults as MissingResults  # noqa: E402
from cbp_ray.results.store import Store as Store  # noqa: E402
from cbp_ray.results.tables import Results as Results  # noqa: E402
from cbp_ray.results.tables import load as load  # noqa: E402
