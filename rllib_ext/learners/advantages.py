"""Generalized advantage estimation on the episodes of an iteration, as a learner connector."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from cbp_ray.compiled.ppo import discounted_sums
from cbp_ray.errors import InputError
from rllib_ext.learners.minibatches import rows_of

UNUSED = (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)
"""Columns that no mini-batch needs once there are advantages and value targets."""


def generalized_advantages(
    values: NDArray[np.float64],
    rewards: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    chunk_ends: NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> NDArray[np.float64]:
    """Âₜ = δₜ + γλ Âₜ₊₁ with δₜ = rₜ + γ V(sₜ₊₁) - V(sₜ) (Schulman et al. 2016), for episodes end to end.

    Args:
      values: V(s), one per row, as are `rewards`, r.
      terminated: rows whose next state is terminal: its value is zero.
      chunk_ends: rows that hold nothing but the state after an episode's (or its part's) last step, for its value. The sum
        does not reach across them, and what is returned for them has no meaning.
      gamma: discount factor γ; `lambda_` is λ.
    """
    deltas = rewards + gamma * np.where(terminated, 0.0, np.append(values[1:], 0.0)) - values
    # The last step of an episode stands before its chunk end.
    goes_on = ~np.append(chunk_ends[1:], True)
    decay = np.where(goes_on, gamma * lambda_, 0.0)
    discounted_sums(deltas, decay)
    return deltas


class Advantages(ConnectorV2):
    """Puts advantages and value targets into the batch, and leaves in it exactly the steps that were taken.

    Changes to RLlib's `GeneralAdvantageEstimation`:

    - The rows that hold only the state after an episode's last step leave the batch once their values are known. RLlib keeps
      and masks them, so that mini-batches hold fewer steps than asked for, the units of the networks see them, and an
      iteration of 4096 steps makes more than 320 mini-batches.
    - Mean and standard deviation, with which advantages are standardized, are those of the steps taken.
    - Values are computed without a graph for gradients that nobody asks for.
    """

    def __init__(self, *, gamma: float, lambda_: float) -> None:
        super().__init__()
        self.gamma, self.lambda_ = gamma, lambda_
        self.stock = GeneralAdvantageEstimation(gamma=gamma, lambda_=lambda_)

    def __call__(self, *, rl_module: MultiRLModule, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> Any:
        if any(rl_module[module_id].is_stateful() for module_id in batch):
            with torch.no_grad():
                return self.stock(rl_module=rl_module, batch=batch, episodes=episodes, **kwargs)
        for module_id, columns in batch.items():
            batch[module_id] = self._with_advantages(rl_module[module_id].unwrapped(), columns)
        return batch

    @torch.no_grad()
    def _with_advantages(self, module: Any, columns: dict[str, Any]) -> dict[str, Any]:
        taken = columns[Columns.LOSS_MASK]
        values: Tensor = module.compute_values(columns)
        rewards, terminated = columns[Columns.REWARDS].double(), columns[Columns.TERMINATEDS].bool()
        kept = {name: rows_of(column, taken) for name, column in columns.items() if name not in UNUSED}
        return kept | self.estimated(values, rewards.cpu().numpy(), terminated.cpu().numpy(), taken)

    def estimated(
        self, values: Tensor, rewards: NDArray[np.float64], terminated: NDArray[np.bool_], taken: Tensor
    ) -> dict[str, Tensor]:
        """Value targets and standardized advantages of the rows `taken`; the others are the ends of episodes."""
        v, chunk_ends = values.double().cpu().numpy(), ~taken.bool().cpu().numpy()
        advantages = generalized_advantages(v, rewards, terminated, chunk_ends, self.gamma, self.lambda_)
        estimated = torch.from_numpy(advantages).to(values)[taken]
        if not len(estimated):
            raise InputError("an iteration has no time-step to learn from; check the environment and the batch size")
        spread = estimated.std(correction=0).clamp_min(1e-4)
        return {
            Postprocessing.VALUE_TARGETS: estimated + values[taken],
            Postprocessing.ADVANTAGES: (estimated - estimated.mean()) / spread,
        }
