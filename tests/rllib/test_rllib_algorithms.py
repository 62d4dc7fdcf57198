"""Whole algorithms on a local Ray cluster: several learners, checkpoints, lost environment runners, other algorithms."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
import rllib_help
import torch
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import ppo
from ray.tune.registry import register_env
from rllib_help import MODULE, SPACES, assert_same, config, parameters

from cbp_ray.sweeps import cluster
from rllib_ext import ContinualPPOConfig
from rllib_ext.algorithms import ContinualAPPOConfig, ContinualDQNConfig, ContinualIMPALAConfig, ContinualSACConfig
from rllib_ext.ant.episode_returns import finished_episodes
from rllib_ext.config import TRIES, WITHOUT_UPDATE
from rllib_ext.learners.mixin import RESULTS

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(500)]

OFTEN = {"replacement_rate": 0.02, "maturity_threshold": 5}


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    # Workers don't have the tests on their path.
    for module in (sys.modules[__name__], rllib_help):
        ray.cloudpickle.register_pickle_by_value(module)
    with cluster.connected(None):
        yield


class Line(gym.Env[Any, Any]):
    """A walk on a line from a fixed place: nothing is random but the actions."""

    observation_space = SPACES[MODULE][0]
    action_space = SPACES[MODULE][1]

    def __init__(self, settings: Any = None) -> None:
        self.dies_at = dict(settings or {}).get("dies_at")
        self.marker = dict(settings or {}).get("marker", "")
        self.worker = getattr(settings, "worker_index", 0)
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.state, self.steps = np.zeros(4, np.float32), 0
        return self.state.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps, self.total = self.steps + 1, self.total + 1
        if self.total == self.dies_at and self.worker == 1 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os._exit(1)
        self.state = 0.9 * self.state + 0.1 * np.concatenate([action, np.sin(action)]).astype(np.float32)
        return self.state.copy(), float(1 - (self.state**2).sum()), False, self.steps == 16, {}


def small(made: ContinualPPOConfig, **environment: Any) -> ContinualPPOConfig:
    register_env("Line", Line)
    made.environment("Line", env_config=environment)
    return made.training(train_batch_size_per_learner=64, num_epochs=2, minibatch_size=16, lr=1e-3)


def learner_of(algorithm: Any) -> Any:
    return algorithm.learner_group._learner


@pytest.mark.long
def test_two_learners_stay_equal_to_the_last_bit() -> None:
    """Each sees other data; weights, and what generate-and-test knows of the units, are the same after every update."""
    made = small(config(**OFTEN)).learners(num_learners=2, num_cpus_per_learner=0).env_runners(num_env_runners=0)
    algorithm = made.build_algo()
    try:
        first = parameters_of(algorithm)
        results = [algorithm.train() for _ in range(30)]
        weights = parameters_of(algorithm)
        states = [r.get() for r in algorithm.learner_group.foreach_learner(lambda learner: learner._gnts[MODULE].state_dict())]
    finally:
        algorithm.stop()
    assert_same(*weights)
    assert_same(*states)
    assert states[0]["steps"] == 240
    replaced = {name: layer["replaced"] for name, layer in states[0]["layers"].items()}
    assert min(replaced.values()) > 20
    assert any(bool((weights[0][name] != first[0][name]).any()) for name in first[0])
    # Both learners report; nothing is counted twice.
    assert sum(result["learners"][MODULE][RESULTS]["replaced"] for result in results) == sum(replaced.values())
    assert results[-1]["learners"][MODULE][RESULTS]["replaced_lifetime"] == sum(replaced.values())
    assert results[-1]["learners"]["__all_modules__"]["num_gradient_steps"] == 8


def parameters_of(algorithm: Any) -> list[Any]:
    return [result.get() for result in algorithm.learner_group.foreach_learner(parameters)]


@pytest.mark.parametrize(
    "how", ["as Tune does", *(pytest.param(way, marks=pytest.mark.long) for way in ("restore_from_path", "from_checkpoint"))]
)
def test_a_resumed_algorithm_equals_an_unbroken_one(tmp_path: Path, how: str) -> None:
    def build() -> Any:
        made = small(config(**OFTEN)).env_runners(num_env_runners=0, batch_mode="complete_episodes")
        return made.build_algo()

    algorithm = build()
    for _ in range(3):
        algorithm.train()
    if how == "as Tune does":
        algorithm.save_checkpoint(str(tmp_path))
    else:
        algorithm.save_to_path(tmp_path)
    before = sum(learner_of(algorithm)._gnts[MODULE].replaced.values())
    expected = [algorithm.train() for _ in range(3)][-1]
    if how == "from_checkpoint":
        resumed = Algorithm.from_checkpoint(tmp_path)
    else:
        resumed = build()
        resumed.train()  # whatever it did before is forgotten
        resumed.load_checkpoint(str(tmp_path)) if how == "as Tune does" else resumed.restore_from_path(tmp_path)
    try:
        result = [resumed.train() for _ in range(3)][-1]
        assert_same(parameters(learner_of(resumed)), parameters(learner_of(algorithm)))
        ours, theirs = (learner_of(each)._gnts[MODULE].state_dict() for each in (resumed, algorithm))
        assert_same(ours, theirs)
        assert sum(layer["replaced"] for layer in ours["layers"].values()) > before > 0
        steps = "num_env_steps_sampled_lifetime"
        assert result["env_runners"][steps] == expected["env_runners"][steps] == 6 * 64
    finally:
        algorithm.stop()
        resumed.stop()


@pytest.mark.long
@pytest.mark.parametrize("runners", [0, 2])
def test_slippery_ant_is_restored_in_the_middle_of_an_episode(tmp_path: Path, runners: int) -> None:
    def build() -> Any:
        made = config(**OFTEN).environment("SlipperyAnt-v0", env_config={"friction": {"period": 500}})
        made.env_runners(num_env_runners=runners, num_envs_per_env_runner=2 - runners // 2, num_cpus_per_env_runner=0)
        return made.training(train_batch_size_per_learner=240, num_epochs=1, minibatch_size=60, lr=1e-3).build_algo()

    def seen(result: dict[str, Any]) -> tuple[Any, ...]:
        return result["env_runners"]["friction"], finished_episodes(result)

    algorithm = build()
    try:
        for _ in range(3):
            algorithm.train()
        algorithm.save_to_path(tmp_path)
        before = sum(learner_of(algorithm)._gnts[MODULE].replaced.values())
        results = [algorithm.train() for _ in range(6)]
        expected = [seen(result) for result in results]
        resumed = build()
        try:
            resumed.train()  # whatever it did before is forgotten
            resumed.restore_from_path(tmp_path)
            again = [resumed.train() for _ in range(6)]
            assert [seen(result) for result in again] == expected
            # Episodes end after 1000 steps, and two of them began before the checkpoint.
            assert any(ended for _, ended in expected)
            ours, theirs = (each[-1]["env_runners"] for each in (again, results))
            # RLlib adds up the pieces of an episode, of which there are fewer now, and may count a step in two pieces.
            assert ours["episode_return_mean"] == pytest.approx(theirs["episode_return_mean"], rel=1e-9)
            assert ours["episode_len_mean"] == pytest.approx(theirs["episode_len_mean"], rel=0.01)
            assert_same(parameters(learner_of(resumed)), parameters(learner_of(algorithm)))
            states = [learner_of(each)._gnts[MODULE].state_dict() for each in (resumed, algorithm)]
            assert_same(*states)
            assert sum(layer["replaced"] for layer in states[0]["layers"].values()) > before > 0
        finally:
            resumed.stop()
    finally:
        algorithm.stop()


@pytest.mark.long
def test_training_goes_on_when_an_environment_runner_dies(tmp_path: Path) -> None:
    made = small(config(**OFTEN), dies_at=70, marker=str(tmp_path / "died"))
    made.env_runners(num_env_runners=2, num_cpus_per_env_runner=0).fault_tolerance(restart_failed_env_runners=True)
    algorithm = made.build_algo()
    try:
        results = [algorithm.train() for _ in range(8)]
    finally:
        algorithm.stop()
    assert (tmp_path / "died").exists()
    sampled = results[-1]["env_runners"]["num_env_steps_sampled_lifetime"]
    trained = results[-1]["learners"][MODULE]["num_module_steps_trained_lifetime"]
    assert sampled == trained / 2  # two epochs: every step that was counted was trained on, and no other
    assert sampled >= 8 * 64 - 32
    assert results[-1][WITHOUT_UPDATE] == 0


def test_an_iteration_that_samples_nothing_is_tried_again_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, sample, empty = small(config()).env_runners(num_env_runners=0).build_algo(), ppo.synchronous_parallel_sample, [3]

    def samples_nothing_at_first(**kwargs: Any) -> Any:
        empty[0] -= 1
        return ([], []) if empty[0] >= 0 else sample(**kwargs)

    try:
        algorithm.train()
        monkeypatch.setattr(ppo, "synchronous_parallel_sample", samples_nothing_at_first)
        result = algorithm.train()
        assert "tried again" in caplog.text
        assert result[WITHOUT_UPDATE] == 3
        assert (result["training_iteration"], result["env_runners"]["num_env_steps_sampled_lifetime"]) == (2, 2 * 64)
        empty[0] = TRIES
        with pytest.raises(RuntimeError, match="no environment runner"):
            algorithm.train()
    finally:
        algorithm.stop()


OTHERS = {
    "dqn": (
        ContinualDQNConfig,
        "CartPole-v1",
        {"num_steps_sampled_before_learning_starts": 32, "train_batch_size": 16, "target_network_update_freq": 30},
    ),
    "sac": (ContinualSACConfig, "Pendulum-v1", {"num_steps_sampled_before_learning_starts": 32, "train_batch_size": 16}),
    "impala": (ContinualIMPALAConfig, "CartPole-v1", {"train_batch_size_per_learner": 50}),
    "appo": (
        ContinualAPPOConfig,
        "CartPole-v1",
        {
            "train_batch_size_per_learner": 50,
            "target_network_update_freq": 2,
            "circular_buffer_num_batches": 1,
            "circular_buffer_iterations_per_batch": 1,
        },
    ),
}


# APPO is an IMPALA with a target network: the one test does for both, but for those who have time.
@pytest.mark.long
@pytest.mark.parametrize("name", ["dqn", "sac", "appo", "impala"])
def test_other_algorithms_replace_units_too(name: str) -> None:
    kind, environment, training = OTHERS[name]
    made = kind().environment(environment).training(**training).continual_backprop(replacement_rate=0.1, maturity_threshold=2)
    made.rl_module(model_config={"fcnet_hiddens": [16, 16]}).debugging(seed=1)
    made.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=50)
    distributed = name in ("impala", "appo")
    made.env_runners(num_env_runners=int(distributed), num_cpus_per_env_runner=0).learners(num_learners=0)
    # As Tune does: from the class and a dict.
    algorithm = made.algo_class(config=made.to_dict())
    copies = _watch_copies(learner_of(algorithm)) if name in ("dqn", "appo") else None
    try:
        replaced = 0
        for _ in range(30 if distributed else 3):
            result = algorithm.train()
            replaced += result.get("learners", {}).get(MODULE, {}).get(RESULTS, {}).get("replaced", 0)
            if distributed and replaced >= 8 and (copies is None or any(copies)):
                break
        assert replaced >= 8
        if name == "sac":
            _check_targets_in_step(learner_of(algorithm))
        assert copies is None or sum(copies) > 0
    finally:
        algorithm.stop()


def _watch_copies(learner: Any) -> list[bool]:
    """From here on: no update, and no replacement in it, touches a target network; a copy makes it the network itself.

    Returns:
      A list that grows with every update: whether the target networks were copied after it.
    """
    pairs = learner.module[MODULE].unwrapped().get_target_network_pairs()
    assert pairs
    copies: list[bool] = []
    apply, after = learner.apply_gradients, learner.after_gradient_based_update

    def flat(which: int) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for pair in pairs for p in pair[which].parameters()]).clone()

    def apply_gradients(*args: Any, **kwargs: Any) -> None:
        target = flat(1)
        apply(*args, **kwargs)
        assert bool((flat(1) == target).all())

    def after_gradient_based_update(*args: Any, **kwargs: Any) -> None:
        target = flat(1)
        after(*args, **kwargs)
        copies.append(bool((flat(1) != target).any()))
        assert not copies[-1] or bool((flat(1) == flat(0)).all())

    learner.apply_gradients, learner.after_gradient_based_update = apply_gradients, after_gradient_based_update
    return copies


@pytest.mark.long
def test_tune_runs_the_class_of_the_config(tmp_path: Path) -> None:
    made = ContinualDQNConfig().environment("CartPole-v1").continual_backprop(replacement_rate=0.1, maturity_threshold=2)
    made.training(num_steps_sampled_before_learning_starts=32, train_batch_size=16).env_runners(num_env_runners=0)
    made.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=100)
    run = tune.RunConfig(storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0)
    (result,) = tune.Tuner(made.algo_class, param_space=made, run_config=run).fit()
    assert result.error is None
    assert result.metrics["learners"][MODULE][RESULTS]["replaced"] > 0


def _check_targets_in_step(learner: Any) -> None:
    """Every unit replaced in the last step has, in the target network, the input weights of its twin."""
    net = learner.module[MODULE]
    replaced = 0
    for layer, units in learner._reports[MODULE].replaced.items():
        if layer.startswith("qf"):
            main, target = (net.get_submodule(prefix + layer).weight[units] for prefix in ("", "target_"))
            # The averaging after the update adds rounding.
            torch.testing.assert_close(target, main)
            replaced += len(units)
    assert replaced or not learner._reports[MODULE].replaced


@pytest.mark.slow
def test_it_learns_to_balance_a_pole() -> None:
    made = ContinualPPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=8)
    made.rl_module(model_config={"fcnet_hiddens": [64, 64]}).debugging(seed=0)
    made.training(lr=1e-3, train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=6)
    algorithm = made.continual_backprop(replacement_rate=1e-4, maturity_threshold=100).build_algo()
    try:
        best = 0.0
        for _ in range(25):
            best = max(best, algorithm.train()["env_runners"]["episode_return_mean"])
            if best > 120:
                break
        assert best > 120  # a random policy gets 22
        assert sum(learner_of(algorithm)._gnts[MODULE].replaced.values()) > 0
    finally:
        algorithm.stop()
