"""What a problem is: everything that engines, sweeps and figures ask of a stream of examples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cbp_ray.validation import Model

COUNTS = {
    "replacements": "units replaced in the bin, or weights with a method that acts on weights",
    "nonfinite_utilities": "eligible units passed over because their utility was not finite",
}
"""Metrics that every learner with generate-and-test has."""
DORMANT = (0.0, 0.025, 0.1)
"""τ of the dormant units that are counted (Sokar et al. 2023)."""
INACTIVE = (0.0, 0.01, 0.1)
"""τ of the inactive units that are counted (Liu et al. 2025)."""
CUMULATED = 0.99
"""The part of Σσ that the first singular values must have, whose number srank is (Kumar et al. 2021)."""
SAMPLE_PLASTICITY = "sample_plasticity"
DIAGNOSTICS = {
    SAMPLE_PLASTICITY: "mean over the bin's examples of max(1 - loss after its step / loss before, 0); not a number with "
    "OnlineNorm, whose statistics move in between",
    "weight_change": "root mean square of the difference of all parameters between the bin's end and that of the bin before",
    **{
        f"dormant_{tau:g}_{{layer}}": f"fraction of a hidden layer's units whose mean |h| is at most {tau:g} of all"
        for tau in DORMANT
    },
    **{
        f"inactive_{tau:g}_{{layer}}": f"fraction of a hidden layer's units whose mean |∂loss/∂z| is at most {tau:g} of all"
        for tau in INACTIVE
    },
    "srank_{layer}": f"fewest singular values of a hidden layer's outputs that make up {CUMULATED:.0%} of their sum",
}
"""Metrics on request, of every network; all but the first two on the problem's `probe`, at the bin's end."""
RANKS = {
    "stable_rank_{layer}": "stable rank of a hidden layer's outputs on these examples",
    "effective_rank_{layer}": "effective rank of a hidden layer's outputs on these examples",
}


class Problem(Model):
    """Where examples come from, with its settings."""

    label: ClassVar[str]
    """What the problem is called in print."""
    defaults: ClassVar[dict[str, Any]]
    """What an experiment with this problem has where its config says nothing: network, examples, bin_size."""
    metrics: ClassVar[Mapping[str, str]]
    """What every bin records for every run, and what it means. `{layer}` stands for one metric per hidden layer."""
    performance: ClassVar[str]
    """The metric that the problem is judged by."""
    performance_label: ClassVar[str]
    """What that metric is called on the vertical axis of a figure."""
    diagnostics: ClassVar[Mapping[str, str]] = {}
    """What it records besides on request; empty if it can't."""
    loss: ClassVar[str | None] = None
    """The metric that is not finite once a run has diverged; None if there is none that tells."""
    learned_by_ppo: ClassVar[bool] = False
    """Whether PPO learns it, so that methods have the names of their PPO."""
    example: ClassVar[str] = "example"
    """What an example is called in print."""
    change: ClassVar[str] = ""
    """What happens every `change_period` examples, for the page of results; empty where that is always as in the paper."""
    outputs: ClassVar[int]
    """Number of outputs of the learning network."""
    if TYPE_CHECKING:

        @property
        def inputs(self) -> int:
            """Number of inputs of the learning network: a setting of some problems, a constant of others."""

    name: str
    """Name of the problem in configs."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the data sets that must be on a machine that runs it."""
        return ()

    @property
    def updates_per_example(self) -> float:
        """Gradient steps per example."""
        return 1.0

    @property
    def helpers(self) -> int:
        """Number of further processes that each run starts, each with a core of its own, on any node."""
        return 0

    @property
    def change_period(self) -> int | None:
        """Examples from one change of the problem to the next, which only an oracle knows; None if that is not told."""
        return None

    @property
    def examples_per_task(self) -> int | None:
        """Examples of a task, after which it is worth saving a checkpoint; None for a problem without tasks."""
        return None
