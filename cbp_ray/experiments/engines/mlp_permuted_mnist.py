"""`engine="kernel"` for Permuted MNIST: one run after the other through the sparse MLP kernel, on the calling thread."""

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cbp_ray.activations import ACTIVATIONS
from cbp_ray.experiments import hidden_outputs
from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.engines.engine import Arrays, Engine, Metrics, all_parts, check_array, check_complete
from cbp_ray.experiments.engines.kernel_settings import kernel_settings
from cbp_ray.initial_weights import bound, initial_weights
from cbp_ray.kernels.choices import Rule, Tester
from cbp_ray.kernels.mlp_scale import keeps_distances
from cbp_ray.kernels.mlp_state import (
    State,
    Stream,
    Total,
    make_layout,
    make_stream,
    matrix,
    new_scratch,
    new_state,
    of_level,
)
from cbp_ray.kernels.mlp_step import specialised_classifier
from cbp_ray.problems.mnist_files import Images, load
from cbp_ray.problems.permuted_mnist import HELD_EXAMPLES, WHITE, PermutedMnistConfig
from cbp_ray.problems.problem import SAMPLE_PLASTICITY

if TYPE_CHECKING:
    from torch import nn

EXAMPLES_AT_ONCE = 4096
"""Examples per call of the kernel, which Ctrl-C can't interrupt: a call takes seconds at width 2000."""

Classifier = Callable[..., None]


class MlpEngine(Engine):
    """Any number of Permuted MNIST runs, one after the other.

    Args:
      config: of the experiment.
      seeds: one run each.
      images: instead of the config's data set, for tests.
      classifier: instead of the one compiled for this config, for tests.
    """

    def __init__(
        self, config: OnlineConfig, seeds: Sequence[int], images: Images | None = None, classifier: Classifier | None = None
    ) -> None:
        assert isinstance(config.problem, PermutedMnistConfig)
        signed = config.problem.signed
        stream = (
            _stream(config.problem.dataset, signed) if images is None else make_stream(images.images, images.labels, signed)
        )
        images = load(config.problem.dataset) if images is None else images
        classifier = classifier or specialised_classifier(kernel_settings(config)[0])
        self._config = config
        held = (images.held_images[:HELD_EXAMPLES] / WHITE).astype(config.dtype)
        self.runs = [MlpRun(config, seed, images, stream, held, classifier) for seed in seeds]

    def advance(self, examples: int) -> Metrics:
        return all_parts(self.advance_in_parts(examples))

    def advance_in_parts(self, examples: int) -> Generator[int, None, Metrics]:
        bins = []
        for number, run in enumerate(self.runs):
            for seen in run.learn_in_parts(examples):
                yield (number * examples + seen) // len(self.runs)
            bins.append(run.metrics(examples))
        return {name: np.array([b[name] for b in bins]) for name in self._config.engine_metrics}

    def units(self) -> Metrics:
        each = [run.units() for run in self.runs]
        return {name: np.array([units[name] for units in each]) for name in each[0]}

    def networks(self) -> "Iterator[nn.Sequential]":
        return (run.network() for run in self.runs)

    def state(self) -> Arrays:
        arrays = ((f"{k}/{name}", getattr(run.state, name)) for k, run in enumerate(self.runs) for name in State._fields)
        return {name: array.copy() for name, array in arrays}

    def load_state(self, state: Arrays, examples: int) -> None:
        check_complete(state, [f"{k}/{name}" for k in range(len(self.runs)) for name in State._fields])
        for k, run in enumerate(self.runs):
            for name in State._fields:
                check_array(name, state[f"{k}/{name}"], getattr(run.state, name))
                getattr(run.state, name)[...] = state[f"{k}/{name}"]
            run.examples = examples


@functools.cache
def _stream(dataset: str, dense: bool) -> Stream:
    data = load(dataset)
    return make_stream(data.images, data.labels, dense)


class MlpRun:
    """One network and its problem."""

    def __init__(
        self, config: OnlineConfig, seed: int, images: Images, stream: Stream, held: NDArray[Any], classifier: Classifier
    ) -> None:
        assert isinstance(config.problem, PermutedMnistConfig)
        self.problem = config.problem.stream(seed, images)
        self.config = config
        self.choices, self.numbers = kernel_settings(config)
        self.dtype, self.stream, self.classifier = np.dtype(config.dtype), stream, classifier
        self.held = self.problem.inputs_of(held)
        # Images that stand in for the data set may have another size.
        sizes, kinds = [self.problem.inputs, *config.sizes[1:]], config.kinds
        self.layout = make_layout(sizes, self.choices.layer_norm)
        self.seed, self.sizes, self.layers = seed, sizes, len(sizes) - 1
        self.state = self._new_state(0)
        self.scratch = new_scratch(self.layout, self.dtype, self.choices)
        self.bounds = np.array([bound(fan_in, kind) for fan_in, kind in zip(sizes, kinds, strict=False)])
        self.shades = self.problem.inputs_of((np.arange(WHITE + 1) / WHITE).astype(self.dtype))
        self.examples = 0

    def _new_state(self, restart: int) -> State:
        """The run at the initial weights of its first or a later beginning."""
        state = new_state(self.layout, self.dtype, self.seed, self.choices)
        for layer, (fan_in, units) in enumerate(pairwise(self.sizes)):
            drawn = initial_weights(self.seed, layer, units, fan_in, self.config.kinds[layer], restart)
            matrix(state.weights, self.layout, layer)[...] = drawn.T
        if self.choices.rule == Rule.L2_INIT:
            state.initial[...] = state.weights
        if keeps_distances(self.choices):
            state.weights[...] = 0
        return state

    def weights(self, layer: int) -> NDArray[Any]:
        """[inputs, outputs] of a weight layer, as they are."""
        kept = matrix(self.state.weights, self.layout, layer) * self.dtype.type(self.state.scale[layer])
        return np.asarray(kept + matrix(self.state.initial, self.layout, layer) if keeps_distances(self.choices) else kept)

    def learn(self, examples: int) -> None:
        """Learns from the next examples and counts in `state.totals`."""
        for _ in self.learn_in_parts(examples):
            pass

    def learn_in_parts(self, examples: int) -> Iterator[int]:
        """Learns from the next examples, a call of the kernel at a time; yields how many of them are done."""
        self.state.totals[...] = 0
        begun = self.examples
        end = self.examples + examples
        while self.examples < end:
            task, within = divmod(self.examples, self.problem.task_length)
            if self.config.algorithm.restarts and task and not within:
                self.state = self._new_state(task)._replace(totals=self.state.totals)
            count = min(self.problem.task_length - within, end - self.examples)
            order, where = self.problem.order(task, within, count), self.problem.permutation(task)
            for first in range(0, count, EXAMPLES_AT_ONCE):
                self.show(order[first : first + EXAMPLES_AT_ONCE], where)
                yield self.examples - begun

    def show(self, order: NDArray[np.int64], where: NDArray[np.int64]) -> None:
        """Learns from the images `order`, whose pixels go to `where`."""
        arrays = self.state, self.layout, self.scratch, self.stream
        self.classifier(*arrays, order, where, self.shades, self.bounds, self.choices, self.numbers, self.examples)
        self.examples += len(order)

    def advance(self, examples: int) -> dict[str, float]:
        """Learns from the next examples; the metrics over them."""
        self.learn(examples)
        return self.metrics(examples)

    def metrics(self, examples: int) -> dict[str, float]:
        """The metrics over the examples that `state.totals` counts."""
        totals = self.state.totals
        weights = [self.weights(layer) for layer in range(self.layers)]
        return {
            "accuracy": totals[Total.RIGHT] / examples,
            "loss": totals[Total.LOSS] / examples,
            **hidden_outputs.layer_metrics([float(np.abs(w).mean(dtype=np.float64)) for w in weights], self._describe(weights)),
            "replacements": float(totals[Total.REPLACED]),
            "nonfinite_utilities": float(totals[Total.NONFINITE]),
            SAMPLE_PLASTICITY: totals[Total.PLASTICITY] / examples if self.choices.plasticity else np.nan,
        }

    def units(self) -> dict[str, float]:
        """Mean age and utility of the hidden units; nothing without generate-and-test."""
        if not self.choices.replaces or self.choices.tester != Tester.UTILITY:
            return {}
        ages, utilities = [], []
        for level in range(1, self.layers):
            birth, utility, correction = (
                of_level(array, self.layout, level) for array in (self.state.birth, self.state.utility, self.state.correction)
            )
            ages.append(float(self.state.steps[0] - birth.mean()))
            # A unit that was made in the last step has no estimate yet.
            known = correction > 0
            estimates = utility[known].astype(np.float64) / correction[known]
            utilities.append(float(estimates.mean()) if len(estimates) else np.nan)
        return {"age": float(np.mean(ages)), "utility": float(np.mean(utilities))} if ages else {}

    def network(self) -> "nn.Sequential":
        """The network in torch."""
        from cbp_ray.experiments.engines.torch_learner import LayerState, make_network

        state, layers = self.state, []
        for layer in range(self.layers):
            by_unit = (state.bias, state.gain, state.shift, state.mean, state.variance)
            layers.append(LayerState(self.weights(layer).T, *(of_level(array, self.layout, layer + 1) for array in by_unit)))
        inputs = [of_level(array, self.layout, 0) for array in (state.mean, state.variance)]
        return make_network(self.config, self.sizes[0], layers, inputs)

    def _describe(self, weights: list[NDArray[Any]]) -> list[hidden_outputs.Representation]:
        """The hidden layers on held examples of the latest task."""
        task = (self.examples - 1) // self.problem.task_length
        # Permuted weights instead of permuted images: fewer numbers to move.
        place = self.problem.permutation(task)
        weights = [weights[0][place], *weights[1:]]
        x, found, state = self.held, [], self.state
        if self.choices.input_norm:
            mean, variance = (of_level(array, self.layout, 0)[place] for array in (state.mean, state.variance))
            x = (x - mean) / np.sqrt(variance + self.dtype.type(self.numbers.norm_epsilon))
        for level in range(1, self.layers):
            x = hidden_outputs.matrix_product(x, weights[level - 1]) + of_level(state.bias, self.layout, level)
            if self.choices.normalized:
                norm = (state.mean, state.variance, state.gain, state.shift)
                mean, variance, gain, shift = (of_level(array, self.layout, level) for array in norm)
                x = (x - mean) / np.sqrt(variance + self.dtype.type(self.numbers.norm_epsilon)) * gain + shift
            if self.choices.layer_norm:
                gain, shift = (of_level(array, self.layout, level) for array in (state.gain, state.shift))
                mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
                x = (x - mean) / np.sqrt(variance + self.dtype.type(self.numbers.norm_epsilon)) * gain + shift
            x = ACTIVATIONS[self.config.network.activation].function(x)
            found.append(hidden_outputs.describe(x))
        return found
