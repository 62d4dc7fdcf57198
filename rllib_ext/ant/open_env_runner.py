"""RLlib's env runner, opened: everything that we use of its private parts and of Gymnasium's vector environments is here.

`OpenEnvRunner` has hooks around each step of its environments, and a state of what it is in the middle of. RLlib's checkpoints
leave that state out: after them, environments begin new episodes. Ours is of a runner with environments of its own (not in
further processes) and the lean connectors.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import Wrapper
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_runner import ENV_STEP_FAILURE
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_ext.ant.environment import SlipperyAnt
from rllib_ext.ant.lean_connectors import lean


class OpenEnvRunner(SingleAgentEnvRunner):
    """Runs environments as RLlib does, with lean connectors where these do the same, and calls the hooks below."""

    env: VectorEnv[Any, Any, Any]
    returns: list[float]
    """Sum of rewards of each environment's present episode."""
    _ongoing_episodes: list[SingleAgentEpisode]
    _ongoing_episodes_for_metrics: dict[str, list[Any]]
    _cached_to_module: dict[str, torch.Tensor] | None
    _env_to_module: Any
    _module_to_env: Any

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

    def make_env(self) -> None:
        super().make_env()
        self.returns = [0.0] * self.num_envs

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
