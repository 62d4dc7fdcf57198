"""RLlib's env runner, opened: everything that we use of its private parts and of Gymnasium's vector environments is here.

`OpenEnvRunner` has a fast loop of its own, hooks around each step of its environments, and a state of what it is in the
middle of. RLlib's checkpoints leave that state out: after them, environments begin new episodes. Ours is of a runner with
environments of its own (not in further processes) and the lean connectors.

The fast loop does what RLlib's `SingleAgentEnvRunner._sample` does for a policy of plain MLPs and the default connectors, with
the same episodes, metrics and callbacks, but calls neither torch nor connectors nor Gymnasium's vector environment in each
step. Runners with anything else take RLlib's loop, and say why in their log.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import Wrapper
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from gymnasium.wrappers.vector import DictInfoToList
from numpy.typing import NDArray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_runner import ENV_STEP_FAILURE, NUM_ENV_STEP_FAILURES_LIFETIME
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import ENV_STEP_TIMER, RLMODULE_INFERENCE_TIMER

from rllib_ext.ant.environment import SlipperyAnt
from rllib_ext.ant.lean_connectors import LeanEnvToModule, LeanModuleToEnv, lean
from rllib_ext.ant.plain_policy import PlainPolicy
from rllib_ext.ant.rollout import Rollout, as_lists, continuation
from rllib_ext.plain_module import plain_actor_critic

LOGGER = logging.getLogger(__name__)
WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
"""Wrappers of Gymnasium whose work the fast loop does itself, or need not do."""
ROOM = 64
"""Ticks of a rollout that there is room for beyond those that are expected: environments are reset in them."""


class OpenEnvRunner(SingleAgentEnvRunner):
    """Runs environments as RLlib does, in a quicker loop where that does the same, and calls the hooks below."""

    env: VectorEnv[Any, Any, Any]
    returns: list[float]
    """Sum of rewards of each environment's present episode."""
    _ongoing_episodes: list[SingleAgentEpisode]
    _ongoing_episodes_for_metrics: dict[str, list[Any]]
    _cached_to_module: dict[str, torch.Tensor] | None
    _env_to_module: Any
    _needs_initial_reset: bool
    _module_to_env: Any
    _slow_reason: str | None = None
    """Why RLlib's loop ran last; None if ours did, or if there was none yet."""

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        super().__init__(config=config, **kwargs)
        if self.env is not None:
            pipelines = lean(self._env_to_module, self._module_to_env, self.module, self._device)
            self._env_to_module, self._module_to_env = pipelines

    def reset_seeds(self) -> list[int]:
        """Seeds of the environments, for a reset that is to fix everything."""
        raise NotImplementedError

    def before_step(self, stepping: list[int]) -> None:
        """Is called before a step of the environments `stepping`; the others are being reset."""

    def after_step(self, stepping: list[int]) -> None:
        """Is called when the step is made."""

    def after_failure(self) -> None:
        """Is called when an environment failed: RLlib drops what this call of `sample` has made, and starts it again."""

    def after_episode(self, index: int) -> None:
        """Is called when the episode of an environment has ended."""

    def action_noise(self, count: int) -> NDArray[np.float32]:
        """The next `count` standard normal numbers of this runner, with which it explores."""
        raise NotImplementedError

    def make_env(self) -> None:
        super().make_env()
        self.returns = [0.0] * self.num_envs

    def slow_reason(self, *, random_actions: bool = False) -> str | None:
        """Why this runner takes RLlib's loop; None if it takes the fast one."""
        vector: Any = self.env.unwrapped
        if random_actions:
            return "random actions were asked for"
        if not (isinstance(self._env_to_module, LeanEnvToModule) and isinstance(self._module_to_env, LeanModuleToEnv)):
            return "there are connectors, spaces or devices other than the usual ones"
        if type(self.env) is not DictInfoToList or type(vector) is not SyncVectorEnv:
            return f"the environments are in a {type(vector).__name__}"
        if vector.autoreset_mode is not AutoresetMode.NEXT_STEP:
            return f"the environments are reset in the mode {vector.autoreset_mode.value}"
        if unknown := {type(wrapper).__name__ for env in vector.envs for wrapper in _unknown(env)}:
            return f"the environments have a {', '.join(sorted(unknown))}"
        step_callbacks = {type(callbacks).on_episode_step for callbacks in self._callbacks} - {RLlibCallback.on_episode_step}
        if step_callbacks or self.config.callbacks_on_episode_step:
            return "there is a callback on_episode_step"
        networks = plain_actor_critic(self.module)
        return networks if isinstance(networks, str) else None

    def _sample(self, *, explore: bool, random_actions: bool = False, **kwargs: Any) -> list[SingleAgentEpisode]:
        reason = self.slow_reason(random_actions=random_actions)
        if reason is not None and reason != self._slow_reason:
            LOGGER.info(f"{type(self).__name__} {self.worker_index}: samples with RLlib's own loop, because {reason}")
        self._slow_reason = reason
        if reason is not None:
            return super()._sample(explore=explore, random_actions=random_actions, **kwargs)  # type: ignore[no-any-return]
        return self._sample_fast(explore=explore, **kwargs)

    def _sample_fast(
        self, *, explore: bool, num_timesteps: int | None = None, num_episodes: int | None = None, force_reset: bool = False
    ) -> list[SingleAgentEpisode]:
        if force_reset or num_episodes is not None or self._needs_initial_reset:
            self._reset_envs_and_episodes(explore)
        if num_episodes is not None:
            self._needs_initial_reset = True
        loop = _Loop(self, explore, num_timesteps, num_episodes)
        while not loop.is_over():
            loop.tick()
        done = loop.done
        self._done_episodes_for_metrics.extend(done)
        ongoing = loop.cut() if num_timesteps is not None else []
        loop.leave()
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=loop.steps)
        self._increase_sampled_metrics(loop.steps, len(done))
        return done + ongoing

    def _begin_again(self, error: Exception, explore: bool) -> None:
        """RLlib's way with an environment that failed: make all of them anew if that is wanted, otherwise give up."""
        self.metrics.log_value(NUM_ENV_STEP_FAILURES_LIFETIME, 1, reduce="lifetime_sum")
        if not self.config.restart_failed_sub_environments:
            LOGGER.error(
                f"a step of an environment failed: {error}; .fault_tolerance(restart_failed_sub_environments=True) goes on"
            )
            raise RuntimeError from error
        LOGGER.exception("a step of an environment failed; all environments of this runner are made anew", exc_info=error)
        self.make_env()
        self.after_failure()
        self._reset_envs_and_episodes(explore)

    def _try_env_reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super()._try_env_reset(seed=None if seed is None else self.reset_seeds(), options=options)

    def _try_env_step(self, actions: Any) -> Any:
        stepping = [index for index, episode in enumerate(self._ongoing_episodes) if episode.is_reset]
        self.before_step(stepping)
        results = super()._try_env_step(actions)
        if isinstance(results, str) and results == ENV_STEP_FAILURE:
            self.after_failure()
            return results
        for index in stepping:
            self.returns[index] += float(results[1][index])
        self.after_step(stepping)
        return results

    def _make_on_episode_callback(self, which: str, idx: int, episodes: list[SingleAgentEpisode]) -> None:
        super()._make_on_episode_callback(which, idx, episodes)
        if which == "on_episode_end":
            self.after_episode(idx)
        elif which == "on_episode_created":
            self.returns[idx] = 0.0

    def has_rollout(self) -> bool:
        """Whether there is something to save, of a kind that can be saved."""
        environments = getattr(getattr(self.env, "unwrapped", None), "envs", ())
        # A subclass may have a state that its parent knows nothing of.
        plain = environments and all(
            type(env.unwrapped) is SlipperyAnt and _time_limit(env) is not None for env in environments
        )
        return bool(plain) and bool(self._cached_to_module) and list(self._cached_to_module or ()) == [Columns.OBS]

    def rollout_state(self) -> dict[str, Any]:
        """What the runner is in the middle of, as plain numbers, lists and arrays, for `load_rollout_state`."""
        vector: Any = self.env.unwrapped
        assert self._cached_to_module is not None
        return {
            "environments": [env.unwrapped.state_dict() for env in vector.envs],
            "episode_steps": [_time_limit(env)._elapsed_steps for env in vector.envs],  # type: ignore[union-attr]
            "to_be_reset": vector._autoreset_envs.copy(),
            "observations": self._cached_to_module[Columns.OBS].numpy().copy(),
            "returns": list(self.returns),
            "episodes": [[episode.id_, episode.t] if episode.is_reset else None for episode in self._ongoing_episodes],
            "begins_anew": self._needs_initial_reset,
        }

    def load_rollout_state(self, state: dict[str, Any]) -> None:
        """Puts a new runner of the same config where another one was."""
        vector: Any = self.env.unwrapped
        for env, of_ant, steps in zip(vector.envs, state["environments"], state["episode_steps"], strict=True):
            env.reset()  # or Gymnasium's wrappers would not let it step
            env.unwrapped.load_state_dict(of_ant)
            _time_limit(env)._elapsed_steps = steps  # type: ignore[union-attr]
        vector._autoreset_envs = np.array(state["to_be_reset"])
        observations = np.array(state["observations"])
        self._shared_data: dict[str, Any] = {}
        self._cached_to_module = {Columns.OBS: torch.from_numpy(observations)}
        self._ongoing_episodes_for_metrics.clear()
        for index, begun in enumerate(state["episodes"]):
            self._new_episode(index)
            if begun is not None:
                name, steps = begun
                self._ongoing_episodes[index] = SingleAgentEpisode(
                    id_=name,
                    observations=[observations[index]],
                    infos=[{}],
                    observation_space=vector.single_observation_space,
                    action_space=vector.single_action_space,
                    t_started=steps,
                    len_lookback_buffer=0,
                )
                if steps:
                    self._ongoing_episodes_for_metrics[name].append(EarlierPart(steps, state["returns"][index]))
        self.returns = list(state["returns"])
        self._needs_initial_reset = state["begins_anew"]


class _Loop:
    """One call of `sample` in the fast loop.

    Args:
      runner: whose environments these are; each has an episode that goes on, or waits to be reset.
      explore: whether actions are drawn, or the most probable ones.
      num_timesteps: how many time-steps to make at least; or `num_episodes`, how many episodes to end.
    """

    def __init__(self, runner: OpenEnvRunner, explore: bool, num_timesteps: int | None, num_episodes: int | None) -> None:
        networks = plain_actor_critic(runner.module)
        assert not isinstance(networks, str)
        self.runner, self.explore, self.num_timesteps, self.num_episodes = runner, explore, num_timesteps, num_episodes
        ways = {"normalize": runner.config.normalize_actions, "clip": runner.config.clip_actions}
        space: Any = runner.env.single_action_space
        self.policy = PlainPolicy(networks, space, **ways)
        self.for_env = np.empty((runner.num_envs, len(self.policy.log_std)), np.float32)
        self.done: list[SingleAgentEpisode] = []
        self.policy_seconds = self.env_seconds = 0.0
        self.ticks_made = 0
        self.begin()

    def begin(self) -> None:
        """Starts from where the environments are, with nothing made yet."""
        runner, vector = self.runner, self.runner.env.unwrapped
        assert isinstance(vector, SyncVectorEnv) and runner._cached_to_module is not None
        self.steps = self.episodes = self.now = 0
        self.envs = vector.envs
        self.ants = [env.unwrapped for env in vector.envs]
        self.limits: list[Any] = [_time_limit(env) for env in vector.envs]
        self.waiting = [not episode.is_reset for episode in runner._ongoing_episodes]
        """Whether each environment is to be reset next."""
        self.everyone = list(range(runner.num_envs))
        self.first = [0] * runner.num_envs
        """The tick of the first step of each environment's episode, or of the present part of it."""
        self.begun = [time.perf_counter()] * runner.num_envs
        ticks = ROOM + (-(-self.num_timesteps // runner.num_envs) if self.num_timesteps is not None else 1000)
        observations = runner._cached_to_module[Columns.OBS].numpy()
        self.rollout = Rollout(ticks, observations, len(self.policy.log_std))
        self.noise = self.draw(ticks)

    def draw(self, ticks: int) -> NDArray[np.float32]:
        """What is added to the means of the actions, [ticks, environments, actions]."""
        shape = (ticks, self.runner.num_envs, len(self.policy.log_std))
        if not self.explore:
            return np.zeros(shape, np.float32)
        return self.runner.action_noise(int(np.prod(shape))).reshape(shape) * np.exp(self.policy.log_std)

    def is_over(self) -> bool:
        """Whether there is enough."""
        if self.num_timesteps is not None:
            return self.steps >= self.num_timesteps
        return self.num_episodes is not None and self.episodes >= self.num_episodes

    def tick(self) -> None:
        """One call of every environment: a time-step, or a reset after the end of an episode."""
        now, rollout, runner = self.now, self.rollout, self.runner
        if now == rollout.ticks:
            self.noise = np.concatenate([self.noise, self.draw(rollout.ticks)])
            rollout.grow(rollout.ticks)
        began = time.perf_counter()
        for_env = self.for_env
        self.policy.act(rollout.observations[now], self.noise[now], rollout.means[now], rollout.actions[now], for_env)
        decided = time.perf_counter()

        waiting = self.waiting
        stepping = [index for index in self.everyone if not waiting[index]] if True in waiting else self.everyone
        runner.before_step(stepping)
        ended: dict[int, tuple[bool, bool]] = {}
        observations, rewards = rollout.observations[now + 1], rollout.rewards[now]
        try:
            for index in self.everyone:
                if waiting[index]:
                    observations[index], info = self.envs[index].reset()
                else:
                    observations[index], reward, terminated, truncated, info = self.ants[index].step(for_env[index])
                    rewards[index] = reward
                    runner.returns[index] += float(reward)
                    if (limit := self.limits[index]) is not None:
                        limit._elapsed_steps += 1
                        truncated = truncated or limit._elapsed_steps >= limit._max_episode_steps
                    if terminated or truncated:
                        ended[index] = bool(terminated), bool(truncated)
                if info:
                    rollout.infos[now + 1, index] = info
        except Exception as error:  # whatever goes wrong in an environment
            runner._begin_again(error, self.explore)
            self.begin()
            return
        self.policy_seconds += decided - began
        self.env_seconds += time.perf_counter() - decided
        self.ticks_made += 1
        self.now += 1
        self.steps += len(stepping)
        runner.after_step(stepping)
        if ended or stepping is not self.everyone:
            self.turn(ended)

    def turn(self, ended: dict[int, tuple[bool, bool]]) -> None:
        """Ends and begins episodes after a tick."""
        runner, episodes = self.runner, self.runner._ongoing_episodes
        begun = [index for index in self.everyone if self.waiting[index]]
        for index in begun:
            info = self.rollout.infos.get((self.now, index), {})
            episodes[index].add_env_reset(observation=self.rollout.observations[self.now, index].copy(), infos=info)
            self.waiting[index], self.first[index], self.begun[index] = False, self.now, time.perf_counter()
        for index in self.everyone:
            if index in begun:
                runner._make_on_episode_callback("on_episode_start", index, episodes)
            if index in ended:
                terminated, truncated = ended[index]
                self.waiting[index] = True
                self.episodes += 1
                episodes[index] = self.part(index, terminated=terminated, truncated=truncated)
                runner._make_on_episode_callback("on_episode_end", index, episodes)
                self.done.append(episodes[index])
                runner._new_episode(index, episodes)
                if self.num_episodes is not None and self.is_over():
                    break

    def part(self, index: int, **end: bool) -> SingleAgentEpisode:
        """The steps of an environment's present episode that this call has made."""
        runner = self.runner
        settings = {"explored": self.explore, "weights": runner._weights_seq_no}
        steps = range(self.first[index], self.now)
        episode = self.rollout.episode(runner._ongoing_episodes[index], index, steps, self.policy, **settings, **end)
        episode._start_time, episode._last_step_time = self.begun[index], time.perf_counter()
        return episode if runner.episodes_to_numpy else as_lists(episode)

    def cut(self) -> list[SingleAgentEpisode]:
        """The parts of episodes that go on, in whose place the runner continues them."""
        runner, parts = self.runner, []
        for index, waits in enumerate(self.waiting):
            if waits or self.first[index] == self.now:
                continue  # without a step
            part = self.part(index)
            runner._ongoing_episodes[index] = continuation(part, runner.config.episode_lookback_horizon)
            runner._ongoing_episodes_for_metrics[part.id_].append(part)
            parts.append(part)
        return parts

    def leave(self) -> None:
        """Leaves runner and environments as RLlib's loop would, so that either loop may go on."""
        runner, vector = self.runner, self.runner.env.unwrapped
        vector._autoreset_envs = np.array(self.waiting)
        runner._cached_to_module = {Columns.OBS: torch.from_numpy(self.rollout.observations[self.now].copy())}
        if self.ticks_made:
            runner.metrics.log_value(RLMODULE_INFERENCE_TIMER, self.policy_seconds / self.ticks_made)
            runner.metrics.log_value(ENV_STEP_TIMER, self.env_seconds / self.ticks_made)
            runner._log_env_steps(metric=runner._metrics_num_try_env_step, num_steps=self.ticks_made)


class EarlierPart:
    """The part of an episode before a checkpoint, for RLlib's statistics of episodes."""

    def __init__(self, steps: int, episode_return: float) -> None:
        self.steps, self.episode_return = steps, episode_return

    def __len__(self) -> int:
        return self.steps

    def get_return(self) -> float:
        """The sum of its rewards."""
        return self.episode_return

    def get_duration_s(self) -> float:
        """The time that it took, which is not known, and not counted."""
        return 0.0


def _time_limit(env: Any) -> TimeLimit[Any, Any] | None:
    """The wrapper that counts an environment's steps."""
    while isinstance(env, Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None


def _unknown(env: Any) -> Iterator[Any]:
    """What is between the vector environment and Slippery Ant, or in its place, and is none of Gymnasium's usual wrappers."""
    while isinstance(env, Wrapper):
        if type(env) not in WRAPPERS:
            yield env
        env = env.env
    if not isinstance(env, SlipperyAnt):
        yield env
