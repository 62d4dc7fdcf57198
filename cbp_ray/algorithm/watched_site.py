"""A tensor that units feed, as generate-and-test sees it: what the units did there since the last step."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.utils.rnn import PackedSequence

from cbp_ray.algorithm.units import UNIT_MODULES, Segment, Site
from cbp_ray.errors import InputError
from cbp_ray.presets import Needs


class Capture:
    """Forward pre-hook of a site's first reader, which passes the units' outputs on. A copy of the model does not have it."""

    def __init__(self, receive: Callable[[Tensor], None] | None) -> None:
        self.receive = receive

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.receive is not None and module.training and torch.is_grad_enabled():
            h = args[0] if args else kwargs["input"]
            self.receive((h.data if isinstance(h, PackedSequence) else h).detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Capture":
        return Capture(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Capture, (None,)


class Observed(NamedTuple):
    """Averages over examples and positions, per tap; None where the utility does not need it."""

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


class WatchedSite:
    """One site: its taps, and what the units did there since the last step."""

    mean: Tensor
    """Where the average of h is written."""
    activity: Tensor
    """Where the average of |h| or |h - f̂| is written."""

    def __init__(
        self,
        number: int,
        start: int,
        site: Site,
        name: str,
        dtype: torch.dtype,
        needs: Needs,
        needs_mean: bool,
        scratch: Scratch,
    ) -> None:
        self.number, self.site, self.name, self.dtype = number, site, name, dtype
        self.count = site.count
        self.at = slice(start, start + self.count)
        """Where this site's taps are in the averages of all sites."""
        self.needs, self.needs_mean = needs, needs_mean
        self.parts: list[tuple[Segment, slice]] = []
        """The segments, and where their taps are among this site's."""
        end = 0
        for segment in site.segments:
            self.parts.append((segment, slice(end, end + segment.taps)))
            end += segment.taps
        self.whole = len(self.parts) == 1 and self.parts[0][0].start == 0
        """Whether one segment is all there is."""
        self.waiting = False
        self.pending: list[Tensor] = []
        self.examples = 0
        """Examples and positions in the last step."""
        self.folded: Observed | None = None
        self.scratch = scratch
        self.statistics: Statistics | None = None
        self.fold_with: Callable[[WatchedSite], Tensor | None] | None = None
        self.hook = site.readers[0].module.register_forward_pre_hook(Capture(self.receive), with_kwargs=True)

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

    def by_tap(self, h: Tensor, segment: Segment) -> tuple[Tensor, tuple[int, ...]]:
        """A segment of the input as [examples, taps] or [examples, taps, positions], and the dimensions to average."""
        positions = 1 if segment.tiled else segment.repeats
        if self.site.axis < -1:
            positions = math.prod(h.shape[self.site.axis + 1 :])
        if not self.whole:
            h = h.narrow(self.site.axis, segment.start, segment.stop - segment.start)
        if h.dtype != self.dtype:
            h = h.to(self.dtype)
        if positions == 1:
            return h if h.ndim == 2 and not segment.tiled else h.reshape(-1, segment.taps), (0,)
        return h.reshape(-1, segment.taps, positions), (0, 2)

    def average(self, h: Tensor, f_hat: Tensor | None, mean: Tensor | None = None, activity: Tensor | None = None) -> Observed:
        """One forward pass averaged, into `mean` and `activity` if they are given."""
        if self.whole:
            return self._average(h, self.parts[0][0], f_hat, mean, activity)
        if self.needs_mean and mean is None:
            mean = self.mean.new_empty(self.count)
        if (self.needs.deviation or self.needs.absolute or self.needs.fired) and activity is None:
            activity = self.activity.new_empty(self.count)
        observed: Observed | None = None
        for segment, taps in self.parts:
            own = (None if vector is None else vector[taps] for vector in (f_hat, mean, activity))
            averaged = self._average(h, segment, *own)
            observed = observed or averaged
        assert observed is not None
        return Observed(mean if self.needs_mean else None, None if observed.activity is None else activity, observed.examples)

    def _average(
        self, h: Tensor, segment: Segment, f_hat: Tensor | None, mean: Tensor | None, activity: Tensor | None
    ) -> Observed:
        h, over = self.by_tap(h, segment)
        examples = h.numel() // segment.taps
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
        elif self.needs.fired:
            magnitude = (h > 0).to(h)
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
        means = []
        for segment, _ in self.parts:
            views = [self.by_tap(h, segment) for h in self.pending]
            total = sum(h.numel() // segment.taps for h, _ in views)
            means.append(torch.stack([h.sum(over) for h, over in views]).sum(0) / total)
        return means[0] if self.whole else torch.cat(means)

    def take_observed(self, f_hat: Tensor | None) -> None:
        """Writes the averages over everything seen since the last step into `mean` and `activity`, and forgets it."""
        for h in self.pending:
            self.fold(h, f_hat)
        assert self.folded is not None
        self.examples = self.folded.examples
        for average, place in ((self.folded.mean, self.mean), (self.folded.activity, self.activity)):
            if average is not None and average is not place:
                place.copy_(average)
        self.forget_forwards()

    def forget_forwards(self) -> None:
        """Drops what was seen since the last step."""
        self.waiting = False
        self.pending.clear()
        self.folded = None


class CalledThrough:
    """Makes sure that a module's layers are called by its own forward, as it was read, and not by somebody else.

    Only for modules that were read by themselves because the code that calls them can't be traced.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.depth = name, 0
        self.hooks = [
            module.register_forward_pre_hook(self._enter),
            module.register_forward_hook(self._leave, always_call=True),
        ]
        for inner in module.modules():
            if inner is not module and isinstance(inner, UNIT_MODULES):
                self.hooks.append(inner.register_forward_pre_hook(self._check))

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.depth += 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.depth -= 1

    def _check(self, module: nn.Module, args: Any) -> None:
        if not self.depth:
            raise InputError(
                f"GenerateAndTest: a layer inside {self.name!r} is called from outside of it, so that its units can't be "
                "followed; name the layers to replace: layers=[HiddenLayer(unit=..., outgoing=(...,)), ...]"
            )

    def remove(self) -> None:
        """Removes the hooks."""
        for hook in self.hooks:
            hook.remove()


class CalledWith:
    """Makes sure that a module is called with the arguments that it was read with, where others could change the network."""

    def __init__(self, name: str, module: nn.Module, assumed: Mapping[str, Any]) -> None:
        self.name, self.assumed = name, assumed
        self.parameters = list(inspect.signature(module.forward).parameters)
        self.hook = module.register_forward_pre_hook(self._check, with_kwargs=True)

    def _check(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, value in {**dict(zip(self.parameters, args, strict=False)), **kwargs}.items():
            assumed = self.assumed.get(name, value)
            if value is not assumed and (isinstance(value, Tensor) or value != assumed):
                raise InputError(
                    f"GenerateAndTest: {self.name or type(module).__name__!r} was read with {name}={assumed!r}, because "
                    "torch.fx can't trace it otherwise, and is called with another; name its layers: layers=[HiddenLayer(...)]"
                )

    def remove(self) -> None:
        """Removes the hook."""
        self.hook.remove()
