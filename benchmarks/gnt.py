"""What generate-and-test adds to a training step: the same loop with and without `gnt.step()`, in turns, on one core.

The cases are those of the paper: the policy network of Slippery Ant at its mini-batch of 128 with Adam, and the network of
Permuted MNIST at one example with SGD. The case between them counts what per-weight time steps cost as well.
`adam_ratio` is a step of our Adam, after replacements, over one of `torch.optim.Adam`.
"""

import ctypes
import itertools
import statistics
import time
from typing import Any

import torch
from cbp_ray_benchmarks.cores import one_core
from torch import Tensor, nn

from cbp_ray import Adam, GenerateAndTest

ROUNDS = 15
SMALL, LARGE = (28, 256, 256, 8), (784, 2000, 2000, 2000, 10)
CASES = (
    # name, sizes, activation, mini-batch, optimizer without and with GnT, steps per round, limit of what is added
    ("256-256 tanh, mini-batch 128, torch Adam", SMALL, nn.Tanh, 128, torch.optim.Adam, torch.optim.Adam, 100, 0.25),
    ("the same, cbp_ray.Adam with GnT", SMALL, nn.Tanh, 128, torch.optim.Adam, Adam, 100, None),
    ("784-2000-2000-2000-10 ReLU, one example, SGD", LARGE, nn.ReLU, 1, torch.optim.SGD, torch.optim.SGD, 10, 0.40),
)


def run() -> dict[str, Any]:
    """Measures all cases in alternating rounds. Medians of single steps: other processes disturb a few, and by much."""
    _keep_freed_memory()
    with one_core():
        return {"cases": [_case(*case) for case in CASES], "adam_ratio": _adam_ratio()}


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    lines = [f"{'training step':<48} {'plain':>10} {'with GnT':>10} {'added':>7} {'limit':>6}"]
    for case in result["cases"]:
        limit = "" if case["limit"] is None else f"{case['limit']:>6.0%}"
        lines.append(f"{case['case']:<48} {case['plain_us']:>8.0f}us {case['gnt_us']:>8.0f}us {case['added']:>7.1%} {limit}")
    lines.append(f"cbp_ray.Adam after replacements / torch.optim.Adam, one step: {result['adam_ratio']:.2f}")
    return "\n".join(lines)


def _case(
    name: str, sizes: Any, activation: Any, batch: int, plain_optimizer: Any, gnt_optimizer: Any, steps: int, limit: Any
) -> dict[str, Any]:
    plain = _Loop(sizes, activation, batch, plain_optimizer, with_gnt=False)
    with_gnt = _Loop(sizes, activation, batch, gnt_optimizer, with_gnt=True)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for loop, seconds in zip((plain, with_gnt), times, strict=True):
            seconds += loop.run(steps)
    plain_us, gnt_us = (statistics.median(seconds) * 1e6 for seconds in times)
    assert with_gnt.gnt is not None
    replaced, added = sum(with_gnt.gnt.replaced.values()), gnt_us / plain_us - 1
    return {"case": name, "plain_us": plain_us, "gnt_us": gnt_us, "added": added, "limit": limit, "replaced": replaced}


def _keep_freed_memory() -> None:
    """Tells glibc to keep freed memory.

    Otherwise gradients get new pages in some steps and not in others, for which a step of the large network waits up to 6 ms,
    with and without GnT, as the heap happens to lie.
    """
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD


class _Loop:
    def __init__(self, sizes: Any, activation: Any, batch: int, make_optimizer: Any, *, with_gnt: bool) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), activation()]
        self.model = nn.Sequential(*layers[:-1])
        self.optimizer = make_optimizer(self.model.parameters(), lr=1e-4)
        self.x, self.y = torch.rand(batch, sizes[0]), torch.randn(batch, sizes[-1])
        self.gnt = GenerateAndTest(self.model, self.optimizer, 1e-4, maturity_threshold=50) if with_gnt else None
        # Long enough that units are mature and some have been replaced: the steady state.
        self.run(300 if batch > 1 else 60)

    def run(self, steps: int) -> list[float]:
        """Seconds of each step."""
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(self.x), self.y).backward()
            self.optimizer.step()
            if self.gnt is not None:
                self.gnt.step()
            seconds.append(time.perf_counter() - start)
        return seconds


def _adam_ratio() -> float:
    def parameters() -> list[Tensor]:
        torch.manual_seed(0)
        shapes = [(256, 28), (256,), (256, 256), (256,), (8, 256), (8,)]
        tensors: list[Tensor] = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        return tensors

    ours, theirs = Adam(parameters(), lr=1e-4), torch.optim.Adam(parameters(), lr=1e-4)

    def seconds(optimizer: torch.optim.Optimizer) -> float:
        start = time.process_time()
        for _ in range(100):
            optimizer.step()
        return time.process_time() - start

    seconds(ours)
    for parameter in ours.param_groups[0]["params"]:
        ours.reset_weights(parameter, 0, torch.tensor([3]))
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(ROUNDS))
