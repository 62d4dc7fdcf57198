"""Continual PPO on Slippery Ant against stock RLlib PPO on PyBullet's Ant: whole iterations, all in one run.

An iteration is 4096 time-steps and 10 epochs in mini-batches of 128, both with the paper's settings and networks. What is
compared takes turns. Measured are, after one iteration of each that nobody counts:

- both on all cores, with 0 or 2 env runners in processes of their own, of 1 or 4 environments each; the best of each side;
- both in one process with one thread and one environment, as sweeps run it;
- the environments alone, with random actions, on one core;
- the learner with and without generate-and-test, on one core.

The limit is what the same machine needs in the same run for what can't be left out: per iteration, 4096 calls of the physics
engine at the rate of one core times the number of cores, and then the matrix products of the 320 mini-batches, forward and
backward, of policy and value network side by side on two cores (one after the other if there is one). It counts no arithmetic
besides these products, no look at the physics' state, no policy, no RLlib.
"""

import contextlib
import ctypes
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pybullet_envs_gymnasium  # noqa: F401  (registers AntBulletEnv-v0)
import torch
from cbp_ray_benchmarks import learner as learner_benchmark
from cbp_ray_benchmarks.cores import one_core
from ray.rllib.algorithms.ppo import PPOConfig, ppo
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env
from threadpoolctl import threadpool_limits

import rllib_ext  # noqa: F401  (registers SlipperyAnt-v0)
from cbp_ray.sweeps import cluster
from rllib_ext.ant.environment import SlipperyAnt
from rllib_ext.ant.friction import PAPER
from rllib_ext.config import ContinualPPOConfig, ppo_settings

STOCK_ENVIRONMENT = "AntBulletEnv-v0"
LAYOUTS = ((0, 1), (0, 4), (2, 1), (2, 4))
"""Env runners in processes of their own, and environments of each."""
ROUNDS = 2
OURS_PER_ROUND = 3
"""Iterations of ours for each of stock's, which take several times as long."""
ENV_ROUNDS, ENV_STEPS = 8, 400
LEARNER_ROUNDS = 4
STEPS, UPDATES = PAPER.iteration_size, PAPER.epochs * PAPER.iteration_size // PAPER.minibatch_size
GOALS = {"end_to_end_speedup": 4.0, "in_process_speedup": 3.0, "of_limit": 0.5}
GNT_LIMIT = 0.06


class Iteration(NamedTuple):
    """Seconds of one iteration."""

    whole: float
    sampling: float
    learning: float


def run() -> dict[str, Any]:
    """Measures everything; a rate is that of the median iteration."""
    began = time.monotonic()
    rates = _environments()
    gnt_share = _gnt_share()
    products = _product_seconds()
    with cluster.connected(None):
        measured = _iterations()
    # Bullet's C++ writes to stdout too, but later than Python; after this, our line is the last one.
    ctypes.CDLL(None).fflush(None)
    cases = {name: Iteration(*map(statistics.median, zip(*found, strict=True))) for name, found in measured.items()}
    speeds = {name: STEPS / case.whole for name, case in cases.items()}
    layouts = [name for name in cases if name.startswith("ours ") and "thread" not in name]
    best = max(layouts, key=speeds.__getitem__)
    stock = max((name for name in cases if name.startswith("stock ") and "thread" not in name), key=speeds.__getitem__)
    cores = len(os.sched_getaffinity(0))
    limit = STEPS / (STEPS / (rates["physics"] * cores) + products[0 if cores == 1 else 1])
    one_core_limit = STEPS / (STEPS / rates["physics"] + products[0])
    return {
        "stock_best_steps_per_s": speeds[stock],
        "steps_per_s": speeds[best],
        "end_to_end_speedup": speeds[best] / speeds[stock],
        "in_process_speedup": speeds["ours, one thread"] / speeds["stock, one thread"],
        "env_speedup": rates["ours"] / rates["standard"],
        "sampling_s": cases[best].sampling,
        "learning_s": cases[best].learning,
        "gnt_share": gnt_share,
        "limit_steps_per_s": limit,
        "of_limit": speeds[best] / limit,
        "in_process_of_limit": speeds["ours, one thread"] / one_core_limit,
        "in_process_limit_steps_per_s": one_core_limit,
        "best": best,
        "stock_best": stock,
        "cores": cores,
        "environment_steps_per_s": rates,
        "product_s": {"one core": products[0], "two cores": products[1]},
        "iterations": {name: {**case._asdict(), "steps_per_s": speeds[name]} for name, case in cases.items()},
        "profile": _profile(cases["ours, one thread"], rates, products[0]),
        "goals": GOALS,
        "gnt_limit": GNT_LIMIT,
        "seconds": time.monotonic() - began,
    }


def render(result: dict[str, Any]) -> str:
    """The result as tables for people to read."""
    lines = [
        f"{'iterations of ' + str(STEPS) + ' steps, ' + str(result['cores']) + ' cores':<42} steps/s  sampling s  learning s"
    ]
    for name, case in result["iterations"].items():
        lines.append(f"{name:<42} {case['steps_per_s']:>7,.0f} {case['sampling']:>11.2f} {case['learning']:>11.2f}")
    rates, products = result["environment_steps_per_s"], result["product_s"]
    for name, speed, sampling, learning in (
        ("limit on all cores", "limit_steps_per_s", STEPS / rates["physics"] / result["cores"], products["two cores"]),
        ("limit on one core", "in_process_limit_steps_per_s", STEPS / rates["physics"], products["one core"]),
    ):
        lines.append(f"{name:<42} {result[speed]:>7,.0f} {sampling:>11.2f} {learning:>11.2f}")
    whole = sum(result["profile"].values())
    lines += ["", f"{'an iteration of ours, one thread':<42}       s   part"]
    lines += [f"{name:<42} {seconds:>7.3f} {seconds / whole:>6.0%}" for name, seconds in result["profile"].items()]
    goals = result["goals"]
    return "\n".join(
        [
            *lines,
            "",
            f"best of ours over best of stock     {result['end_to_end_speedup']:.2f} (goal {goals['end_to_end_speedup']:.0f})",
            f"one process, one thread             {result['in_process_speedup']:.2f} (goal {goals['in_process_speedup']:.0f})",
            f"part of the limit, all cores        {result['of_limit']:.2f} (goal {goals['of_limit']})",
            f"part of the limit, one core         {result['in_process_of_limit']:.2f}",
            f"generate-and-test of the learner    {result['gnt_share']:.1%} (limit {result['gnt_limit']:.0%})",
            f"SlipperyAnt-v0 over AntBulletEnv-v0 {result['env_speedup']:.2f} ({rates['ours']:,.0f} over "
            f"{rates['standard']:,.0f} steps/s; the physics alone {rates['physics']:,.0f})",
        ]
    )


def _profile(case: Iteration, rates: dict[str, float], products: float) -> dict[str, float]:
    """Where the seconds of an iteration in one process go; the first and the fourth are the limit."""
    physics, environment = STEPS / rates["physics"], STEPS / rates["ours"]
    return {
        "physics": physics,
        "environment besides physics": environment - physics,
        "policy, loop and episodes": case.sampling - environment,
        "matrix products": products,
        "learning besides products": case.learning - products,
        "RLlib besides both": case.whole - case.sampling - case.learning,
    }


def _tell(line: str) -> None:
    print(f"bench ant: {line}", file=sys.stderr, flush=True)


def _iterations() -> dict[str, list[Iteration]]:
    """Iterations of every case, in turns."""
    # With the module that registers it, which workers have not imported.
    made_by = f"pybullet_envs_gymnasium:{STOCK_ENVIRONMENT}"
    register_env(STOCK_ENVIRONMENT, lambda _: gymnasium.make(made_by, disable_env_checker=True))
    algorithms: dict[str, Any] = {}
    for side, config in (("stock", _stock), ("ours", _ours)):
        for runners, environments in LAYOUTS:
            algorithms[f"{side} {runners} × {environments}"] = _build(config(), runners, environments)
        with one_core():
            algorithms[f"{side}, one thread"] = _build(config(), 0, 1)
    found: dict[str, list[Iteration]] = {name: [] for name in algorithms}
    logging.getLogger("ray").setLevel(logging.ERROR)
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for number in range(ROUNDS + 1):
        for name, algorithm in algorithms.items():
            with one_core() if "thread" in name else contextlib.nullcontext():
                for _ in range(OURS_PER_ROUND if name.startswith("ours") and number else 1):
                    iteration = _iteration(algorithm)
                    _tell(f"round {number} of {ROUNDS}, {name}: {STEPS / iteration.whole:,.0f} steps/s")
                    found[name] += [iteration] if number else []
    torch.set_num_threads(threads)
    for algorithm in algorithms.values():
        algorithm.stop()
    return found


def _build(config: Any, runners: int, environments: int) -> Any:
    _tell(f"builds {type(config).__name__} with {runners} env runners of {environments} environments")
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=environments, num_cpus_per_env_runner=0)
    return config.debugging(seed=0, log_level="ERROR").build_algo()


def _stock() -> PPOConfig:
    config = PPOConfig().environment(STOCK_ENVIRONMENT).training(lr=1e-4, **ppo_settings(PAPER))
    config.training(use_kl_loss=False, entropy_coeff=0.0, vf_clip_param=float("inf"), vf_loss_coeff=1.0, grad_clip=None)
    return config.rl_module(model_config=DefaultModelConfig(free_log_std=True, vf_share_layers=False))


def _ours() -> ContinualPPOConfig:
    config: ContinualPPOConfig = ContinualPPOConfig().environment("SlipperyAnt-v0")
    return config.continual_backprop(replacement_rate=1e-4, maturity_threshold=500)


def _iteration(algorithm: Any) -> Iteration:
    """One training iteration, and what sampling and learning took of it."""
    spent = {"sampling": 0.0, "learning": 0.0}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - begun

        return call

    group, sample = algorithm.learner_group, ppo.synchronous_parallel_sample
    ppo.synchronous_parallel_sample = timed("sampling", sample)
    group.update = timed("learning", type(group).update.__get__(group))
    begun = time.perf_counter()
    try:
        algorithm.train()
    finally:
        ppo.synchronous_parallel_sample = sample
        del group.update
    return Iteration(time.perf_counter() - begun, spent["sampling"], spent["learning"])


def _environments() -> dict[str, float]:
    """Steps per second of CPU time: our environment, the standard one, the physics that both have in common."""
    ours, standard, physics = gymnasium.make("SlipperyAnt-v0"), gymnasium.make(STOCK_ENVIRONMENT), SlipperyAnt()
    cases: dict[str, Callable[[int], float]] = {
        "ours": lambda number: _episodes(ours, number),
        "standard": lambda number: _episodes(standard, number),
        "physics": lambda number: _physics(physics, number),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(ENV_ROUNDS + 1):
        for name, measure in cases.items():
            rate = measure(number)
            rates[name] += [rate] if number else []  # the first round loads the robot
        _tell(f"environments, round {number} of {ENV_ROUNDS}")
    for env in (ours, standard, physics):
        env.close()
    return {name: statistics.median(found) for name, found in rates.items()}


def _episodes(env: gymnasium.Env[Any, Any], seed: int) -> float:
    actions = np.random.default_rng(seed).uniform(-1, 1, (ENV_STEPS, 8)).astype(np.float32)
    env.reset(seed=seed)
    begun = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return ENV_STEPS / (time.process_time() - begun)


def _physics(env: SlipperyAnt, seed: int) -> float:
    """The same torques in the same world, and nobody looks."""
    env.reset(seed=seed)
    world = env._running("simulate")
    actions = np.random.default_rng(seed).uniform(-1, 1, (ENV_STEPS, 8)).astype(np.float32)
    begun = time.process_time()
    for action in actions:
        world.simulate(action)
    return ENV_STEPS / (time.process_time() - begun)


def _gnt_share() -> float:
    """The part of the learner's time that generate-and-test takes, on made-up episodes."""
    seconds: dict[str, list[float]] = {}
    with one_core():
        learners = learner_benchmark.made_learners(("plain", "gnt"))
        for number in range(LEARNER_ROUNDS):
            _tell(f"learners with and without generate-and-test, part {number + 1} of {LEARNER_ROUNDS}")
            for name, found in learner_benchmark.in_turns(learners, 2).items():
                seconds.setdefault(name, []).extend(found)
    return learner_benchmark.share_of_gnt(seconds)


def _product_seconds() -> tuple[float, float]:
    """Seconds of an iteration's matrix products on one core and, policy beside value network, on two."""
    _tell("matrix products")
    policy, value = ([28, *PAPER_LAYERS, outputs] for outputs in (8, 1))
    with threadpool_limits(limits=1, user_api="blas"):
        one = min(_products(policy) + _products(value) for _ in range(3))
        with ThreadPoolExecutor(2) as pool:
            two = min(max(pool.map(_products, (policy, value))) for _ in range(3))
    return one, two if len(os.sched_getaffinity(0)) > 1 else one


PAPER_LAYERS = (256, 256)


def _products(sizes: list[int]) -> float:
    """Wall seconds of the products of one network's updates, forward and backward, into memory that is there already."""
    random, rows = np.random.default_rng(0), PAPER.minibatch_size
    outputs = [random.normal(size=(rows, size)).astype(np.float32) for size in sizes]
    weights = [random.normal(size=shape).astype(np.float32) for shape in zip(sizes[1:], sizes[:-1], strict=True)]
    results = [(np.empty_like(above), np.empty_like(below), np.empty_like(w)) for below, above, w in _layers(outputs, weights)]
    begun = time.perf_counter()
    for _ in range(UPDATES):
        for number, (below, above, weight) in enumerate(_layers(outputs, weights)):
            forward, to_input, to_weight = results[number]
            np.dot(below, weight.T, out=forward)
            np.dot(above.T, below, out=to_weight)
            if number:  # nobody needs the gradient of the observations
                np.dot(above, weight, out=to_input)
    return time.perf_counter() - begun


def _layers(outputs: list[Any], weights: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    yield from zip(outputs[:-1], outputs[1:], weights, strict=True)
