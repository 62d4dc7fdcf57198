"""Names that importing `rllib_ext` makes known, in every process of a cluster anew.

These are `SlipperyAnt-v0` for Gymnasium and for Ray Tune.
"""

from typing import Any

import gymnasium
from ray.tune.registry import register_env

from rllib_ext.slippery_ant import MAX_EPISODE_STEPS, SlipperyAnt

ENVIRONMENT = "SlipperyAnt-v0"


def make(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """For RLlib, which passes its `env_config`: the environment with its limit on steps, without checks of every call."""
    return gymnasium.make(ENVIRONMENT, disable_env_checker=True, **config)


def register() -> None:
    """Makes them known to this process; once is enough, more does no harm."""
    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(
            ENVIRONMENT,
            entry_point=f"{SlipperyAnt.__module__}:{SlipperyAnt.__name__}",
            max_episode_steps=MAX_EPISODE_STEPS,
            reward_threshold=2500.0,
        )
        register_env(ENVIRONMENT, make)
