"""What a figure is: one object with its sweep, its table, its drawing and its claims.

Figures are listed by `cbp-ray figures` and by the completion of shells, so a figure's module imports neither matplotlib, torch
nor Ray: drawings are imported when something is drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cbp_ray.figures.claims import Claim
from cbp_ray.figures.results import Setting, Settings

Drawing = Callable[[Settings, Path], None]
"""Draws the settings of a figure into `path` with .png and .pdf."""


@dataclass(frozen=True)
class Figure:
    """One figure of the paper."""

    key: str
    """The name on the command line: `fig3`, ..., `fig17a`, `fig17b`, ..., `fig20`."""
    problem: str
    """The name of its problem on the command line: `bit-flipping`, `permuted-mnist` or `slippery-ant`."""
    title: str
    """What the figure is about, in a few words."""
    what: str
    """The algorithms, networks and optimizers compared, and what is drawn."""
    grid: str
    """The settings swept, with the number and the length of the runs where the paper gives them."""
    claim: str
    """What the paper concludes from the figure, as something to check."""
    drawing: Drawing
    """How it is drawn."""
    numbers: Callable[[Setting, Settings], dict[str, Any]]
    """The columns of its table that are computed from the runs of one setting among all settings."""
    claims: tuple[Claim, ...]
    """The paper's sentences about it; their keys begin with that of the figure."""

    @property
    def sweep(self) -> str:
        """Its sweep file below `tune_configs/`."""
        return f"{self.problem.replace('-', '_')}/{self.key}.yaml"

    def as_dict(self) -> dict[str, Any]:
        """What can be said of the figure without running anything, as plain data."""
        return {name: getattr(self, name) for name in ("key", "problem", "title", "what", "grid", "claim", "sweep")}


def drawn_by(module: str, function: str, **options: Any) -> Drawing:
    """The drawing that a function makes with some options; its module is imported when something is drawn."""

    def draw(settings: Settings, path: Path) -> None:
        getattr(import_module(module), function)(settings, path, **options)

    return draw
