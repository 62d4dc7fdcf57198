"""Runs an `OnlineConfig` through the oracle of `naive.py`, one seed at a time."""

import naive
import numpy as np

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.initial_weights import bound, initial_weights
from cbp_ray.problems import BitFlipping


class NaiveLearner:
    """The learner of one run in plain loops; `network` holds the weights and `gnt.log` the replacements."""

    def __init__(self, config, seed, inputs, outputs):
        algorithm, activation = config.algorithm, config.network.activation
        sizes = [inputs, *(() if algorithm.name == "linear" else config.network.hidden), outputs]
        kinds = [activation] * (len(sizes) - 2) + ["linear"]
        weights = [
            initial_weights(seed, layer, units, fan_in, kind)
            for layer, (fan_in, units, kind) in enumerate(zip(sizes, sizes[1:], kinds, strict=False))
        ]
        norms = []
        if algorithm.name == "online_norm":
            norms = [naive.OnlineNorm(n, algorithm.alpha_forward, algorithm.alpha_backward) for n in sizes[1:-1]]
        self.network = naive.Network(weights, [np.zeros(n) for n in sizes[1:]], activation, norms)
        self.optimizer = naive.make_optimizer(config.optimizer, getattr(algorithm, "weight_decay", 0.0))
        self.gnt = None
        if algorithm.name == "cbp":
            self.gnt = naive.GenerateAndTest(
                self.network,
                self.optimizer,
                [bound(n, activation) for n in sizes[:-2]],
                algorithm.replacement_rate,
                algorithm.maturity_threshold,
                algorithm.decay_rate,
                algorithm.utility,
                algorithm.preset,
                algorithm.replacement,
                seed,
            )
        self.examples = 0


class NaiveRun(NaiveLearner):
    """One run of Bit-Flipping."""

    def __init__(self, config, seed):
        config = OnlineConfig.make(config)
        self.problem = BitFlipping(seed, **config.problem.model_dump(exclude={"name"}))
        super().__init__(config, seed, config.problem.inputs, 1)

    def advance(self, examples):
        """Returns the squared error of each example."""
        xs, ys = self.problem.take(examples, start=self.examples)
        self.examples += examples
        errors = np.empty(examples)
        for t, (x, y) in enumerate(zip(xs.astype(float), ys, strict=True)):
            gradients, hidden, predictions = self.network.batch_gradient([x], [np.array([y])])
            errors[t] = (predictions[0][0] - y) ** 2
            self.optimizer.step(self.network.parameters(), gradients)
            if self.gnt is not None:
                self.gnt.step(hidden)
        return errors
