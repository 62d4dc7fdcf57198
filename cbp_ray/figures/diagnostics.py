"""Figure 19: what happens inside the networks."""

from pathlib import Path

from cbp_ray.figures import style
from cbp_ray.figures.cases import Cases
from cbp_ray.figures.learning_curves import metric_panel


def draw_saturation_and_gradient(cases: Cases, path: Path) -> None:
    """Fraction of saturated features, and magnitude of the input gradient, each algorithm at its best setting."""
    best = [cases.best(algorithm=name) for name in ("bp", "l2", "online_norm", "cbp")]
    with style.canvas(1, 2, path, width=3.0, height=2.2) as panels:
        left, right = panels[0]
        metric_panel(left, best, "saturated", "(a) saturated features", "fraction with |h| > 0.9")
        metric_panel(right, best, "input_gradient", "(b) gradient of the input weights", "mean magnitude")
        left.set_ylim(0, 1)
        right.set_ylim(bottom=0)
        for panel in panels[0]:
            panel.set_xlabel("examples (millions)")
        style.legend(panels)
