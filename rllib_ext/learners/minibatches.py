"""Mini-batches of an iteration: "divide and shuffle the collected trajectories into mini-batches" (Algorithm 3)."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import tree
from torch import Tensor

from cbp_ray.randomness import Purpose, words


def rows_of(column: Any, index: Tensor) -> Any:
    """Some rows of a column, which is a tensor or, for spaces of several parts, a nest of tensors."""
    return column[index] if isinstance(column, Tensor) else tree.map_structure(lambda part: part[index], column)


class MiniBatch(NamedTuple):
    """What a learner's loop needs of RLlib's `MultiAgentBatch`, whose making costs as much as a forward pass."""

    policy_batches: dict[str, Any]
    """Columns by module."""
    rows: int
    """Number of time-steps."""
    is_last: bool
    """Whether it is the last one of its iteration."""
    stands_for: int = 1
    """For how many mini-batches of so many rows it stands."""

    def env_steps(self) -> int:
        """The number of time-steps, as RLlib asks for it."""
        return self.rows * self.stands_for


class MiniBatches:
    """Rows of one module's train batch in mini-batches, newly shuffled in every epoch.

    Differs from RLlib's iterator, which leaves the first epoch in the order of sampling. As there, a mini-batch may reach into
    the next epoch if the rows don't divide into mini-batches; what is left after the last epoch is dropped.

    The order is a function of seed, learner and the number of epochs so far, whatever else draws random numbers.

    Args:
      module_id: the module whose rows these are.
      columns: tensors, or nests of tensors, with one row per time-step.
      num_epochs: how many times to go through all rows, unless `total` is given.
      minibatch_size: rows per mini-batch.
      seed: seed of the order; `learner` and `first_epoch`, the number of epochs before, are the other parts of its key.
      total: number of mini-batches, if all learners must make the same number.
    """

    def __init__(
        self,
        module_id: str,
        columns: dict[str, Any],
        *,
        num_epochs: int,
        minibatch_size: int,
        seed: int,
        learner: int = 0,
        first_epoch: int = 0,
        total: int = 0,
    ) -> None:
        self.module_id, self.columns = module_id, columns
        first_column: Tensor = tree.flatten(columns)[0]
        self.rows, self.device = len(first_column), first_column.device
        self.size = min(minibatch_size, self.rows)
        self.total = total or num_epochs * self.rows // self.size
        self.epochs = -(-self.total * self.size // self.rows)
        """Number of epochs that the mini-batches reach into."""
        self.seed, self.learner, self.first_epoch = seed, learner, first_epoch

    def __iter__(self) -> Iterator[MiniBatch]:
        order = self.order()
        for number in range(self.total):
            index = order[number * self.size : (number + 1) * self.size]
            yield MiniBatch({self.module_id: self.rows_at(index)}, self.size, number == self.total - 1)

    def order(self) -> Tensor:
        """The rows of the first mini-batch, then those of the second, and so on."""
        return torch.cat([self._order(self.first_epoch + epoch) for epoch in range(self.epochs)]).to(self.device)

    def rows_at(self, index: Tensor) -> dict[str, Any]:
        """Some rows of all columns."""
        return {name: rows_of(column, index) for name, column in self.columns.items()}

    def at_once(self) -> MiniBatch:
        """One that stands for all mini-batches, where they were learned from in one go."""
        return MiniBatch({self.module_id: self.columns}, self.size, is_last=True, stands_for=self.total)

    def _order(self, epoch: int) -> Tensor:
        draws = words(self.seed, Purpose.MINI_BATCHES, self.rows, address=(epoch, self.learner, 0))
        return torch.from_numpy(np.argsort(draws, kind="stable"))
