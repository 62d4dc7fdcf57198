"""Generate-and-test: the inner loop of Algorithms 1 and 2, for any network that can be traced and any optimizer."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm import utility as tester
from cbp_ray.algorithm.adam import fill, of_run
from cbp_ray.algorithm.initialization import Scheme, resolve
from cbp_ray.algorithm.magnitudes import Magnitudes
from cbp_ray.algorithm.network import HiddenLayer, check_layers, find_hidden_layers, unwrap
from cbp_ray.algorithm.online_norm import OnlineNorm
from cbp_ray.algorithm.optimizer_state import reset_weights
from cbp_ray.algorithm.preconditions import check_biases, check_init, check_same_place, check_state, optimizers_by_parameter
from cbp_ray.algorithm.replacement import count_accumulated, count_bernoulli, new_units, random_utility, select
from cbp_ray.algorithm.settings import Settings
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.algorithm.watched_layer import Measurements, Population, Scratch, WatchedLayer
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.presets import DEFAULTS, NEEDS, PRESETS, Utility


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
      preset: `paper` (Dohare et al. 2022) or `nature2024` (Dohare et al. 2024); see `cbp_ray.presets.PRESETS`.
      seed: seed of new weights; for the result of `stacked_linear.stack`, one for each run.
      replacement: `accumulate` carries the fraction of n·ρ from step to step; `bernoulli` rounds it at random.
      init: where new weights come from: `kaiming`, `lecun`, `xavier`, `pytorch`, or distributions by layer name; by default
        what each layer was created with.
      layers: the hidden layers, for networks that can't be traced.
      compiled: whether float32 matrices on a CPU are measured by compiled passes, which is faster and equal to rounding.
        Everything else, and all of it where Numba is not installed, is measured with torch.

    Example:
      >>> from cbp_ray import Adam, GenerateAndTest
      >>> model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
      >>> optimizer = Adam(model.parameters(), lr=1e-3)
      >>> gnt = GenerateAndTest(model, optimizer, replacement_rate=1e-2, maturity_threshold=1)
      >>> for _ in range(5):
      ...     optimizer.zero_grad()
      ...     model(torch.ones(4, 8)).square().mean().backward()
      ...     optimizer.step()
      ...     report = gnt.step()
      >>> len(report.replaced["0"])
      1

    References:
      Dohare, Sutton and Mahmood, Continual Backprop: Stochastic Gradient Descent with Persistent Randomness, 2022.
    """

    _utility_tm1: Tensor
    """u before this step."""
    _utility_estimate: Tensor | None
    """û of this step, where it is not made from u before this step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        replacement_rate: float = DEFAULTS.replacement_rate,
        maturity_threshold: int = DEFAULTS.maturity_threshold,
        decay_rate: float = DEFAULTS.decay_rate,
        utility: Utility | None = None,
        preset: str = DEFAULTS.preset,
        seed: int | Sequence[int] = 0,
        *,
        replacement: str = DEFAULTS.replacement,
        init: Scheme | dict[str, Distribution] | None = None,
        layers: Iterable[HiddenLayer] | None = None,
        compiled: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
        if utility is None and isinstance(preset, str) and preset in PRESETS:
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
        check_init(init, [layer.unit for layer in found])
        needs, variant = NEEDS[self.settings.utility], self.settings.variant
        distributions = [resolve(init, layer.unit, modules[layer.unit], layer.activation) for layer in found]
        self._optimizers = optimizers_by_parameter(optimizer, found, modules)
        if variant.transfers_bias:
            check_biases(found, modules, preset)
        self.steps = 0
        self._init = init
        self._layers: list[WatchedLayer] = []
        self._populations: list[Population] = []
        start, scratch = 0, Scratch()
        needs_mean, seed = needs.deviation or variant.transfers_bias, self.settings.seed
        for number, (hidden, distribution) in enumerate(zip(found, distributions, strict=True)):
            layer = WatchedLayer(number, start, hidden, modules, distribution, needs, needs_mean, scratch, seed)
            start += layer.count
            self._layers.append(layer)
            self._populations += layer.populations
        self._owners = {layer.weight: layer for layer in self._layers}
        check_same_place(self._layers)
        self._allocate()
        # The step in which each unit was made, on the host, so that finding the eligible ones does not wait for a device.
        self._birth = np.zeros(start, dtype=np.int64)
        self._magnitudes = Magnitudes(self._layers, needs, scratch, mean=variant.mean_magnitudes)
        if variant.lagged or not needs.deviation:
            for layer in self._layers:
                layer.fold_with = self._f_hat_of_next_step
        if compiled:
            with suppress(ModuleNotFoundError):  # without Numba
                from cbp_ray.compiled.statistics import CompiledStatistics

                self._magnitudes.statistics = statistics = CompiledStatistics()
                for layer in self._layers:
                    layer.statistics = statistics
        self._warned = False
        self._prepared: tuple[Tensor, Sequence[Tensor | None]] | None = None
        self.average_over_replicas: Callable[[Tensor], None] | None = None
        """In data-parallel training: replaces averages over this replica's examples by those over all replicas', in place."""

    def _allocate(self) -> None:
        """Makes the state beside the weights.

        The averages of all layers stand end to end, so that a step needs few operations: at the sizes of the paper's
        networks, calling an operation costs more than carrying it out.
        """
        last = self._layers[-1]
        like = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        self._average_activation = like  # f
        self._average_utility = like.clone()  # u
        self._correction = like.clone()  # 1 - ηᵃ
        self._one = torch.ones((), dtype=last.dtype, device=last.device)
        self._observed = torch.stack([like, like])
        self._mean, self._activity = self._observed
        self._f_hat = like.clone()
        self._f_hats = self._by_layer(self._f_hat)
        for layer in self._layers:
            layer.mean, layer.activity = self._mean[layer.at], self._activity[layer.at]

    @property
    def layers(self) -> list[str]:
        """Names of the hidden layers, in the order in which they are treated."""
        return [layer.name for layer in self._layers]

    @property
    def replaced(self) -> dict[str, int]:
        """Number of units replaced since the beginning, by layer."""
        return {units.name: units.replaced for units in self._populations}

    @property
    def nonfinite(self) -> dict[str, int]:
        """Number of eligible units passed over since the beginning because their utility was not finite, by layer."""
        return {units.name: units.nonfinite for units in self._populations}

    @torch.no_grad()
    def step(self) -> StepReport:
        """One step of generate-and-test, after the optimizer's.

        Raises:
          RuntimeError: if there was no forward pass in training mode, with gradients on, since the last step.
        """
        for layer in self._layers:
            if not layer.pending and layer.folded is None:
                raise RuntimeError(
                    f"GenerateAndTest.step(): no forward pass through layer {layer.name!r} was seen since the last step; "
                    "call the model in training mode with gradients on, after GenerateAndTest is made "
                    "(a model compiled and called before that does not know of it)"
                )
        self.steps += 1
        self._observe()
        if self.settings.utility != "random":
            self._magnitudes.measure()
            self._utility_tm1 = self._average_utility
            self._average_utility = self._new_utility()
        return self._replace_due([self._count_due(units) for units in self._populations])

    def count_steps(self, at_most: int) -> tuple[int, list[int]]:
        """Counts steps whose measurements are made elsewhere, in place in `measurements`, until units are due or `at_most`.

        Returns:
          The number of steps, and how many units of each population are due in the last one. Once the measurements of all of
          them are made, they are for `replace_due`.
        """
        due, before = [0], self.steps
        while max(due) <= 0 and self.steps < before + at_most:
            self.steps += 1
            due = [self._count_due(units) for units in self._populations]
        return self.steps - before, due

    def measurements(self) -> Measurements:
        """What every step changes, for code that makes the steps counted by `count_steps`: valid until `replace_due`."""
        self.forget_forwards()
        self._prepared = None
        # Copies, because reports hold the old ones.
        self._average_activation, self._average_utility = self._average_activation.clone(), self._average_utility.clone()
        self._correction, self._utility_tm1 = self._correction.clone(), self._average_utility.clone()
        return Measurements(
            {layer.weight: layer.at for layer in self._layers},
            self._average_activation,
            self._average_utility,
            self._utility_tm1,
            self._correction,
            self._f_hat,
            self._mean,
            self._activity,
            self._magnitudes.incoming,
            self._magnitudes.outgoing,
        )

    @torch.no_grad()
    def replace_due(self, due: list[int]) -> StepReport:
        """Ends a step whose measurements were made elsewhere; see `count_steps`."""
        return self._replace_due(due)

    def _replace_due(self, due: list[int]) -> StepReport:
        """Replaces the units that are due in each population, and reports the step."""
        report = StepReport(self.steps, {}, self._populations, self._utilities(), self._birth)
        for units, count in zip(self._populations, due, strict=True):
            if count > 0:
                self._replace_least(units, count, report)
        return report

    def _observe(self) -> None:
        """Brings the averages of the units' outputs, f, and 1 - ηᵃ up to this step."""
        variant, eta = self.settings.variant, self.settings.decay_rate
        self._correction, f_hats = self._prepare()
        self._prepared = None
        f_tm1 = self._average_activation
        if not variant.lagged and self._layers[0].needs.deviation:
            mean = torch.cat([layer.pending_mean() for layer in self._layers])
            if self.average_over_replicas is not None:
                self.average_over_replicas(mean)
            f_hats = self._by_layer(tester.estimate(tester.running_average(f_tm1, mean, eta), self._correction))
        for layer, f_hat in zip(self._layers, f_hats, strict=True):
            layer.take_observed(f_hat)
        if self.average_over_replicas is not None:
            self.average_over_replicas(self._observed)
        if self._layers[0].needs_mean:
            self._average_activation = tester.running_average(f_tm1, self._mean, eta)

    def _utilities(self) -> Callable[[Population], Tensor]:
        """What gives û of some units in this step."""
        if self.settings.utility == "random":
            return partial(_random_utility, replaced={units: units.replaced for units in self._populations})
        if self.settings.variant.lagged:
            self._utility_estimate = None
            return partial(_estimate_at, self._utility_tm1, self._correction)
        self._utility_estimate = tester.estimate(self._average_utility, self._correction)
        return partial(_estimate_at, self._utility_estimate, None)

    def _new_utility(self, at: slice | None = None) -> Tensor:
        """u of this step, of all units or those `at` some place, from u before it and what is measured now."""
        measured = (self._utility_tm1, self._activity, self._magnitudes.outgoing, self._magnitudes.incoming)
        u_tm1, activity, outgoing, incoming = measured if at is None else (tensor[at] for tensor in measured)
        y = tester.instantaneous(self.settings.utility, activity, outgoing, incoming)
        return tester.running_average(u_tm1, y, self.settings.decay_rate)

    def _replace_least(self, units: Population, count: int, report: StepReport) -> None:
        """Replaces up to `count` eligible units with the smallest utility."""
        utility = report._utilities(units)
        eligible = self.steps - self._birth[units.at] > self.settings.maturity_threshold
        chosen, nonfinite = select(utility.cpu().numpy(), eligible, count)
        index = torch.from_numpy(chosen).to(utility.device)
        units.nonfinite += nonfinite
        if nonfinite and not self._warned:
            self._warned = True
            warnings.warn(
                f"GenerateAndTest: step {self.steps}: {nonfinite} of {units.count} units in layer {units.name!r} have a "
                "utility that is not finite and can't be replaced; see .nonfinite (this is said once)",
                RuntimeWarning,
                stacklevel=5,
            )
        if len(index) == 0:
            return
        report.replaced[units.name] = index.tolist()
        if self.settings.variant.transfers_bias:
            _transfer_bias(units, index, tester.estimate(self._average_activation, self._correction)[units.at])
        later_units = self._fed_by(units)
        for later, columns in later_units:
            self._magnitudes.lose_inputs(later, columns(index))
        self._replace(units, index)
        for later, _ in later_units:
            # Each layer is finished before the next: it must see that some of its input weights are zero now.
            self._average_utility[later.at] = self._new_utility(later.at)
            if self._utility_estimate is not None:
                self._utility_estimate[later.at] = tester.estimate(self._average_utility[later.at], self._correction[later.at])

    def _prepare(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """1 - ηᵃ of the step to come and, where it is needed and lagged, each layer's f̂: known since the last step."""
        if self._follow_device() or self._prepared is None:
            correction = tester.running_average(self._correction, self._one, self.settings.decay_rate)
            f_hats: Sequence[Tensor | None] = [None] * len(self._layers)
            if self.settings.variant.lagged and self._layers[0].needs.deviation:
                tester.estimate(self._average_activation, correction, out=self._f_hat)
                f_hats = self._f_hats
            self._prepared = correction, f_hats
        return self._prepared

    def _by_layer(self, of_all: Tensor) -> list[Tensor]:
        return [of_all[layer.at] for layer in self._layers]

    def _fed_by(self, units: Population) -> list[tuple[Population, Callable[[Tensor], Tensor]]]:
        """Units still to come in this step whose utility depends on weights that a replacement in `units` sets to zero.

        With each comes the function that turns the units replaced into inputs of that layer.
        """
        layer = units.layer
        if not layer.needs.magnitude_in:
            return []
        fed = [(self._owners.get(c.module.weight, layer), c.columns) for c in layer.consumers]
        return [(later.populations[units.run or 0], columns) for later, columns in fed if later.number > layer.number]

    def _count_due(self, units: Population) -> int:
        """How many units of the layer are to be replaced in this step, as far as enough are eligible."""
        settings = self.settings
        mature_before = self.steps - settings.maturity_threshold
        if units.oldest_birth >= mature_before:
            exposed = 0
        elif settings.variant.rate_of_eligible:
            exposed = int((self._birth[units.at] < mature_before).sum())
        else:
            exposed = units.count
        if settings.replacement == "bernoulli":
            return count_bernoulli(settings.replacement_rate, exposed, units.seed, self.steps - 1, units.layer.number)
        units.exposure += exposed
        return count_accumulated(settings.replacement_rate, units.exposure, units.replaced) if exposed else 0

    def _replace(self, units: Population, index: Tensor) -> None:
        """The generator: the one place where weights and optimizer state change."""
        layer, unit, run = units.layer, units.layer.unit, units.run
        numbers = range(units.replaced, units.replaced + len(index))
        weights, biases = new_units(layer.distribution, layer.fan_in, units.seed, layer.number, numbers)
        weight, in_layer = of_run(unit.weight, run), index + units.offset
        weight[index] = weights.to(weight).view(len(index), *weight.shape[1:])
        self._forget(unit.weight, 0, index, run)
        if unit.bias is not None:
            unit.bias[in_layer] = biases.to(unit.bias)
            self._forget(unit.bias, 0, in_layer)
        for consumer in layer.consumers:
            columns = consumer.columns(index)
            of_run(consumer.module.weight, run).index_fill_(1, columns, 0)
            self._forget(consumer.module.weight, 1, columns, run)
        for norm in layer.norms:
            self._reset_norm(norm, in_layer)
        # Copies of births and corrections, because reports hold the old ones.
        self._birth = self._birth.copy()
        self._birth[units.at][index.cpu().numpy()] = self.steps
        units.oldest_birth = int(self._birth[units.at].min())
        fill(self._average_activation[units.at], 0, index, 0)
        fill(self._average_utility[units.at], 0, index, 0)
        self._correction = self._correction.clone()
        fill(self._correction[units.at], 0, index, 0)
        units.replaced += len(index)

    def _reset_norm(self, norm: nn.Module, index: Tensor) -> None:
        fresh = {"running_mean": 0.0, "running_var": 1.0, **OnlineNorm.fresh_statistics()}
        for name, buffer in norm.named_buffers(recurse=False):
            if name in fresh:
                buffer.index_fill_(0, index, fresh[name])
        for name, parameter in norm.named_parameters(recurse=False):
            parameter.index_fill_(0, index, 1.0 if name == "weight" else 0.0)
            self._forget(parameter, 0, index)

    def _forget(self, parameter: Tensor, dim: int, index: Tensor, run: int | None = None) -> None:
        reset_weights(self._optimizers[parameter], parameter, dim, index, run)

    def _f_hat_of_next_step(self, layer: WatchedLayer) -> Tensor | None:
        return self._prepare()[1][layer.number]

    def _follow_device(self) -> bool:
        """Moves the state to where the weights went (`model.to(device)` after construction). Returns whether they had moved."""
        device = self._layers[0].device
        if device == self._correction.device:
            return False
        state = self._average_activation, self._average_utility, self._correction
        self._allocate()
        self._average_activation, self._average_utility, self._correction = (tensor.to(device) for tensor in state)
        self._magnitudes.allocate()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs besides the model's and the optimizer's states; safe for `weights_only=True`."""
        layers = {
            units.name: {
                "average_activation": self._average_activation[units.at].clone(),
                "average_utility": self._average_utility[units.at].clone(),
                "correction": self._correction[units.at].clone(),
                "distribution": asdict(units.layer.distribution),
                "birth": torch.from_numpy(self._birth[units.at].copy()),
                "exposure": units.exposure,
                "replaced": units.replaced,
                "nonfinite": units.nonfinite,
            }
            for units in self._populations
        }
        return {"settings": asdict(self.settings), "steps": self.steps, "layers": layers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken.

        Raises:
          InputError: if the state belongs to other layers, sizes or settings; nothing is changed then.
        """
        check_state(state, self.settings, self._populations, self._init)
        self._follow_device()
        self._prepared = None
        self.steps = int(state["steps"])
        self._birth = self._birth.copy()
        self._average_activation, self._average_utility = self._average_activation.clone(), self._average_utility.clone()
        self._correction = self._correction.clone()
        for units in self._populations:
            saved_layer = state["layers"][units.name]
            self._average_activation[units.at] = saved_layer["average_activation"].to(self._one)
            self._average_utility[units.at] = saved_layer["average_utility"].to(self._one)
            self._correction[units.at] = saved_layer["correction"].to(self._one)
            self._birth[units.at] = saved_layer["birth"].cpu().numpy()
            units.oldest_birth = int(self._birth[units.at].min())
            units.exposure, units.replaced = int(saved_layer["exposure"]), int(saved_layer["replaced"])
            units.nonfinite = int(saved_layer["nonfinite"])
            units.layer.distribution = Distribution(**saved_layer["distribution"])
        self.forget_forwards()

    def forget_forwards(self) -> None:
        """Drops what was seen since the last step, for example a forward pass on other data than the next update's."""
        for layer in self._layers:
            layer.forget_forwards()

    def close(self) -> None:
        """Removes the hooks from the model."""
        for layer in self._layers:
            layer.hook.remove()
            layer.forget_forwards()


def _estimate_at(average: Tensor, correction: Tensor | None, units: Population) -> Tensor:
    """û of some units; the average itself if it is corrected already."""
    return average[units.at] if correction is None else tester.estimate(average[units.at], correction[units.at])


def _random_utility(units: Population, *, replaced: dict[Population, int]) -> Tensor:
    layer = units.layer
    utility = torch.from_numpy(random_utility(units.count, units.seed, layer.number, replaced[units]))
    # float64 as drawn, wherever a device has it, so that all engines find the same order.
    return utility.to(layer.device, torch.float32 if layer.device.type == "mps" else torch.float64)


def _transfer_bias(units: Population, index: Tensor, f_hat: Tensor) -> None:
    """Moves the mean contribution of the units about to go into the biases that they feed.

    Exact for the mean of a Linear layer's input. A channel's mean over examples and positions stands for each of its
    positions, and a Conv2d's zero padding is not accounted for.
    """
    for consumer in units.layer.consumers:
        weight, bias = of_run(consumer.module.weight, units.run), consumer.module.bias
        outputs = weight.shape[0]
        leaving = weight.reshape(outputs, units.count, -1)[:, index].sum(2)  # [outputs, replaced units]
        assert bias is not None
        bias.view(-1, outputs)[units.run or 0] += leaving @ f_hat[index].to(weight.dtype)
