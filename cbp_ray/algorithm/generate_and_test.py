"""Generate-and-test: the inner loop of Algorithms 1 and 2, for any network that can be traced and any optimizer."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm import utility as tester
from cbp_ray.algorithm.initialization import Distribution, Scheme, resolve
from cbp_ray.algorithm.magnitudes import Magnitudes
from cbp_ray.algorithm.network import HiddenLayer, check_layers, find_hidden_layers, unwrap
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.algorithm.optimizer_state import reset_weights
from cbp_ray.algorithm.replacement import count_accumulated, count_bernoulli, new_units, random_utility, select
from cbp_ray.algorithm.settings import PRESETS, Settings
from cbp_ray.algorithm.units import Units
from cbp_ray.algorithm.utility import NEEDS, Utility
from cbp_ray.errors import InputError


@dataclass(frozen=True)
class StepReport:
    """What one step did. Layers go by the name of their unit module. Utilities and ages are computed when read."""

    step: int
    """How many steps there have been, this one included."""
    replaced: dict[str, list[int]]
    """Layers with replacements in this step, and the units replaced, lowest utility first."""
    _utilities: dict[str, Callable[[], Tensor]] = field(repr=False)
    _ages: dict[str, Tensor] = field(repr=False)

    @property
    def utilities(self) -> dict[str, Tensor]:
        """û of every unit, as it was compared in this step, before any replacement."""
        return {name: make() for name, make in self._utilities.items()}

    @property
    def ages(self) -> dict[str, Tensor]:
        """Age of every unit in this step, before any replacement."""
        return dict(self._ages)

    @property
    def nonfinite(self) -> dict[str, int]:
        """Per layer, units whose utility is not a finite number; they can't be selected."""
        return {name: int((~utility.isfinite()).sum()) for name, utility in self.utilities.items()}


class GenerateAndTest:
    """Replaces low-utility units of a network by fresh random ones, a few per step.

    For every hidden layer, in order, after the optimizer's step:

        a ← a + 1                                                   age
        f̂ = f / (1 - ηᵃ),  û = u / (1 - ηᵃ)                         equations 3 and 7
        f ← η f + (1 - η) h                                         equation 2
        u ← η u + (1 - η) |h - f̂| Σₖ|w_out,k| / Σⱼ|w_in,j|          equations 5 and 6 (utility="overall")
        of the units with a > m, replace n·ρ with the smallest û:
            input weights from the layer's initial distribution, output weights to zero,
            u, f, a and whatever the optimizer remembers of these weights to zero

    Args:
      model: a network whose hidden layers `torch.fx` can find, or any network with `layers`.
      optimizer: the optimizer (or several) that holds the model's parameters: `cbp_ray.Adam`, or any of `torch.optim`.
      replacement_rate: ρ, the fraction of a layer's units replaced per step.
      maturity_threshold: m; units are safe until they are older than this many steps.
      decay_rate: η of the running averages.
      utility: `overall`, `mean_corrected_contribution`, `contribution`, `adaptation`, `weight_magnitude` or `random`;
        by default the preset's own.
      preset: `paper` (Dohare et al. 2022) or `nature2024` (Dohare et al. 2024); see `settings.PRESETS`.
      seed: seed of new weights.
      replacement: `accumulate` carries the fraction of n·ρ from step to step; `bernoulli` rounds it at random.
      init: where new weights come from: `kaiming`, `lecun`, `xavier`, `pytorch`, or distributions by layer name; by default
        what each layer was created with.
      layers: the hidden layers, for networks that can't be traced.

    Example:
      >>> from cbp_ray import Adam, GenerateAndTest
      >>> model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
      >>> optimizer = Adam(model.parameters(), lr=1e-3)
      >>> gnt = GenerateAndTest(model, optimizer, replacement_rate=1e-2, maturity_threshold=1)
      >>> for _ in range(6):
      ...     optimizer.zero_grad()
      ...     model(torch.ones(4, 8)).square().mean().backward()
      ...     optimizer.step()
      ...     report = gnt.step()
      >>> len(report.replaced["0"])
      1

    References:
      Dohare, Sutton and Mahmood, Continual Backprop: Stochastic Gradient Descent with Persistent Randomness, 2022.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        replacement_rate: float = 1e-4,
        maturity_threshold: int = 100,
        decay_rate: float = 0.99,
        utility: Utility | None = None,
        preset: str = "paper",
        seed: int = 0,
        *,
        replacement: str = "accumulate",
        init: Scheme | dict[str, Distribution] | None = None,
        layers: Iterable[HiddenLayer] | None = None,
    ) -> None:
        if utility is None and preset in PRESETS:
            utility = PRESETS[preset].utility
        self.settings = Settings(
            replacement_rate,
            maturity_threshold,
            decay_rate,
            utility,  # type: ignore[arg-type]  # None only if the preset is unknown, which Settings refuses
            preset,
            replacement,
            seed,
        )
        model = unwrap(model)
        found = check_layers(model, find_hidden_layers(model) if layers is None else layers)
        modules = dict(model.named_modules())
        _check_init(init, [layer.unit for layer in found])
        needs, variant = NEEDS[self.settings.utility], self.settings.variant
        distributions = [resolve(init, layer.unit, modules[layer.unit], layer.activation) for layer in found]
        self._optimizers = _optimizers_by_parameter(optimizer, found, modules)
        if variant.transfers_bias:
            _check_biases(found, modules, preset)
        self.steps = 0
        self._layers = [
            Units(number, layer, modules, distribution, needs, needs.deviation or variant.transfers_bias)
            for number, (layer, distribution) in enumerate(zip(found, distributions, strict=True))
        ]
        if variant.lagged or not needs.deviation:
            for units in self._layers:
                units.fold_with = partial(self._f_hat_of_next_step, units)
        self._magnitudes = Magnitudes(
            {units.unit.weight for units in self._layers} if needs.magnitude_in else set(),
            {c.module.weight for units in self._layers for c in units.consumers} if needs.magnitude_out else set(),
        )
        self._warned = False

    @property
    def layers(self) -> list[str]:
        """Names of the hidden layers, in the order in which they are treated."""
        return [units.name for units in self._layers]

    @property
    def replaced(self) -> dict[str, int]:
        """Units replaced since the beginning, by layer."""
        return {units.name: units.replaced for units in self._layers}

    @property
    def nonfinite(self) -> dict[str, int]:
        """Eligible units passed over since the beginning because their utility was not finite, by layer."""
        return {units.name: units.nonfinite for units in self._layers}

    @torch.no_grad()
    def step(self) -> StepReport:
        """One step of generate-and-test, after the optimizer's.

        Raises:
          RuntimeError: if there was no forward pass in training mode, with gradients on, since the last step.
        """
        for units in self._layers:
            if not units.pending and units.folded is None:
                raise RuntimeError(
                    f"GenerateAndTest.step(): no forward pass through layer {units.name!r} was seen since the last step; "
                    "call the model in training mode with gradients on, after GenerateAndTest is made "
                    "(a model compiled and called before that does not know of it)"
                )
        self.steps += 1
        self._magnitudes.forget_all()
        report = StepReport(self.steps, {}, {}, {})
        for units in self._layers:
            units.follow_device()
            self._step_layer(units, report)
        return report

    def _step_layer(self, units: Units, report: StepReport) -> None:
        settings, variant = self.settings, self.settings.variant
        eta = settings.decay_rate
        age = self.steps - units.birth_on_device
        correction = tester.bias_correction(age, eta, units.dtype)

        f_tm1, u_tm1 = units.average_activation, units.average_utility
        f_hat = None
        if variant.lagged:
            f_hat = tester.estimate(f_tm1, correction) if units.needs_mean else None
        elif units.needs.deviation:
            f_hat = tester.estimate(tester.running_average(f_tm1, units.pending_mean(), eta), correction)
        sums = units.take_sums(f_hat)
        if sums.h is not None:
            units.average_activation = tester.running_average(f_tm1, sums.h / sums.examples, eta)
        if settings.utility == "random":
            report._utilities[units.name] = partial(_random_utility, units, settings.seed, units.replaced)
        else:
            y = tester.instantaneous(
                settings.utility,
                None if sums.absolute is None else sums.absolute / sums.examples,
                None if sums.deviation is None else sums.deviation / sums.examples,
                self._magnitude_out(units) if units.needs.magnitude_out else None,
                self._magnitude_in(units) if units.needs.magnitude_in else None,
            )
            units.average_utility = tester.running_average(u_tm1, y, eta)
            compared = u_tm1 if variant.lagged else units.average_utility
            report._utilities[units.name] = partial(tester.estimate, compared, correction)
        report._ages[units.name] = age

        count = self._count_due(units)
        if count > 0:
            u_hat = report._utilities[units.name]()
            eligible = age > settings.maturity_threshold
            index = select(u_hat, eligible, count)
            self._count_nonfinite(units, u_hat, eligible)
            if len(index) > 0:
                if variant.transfers_bias:
                    f_hat = tester.estimate(units.average_activation, correction)
                    _transfer_bias(units, index, f_hat)
                self._replace(units, index)
                report.replaced[units.name] = index.tolist()

    def _count_due(self, units: Units) -> int:
        """How many units of the layer are to be replaced in this step, as far as enough are eligible."""
        settings = self.settings
        mature_before = self.steps - settings.maturity_threshold
        if settings.variant.rate_of_eligible:
            exposed = int((units.birth < mature_before).sum())
        else:
            exposed = units.count if units.birth.min() < mature_before else 0
        if settings.replacement == "bernoulli":
            return count_bernoulli(settings.replacement_rate, exposed, settings.seed, self.steps - 1, units.number)
        units.exposure += exposed
        if exposed == 0:
            return 0
        return count_accumulated(settings.replacement_rate, units.exposure, units.replaced)

    def _replace(self, units: Units, index: Tensor) -> None:
        """The generator: the one place where weights and optimizer state change."""
        numbers = range(units.replaced, units.replaced + len(index))
        weights, biases = new_units(units.distribution, units.fan_in, self.settings.seed, units.number, numbers)
        unit = units.unit
        unit.weight[index] = weights.to(unit.weight).view(len(index), *unit.weight.shape[1:])
        self._forget(unit.weight, 0, index)
        if unit.bias is not None:
            unit.bias[index] = biases.to(unit.bias)
            self._forget(unit.bias, 0, index)
        for consumer in units.consumers:
            columns = consumer.columns(index)
            consumer.module.weight.index_fill_(1, columns, 0)
            self._forget(consumer.module.weight, 1, columns)
        for norm in units.norms:
            self._reset_norm(norm, index)
        # New tensors, because a report may still hold the old ones.
        units.average_utility = units.average_utility.index_fill(0, index, 0)
        units.average_activation = units.average_activation.index_fill(0, index, 0)
        units.birth[index.cpu().numpy()] = self.steps
        units.birth_on_device = units.birth_on_device.index_fill(0, index, self.steps)
        units.replaced += len(index)

    def _reset_norm(self, norm: nn.Module, index: Tensor) -> None:
        fresh = {"running_mean": 0.0, "running_var": 1.0, **OnlineNorm.fresh_statistics()}
        for name, buffer in norm.named_buffers(recurse=False):
            if name in fresh:
                buffer.index_fill_(0, index, fresh[name])
        for name, parameter in norm.named_parameters(recurse=False):
            parameter.index_fill_(0, index, 1.0 if name == "weight" else 0.0)
            self._forget(parameter, 0, index)

    def _forget(self, parameter: Tensor, dim: int, index: Tensor) -> None:
        reset_weights(self._optimizers[parameter], parameter, dim, index)
        self._magnitudes.forget(parameter)

    def _magnitude_out(self, units: Units) -> Tensor:
        total: Tensor | None = None
        for consumer in units.consumers:
            columns = self._magnitudes.columns(consumer.module.weight, units.dtype)
            if consumer.inputs_per_unit > 1:
                columns = columns.view(units.count, consumer.inputs_per_unit).sum(1)
            total = columns if total is None else total + columns
        assert total is not None
        return total / units.fan_out if self.settings.variant.mean_magnitudes else total

    def _magnitude_in(self, units: Units) -> Tensor:
        rows = self._magnitudes.rows(units.unit.weight, units.dtype)
        return rows / units.fan_in if self.settings.variant.mean_magnitudes else rows

    def _f_hat_of_next_step(self, units: Units) -> Tensor | None:
        if not units.needs.deviation:
            return None
        age = self.steps + 1 - units.birth_on_device
        return tester.estimate(units.average_activation, tester.bias_correction(age, self.settings.decay_rate, units.dtype))

    def _count_nonfinite(self, units: Units, utility: Tensor, eligible: Tensor) -> None:
        count = int((eligible & ~utility.isfinite()).sum())
        units.nonfinite += count
        if count and not self._warned:
            self._warned = True
            warnings.warn(
                f"GenerateAndTest: step {self.steps}: {count} of {units.count} units in layer {units.name!r} have a utility "
                "that is not finite and can't be replaced; see .nonfinite (this is said once)",
                RuntimeWarning,
                stacklevel=4,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs besides the model's and the optimizer's states; safe for `weights_only=True`."""
        return {
            "settings": asdict(self.settings),
            "steps": self.steps,
            "layers": {units.name: units.state_dict() for units in self._layers},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken.

        Raises:
          InputError: if the state belongs to other layers, sizes or settings; nothing is changed then.
        """
        ours = asdict(self.settings)
        for name, value in state["settings"].items():
            if ours.get(name) != value:
                raise InputError(
                    f"load_state_dict: {name} was {value!r} when the state was saved and is {ours.get(name)!r} here; "
                    "make GenerateAndTest with the saved settings"
                )
        if list(state["layers"]) != self.layers:
            raise InputError(f"load_state_dict: the state is of layers {list(state['layers'])}, here are {self.layers}")
        for units in self._layers:
            units.check_state_dict(state["layers"][units.name])
        for units in self._layers:
            units.load_state_dict(state["layers"][units.name])
        self.steps = int(state["steps"])

    def close(self) -> None:
        """Removes the hooks from the model."""
        for units in self._layers:
            units.hook.remove()
            units.pending.clear()


def _random_utility(units: Units, seed: int, replaced: int) -> Tensor:
    return torch.from_numpy(random_utility(units.count, seed, units.number, replaced)).to(units.device)


def _transfer_bias(units: Units, index: Tensor, f_hat: Tensor) -> None:
    """Moves the mean contribution of the units about to go into the biases that they feed.

    Exact for the mean of a Linear layer's input. A channel's mean over examples and positions stands for each of its
    positions, and a Conv2d's zero padding is not accounted for.
    """
    for consumer in units.consumers:
        weight = consumer.module.weight
        outputs = weight.shape[0]
        leaving = weight.reshape(outputs, units.count, -1)[:, index].sum(2)  # [outputs, replaced units]
        assert consumer.module.bias is not None
        consumer.module.bias += leaving @ f_hat[index].to(weight.dtype)


def _check_init(init: Any, names: list[str]) -> None:
    if isinstance(init, dict):
        for name in init:
            if name not in names:
                raise InputError(f"init: {name!r} is not a hidden layer; the hidden layers are {', '.join(names)}")


def _optimizers_by_parameter(
    optimizer: Optimizer | Iterable[Optimizer], layers: list[HiddenLayer], modules: dict[str, nn.Module]
) -> dict[Tensor, Optimizer]:
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    holders = {p: o for o in optimizers for group in o.param_groups for p in group["params"]}
    for layer in layers:
        for name in (layer.unit, *layer.outgoing, *layer.norms):
            for parameter_name, parameter in modules[name].named_parameters(recurse=False):
                if parameter not in holders:
                    raise InputError(
                        f"optimizer: it does not hold the model's parameter '{name}.{parameter_name}'; "
                        "make the optimizer from this model's parameters()"
                    )
    return holders


def _check_biases(layers: list[HiddenLayer], modules: dict[str, nn.Module], preset: str) -> None:
    for layer in layers:
        for name in layer.outgoing:
            if getattr(modules[name], "bias", None) is None:
                raise InputError(
                    f"preset: {preset!r} moves a removed unit's mean contribution into the bias of {name!r}, which has none; "
                    "give it a bias or use preset='paper'"
                )
