"""All mini-batches of an iteration of PPO in compiled code, for RLModules of the paper's kind.

Weights, moments, utilities and ages stay where they are: compiled code works on the memory of the module's parameters, of
`cbp_ray.Adam` and of `GenerateAndTest`, and leaves there what the way through autograd leaves, to rounding. Policy and value
network learn side by side, each in a thread of its own where there are two cores.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401  (the BLAS of compiled code, which must be there before its threads are limited)
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from threadpoolctl import ThreadpoolController
from torch import Tensor

from cbp_ray.algorithm.adam import Adam
from cbp_ray.algorithm.generate_and_test import GenerateAndTest
from cbp_ray.algorithm.step_report import StepReport
from cbp_ray.algorithm.watched_layer import Population
from cbp_ray.compiled.adam import CompiledAdam, Views
from cbp_ray.compiled.mlp import Workspace, outputs_of, workspace
from cbp_ray.compiled.ppo import Loss, Network, Rows, learn
from cbp_ray.compiled.replacement import ReadyUnits, counts, take_counts
from cbp_ray.compiled.units import Units, Watching
from cbp_ray.kernels.activations import Activation
from cbp_ray.kernels.choices import Utility
from cbp_ray.presets import NEEDS
from rllib_ext.learners.minibatches import MiniBatches
from rllib_ext.plain_module import PlainActorCritic, PlainMLP

COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS)
DIMENSIONS = (2, 2, 1, 1, 1)
_NOTHING: list[Any] = [False, 0, np.float32(0), *[False] * 7, 0.0, 0, *[False] * 3, np.uint64(0), 0]
NOT_WATCHING = Watching(*_NOTHING)
_EMPTY: list[Any] = [*np.zeros((9, 0), np.float32), *np.zeros((2, 0), np.int64), np.zeros((0, 0), np.float32)]
_EMPTY += [*np.zeros((2, 0)), np.zeros(0, np.int64)]
NO_UNITS = Units(*_EMPTY)


class LossSettings(NamedTuple):
    """What the loss of an iteration is made of."""

    clip: float = 0.0
    entropy_coefficient: float = 0.0
    value_clip: float = 0.0
    value_coefficient: float = 0.0
    clean: bool = False
    """Whether gradients that are not finite are made so."""


class Outcome(NamedTuple):
    """What an iteration leaves besides weights and states."""

    surrogate: Tensor
    """Of the last mini-batch, before its update: what the policy is to maximize, [rows]."""
    values: Tensor
    """Of the last mini-batch, before its update, [rows]."""
    entropy: Tensor
    """Of the last mini-batch, before its update."""
    last: dict[str, Any]
    """The columns of the last mini-batch."""
    hidden: dict[Tensor, Tensor]
    """Outputs of hidden units in the last mini-batch, [rows, units], by the layer's input weights."""
    report: StepReport | None
    """The last step of generate-and-test."""
    replaced: int
    """Number of units replaced."""
    nonfinite: dict[Tensor, int]
    """Parameters that had gradients that are not finite, with the number of such mini-batches."""


def refusal(plain: PlainActorCritic, optimizers: list[Any], gnt: GenerateAndTest | None) -> str | None:
    """Why a module must learn with autograd, or None."""
    networks = (plain.policy, plain.value)
    if plain.value is None or any(net is None or len(net.layers) < 2 for net in networks):
        return "a network has no hidden layer"
    if len(optimizers) != 1 or type(optimizers[0]) is not Adam or not optimizers[0].fused:
        return "the optimizer is not cbp_ray.Adam(fused=True) alone"
    (optimizer,) = optimizers
    groups, parameters = optimizer.param_groups, plain.parameters
    if len(groups) != 1 or {id(p) for p in groups[0]["params"]} != {id(p) for p in parameters}:
        return "the optimizer has not exactly the parameters of policy and value network in one group"
    if any(groups[0][name] for name in ("amsgrad", "maximize", "decoupled_weight_decay")):
        return "the optimizer has a setting that compiled code does not know"
    if not all(p.requires_grad for p in parameters):
        return "some parameters are frozen"
    if len({optimizer.state_of(p)["time_step"] for p in groups[0]["params"]}) > 1:
        return "some parameters had fewer updates than others"
    if gnt is not None:
        hidden = {id(layer.weight) for net in networks if net is not None for layer in net.layers[:-1]}
        if {id(weight) for weight in gnt.measurements().populations} != hidden:
            return "generate-and-test does not treat all hidden layers"
    return None


def unsuitable(batches: MiniBatches) -> str | None:
    """Why an iteration's data must be learned from with autograd, or None."""
    for name, dimensions in zip(COLUMNS, DIMENSIONS, strict=True):
        column = batches.columns.get(name)
        if (
            not isinstance(column, Tensor)
            or not column.is_cpu
            or column.dtype is not torch.float32
            or column.ndim != dimensions
        ):
            return f"{name} is not a float32 tensor of {dimensions} dimensions on a CPU"
    return None


class CompiledUpdate:
    """Learns from whole iterations. It keeps memory and threads, and nothing that a checkpoint would need."""

    def __init__(self) -> None:
        self.adam = CompiledAdam()
        self._blas = ThreadpoolController()
        self._spaces: dict[tuple[Any, ...], Workspace] = {}
        self._ready: WeakKeyDictionary[Population, ReadyUnits] = WeakKeyDictionary()
        self._threads: ThreadPoolExecutor | None = None

    def run(
        self,
        plain: PlainActorCritic,
        optimizer: Adam,
        gnt: GenerateAndTest | None,
        batches: MiniBatches,
        settings: LossSettings,
    ) -> Outcome:
        """Learns from all mini-batches, if there was no `refusal`."""
        assert plain.value is not None
        order = batches.order()
        columns: list[Any] = [batches.columns[name].detach().contiguous().numpy() for name in COLUMNS]
        rows = Rows(*[*columns, order.numpy()])
        watched = None if gnt is None else _Watched(gnt, self._ready)
        networks = (plain.policy, plain.value)
        both = [_Part(self, plain, net, optimizer, batches.size, settings, watched) for net in networks]
        with self._blas.limit(limits=1, user_api="blas"):
            self._side_by_side([partial(part.learn, rows, batches.total) for part in both])
        report, replaced = (None, 0) if watched is None else watched.end(batches.total)
        if replaced:
            for part in both:
                part.views.write_resets()
            optimizer.read_resets_again()
        policy, value = (part.network for part in both)
        last = order[(batches.total - 1) * batches.size : batches.total * batches.size]
        return Outcome(
            torch.from_numpy(policy.per_example),
            torch.from_numpy(value.per_example),
            torch.tensor(policy.entropy[0], dtype=torch.float32),
            batches.rows_at(last),
            both[0].hidden | both[1].hidden,
            report,
            replaced,
            both[0].nonfinite | both[1].nonfinite,
        )

    def values(self, plain: PlainActorCritic, optimizer: Adam, size: int, observations: NDArray[np.float32]) -> Tensor:
        """V(s) for any number of observations."""
        assert plain.value is not None
        part = _Part(self, plain, plain.value, optimizer, size, LossSettings())
        values = np.empty((len(observations), 1), np.float32)
        with self._blas.limit(limits=1, user_api="blas"):
            outputs_of(observations, part.params, part.space, part.loss.activation, values)
        return torch.from_numpy(values[:, 0])

    def _side_by_side(self, calls: list[Callable[[], None]]) -> None:
        if min(len(os.sched_getaffinity(0)), torch.get_num_threads()) > 1:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix="value-network")
            other = self._threads.submit(calls[1])
            calls[0]()
            other.result()
        else:
            for call in calls:
                call()

    def space(self, sizes: list[int], examples: int, extra: int, kind: str) -> Workspace:
        """Memory for a network, kept from iteration to iteration."""
        key = (*sizes, examples, extra, kind)
        if key not in self._spaces:
            self._spaces[key] = workspace(sizes, examples, extra)
        return self._spaces[key]


class _Part:
    """One of the two networks during an iteration."""

    def __init__(
        self,
        owner: CompiledUpdate,
        plain: PlainActorCritic,
        net: PlainMLP,
        optimizer: Adam,
        size: int,
        settings: LossSettings,
        watched: "_Watched | None" = None,
    ) -> None:
        self.net, self.watched = net, watched
        is_policy = net is plain.policy
        self.own = [*net.parameters, *([plain.log_std] if is_policy else [])]
        self.states = [optimizer.state_of(p) for p in self.own]
        self.group = group = optimizer.param_groups[0]
        sizes = [net.layers[0].in_features, *(layer.out_features for layer in net.layers)]
        self.space = owner.space(sizes, size, len(plain.log_std) if is_policy else 0, "policy" if is_policy else "value")
        beta1, beta2 = group["betas"]
        scalars = [np.float32(x) for x in (group["lr"], 1 - beta1, beta2, 1 - beta2, group["eps"], group["weight_decay"])]
        code = int(Activation[net.activation.upper()])
        limits = (settings.clip, settings.entropy_coefficient, plain.log_std_limit, settings.value_clip)
        numbers = [float(x) for x in (*limits, settings.value_coefficient)]
        of_loss: list[Any] = [is_policy, code, *numbers, *scalars, settings.clean]
        self.loss = Loss(*of_loss)
        self.counts = np.zeros(len(net.parameters) + 1, np.int64)
        self.per_example, self.entropy = np.zeros(size, np.float32), np.zeros(1)
        if is_policy:
            self.views = Views(self.own, self.states)
        else:
            # In place of log σ, the value network has a parameter without numbers.
            nothing = torch.zeros(0)
            self.views = Views([*self.own, nothing], [*self.states, {"exp_avg": nothing, "exp_avg_sq": nothing}])
        self.params = tuple(tuple(arrays) for _, arrays in self.views.of_params)
        self.table = partial(owner.adam.table, beta1, beta2)
        self.network: Any = None

    def learn(self, rows: Rows, total: int) -> None:
        """Learns from all mini-batches."""
        step, done, views = self.states[0]["time_step"], 0, self.views
        table, hidden = self.table(step + total), [layer.weight for layer in self.net.layers[:-1]]
        watching = NOT_WATCHING if self.watched is None else self.watched.settings
        while done < total:
            units = tuple(NO_UNITS if self.watched is None else self.watched.units(weight) for weight in hidden)
            of_adam = views.resets, views.starts, views.first, views.second
            rest = self.space, self.counts, self.per_example, self.entropy
            self.network = Network(self.params, *of_adam, units, *rest)
            done = learn(done, total, step + done, table, rows, self.network, watching, self.loss)
            if self.watched is not None:
                self.watched.take_counts(hidden, units)
        for state in self.states:
            state["time_step"] += total

    @property
    def hidden(self) -> dict[Tensor, Tensor]:
        """Outputs of the hidden units in the last mini-batch, by the layer's input weights."""
        outputs = self.space.levels[1:-1]
        return {layer.weight: torch.from_numpy(h) for layer, h in zip(self.net.layers, outputs, strict=False)}

    @property
    def nonfinite(self) -> dict[Tensor, int]:
        """Parameters that had gradients that are not finite."""
        return {p: int(count) for p, count in zip(self.own, self.counts, strict=False) if count}


class _Watched:
    """Generate-and-test during an iteration."""

    def __init__(self, gnt: GenerateAndTest, ready: WeakKeyDictionary[Population, ReadyUnits]) -> None:
        self.gnt, self.ready = gnt, ready
        self.measured = gnt.measurements()
        self.before = [(units.replaced, units.nonfinite) for units in self.measured.populations.values()]
        self.seen_birth = self.measured.birth.copy()
        self.u_hat, self.seen_utility = np.zeros((2, len(self.seen_birth)))
        settings, variant, needs = gnt.settings, gnt.settings.variant, NEEDS[gnt.settings.utility]
        self.bernoulli = settings.replacement == "bernoulli"
        self.settings = Watching(
            active=True,
            utility=int(Utility[settings.utility.upper()]),
            rest=np.float32(1 - settings.decay_rate),
            lagged=variant.lagged,
            mean_magnitudes=variant.mean_magnitudes,
            averages=needs.deviation or needs.absolute or variant.transfers_bias,
            running=needs.deviation or variant.transfers_bias,
            deviation=needs.deviation,
            magnitude_in=needs.magnitude_in,
            magnitude_out=needs.magnitude_out,
            replacement_rate=float(settings.replacement_rate),
            maturity_threshold=settings.maturity_threshold,
            bernoulli=self.bernoulli,
            rate_of_eligible=variant.rate_of_eligible,
            transfers_bias=variant.transfers_bias,
            seed=np.uint64(next(iter(self.measured.populations.values())).seed),
            steps=gnt.steps,
        )

    def units(self, weight: Tensor) -> Units:
        """Views of the memory of the units behind some weights, with new units for at least one step."""
        measured, population = self.measured, self.measured.populations[weight]
        if population not in self.ready:
            self.ready[population] = ReadyUnits(population)
        first, rows = self.ready[population].rows(self.gnt.settings.replacement_rate, self.bernoulli)
        averages = [vector[population.at].numpy() for vector in measured[2:]]
        vectors = [vector[population.at] for vector in (self.u_hat, self.seen_utility, self.seen_birth)]
        lives: list[Any] = [measured.birth[population.at], counts(population, first), rows, *vectors]
        return Units(*averages, *lives)

    def take_counts(self, weights: list[Tensor], units: tuple[Units, ...]) -> None:
        """Takes over what was counted of the units behind some weights."""
        for weight, own in zip(weights, units, strict=True):
            take_counts(self.measured.populations[weight], own.counts)

    def end(self, steps: int) -> tuple[StepReport, int]:
        """The report of the last step, and how many units were replaced."""
        utility = torch.from_numpy(self.seen_utility)
        if self.settings.utility != Utility.RANDOM:
            utility = utility.float()
        report = self.gnt.steps_made(steps, utility, self.seen_birth)
        replaced = 0
        for units, (replaced_before, nonfinite_before) in zip(self.measured.populations.values(), self.before, strict=True):
            replaced += units.replaced - replaced_before
            if units.nonfinite > nonfinite_before:
                self.gnt.warn_of_nonfinite(units, units.nonfinite - nonfinite_before)
        return report, replaced
