"""RLlib's torch learner, opened: everything that we use of its private parts is in this file."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils import metrics as names
from torch import Tensor

from rllib_ext.learners.minibatches import MiniBatch, MiniBatches
from rllib_ext.plain_state import to_arrays, to_tensors


class OpenLearner(TorchLearner):
    """A torch learner of RLlib with hooks in its loop over mini-batches, and without work that nobody asks for."""

    reporting = True
    """Whether what the present mini-batch reports is kept: RLlib keeps the reports of an iteration's last one."""
    _rows = 0
    _loss: Tensor | None = None
    """Loss of the last mini-batch of an iteration that is learned from already."""

    @property
    def learner_index(self) -> int:
        """The place of this learner among several."""
        return int(self._learner_index)

    @property
    def plain_steps(self) -> bool:
        """Whether gradients go to the optimizers as they are, or would but for numbers that are not finite."""
        return self._lr_scheduler_classes is None and self._grad_scalers is None

    def with_own(self, names: Iterable[str], known: type) -> list[str]:
        """Those of some methods, and of RLlib's for one mini-batch, that are not those of the class `known`."""
        own = (*names, "_update", "_compute_off_policyness")
        return [name for name in own if getattr(type(self), name) is not getattr(known, name) or name in vars(self)]

    def report_off_policyness(self, batch: dict[str, Any]) -> None:
        """Reports how old the weights are with which a mini-batch was sampled."""
        self._compute_off_policyness(batch)

    @property
    def connectors(self) -> Any:
        """The pipeline that makes a batch of episodes; None if there is none."""
        return self._learner_connector

    def columns_of(self, episodes: list[Any]) -> dict[str, Any] | None:
        """The whole batch by module, made without connectors; None: they are needed."""
        return None

    def mini_batches(self, columns: dict[str, Any], stock: Iterable[Any], **kwargs: Any) -> Iterable[Any]:
        """The mini-batches of an iteration.

        Args:
          columns: the whole batch by module.
          stock: RLlib's own mini-batches of it.
          kwargs: what `update` was called with.
        """
        return stock

    def learn_at_once(self, batches: MiniBatches) -> Tensor | None:
        """Learns from all mini-batches of an iteration in one go. Returns the last one's loss; None: one by one."""
        return None

    def before_mini_batch(self, module_ids: list[str]) -> None:
        """Is called before each update, with the modules that have data in the mini-batch."""

    def has_component(self, name: str, components: Any, not_components: Any) -> bool:
        """Whether a part of the state is wanted by one who calls `get_state` with these arguments."""
        return bool(self._check_component(name, components, not_components))

    def accept_older_weights(self) -> None:
        """Lets `set_state` go back: RLlib keeps its weights where it has made more updates than the state's owner."""
        self._weights_seq_no = 0

    def step_optimizers(self, gradients: dict[Any, Tensor]) -> None:
        """RLlib's `apply_gradients`, or the part of it that is left when all gradients are finite."""
        if not self.plain_steps or not gradients or not _all_finite(list(gradients.values())):
            super().apply_gradients(gradients)
            return
        for param, gradient in gradients.items():
            self._params[param].grad = gradient
        for optimizer in self._named_optimizers.values():
            optimizer.step()

    def _make_batch_if_necessary(self, training_data: Any) -> Any:
        episodes = training_data.episodes
        columns = None if episodes is None or training_data.batch is not None else self._plain_columns(episodes)
        if columns is not None:
            batches = {module_id: SampleBatch(rows) for module_id, rows in columns.items()}
            return MultiAgentBatch(batches, env_steps=sum(map(len, episodes)))
        with torch.no_grad():  # values for advantages need no graph, and are no part of any mini-batch
            return super()._make_batch_if_necessary(training_data)

    def _plain_columns(self, episodes: list[Any]) -> dict[str, Any] | None:
        """`columns_of`, with the reports of a pipeline of connectors."""
        with self.metrics.log_time((names.ALL_MODULES, names.LEARNER_CONNECTOR, names.CONNECTOR_PIPELINE_TIMER)):
            columns = self.columns_of(episodes)
        if columns is not None:
            steps = sum(map(len, episodes))
            for name in (names.LEARNER_CONNECTOR_SUM_EPISODES_LENGTH_IN, names.LEARNER_CONNECTOR_SUM_EPISODES_LENGTH_OUT):
                self.metrics.log_value((names.ALL_MODULES, name), steps)
        return columns

    def _create_iterator_if_necessary(self, **kwargs: Any) -> Any:
        stock = super()._create_iterator_if_necessary(**kwargs)
        if isinstance(stock, dict):  # RLlib returns an empty one, and stumbles over it later
            raise RuntimeError(
                "no module that is to be trained has data in this iteration; check policies_to_train in "
                ".multi_agent(...) and the environment"
            )
        batch = getattr(stock, "_batch", None)
        chosen = stock if batch is None else self.mini_batches(batch.policy_batches, stock, **kwargs)
        return self._all_or_each(chosen) if isinstance(chosen, MiniBatches) else chosen

    def _all_or_each(self, batches: MiniBatches) -> Iterator[MiniBatch]:
        self._loss = self.learn_at_once(batches)
        if self._loss is not None:
            yield batches.at_once()
            return
        for batch in batches:
            self.reporting = batch.is_last
            yield batch
        self.reporting = True

    def _update(self, batch: dict[str, Any]) -> Any:
        if self._loss is not None:
            losses, self._loss = dict.fromkeys(batch, self._loss), None
            return {}, losses, {}
        self.before_mini_batch(list(batch))
        return super()._update(batch)

    def _compute_off_policyness(self, batch: dict[str, Any]) -> None:
        if self.reporting:
            super()._compute_off_policyness(batch)

    def _log_metrics(self, batch: Any) -> None:
        if not isinstance(batch, MiniBatch):
            super()._log_metrics(batch)

    def _log_steps_trained_metrics(self, batch: Any) -> None:
        """Counts once per iteration: RLlib's counters are sums, and each of its entries costs as much as a small layer."""
        if not isinstance(batch, MiniBatch):
            super()._log_steps_trained_metrics(batch)
            return
        self._rows += batch.env_steps()
        if not batch.is_last:
            return
        (module_id,) = batch.policy_batches
        super()._log_metrics(MiniBatch({module_id: range(self._rows)}, self._rows, is_last=True))
        self.metrics.log_value((module_id, names.WEIGHTS_SEQ_NO), self._weights_seq_no, window=1)
        self.metrics.log_value((module_id, names.MODULE_TRAIN_BATCH_SIZE_MEAN), batch.rows, reduce="mean")
        for owner, sums, lifetime in (
            (module_id, names.NUM_MODULE_STEPS_TRAINED, names.NUM_MODULE_STEPS_TRAINED_LIFETIME),
            (names.ALL_MODULES, names.NUM_MODULE_STEPS_TRAINED, names.NUM_MODULE_STEPS_TRAINED_LIFETIME),
            (names.ALL_MODULES, names.NUM_ENV_STEPS_TRAINED, names.NUM_ENV_STEPS_TRAINED_LIFETIME),
        ):
            self.metrics.log_value((owner, sums), self._rows, reduce="sum")
            self.metrics.log_value((owner, lifetime), self._rows, reduce="lifetime_sum", with_throughput=True)
        self._rows = 0

    def _get_optimizer_state(self) -> dict[str, Any]:
        return {
            name: {"module_id": self._optimizer_name_to_module[name], "state": to_arrays(optimizer.state_dict())}
            for name, optimizer in self._named_optimizers.items()
        }

    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Loads states as RLlib, but numbers stay what they are: RLlib makes float32 of counters and of float64 moments."""
        for name, saved in state.items():
            if name in self._named_optimizers:
                self._named_optimizers[name].load_state_dict(to_tensors(saved["state"]))


def _all_finite(gradients: list[Tensor]) -> bool:
    """One look at all gradients together; RLlib takes two at each. Norms too large to be numbers count as not finite."""
    return bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
