"""The learner of Continual PPO (Algorithm 3 of the paper), without the work that its mini-batches don't need."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo.ppo import LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY, LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.torch_utils import explained_variance
from torch import Tensor

from cbp_ray.algorithm.adam import Adam
from rllib_ext.learners.advantages import Advantages
from rllib_ext.learners.compiled_update import CompiledUpdate, LossSettings, Outcome, refusal, unsuitable
from rllib_ext.learners.minibatches import MiniBatches
from rllib_ext.learners.mixin import ContinualBackpropLearnerMixin
from rllib_ext.learners.plain_batch import PlainBatch, is_plain
from rllib_ext.plain_module import PlainActorCritic, plain_actor_critic

LOGGER = logging.getLogger(__name__)

OF_MINI_BATCHES = (
    *("compute_loss_for_module", "compute_losses", "compute_gradients", "postprocess_gradients"),
    *("postprocess_gradients_for_module", "apply_gradients", "step_optimizers", "before_mini_batch"),
)
"""Methods that every mini-batch goes through: where one is overridden, compiled code must not take its place."""
EPOCHS = "num_epochs"
"""Name of a part of the state: epochs so far."""


class ContinualPPOTorchLearner(ContinualBackpropLearnerMixin, PPOTorchLearner):
    """PPO with generate-and-test on policy and value networks.

    Changes to RLlib's PPO learner, besides those of the mixin:

    - Advantages and mini-batches as in `rllib_ext.learners.advantages` and `rllib_ext.learners.minibatches`.
    - The loss is the same, to the last bit, but an entropy bonus of zero is not computed, and what is only reported is
      computed for an iteration's last mini-batch: RLlib computes it for all and reports the last.
    - Modules of the paper's kind (`rllib_ext.plain_module`) learn in compiled code (`rllib_ext.learners.compiled_update`),
      equal to rounding. A log line says which way is taken, and why not the compiled one.

    With a KL term, without a critic, or with a recurrent or masked module, RLlib's own loss is used.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._epochs = 0
        self._compiled = CompiledUpdate()
        self._reason: str | None = ""

    def build(self) -> None:
        super().build()
        if self.connectors is not None and self.config.add_default_connectors_to_learner_pipeline:
            self.connectors.remove(GeneralAdvantageEstimation)
            self.connectors.append(Advantages(gamma=self.config.gamma, lambda_=self.config.lambda_))

    def columns_of(self, episodes: list[Any]) -> dict[str, Any] | None:
        if list(self.module.keys()) != [DEFAULT_MODULE_ID] or not is_plain(self.connectors, episodes):
            return None
        found = self._compilable(DEFAULT_MODULE_ID)
        if isinstance(found, str):
            return None
        batch = PlainBatch(episodes)
        if batch.observations.dtype != np.float32 or batch.observations.ndim != 2:
            return None
        size = self.config.minibatch_size or len(batch.observations)
        values = self._compiled.values(*found, size, batch.observations)
        advantages = self.connectors[Advantages][0]
        estimated = advantages.estimated(values, batch.rewards, batch.terminated, torch.from_numpy(batch.taken))
        return {DEFAULT_MODULE_ID: batch.columns | estimated}

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

    def learn_at_once(self, batches: MiniBatches) -> Tensor | None:
        module_id = batches.module_id
        found = self._compilable(module_id)
        reason = found if isinstance(found, str) else unsuitable(batches)
        if reason != self._reason:
            self._reason = reason
            way = "in compiled code" if reason is None else f"with autograd, because {reason}"
            LOGGER.info(f"module {module_id!r} learns {way}")
        if reason is not None or isinstance(found, str):
            return None
        plain, optimizer = found
        config = self.config.get_config_for_module(module_id)
        entropy = self.entropy_coeff_schedulers_per_module[module_id].get_current_value()
        settings = LossSettings(
            clip=config.clip_param,
            entropy_coefficient=entropy,
            value_clip=config.vf_clip_param,
            value_coefficient=config.vf_loss_coeff,
            clean=not self.config.torch_skip_nan_gradients,
        )
        outcome = self._compiled.run(plain, optimizer, self._gnts.get(module_id), batches, settings)
        self._take_outcome(module_id, outcome, batches.total)
        errors = torch.pow(outcome.values - outcome.last[Postprocessing.VALUE_TARGETS], 2.0)
        value_loss = torch.clamp(errors, 0, config.vf_clip_param)
        targets = outcome.last[Postprocessing.VALUE_TARGETS]
        self._report(module_id, outcome.surrogate, value_loss, errors, targets, outcome.values, outcome.entropy)
        loss: torch.Tensor = torch.mean(-outcome.surrogate + config.vf_loss_coeff * value_loss) - entropy * outcome.entropy
        return loss

    def _compilable(self, module_id: str) -> tuple[PlainActorCritic, Adam] | str:
        """The networks and the optimizer of a module that compiled code may train, or why it may not."""
        reason = self._needs_autograd(module_id)
        plain = plain_actor_critic(self.module[module_id]) if reason is None else reason
        if isinstance(plain, str):
            return plain
        optimizers = [optimizer for _, optimizer in self.get_optimizers_for_module(module_id)]
        return refusal(plain, optimizers, self._gnts.get(module_id)) or (plain, optimizers[0])

    def _needs_autograd(self, module_id: str) -> str | None:
        """Why mini-batches must be learned from one by one, or None."""
        config = self.config.get_config_for_module(module_id)
        other = config.plasticity_method() if hasattr(config, "plasticity_method") else None
        overridden = self.with_own(OF_MINI_BATCHES, ContinualPPOTorchLearner)
        reasons = {
            "gradients are averaged over several learners": self.distributed,
            f"{other.label if other else ''} acts around the optimizer's steps": other is not None,
            "there are several modules": len(list(self.module.keys())) > 1,
            f"{type(self).__name__} has a {', '.join(overridden)} of its own": bool(overridden),
            "the loss has a KL term": config.use_kl_loss,
            "there is no critic": not config.use_critic,
            "gradients are clipped or reported": config.grad_clip is not None or config.log_gradients,
            "torch has schedulers of the learning rate or scales gradients": not self.plain_steps,
            "the learner is compiled by torch": self.config.torch_compile_learner,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _take_outcome(self, module_id: str, outcome: Outcome, steps: int) -> None:
        """Counts and keeps what an iteration in compiled code did, as the mini-batches do one by one."""
        self._gradient_steps += steps
        self.report_off_policyness({module_id: outcome.last})
        if outcome.report is not None:
            self._reports[module_id] = outcome.report
            self._replaced[module_id] += outcome.replaced
        if module_id in self._diagnostics:
            self._diagnostics[module_id].take(outcome.hidden)
        names = {p: name for name, p in self.module[module_id].named_parameters()}
        for p, count in outcome.nonfinite.items():
            LOGGER.warning(f"gradients of {names[p]} contained nan/inf values in {count} of {steps} mini-batches")

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
            self._report(module_id, surrogate, value_loss, errors, targets, values, policy.entropy())
        return torch.mean(objective)

    def _report(
        self,
        module_id: str,
        surrogate: Tensor,
        value_loss: Tensor,
        errors: Tensor,
        targets: Tensor,
        values: Tensor,
        entropy: Tensor,
    ) -> None:
        """Reports the parts of a mini-batch's loss."""
        reported = {
            POLICY_LOSS_KEY: -torch.mean(surrogate),
            VF_LOSS_KEY: torch.mean(value_loss),
            LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY: torch.mean(errors),
            LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY: explained_variance(targets, values),
            ENTROPY_KEY: torch.mean(entropy),
        }
        self.metrics.log_dict({name: value.detach() for name, value in reported.items()}, key=module_id, window=1)

    def _own_state(self) -> dict[str, int]:
        return super()._own_state() | {EPOCHS: self._epochs}

    def _set_own_state(self, state: dict[str, Any]) -> None:
        super()._set_own_state(state)
        self._epochs = int(state[EPOCHS])
