"""The settings of one online experiment: a problem, a network, a method, an optimizer, and what is recorded."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, SerializerFunctionWrapHandler, model_serializer, model_validator

from cbp_ray.initial_weights import PYTORCH
from cbp_ray.methods import Method, methods
from cbp_ray.problems import DEFAULT_PROBLEM, PROBLEMS, Problem
from cbp_ray.problems.problem import SAMPLE_PLASTICITY
from cbp_ray.validation import ByName, Count, DecayRate, Model, Positive, SectionError, Width, make

if TYPE_CHECKING:
    import torch

MOST_BINS = 1_000_000
"""Most points of a learning curve."""
MOST_WEIGHTS = 10**9
"""Most weights of a network."""
ActivationName = Literal["tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish"]


class NetworkConfig(Model):
    """The learning network: fully connected, linear output. Unset: the problem's own, see its `defaults`."""

    hidden: tuple[Width, ...] = Field(min_length=1)
    """Units in each hidden layer. For Bit-Flipping the kernel takes exactly one layer. Method `linear` ignores it."""
    activation: ActivationName
    """Activation of the hidden units; also decides the gain of the initial weights."""
    layer_norm: bool = False
    """Layer normalisation (Ba et al. 2016), with a learned scale and bias, before every activation."""
    input_norm: DecayRate = 0.0
    """Decay of the running mean and variance by which every input is normalised, 0.99 say; 0 leaves the inputs as they are."""
    initial_weights: Literal["kaiming", "pytorch"] = "kaiming"
    """Kaiming's with the activation's gain, as in the paper, or PyTorch's own: U(±1/√inputs). Biases begin at 0."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what is not there: results from before it could be keep their names."""
        settings: dict[str, Any] = handler(self)
        later = {name: type(self).model_fields[name].default for name in ("layer_norm", "input_norm", "initial_weights")}
        return {name: value for name, value in settings.items() if name not in later or value != later[name]}


class OptimizerConfig(Model):
    """How gradients become steps."""

    name: str
    """Name of the optimizer in configs."""
    step_size: Positive
    """α."""

    def make(self, parameters: Iterable[Any], weight_decay: float) -> "torch.optim.Optimizer":
        """The optimizer in torch."""
        raise NotImplementedError

    def kernel(self) -> dict[str, Any]:
        """What the compiled kernels need to know: fields of their `Choices` and `Numbers` that differ from SGD's."""
        raise NotImplementedError


class SGD(OptimizerConfig):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = "sgd"
    """Name of the optimizer in configs."""

    def make(self, parameters: Iterable[Any], weight_decay: float) -> "torch.optim.Optimizer":
        import torch

        return torch.optim.SGD(parameters, self.step_size, weight_decay=weight_decay)

    def kernel(self) -> dict[str, Any]:
        return {"step_size": self.step_size}


class AdamConfig(OptimizerConfig):
    """Adam with a time step per weight."""

    name: Literal["adam"] = "adam"
    """Name of the optimizer in configs."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay of the two moments."""
    epsilon: Positive = 1e-8
    """ε in the denominator."""

    def make(self, parameters: Iterable[Any], weight_decay: float) -> "torch.optim.Optimizer":
        from cbp_ray.algorithm import Adam

        return Adam(parameters, self.step_size, self.betas, self.epsilon, weight_decay, fused=False)

    def kernel(self) -> dict[str, Any]:
        beta_1, beta_2 = self.betas
        return {"step_size": self.step_size, "adam": True, "beta_1": beta_1, "beta_2": beta_2, "epsilon": self.epsilon}


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {"sgd": SGD, "adam": AdamConfig}


class OnlineConfig(Model):
    """One online experiment: a problem, a network that learns from it one example at a time, and what is recorded.

    Example:
      >>> config = OnlineConfig.make({"algorithm": {"name": "cbp", "replacement_rate": "1e-4"},
      ...                             "optimizer": {"name": "sgd", "step_size": 0.01}})
      >>> config.algorithm.utility
      'overall'
    """

    problem: Annotated[SerializeAsAny[Problem], ByName(lambda: PROBLEMS)]
    """Where examples come from. Unset: Bit-Flipping."""
    network: NetworkConfig
    """The network that learns."""
    algorithm: Annotated[SerializeAsAny[Method], ByName(methods)]
    """The method that keeps, or fails to keep, the network able to learn."""
    optimizer: Annotated[SerializeAsAny[OptimizerConfig], ByName(lambda: OPTIMIZERS)]
    """How gradients become steps."""
    examples: Count
    """Length of a run. Unset: the problem's own, as for the next."""
    bin_size: Count
    """Examples per recorded point; a last, shorter bin takes what remains."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of the learner."""
    diagnostics: bool = False
    """Whether to record the problem's `diagnostics` too, which take time."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_defaults(cls, data: Any) -> Any:
        # Resolved here, so that the config that is saved says everything.
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        problem = data.setdefault("problem", {})
        if isinstance(problem, Mapping):
            data["problem"] = problem = {"name": DEFAULT_PROBLEM, **problem}
        name = problem.get("name") if isinstance(problem, Mapping) else getattr(problem, "name", None)
        if str(name) not in PROBLEMS:
            return data
        defaults = PROBLEMS[str(name)].defaults
        network = data.get("network", {})
        if isinstance(network, Mapping):
            data["network"] = {**defaults["network"], **network}
        return {**{key: value for key, value in defaults.items() if key != "network"}, **data}

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what was not asked for: results from before it could be keep their names."""
        settings: dict[str, Any] = handler(self)
        return {name: value for name, value in settings.items() if name != "diagnostics" or value}

    @model_validator(mode="after")
    def _has_diagnostics(self) -> Self:
        if self.diagnostics and not self.problem.diagnostics:
            raise SectionError(f".diagnostics: must be false for {self.problem.name}, which has its own, got true; remove it")
        return self

    @model_validator(mode="after")
    def _fits_into_memory(self) -> Self:
        """Refuses what no machine holds. What this machine does not hold, `--dry-run` says."""
        if self.bins > MOST_BINS:
            fix = f"use at least {-(-self.examples // MOST_BINS)}"
            raise SectionError(f".bin_size: must give at most {MOST_BINS:,} bins, got {self.bins:,}; {fix}")
        weights = sum(before * after for before, after in pairwise(self.sizes))
        if weights > MOST_WEIGHTS:
            raise SectionError(f".network.hidden: must have at most {MOST_WEIGHTS:,} weights, got {weights:,}; use fewer units")
        return self

    @model_validator(mode="after")
    def _one_norm(self) -> Self:
        if self.network.layer_norm and (self.algorithm.kernel() or {}).get("normalized"):
            raise SectionError(f".network.layer_norm: must be false with method {self.algorithm.name}, got true; use one norm")
        return self

    @classmethod
    def make(cls, config: "Mapping[str, Any] | OnlineConfig") -> "OnlineConfig":
        """Validates a mapping (from YAML, say); a config passes through.

        Raises:
          InputError: one line with field, rule, value and fix.
        """
        return make(cls, config)

    @property
    def label(self) -> str:
        """What the method is called in print where it learns this problem."""
        return (self.algorithm.ppo_label if self.problem.learned_by_ppo else None) or self.algorithm.label

    @property
    def bins(self) -> int:
        """Number of points that a run records."""
        return -(-self.examples // self.bin_size)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units in each hidden layer; none if the method has no hidden units."""
        return self.network.hidden if self.algorithm.hidden else ()

    @property
    def sizes(self) -> list[int]:
        """Units of all layers, from the inputs to the outputs."""
        return [self.problem.inputs, *self.hidden, self.problem.outputs]

    @property
    def kinds(self) -> list[str]:
        """Activations of the layers of weights, which decide the gain of their initial weights; the output is linear."""
        if self.network.initial_weights == PYTORCH:
            return [PYTORCH] * (len(self.hidden) + 1)
        return [self.network.activation] * len(self.hidden) + ["linear"]

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics of the experiment and what they mean, in the order of the results' columns."""
        return self._by_layer({**self.problem.metrics, **(self.problem.diagnostics if self.diagnostics else {})})

    @property
    def engine_metrics(self) -> tuple[str, ...]:
        """The metrics that an engine measures; `cbp_ray.experiments.diagnostics` adds the others."""
        return (*self._by_layer(self.problem.metrics), *([SAMPLE_PLASTICITY] if self.diagnostics else []))

    def _by_layer(self, metrics: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, meaning in metrics.items():
            numbers = range(1, len(self.hidden) + 1) if "{layer}" in name else range(1)
            found |= {name.format(layer=number): meaning for number in numbers}
        return found
