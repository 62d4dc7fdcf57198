"""A rollout in arrays: what environments and policy said in each tick, and RLlib's episodes made of it in one go.

A tick is one call of all environments. In each, an environment either makes a time-step or, after the end of an episode, is
reset. The steps of an episode are thus a range of ticks of its environment.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from rllib_ext.ant.plain_policy import PlainPolicy


class Rollout:
    """Arrays of one call of an env runner's `sample`, [ticks, environments, …], made larger when they are full.

    Args:
      ticks: how many there is room for at first.
      observations: those with which the rollout begins, [environments, features].
      actions: number of actions.
    """

    def __init__(self, ticks: int, observations: NDArray[np.float32], actions: int) -> None:
        self.ticks, self.environments = ticks, len(observations)
        self.observations = np.empty((ticks + 1, *observations.shape), np.float32)
        """What the environments looked like before a tick."""
        self.observations[0] = observations
        self.means = np.empty((ticks, self.environments, actions), np.float32)
        self.actions = np.empty((ticks, self.environments, actions), np.float32)
        self.rewards = np.empty((ticks, self.environments))
        self.infos: dict[tuple[int, int], dict[str, Any]] = {}
        """By tick and environment, what came with the observation before that tick, where it was not empty."""

    def grow(self, ticks: int) -> None:
        """Makes room for `ticks` more."""
        self.ticks += ticks
        for name in ("observations", "means", "actions", "rewards"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty((ticks, *old.shape[1:]), old.dtype)]))

    def episode(
        self,
        so_far: SingleAgentEpisode,
        index: int,
        steps: range,
        policy: PlainPolicy,
        *,
        explored: bool,
        weights: int,
        terminated: bool = False,
        truncated: bool = False,
    ) -> SingleAgentEpisode:
        """The steps of one environment as an episode, or as a part of one, as RLlib's own loop makes it.

        Args:
          so_far: the episode before these steps: its beginning, or an empty part that remembers some steps before it.
          index: number of the environment.
          steps: the ticks.
          policy: what the actions were drawn from.
          explored: whether they were drawn, and not the most probable ones.
          weights: number of the policy's weights.
          terminated: whether the last step ended the episode; or, with `truncated`, cut it short.
        """
        rows = slice(steps.start, steps.stop)
        means, actions = self.means[rows, index], self.actions[rows, index]
        found = {
            Columns.ACTION_DIST_INPUTS: policy.distribution_inputs(means),
            Columns.ACTION_LOGP: policy.log_probabilities(actions, means) if explored else np.zeros_like(means),
            WEIGHTS_SEQ_NO: np.full(len(steps), weights),
        }
        none: dict[str, Any] = {}
        infos = [self.infos.get((tick, index), none) or {} for tick in range(steps.start + 1, steps.stop + 1)]
        outputs = so_far.extra_model_outputs
        episode = SingleAgentEpisode(
            id_=so_far.id_,
            observations=_after(so_far.observations, self.observations[steps.start + 1 : steps.stop + 1, index]),
            observation_space=so_far.observation_space,
            infos=InfiniteLookbackBuffer([*so_far.infos.data, *infos], so_far.infos.lookback),
            actions=_after(so_far.actions, actions),
            action_space=so_far.action_space,
            rewards=_after(so_far.rewards, self.rewards[rows, index]),
            terminated=terminated,
            truncated=truncated,
            extra_model_outputs={name: _after(outputs.get(name), column) for name, column in found.items()},
            t_started=so_far.t_started,
        )
        episode.custom_data.update(so_far.custom_data)
        return episode


def _after(buffer: InfiniteLookbackBuffer | None, rows: NDArray[Any]) -> InfiniteLookbackBuffer:
    """The rows, after those that a buffer already has."""
    before = [] if buffer is None else buffer.data
    data = np.concatenate([np.stack(before).astype(rows.dtype, copy=False), rows]) if len(before) else rows
    return InfiniteLookbackBuffer(np.ascontiguousarray(data), 0 if buffer is None else buffer.lookback, _space(buffer))


def _space(buffer: InfiniteLookbackBuffer | None) -> gymnasium.Space[Any] | None:
    return None if buffer is None else buffer.space


def continuation(episode: SingleAgentEpisode, remembered: int) -> SingleAgentEpisode:
    """An empty part that continues `episode`, to which steps can be added; it remembers some steps before it.

    As `SingleAgentEpisode.cut`, whose parts of an episode of arrays can't take more steps.
    """
    cut = episode.cut(len_lookback_buffer=remembered)
    outputs = cut.extra_model_outputs.values()
    for buffer in (cut.observations, cut.actions, cut.rewards, *outputs):
        buffer.data, buffer.finalized = list(np.array(buffer.data)), False
    return cut


def as_lists(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """The same episode with lists of rows in place of arrays, for those who ask RLlib for that."""
    for buffer in (episode.observations, episode.actions, episode.rewards, *episode.extra_model_outputs.values()):
        buffer.data, buffer.finalized = list(buffer.data), False
    return episode
