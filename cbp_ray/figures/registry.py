"""All figures of the paper. Figures 1, 2 and 5 are drawings, not results, and have no entry."""

from cbp_ray.figures import bit_flipping, permuted_mnist, slippery_ant
from cbp_ray.figures.figure import Figure

_ALL = [*bit_flipping.FIGURES, *permuted_mnist.FIGURES, *slippery_ant.FIGURES]
# In the order of the paper: 17a after 9.
_ALL.sort(key=lambda figure: (int(figure.key[3:].rstrip("ab")), figure.key))

FIGURES: dict[str, Figure] = {figure.key: figure for figure in _ALL}
"""Every figure by its key, in the order of the paper."""

GROUPS: dict[str, list[Figure]] = {
    **{problem: [f for f in _ALL if f.problem == problem] for problem in dict.fromkeys(f.problem for f in _ALL)},
    "all": _ALL,
    "plain-norm": list(bit_flipping.PLAIN_NORM),
    "slippery-ant-long": [slippery_ant.LONG],
}
"""What else may be asked for: all figures of a problem, all there are, or variants of some."""


def chosen(name: str) -> list[Figure]:
    """The figures behind a key of `FIGURES` or `GROUPS`."""
    return GROUPS[name] if name in GROUPS else [FIGURES[name]]
