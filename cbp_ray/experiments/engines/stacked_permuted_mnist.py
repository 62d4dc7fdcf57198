"""`engine="torch"` for several seeds of Permuted MNIST at once in one process, on a GPU or a CPU.

The networks stand side by side in one (`cbp_ray.algorithm.stacked_linear`), so a step is the same few batched operations
however many runs there are. Equal to `torch_permuted_mnist.MnistRun`, run by run, up to rounding: batched products may add
in another order.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cbp_ray.algorithm.stacked_linear import load_run
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Metrics, check_complete
from cbp_ray.experiments.engines.torch_learner import Learner, build_network
from cbp_ray.experiments.engines.torch_permuted_mnist import describe, make_problem, take
from cbp_ray.experiments.engines.torch_runs import flatten, unflatten
from cbp_ray.problems.mnist_files import Images

TAKEN_AT_ONCE = 512
"""Number of examples of every run that are put on the device at a time."""


class StackedRuns:
    """Runs of one config of Permuted MNIST, one per seed, that advance together; an `Engine`.

    Args:
      config: the experiment.
      seeds: one per run.
      device: where all of them learn.
      images: instead of the config's data set, for tests.
    """

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], device: str = "cpu", images: Images | None = None) -> None:
        self.config, self.runs = config, len(seeds)
        self.problems = [make_problem(config, seed, images) for seed in seeds]
        self.learner = Learner(config, tuple(seeds), self.problems[0].inputs, self._losses, device)
        # A plain network, which gets the weights of one run at a time.
        self.single = build_network(config, 0, self.problems[0].inputs).to(self.learner.device)

    def _losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.view(self.runs, -1), labels, reduction="none")

    def advance(self, examples: int) -> Metrics:
        learner = self.learner
        right, loss = torch.zeros(2, self.runs, dtype=torch.float64, device=learner.device)
        replaced, nonfinite = self._counts()
        end = learner.examples + examples
        while learner.examples < end:
            count = min(TAKEN_AT_ONCE, end - learner.examples)
            taken = [take(learner, problem, count) for problem in self.problems]
            xs = torch.cat([x for x, _ in taken], dim=1)  # [count, runs·pixels]
            ys = torch.stack([y for _, y in taken], dim=1)  # [count, runs]
            for t in range(count):
                outputs, losses = learner.learn(xs[t : t + 1], ys[t])
                right += outputs.view(self.runs, -1).argmax(1) == ys[t]
                loss += losses
            learner.examples += count
        replaced_now, nonfinite_now = self._counts()
        at_end = [self._describe(run) for run in range(self.runs)]
        metrics = {
            "accuracy": right.cpu().numpy() / examples,
            "loss": loss.cpu().numpy() / examples,
            **{name: np.array([found[name] for found in at_end]) for name in at_end[0]},
            "replacements": replaced_now - replaced,
            "nonfinite_utilities": nonfinite_now - nonfinite,
        }
        return {name: metrics[name] for name in self.config.metrics}

    def _counts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each run, the units replaced and the units passed over for a utility that was not finite, so far."""
        counts = (list(getattr(self.learner.after_step, name, {}).values()) for name in ("replaced", "nonfinite"))
        replaced, nonfinite = (np.array(count, dtype=np.float64).reshape(-1, self.runs).sum(0) for count in counts)
        return replaced, nonfinite

    def _describe(self, run: int) -> dict[str, float]:
        load_run(self.single, self.learner.model, run, self.runs)
        return describe(self.learner, self.problems[run], self.single)

    def state(self) -> Arrays:
        return dict(flatten(self.learner.state()))

    def load_state(self, state: Arrays, examples: int) -> None:
        # Optimizers make their state at the first step; what it does to the rest is overwritten.
        inputs = torch.zeros(1, self.runs * self.problems[0].inputs, dtype=self.learner.dtype, device=self.learner.device)
        self.learner.learn(inputs, torch.zeros(self.runs, dtype=torch.int64, device=self.learner.device))
        check_complete(state, self.state())
        self.learner.load_state(unflatten(state), examples)
