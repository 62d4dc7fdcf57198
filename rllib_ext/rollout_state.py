"""What an env runner is in the middle of, so that a run goes on in another process as if nothing had happened.

RLlib's checkpoints leave this out: after them, environments begin new episodes. Ours is of a runner with environments of its
own (not in further processes) and the lean connectors.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Wrapper
from gymnasium.wrappers import TimeLimit
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rllib_ext.slippery_ant import SlipperyAnt

if TYPE_CHECKING:
    from rllib_ext.env_runner import SlipperyEnvRunner


def has_rollout(runner: "SlipperyEnvRunner") -> bool:
    """Whether there is something to save, of a kind that can be saved."""
    environments = getattr(getattr(runner.env, "unwrapped", None), "envs", ())
    # A subclass may have a state that its parent knows nothing of.
    plain = environments and all(type(env.unwrapped) is SlipperyAnt and _time_limit(env) is not None for env in environments)
    return bool(plain) and bool(runner._cached_to_module) and list(runner._cached_to_module) == [Columns.OBS]


def rollout_state(runner: "SlipperyEnvRunner") -> dict[str, Any]:
    """Plain numbers, lists and arrays; for `load_rollout_state`."""
    vector: Any = runner.env.unwrapped
    return {
        "environments": [ant.state_dict() for _, ant in _environments(vector)],
        "episode_steps": [limit._elapsed_steps for limit, _ in _environments(vector)],
        "to_be_reset": vector._autoreset_envs.copy(),
        "observations": runner._cached_to_module[Columns.OBS].numpy().copy(),
        "returns": list(runner.returns),
        "episodes": [[episode.id_, episode.t] if episode.is_reset else None for episode in runner._ongoing_episodes],
        "begins_anew": runner._needs_initial_reset,
    }


def load_rollout_state(runner: "SlipperyEnvRunner", state: dict[str, Any]) -> None:
    """Puts a new runner of the same config where another one was."""
    vector: Any = runner.env.unwrapped
    for env in vector.envs:
        env.reset()  # or Gymnasium's wrappers would not let it step
    for (limit, ant), ant_state, steps in zip(
        _environments(vector), state["environments"], state["episode_steps"], strict=True
    ):
        ant.load_state_dict(ant_state)
        limit._elapsed_steps = steps
    vector._autoreset_envs = np.array(state["to_be_reset"])
    observations = np.array(state["observations"])
    runner._shared_data = {}
    runner._cached_to_module = {Columns.OBS: torch.from_numpy(observations)}
    runner._ongoing_episodes_for_metrics.clear()
    for index, begun in enumerate(state["episodes"]):
        runner._new_episode(index)
        if begun is not None:
            name, steps = begun
            runner._ongoing_episodes[index] = SingleAgentEpisode(
                id_=name,
                observations=[observations[index]],
                infos=[{}],
                observation_space=vector.single_observation_space,
                action_space=vector.single_action_space,
                t_started=steps,
                len_lookback_buffer=0,
            )
            if steps:
                runner._ongoing_episodes_for_metrics[name].append(Earlier(steps, state["returns"][index]))
    runner.returns = list(state["returns"])
    runner.forget_frictions()
    runner._needs_initial_reset = state["begins_anew"]


class Earlier:
    """The part of an episode before a checkpoint, for RLlib's statistics of episodes; how long it took is not known."""

    def __init__(self, steps: int, episode_return: float) -> None:
        self.steps, self.episode_return = steps, episode_return

    def __len__(self) -> int:
        return self.steps

    def get_return(self) -> float:
        """The sum of its rewards."""
        return self.episode_return

    def get_duration_s(self) -> float:
        """Not known, and not counted."""
        return 0.0


def _environments(vector: Any) -> Iterator[tuple[TimeLimit[Any, Any], SlipperyAnt]]:
    """Each with the wrapper that counts its steps."""
    for env in vector.envs:
        limit = _time_limit(env)
        assert limit is not None
        yield limit, env.unwrapped


def _time_limit(env: Any) -> TimeLimit[Any, Any] | None:
    while isinstance(env, Wrapper):
        if isinstance(env, TimeLimit):
            return env
        env = env.env
    return None
