"""Which drawing belongs to which figure."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cbp_ray.figures.cases import Cases
from cbp_ray.figures.comparisons import ALL, MAIN, OTHERS
from cbp_ray.figures.diagnostics import draw_saturation_and_gradient
from cbp_ray.figures.learning_curves import draw_algorithms, draw_step_sizes
from cbp_ray.figures.sensitivity import draw_curves_and_sensitivity, draw_sensitivity
from cbp_ray.figures.utilities import draw_utilities

DRAWINGS: dict[str, Callable[[Cases, Path], None]] = {
    "fig3": partial(draw_step_sizes, activations=MAIN, columns=2),
    "fig6": partial(draw_curves_and_sensitivity, activations=MAIN),
    "fig10": partial(draw_step_sizes, activations=OTHERS, columns=4),
    "fig11": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig12": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig13": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig14": partial(draw_curves_and_sensitivity, activations=OTHERS),
    "fig15": partial(draw_algorithms, activations=ALL, columns=3),
    "fig16": partial(draw_sensitivity, activations=ALL, columns=3),
    "fig17a": draw_utilities,
    "fig19": draw_saturation_and_gradient,
}
"""Each draws its figure from the cases of its sweep into `path` with .png and .pdf."""
