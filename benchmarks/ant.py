"""Time-steps per second of Slippery Ant, of PyBullet's Ant, and of the physics that both have in common, on one core, in turns.

Random actions, episodes as they come, resets included. What the learner costs is `cbp-ray bench learner`.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pybullet_envs_gymnasium  # noqa: F401  (registers AntBulletEnv-v0)

import rllib_ext  # noqa: F401  (registers SlipperyAnt-v0)
from rllib_ext.ant.environment import SlipperyAnt

ROUNDS = 12
STEPS = 400
GOAL = 2.0
"""Slippery Ant must be so many times as fast as PyBullet's."""


def run() -> dict[str, Any]:
    """Measures all three in alternating rounds; a rate is the median over rounds, the ratio the median of their ratios."""
    ours, standard = gymnasium.make("SlipperyAnt-v0"), gymnasium.make("AntBulletEnv-v0")
    physics = SlipperyAnt()
    cases: dict[str, Callable[[int], float]] = {
        "ours": lambda number: _episodes(ours, number),
        "standard": lambda number: _episodes(standard, number),
        "physics": lambda number: _physics(physics, number),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(ROUNDS + 1):
        for name, measure in cases.items():
            rate = measure(number)
            if number > 0:  # the first round loads the robot
                rates[name].append(rate)
    for env in (ours, standard, physics):
        env.close()
    # Bullet's C++ writes to stdout too, but later than Python; after this, our line is the last one.
    ctypes.CDLL(None).fflush(None)
    ratios = [ours / standard for ours, standard in zip(rates["ours"], rates["standard"], strict=True)]
    return {
        "steps_per_second": statistics.median(rates["ours"]),
        "standard_steps_per_second": statistics.median(rates["standard"]),
        "physics_steps_per_second": statistics.median(rates["physics"]),
        "ratio": statistics.median(ratios),
        "goal": GOAL,
        "steps": ROUNDS * STEPS,
    }


def render(result: dict[str, Any]) -> str:
    """The result as lines for people to read."""
    return "\n".join(
        [
            f"SlipperyAnt-v0    {result['steps_per_second']:>7,.0f} steps/s",
            f"AntBulletEnv-v0   {result['standard_steps_per_second']:>7,.0f} steps/s",
            f"physics alone     {result['physics_steps_per_second']:>7,.0f} steps/s",
            f"Slippery Ant is {result['ratio']:.2f} times as fast as PyBullet's Ant (goal: {result['goal']:.1f})",
        ]
    )


def _episodes(env: gymnasium.Env[Any, Any], seed: int) -> float:
    actions = np.random.default_rng(seed).uniform(-1, 1, (STEPS, 8)).astype(np.float32)
    env.reset(seed=seed)
    begun = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return STEPS / (time.process_time() - begun)


def _physics(env: SlipperyAnt, seed: int) -> float:
    """The same torques in the same world, and nobody looks."""
    env.reset(seed=seed)
    world = env._running("advance")
    torques = (np.random.default_rng(seed).uniform(-1, 1, (STEPS, 8)) * 250.0).tolist()
    begun = time.process_time()
    for forces in torques:
        world.advance(forces)
    return STEPS / (time.process_time() - begun)
