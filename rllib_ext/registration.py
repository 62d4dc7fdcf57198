"""Names that importing `rllib_ext` makes known in a process.

`SlipperyAnt-v0` for Gymnasium and for Ray Tune, and the engine `rllib` for our own experiments and sweeps.
"""

from typing import Any

import gymnasium
from ray.tune.registry import register_env

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engine import Engine
from cbp_ray.experiments.online import ENGINES
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
    ENGINES["rllib"] = _engine


def _engine(config: OnlineConfig, seeds: tuple[int, ...]) -> Engine:
    from rllib_ext.engine import RllibEngine

    return RllibEngine(config, seeds)
