"""Slippery Ant on any number of env runners: friction is a function of the global time-step alone.

    config = slippery(PPOConfig().environment("SlipperyAnt-v0", env_config={"friction": {"period": 1_000_000}}))

`slippery` puts `SlipperyEnvRunner` and `SlipperyAlgorithm` into the config of any algorithm: the algorithm tells its runners at
the beginning of every training step how many time-steps it has sampled, and the runners set the friction of each environment
before each step. The number of time-steps is in RLlib's checkpoints. Ours also have what the runners are in the middle of, so
that with a seed (`debugging(seed=…)`) and as many runners and environments as before, restored PPO is the unbroken run.

(RLlib's own broadcast of that number can't serve: it is dropped while an earlier message to the runner is on its way, which is
the rule with remote runners, and it is zero after a checkpoint was restored.)
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from gymnasium.vector import VectorEnv
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.impala import IMPALA
from ray.rllib.env.env_runner import ENV_STEP_FAILURE, EnvRunner
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.debug import update_global_seed_if_necessary
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from torch import nn

from cbp_ray.randomness import Purpose, words
from rllib_ext.episode_returns import END_STEPS, RETURNS
from rllib_ext.friction import FrictionSchedule
from rllib_ext.global_steps import GlobalSteps
from rllib_ext.lean_connectors import lean
from rllib_ext.learner_state import random_state, set_random_state
from rllib_ext.nested_arrays import flatten, unflatten
from rllib_ext.registration import ENVIRONMENT
from rllib_ext.rollout_state import has_rollout, load_rollout_state, rollout_state

FRICTION = "friction"
ROLLOUTS = "rollouts"
"""Name of the checkpoint's part that holds, by runner, what it is in the middle of."""

C = TypeVar("C", bound=AlgorithmConfig)


def slippery(config: C) -> C:
    """Makes an RLlib config on Slippery Ant a distributed one. Configs on other environments pass through as they are.

    Args:
      config: of any algorithm of the new API stack, with its environment set; `env_config["friction"]` is a number or settings
        of `FrictionSchedule`, whose seed is that of the config (`debugging(seed=…)`) unless it is given.

    Returns:
      The same config.

    Raises:
      InputError: one line with field, rule, value and fix.
    """
    if config.env != ENVIRONMENT:
        if config.env_runner_cls is SlipperyEnvRunner:
            config.env_runner_cls = None  # it had been on Slippery Ant before
        return config
    schedule_of(config)
    if not _has_slippery_runners(config):
        config.env_runners(env_runner_cls=SlipperyEnvRunner)
    if config.algo_class is not None and not issubclass(config.algo_class, SlipperyAlgorithm):
        config.algo_class = _slippery_class(config.algo_class)
    return config


def schedule_of(config: AlgorithmConfig) -> FrictionSchedule:
    """The schedule that a config asks for."""
    return FrictionSchedule.make(config.env_config.get(FRICTION), seed=config.seed or 0)


def _has_slippery_runners(config: AlgorithmConfig) -> bool:
    return isinstance(config.env_runner_cls, type) and issubclass(config.env_runner_cls, SlipperyEnvRunner)


@cache
def _slippery_class(algorithm: type[Algorithm]) -> type[Algorithm]:
    return type(f"Slippery{algorithm.__name__}", (SlipperyAlgorithm, algorithm), {})


class SlipperyAlgorithm(Algorithm):
    """To be put before an algorithm of RLlib: `class ContinualPPO(SlipperyAlgorithm, PPO)`. On other environments it rests."""

    # None only before RLlib has set them up.
    config: AlgorithmConfig
    metrics: MetricsLogger
    env_runner_group: EnvRunnerGroup

    steps_before = 0
    """Time-steps that somebody else made, of whose run this one is the continuation."""

    @property
    def global_step(self) -> int:
        """Time-steps sampled so far."""
        return self.steps_before + int(self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0))

    def training_step(self) -> None:
        if _has_slippery_runners(self.config) and _tell(
            self.env_runner_group, self.global_step, wait=not isinstance(self, IMPALA)
        ):
            # A runner that died while nobody called it may be back before RLlib knows: with a policy of its own.
            self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group, inference_only=True)
        super().training_step()
        if _has_slippery_runners(self.config):
            friction = schedule_of(self.config).friction(self.global_step)
            self.metrics.log_value((ENV_RUNNER_RESULTS, FRICTION), friction, window=1)

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)
        # The runners of asynchronous algorithms are always ahead of the learner: what they are doing is no state to go on from.
        goes_on = _has_slippery_runners(self.config) and self.config.seed is not None and not isinstance(self, IMPALA)
        if goes_on and self._check_component(ROLLOUTS, components, not_components):
            group = self.env_runner_group
            rollouts = group.foreach_env_runner(_rollout, local_env_runner=group.num_remote_env_runners() == 0)
            state[ROLLOUTS] = {index: rollout for index, rollout in rollouts if rollout is not None}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        rollouts, group = state.get(ROLLOUTS, {}), self.env_runner_group
        if rollouts and _has_slippery_runners(self.config) and len(rollouts) == max(1, group.num_remote_env_runners()):
            go_on = partial(_go_on, rollouts=rollouts)
            group.foreach_env_runner(go_on, local_env_runner=group.num_remote_env_runners() == 0)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        if _has_slippery_runners(self.config) and self.eval_env_runner_group is not None:
            _tell(self.eval_env_runner_group, self.global_step, wait=True)
        return super().evaluate(*args, **kwargs)


def _tell(group: EnvRunnerGroup, step: int, wait: bool) -> bool:
    """Tells the runners that live where they are. Returns whether one of them heard of it for the first time.

    An actor takes calls in the order in which they were made, so this one comes before the next `sample` in any case. To wait
    finds out who is dead; asynchronous algorithms can't, since a runner answers only when it has sampled.
    """
    if group.num_remote_env_runners() == 0:
        return any(group.foreach_env_runner(_message(step, 1, 0)))
    new = False
    while living := group.healthy_env_runner_ids():
        messages = [_message(step, len(living), position) for position in range(len(living))]
        timeout = None if wait else 0.0
        new |= any(
            group.foreach_env_runner(messages, local_env_runner=False, remote_worker_ids=living, timeout_seconds=timeout)
        )
        if group.healthy_env_runner_ids() == living:
            break
    return new


def _message(step: int, runners: int, position: int) -> Callable[[EnvRunner], object]:
    def tell(runner: EnvRunner) -> bool:
        assert isinstance(runner, SlipperyEnvRunner)
        return runner.begin_at(step, runners, position)

    return tell


def _rollout(runner: EnvRunner) -> tuple[int, dict[str, Any] | None]:
    """As plain arrays, which any of RLlib's checkpoint formats can hold."""
    assert isinstance(runner, SlipperyEnvRunner)
    if not has_rollout(runner):
        return runner.worker_index or 0, None
    return runner.worker_index or 0, flatten({"rollout": rollout_state(runner), "random_state": random_state()})


def _go_on(runner: EnvRunner, rollouts: dict[int, dict[str, Any]]) -> None:
    assert isinstance(runner, SlipperyEnvRunner)
    saved = rollouts.get(runner.worker_index or 0)
    own = None if saved is None else unflatten(saved)
    if own is not None and len(own["rollout"]["environments"]) == runner.num_envs:
        load_rollout_state(runner, own["rollout"])
        set_random_state(own["random_state"])
        runner.goes_on = True


class SlipperyEnvRunner(SingleAgentEnvRunner):
    """Sets `friction` of its environments by the global time-step. During evaluation it stays as it is at the beginning."""

    env: VectorEnv[Any, Any, Any]
    _ongoing_episodes: list[SingleAgentEpisode]
    _env_to_module: Any
    _module_to_env: Any
    _ongoing_episodes_for_metrics: dict[str, list[Any]]

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        self.schedule = schedule_of(config)
        self.steps = GlobalSteps()
        self._evaluates = bool(config.in_evaluation)
        self._is_new = True
        self.goes_on = False
        """Whether it continues what a checkpoint had, random numbers included."""
        super().__init__(config=config, **kwargs)
        if self.env is not None:
            pipelines = lean(self._env_to_module, self._module_to_env, self.module, self._device)
            self._env_to_module, self._module_to_env = pipelines
        if isinstance(self.module, nn.Module):
            self.module.eval()  # a runner never trains

    def begin_at(self, step: int, runners: int, position: int) -> bool:
        """Says how many time-steps there are, and which of how many runners this one is now.

        Returns:
          Whether it is new, and hears that for the first time.
        """
        new, self._is_new = self._is_new, False
        # To evaluate takes no time.
        self.steps = GlobalSteps(step, runners, position) if not self._evaluates else GlobalSteps(step, runners=0)
        if new and step > 0 and self.worker_index and self.config.seed is not None and not self.goes_on:
            # Otherwise a resumed run and a replaced runner would draw the random actions of the beginning again.
            update_global_seed_if_necessary(self.config.framework_str, self._random_words(1)[0] % 2**32)
        return new

    def _random_words(self, count: int) -> list[int]:
        """Of this runner, at the present global step."""
        address = (self.worker_index or 0, self.steps.start, int(self._evaluates))
        return [int(word) for word in words(int(self.config.seed or 0), Purpose.EPISODES, count, address=address)]

    def make_env(self) -> None:
        super().make_env()
        self.returns = [0.0] * self.num_envs
        """Of the episodes that are going on."""
        self.forget_frictions()

    def forget_frictions(self) -> None:
        """Has the frictions of all environments set anew before the next step."""
        self._frictions: list[float | None] = [None] * self.num_envs
        # The steps for which they are right.
        self._right = range(0)

    def _try_env_reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        # RLlib gives runner 1, environment 2 the seed of runner 2, environment 1, and a replaced runner the seeds of the lost.
        seeds: Any = None if seed is None else self._random_words(1 + self.num_envs)[1:]
        return super()._try_env_reset(seed=seeds, options=options)

    def _sample(self, **kwargs: Any) -> Any:
        self._made_before = self.steps.made
        return super()._sample(**kwargs)

    def _try_env_step(self, actions: Any) -> Any:
        stepping = [index for index, episode in enumerate(self._ongoing_episodes) if episode.is_reset]
        self._set_frictions(stepping)
        results = super()._try_env_step(actions)
        if isinstance(results, str) and results == ENV_STEP_FAILURE:
            # RLlib discards what this call of `sample` has made, and begins it anew.
            self.steps.made = self._made_before
            return results
        self._numbers = {index: self.steps.number(ahead) for ahead, index in enumerate(stepping)}
        self.steps.made += len(stepping)
        for index in stepping:
            self.returns[index] += float(results[1][index])
        return results

    def _set_frictions(self, stepping: list[int]) -> None:
        if not stepping or (self.steps.number() in self._right and self.steps.number(len(stepping) - 1) in self._right):
            return
        frictions = list(self._frictions)
        for ahead, index in enumerate(stepping):
            frictions[index] = self.schedule.friction(self.steps.number(ahead))
        # An environment that is being reset gets its friction with its first step, but must have some.
        frictions = [self.schedule.friction(self.steps.number()) if value is None else value for value in frictions]
        if frictions != self._frictions:
            self.env.unwrapped.set_attr(FRICTION, frictions)
            self._frictions = frictions
        change = self.schedule.next_change(self.steps.number())
        self._right = range(change - self.schedule.period, change) if len(set(frictions)) == 1 else range(0)

    def _make_on_episode_callback(self, which: str, idx: int, episodes: list[SingleAgentEpisode]) -> None:
        super()._make_on_episode_callback(which, idx, episodes)
        if which == "on_episode_end":
            self.metrics.log_value(END_STEPS, self._numbers[idx], reduce="item_series")
            self.metrics.log_value(RETURNS, self.returns[idx], reduce="item_series")
        elif which == "on_episode_created":
            self.returns[idx] = 0.0
