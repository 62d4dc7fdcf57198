"""The train batch of an iteration straight from its episodes, where RLlib's connectors would handle every time-step by itself.

It holds what the default pipeline of a single agent with a stateless module leaves behind `rllib_ext.learners.advantages`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.connectors.common.batch_individual_items import BatchIndividualItems
from ray.rllib.connectors.common.numpy_to_tensor import NumpyToTensor
from ray.rllib.connectors.learner import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
)
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.torch_utils import convert_to_torch_tensor
from torch import Tensor

from rllib_ext.learners.advantages import Advantages

DEFAULT = [AddOneTsToEpisodesAndTruncate, AddObservationsFromEpisodesToBatch, AddColumnsFromEpisodesToTrainBatch]
DEFAULT += [AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor, Advantages]
"""The pieces of a pipeline to which nobody has added any."""


class PlainBatch:
    """Columns of all time-steps, and what advantages are made of.

    Rows of `observations`, `rewards`, `terminated` and `taken` include one for the state after each episode's last step.
    """

    def __init__(self, episodes: list[SingleAgentEpisode]) -> None:
        episodes = [episode for episode in episodes if len(episode)]
        lengths = [len(episode) for episode in episodes]
        ends = np.cumsum([length + 1 for length in lengths]) - 1
        self.taken = np.ones(sum(lengths) + len(lengths), bool)
        self.taken[ends] = False
        self.observations: NDArray[Any] = _joined([e.get_observations(slice(0, len(e) + 1)) for e in episodes])
        # As tensors, rewards are float32.
        self.rewards = np.zeros(len(self.taken))
        self.rewards[self.taken] = _joined([e.get_rewards(slice(0, len(e))) for e in episodes]).astype(np.float32)
        self.terminated = np.zeros(len(self.taken), bool)
        self.terminated[ends - 1] = [episode.is_terminated for episode in episodes]
        columns = {
            Columns.OBS: self.observations[self.taken],
            Columns.ACTIONS: _joined([e.get_actions(slice(0, len(e))) for e in episodes]),
        }
        for name in episodes[0].extra_model_outputs:
            columns[name] = _joined([e.get_extra_model_outputs(key=name, indices=slice(0, len(e))) for e in episodes])
        self.columns: dict[str, Tensor] = convert_to_torch_tensor(columns)


def is_plain(connectors: Any, episodes: Any) -> bool:
    """Whether a `PlainBatch` holds what these connectors would make of these episodes."""
    if connectors is None or [type(piece) for piece in connectors.connectors] != DEFAULT:
        return False
    if not episodes or any(type(episode) is not SingleAgentEpisode for episode in episodes) or not any(map(len, episodes)):
        return False
    names = set(episodes[0].extra_model_outputs)
    states = {Columns.STATE_IN, Columns.STATE_OUT} & names
    return not states and all(set(episode.extra_model_outputs) == names for episode in episodes)


def _joined(parts: list[Any]) -> NDArray[Any]:
    return np.concatenate([np.asarray(part) for part in parts])
