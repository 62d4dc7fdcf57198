"""What a figure costs: runs, and time on one core."""

from collections.abc import Sequence
from dataclasses import dataclass

from cbp_ray.figures.registry import Figure
from cbp_ray.figures.reproduce import join, load_figure
from cbp_ray.sweeps import cost


@dataclass(frozen=True)
class Estimate:
    """Of all runs of some figures."""

    settings: int
    runs: int
    core_seconds: float


def estimate(figures: Sequence[Figure], scale: str = "paper") -> Estimate:
    """Counts the runs of available figures, shared ones once, and says roughly how long they take."""
    sweeps = join([load_figure(figure, scale) for figure in figures], "estimate")
    return Estimate(
        sum(len(sweep.configurations) for sweep in sweeps),
        sum(sweep.runs for sweep in sweeps),
        sum(cost.seconds(c.config, sweep.engine, len(sweep.seeds)) for sweep in sweeps for c in sweep.configurations),
    )
