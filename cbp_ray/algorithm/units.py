"""One hidden layer as generate-and-test sees it: its modules, its running averages, what its units did since the last step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cbp_ray.algorithm.initialization import Distribution, UnitModule
from cbp_ray.algorithm.network import HiddenLayer, inputs_per_unit
from cbp_ray.algorithm.utility import Needs
from cbp_ray.errors import InputError


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

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if self.receive is not None and module.training and torch.is_grad_enabled():
            self.receive(args[0].detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Capture":
        return Capture(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Capture, (None,)


class Sums(NamedTuple):
    """Over the examples seen: Σh, Σ|h|, Σ|h - f̂| per unit (None: not needed), and how many."""

    h: Tensor | None
    absolute: Tensor | None
    deviation: Tensor | None
    examples: int

    def plus(self, other: "Sums") -> "Sums":
        def add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
            return None if a is None or b is None else a + b

        return Sums(
            add(self.h, other.h),
            add(self.absolute, other.absolute),
            add(self.deviation, other.deviation),
            self.examples + other.examples,
        )


class Units:
    """State of one hidden layer. `average_utility` is u, `average_activation` is f, `birth` the step of each unit's creation.

    `birth` lives on the host as well as beside the weights, so that the number of eligible units is known without waiting
    for a device.
    """

    def __init__(
        self,
        number: int,
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
        self.consumers: list[Consumer] = []
        for name in layer.outgoing:
            consumer: Any = modules[name]
            self.consumers.append(Consumer(consumer, inputs_per_unit(unit, consumer) or 1))
        self.norms = [modules[name] for name in layer.norms]
        self.distribution = distribution
        self.needs, self.needs_mean = needs, needs_mean
        self.count: int = unit.weight.shape[0]
        self.fan_in: int = unit.weight[0].numel()
        self.fan_out = sum(c.module.weight.numel() // self.count for c in self.consumers)

        weight = unit.weight
        self.dtype = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        self.device = weight.device
        self.average_utility = torch.zeros(self.count, dtype=self.dtype, device=self.device)
        self.average_activation = torch.zeros(self.count, dtype=self.dtype, device=self.device)
        self.birth = np.zeros(self.count, dtype=np.int64)
        self.birth_on_device = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        self.exposure = 0
        self.replaced = 0
        self.nonfinite = 0
        self.pending: list[Tensor] = []
        self.folded: Sums | None = None
        self.fold_with: Callable[[], Tensor | None] | None = None
        self.hook = self.consumers[0].module.register_forward_pre_hook(Capture(self.receive))

    def receive(self, h: Tensor) -> None:
        """Keeps a forward pass's outputs for the next step. From the second on, the one before is summed up and let go."""
        self.pending.append(h)
        if self.fold_with is not None and not torch.compiler.is_compiling() and len(self.pending) > 1:
            self.fold(self.pending.pop(0), self.fold_with())

    def by_unit(self, h: Tensor) -> Tensor:
        """The first consumer's input as [examples, units, positions], in the dtype of the averages."""
        consumer = self.consumers[0]
        conv = isinstance(consumer.module, nn.Conv2d)
        positions = h.shape[-2] * h.shape[-1] if conv else consumer.inputs_per_unit
        return h.reshape(-1, self.count, positions).to(self.dtype)

    def fold(self, h: Tensor, f_hat: Tensor | None) -> None:
        """Adds one forward pass to `folded`."""
        h = self.by_unit(h)
        deviation = None
        if self.needs.deviation:
            assert f_hat is not None
            deviation = (h - f_hat[:, None]).abs_().sum((0, 2))
        sums = Sums(
            h.sum((0, 2)) if self.needs_mean else None,
            h.abs().sum((0, 2)) if self.needs.absolute else None,
            deviation,
            h.shape[0] * h.shape[2],
        )
        self.folded = sums if self.folded is None else self.folded.plus(sums)

    def pending_mean(self) -> Tensor:
        """h averaged over everything pending, for the f̂ that includes the present step."""
        views = [self.by_unit(h) for h in self.pending]
        return torch.stack([h.sum((0, 2)) for h in views]).sum(0) / sum(h.shape[0] * h.shape[2] for h in views)

    def take_sums(self, f_hat: Tensor | None) -> Sums:
        """Everything seen since the last step, and forgets it."""
        for h in self.pending:
            self.fold(h, f_hat)
        self.pending.clear()
        sums, self.folded = self.folded, None
        assert sums is not None
        return sums

    def follow_device(self) -> None:
        """Moves the state to where the weights went (`model.to(device)` after construction)."""
        if self.unit.weight.device != self.device:
            self.device = self.unit.weight.device
            self.average_utility = self.average_utility.to(self.device)
            self.average_activation = self.average_activation.to(self.device)
            self.birth_on_device = self.birth_on_device.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "average_utility": self.average_utility.clone(),
            "average_activation": self.average_activation.clone(),
            "birth": torch.from_numpy(self.birth.copy()),
            "exposure": self.exposure,
            "replaced": self.replaced,
            "nonfinite": self.nonfinite,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuses a state of another size."""
        for name in ("average_utility", "average_activation", "birth"):
            if tuple(state[name].shape) != (self.count,):
                raise InputError(
                    f"load_state_dict: {name} of layer {self.name!r} has {tuple(state[name].shape)} values, "
                    f"this model has {self.count} units"
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average_utility = state["average_utility"].to(self.device, self.dtype, copy=True)
        self.average_activation = state["average_activation"].to(self.device, self.dtype, copy=True)
        self.birth = state["birth"].cpu().numpy().astype(np.int64, copy=True)
        self.birth_on_device = torch.from_numpy(self.birth).to(self.device, copy=True)
        self.exposure, self.replaced = int(state["exposure"]), int(state["replaced"])
        self.nonfinite = int(state["nonfinite"])
        self.pending.clear()
        self.folded = None
