"""What a search is known by: its trials are logged under the hash of its settings."""

import hashlib
import json

from cbp_ray.results.keys import config_key
from cbp_ray.results.search_log import SearchLog as SearchLog
from cbp_ray.results.search_log import Stop as Stop
from cbp_ray.sweeps.sweep import Sweep


def search_key(sweep: Sweep) -> str:
    """Hash of everything that decides which trials are drawn and which are stopped, but for their number."""
    assert sweep.tune is not None
    content = {
        "tune": sweep.tune.model_dump(mode="json", exclude={"samples"}),
        "configurations": [config_key(c.config, sweep.engine) for c in sweep.configurations],
        "seeds": sweep.seeds,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
