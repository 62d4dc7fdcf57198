"""One hidden layer as generate-and-test sees it: its modules, and what its units did since the last step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from cbp_ray.algorithm.initialization import Distribution, UnitModule
from cbp_ray.algorithm.network import HiddenLayer, inputs_per_unit
from cbp_ray.algorithm.utility import Needs


class Consumer(NamedTuple):
    """A module fed by the units, and how many consecutive inputs of it each unit fills."""

    module: UnitModule
    inputs_per_unit: int

    def columns(self, units: Tensor) -> Tensor:
        """Indices, along dimension 1 of the weight, of the inputs that `units` fill."""
        if self.inputs_per_unit == 1:
            return units
        offsets = torch.arange(self.inputs_per_unit, device=units.device)
        return (units[:, None] * self.inputs_per_unit + offsets).flatten()


class Capture:
    """Forward pre-hook of the first consumer: hands the units' outputs on. A copy of the model does not carry it along."""

    def __init__(self, receive: Callable[[Tensor], None] | None) -> None:
        self.receive = receive

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.receive is not None and module.training and torch.is_grad_enabled():
            self.receive((args[0] if args else kwargs["input"]).detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Capture":
        return Capture(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Capture, (None,)


class Observed(NamedTuple):
    """Averages over examples and positions, per unit; None where the utility does not need it."""

    mean: Tensor | None
    """h."""
    activity: Tensor | None
    """|h|, or |h - f̂|."""
    examples: int
    """How many examples and positions these are averages of."""

    def joined(self, other: "Observed") -> "Observed":
        """The average over both."""
        examples = self.examples + other.examples
        share = other.examples / examples

        def join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return None if a is None or b is None else torch.lerp(a, b, share)

        return Observed(join(self.mean, other.mean), join(self.activity, other.activity), examples)


class Units:
    """The units of one hidden layer."""

    def __init__(
        self,
        number: int,
        start: int,
        layer: HiddenLayer,
        modules: dict[str, nn.Module],
        distribution: Distribution,
        needs: Needs,
        needs_mean: bool,
    ) -> None:
        unit: Any = modules[layer.unit]
        self.number = number
        self.name = layer.unit
        self.unit: UnitModule = unit
        self.weight: Tensor = unit.weight
        self.consumers: list[Consumer] = []
        for name in layer.outgoing:
            consumer: Any = modules[name]
            self.consumers.append(Consumer(consumer, inputs_per_unit(unit, consumer) or 1))
        self.norms = [modules[name] for name in layer.norms]
        self.distribution = distribution
        self.needs, self.needs_mean = needs, needs_mean
        self.count: int = unit.weight.shape[0]
        self.at = slice(start, start + self.count)
        """Where this layer's units are in the averages of all layers."""
        self.fan_in: int = unit.weight[0].numel()
        self.fan_out = sum(c.module.weight.numel() // self.count for c in self.consumers)
        half = unit.weight.dtype in (torch.float16, torch.bfloat16)
        self.dtype = torch.float32 if half else unit.weight.dtype

        self.exposure = 0
        self.replaced = 0
        self.nonfinite = 0
        self.waiting = False
        self.pending: list[Tensor] = []
        self.folded: Observed | None = None
        self.scratch: Tensor | None = None
        self.fold_with: Callable[[], Tensor | None] | None = None
        self.hook = self.consumers[0].module.register_forward_pre_hook(Capture(self.receive), with_kwargs=True)

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def receive(self, h: Tensor) -> None:
        """Keeps a forward pass's outputs for the next step. From the second on, the one before is summed up and let go."""
        if h.numel() == 0:
            return
        if not self.waiting:
            self.waiting = True
            self.pending.append(h)
        elif torch.compiler.is_compiling():
            # Outside of the compiled graph, which would otherwise be compiled anew for every number of forward passes.
            self._receive_outside(h)
        else:
            self._receive_another(h)

    def _receive_another(self, h: Tensor) -> None:
        self.pending.append(h)
        if self.fold_with is not None:
            self.fold(self.pending.pop(0), self.fold_with())

    _receive_outside = _disable_dynamo(_receive_another)

    def by_unit(self, h: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The first consumer's input as [examples, units] or [examples, units, positions], and the dimensions to average."""
        consumer = self.consumers[0]
        positions = consumer.inputs_per_unit
        if isinstance(consumer.module, nn.Conv2d):
            positions = h.shape[-2] * h.shape[-1]
        if h.dtype != self.dtype:
            h = h.to(self.dtype)
        if positions == 1:
            return h if h.ndim == 2 else h.reshape(-1, self.count), (0,)
        return h.reshape(-1, self.count, positions), (0, 2)

    def average(self, h: Tensor, f_hat: Tensor | None, mean: Tensor | None = None, activity: Tensor | None = None) -> Observed:
        """One forward pass averaged, into `mean` and `activity` if they are given."""
        h, over = self.by_unit(h)
        magnitude = None
        if self.needs.deviation:
            assert f_hat is not None
            magnitude = torch.sub(h, f_hat if len(over) == 1 else f_hat[:, None], out=self.scratch_like(h)).abs_()
        elif self.needs.absolute:
            magnitude = torch.abs(h, out=self.scratch_like(h))
        return Observed(
            torch.mean(h, over, out=mean) if self.needs_mean else None,
            None if magnitude is None else torch.mean(magnitude, over, out=activity),
            h.numel() // self.count,
        )

    def scratch_like(self, h: Tensor) -> Tensor:
        """Memory for one pass, kept while its shape stays: asking the system for it anew may cost more than the work."""
        if self.scratch is None or self.scratch.shape != h.shape or self.scratch.device != h.device:
            self.scratch = torch.empty_like(h)
        return self.scratch

    def fold(self, h: Tensor, f_hat: Tensor | None) -> None:
        """Adds one forward pass to `folded`."""
        observed = self.average(h, f_hat)
        self.folded = observed if self.folded is None else self.folded.joined(observed)

    def pending_mean(self) -> Tensor:
        """h averaged over everything pending, for the f̂ that includes the present step."""
        views = [self.by_unit(h) for h in self.pending]
        total = sum(h.numel() // self.count for h, _ in views)
        return torch.stack([h.sum(over) for h, over in views]).sum(0) / total

    def take_observed(self, f_hat: Tensor | None, mean: Tensor, activity: Tensor) -> None:
        """Writes the averages over everything seen since the last step into `mean` and `activity`, and forgets it."""
        if self.folded is None and len(self.pending) == 1:
            self.average(self.pending[0], f_hat, mean, activity)
        else:
            for h in self.pending:
                self.fold(h, f_hat)
            assert self.folded is not None
            if self.folded.mean is not None:
                mean.copy_(self.folded.mean)
            if self.folded.activity is not None:
                activity.copy_(self.folded.activity)
        self.forget_forwards()

    def forget_forwards(self) -> None:
        """Drops what was seen since the last step."""
        self.waiting = False
        self.pending.clear()
        self.folded = None
