"""Names that importing `rllib_ext` makes known in a process.

These are `SlipperyAnt-v0` for Gymnasium and for Ray Tune.
"""

from typing import Any

import gymnasium
from ray.tune.registry import register_env

from rllib_ext.ant.environment import MAX_EPISODE_STEPS, SlipperyAnt

ENVIRONMENT = "SlipperyAnt-v0"


def make(config: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment for RLlib, from its `env_config`: with the limit on steps, without checks of every call."""
    return gymnasium.make(ENVIRONMENT, disable_env_checker=True, **config)


def register() -> None:
    """Makes the names known to this process; calling it again does no harm."""
    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(
            ENVIRONMENT,
            entry_point=f"{SlipperyAnt.__module__}:{SlipperyAnt.__name__}",
            max_episode_steps=MAX_EPISODE_STEPS,
            reward_threshold=2500.0,
        )
        register_env(ENVIRONMENT, make)
