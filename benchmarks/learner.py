"""What the learner of Continual PPO costs, and generate-and-test's share of it: an iteration of the paper's size, in turns.

One iteration is 4096 steps of a made-up environment of the Ant's size (28 observations, 8 actions) in 4 episodes, trained on
for 10 epochs in mini-batches of 128: advantages, 320 updates of both networks, reports. Three learners take turns: RLlib's own
PPO, ours without generate-and-test, ours with it and with replacements happening.
"""

import statistics
import time
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from cbp_ray_benchmarks.cores import one_core
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_ext.config import ContinualPPOConfig

ROUNDS = 7
STEPS, EPOCHS, MINIBATCH = 4096, 10, 128
OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (28,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
LIMIT = 0.06
"""Largest share of generate-and-test in the learner's time."""


def run() -> dict[str, Any]:
    """Measures the three learners in turns on one core, and then ours with all cores, in seconds of the clock."""
    with one_core():
        learners = made_learners()
        seconds = in_turns(learners, ROUNDS)
        replaced = sum(learners["gnt"]._gnts["default_policy"].replaced.values())
    all_cores = in_turns(made_learners(("plain", "gnt")), ROUNDS)
    return {
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "all_cores_seconds": {name: statistics.median(times) for name, times in all_cores.items()},
        "gnt_share": share_of_gnt(seconds),
        "limit": LIMIT,
        "replaced": replaced,
        "updates": STEPS * EPOCHS // MINIBATCH,
    }


def made_learners(names: Iterable[str] = ("rllib", "plain", "gnt")) -> dict[str, Any]:
    """New learners by name: RLlib's own PPO, ours without generate-and-test, ours with it."""
    spaces = {"default_policy": (OBSERVATIONS, ACTIONS)}
    return {name: config.build_learner(spaces=spaces) for name, config in _configs() if name in names}


def in_turns(learners: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of the clock for an iteration of each learner, in alternating rounds, after one round that nobody counts."""
    seconds: dict[str, list[float]] = {name: [] for name in learners}
    random = np.random.default_rng(0)
    for _ in range(rounds + 1):
        for name, learner in learners.items():
            episodes = [_episode(random, STEPS // 4) for _ in range(4)]
            start = time.perf_counter()
            learner.update(episodes=episodes, num_epochs=EPOCHS, minibatch_size=MINIBATCH, shuffle_batch_per_epoch=True)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[1:] for name, times in seconds.items()}


def share_of_gnt(seconds: dict[str, list[float]]) -> float:
    """Generate-and-test's part of the learner's time: the median over rounds."""
    rounds = zip(seconds["gnt"], seconds["plain"], strict=True)
    return statistics.median(1 - without / with_gnt for with_gnt, without in rounds)


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    names = {"rllib": "RLlib's PPO learner", "plain": "ours, without generate-and-test", "gnt": "ours, with it"}
    updates = f"seconds of one iteration of {result['updates']} updates"
    lines = [f"{updates:<52} {'1 core':>9} {'all cores':>9}"]
    for name, seconds in result["seconds"].items():
        others = result["all_cores_seconds"].get(name)
        lines.append(f"{names[name]:<52} {seconds:>9.3f} {'' if others is None else f'{others:.3f}':>9}")
    share, limit = result["gnt_share"], result["limit"]
    lines.append(f"generate-and-test is {share:.1%} of the learner's time (limit {limit:.0%}), {result['replaced']} replaced")
    return "\n".join(lines)


def _configs() -> list[tuple[str, Any]]:
    stock = PPOConfig().training(lr=1e-4, use_kl_loss=False, vf_clip_param=float("inf"), clip_param=0.2, lambda_=0.95)
    stock.rl_module(model_config=DefaultModelConfig(free_log_std=True, vf_share_layers=False))
    with_gnt = ContinualPPOConfig().continual_backprop(replacement_rate=1e-4, maturity_threshold=500)
    configs = [("rllib", stock), ("plain", ContinualPPOConfig()), ("gnt", with_gnt)]
    return [(name, config.debugging(seed=0)) for name, config in configs]


def _episode(random: np.random.Generator, steps: int) -> SingleAgentEpisode:
    def rows(*shape: int) -> list[Any]:
        return list(random.normal(size=shape).astype(np.float32))

    return SingleAgentEpisode(
        observations=rows(steps + 1, 28),
        actions=rows(steps, 8),
        rewards=rows(steps),
        truncated=True,
        len_lookback_buffer=0,
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
        extra_model_outputs={
            Columns.ACTION_DIST_INPUTS: list(np.zeros((steps, 16), np.float32)),
            Columns.ACTION_LOGP: list(np.full(steps, -11.0, np.float32)),
        },
    )
