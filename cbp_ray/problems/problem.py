"""What a problem is: everything that engines, sweeps and figures ask of a stream of examples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from cbp_ray.validation import Model

COUNTS = {
    "replacements": "units replaced in the bin",
    "nonfinite_utilities": "eligible units passed over because their utility was not finite",
}
"""Metrics that every learner with generate-and-test has."""


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
    loss: ClassVar[str | None] = None
    """The metric that is not finite once a run has diverged; None if there is none that tells."""
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
