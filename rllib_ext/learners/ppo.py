"""The learner of Continual PPO (Algorithm 3 of the paper), without the work that its mini-batches don't need."""

from collections.abc import Iterable
from typing import Any

import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance

from rllib_ext.learners.advantages import Advantages
from rllib_ext.learners.minibatches import MiniBatches
from rllib_ext.learners.mixin import ContinualBackpropLearnerMixin

EPOCHS = "num_epochs"
"""Name of a part of the state: epochs so far."""


class ContinualPPOTorchLearner(ContinualBackpropLearnerMixin, PPOTorchLearner):
    """PPO with generate-and-test on policy and value networks.

    Changes to RLlib's PPO learner, besides those of the mixin:

    - Advantages and mini-batches as in `rllib_ext.learners.advantages` and `rllib_ext.learners.minibatches`.
    - The loss is the same, to the last bit, but an entropy bonus of zero is not computed, and what is only reported is
      computed for an iteration's last mini-batch: RLlib computes it for all and reports the last.

    With a KL term, without a critic, or with a recurrent or masked module, RLlib's own loss is used.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._epochs = 0

    def build(self) -> None:
        super().build()
        if self.connectors is not None and self.config.add_default_connectors_to_learner_pipeline:
            self.connectors.remove(GeneralAdvantageEstimation)
            self.connectors.append(Advantages(gamma=self.config.gamma, lambda_=self.config.lambda_))

    def mini_batches(self, columns: dict[str, Any], stock: Iterable[Any], **kwargs: Any) -> Iterable[Any]:
        if not kwargs["minibatch_size"] or not kwargs["shuffle_batch_per_epoch"] or len(columns) > 1:
            return stock
        ((module_id, rows),) = columns.items()
        if Columns.LOSS_MASK in rows or Columns.SEQ_LENS in rows or self.module[module_id].is_stateful():
            return stock
        sizes = {"num_epochs": kwargs["num_epochs"], "minibatch_size": kwargs["minibatch_size"]}
        order = {"seed": self.config.seed or 0, "learner": self.learner_index, "first_epoch": self._epochs}
        batches = MiniBatches(module_id, dict(rows), **sizes, **order, total=kwargs["num_total_minibatches"])
        self._epochs += batches.epochs
        return batches

    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]) -> Any:
        if config.use_kl_loss or not config.use_critic or Columns.LOSS_MASK in batch:
            return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        module = self.module[module_id].unwrapped()
        policy = module.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        ratio = torch.exp(policy.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP])
        advantages = batch[Postprocessing.ADVANTAGES]
        clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
        surrogate = torch.min(advantages * ratio, advantages * clipped)
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        targets = batch[Postprocessing.VALUE_TARGETS]
        errors = torch.pow(values - targets, 2.0)
        value_loss = errors if config.vf_clip_param == float("inf") else torch.clamp(errors, 0, config.vf_clip_param)
        objective = -surrogate + config.vf_loss_coeff * value_loss
        entropy_coefficient = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        if entropy_coefficient:
            objective = objective - entropy_coefficient * policy.entropy()
        if self.reporting:
            reported = {
                POLICY_LOSS_KEY: -torch.mean(surrogate),
                VF_LOSS_KEY: torch.mean(value_loss),
                LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: torch.mean(errors),
                LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: explained_variance(targets, values),
                ENTROPY_KEY: torch.mean(policy.entropy()),
            }
            self.metrics.log_dict({name: value.detach() for name, value in reported.items()}, key=module_id, window=1)
        return torch.mean(objective)

    def _own_state(self) -> dict[str, int]:
        return super()._own_state() | {EPOCHS: self._epochs}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        super()._set_own_state(state)
        self._epochs = int(state[EPOCHS])
