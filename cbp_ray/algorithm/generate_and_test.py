"""Generate-and-test: the inner loop of Algorithms 1 and 2, for any network whose units can be followed and any optimizer."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm import utility as tester
from cbp_ray.algorithm.adam import fill
from cbp_ray.algorithm.initialization import Scheme, resolve
from cbp_ray.algorithm.magnitudes import Magnitudes
from cbp_ray.algorithm.measurements import Measurements
from cbp_ray.algorithm.network import HiddenLayer, unwrap
from cbp_ray.algorithm.preconditions import (
    check_init,
    check_same_place,
    check_state,
    load_origin,
    optimizers_by_parameter,
    saved_origin,
    say_once,
    treatable,
)
from cbp_ray.algorithm.replacement import count_accumulated, count_bernoulli, random_utility, select
from cbp_ray.algorithm.reset import Generator, transfer_bias
from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.settings import Settings
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.algorithm.taps import Taps
from cbp_ray.algorithm.units import UnitModule
from cbp_ray.algorithm.watched_layer import Population, WatchedLayer
from cbp_ray.algorithm.watched_site import CalledThrough, CalledWith, Scratch, WatchedSite
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.presets import DEFAULTS, NEEDS, PRESETS, Needs, Utility
from cbp_ray.validation import truth_value


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
      model: a network; what of it can't be treated is left alone and named in `untreated`.
      optimizer: the optimizer (or several) that holds the model's parameters: `cbp_ray.Adam`, or any of `torch.optim`.
      replacement_rate: ρ, the fraction of a layer's units replaced per step.
      maturity_threshold: m; units are safe until they are older than this many steps.
      decay_rate: η of the running averages.
      utility: `overall`, `mean_corrected_contribution`, `contribution`, `adaptation`, `weight_magnitude` or `random`;
        by default the preset's own.
      preset: `paper` (Dohare et al. 2022) or `nature2024` (Dohare et al. 2024); see `cbp_ray.presets.PRESETS`.
      seed: seed of new weights; for the result of `stacked_linear.stack`, one for each run.
      replacement: `accumulate` carries the fraction of n·ρ from step to step; `bernoulli` rounds it at random.
      init: where new weights come from: `kaiming`, `lecun`, `xavier`, `pytorch`; `uniform`, `normal`, `truncated_normal`,
        `orthogonal` or `empirical`, with the scale of the present weights; or distributions by layer name. By default what each
        layer was created with, recognised from its weights.
      layers: the hidden layers, for networks that can't be traced.
      strict: whether a network of which some part can't be treated is refused.
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
        strict: bool = False,
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
        needs, variant = self._measured(), self.settings.variant
        self._optimizers = optimizers_by_parameter(optimizer)
        found = treatable(model, layers, self._optimizers, biases=variant.transfers_bias, preset=preset, strict=strict)
        self.untreated: dict[str, str] = found.untreated
        """What is left alone, by module, and why."""
        kept = [layer.units for layer in found.layers if layer.units is not None]
        check_init(init, [part.name for units in kept for part in (*units.producers, *units.followers)])
        self.steps = 0
        self._init = init
        self._generator = Generator(self._optimizers)
        self._layers: list[WatchedLayer] = []
        self._populations: list[Population] = []
        start = 0
        for number, units in enumerate(kept):
            activations = [*units.activations, *["linear"] * len(units.followers)]
            distributions = [
                resolve(init, part.name, cast(UnitModule, part.module), activation)
                for part, activation in zip((*units.producers, *units.followers), activations, strict=True)
            ]
            layer = WatchedLayer(number, start, units, distributions, self.settings.seed)
            start += layer.count
            self._layers.append(layer)
            self._populations += layer.populations
        check_same_place(self._layers)
        scratch = Scratch()
        self._needs, self._needs_mean = needs, needs.deviation or variant.transfers_bias
        self._taps = Taps(self._layers, needs, self._needs_mean, scratch)
        self._sites = self._taps.sites
        self._guards: list[CalledThrough | CalledWith] = [CalledThrough(name, module) for name, module in found.parts]
        self._guards += [CalledWith(*assumed) for assumed in found.assumed]
        self._allocate()
        # The step in which each unit was made, on the host, so that finding the eligible ones does not wait for a device.
        self._birth = np.zeros(start, dtype=np.int64)
        self._magnitudes = Magnitudes(self._layers, self._sites, needs, scratch, mean=variant.mean_magnitudes)
        if variant.lagged or not needs.deviation:
            for site in self._sites:
                site.fold_with = self._f_hat_of_next_step
        if truth_value("compiled", compiled):
            with suppress(ModuleNotFoundError):  # without Numba
                from cbp_ray.compiled.statistics import CompiledStatistics

                self._magnitudes.statistics = statistics = CompiledStatistics()
                for site in self._sites:
                    site.statistics = statistics
        say_once(self._layers, found.untreated, init)
        self._warned = False
        self._prepared: tuple[Tensor, Sequence[Tensor | None]] | None = None
        self.average_over_replicas: Callable[[Tensor], None] | None = None
        """In data-parallel training: replaces averages over this replica's examples by those over all replicas', in place."""

    def _measured(self) -> Needs:
        """What every step measures."""
        return NEEDS[self.settings.utility]

    def _allocate(self) -> None:
        """Makes the state beside the weights, of all layers end to end: few operations, whose calls cost more than the work."""
        last = self._layers[-1]
        of_units = torch.zeros(last.at.stop, dtype=last.dtype, device=last.device)
        of_taps = torch.zeros(self._taps.count, dtype=last.dtype, device=last.device)
        self._average_activation = of_taps  # f
        self._average_utility = of_units  # u
        self._correction = of_units.clone()  # 1 - ηᵃ
        self._one = torch.ones((), dtype=last.dtype, device=last.device)
        self._observed = torch.stack([of_taps, of_taps])
        self._mean, self._activity = self._observed
        self._f_hat = of_taps.clone()
        self._f_hats = self._by_site(self._f_hat)
        self._taps.to(last.device)
        for site in self._sites:
            site.mean, site.activity = self._mean[site.at], self._activity[site.at]

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
        for site in self._sites:
            if not site.pending and site.folded is None:
                raise RuntimeError(
                    f"GenerateAndTest.step(): no forward pass through layer {site.name!r} was seen since the last step; "
                    "call the model in training mode with gradients on, after GenerateAndTest is made "
                    "(a model compiled and called before that does not know of it)"
                )
        self.steps += 1
        self._observe()
        if self.settings.utility != "random":
            self._magnitudes.measure()
            self._utility_tm1 = self._average_utility
            self._average_utility = self._new_utility()
        due = [self._count_due(units) for units in self._populations]
        report = StepReport(self.steps, {}, self._populations, self._utilities(), self._birth)
        for units, count in zip(self._populations, due, strict=True):
            if count > 0:
                self._replace_least(units, count, report)
        return report

    def measurements(self) -> Measurements:
        """What steps change, for code that makes whole steps elsewhere, in place, and then says so to `steps_made`."""
        self.forget_forwards()
        self._prepared = None
        # Copies, because reports hold the old ones.
        self._average_activation, self._average_utility = self._average_activation.clone(), self._average_utility.clone()
        self._correction, self._utility_tm1 = self._correction.clone(), self._average_utility.clone()
        self._birth = self._birth.copy()
        return Measurements(
            {units.layer.weight: units for units in self._populations},
            self._birth,
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

    def steps_made(self, count: int, utilities: Tensor, birth: NDArray[np.int64]) -> StepReport:
        """Counts steps that were made elsewhere in `measurements`, with what units had in the last one before replacements."""
        self.steps += count
        report = StepReport(self.steps, {}, self._populations, partial(_estimate_at, utilities, None), birth)
        for units in self._populations:
            new = np.flatnonzero(self._birth[units.at] == self.steps)
            if len(new):
                report.replaced[units.name] = new[np.argsort(utilities[units.at].numpy()[new], kind="stable")].tolist()
        return report

    def _observe(self) -> None:
        """Brings the averages of the units' outputs, f, and 1 - ηᵃ up to this step."""
        variant, eta = self.settings.variant, self.settings.decay_rate
        self._correction, f_hats = self._prepare()
        self._prepared = None
        f_tm1 = self._average_activation
        if not variant.lagged and self._needs.deviation:
            mean = torch.cat([site.pending_mean() for site in self._sites])
            if self.average_over_replicas is not None:
                self.average_over_replicas(mean)
            f_hats = self._by_site(
                tester.estimate(tester.running_average(f_tm1, mean, eta), self._taps.by_tap(self._correction))
            )
        for site, f_hat in zip(self._sites, f_hats, strict=True):
            site.take_observed(f_hat)
        if self.average_over_replicas is not None:
            self.average_over_replicas(self._observed)
        if self._needs_mean:
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
        if at is not None and not self._taps.plain:
            return self._new_utility()[at]
        u_tm1, activity, outgoing, incoming = measured if at is None else (tensor[at] for tensor in measured)
        y = tester.instantaneous(self.settings.utility, activity, outgoing, incoming, self._taps.by_unit)
        return tester.running_average(u_tm1, y, self.settings.decay_rate)

    def _replace_least(self, units: Population, count: int, report: StepReport) -> None:
        """Replaces up to `count` eligible units with the smallest utility."""
        utility = report._utilities(units)
        eligible = self.steps - self._birth[units.at] > self.settings.maturity_threshold
        chosen, nonfinite = self._select(units, utility.cpu().numpy(), eligible, count)
        index = torch.from_numpy(chosen).to(utility.device)
        units.nonfinite += nonfinite
        if nonfinite:
            self.warn_of_nonfinite(units, nonfinite)
        if len(index) == 0:
            return
        report.replaced[units.name] = index.tolist()
        if self.settings.variant.transfers_bias:
            transfer_bias(units, index, tester.estimate(self._average_activation, self._taps.by_tap(self._correction)))
        touched = self._touched_by(units)
        for later, columns in touched:
            if columns is not None:
                self._magnitudes.lose_inputs(later, columns(index))
        self._replace(units, index)
        for later, columns in touched:
            # Each layer is finished before the next: it must see that some of its input weights are zero now.
            if columns is None:
                self._magnitudes.measure_again(later.layer)
            self._average_utility[later.at] = self._new_utility(later.at)
            if self._utility_estimate is not None:
                self._utility_estimate[later.at] = tester.estimate(self._average_utility[later.at], self._correction[later.at])

    def _select(
        self, units: Population, utility: NDArray[Any], eligible: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], int]:
        """Which units go, and how many can't because their utility is not finite."""
        return select(utility, eligible, count)

    def warn_of_nonfinite(self, units: Population, count: int) -> None:
        """Says once that some units can't be replaced."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"GenerateAndTest: step {self.steps}: {min(count, units.count)} of {units.count} units in layer {units.name!r} "
                "have a utility that is not finite and can't be replaced; see .nonfinite (this is said once)",
                RuntimeWarning,
                stacklevel=6,
            )

    def _prepare(self) -> tuple[Tensor, Sequence[Tensor | None]]:
        """1 - ηᵃ of the step to come and, where it is needed and lagged, each layer's f̂: known since the last step."""
        if self._follow_device() or self._prepared is None:
            correction = tester.running_average(self._correction, self._one, self.settings.decay_rate)
            f_hats: Sequence[Tensor | None] = [None] * len(self._sites)
            if self.settings.variant.lagged and self._needs.deviation:
                tester.estimate(self._average_activation, self._taps.by_tap(correction), out=self._f_hat)
                f_hats = self._f_hats
            self._prepared = correction, f_hats
        return self._prepared

    def _by_site(self, of_all: Tensor) -> list[Tensor]:
        return [of_all[site.at] for site in self._sites]

    def _touched_by(self, units: Population) -> list[tuple[Population, Callable[[Tensor], Tensor] | None]]:
        """Units still to come in this step whose utility depends on weights that a replacement in `units` changes.

        With those that only lose inputs comes the function that turns the units replaced into inputs of that layer.
        """
        layer = units.layer
        found: list[tuple[Population, Callable[[Tensor], Tensor] | None]] = []
        consumers = {part.tensor: part for part in layer.units.consumers} if self._needs.magnitude_in else {}
        producers = {part.tensor for part in layer.units.producers} if self._needs.magnitude_out else set()
        for later in self._layers[layer.number + 1 :]:
            fed = [consumers[part.tensor] for part in later.units.producers if part.tensor in consumers]
            redrawn = any(part.tensor in producers for part in later.units.consumers)
            if not fed and not redrawn:
                continue
            simple = not redrawn and len(later.units.producers) == 1 and later.units.producers[0].plain and fed[0].dim == 1
            found.append((later.populations[units.run or 0], fed[0].of if simple else None))
        return found

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
        """Replaces units and everything that is remembered of them."""
        self._generator.replace(units, index)
        # A copy, because reports hold the old one.
        self._birth = self._birth.copy()
        self._birth[units.at][index.cpu().numpy()] = self.steps
        units.oldest_birth = int(self._birth[units.at].min())
        self._average_activation[self._taps.of(units, index)] = 0
        fill(self._average_utility[units.at], 0, index, 0)
        self._correction = self._correction.clone()  # reports hold the old one
        fill(self._correction[units.at], 0, index, 0)
        units.replaced += len(index)

    def _f_hat_of_next_step(self, site: WatchedSite) -> Tensor | None:
        return self._prepare()[1][site.number]

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
                "average_activation": self._average_activation[self._taps.of(units)].clone(),
                "average_utility": self._average_utility[units.at].clone(),
                "correction": self._correction[units.at].clone(),
                **saved_origin(units.layer),
                "birth": torch.from_numpy(self._birth[units.at].copy()),
                "exposure": units.exposure,
                "replaced": units.replaced,
                "nonfinite": units.nonfinite,
            }
            for units in self._populations
        }
        return {"settings": asdict(self.settings), "steps": self.steps, "layers": layers}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where `state_dict` was taken.

        Raises:
          InputError: if it belongs to other layers, sizes or settings, or is none at all; nothing is changed then.
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
            self._average_activation[self._taps.of(units)] = saved_layer["average_activation"].to(self._one)
            self._average_utility[units.at] = saved_layer["average_utility"].to(self._one)
            self._correction[units.at] = saved_layer["correction"].to(self._one)
            self._birth[units.at] = saved_layer["birth"].cpu().numpy()
            units.oldest_birth = int(self._birth[units.at].min())
            units.exposure, units.replaced = int(saved_layer["exposure"]), int(saved_layer["replaced"])
            units.nonfinite = int(saved_layer["nonfinite"])
            load_origin(units.layer, saved_layer)
        self.forget_forwards()

    def forget_forwards(self) -> None:
        """Drops what was seen since the last step, for example a forward pass on other data than the next update's."""
        for site in self._sites:
            site.forget_forwards()

    def close(self) -> None:
        """Removes the hooks from the model."""
        for guard in self._guards:
            guard.remove()
        for site in self._sites:
            site.hook.remove()
            site.forget_forwards()


def _estimate_at(average: Tensor, correction: Tensor | None, units: Population) -> Tensor:
    """û of some units; the average itself if it is corrected already."""
    return average[units.at] if correction is None else tester.estimate(average[units.at], correction[units.at])


def _random_utility(units: Population, *, replaced: dict[Population, int]) -> Tensor:
    layer = units.layer
    utility = torch.from_numpy(random_utility(units.count, units.seed, layer.number, replaced[units]))
    # float64 as drawn, wherever a device has it, so that all engines find the same order.
    return utility.to(layer.device, torch.float32 if layer.device.type == "mps" else torch.float64)
