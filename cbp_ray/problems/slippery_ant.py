"""Slippery Ant (section 2 and appendix D of the paper): its settings. The environment itself is `rllib_ext.ant`."""

from typing import Any, ClassVar, Literal, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from cbp_ray.problems.problem import Problem
from cbp_ray.validation import Count, CountFromZero, Positive, Rate, SectionError

SAMPLING = {"env_runners": 0, "envs_per_runner": 1}
"""Who samples where a config says nothing: the process that learns, one environment."""


class SlipperyAntConfig(Problem):
    """The settings of Slippery Ant and of PPO, which learns it; the defaults are the paper's. Its examples are time-steps.

    Method `bp` is PPO, `l2` PPO+L2 and `cbp` Continual PPO.
    """

    label = "Slippery Ant"
    defaults: ClassVar[dict[str, Any]] = {
        "network": {"hidden": (256, 256), "activation": "tanh"},
        "examples": 100_000_000,
        "bin_size": 40_000,
    }
    metrics: ClassVar[dict[str, str]] = {
        "episode_return": "mean return of the episodes that ended in the bin; not a number if none did",
        "episodes": "number of episodes that ended in the bin",
        "friction": "friction at the bin's end",
        "weight_magnitude": "mean |w| into the hidden layers of both networks, mean over layers, at the last update of the bin",
        "policy_weight_magnitude_{layer}": "mean |w| into each hidden layer of the policy, 1 the first, likewise",
        "value_weight_magnitude_{layer}": "mean |w| into each hidden layer of the value network, likewise",
        "saturated": "fraction of (unit, example) with |h| > 0.9, likewise",
        "dormant": "fraction of units with a mean |h| of at most 1% of their layer's, likewise",
        "stable_rank": "stable rank of the hidden layers' outputs, likewise",
        "replacements": "units replaced in the bin",
    }
    performance = "episode_return"
    change = "a new friction"
    example = "time-step"
    learned_by_ppo = True
    performance_label = "episodic return"
    inputs: ClassVar[int] = 28
    """Numbers in an observation."""
    outputs = 8

    name: Literal["slippery_ant"] = "slippery_ant"
    """Name of the problem in configs."""
    friction_period: Count = 10_000_000
    """Time-steps between two changes of the friction."""
    friction_low: Positive = 1e-4
    """Smallest friction that a change can bring."""
    friction_high: Positive = 1e4
    """Largest friction that a change can bring."""
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

    env_runners: CountFromZero = SAMPLING["env_runners"]
    """Processes that sample beside the one that learns, on any node; 0 samples in that one. Numbers depend on it."""
    envs_per_runner: Count = SAMPLING["envs_per_runner"]
    """Environments that each of them steps in turn. Numbers depend on it."""

    @property
    def change_period(self) -> int:
        return self.friction_period

    @property
    def updates_per_example(self) -> float:
        return self.epochs / self.minibatch_size

    @property
    def helpers(self) -> int:
        return self.env_runners

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out how sampling is distributed if it is not: results from before it could be keep their names."""
        settings: dict[str, Any] = handler(self)
        return {name: value for name, value in settings.items() if SAMPLING.get(name) != value}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.friction_low > self.friction_high:
            raise SectionError(f".friction_low: must be at most {self.friction_high}, got {self.friction_low}; use less")
        sampled = self.envs_per_runner * max(1, self.env_runners)
        if sampled > self.iteration_size:
            most = self.iteration_size // max(1, self.env_runners)
            if not most:
                raise SectionError(f".env_runners: must be at most {self.iteration_size}, got {self.env_runners}; use less")
            raise SectionError(f".envs_per_runner: must be at most {most}, got {self.envs_per_runner}; use less")
        if self.minibatch_size > self.iteration_size:
            raise SectionError(f".minibatch_size: must be at most {self.iteration_size}, got {self.minibatch_size}; use less")
        return self
