"""One hidden layer as generate-and-test sees it: its modules, and what its units did since the last step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from cbp_ray.algorithm.initialization import UnitModule
from cbp_ray.algorithm.network import HiddenLayer, inputs_per_unit, units_per_run
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.presets import Needs


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
    """Forward pre-hook of the first consumer, which passes the units' outputs on. A copy of the model does not have it."""

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
    """Average of h."""
    activity: Tensor | None
    """Average of |h|, or of |h - f̂|."""
    examples: int
    """Number of examples and positions that these are averages of."""

    def joined(self, other: "Observed") -> "Observed":
        """The averages over the examples of both."""
        examples = self.examples + other.examples
        share = other.examples / examples

        def join(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return None if a is None or b is None else torch.lerp(a, b, share)

        return Observed(join(self.mean, other.mean), join(self.activity, other.activity), examples)


class Measurements(NamedTuple):
    """What every step of generate-and-test changes, of the units of all layers, end to end."""

    places: dict[Tensor, slice]
    """By input weights of a layer: where its units are."""
    average_activation: Tensor
    """f."""
    average_utility: Tensor
    """u."""
    utility_tm1: Tensor
    """u before the present step."""
    correction: Tensor
    """1 - ηᵃ."""
    f_hat: Tensor
    """f̂."""
    mean: Tensor
    """Average of h over the examples of the step."""
    activity: Tensor
    """Average of |h| or |h - f̂|."""
    incoming: Tensor
    """Σ|w| into each unit, or its mean."""
    outgoing: Tensor
    """Σ|w| out of each unit, or its mean."""


class Statistics(Protocol):
    """Another way than torch's operations to measure what a step needs. Each returns whether it could."""

    def averages(self, h: Tensor, f_hat: Tensor, mean: Tensor, activity: Tensor) -> bool:
        """Writes the averages over examples of h [examples, units] into `mean` and of |h - f̂| into `activity`."""
        ...

    def magnitudes(self, weight: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
        """Writes Σ|w| over each row into `rows` and over each column into `columns`, unless they are None."""
        ...


class Scratch:
    """Memory for intermediate results, one piece for all uses: what it touches pushes the network out of the cache.

    It is kept while shapes stay: asking the system for memory may cost more than the work.
    """

    def __init__(self) -> None:
        self.views: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}
        self.memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """Memory of the tensor's shape, contiguous; what is in it is for the caller's next operation alone."""
        key = tensor.shape, tensor.dtype, tensor.device
        if key not in self.views:
            memory = self.memory.get(key[1:])
            if memory is None or memory.numel() < tensor.numel():
                memory = self.memory[key[1:]] = tensor.new_empty(tensor.numel())
                self.views = {}
            self.views[key] = memory[: tensor.numel()].view(tensor.shape)
        return self.views[key]


class Population:
    """Units that are compared with each other: those of one hidden layer, or in a stack of several runs those of one run.

    It has what is counted on the host.
    """

    def __init__(self, layer: "WatchedLayer", run: int | None, seed: int) -> None:
        self.layer, self.run, self.seed = layer, run, seed
        self.name = layer.name if run is None else f"{layer.name}[{run}]"
        self.count = layer.count if run is None else units_per_run(layer.unit)
        self.offset = (run or 0) * self.count
        """Where these units begin in their layer."""
        start = layer.at.start + self.offset
        self.at = slice(start, start + self.count)
        """Where these units are in the averages of all layers."""
        self.exposure = 0
        """Sum over the steps so far of the units that the replacement rate applies to."""
        self.replaced = 0
        """Number of units replaced so far."""
        self.nonfinite = 0
        """Number of eligible units passed over so far because their utility was not finite."""
        self.oldest_birth = 0
        """Step in which the oldest of these units was made."""


class WatchedLayer:
    """One hidden layer: its modules, and what its units did since the last step."""

    mean: Tensor
    """Where the average of h is written."""
    activity: Tensor
    """Where the average of |h| or |h - f̂| is written."""

    def __init__(
        self,
        number: int,
        start: int,
        layer: HiddenLayer,
        modules: dict[str, nn.Module],
        distribution: Distribution,
        needs: Needs,
        needs_mean: bool,
        scratch: Scratch,
        seed: int | Sequence[int],
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
        self.runs: int | None = getattr(unit, "runs", None)
        self.count = units_per_run(unit) * (self.runs or 1)
        self.at = slice(start, start + self.count)
        """Where this layer's units are in the averages of all layers."""
        self.populations = self._divide(seed)
        self.fan_in: int = unit.weight.numel() // self.count
        self.fan_out = sum(c.module.weight.numel() // self.count for c in self.consumers)
        half = unit.weight.dtype in (torch.float16, torch.bfloat16)
        self.dtype = torch.float32 if half else unit.weight.dtype

        self.waiting = False
        self.pending: list[Tensor] = []
        self.folded: Observed | None = None
        self.scratch = scratch
        self.statistics: Statistics | None = None
        self.fold_with: Callable[[WatchedLayer], Tensor | None] | None = None
        self.hook = self.consumers[0].module.register_forward_pre_hook(Capture(self.receive), with_kwargs=True)

    def _divide(self, seed: int | Sequence[int]) -> list[Population]:
        """All units, or in a stack of several runs those of each run, with their seeds."""
        if isinstance(seed, int) and self.runs is None:
            return [Population(self, None, seed)]
        if not isinstance(seed, int) and self.runs == len(seed):
            return [Population(self, run, own_seed) for run, own_seed in enumerate(seed)]
        wanted = "one whole number" if self.runs is None else f"{self.runs} whole numbers, one for each run of the stack"
        raise InputError(f"GenerateAndTest: seed must be {wanted}, got {seed!r}")

    @property
    def device(self) -> torch.device:
        return self.weight.device

    def receive(self, h: Tensor) -> None:
        """Takes the outputs of a forward pass. They are averaged at once, while they are in the cache, if f̂ is known."""
        if h.numel() == 0:
            return
        if not torch.compiler.is_compiling():
            self._receive_eagerly(h)
        elif not self.waiting:
            self.waiting = True
            self.pending.append(h)
        else:
            # Outside of the compiled graph, which would otherwise be compiled again for every number of forward passes.
            self._receive_outside(h)

    def _receive_eagerly(self, h: Tensor) -> None:
        if self.fold_with is None:
            self.pending.append(h)
            return
        f_hat = self.fold_with(self)
        if self.pending:
            for each in self.pending:
                self.fold(each, f_hat)
            self.pending.clear()
        self.fold(h, f_hat)

    _receive_outside = _disable_dynamo(_receive_eagerly)

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
        examples = h.numel() // self.count
        if mean is not None and activity is not None and f_hat is not None and self.statistics is not None and len(over) == 1:
            measured = self.statistics.averages(h, f_hat, mean, activity)
            if measured:
                return Observed(mean, activity, examples)
        magnitude = None
        if self.needs.deviation:
            assert f_hat is not None
            magnitude = torch.sub(h, f_hat if len(over) == 1 else f_hat[:, None], out=self.scratch.like(h)).abs_()
        elif self.needs.absolute:
            magnitude = torch.abs(h, out=self.scratch.like(h))
        return Observed(
            torch.mean(h, over, out=mean) if self.needs_mean else None,
            None if magnitude is None else torch.mean(magnitude, over, out=activity),
            examples,
        )

    def fold(self, h: Tensor, f_hat: Tensor | None) -> None:
        """Adds one forward pass to `folded`."""
        if self.folded is None:
            self.folded = self.average(h, f_hat, self.mean, self.activity)
        else:
            self.folded = self.folded.joined(self.average(h, f_hat))

    def pending_mean(self) -> Tensor:
        """h averaged over everything pending, for the f̂ that includes the present step."""
        views = [self.by_unit(h) for h in self.pending]
        total = sum(h.numel() // self.count for h, _ in views)
        return torch.stack([h.sum(over) for h, over in views]).sum(0) / total

    def take_observed(self, f_hat: Tensor | None) -> None:
        """Writes the averages over everything seen since the last step into `mean` and `activity`, and forgets it."""
        for h in self.pending:
            self.fold(h, f_hat)
        assert self.folded is not None
        for average, place in ((self.folded.mean, self.mean), (self.folded.activity, self.activity)):
            if average is not None and average is not place:
                place.copy_(average)
        self.forget_forwards()

    def forget_forwards(self) -> None:
        """Drops what was seen since the last step."""
        self.waiting = False
        self.pending.clear()
        self.folded = None
