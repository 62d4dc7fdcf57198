"""Which drawing belongs to which figure."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cbp_ray.figures.accuracy_curves import draw_accuracy_along, draw_algorithms_accuracy, draw_weight_magnitude
from cbp_ray.figures.cases import Cases
from cbp_ray.figures.comparisons import ALL, MAIN, OTHERS
from cbp_ray.figures.diagnostics import draw_saturation_and_gradient
from cbp_ray.figures.learning_curves import draw_algorithms, draw_step_sizes
from cbp_ray.figures.sensitivity import draw_curves_and_sensitivity, draw_sensitivity
from cbp_ray.figures.utilities import draw_utilities

DRAWINGS: dict[str, Callable[[Cases, Path], None]] = {
    "fig3": partial(draw_step_sizes, activations=MAIN, columns=2),
    "fig4": partial(draw_accuracy_along, setting="step_size"),
    "fig6": partial(draw_curves_and_sensitivity, activations=MAIN),
    "fig7": draw_algorithms_accuracy,
    "fig8": draw_weight_magnitude,
    "fig10": partial(draw_step_sizes, activations=OTHERS, columns=4),
    "fig11": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig12": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig13": partial(draw_step_sizes, activations=ALL, columns=3),
    "fig14": partial(draw_curves_and_sensitivity, activations=OTHERS),
    "fig15": partial(draw_algorithms, activations=ALL, columns=3),
    "fig16": partial(draw_sensitivity, activations=ALL, columns=3),
    "fig17a": draw_utilities,
    "fig18": partial(draw_accuracy_along, setting="task_length"),
    "fig19": draw_saturation_and_gradient,
    "fig20": partial(draw_accuracy_along, setting="width"),
}
"""Each draws its figure from the cases of its sweep into `path` with .png and .pdf."""
