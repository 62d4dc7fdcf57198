"""What a figure costs: runs, and time on one core."""

from dataclasses import dataclass

from cbp_ray.figures.registry import Figure
from cbp_ray.figures.reproduce import load_figure
from cbp_ray.sweeps import cost


@dataclass(frozen=True)
class Estimate:
    """Of all runs of a figure, also those that it shares with others."""

    settings: int
    runs: int
    core_seconds: float


def estimate(figure: Figure, scale: str = "paper") -> Estimate:
    """Counts the runs of an available figure and says roughly how long they take."""
    sweep = load_figure(figure, scale)
    seconds = sum(cost.seconds(c.config, sweep.engine, len(sweep.seeds)) for c in sweep.configurations)
    return Estimate(len(sweep.configurations), sweep.runs, seconds)
