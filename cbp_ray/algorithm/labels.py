"""Labels: which feature of a tensor is which unit, and which units are one."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import fx, nn

from cbp_ray.algorithm.units import Segment

Labels = tuple[int, ...]
OTHER = -1
"""Label of a feature that is no unit."""
EXPLICIT = "or name the layers yourself: layers=[HiddenLayer(unit=..., outgoing=(...,)), ...]"


class Piece(NamedTuple):
    """Neighbouring features of a tensor."""

    labels: Labels
    spread: Literal["", "repeat", "tile", "unknown"] = ""
    """Flattened: every label (`repeat`), or all of them (`tile`), some number of times; `unknown`: features of no unit."""


@dataclass(frozen=True)
class Value:
    """What is known of a tensor that depends on units."""

    pieces: tuple[Piece, ...]
    """Its features along `axis`; none, if units are mixed in it."""
    axis: int = -1
    ndim: int | None = None
    key: Hashable = None
    """Equal for two tensors that are the same function of the same tensor."""
    mixed: frozenset[int] = frozenset()
    """Units that reached it in a way that can't be followed."""

    @property
    def labels(self) -> Labels:
        return sum((piece.labels for piece in self.pieces), ())

    @property
    def exact(self) -> bool:
        """Whether every feature's label is known."""
        return len(self.pieces) == 1 and not self.pieces[0].spread


class Parts(NamedTuple):
    """The tensors that a split gives."""

    values: list[Value]
    alike: bool
    """Whether there may be more of them, all like the first: those of a split along another dimension than the units'."""

    def at(self, item: Any) -> Value | None:
        if not isinstance(item, int) or (item >= len(self.values) and not self.alike):
            return None
        return replace(self.values[0], key=(self.values[0].key, item)) if self.alike else self.values[item]


@dataclass
class Reading:
    """A module that has an entry for each feature of a tensor: it reads, normalizes, or treats each by itself."""

    name: str
    module: nn.Module
    labels: Labels
    key: Hashable = None
    axis: int = -1
    taps: list[int] = field(default_factory=list)
    """The tap of each feature."""
    segments: list[Segment] = field(default_factory=list)
    parameter: str = "weight"
    bias: str = "bias"
    dim: int = 0


class Units:
    """All units of a network by number, which of them are one (union-find), and why some can't be treated."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.owners: list[tuple[str, int]] = []
        """Module and row that produce each."""
        self.reasons: dict[int, str] = {}
        self.outputs: set[int] = set()
        self.reached: set[int] = set()
        """Units that something with weights reads in a way that can't be followed."""

    def add(self, name: str, count: int) -> Labels:
        start = len(self.parents)
        self.parents += range(start, start + count)
        self.owners += [(name, row) for row in range(count)]
        return tuple(range(start, start + count))

    def root(self, unit: int) -> int:
        while self.parents[unit] != unit:
            self.parents[unit] = unit = self.parents[self.parents[unit]]
        return unit

    def join(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        self.parents[max(a, b)] = min(a, b)

    def mark(self, units: Iterable[int], reason: str) -> None:
        for unit in units:
            if unit != OTHER:
                self.reasons.setdefault(unit, reason)

    def names(self, units: Iterable[int]) -> str:
        """The modules that produce these units, for a message."""
        found = dict.fromkeys(self.owners[unit][0] for unit in sorted({u for u in units if u != OTHER}))
        return " and ".join(map(repr, found))


def flat(value: Any) -> list[Value]:
    return [] if value is None else value.values if isinstance(value, Parts) else [value]


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def simple(node: fx.Node) -> bool:
    """Whether the result depends on one tensor and on numbers alone."""
    return len(node.all_input_nodes) == 1 or node.target in ("view", "reshape")


def spread_out(piece: Piece, size: int) -> list[int]:
    if piece.spread == "unknown":
        return [OTHER] * size
    if piece.spread == "repeat":
        return [label for label in piece.labels for _ in range(size // len(piece.labels))]
    return list(piece.labels) * (size // len(piece.labels) if piece.spread else 1)


def merged(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbours whose labels are known as one piece."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and not merged[-1].spread and not piece.spread:
            merged[-1] = Piece(merged[-1].labels + piece.labels)
        else:
            merged.append(piece)
    return tuple(merged)


def taps_of(value: Value, size: int) -> tuple[list[int], list[Segment]]:
    """The tap of each feature, and the segments: a flattened channel is one tap, everything else one per feature."""
    rest = size - sum(len(piece.labels) for piece in value.pieces if not piece.spread)
    taps: list[int] = []
    segments: list[Segment] = []
    count = 0
    for piece in value.pieces:
        own = len(piece.labels) or rest
        each = rest // own if piece.spread else 1
        numbers = range(count, count + own)
        tiled = piece.spread == "tile" and each > 1
        start = len(taps)
        taps += list(numbers) * each if tiled else [number for number in numbers for _ in range(each)]
        count += own
        if segments and each == segments[-1].repeats == 1:
            segments[-1] = segments[-1]._replace(taps=segments[-1].taps + own)
        else:
            segments.append(Segment(start, own, each, tiled))
    return taps, segments
