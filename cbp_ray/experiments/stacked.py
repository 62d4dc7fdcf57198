"""`engine="torch"` for several runs of Permuted MNIST at once in one process, on a GPU or a CPU.

Seeds and hyper-parameters are stacked: a step is the same few batched operations however many runs there are. On a GPU it is
recorded once as a CUDA graph and replayed. Equal to `torch_mnist.MnistRun`, run by run, up to rounding: batched products may
add in another order.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cbp_ray.errors import InputError
from cbp_ray.experiments import hidden_outputs as representation
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Metrics, check_complete
from cbp_ray.experiments.hidden_outputs import layer_metrics
from cbp_ray.experiments.stacked_network import NORM_EPSILON, StackedNetworks, activate
from cbp_ray.experiments.stacked_replacement import StackedReplacement
from cbp_ray.methods import ContinualBackprop
from cbp_ray.problems import PermutedMnistConfig
from cbp_ray.problems.mnist_files import Images
from cbp_ray.problems.permuted_mnist import WHITE, PermutedMnist

TAKEN_AT_ONCE = 512
"""Examples of every run that are put on the device at a time."""

WARM_UP = 3
"""Steps that CUDA wants to see before it records one."""


class StackedRuns:
    """Runs of Permuted MNIST that advance together; an `Engine`.

    Args:
      configs: one per run. They may differ in numbers (step size, weight decay, replacement rate, …), not in kind.
      seeds: one per run.
      images: instead of the configs' data set, for tests.
      device: by default the GPU, if there is one.
    """

    def __init__(
        self,
        configs: Sequence[OnlineConfig],
        seeds: Sequence[int],
        images: Images | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        _check_alike(configs)
        self.config, self.runs = configs[0], len(configs)
        problem = self.config.problem
        assert isinstance(problem, PermutedMnistConfig)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.problems = [PermutedMnist(seed, images or problem.dataset, problem.task_length) for seed in seeds]
        self.networks = StackedNetworks(configs, seeds, self.problems[0].inputs, self.device)
        self.gnt: StackedReplacement | None = None
        settings = [c.algorithm for c in configs if isinstance(c.algorithm, ContinualBackprop)]
        if settings:
            self.gnt = StackedReplacement(self.networks, settings, seeds)
        self.examples = 0
        self._x = torch.zeros(self.runs, 1, self.problems[0].inputs, dtype=self.networks.dtype, device=self.device)
        self._y = torch.zeros(self.runs, 1, 1, dtype=torch.int64, device=self.device)
        self._right = torch.zeros(self.runs, dtype=torch.float64, device=self.device)
        self._loss = torch.zeros(self.runs, dtype=torch.float64, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    def _learn(self) -> None:
        """One example of every run, from `_x` and `_y`: always the same operations on the same memory."""
        outputs = self.networks.forward(self._x)
        logarithms = outputs.log_softmax(2)
        self._right.add_((outputs.argmax(2, keepdim=True) == self._y).view(-1))
        self._loss.sub_(logarithms.gather(2, self._y).view(-1))
        delta = logarithms.exp()
        delta.scatter_add_(2, self._y, torch.full_like(self._y, -1, dtype=delta.dtype))
        self.networks.backward(delta)
        self.networks.step()
        if self.gnt is not None:
            self.gnt.observe()

    def _record(self) -> None:
        """Records `_learn` as a CUDA graph, without a trace of the steps that it takes to do so."""
        kept = [(tensor, tensor.clone()) for tensor in (*self._tensors().values(), self._right, self._loss)]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._learn()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._learn()
        for tensor, before in kept:
            tensor.copy_(before)
        self._graph = graph

    @torch.no_grad()
    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples of every run; the metrics over them, each [runs]."""
        self._right.zero_()
        self._loss.zero_()
        before = self._counts()
        if self.device.type == "cuda" and self._graph is None:
            self._record()
        end = self.examples + examples
        while self.examples < end:
            count = min(TAKEN_AT_ONCE, end - self.examples)
            taken = [problem.take(count, self.examples) for problem in self.problems]
            xs = torch.from_numpy(np.stack([x for x, _ in taken], axis=1)).to(self.device)  # [count, runs, pixels]
            ys = torch.from_numpy(np.stack([y for _, y in taken], axis=1)).to(self.device)
            for t in range(count):
                self._x.copy_(xs[t].unsqueeze(1)).div_(WHITE)
                self._y.copy_(ys[t].view(-1, 1, 1))
                if self._graph is not None:
                    self._graph.replay()
                else:
                    self._learn()
                if self.gnt is not None:
                    self.gnt.replace()
            self.examples += count
        replaced, nonfinite = (now - then for now, then in zip(self._counts(), before, strict=True))
        at_end = [self._describe(run) for run in range(self.runs)]
        metrics: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {
            "accuracy": self._right.cpu().numpy() / examples,
            "loss": self._loss.cpu().numpy() / examples,
            **{name: np.array([found[name] for found in at_end]) for name in at_end[0]},
            "replacements": replaced.astype(np.float64),
            "nonfinite_utilities": nonfinite.astype(np.float64),
        }
        return {name: metrics[name] for name in self.config.metrics}

    def _counts(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """Per run: units replaced, and units passed over for a utility that was not finite."""
        if self.gnt is None:
            return np.zeros(self.runs, dtype=np.int64), np.zeros(self.runs, dtype=np.int64)
        return self.gnt.replaced.sum(axis=0), self.gnt.nonfinite.sum(axis=0)

    def _describe(self, run: int) -> dict[str, float]:
        """A run's weights, and its hidden layers on held examples of the latest task."""
        problem, networks = self.problems[run], self.networks
        held = problem.data.held_images[: representation.HELD_EXAMPLES]
        task = (self.examples - 1) // problem.task_length
        x = torch.from_numpy(problem.permuted(held, task)).to(self.device, networks.dtype).div_(WHITE)
        layers = []
        for layer in range(len(networks.weights) - 1):
            x = torch.addmm(networks.biases[layer][run], x, networks.weights[layer][run])
            if networks.normalized:
                mean, variance = networks.norms["mean"][layer][run], networks.norms["variance"][layer][run]
                x = (x - mean) / (variance + NORM_EPSILON).sqrt() * networks.gains[layer][run] + networks.shifts[layer][run]
            x, _ = activate(x, networks.activation)
            layers.append(representation.describe(x.cpu().numpy()))
        return layer_metrics([float(w[run].abs().double().mean()) for w in networks.weights], layers)

    def _tensors(self) -> dict[str, Tensor]:
        found = {f"network/{name}": tensor for name, tensor in self.networks.state().items()}
        if self.gnt is not None:
            found |= {f"gnt/{name}": tensor for name, tensor in self.gnt.state().items()}
        return found

    def state(self) -> Arrays:
        arrays: Arrays = {name: tensor.cpu().numpy().copy() for name, tensor in self._tensors().items()}
        if self.gnt is not None:
            arrays |= {f"host/{name}": counts.copy() for name, counts in self.gnt.host_state().items()}
        return arrays

    def load_state(self, state: Arrays, examples: int) -> None:
        check_complete(state, self.state())
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(state[name]))
        if self.gnt is not None:
            for name, counts in self.gnt.host_state().items():
                counts[...] = state[f"host/{name}"]
            self.gnt.steps = examples
        self.examples = examples


def _check_alike(configs: Sequence[OnlineConfig]) -> None:
    """Refuses runs that are not the same operations with other numbers."""

    def kind(config: OnlineConfig) -> tuple[object, ...]:
        cbp = config.algorithm if isinstance(config.algorithm, ContinualBackprop) else None
        chosen = (cbp.utility, cbp.preset, cbp.replacement) if cbp else ()
        names = config.problem, config.network, config.algorithm.name, config.optimizer.name, config.dtype
        return *names, config.examples, config.bin_size, *chosen

    for config in configs:
        if not isinstance(config.problem, PermutedMnistConfig):
            raise InputError(f"configs: must be of permuted_mnist to be stacked, got {config.problem.name}; use run_online")
        if config.algorithm.kernel() is None:
            # What the kernels know is known here as well; any other method would learn by Backprop.
            raise InputError(
                f"algorithm.name: must be a method that stacked runs have, got {config.algorithm.name!r}; use one seed"
            )
    if not configs or len({kind(config) for config in configs}) != 1:
        raise InputError(
            "configs: must be at least one, alike in problem, network, kind of algorithm and optimizer, dtype and length, "
            f"got {len(configs)} of different kinds; stack them separately"
        )
