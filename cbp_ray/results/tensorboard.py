"""TensorBoard: one run per configuration, with the mean over the seeds at hand, its confidence band and the diagnostics.

A run is a folder, and its newest file has all of it. The file's number says which is the newest; its name also says which
configuration it shows, and of which seeds, or that it grows with runs that have not ended. While they run, points are appended.
Whatever changes points that TensorBoard may have read (more seeds, another process that goes on, the end) is a file with a
higher number that begins by saying that earlier points no longer count: TensorBoard, which forgets nothing by itself, then
replaces them. The files before it are left for a minute, because TensorBoard may still read one and would wait for it forever.
"""

import contextlib
import hashlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cbp_ray.results import board_events
from cbp_ray.results.board_events import Chart
from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.keys import KEY_LENGTH, encode_seeds
from cbp_ray.results.run_names import Settings, safe
from cbp_ray.results.run_names import flat_settings as flat_settings
from cbp_ray.results.run_names import varying as varying
from cbp_ray.results.store import Store

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."
LIVE = "live"
RUN = re.compile(re.escape(PREFIX) + rf"(\d{{6}})-([0-9a-f]{{{KEY_LENGTH}}})-({LIVE}|[0-9a-f]{{16}})")
HEAD = re.compile(re.escape(PREFIX) + r"(\d{6})-head-([0-9a-f]{16})")
OLD_RUN = re.compile(re.escape(PREFIX) + f"([0-9a-f]{{{KEY_LENGTH}}})-[0-9a-f]{{16}}")
OLD_HEAD = re.compile(re.escape(PREFIX) + "head-[0-9a-f]{16}")
"""Names that earlier versions gave their files."""
READ_SECONDS = 60.0
"""After this time TensorBoard has gone on to a newer file."""
MOST_FILES = 4
"""Files of a run that are left when a sweep goes on, so that they don't become more with every start."""
LARGEST_GROWTH = 4
"""A file that has become this many times as long as when it was new gives way to a new one."""


class Look(NamedTuple):
    """What the runs of a sweep have in common."""

    metric: str
    """Name of the metric that they are judged by."""
    columns: Settings
    """Settings in which configurations differ, each with one of its values."""
    charts: list[Chart]
    """The charts with bands."""


class Run(NamedTuple):
    """One configuration as TensorBoard shows it."""

    key: str
    """Key of the configuration."""
    name: str
    """Name of the run: its folder."""
    settings: Settings
    """The hyper-parameters to show."""
    chart: Chart
    """Where its band is drawn."""


@dataclass
class _Open:
    """A file that this process has written and may append to."""

    path: str
    begun_bytes: int
    bytes: int


class Boards:
    """The TensorBoard runs of one sweep.

    Args:
      store: where results are, and where `tensorboard/` goes.
      look: what the runs have in common; asked for when the first run is written.
    """

    def __init__(self, store: Store, look: Callable[[], Look]) -> None:
        self._look = look
        self._folder = store.folder / FOLDER
        self._files: dict[str, dict[str, int]] = defaultdict(dict)
        """Number of each run's file by its path below the folder, for every key; 0 in names of earlier versions."""
        self._heads: dict[str, int] = {}
        self._at: dict[str, dict[str, str]] = defaultdict(dict)
        """Key of each run's file by its path, for every folder; heads have none."""
        self._open: dict[str, _Open] = {}
        self._superseded: dict[str, float] = {}
        self._head_written = False
        # One walk over everything instead of a look into every run's folder.
        for path in self._folder.tree():
            name = path.rpartition("/")[2]
            if (match := RUN.fullmatch(name)) is not None:
                self._add(path, int(match[1]), match[2])
            elif (match := OLD_RUN.fullmatch(name)) is not None:
                self._add(path, 0, match[1])
            elif (match := HEAD.fullmatch(name)) is not None:
                self._add(path, int(match[1]))
            elif OLD_HEAD.fullmatch(name) is not None:
                self._add(path, 0)
        for files in list(self._files.values()):
            for path in sorted(files, key=lambda path: files[path])[:-MOST_FILES]:
                self._remove(files, path)
        # As far as is known: the process that wrote them may have been killed a moment ago.
        self._superseded = {path: time.monotonic() for files in self._files.values() for path in files}

    def has(self, key: str, seeds: Iterable[int]) -> bool:
        """Whether there is a run of the configuration with this key that sums up exactly these seeds."""
        return self._kind(key) == _kind(seeds)

    def grows(self, key: str) -> bool:
        """Whether there is a run of the configuration with this key of which more is to come."""
        return self._kind(key) == LIVE

    def name(self, key: str) -> str | None:
        """The name of the run of the configuration with this key; None if there is none."""
        newest = self._newest(key)
        return None if newest is None else newest.rpartition("/")[0]

    def write(self, run: Run, summary: CurveSummary, seeds: Iterable[int] | None) -> None:
        """Writes the whole run of one configuration.

        Args:
          run: what it is called, and its settings.
          summary: all its bins.
          seeds: the seeds that it sums up, all of whose bins are there; None if more is to come.
        """
        place = self._place(run)
        if not self._head_written:
            self._write_head(place)
        number = 1 + self._last_number(place)
        events = [*board_events.about_run(run.name, run.settings)]
        events += board_events.points(summary, run.chart, first=0, replaces=number > 1, complete=seeds is not None)
        content = board_events.encode(events)
        path = f"{place}/{PREFIX}{number:06}-{run.key}-{LIVE if seeds is None else _kind(seeds)}"
        (self._folder / place).write(path.rpartition("/")[2], content)
        files, now = self._files[run.key], time.monotonic()
        if (before := self._newest(run.key)) is not None:
            self._superseded[before] = now
        for old in list(files):
            read = now - self._superseded.setdefault(old, now) >= READ_SECONDS
            if read or files[old] == 0 or old.rpartition("/")[0] != place:
                self._remove(files, old)
        self._add(path, number, run.key)
        self._open[run.key] = _Open(path, len(content), len(content))

    def append(self, run: Run, summary: CurveSummary, first: int, *, replaces: bool) -> None:
        """Adds points from bin number `first` on to a run of which more is to come, in place of those that were there.

        Args:
          run: what it is called, and its settings.
          summary: all its bins.
          first: number of the first bin that is new or has changed.
          replaces: whether some were there.
        """
        opened = self._open.get(run.key)
        if opened is not None and opened.bytes < LARGEST_GROWTH * opened.begun_bytes + 2**16:
            events = board_events.points(summary, run.chart, first=first, replaces=replaces, complete=False)
            content = board_events.encode(events, begins=False)
            # Another process may have given the run another name.
            with contextlib.suppress(FileNotFoundError):
                self._folder.append(opened.path, content)
                opened.bytes += len(content)
                return
        self.write(run, summary, None)

    def forget(self, key: str) -> None:
        """Takes note that no more will be appended to a run."""
        self._open.pop(key, None)

    def close(self) -> None:
        """Removes the files that TensorBoard has finished with; the rest goes when the sweep is opened again."""
        for key, files in self._files.items():
            for path in files.keys() - {self._newest(key)}:
                if time.monotonic() - self._superseded.get(path, time.monotonic()) >= READ_SECONDS:
                    self._remove(files, path)

    def _newest(self, key: str) -> str | None:
        files = self._files.get(key)
        return max(files, key=lambda path: files[path]) if files else None

    def _kind(self, key: str) -> str | None:
        newest = self._newest(key)
        match = None if newest is None else RUN.fullmatch(newest.rpartition("/")[2])
        return None if match is None else match[3]

    def _place(self, run: Run) -> str:
        """The run's folder: named as it is called, unless another configuration is there."""
        taken = any(key not in ("", run.key) for key in self._at[run.name].values())
        return f"{run.name},{run.key}" if taken else run.name

    def _last_number(self, place: str) -> int:
        return max(((self._files[key] if key else self._heads)[path] for path, key in self._at[place].items()), default=0)

    def _write_head(self, place: str) -> None:
        """Writes what is common to all runs.

        It is a second file in the folder of some run: a run of its own would be the 501st of 500 configurations, and from
        there on TensorBoard shows no run until it is ticked.
        """
        content = board_events.encode(board_events.about_sweep(*self._look()))
        ending = f"-head-{hashlib.sha256(content).hexdigest()[:16]}"
        # The same head stays where it is, unless nothing else is there.
        homes = {place for place, files in self._at.items() if any(files.values())}
        kept = next((path for path in self._heads if path.endswith(ending) and path.rpartition("/")[0] in homes), None)
        if kept is None:
            number = 1 + self._last_number(place)
            kept = f"{place}/{PREFIX}{number:06}{ending}"
            (self._folder / place).write(kept.rpartition("/")[2], content)
            self._add(kept, number)
        for old in self._heads.keys() - {kept}:
            self._remove(self._heads, old)
        self._head_written = True

    def _add(self, path: str, number: int, key: str = "") -> None:
        (self._files[key] if key else self._heads)[path] = number
        self._at[path.rpartition("/")[0]][path] = key

    def _remove(self, files: dict[str, int], path: str) -> None:
        place = path.rpartition("/")[0]
        self._folder.remove(path)
        del files[path], self._at[place][path]
        self._superseded.pop(path, None)
        if any(self._at[place].values()):
            return
        for head in list(self._at.pop(place)):
            # Alone it would be a run without points.
            self._folder.remove(head)
            del self._heads[head]
            self._head_written = False
        if self._folder.local is not None:
            with contextlib.suppress(OSError):
                os.removedirs(self._folder.local / place)


def write_image(store: Store, name: str, png: bytes) -> None:
    """Puts a figure, the content of a PNG file, into the Images tab. All figures are one run."""
    folder, prefix = store.folder / FOLDER / "figures", f"{PREFIX}{safe(name)}-"
    new = f"{prefix}{hashlib.sha256(png).hexdigest()[:16]}"
    folder.write(new, board_events.encode([board_events.picture(name, png)]))
    for old in folder.names():
        if old.startswith(prefix) and old != new:
            folder.remove(old)


def _kind(seeds: Iterable[int]) -> str:
    """What the name of a file says of the seeds that it sums up."""
    return hashlib.sha256(encode_seeds(sorted(seeds)).encode()).hexdigest()[:16]
