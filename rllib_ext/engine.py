"""Engine `rllib` of our experiments: PPO, PPO+L2 and Continual PPO on Slippery Ant, bin by bin (figures 9 and 17b)."""

import json
import logging
import os
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import LEARNER_RESULTS

from cbp_ray.errors import InputError
from cbp_ray.experiments.config import AdamConfig, OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, all_parts, check_complete
from cbp_ray.own_ray import start_ray
from cbp_ray.problems import SlipperyAntConfig
from rllib_ext.ant.environment import ENVIRONMENT
from rllib_ext.ant.episode_returns import ReturnBins, finished_episodes
from rllib_ext.ant.friction import FRICTION, schedule_of
from rllib_ext.config import ContinualPPO, ContinualPPOConfig, ppo_settings
from rllib_ext.learners.mixin import RESULTS
from rllib_ext.plain_state import flatten, random_state, set_random_state, unflatten
from rllib_ext.threads import learner_threads

SEEDS = 2**31
"""NumPy's old generator, which RLlib seeds, takes no larger ones."""

DIAGNOSTICS = {
    "weight_magnitude": "weight_magnitude",
    "saturated": "saturated_fraction",
    "dormant": "dormant_fraction",
    "stable_rank": "stable_rank",
}
"""Our names of what the learner measures of every hidden layer."""
NETWORKS = {"policy": "actor_encoder", "value": "critic_encoder"}
"""Our names of the two networks, and what the names of their hidden layers have in them."""
UNITS = {"age": "age_mean", "utility": "utility_mean"}
"""Likewise, of a learner with generate-and-test."""


def algorithm_config(config: OnlineConfig, seed: int) -> ContinualPPOConfig:
    """An experiment in RLlib's terms: learning in this process, sampling as the problem says."""
    problem, algorithm = config.problem, config.algorithm
    assert isinstance(problem, SlipperyAntConfig)
    if seed >= SEEDS:
        raise InputError(f"seeds: must be below 2**31 for slippery_ant, got {seed}; use smaller ones")
    friction = {name: getattr(problem, f"friction_{name}") for name in ("period", "low", "high", "initial")}
    activation = "silu" if config.network.activation == "swish" else config.network.activation
    networks: dict[str, Any] = {"fcnet_hiddens": list(config.network.hidden), "fcnet_activation": activation}
    if config.network.layer_norm:
        networks["fcnet_use_layernorm"] = True
    result: ContinualPPOConfig = (
        ContinualPPOConfig()
        .environment(ENVIRONMENT, env_config={FRICTION: friction})
        .env_runners(num_env_runners=problem.env_runners, num_envs_per_env_runner=problem.envs_per_runner)
        # A run without the samples of a runner that died would be another run: it fails, and goes on from its checkpoint.
        .fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=False)
        .learners(num_learners=0)
        .rl_module(model_config=networks)
        .training(lr=config.optimizer.step_size, **ppo_settings(problem), weight_decay=algorithm.decay)
        .debugging(seed=seed, log_level="ERROR")
    )
    assert isinstance(config.optimizer, AdamConfig)  # the engine would have refused
    if config.optimizer.betas != AdamConfig(step_size=1).betas:
        result.training(betas=config.optimizer.betas)
    if settings := algorithm.rllib():
        result.plasticity(algorithm.name, **settings)
    return result


class RllibEngine(Engine):
    """Runs of one config, one after the other within each bin.

    An iteration of PPO may reach beyond the end of a bin; the next bin then begins with what is left of it.
    """

    def __init__(self, config: OnlineConfig, seeds: tuple[int, ...]) -> None:
        self.steps = 0
        # Workers of a sweep share the machine.
        torch.set_num_threads(min(torch.get_num_threads(), learner_threads()))
        self.runs = [_Run(config, seed) for seed in seeds]
        weakref.finalize(self, _stop, self.runs)

    def advance(self, examples: int) -> Metrics:
        """See `Engine`."""
        return all_parts(self.advance_in_parts(examples))

    def advance_in_parts(self, examples: int) -> Generator[int, None, Metrics]:
        """See `Engine`. It pauses after every iteration."""
        begun, rows = self.steps, list[dict[str, float]]()
        self.steps += examples
        for number, run in enumerate(self.runs):
            row = None
            while row is None:
                with run.own_random_numbers():
                    row = run.advance(self.steps)
                # The iteration may have gone beyond the bin.
                seen = min(run.seen - begun, examples)
                yield (number * examples + seen) // len(self.runs)
            rows.append(row)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def units(self) -> Metrics:
        """See `Engine`."""
        each = [run.units for run in self.runs]
        return {name: np.array([units[name] for units in each]) for name in each[0]}

    def state(self) -> Arrays:
        """See `Engine`."""
        found: Arrays = {}
        for number, run in enumerate(self.runs):
            with run.own_random_numbers():
                found |= {f"{number}/{name}": array for name, array in run.state().items()}
        return found

    def load_state(self, state: Arrays, examples: int) -> None:
        """See `Engine`."""
        self.steps = examples
        for number, run in enumerate(self.runs):
            prefix = f"{number}/"
            own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
            with run.own_random_numbers():
                run.load_state(own)


def _mean(layers: dict[str, dict[str, Any]], name: str) -> float:
    """The mean over the layers of one of their numbers; not a number without layers."""
    return float(np.mean([layer.get(name, np.nan) for layer in layers.values()] or [np.nan]))


def _place(name: str) -> tuple[int, ...]:
    """Where a layer stands in its network, from its name: `…mlp.0`, `…mlp.2`, …, `…mlp.10`."""
    return tuple(int(part) for part in name.split(".") if part.isdigit())


def connect() -> None:
    """Starts a small Ray for this process, unless it is connected or `RAY_ADDRESS` says where to connect.

    RLlib would take whatever cluster happens to run on this machine, and that may end at any time.
    """
    if not ray.is_initialized() and "RAY_ADDRESS" not in os.environ:
        start_ray(log_to_driver=False, logging_level=logging.ERROR)


def _stop(runs: Iterable["_Run"]) -> None:
    for run in runs:
        if run.algorithm is not None:
            run.algorithm.stop()


class _Run:
    def __init__(self, config: OnlineConfig, seed: int) -> None:
        self.settings = algorithm_config(config, seed)
        self.schedule = schedule_of(self.settings)
        self.bins = ReturnBins(config.bin_size)
        self.algorithm: ContinualPPO | None = None
        measured = [name for name in config.metrics if name in DIAGNOSTICS or "_weight_magnitude_" in name]
        self.diagnostics = dict.fromkeys(measured, float("nan"))
        self.random: dict[str, Any] | None = None
        self.units: dict[str, float] = {}
        self.replaced, self.seen = 0.0, 0

    @contextmanager
    def own_random_numbers(self) -> Iterator[None]:
        """RLlib draws from generators of the whole process; the runs beside this one must not notice."""
        outside = random_state()
        if self.random is not None:
            set_random_state(self.random)
        try:
            yield
        finally:
            self.random = random_state()
            set_random_state(outside)

    def build(self) -> ContinualPPO:
        """The algorithm, made when it is first needed: it takes seconds."""
        if self.algorithm is None:
            connect()
            self.algorithm = self.settings.build_algo()
        return self.algorithm

    def advance(self, target: int) -> dict[str, float] | None:
        """Trains for an iteration, unless there are `target` time-steps already; the bin's metrics once there are."""
        algorithm = self.build()
        if algorithm.global_step < target:
            result = algorithm.train()
            self.bins.add(finished_episodes(result))
            learned: dict[str, Any] = result[LEARNER_RESULTS][DEFAULT_MODULE_ID].get(RESULTS, {})
            self.replaced += float(learned.get("replaced", 0.0))
            # RLlib has them in an order that differs from process to process, and so would the last bits of means.
            layers = {name: numbers for name, numbers in sorted(learned.items()) if isinstance(numbers, dict)}
            for ours, theirs in DIAGNOSTICS.items():
                self.diagnostics[ours] = _mean(layers, theirs)
            for ours, part in NETWORKS.items():
                names = sorted((name for name in layers if part in name), key=_place)
                for number, name in enumerate(names, 1):
                    self.diagnostics[f"{ours}_weight_magnitude_{number}"] = float(layers[name]["weight_magnitude"])
            if any("age_mean" in layer for layer in layers.values()):
                self.units = {ours: _mean(layers, theirs) for ours, theirs in UNITS.items()}
        self.seen = algorithm.global_step
        if self.seen < target:
            return None
        replaced, self.replaced = self.replaced, 0.0
        episode_return, episodes = self.bins.take(target)
        return {
            "episode_return": episode_return,
            "episodes": float(episodes),
            "friction": self.schedule.friction(target - 1),
            **self.diagnostics,
            "replacements": replaced,
        }

    def state(self) -> Arrays:
        algorithm = self.build()
        own = {"steps": algorithm.global_step, "bins": self.bins.state_dict(), "diagnostics": self.diagnostics}
        whole = {"learner": algorithm.learner_group.get_state(), **self._rollouts(algorithm)}
        return {"own": np.array(json.dumps(own)), **flatten(whole)}

    def _rollouts(self, algorithm: ContinualPPO) -> dict[str, Any]:
        """What the environments are in the middle of: in this process, whose random state is part of the learner's, or in
        others, by runner."""
        if not self.settings.num_env_runners:
            return {"rollout": algorithm.env_runner_group.local_env_runner.rollout_state()}
        return {"rollouts": algorithm.rollouts()}

    def load_state(self, state: Arrays) -> None:
        check_complete(state, ("own",))
        own = json.loads(str(state.pop("own")))
        algorithm, whole = self.build(), unflatten(state)
        if "rollout" in whole:
            algorithm.env_runner_group.local_env_runner.load_rollout_state(whole["rollout"])
        else:
            wanted = self.settings.num_env_runners
            if len(found := [key for key, each in whole.get("rollouts", {}).items() if each]) != wanted:
                raise InputError(f"checkpoint: must have {wanted} env runners, got {len(found)}; begin this run anew")
            algorithm.restore_rollouts(whole["rollouts"])
        # Last, because the random state is part of it.
        algorithm.learner_group.set_state(whole["learner"])
        algorithm.env_runner_group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
        algorithm.steps_before = own["steps"]
        self.bins.load_state_dict(own["bins"])
        self.diagnostics = own["diagnostics"]
