"""The settings of one online experiment. Defaults exist here and nowhere else; unknown keys are refused."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cbp_ray.errors import InputError

ActivationName = Literal["tanh", "sigmoid", "relu", "leaky_relu", "elu", "swish"]
UtilityName = Literal["random", "weight_magnitude", "contribution", "mean_corrected_contribution", "adaptation", "overall"]


def _no_boolean(value: Any) -> Any:
    # Pydantic takes True for 1.
    if isinstance(value, bool):
        raise ValueError("must be a number, not a truth value")
    return value


def _number_as_integer(value: Any) -> Any:
    """For `1e6`, which YAML reads as text: whole numbers in any notation become integers, the rest is left to Pydantic."""
    value = _no_boolean(value)
    if isinstance(value, str) and not value.strip().lstrip("+-").isdigit():
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() else value
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Rate = Annotated[float, Field(ge=0, le=1), BeforeValidator(_no_boolean)]
DecayRate = Annotated[float, Field(ge=0, lt=1), BeforeValidator(_no_boolean)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_number_as_integer)]
CountFromZero = Annotated[int, Field(ge=0), BeforeValidator(_number_as_integer)]
Maturity = Annotated[int, Field(ge=0, lt=2**24), BeforeValidator(_number_as_integer)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class BitFlippingConfig(_Model):
    """The Bit-Flipping problem (section 2 of the paper)."""

    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (5,), "activation": "tanh"},
        "examples": 1_000_000,
        "bin_size": 20_000,
    }
    """What an experiment with this problem has where its config says nothing."""
    outputs: ClassVar[int] = 1
    """Of the network."""

    name: Literal["bit_flipping"] = "bit_flipping"
    """Which problem."""
    inputs: Count = 20
    """m, bits per example."""
    flipping_bits: CountFromZero = 15
    """f, how many of them change only every `flip_period` examples."""
    flip_period: Count = 10_000
    """T, examples between two flips."""
    target_units: Count = 100
    """Threshold units in the target network."""
    beta: Rate = 0.7
    """β of the threshold units."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.flipping_bits > self.inputs:
            raise ValueError(f"flipping_bits must be at most inputs = {self.inputs}")
        return self


class PermutedMnistConfig(_Model):
    """Online Permuted MNIST (section 2 of the paper)."""

    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (2000, 2000, 2000), "activation": "relu"},
        "examples": 800 * 60_000,
        "bin_size": 60_000,
    }
    """What an experiment with this problem has where its config says nothing."""
    inputs: ClassVar[int] = 784
    """Pixels per image."""
    outputs: ClassVar[int] = 10
    """Of the network: one per class."""

    name: Literal["permuted_mnist"] = "permuted_mnist"
    """Which problem."""
    dataset: Literal["mnist", "fashion-mnist"] = "mnist"
    """Which images."""
    task_length: Count = 60_000
    """Examples between two changes of the permutation; the data set has 60,000."""


class SlipperyAntConfig(_Model):
    """Slippery Ant, learned with PPO (section 2 and appendix D of the paper). Its examples are time-steps.

    Algorithm `bp` is PPO, `l2` PPO+L2 and `cbp` Continual PPO.
    """

    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (256, 256), "activation": "tanh"},
        "examples": 100_000_000,
        "bin_size": 40_000,
    }
    """What an experiment with this problem has where its config says nothing."""
    inputs: ClassVar[int] = 28
    """Numbers in an observation."""
    outputs: ClassVar[int] = 8
    """Of the policy's network: one per joint."""

    name: Literal["slippery_ant"] = "slippery_ant"
    """Which problem."""
    friction_period: Count = 10_000_000
    """Time-steps between two changes of the friction."""
    friction_low: Positive = 1e-4
    """Least friction."""
    friction_high: Positive = 1e4
    """Largest friction."""
    friction_initial: Positive = 1.5
    """Friction until the first change."""
    iteration_size: Count = 4096
    """Time-steps between two updates."""
    epochs: Count = 10
    """Passes over the time-steps of an iteration."""
    minibatch_size: Count = 128
    """Time-steps per gradient step."""
    discount: Rate = 0.99
    """γ."""
    gae_lambda: Rate = 0.95
    """λ of the advantage estimates."""
    clip: Positive = 0.2
    """How far the ratio of probabilities may leave 1."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.friction_low > self.friction_high:
            raise ValueError(f"friction_low must be at most friction_high = {self.friction_high}")
        if self.minibatch_size > self.iteration_size:
            raise ValueError(f"minibatch_size must be at most iteration_size = {self.iteration_size}")
        return self


class NetworkConfig(_Model):
    """The learning network: fully connected, linear output. Unset: the problem's own, see its `defaults`."""

    hidden: tuple[Count, ...] = Field(min_length=1)
    """Units in each hidden layer. For Bit-Flipping the kernel takes exactly one layer. Algorithm `linear` ignores it."""
    activation: ActivationName
    """Activation of the hidden units; also decides the gain of the initial weights."""


class BP(_Model):
    """Plain Backprop."""

    name: Literal["bp"] = "bp"
    """Which algorithm."""


class L2(_Model):
    """Backprop with L2 regularisation of all parameters."""

    name: Literal["l2"] = "l2"
    """Which algorithm."""
    weight_decay: NotNegative
    """λ: the gradient becomes g + λ w."""


class OnlineNormalization(_Model):
    """Backprop with OnlineNorm (Chiley et al. 2019) before every activation."""

    name: Literal["online_norm"] = "online_norm"
    """Which algorithm."""
    alpha_forward: DecayRate = 0.999
    """Decay of the streaming mean and variance."""
    alpha_backward: DecayRate = 0.99
    """Decay of the control process on the gradients."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""


class ContinualBackprop(_Model):
    """Continual Backprop (Algorithms 1 and 2)."""

    name: Literal["cbp"] = "cbp"
    """Which algorithm."""
    replacement_rate: Rate
    """ρ, fraction of a layer's units replaced per example."""
    maturity_threshold: Maturity = 100
    """m: units are safe until they are older than this many examples."""
    decay_rate: DecayRate = 0.99
    """η of the running averages."""
    utility: UtilityName | None = None
    """Which utility decides. Unset: the preset's own, `overall` for `paper` and `contribution` for `nature2024`."""
    preset: Literal["paper", "nature2024"] = "paper"
    """Which paper's details."""
    replacement: Literal["accumulate", "bernoulli"] = "accumulate"
    """What becomes of the fraction of n·ρ: carried from example to example, or rounded at random."""
    weight_decay: NotNegative = 0.0
    """λ: the gradient becomes g + λ w."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_utility(cls, data: Any) -> Any:
        # Resolved here, so that the config that is saved names the utility.
        if isinstance(data, Mapping) and data.get("utility") is None:
            return {**data, "utility": "contribution" if data.get("preset") == "nature2024" else "overall"}
        return data


class Linear(_Model):
    """The linear tracker: no hidden units."""

    name: Literal["linear"] = "linear"
    """Which algorithm."""


class SGD(_Model):
    """Stochastic gradient descent."""

    name: Literal["sgd"] = "sgd"
    """Which optimizer."""
    step_size: Positive
    """α."""


class AdamConfig(_Model):
    """Adam with a time step per weight."""

    name: Literal["adam"] = "adam"
    """Which optimizer."""
    step_size: Positive
    """α."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay of the two moments."""
    epsilon: Positive = 1e-8
    """ε in the denominator."""


DEFAULT_PROBLEM = "bit_flipping"
Algorithm = Annotated[BP | L2 | OnlineNormalization | ContinualBackprop | Linear, Field(discriminator="name")]
Optimizer = Annotated[SGD | AdamConfig, Field(discriminator="name")]
Problem = Annotated[BitFlippingConfig | PermutedMnistConfig | SlipperyAntConfig, Field(discriminator="name")]


class OnlineConfig(_Model):
    """One online experiment: a problem, a network that learns from it one example at a time, and what is recorded.

    Example:
      >>> config = OnlineConfig.make({"algorithm": {"name": "cbp", "replacement_rate": "1e-4"},
      ...                             "optimizer": {"name": "sgd", "step_size": 0.01}})
      >>> config.algorithm.utility
      'overall'
    """

    problem: Problem
    """Where examples come from. Unset: Bit-Flipping."""
    network: NetworkConfig
    """What learns."""
    algorithm: Algorithm
    """How it learns."""
    optimizer: Optimizer
    """How gradients become steps."""
    examples: Count
    """Length of a run. Unset: the problem's own, as for the next."""
    bin_size: Count
    """Examples per recorded point; a last, shorter bin takes what remains."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating-point type of the learner."""

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
        model: Any = _by_name("problem").get(str(name))
        if model is None:
            return data
        network = data.get("network", {})
        if isinstance(network, Mapping):
            data["network"] = {**model.defaults["network"], **network}
        return {**{key: value for key, value in model.defaults.items() if key != "network"}, **data}

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if isinstance(self.problem, SlipperyAntConfig):
            if not isinstance(self.algorithm, BP | L2 | ContinualBackprop):
                raise ValueError(f"algorithm must be bp, l2 or cbp for slippery_ant, not {self.algorithm.name}")
            if not isinstance(self.optimizer, AdamConfig):
                raise ValueError(f"optimizer must be adam for slippery_ant, not {self.optimizer.name}")
            if (self.optimizer.betas, self.optimizer.epsilon) != ((0.9, 0.999), 1e-8):
                raise ValueError("optimizer must have the default betas and epsilon for slippery_ant")
            if self.network.activation not in ("tanh", "relu", "elu", "swish"):
                raise ValueError(
                    f"network.activation must be tanh, relu, elu or swish for slippery_ant, not {self.network.activation}"
                )
            if self.dtype != "float32":
                raise ValueError("dtype must be float32 for slippery_ant")
        return self

    @classmethod
    def make(cls, config: "Mapping[str, Any] | OnlineConfig") -> "OnlineConfig":
        """Validates a mapping (from YAML, say); a config passes through.

        Raises:
          InputError: one line with field, rule, value and fix.
        """
        if isinstance(config, cls):
            return config
        try:
            return cls.model_validate(config)
        except ValidationError as error:
            raise InputError(_one_line(error, config)) from None

    @property
    def bins(self) -> int:
        """How many points a run records."""
        return -(-self.examples // self.bin_size)


_CHOSEN_BY_NAME: dict[str, tuple[type[BaseModel], ...]] = {
    "problem": (BitFlippingConfig, PermutedMnistConfig, SlipperyAntConfig),
    "algorithm": (BP, L2, OnlineNormalization, ContinualBackprop, Linear),
    "optimizer": (SGD, AdamConfig),
}


def _one_line(error: ValidationError, config: Any) -> str:
    """The first problem as `field: rule, got value; fix`."""
    # A misspelt name also shows as a missing one; the spelling is the better hint.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"]]
    if len(location) > 1 and location[0] in _CHOSEN_BY_NAME:
        # Pydantic puts the chosen model's name between the section and its field.
        del location[1]
    field = ".".join(location) or "config"
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        known = list(_model_at(location[:-1], config).model_fields)
        close = difflib.get_close_matches(location[-1], known, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        return f"{field}: unknown setting, got {value!r}; {fix}"
    if kind == "missing":
        return f"{field}: must be set, got nothing; add it"
    if kind == "union_tag_not_found":
        names = first["ctx"]["discriminator"].strip("'")
        return f"{field}: must have a {names}, got {value!r}; choose one of {', '.join(_by_name(field))}"
    if kind == "union_tag_invalid":
        found = first["ctx"]["tag"]
        return f"{field}.name: must be one of {first['ctx']['expected_tags']}, got {found!r}; choose one of them"
    rule = first["msg"].removeprefix("Value error, ")
    return f"{field}: {rule[0].lower()}{rule[1:]}, got {_short(value)}; change it"


def _short(value: Any) -> str:
    text = value if isinstance(value, BaseModel) else repr(value)
    return str(text) if len(str(text)) <= 80 else f"{str(text)[:77]}..."


def _by_name(section: str) -> dict[str, type[BaseModel]]:
    return {str(model.model_fields["name"].default): model for model in _CHOSEN_BY_NAME.get(section, ())}


def _model_at(location: list[str], config: Any) -> type[BaseModel]:
    """The model whose field was refused: that of the section, or the one that the section's `name` chooses."""
    if not location:
        return OnlineConfig
    section = location[0]
    if section in _CHOSEN_BY_NAME:
        return _by_name(section)[config[section].get("name", DEFAULT_PROBLEM)]
    return NetworkConfig
