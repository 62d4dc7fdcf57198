"""Figure 17a: the six utilities over the replacement rate."""

from pathlib import Path

from cbp_ray.figures import style
from cbp_ray.figures.cases import Cases
from cbp_ray.figures.sensitivity import finish, swept_curve


def draw_utilities(cases: Cases, path: Path) -> None:
    """Total error against replacement rate, a curve per utility, BP as a line."""
    with style.canvas(1, 1, path, width=5.6, height=2.6) as panels:
        panel = panels[0, 0]
        plain = cases.one(algorithm="bp").mean_total
        panel.axhline(plain, color=style.VERMILION, label="BP")
        swept = []
        for name, look in style.UTILITIES.items():
            along = cases.select(algorithm="cbp", utility=name)
            swept_curve(panel, along, name.replace("_", " ").replace("mean corrected", "mean-corrected"), look)
            swept.append(along)
        finish(panel, [plain], swept)
        style.title(panel, "tanh, Adam")
        panel.set_xlabel("replacement rate")
        panel.set_ylabel("mean error over the run")
        style.legend(panels, beside=True)
