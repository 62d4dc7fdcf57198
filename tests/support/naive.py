"""The oracle: Continual Backprop as a plain loop over units, written from the paper.

Nothing here is fast and nothing is shared with the code under test, except the address of each random draw
(`cbp_ray.randomness`). float64, dense layers, squared error averaged over the batch and the outputs.
Time suffixes as in the paper: an average before the update is `_tm1`, after it `_t`.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from cbp_ray.randomness import Purpose, uniforms

ACTIVATIONS = {
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0, 1.0, 0.0)),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01)),
    "elu": (
        lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
        lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0))),
    ),
    "swish": (
        lambda x: x / (1 + np.exp(-x)),
        lambda x: (1 + np.exp(-x) + x * np.exp(-x)) / (1 + np.exp(-x)) ** 2,
    ),
    "linear": (lambda x: x, lambda x: np.ones_like(x)),
}


@dataclass
class OnlineNorm:
    """Chiley et al. (2019) for one layer, one example after the other, with a learned scale and bias."""

    units: int
    alpha_forward: float = 0.999
    alpha_backward: float = 0.99
    epsilon: float = 1e-5

    def __post_init__(self):
        n = self.units
        self.mean, self.variance = [0.0] * n, [1.0] * n
        self.v, self.u = [0.0] * n, [0.0] * n
        self.scale, self.bias = np.ones(n), np.zeros(n)

    def forward(self, xs):
        """The examples (rows of `xs`) one after the other; remembers what `backward` needs."""
        self.y, self.sigma = np.zeros_like(xs), np.zeros_like(xs)
        for t, x in enumerate(xs):
            for i in range(self.units):
                sigma = math.sqrt(self.variance[i] + self.epsilon)
                deviation = x[i] - self.mean[i]
                self.y[t, i] = deviation / sigma
                self.sigma[t, i] = sigma
                self.variance[i] = (
                    self.alpha_forward * self.variance[i] + self.alpha_forward * (1 - self.alpha_forward) * deviation**2
                )
                self.mean[i] = self.alpha_forward * self.mean[i] + (1 - self.alpha_forward) * x[i]
        return self.scale * self.y + self.bias

    def backward(self, gradients):
        """Gradients of (scale, bias, inputs) for the examples last seen."""
        grad_x = np.zeros_like(gradients)
        for t, gradient in enumerate(gradients):
            for i in range(self.units):
                g = gradient[i] * self.scale[i]
                g = g - (1 - self.alpha_backward) * self.v[i] * self.y[t, i]
                self.v[i] += g * self.y[t, i]
                g = g / self.sigma[t, i]
                g = g - (1 - self.alpha_backward) * self.u[i]
                self.u[i] += g
                grad_x[t, i] = g
        return (gradients * self.y).sum(0), gradients.sum(0), grad_x


@dataclass
class Network:
    """Layer l maps through weights[l] (out × in) and biases[l]; the last layer is linear."""

    weights: list
    biases: list
    activation: str
    norms: list = field(default_factory=list)  # one OnlineNorm per hidden layer, or empty

    def forward(self, x):
        """Outputs for the examples in the rows of `x`; keeps inputs and pre-activations of every layer."""
        act = ACTIVATIONS[self.activation][0]
        self.inputs, self.pre = [], []
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            self.inputs.append(x)
            z = np.stack([x @ w[k] + b[k] for k in range(len(b))], axis=1)
            hidden = layer < len(self.weights) - 1
            if hidden and self.norms:
                z = self.norms[layer].forward(z)
            self.pre.append(z)
            x = act(z) if hidden else z
        return x

    def backward(self, delta):
        """Gradient of the loss by parameter name, given d loss / d output for the examples last seen."""
        derivative = ACTIVATIONS[self.activation][1]
        gradients = {}
        for layer in reversed(range(len(self.weights))):
            if layer < len(self.weights) - 1:
                delta = delta * derivative(self.pre[layer])
                if self.norms:
                    scale, bias, delta = self.norms[layer].backward(delta)
                    gradients[f"scale{layer}"], gradients[f"norm_bias{layer}"] = scale, bias
            gradients[f"w{layer}"] = delta.T @ self.inputs[layer]
            gradients[f"b{layer}"] = delta.sum(0)
            delta = delta @ self.weights[layer]
        return gradients

    def parameters(self):
        named = {}
        for layer, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"w{layer}"], named[f"b{layer}"] = w, b
        for layer, norm in enumerate(self.norms):
            named[f"scale{layer}"], named[f"norm_bias{layer}"] = norm.scale, norm.bias
        return named

    def batch_gradient(self, xs, ys):
        """Gradient of the mean squared error; also the hidden outputs h[layer][example] and the predictions."""
        predictions = self.forward(np.asarray(xs, dtype=np.float64))
        gradient = self.backward(2 * (predictions - ys) / predictions.size)
        return gradient, self.inputs[1:], predictions

    def classification_gradient(self, x, label):
        """Gradient of the cross-entropy for one example; also the hidden outputs h[layer][0] and the outputs."""
        outputs = self.forward(np.asarray([x], dtype=np.float64))
        delta = np.exp(outputs) / np.exp(outputs).sum()
        delta[0, label] -= 1
        return self.backward(delta), self.inputs[1:], outputs[0]


def make_optimizer(config, weight_decay):
    """From the `optimizer` section of a config."""
    if config.name == "adam":
        return Adam(config.step_size, weight_decay, config.betas, config.epsilon)
    return SGD(config.step_size, weight_decay)


class SGD:
    """w ← w - α (g + λ w), for every parameter."""

    def __init__(self, step_size, weight_decay=0.0):
        self.step_size, self.weight_decay = step_size, weight_decay

    def step(self, parameters, gradients):
        for name, p in parameters.items():
            p -= self.step_size * (gradients[name] + self.weight_decay * p)

    def reset(self, name, index):
        pass


class Adam:
    """Adam in which every single weight has its own time step (Algorithm 2)."""

    def __init__(self, step_size, weight_decay=0.0, betas=(0.9, 0.999), epsilon=1e-8):
        self.step_size, self.weight_decay, self.betas, self.epsilon = step_size, weight_decay, betas, epsilon
        self.m, self.v, self.t = {}, {}, {}

    def step(self, parameters, gradients):
        beta1, beta2 = self.betas
        for name, p in parameters.items():
            if name not in self.m:
                self.m[name], self.v[name], self.t[name] = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
            m, v, t = self.m[name], self.v[name], self.t[name]
            for i in np.ndindex(p.shape):
                g = gradients[name][i] + self.weight_decay * p[i]
                t[i] += 1
                m[i] = beta1 * m[i] + (1 - beta1) * g
                v[i] = beta2 * v[i] + (1 - beta2) * g * g
                m_hat, v_hat = m[i] / (1 - beta1 ** t[i]), v[i] / (1 - beta2 ** t[i])
                p[i] -= self.step_size * m_hat / (math.sqrt(v_hat) + self.epsilon)

    def reset(self, name, index):
        if name in self.m:
            self.m[name][index] = self.v[name][index] = self.t[name][index] = 0.0


@dataclass
class GenerateAndTest:
    """Algorithm 1's inner loop. `bounds[l]`: hidden layer l's weights are redrawn from U(-bound, bound); its biases to 0."""

    network: Network
    optimizer: object
    bounds: list
    replacement_rate: float
    maturity_threshold: int = 100
    decay_rate: float = 0.99
    utility: str = "overall"
    preset: str = "paper"
    replacement: str = "accumulate"
    seed: int = 0

    def __post_init__(self):
        sizes = [w.shape[0] for w in self.network.weights[:-1]]
        self.u = [[0.0] * n for n in sizes]
        self.f = [[0.0] * n for n in sizes]
        self.age = [[0] * n for n in sizes]
        self.exposure, self.replaced = [0] * len(sizes), [0] * len(sizes)
        self.steps = 0
        self.log = []  # (step, layer, unit)

    def instantaneous_utility(self, layer, i, hs, f_hat):
        """The paper's Σ magnitudes (or, in nature2024, their mean) and the average over the batch of what varies with h."""
        w_out = self.network.weights[layer + 1][:, i]
        w_in = self.network.weights[layer][i]
        magnitude_out = sum(abs(w) for w in w_out)
        magnitude_in = sum(abs(w) for w in w_in)
        if self.preset == "nature2024":
            magnitude_out, magnitude_in = magnitude_out / len(w_out), magnitude_in / len(w_in)
        contribution = sum(abs(h) for h in hs) / len(hs) * magnitude_out  # Equation 1
        corrected = sum(abs(h - f_hat) for h in hs) / len(hs) * magnitude_out  # Equation 4
        return {
            "weight_magnitude": lambda: magnitude_out,
            "contribution": lambda: contribution,
            "mean_corrected_contribution": lambda: corrected,
            "adaptation": lambda: 1 / magnitude_in,
            "overall": lambda: corrected / magnitude_in,  # Equation 5
        }[self.utility]()

    def step(self, hidden):
        """`hidden[layer][example]` are the outputs of the hidden layers in the forward pass before the gradient step."""
        eta, lagged = self.decay_rate, self.preset == "paper"
        for layer in range(len(self.u)):
            n = len(self.u[layer])
            u_hat, f_hats = [0.0] * n, [0.0] * n
            for i in range(n):
                hs = hidden[layer][:, i].tolist()
                self.age[layer][i] += 1
                correction = 1 - eta ** self.age[layer][i]
                f_tm1, u_tm1 = self.f[layer][i], self.u[layer][i]
                f_t = (1 - eta) * sum(hs) / len(hs) + eta * f_tm1  # Equation 2
                f_hat = (f_tm1 if lagged else f_t) / correction  # Equation 3
                self.f[layer][i] = f_t
                f_hats[i] = f_hat
                if self.utility != "random":
                    y = self.instantaneous_utility(layer, i, hs, f_hat)
                    self.u[layer][i] = (1 - eta) * y + eta * u_tm1  # Equation 6
                    u_hat[i] = (u_tm1 if lagged else self.u[layer][i]) / correction  # Equation 7
            if self.utility == "random":
                u_hat = uniforms(self.seed, Purpose.RANDOM_UTILITY, n, address=(self.replaced[layer], layer, 0))

            eligible = [i for i in range(n) if self.age[layer][i] > self.maturity_threshold]
            exposed = len(eligible) if self.preset == "nature2024" else n if eligible else 0
            if self.replacement == "accumulate":
                self.exposure[layer] += exposed
                due = math.floor(self.replacement_rate * self.exposure[layer]) - self.replaced[layer]
            else:
                expected = self.replacement_rate * exposed
                draw = uniforms(self.seed, Purpose.BERNOULLI, 1, address=(self.steps, layer, 0))[0]
                due = math.floor(expected) + (1 if draw < expected - math.floor(expected) else 0)
            candidates = [i for i in eligible if math.isfinite(u_hat[i])]
            for i in sorted(candidates, key=lambda i: u_hat[i])[:due]:
                self.replace(layer, i, f_hats[i])
        self.steps += 1

    def replace(self, layer, i, f_hat):
        net, bound = self.network, self.bounds[layer]
        w_in, w_out = net.weights[layer], net.weights[layer + 1]
        if self.preset == "nature2024":
            for k in range(w_out.shape[0]):
                net.biases[layer + 1][k] += w_out[k, i] * f_hat
        draws = uniforms(self.seed, Purpose.NEW_UNIT, w_in.shape[1], address=(self.replaced[layer], layer, 0))
        for j, draw in enumerate(draws):
            w_in[i, j] = bound * (2 * draw - 1)
        net.biases[layer][i] = 0.0
        w_out[:, i] = 0.0
        self.optimizer.reset(f"w{layer}", (i, slice(None)))
        self.optimizer.reset(f"b{layer}", (i,))
        self.optimizer.reset(f"w{layer + 1}", (slice(None), i))
        if net.norms:
            norm = net.norms[layer]
            norm.scale[i], norm.bias[i] = 1.0, 0.0
            norm.mean[i], norm.variance[i], norm.u[i], norm.v[i] = 0.0, 1.0, 0.0, 0.0
            self.optimizer.reset(f"scale{layer}", (i,))
            self.optimizer.reset(f"norm_bias{layer}", (i,))
        self.u[layer][i] = self.f[layer][i] = 0.0
        self.age[layer][i] = 0
        self.log.append((self.steps, layer, i))
        self.replaced[layer] += 1


@dataclass
class Group:
    """Hidden units made alike. Unit i has the rows `rows[i]` of every producer and the columns `columns[i]` of every reader."""

    producers: list  # (weights, biases, rows, bound); by name in the parameters
    sites: dict  # name of what is read -> (columns, [(weights, biases), ...])
    units: int


@dataclass
class GroupGenerateAndTest:
    """The inner loop of Algorithm 1 for units that several weights produce, and whose consumers read different tensors.

    The utility of a unit is the sum over all places where it is read of what equations 1 and 4 say there, and its incoming
    magnitude that over all producers. Biases are redrawn to zero.
    """

    parameters: dict
    optimizer: object
    groups: list
    replacement_rate: float
    maturity_threshold: int = 100
    decay_rate: float = 0.99
    utility: str = "overall"
    preset: str = "paper"
    seed: int = 0

    def __post_init__(self):
        self.u = [[0.0] * g.units for g in self.groups]
        self.f = [[{} for _ in range(g.units)] for g in self.groups]
        self.age = [[0] * g.units for g in self.groups]
        self.exposure, self.replaced = [0] * len(self.groups), [0] * len(self.groups)
        self.steps, self.log = 0, []

    def outgoing(self, group, i):
        """Magnitudes by place (site, column), and the number of all outgoing weights."""
        sums, count = {}, 0
        for site, (columns, readers) in group.sites.items():
            for column in columns[i]:
                sums[site, column] = 0.0
                for weights, _ in readers:
                    for w in self.parameters[weights][:, column]:
                        sums[site, column] += abs(w)
                        count += 1
        return sums, count

    def incoming(self, group, i):
        weights = [w for name, _, rows, _ in group.producers for row in rows[i] for w in self.parameters[name][row]]
        return sum(abs(w) for w in weights), len(weights)

    def step(self, inputs):
        """`inputs[site][example]` is what the readers of a site read in the forward pass before the gradient step."""
        eta, lagged, means = self.decay_rate, self.preset == "paper", self.preset == "nature2024"
        for number, group in enumerate(self.groups):
            u_hat, f_hats = [0.0] * group.units, [{} for _ in range(group.units)]
            for i in range(group.units):
                self.age[number][i] += 1
                correction = 1 - eta ** self.age[number][i]
                out, count_out = self.outgoing(group, i)
                magnitude_in, count_in = self.incoming(group, i)
                if means:
                    out = {place: magnitude / count_out for place, magnitude in out.items()}
                    magnitude_in /= count_in
                contribution = corrected = 0.0
                for (site, column), magnitude in out.items():
                    hs = inputs[site][:, column].tolist()
                    f_tm1 = self.f[number][i].get((site, column), 0.0)
                    f_t = (1 - eta) * sum(hs) / len(hs) + eta * f_tm1
                    f_hat = (f_tm1 if lagged else f_t) / correction
                    self.f[number][i][site, column] = f_t
                    f_hats[i][site, column] = f_hat
                    contribution += sum(abs(h) for h in hs) / len(hs) * magnitude
                    corrected += sum(abs(h - f_hat) for h in hs) / len(hs) * magnitude
                y = {
                    "weight_magnitude": lambda out=out: sum(out.values()),
                    "contribution": lambda c=contribution: c,
                    "mean_corrected_contribution": lambda c=corrected: c,
                    "adaptation": lambda m=magnitude_in: 1 / m,
                    "overall": lambda c=corrected, m=magnitude_in: c / m,
                }[self.utility]()
                u_tm1 = self.u[number][i]
                self.u[number][i] = (1 - eta) * y + eta * u_tm1
                u_hat[i] = (u_tm1 if lagged else self.u[number][i]) / correction
            eligible = [i for i in range(group.units) if self.age[number][i] > self.maturity_threshold]
            self.exposure[number] += len(eligible) if means else group.units if eligible else 0
            due = math.floor(self.replacement_rate * self.exposure[number]) - self.replaced[number]
            candidates = [i for i in eligible if math.isfinite(u_hat[i])]
            self.replace(number, sorted(candidates, key=lambda i: u_hat[i])[:due], f_hats)
        self.steps += 1

    def replace(self, number, units, f_hats):
        """All at once: new rows first, so that new units do not read each other."""
        group, p = self.groups[number], self.parameters
        if self.preset == "nature2024":
            for i in units:
                for (site, column), f_hat in f_hats[i].items():
                    for weights, biases in group.sites[site][1]:
                        p[biases] += p[weights][:, column] * f_hat
        for i in units:
            for part, (weights, biases, rows, bound) in enumerate(group.producers):
                fan_in = p[weights].shape[1]
                draws = uniforms(
                    self.seed, Purpose.NEW_UNIT, len(rows[i]) * fan_in, address=(self.replaced[number], number, part)
                ).reshape(len(rows[i]), fan_in)
                for row, numbers in zip(rows[i], draws, strict=True):
                    p[weights][row] = bound * (2 * numbers - 1)
                    p[biases][row] = 0.0
                    self.optimizer.reset(weights, (row, slice(None)))
                    self.optimizer.reset(biases, (row,))
            self.replaced[number] += 1
        for i in units:
            for columns, readers in group.sites.values():
                for column in columns[i]:
                    for weights, _ in readers:
                        p[weights][:, column] = 0.0
                        self.optimizer.reset(weights, (slice(None), column))
            self.u[number][i], self.f[number][i], self.age[number][i] = 0.0, {}, 0
            self.log.append((self.steps, number, i))
