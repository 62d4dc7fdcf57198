"""Slippery Ant on any number of env runners: friction is a function of the global time-step alone.

    config = slippery(PPOConfig().environment("SlipperyAnt-v0", env_config={"friction": {"period": 1_000_000}}))

`slippery` puts `SlipperyEnvRunner` and `GlobalStepAlgorithm` into the config of any algorithm: the algorithm tells its runners
at the beginning of every training step how many time-steps it has sampled, and the runners set the friction of each
environment before each step. The number of time-steps is in RLlib's checkpoints. Ours also have what the runners are in the
middle of, so that with a seed (`debugging(seed=…)`) and as many runners and environments as before, restored PPO is the
unbroken run.

(RLlib's own broadcast of that number can't serve: it is dropped while an earlier message to the runner is on its way, which is
the rule with remote runners, and it is zero after a checkpoint was restored.)
"""

from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any, TypeVar

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALA
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_ext.ant.env_runner import SlipperyEnvRunner
from rllib_ext.ant.environment import ENVIRONMENT
from rllib_ext.ant.friction import FRICTION, schedule_of

ROLLOUTS = "rollouts"
"""Name of the checkpoint's part that holds, by runner, what it is in the middle of."""

C = TypeVar("C", bound=AlgorithmConfig)


def slippery(config: C) -> C:
    """Makes an RLlib config on Slippery Ant a distributed one. Configs on other environments pass through as they are.

    Args:
      config: of any algorithm of the new API stack, with its environment set; `env_config["friction"]` is a number or settings
        of `FrictionSchedule`, whose seed is that of the config (`debugging(seed=…)`) unless it is given.
    """
    if config.env != ENVIRONMENT:
        if config.env_runner_cls is SlipperyEnvRunner:
            config.env_runner_cls = None  # it had been on Slippery Ant before
        return config
    schedule_of(config)
    if not _has_slippery_runners(config):
        config.env_runners(env_runner_cls=SlipperyEnvRunner)
    if config.algo_class is not None and not issubclass(config.algo_class, GlobalStepAlgorithm):
        config.algo_class = _with_global_steps(config.algo_class)
    return config


def _has_slippery_runners(config: AlgorithmConfig) -> bool:
    return isinstance(config.env_runner_cls, type) and issubclass(config.env_runner_cls, SlipperyEnvRunner)


@cache
def _with_global_steps(algorithm: type[Algorithm]) -> type[Algorithm]:
    return type(f"GlobalStep{algorithm.__name__}", (GlobalStepAlgorithm, algorithm), {})


class GlobalStepAlgorithm(Algorithm):
    """Tells `SlipperyEnvRunner`s the global time-step; with other runners it does nothing.

    It is put before an algorithm of RLlib: `class ContinualPPO(GlobalStepAlgorithm, PPO)`.
    """

    # None only before RLlib has set them up.
    config: AlgorithmConfig
    metrics: MetricsLogger
    env_runner_group: EnvRunnerGroup

    steps_before = 0
    """Time-steps of the run that this one continues, where RLlib's own count does not have them."""

    @property
    def global_step(self) -> int:
        """Number of time-steps sampled so far."""
        return self.steps_before + int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    def training_step(self) -> None:
        on_ant, waits = _has_slippery_runners(self.config), not isinstance(self, IMPALA)
        if on_ant and _tell(self.env_runner_group, self.global_step, waits):
            # A runner that died while nobody called it may be back before RLlib knows: with a policy of its own.
            self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group, inference_only=True)
        super().training_step()
        if on_ant:
            friction = schedule_of(self.config).friction(self.global_step)
            self.metrics.log_value((ENV_RUNNER_RESULTS, FRICTION), friction, window=1)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)
        # Runners of asynchronous algorithms are always ahead of the learner: what they are doing can't be continued.
        resumable = _has_slippery_runners(self.config) and self.config.seed is not None and not isinstance(self, IMPALA)
        if resumable and self._check_component(ROLLOUTS, components, not_components):
            state[ROLLOUTS] = self.rollouts()
        return state

    def rollouts(self) -> dict[int, dict[str, Any]]:
        """What each runner is in the middle of, by its number; without runners that have nothing to save."""
        found = _ask(self.env_runner_group, lambda runner: (runner.worker_index or 0, runner.checkpoint()))
        return {index: rollout for index, rollout in sorted(found) if rollout is not None}

    def restore_rollouts(self, rollouts: dict[int, dict[str, Any]]) -> None:
        """The inverse of `rollouts`."""
        _ask(self.env_runner_group, lambda runner: runner.restore(rollouts.get(runner.worker_index or 0)))

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        rollouts, group = state.get(ROLLOUTS, {}), self.env_runner_group
        if rollouts and _has_slippery_runners(self.config) and len(rollouts) == max(1, group.num_remote_env_runners()):
            self.restore_rollouts(rollouts)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if _has_slippery_runners(self.config) and self.eval_env_runner_group is not None:
            _tell(self.eval_env_runner_group, self.global_step, wait=True)
        return super().evaluate(*args, **kwargs)


def _ask(group: EnvRunnerGroup, question: Callable[[Any], Any]) -> list[Any]:
    """The answers of all remote runners, or of the local one if it is the only one."""
    answers: list[Any] = group.foreach_env_runner(question, local_env_runner=group.num_remote_env_runners() == 0)
    return answers


def _tell(group: EnvRunnerGroup, step: int, wait: bool) -> bool:
    """Tells the living runners the global step. Returns whether one of them is new.

    An actor takes calls in the order in which they were made, so this one comes before the next `sample` in any case. Waiting
    for the answer shows which runners have died. Asynchronous algorithms can't wait, since a runner answers only when it has
    sampled.
    """
    if group.num_remote_env_runners() == 0:
        return any(group.foreach_env_runner(methodcaller("begin_at", step, 1, 0)))
    new, timeout = False, None if wait else 0.0
    while living := group.healthy_env_runner_ids():
        calls = [methodcaller("begin_at", step, len(living), position) for position in range(len(living))]
        told = group.foreach_env_runner(calls, local_env_runner=False, remote_worker_ids=living, timeout_seconds=timeout)
        new |= any(told)
        if group.healthy_env_runner_ids() == living:
            break
    return new
