"""What the competitors meet on: streams of data, each with a sweep file of their grids and what the report runs."""

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Stage:
    """The second stage: which seeds the chosen settings run on, and how long."""

    seeds: range
    """Seeds of the report; none of them chose a setting."""
    lengths: tuple[int, ...]
    """Examples per run, a report for each; claims are judged by the first."""


class Published(NamedTuple):
    """A setting of a grid that is reported in any case, because other people have numbers of it."""

    name: str
    """As which competitor."""
    group: str
    """Whose grid has it."""
    properties: dict[str, Any]
    """What tells it from others of the grid, see `Setting.has`."""


@dataclass(frozen=True)
class Stream:
    """One stream of the comparison. Its first stage is `tune_configs/rivals/<key>.yaml`, with _ for -."""

    key: str
    """Name in commands and files: `bit-flipping`."""
    title: str
    """Name in print."""
    what: str
    """A sentence about data, network and runs, for the page of results."""
    full: Stage
    smoke: Stage
    at_once: int = 1
    """Runs that share a block when costs are measured."""
    timed: tuple[int, int] = (1_000, 3_000)
    """Examples of a short and of a long measurement of costs; their difference counts."""
    published: tuple[Published, ...] = ()
    adjusts: bool = False
    """Whether rises are of the error divided by the linear tracker's, because parts of the stream are harder than others."""

    @property
    def name(self) -> str:
        """Name of its files: `rivals_bit_flipping`."""
        return f"rivals_{self.key.replace('-', '_')}"

    def stage(self, scale: str) -> Stage:
        """The second stage of a scale; there is no smaller one for a laptop."""
        return self.smoke if scale == "smoke" else self.full


STREAMS = {
    stream.key: stream
    for stream in (
        Stream(
            key="bit-flipping",
            title="Bit-Flipping",
            what="The paper's problem and network (5 hidden units). Settings are chosen by runs of 1M examples.",
            full=Stage(range(20, 120), (1_000_000, 5_000_000)),
            smoke=Stage(range(3, 9), (4_000, 8_000)),
            at_once=32,
            adjusts=True,
        ),
        Stream(
            key="permuted-mnist",
            title="Online Permuted MNIST",
            what="Three hidden layers of 100 ReLU units, SGD, a new permutation every 60,000 examples. Settings are chosen by "
            "runs of 50 tasks, and reported on 200.",
            full=Stage(range(2, 12), (12_000_000,)),
            smoke=Stage(range(3, 9), (800,)),
            timed=(2_000, 12_000),
        ),
        Stream(
            key="upgd",
            title="The protocol of UPGD",
            what="Input-permuted MNIST as Elsayed and Mahmood (2024) have it: 784-300-150-10 units, ReLU, SGD, inputs in "
            "[-1, 1], PyTorch's initial weights (biases begin at 0), a new permutation every 5,000 examples. Settings are "
            "chosen by runs of 250,000 examples, and reported on 1M.",
            full=Stage(range(2, 12), (1_000_000,)),
            smoke=Stage(range(3, 9), (800,)),
            timed=(1_000, 4_000),
            published=(Published("upgd_published", "upgd", {"step_size": 0.01, "parameter": 0.1}),),
        ),
    )
}
"""All streams by their keys."""
