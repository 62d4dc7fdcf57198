"""`engine="kernel"` for Bit-Flipping: blocks of runs through the lane kernel, one after the other on the calling thread."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, check_array, check_complete
from cbp_ray.experiments.engines.kernel_settings import kernel_settings
from cbp_ray.initial_weights import initial_weights
from cbp_ray.kernels import bit_stream
from cbp_ray.kernels.choices import Rule, Tester
from cbp_ray.kernels.lane_state import Shape, State, Total, new_scratch, new_state, unit_parameters, unit_rows
from cbp_ray.kernels.lane_step import specialised_learner
from cbp_ray.kernels.lanes import WIDTH, aligned_zeros
from cbp_ray.problems.bit_flipping import TABLE_BITS, BitFlippingConfig
from cbp_ray.problems.problem import SAMPLE_PLASTICITY

if TYPE_CHECKING:
    from torch import nn

CHUNK = 2048
"""Most examples per kernel call: their bits and targets stay in the second-level cache."""

EPOCHS_AHEAD = 256
"""Epochs whose flipping bits are made at a time."""

BITS_PER_PHILOX_BLOCK = 256

Learner = Callable[..., None]


class LaneEngine(Engine):
    """Any number of Bit-Flipping runs, in blocks of `WIDTH`; the last block is filled up with copies of its last run."""

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], learner: Learner | None = None) -> None:
        learner = learner or specialised_learner(kernel_settings(config)[0])
        self.runs = len(seeds)
        padded = [*seeds, *[seeds[-1]] * (-len(seeds) % WIDTH)]
        self._blocks = [LaneBlock(config, padded[k : k + WIDTH], learner) for k in range(0, len(padded), WIDTH)]

    def advance(self, examples: int) -> Metrics:
        parts = [block.advance(examples) for block in self._blocks]
        return {name: np.concatenate([part[name] for part in parts])[: self.runs] for name in parts[0]}

    def units(self) -> Metrics:
        parts = [block.units() for block in self._blocks]
        return {name: np.concatenate([part[name] for part in parts])[: self.runs] for name in parts[0]}

    def networks(self) -> "Iterator[nn.Sequential]":
        return (self._blocks[run // WIDTH].network(run % WIDTH) for run in range(self.runs))

    def state(self) -> Arrays:
        return {
            name: np.concatenate([getattr(b.state, name) for b in self._blocks], axis=1)[:, : self.runs]
            for name in State._fields
        }

    def load_state(self, state: Arrays, examples: int) -> None:
        check_complete(state, State._fields)
        for name in State._fields:
            # Copies of the last run fill the padding, as in `__init__`.
            lanes = np.minimum(np.arange(len(self._blocks) * WIDTH), self.runs - 1)
            here = getattr(self._blocks[0].state, name)
            check_array(name, state[name], here, (len(here), self.runs))
            for k, block in enumerate(self._blocks):
                getattr(block.state, name)[...] = state[name][:, lanes[k * WIDTH : (k + 1) * WIDTH]]
        for block in self._blocks:
            block.examples = examples


class LaneBlock:
    """The `WIDTH` runs of one block: their problem, their state, and the kernel."""

    def __init__(self, config: OnlineConfig, seeds: Sequence[int], learner: Learner) -> None:
        self.choices, self.numbers = kernel_settings(config)
        # The linear tracker is a single unit, whose output is the prediction.
        self.shape = Shape(config.sizes[1], config.problem.inputs)
        self.dtype = np.dtype(config.dtype)
        self.learner = learner
        self.seeds = np.array(seeds, dtype=np.uint64)
        self.examples = 0
        self.config = config
        self.state = self._new_state(0)
        self.scratch = new_scratch(self.shape, self.dtype)
        p = config.problem
        assert isinstance(p, BitFlippingConfig)
        self.problem = p
        self._problems = [p.stream(seed) for seed in seeds]
        self.random_bits = p.inputs - p.flipping_bits
        # [1 + m, target units, WIDTH], and three arrays [target units, WIDTH]: output weights, thresholds, sums
        self._target_network = (
            np.ascontiguousarray(np.stack([q.input_weights.T for q in self._problems], axis=-1)),
            np.stack([q.output_weights for q in self._problems], axis=-1),
            np.stack([q.thresholds for q in self._problems], axis=-1),
            np.zeros((p.target_units, WIDTH), dtype=np.int32),
        )
        self._flipping = np.zeros((0, p.flipping_bits, WIDTH), dtype=np.int32)  # [epochs, f, WIDTH]
        self._first_epoch, self._epoch = 0, -1
        self._table = aligned_zeros(1 << self.random_bits if self.random_bits <= TABLE_BITS else 1, self.dtype)
        blocks = CHUNK * self.random_bits // BITS_PER_PHILOX_BLOCK + 2
        self._bits = aligned_zeros(blocks * bit_stream.WORDS_PER_BLOCK, np.uint32)
        self._targets = aligned_zeros(CHUNK, self.dtype)
        self._draws = aligned_zeros(CHUNK if self.choices.bernoulli else 1, np.float64)

    def _new_state(self, restart: int) -> State:
        """A block at the initial weights of its first or a later beginning."""
        state, (n, m) = new_state(self.choices, self.shape, self.dtype, self.seeds), self.shape
        units = unit_parameters(state.parameters, self.shape)
        for lane, seed in enumerate(int(seed) for seed in self.seeds):
            units[:, :m, lane] = initial_weights(seed, 0, n, m, self.config.kinds[0], restart)
            if self.choices.hidden:
                units[:, unit_rows(0, m).out, lane] = initial_weights(seed, 1, 1, n, self.config.kinds[-1], restart)[0]
        if self.choices.rule == Rule.L2_INIT:
            state.initial[...] = state.parameters
        return state

    def advance(self, examples: int) -> Metrics:
        """Learns from the next examples and returns the metrics over them, each [WIDTH]."""
        self.state.totals[...] = 0
        self.state.largest[...] = 0
        end = self.examples + examples
        while self.examples < end:
            epoch, within = divmod(self.examples, self.problem.flip_period)
            if epoch != self._epoch:
                self._enter(epoch)
            if self.config.algorithm.restarts and epoch and not within:
                kept = {"totals": self.state.totals, "largest": self.state.largest}
                self.state = self._new_state(epoch)._replace(**kept)
            # Cut at multiples of CHUNK within the epoch, so that no sum depends on where a run was resumed.
            until = min(self.problem.flip_period, (within // CHUNK + 1) * CHUNK)
            self._learn(min(until - within, end - self.examples))
        return self._metrics(examples)

    def _enter(self, epoch: int) -> None:
        """Sets what stays for an epoch: the flipping bits, and the target of every pattern of the others."""
        if not self._first_epoch <= epoch < self._first_epoch + len(self._flipping):
            states = [q.flipping(epoch, EPOCHS_AHEAD) for q in self._problems]
            self._flipping = np.ascontiguousarray(np.stack(states, axis=-1), dtype=np.int32)
            self._first_epoch = epoch
        flipping = self._flipping[epoch - self._first_epoch]
        f = self.problem.flipping_bits
        self.scratch.x[:f] = flipping
        weights, *_, sums = self._target_network
        bit_stream.sum_constant_bits(weights, flipping, sums)
        if self.random_bits <= TABLE_BITS:
            bit_stream.fill_table(*self._target_network, f, self._table)
        self._epoch = epoch

    def _learn(self, examples: int) -> None:
        (n, m), constant = self.shape, self.problem.flipping_bits
        block, first_bit = divmod(self.examples * self.random_bits, BITS_PER_PHILOX_BLOCK)
        blocks = -(-(first_bit + examples * self.random_bits) // BITS_PER_PHILOX_BLOCK)
        bits, targets = self._bits[: max(blocks, 1) * bit_stream.WORDS_PER_BLOCK], self._targets[:examples]
        bit_stream.fill_bits(self.seeds, block, bits)
        if self.random_bits <= TABLE_BITS:
            bit_stream.look_up(bits, first_bit, self.random_bits, self._table, targets)
        else:
            bit_stream.evaluate(bits, first_bit, *self._target_network, constant, targets)
        if self.choices.bernoulli:
            bit_stream.fill_draws(self.seeds, self.examples, self._draws[:examples])
        arrays = self.state, self.scratch, bits, targets, self._draws
        self.learner(*arrays, self.choices, self.numbers, n, m, constant, first_bit, self.examples)
        self.examples += examples

    def units(self) -> Metrics:
        """Mean age and utility of the hidden units, each [WIDTH]; nothing without generate-and-test."""
        if not self.choices.replaces or self.choices.tester != Tester.UTILITY:
            return {}
        correction = self.state.correction.astype(np.float64)
        # A unit that was made in the last step has no estimate yet.
        known = correction > 0
        estimates = np.where(known, self.state.utility, 0) / np.where(known, correction, 1)
        utility = estimates.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return {"age": self.state.age.mean(axis=0, dtype=np.float64), "utility": utility}

    def network(self, lane: int) -> "nn.Sequential":
        """The network of one run in torch."""
        from cbp_ray.experiments.engines.torch_learner import LayerState, make_network

        m, state = self.shape.inputs, self.state
        units, rows = unit_parameters(state.parameters, self.shape)[..., lane], unit_rows(0, m)
        norm = units[:, rows.gain], units[:, rows.shift], state.mean[:, lane], state.variance[:, lane]
        layers = [LayerState(units[:, :m], units[:, rows.bias], *norm)]
        if self.choices.hidden:
            layers.append(LayerState(units[None, :, rows.out], state.parameters[-1:, lane]))
        return make_network(self.config, m, layers)

    def _metrics(self, examples: int) -> Metrics:
        n, m = self.shape
        totals, units = self.state.totals, unit_parameters(self.state.parameters, self.shape)
        magnitudes = np.abs(units.astype(np.float64))
        metrics: dict[str, NDArray[Any]] = {
            "error": totals[Total.SQUARED_ERROR] / examples,
            "input_weight_magnitude": magnitudes[:, :m].mean(axis=(0, 1)),
            "output_weight_magnitude": magnitudes[:, unit_rows(0, m).out].mean(axis=0),
            "saturated": totals[Total.SATURATED] / (examples * n),
            "input_gradient": totals[Total.INPUT_GRADIENT] / (examples * n * m),
            "dead": (self.state.largest == 0).mean(axis=0),
            "replacements": totals[Total.REPLACED].copy(),
            "nonfinite_utilities": totals[Total.NONFINITE].copy(),
        }
        if self.config.diagnostics:
            measured = self.choices.plasticity
            metrics[SAMPLE_PLASTICITY] = totals[Total.PLASTICITY] / examples if measured else np.full(WIDTH, np.nan)
        if not self.choices.hidden:
            metrics |= {name: np.full(WIDTH, np.nan) for name in self.problem.hidden_metrics}
        return metrics
