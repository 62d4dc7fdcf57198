"""Slippery Ant without its physics, and a runner that keeps a record: for tests of what happens between them and RLlib."""

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import register_env

from rllib_ext.ant.algorithm_mixin import GlobalStepAlgorithm
from rllib_ext.ant.env_runner import SlipperyEnvRunner
from rllib_ext.ant.environment import SlipperyAnt

NAME = "CheapAnt"


class CheapAnt(SlipperyAnt):
    """Ends an episode at every 20th step or so. Each step's reward is 1."""

    log: list[float]
    """Friction of every step of every environment of this process, in their order."""
    actions: list[list[float]]
    """And the action."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        return self.np_random.normal(size=28).astype(np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        CheapAnt.log.append(self.friction)
        CheapAnt.actions.append(action.tolist())
        if self.dies is not None and len(CheapAnt.log) == 50 and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if len(CheapAnt.log) == CheapAnt.fails_at:
            raise RuntimeError("out of order")
        return self.np_random.normal(size=28).astype(np.float32), 1.0, self.np_random.random() < 0.05, False, {}

    fails_at = 0
    """Number of the step that raises; 0 for none."""
    dies: Path | None = None
    """A file: the process ends at its 50th step, if it is not there yet."""


CheapAnt.log, CheapAnt.actions = [], []


def make(config: EnvContext) -> CheapAnt:
    ant = CheapAnt(config["friction"])
    if config.worker_index == config.get("dying_runner"):
        ant.dies = Path(config["dies"])
    return ant


class RecordingRunner(SlipperyEnvRunner):
    """Notes which friction each environment really had at which global step."""

    def __init__(self, **kwargs: Any) -> None:
        self.record: list[tuple[int, float]] = []
        super().__init__(**kwargs)

    def after_step(self, stepping: list[int]) -> None:
        super().after_step(stepping)
        frictions = self.env.unwrapped.get_attr("friction")  # type: ignore[attr-defined]
        self.record += [(self.last_number(index), frictions[index]) for index in stepping]


class CheapPPO(GlobalStepAlgorithm, PPO):
    """PPO whose runners know the global step."""


def cheap_config(runners: int, environments: int, *, period: int = 100, batch: int = 240, seed: int | None = 5) -> PPOConfig:
    """A tiny PPO on it."""
    register_env(NAME, make)
    return (
        PPOConfig(algo_class=CheapPPO)
        .environment(NAME, env_config={"friction": {"period": period}})
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=environments,
            env_runner_cls=RecordingRunner,
            rollout_fragment_length="auto",
            num_cpus_per_env_runner=0,
        )
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .training(train_batch_size_per_learner=batch, minibatch_size=batch, num_epochs=1)
        .debugging(seed=seed, log_level="ERROR")
    )
