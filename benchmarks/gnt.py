"""What generate-and-test adds to a training step: the same loop with and without `gnt.step()`, in turns, on one core.

The first cases are those of the paper: the policy network of Slippery Ant at its mini-batch of 128 with Adam, and the network
of Permuted MNIST at one example with SGD. The case between them counts what per-weight time steps cost as well. The last two
are networks of today: ResNet-18 as it is used on CIFAR, and a transformer of 6 layers.
`adam_ratio` is a step of our Adam, after replacements, over one of `torch.optim.Adam`; `fused_ratio` the same of its compiled
step, which is the default.
"""

import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from cbp_ray_benchmarks.cores import one_core
from torch import Tensor, nn

from cbp_ray import Adam, GenerateAndTest

ROUNDS, LONG_ROUNDS = 15, 5
SMALL, LARGE = (28, 256, 256, 8), (784, 2000, 2000, 2000, 10)


class Case(NamedTuple):
    """One network, how it learns, and how long it is measured."""

    name: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    optimizer: Any
    gnt_optimizer: Any
    warm_up: int
    """Steps before anything is measured: units are mature by then, and some have been replaced."""
    steps: int
    """Steps per round."""
    rounds: int
    limit: float | None
    """Most of what may be added."""


def mlp(sizes: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """A fully connected network."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), activation()]
    return nn.Sequential(*layers[:-1])


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out))
        self.skip: nn.Module = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.skip(x))


def resnet18() -> nn.Sequential:
    """ResNet-18 for images of 32 × 32."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Residual(n_in, n_out, 1 + (n_in < n_out)) for n_in, n_out in itertools.pairwise(widths)]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def transformer() -> nn.Module:
    """Six encoder layers of width 256."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True), 6, enable_nested_tensor=False)


TORCH, SGD = torch.optim.Adam, torch.optim.SGD
ANT, MNIST = partial(mlp, SMALL, nn.Tanh), partial(mlp, LARGE, nn.ReLU)
CASES = (
    Case("256-256 tanh, mini-batch 128, torch Adam", ANT, (128, 28), TORCH, TORCH, 300, 100, ROUNDS, 0.25),
    Case("the same, cbp_ray.Adam with GnT", ANT, (128, 28), TORCH, Adam, 300, 100, ROUNDS, None),
    Case("784-2000-2000-2000-10 ReLU, one example, SGD", MNIST, (1, 784), SGD, SGD, 60, 10, ROUNDS, 0.40),
    Case("ResNet-18, 32 x 32 images, mini-batch 128, SGD", resnet18, (128, 3, 32, 32), SGD, SGD, 1, 1, LONG_ROUNDS, 0.10),
    Case("transformer, 6 x 256, 32 x 128 tokens, Adam", transformer, (32, 128, 256), TORCH, TORCH, 1, 1, LONG_ROUNDS, 0.10),
)


def run() -> dict[str, Any]:
    """Measures all cases in alternating rounds. Medians of single steps: other processes disturb a few, and by much."""
    _keep_freed_memory()
    with one_core():
        cases = [_case(case) for case in CASES]
        return {"cases": cases, "adam_ratio": _adam_ratio(fused=False), "fused_ratio": _adam_ratio(fused=True)}


def render(result: dict[str, Any]) -> str:
    """A table for people."""
    lines = [f"{'training step':<48} {'plain':>10} {'with GnT':>10} {'added':>7} {'limit':>6}"]
    for case in result["cases"]:
        limit = "" if case["limit"] is None else f"{case['limit']:>6.0%}"
        lines.append(f"{case['case']:<48} {case['plain_us']:>8.0f}us {case['gnt_us']:>8.0f}us {case['added']:>7.1%} {limit}")
    ratios = f"{result['adam_ratio']:.2f}, compiled {result['fused_ratio']:.2f}"
    lines.append(f"cbp_ray.Adam after replacements / torch.optim.Adam, one step: {ratios}")
    return "\n".join(lines)


def _case(case: Case) -> dict[str, Any]:
    plain, with_gnt = _Loop(case, with_gnt=False), _Loop(case, with_gnt=True)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(case.rounds):
        for loop, seconds in zip((plain, with_gnt), times, strict=True):
            seconds += loop.run(case.steps)
    plain_us, gnt_us = (statistics.median(seconds) * 1e6 for seconds in times)
    assert with_gnt.gnt is not None
    replaced, added = sum(with_gnt.gnt.replaced.values()), gnt_us / plain_us - 1
    return {
        "case": case.name,
        "plain_us": plain_us,
        "gnt_us": gnt_us,
        "added": added,
        "limit": case.limit,
        "replaced": replaced,
    }


def _keep_freed_memory() -> None:
    """Tells glibc to keep freed memory.

    Otherwise gradients get new pages in some steps and not in others, for which a step of the large network waits up to 6 ms,
    with and without GnT, as the heap happens to lie.
    """
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD


class _Loop:
    def __init__(self, case: Case, *, with_gnt: bool) -> None:
        torch.manual_seed(0)
        self.model = case.model()
        self.optimizer = (case.gnt_optimizer if with_gnt else case.optimizer)(self.model.parameters(), lr=1e-4)
        self.x = torch.rand(case.inputs)
        with torch.no_grad():
            self.y = torch.randn_like(self.model(self.x))
        mature = min(50, case.warm_up // 2)
        self.gnt = GenerateAndTest(self.model, self.optimizer, 1e-4, maturity_threshold=mature) if with_gnt else None
        self.run(case.warm_up)

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


def _adam_ratio(*, fused: bool) -> float:
    def parameters() -> list[Tensor]:
        torch.manual_seed(0)
        shapes = [(256, 28), (256,), (256, 256), (256,), (8, 256), (8,)]
        tensors: list[Tensor] = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        return tensors

    ours, theirs = Adam(parameters(), lr=1e-4, fused=fused), torch.optim.Adam(parameters(), lr=1e-4)

    def seconds(optimizer: torch.optim.Optimizer) -> float:
        start = time.process_time()
        for _ in range(100):
            optimizer.step()
        return time.process_time() - start

    seconds(ours)
    for parameter in ours.param_groups[0]["params"]:
        ours.reset_weights(parameter, 0, torch.tensor([3]))
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(ROUNDS))
