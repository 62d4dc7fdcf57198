"""Rivals of generate-and-test that reset whole units by other rules: ReDo, and self-normalised resets."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from cbp_ray.algorithm import utility as tester
from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.initialization import Scheme
from cbp_ray.algorithm.network import HiddenLayer
from cbp_ray.algorithm.saved_states import whole_or_not
from cbp_ray.algorithm.watched_layer import Population
from cbp_ray.errors import InputError
from cbp_ray.initial_weights import Distribution
from cbp_ray.presets import DEFAULTS, Needs
from cbp_ray.validation import in_unit_interval, not_negative, whole_number


class _UnitResets(GenerateAndTest):
    """Generate-and-test's units, averages and generator, with a test of another kind.

    What is averaged is not weighted by |w|: û is the mean over the last steps of what `_measured` says.
    """

    replicas = 1
    """Copies of the network that learn at the same time, if `average_over_replicas` is set."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        decay_rate: float,
        seed: int,
        init: Scheme | dict[str, Distribution] | None,
        layers: Iterable[HiddenLayer] | None,
        strict: bool,
        maturity_threshold: int = 0,
    ) -> None:
        if not isinstance(seed, int):
            raise InputError(f"{type(self).__name__}: seed must be one whole number, got {seed!r}; use one network at a time")
        super().__init__(
            *(model, optimizer, 0.0, maturity_threshold, decay_rate, "contribution", "paper", seed),
            init=init,
            layers=layers,
            strict=strict,
            compiled=False,
        )

    def _new_utility(self, at: slice | None = None) -> Tensor:
        # A unit that is read in several places has the mean over these.
        activity = self._taps.by_unit(self._activity) / self._taps.by_unit(torch.ones_like(self._activity))
        average = tester.running_average(self._utility_tm1, activity, self.settings.decay_rate)
        return average if at is None else average[at]

    def _utilities(self) -> Any:
        self._utility_estimate = tester.estimate(self._average_utility, self._correction)
        estimate = self._utility_estimate
        return lambda units: estimate[units.at]


class ReDo(_UnitResets):
    """Recycles dormant units: every few steps, all whose average output is a small part of their layer's.

        s = E|h| / mean over the layer of E|h|,   dormant if s ≤ τ
        input weights from the initial distribution, output weights zero, and whatever the optimizer remembers of them forgotten

    E is a running average over steps, since at one example per step the activity in a single step says nothing; the paper
    takes it over a batch of 64 from a replay buffer.

    Args:
      model: a network; what of it can't be treated is left alone and named in `untreated`.
      optimizer: the optimizer, or several, that hold its parameters.
      threshold: τ; with 0, units that never gave anything else than 0.
      every: steps from one look to the next.
      decay_rate: η of the running average.
      seed: seed of new weights.
      init: as in `GenerateAndTest`, like the rest.
      layers: the hidden layers, for networks that can't be traced.
      strict: whether a network of which some part can't be treated is refused.

    Example:
      >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
      >>> optimizer = torch.optim.Adam(model.parameters())
      >>> redo = ReDo(model, optimizer, threshold=0.1, every=1000)

    References:
      Sokar, Agarwal, Castro and Evci, The Dormant Neuron Phenomenon in Deep Reinforcement Learning, 2023.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        threshold: float = 0.1,
        every: int = 1000,
        decay_rate: float = DEFAULTS.decay_rate,
        seed: int = 0,
        *,
        init: Scheme | dict[str, Distribution] | None = None,
        layers: Iterable[HiddenLayer] | None = None,
        strict: bool = False,
    ) -> None:
        self.threshold = not_negative("ReDo: threshold", threshold)
        self.every = whole_number("ReDo: every", every, least=1)
        super().__init__(model, optimizer, decay_rate, seed, init, layers, strict)

    def _measured(self) -> Needs:
        return Needs(absolute=True)

    def _count_due(self, units: Population) -> int:
        return units.count if self.steps % self.every == 0 else 0

    def _select(
        self, units: Population, utility: NDArray[Any], eligible: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], int]:
        finite = np.isfinite(utility)
        dormant = finite & eligible & (utility <= self.threshold * utility[finite].mean()) if finite.any() else finite
        return np.flatnonzero(dormant), int((eligible & ~finite).sum())


class SelfNormalizedResets(_UnitResets):
    """Resets units that have been silent for longer than is likely for them: SNR in its geometric form.

        p = E[h > 0],  a = examples since the unit last fired,   reset if (1 - p)ᵃ ≤ η

    The form is ours: the authors keep a histogram of the times between firings, of which this is the geometric
    approximation. For activations that are zero or below at times, such as ReLU. E is a running average over steps, taken when
    the unit last fired; of one that never did, the mean over its layer stands for it.

    Args:
      model: a network; what of it can't be treated is left alone and named in `untreated`.
      optimizer: the optimizer, or several, that hold its parameters.
      rejection: η, the probability below which a silence is no chance.
      maturity_threshold: units are safe until they are older than this many steps: what is known of a younger one is chance.
      decay_rate: of the running average.
      seed: seed of new weights.
      init: as in `GenerateAndTest`, like the rest.
      layers: the hidden layers, for networks that can't be traced.
      strict: whether a network of which some part can't be treated is refused.

    References:
      Farias and Jozefiak, Self-Normalized Resets for Plasticity in Continual Learning, 2024.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Iterable[Optimizer],
        rejection: float = 0.01,
        maturity_threshold: int = DEFAULTS.maturity_threshold,
        decay_rate: float = 0.999,
        seed: int = 0,
        *,
        init: Scheme | dict[str, Distribution] | None = None,
        layers: Iterable[HiddenLayer] | None = None,
        strict: bool = False,
    ) -> None:
        self.rejection = in_unit_interval("SelfNormalizedResets: rejection", rejection)
        super().__init__(model, optimizer, decay_rate, seed, init, layers, strict, maturity_threshold)
        count = len(self._birth)
        self.silence = torch.zeros(count, dtype=torch.float64)
        """Examples since each unit last fired."""
        self.firing = torch.zeros(count, dtype=torch.float64)
        """p of each unit when it last fired; 0 if it never did."""

    def _measured(self) -> Needs:
        return Needs(fired=True)

    def _new_utility(self, at: slice | None = None) -> Tensor:
        average = super()._new_utility(at)
        if at is None:
            fired = (self._taps.by_unit(self._activity) > 0).cpu()
            # Of each unit the examples, and positions, of the first place where it is read.
            seen = torch.cat([torch.full((site.count,), float(site.examples)) for site in self._sites])
            if self.average_over_replicas is not None:
                self.average_over_replicas(seen)
                seen *= self.replicas
            first = torch.cat([layer.taps[:, 0] for layer in self._layers])
            self.silence = torch.where(fired, 0.0, self.silence + seen[first].double())
            estimate = tester.estimate(average, self._correction).double().cpu()
            self.firing = torch.where(fired, estimate, self.firing)
        return average

    def _count_due(self, units: Population) -> int:
        return units.count if self.rejection > 0 else 0

    def _select(
        self, units: Population, utility: NDArray[Any], eligible: NDArray[np.bool_], count: int
    ) -> tuple[NDArray[np.int64], int]:
        firing, silence = self.firing[units.at].numpy(), self.silence[units.at].numpy()
        known = firing > 0
        firing = np.where(known, firing, firing[known].mean() if known.any() else 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            chance = np.where(silence > 0, np.exp(silence * np.log1p(-firing)), 1.0)
        return np.flatnonzero(eligible & (chance <= self.rejection)), 0

    def _replace(self, units: Population, index: Tensor) -> None:
        super()._replace(units, index)
        where = index.cpu() + units.at.start
        self.silence[where] = 0
        self.firing[where] = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "silence": self.silence.clone(), "firing": self.firing.clone()}

    @whole_or_not
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state.items() if name not in ("silence", "firing")})
        self.silence, self.firing = state["silence"].clone(), state["firing"].clone()
