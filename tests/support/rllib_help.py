"""Made-up data and small learners for the tests of rllib_ext; no cluster is needed."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from rllib_ext import ContinualPPOConfig

MODULE = "default_policy"
OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES = {MODULE: (OBSERVATIONS, ACTIONS)}
UPDATE = {"num_epochs": 2, "minibatch_size": 16, "shuffle_batch_per_epoch": True}


def config(*, sizes: tuple[int, ...] = (16, 16), seed: int = 3, **gnt: Any) -> ContinualPPOConfig:
    made = ContinualPPOConfig().rl_module(model_config={"fcnet_hiddens": list(sizes)}).debugging(seed=seed)
    return made.continual_backprop(**gnt) if gnt else made


def episode(random: np.random.Generator, steps: int, *, terminated: bool = False) -> SingleAgentEpisode:
    def rows(*shape: int) -> list[Any]:
        return list(random.normal(size=shape).astype(np.float32))

    return SingleAgentEpisode(
        observations=rows(steps + 1, 4),
        actions=rows(steps, 2),
        rewards=rows(steps),
        terminated=terminated,
        truncated=not terminated,
        len_lookback_buffer=0,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        extra_model_outputs={
            Columns.ACTION_DIST_INPUTS: list(np.zeros((steps, 4), np.float32)),
            Columns.ACTION_LOGP: list(np.full(steps, -2.5, np.float32)),
        },
    )


def episodes(seed: int) -> list[SingleAgentEpisode]:
    """64 steps in three episodes."""
    random = np.random.default_rng(seed)
    return [episode(random, 30), episode(random, 24, terminated=True), episode(random, 10)]


def mini_batch(seed: int, rows: int = 16, dtype: torch.dtype = torch.float32) -> dict[str, dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=dtype)

    columns = {
        Columns.OBS: normal(rows, 4),
        Columns.ACTIONS: normal(rows, 2),
        Columns.ACTION_LOGP: normal(rows) - 2.5,
        Columns.ACTION_DIST_INPUTS: torch.zeros(rows, 4, dtype=dtype),
        Postprocessing.ADVANTAGES: normal(rows),
        Postprocessing.VALUE_TARGETS: 5 * normal(rows),
    }
    return {MODULE: columns}


def parameters(learner: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.module[MODULE].unwrapped().state_dict().items()}


def assert_same(a: Any, b: Any) -> None:
    """Equal to the last bit, whatever the structure."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, Tensor | np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    else:
        assert a == b
