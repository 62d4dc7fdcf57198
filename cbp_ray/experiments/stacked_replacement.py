"""Generate-and-test for many networks of one shape: averages of all runs at once, and the rare replacement, run by run.

The same as `algorithm.generate_and_test` with the run as first dimension. Which runs are due follows from counts that the host
keeps, so no step waits for the device; only a replacement does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cbp_ray.algorithm import utility as tester
from cbp_ray.algorithm.initialization import Distribution
from cbp_ray.algorithm.replacement import count_bernoulli, new_units, random_utility, select
from cbp_ray.algorithm.settings import PRESETS
from cbp_ray.experiments.initial_weights import bound
from cbp_ray.experiments.stacked_network import StackedNetworks, per_run
from cbp_ray.methods import ContinualBackprop


class StackedReplacement:
    """Replaces units of `networks`; `settings` and `seeds` are one per run, alike in utility, preset and replacement."""

    def __init__(self, networks: StackedNetworks, settings: Sequence[ContinualBackprop], seeds: Sequence[int]) -> None:
        self.networks, self.settings, self.seeds = networks, settings, seeds
        first = settings[0]
        self.preset, self.bernoulli = PRESETS[first.preset], first.replacement == "bernoulli"
        assert first.utility is not None
        self.utility = first.utility
        self.needs = tester.NEEDS[self.utility]
        hidden = networks.sizes[1:-1]
        self.distributions = [Distribution.uniform(bound(n, networks.activation)) for n in networks.sizes[:-2]]
        self.decay_rate = per_run([s.decay_rate for s in settings], networks.dtype, networks.device)
        self.rate = np.array([s.replacement_rate for s in settings])
        self.maturity = np.array([s.maturity_threshold for s in settings], dtype=np.int64)

        def zeros() -> list[Tensor]:
            return [torch.zeros(networks.runs, 1, n, dtype=networks.dtype, device=networks.device) for n in hidden]

        self.activation, self.average, self.before, self.correction = zeros(), zeros(), zeros(), zeros()
        self.activity = zeros()
        self.birth = [np.zeros((networks.runs, n), dtype=np.int64) for n in hidden]
        self.exposure, self.replaced, self.nonfinite = (
            np.zeros((len(hidden), networks.runs), dtype=np.int64) for _ in range(3)
        )
        self.steps = 0

    def observe(self) -> None:
        """Updates the averages of all units after an optimizer step: the part that CUDA replays."""
        weight = 1 - self.decay_rate
        for layer, h in enumerate(self.networks.hidden):
            f, correction = self.activation[layer], self.correction[layer]
            correction.lerp_(torch.ones_like(correction), weight)
            f_tm1 = f.clone()
            f.lerp_(h, weight)  # Equation 2
            if self.needs.deviation:
                self.activity[layer].copy_((h - (f_tm1 if self.preset.lagged else f) / correction).abs_())  # Equation 3
            elif self.needs.absolute:
                self.activity[layer].copy_(h.abs())
            if self.utility != "random":
                self.before[layer].copy_(self.average[layer])
                y = self._instantaneous(layer, slice(None))
                self.average[layer].copy_(self.before[layer].lerp(y, weight))  # Equation 6

    def _instantaneous(self, layer: int, runs: slice) -> Tensor:
        """Of a hidden layer's units in some runs, [runs, 1, units]."""
        incoming, outgoing = self.networks.weights[layer][runs], self.networks.weights[layer + 1][runs]
        magnitude_in = incoming.abs().sum(1, keepdim=True) if self.needs.magnitude_in else incoming.new_zeros(())
        magnitude_out = outgoing.abs().sum(2).unsqueeze(1) if self.needs.magnitude_out else outgoing.new_zeros(())
        if self.preset.mean_magnitudes:
            magnitude_in, magnitude_out = magnitude_in / incoming.shape[1], magnitude_out / outgoing.shape[2]
        return tester.instantaneous(self.utility, self.activity[layer][runs], magnitude_out, magnitude_in)

    def replace(self) -> None:
        """Counts, and replaces where a run is due."""
        self.steps += 1
        for layer in range(len(self.birth)):
            for run in np.flatnonzero(self._count_due(layer) > 0):
                self._replace(layer, int(run), int(self._due[run]))

    def _count_due(self, layer: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        eligible = (self.birth[layer] < (self.steps - self.maturity)[:, None]).sum(axis=1)
        exposed = eligible if self.preset.rate_of_eligible else np.where(eligible > 0, self.birth[layer].shape[1], 0)
        if self.bernoulli:
            counted = [
                count_bernoulli(float(self.rate[run]), int(exposed[run]), self.seeds[run], self.steps - 1, layer)
                for run in range(len(self.rate))
            ]
            self._due = np.array(counted, dtype=np.int64)
        else:
            self.exposure[layer] += exposed
            self._due = np.floor(self.rate * self.exposure[layer]).astype(np.int64) - self.replaced[layer]
        return self._due

    def _estimated(self, layer: int, run: int) -> Tensor:
        """û of one run's layer (Equation 7)."""
        if self.utility == "random":
            drawn = random_utility(self.birth[layer].shape[1], self.seeds[run], layer, int(self.replaced[layer, run]))
            return torch.from_numpy(drawn).to(self.networks.device)
        average = self.before if self.preset.lagged else self.average
        return tester.estimate(average[layer][run, 0], self.correction[layer][run, 0])

    def _replace(self, layer: int, run: int, due: int) -> None:
        """The generator: the one place, besides the gradient step, where weights and optimizer state change."""
        utility = self._estimated(layer, run)
        eligible = torch.from_numpy(self.birth[layer][run] < self.steps - self.maturity[run]).to(utility.device)
        self.nonfinite[layer, run] += int((eligible & ~utility.isfinite()).sum())
        units = select(utility, eligible, due)
        if len(units) == 0:
            return
        networks, outgoing = self.networks, self.networks.weights[layer + 1][run]
        if self.preset.transfers_bias:
            f_hat = tester.estimate(self.activation[layer][run, 0, units], self.correction[layer][run, 0, units])
            networks.biases[layer + 1][run, 0] += f_hat @ outgoing[units]
        numbers = range(int(self.replaced[layer, run]), int(self.replaced[layer, run]) + len(units))
        weights, biases = new_units(self.distributions[layer], networks.sizes[layer], self.seeds[run], layer, numbers)
        networks.weights[layer][run, :, units] = weights.T.to(outgoing)
        networks.biases[layer][run, 0, units] = biases.to(outgoing)
        outgoing[units] = 0
        networks.forget(layer, run, units)
        for average in (self.activation, self.average, self.before, self.correction):
            average[layer][run, 0, units] = 0
        self.birth[layer][run, units.cpu().numpy()] = self.steps
        self.replaced[layer, run] += len(units)
        if self.needs.magnitude_in and layer + 1 < len(self.birth):
            # Each layer is finished before the next, which must see that some of its input weights are zero now.
            runs, weight = slice(run, run + 1), 1 - self.decay_rate[run : run + 1]
            y = self._instantaneous(layer + 1, runs)
            self.average[layer + 1][runs] = self.before[layer + 1][runs].lerp(y, weight)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a step changes, by name."""
        averages = {"activation": self.activation, "average": self.average, "correction": self.correction}
        return {f"{name}/{layer}": tensor for name, tensors in averages.items() for layer, tensor in enumerate(tensors)}

    def host_state(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
        """The counts that the host keeps, by name."""
        births = {f"birth/{layer}": birth for layer, birth in enumerate(self.birth)}
        return {**births, "exposure": self.exposure, "replaced": self.replaced, "nonfinite": self.nonfinite}
