"""TensorBoard: one run per configuration, with the mean over seeds, its confidence band and the diagnostics.

Written without torch or TensorFlow. What a run is called depends on its configuration alone (see `label`), and its file's name
says which configuration and seeds it sums up. So whatever files share a sweep, at whatever scale and in whatever order they
run, no run takes another's place, none is there twice, and what is missing or outdated shows in the names.
"""

import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.problems import DEFAULT_PROBLEM
from cbp_ray.results.intervals import mean_interval
from cbp_ray.results.keys import KEY_LENGTH, BlockName, config_key, encode_seeds
from cbp_ray.results.store import Store

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."
HEAD = f"{PREFIX}head-"
RUN = re.compile(re.escape(PREFIX) + f"([0-9a-f]{{{KEY_LENGTH}}})-[0-9a-f]{{16}}")
SECTIONS = {"algorithm": 0, "network": 1, "optimizer": 2}
LONGEST_NAME = 180
"""Length of the name of a run's folder; file systems allow 255 bytes."""

Settings = dict[str, str | float | bool]


class Boards:
    """The TensorBoard runs of one sweep.

    Args:
      store: where results are, and where `tensorboard/` goes.
      engine: which engine's results.
      columns: settings in which configurations of the sweep differ, each with one of its values; asked for when the first
        run is written.
    """

    def __init__(self, store: Store, engine: str, columns: Callable[[], Settings]) -> None:
        self._store, self._engine, self._columns = store, engine, columns
        self._folder = store.folder / FOLDER
        self._heads: set[str] = set()
        self._by_key, self._by_label = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        self._head_written = False
        # One walk over everything instead of a look into every run's folder.
        for path in self._folder.tree():
            place, _, name = path.rpartition("/")
            if name.startswith(HEAD):
                self._heads.add(path)
            elif (match := RUN.fullmatch(name)) is not None:
                self._by_key[match[1]].add(path)
                self._by_label[place].add(path)

    def has(self, key: str, seeds: Iterable[int]) -> bool:
        """Whether there is a run of the configuration with this key that sums up exactly these seeds."""
        name = _file(key, seeds)
        return any(path.rpartition("/")[2] == name for path in self._by_key[key])

    def write(self, config: OnlineConfig, group: str, names: Iterable[BlockName]) -> None:
        """Writes the run of one configuration over all seeds of its stored blocks, unless it is there.

        The group, of the sweep's file, is for the hyper-parameters tab.
        """
        names = list(names)
        seeds = sorted({seed for name in names for seed in name.seeds})
        key = config_key(config, self._engine)
        if self.has(key, seeds):
            return
        curves = self._store.read_curves(config, seeds, self._engine, names)
        place = label(config, self._engine)
        if not self._head_written:
            self._write_head(place, key, curves.performance)
        settings = flat_settings(config) | {"group": group, "engine": self._engine, "seeds": len(seeds)}
        (self._folder / place).write(_file(key, seeds), encode(_run_events(curves, settings)))
        path = f"{place}/{_file(key, seeds)}"
        # Fewer seeds; an older version of the results; the same configuration under the name that an older version gave it.
        for old in (self._by_key[key] | self._by_label[place]) - {path}:
            self._folder.remove(old)
        self._by_key[key] = self._by_label[place] = {path}

    def _write_head(self, place: str, key: str, metric: str) -> None:
        """What is common to all runs: the columns of the hyper-parameters tab and the chart with the band.

        It is a second file in the folder of some run: a run of its own would be the 501st of 500 configurations, and from
        there on TensorBoard shows no run until it is ticked.
        """
        events = list(_head_events(metric, self._columns()))
        name = f"{HEAD}{hashlib.sha256(encode(events)).hexdigest()[:16]}"
        # The same head stays where it is, unless nothing else will.
        homes = {place, *(label for label, runs in self._by_label.items() if runs - self._by_key[key])}
        kept = next((path for path in self._heads if path.endswith(f"/{name}") and path.rpartition("/")[0] in homes), None)
        if kept is None:
            kept = f"{place}/{name}"
            (self._folder / place).write(name, encode(events))
        for old in self._heads - {kept}:
            self._folder.remove(old)
        self._heads, self._head_written = {kept}, True


def write_image(store: Store, name: str, png: bytes) -> None:
    """Puts a figure, the content of a PNG file, into the Images tab. All figures are one run."""
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    image = summary_pb2.Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
    event = event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, image=image)]))
    folder, prefix = store.folder / FOLDER / "figures", f"{PREFIX}{_safe(name)}-"
    new = f"{prefix}{hashlib.sha256(png).hexdigest()[:16]}"
    folder.write(new, encode([event]))
    for old in folder.names():
        if old.startswith(prefix) and old != new:
            folder.remove(old)


def label(config: OnlineConfig, engine: str) -> str:
    """A readable name that depends on the configuration alone: the algorithm, and below it all settings but defaults.

    Other files, grid values or scales change nothing about it, and no two configurations share one.

    Example:
      >>> settings = {"algorithm": {"name": "bp"}, "optimizer": {"name": "sgd", "step_size": 0.01}, "examples": 5_000_000}
      >>> label(OnlineConfig.make(settings), "kernel")
      'bp/sgd,step_size=0.01,examples=5000000'
    """
    settings = flat_settings(config)
    usual, always = _usual_settings(config)
    leaves = Counter(name.rpartition(".")[2] for name in settings)
    parts = []
    # What experiments differ in comes first: TensorBoard cuts long names short.
    for name in sorted(settings, key=lambda name: SECTIONS.get(name.partition(".")[0], len(SECTIONS))):
        (section, _, leaf), value = name.rpartition("."), settings[name]
        if name == "algorithm.name" or (name not in always and usual.get(name) == value):
            continue
        if leaf == "name":
            parts.append(_show(value))
        else:
            parts.append(f"{leaf if leaves[leaf] == 1 else f'{section}.{leaf}'}={_show(value)}")
    if engine != "kernel":
        parts.append(engine)
    text = _safe(",".join(parts))
    if len(text) > LONGEST_NAME:
        text = f"{text[:LONGEST_NAME]},{config_key(config, engine)}"
    return f"{_safe(config.algorithm.name)}/{text}"


def _usual_settings(config: OnlineConfig) -> tuple[Settings, set[str]]:
    """The problem's defaults beside what has none, and the names of what is always said."""
    required: dict[str, dict[str, Any]] = {"problem": {"name": config.problem.name}}
    always = set() if config.problem.name == DEFAULT_PROBLEM else {"problem.name"}
    for name in ("algorithm", "optimizer"):
        section = getattr(config, name)
        fields = type(section).model_fields
        required[name] = {field: getattr(section, field) for field in fields if field == "name" or fields[field].is_required()}
        always |= {f"{name}.{field}" for field in required[name]}
    return flat_settings(config.make(required)), always


def varying(all_settings: Sequence[Settings]) -> dict[str, str | float | bool]:
    """The settings in which some differ, each with one of its values."""
    names = {name: value for settings in reversed(all_settings) for name, value in reversed(settings.items())}
    ordered = dict(reversed(names.items()))
    return {name: value for name, value in ordered.items() if len({repr(s.get(name)) for s in all_settings}) > 1}


def flat_settings(config: OnlineConfig | Mapping[str, Any]) -> Settings:
    """`{"algorithm.replacement_rate": 1e-4, …}`, from a config or from what it dumps."""
    flat: Settings = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                visit(f"{prefix}.{name}" if prefix else name, inner)
        else:
            number = isinstance(value, int) and not isinstance(value, bool)
            flat[prefix] = float(value) if number else value if isinstance(value, str | float | bool) else json.dumps(value)

    visit("", config.model_dump(mode="json") if isinstance(config, OnlineConfig) else config)
    return flat


def encode(events: Iterable[event_pb2.Event]) -> bytes:
    """Events as the content of a TensorBoard file."""
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    writer.write(event_pb2.Event(file_version="brain.Event:2").SerializeToString())
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()


def _run_events(curves: Curves, settings: Settings) -> Iterable[event_pb2.Event]:
    yield event_pb2.Event(step=0, summary=summary_v2.hparams_pb(settings, start_time_secs=0))
    judged = curves.performance
    band = mean_interval(curves[judged])
    columns = {f"{judged}/mean": band.estimate, f"{judged}/lower": band.low, f"{judged}/upper": band.high}
    columns |= {f"diagnostics/{name}": curves.mean(name) for name in curves.metrics if name != judged}
    for index, examples in enumerate(curves.examples):
        values = {tag: float(column[index]) for tag, column in columns.items()}
        yield _scalars(int(examples), {tag: value for tag, value in values.items() if np.isfinite(value)})
    whole, end = float(band.estimate.mean()), float(band.estimate[-1])
    yield _scalars(int(curves.examples[-1]), {f"summary/{judged}_whole_run": whole, f"summary/{judged}_end": end})


def _scalars(step: int, values: dict[str, float]) -> event_pb2.Event:
    entries = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    # Wall time stays 0: the same results give the same file.
    return event_pb2.Event(step=step, summary=summary_pb2.Summary(value=entries))


def _head_events(metric: str, columns: Settings) -> Iterable[event_pb2.Event]:
    tags = (f"summary/{metric}_whole_run", f"summary/{metric}_end")
    infos = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag.partition("/")[2]) for tag in tags]
    settings = [api_pb2.HParamInfo(name=name, type=_kind(value)) for name, value in columns.items()]
    # The columns of the hyper-parameters tab.
    summary = summary_v2.hparams_config_pb([], [], time_created_secs=0)
    data = plugin_data_pb2.HParamsPluginData.FromString(summary.value[0].metadata.plugin_data.content)
    data.experiment.hparam_infos.extend(settings)
    data.experiment.metric_infos.extend(infos)
    summary.value[0].metadata.plugin_data.content = data.SerializeToString()
    yield event_pb2.Event(step=0, summary=summary)
    band = {"value": f"{metric}/mean", "lower": f"{metric}/lower", "upper": f"{metric}/upper"}
    margin = layout_pb2.MarginChartContent(series=[layout_pb2.MarginChartContent.Series(**band)])
    chart = layout_pb2.Chart(title=f"{metric}, 95% confidence", margin=margin)
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="mean over seeds", chart=[chart])])
    value = summary_pb2.Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG,
        metadata=custom_scalar.create_summary_metadata(),
        # The plugin's own helper would need TensorFlow for this line.
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()]),
    )
    yield event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[value]))


def _kind(value: str | float | bool) -> int:
    if isinstance(value, bool):
        return int(api_pb2.DATA_TYPE_BOOL)
    return int(api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64)


def _file(key: str, seeds: Iterable[int]) -> str:
    """Name of the file of a run."""
    return f"{PREFIX}{key}-{hashlib.sha256(encode_seeds(sorted(seeds)).encode()).hexdigest()[:16]}"


def _show(value: str | float | bool) -> str:
    """Exact: two rates that a search has drawn may differ in the last digit. Lists as `5x10`."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value).strip("[]").replace(", ", "x")


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9=,._+-]", "_", text) or "_"
