"""TensorBoard: one run per configuration, with the mean over seeds, its confidence band and the diagnostics.

Written without torch or TensorFlow. A run is one file whose name says which seeds it sums up: it is replaced when there are
more, and left alone when nothing has changed.
"""

import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from cbp_ray.experiments.config import OnlineConfig
from cbp_ray.experiments.curves import Curves
from cbp_ray.results.aggregates import mean_interval
from cbp_ray.results.keys import config_key, encode_seeds
from cbp_ray.results.storage import Folder
from cbp_ray.results.store import Store

FOLDER = "tensorboard"
PREFIX = "events.out.tfevents."
HEAD = f"{PREFIX}head-"
Settings = dict[str, str | float | bool]


class Boards:
    """The TensorBoard runs of one sweep.

    Args:
      store: where results are, and where `tensorboard/` goes.
      configurations: group and config of each; they decide how runs are named.
      engine: which engine's results.
    """

    def __init__(self, store: Store, configurations: Sequence[tuple[str, OnlineConfig]], engine: str) -> None:
        self._store, self._engine = store, engine
        self._folder = store.folder / FOLDER
        self._labels = labels(configurations, engine)
        self._groups = {config_key(config, engine): group for group, config in configurations}
        self._columns = varying([{"group": group, **flat_settings(config)} for group, config in configurations])
        self._head_written = False

    def write(self, config: OnlineConfig, seeds: Iterable[int]) -> None:
        """Writes the run of one configuration, all of whose seeds are stored."""
        key, seeds = config_key(config, self._engine), tuple(seeds)
        folder = self._run(key)
        content_id = hashlib.sha256(f"{key}-{encode_seeds(seeds)}".encode()).hexdigest()[:16]
        name = f"{PREFIX}{content_id}"
        first = key == next(iter(self._labels))
        old = [found for found in folder.names() if not (first and found.startswith(HEAD))]
        if name in old:
            return
        curves = self._store.read_curves(config, seeds, self._engine)
        if not self._head_written:
            self._write_head(curves)
        settings = flat_settings(config) | {"group": self._groups[key], "engine": self._engine, "seeds": len(seeds)}
        folder.write(name, encode(_run_events(curves, settings)))
        for other in old:
            folder.remove(other)

    def _write_head(self, curves: Curves) -> None:
        """What is common to all runs: the columns of the hyper-parameters tab and the chart with the band.

        It is a second file in the run of the first configuration: a run of its own would be the 501st of 500 configurations,
        and from there on TensorBoard shows no run until somebody ticks it.
        """
        content = encode(_head_events(curves.performance, self._columns))
        name, folder = f"{HEAD}{hashlib.sha256(content).hexdigest()[:16]}", self._run(next(iter(self._labels)))
        old = [found for found in folder.names() if found.startswith(HEAD)]
        if name not in old:
            folder.write(name, content)
        for other in old:
            if other != name:
                folder.remove(other)
        self._head_written = True

    def _run(self, key: str) -> Folder:
        folder = self._folder
        for part in self._labels[key].split("/"):
            folder = folder / part
        return folder


def write_image(store: Store, name: str, png: bytes) -> None:
    """Puts a figure into the Images tab.

    Args:
      store: of the sweep.
      name: the figure's.
      png: the picture.
    """
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    image = summary_pb2.Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
    event = event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, image=image)]))
    folder = store.folder / FOLDER / "figures" / _safe(name)
    old = folder.names()
    new = f"{PREFIX}{hashlib.sha256(png).hexdigest()[:16]}"
    folder.write(new, encode([event]))
    for other in old:
        if other != new:
            folder.remove(other)


def labels(configurations: Sequence[tuple[str, OnlineConfig]], engine: str) -> dict[str, str]:
    """A readable name for each config key: the group, and below it the settings in which its configurations differ."""
    by_group: dict[str, list[tuple[str, Settings]]] = defaultdict(list)
    for group, config in configurations:
        by_group[group].append((config_key(config, engine), flat_settings(config)))
    found: dict[str, str] = {}
    for group, members in by_group.items():
        names = varying([settings for _, settings in members])
        for key, settings in members:
            parts = [f"{name.rpartition('.')[2]}={_show(settings[name])}" for name in names if name in settings]
            found[key] = f"{_safe(group)}/{_safe(','.join(parts))}" if parts else _safe(group)
    counts: dict[str, int] = defaultdict(int)
    for label in found.values():
        counts[label] += 1
    return {key: label if counts[label] == 1 else f"{label},{key[:6]}" for key, label in found.items()}


def varying(all_settings: Sequence[Settings]) -> dict[str, str | float | bool]:
    """The settings in which some differ, each with one of its values."""
    names = {name: value for settings in reversed(all_settings) for name, value in reversed(settings.items())}
    ordered = dict(reversed(names.items()))
    return {name: value for name, value in ordered.items() if len({repr(s.get(name)) for s in all_settings}) > 1}


def flat_settings(config: OnlineConfig) -> Settings:
    """`{"algorithm.replacement_rate": 1e-4, …}`."""
    flat: Settings = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                visit(f"{prefix}.{name}" if prefix else name, inner)
        else:
            flat[prefix] = value if isinstance(value, str | float | bool) else json.dumps(value)
            if isinstance(value, int) and not isinstance(value, bool):
                flat[prefix] = float(value)

    visit("", config.model_dump(mode="json"))
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
    columns = {f"{judged}/mean": band.mean, f"{judged}/lower": band.lower, f"{judged}/upper": band.upper}
    columns |= {f"diagnostics/{name}": curves.mean(name) for name in curves.metrics if name != judged}
    for index, examples in enumerate(curves.examples):
        values = {tag: float(column[index]) for tag, column in columns.items()}
        yield _scalars(int(examples), {tag: value for tag, value in values.items() if np.isfinite(value)})
    final = int(curves.examples[-1])
    yield _scalars(
        final, {f"summary/{judged}_whole_run": float(band.mean.mean()), f"summary/{judged}_end": float(band.mean[-1])}
    )


def _scalars(step: int, values: dict[str, float]) -> event_pb2.Event:
    entries = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    # Wall time stays 0: the same results give the same file.
    return event_pb2.Event(step=step, summary=summary_pb2.Summary(value=entries))


def _head_events(metric: str, columns: Settings) -> Iterable[event_pb2.Event]:
    tags = (f"summary/{metric}_whole_run", f"summary/{metric}_end")
    infos = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag.partition("/")[2]) for tag in tags]
    settings = [api_pb2.HParamInfo(name=name, type=_kind(value)) for name, value in columns.items()]
    yield event_pb2.Event(step=0, summary=_experiment(settings, infos))
    margin = layout_pb2.MarginChartContent(
        series=[layout_pb2.MarginChartContent.Series(value=f"{metric}/mean", lower=f"{metric}/lower", upper=f"{metric}/upper")]
    )
    chart = layout_pb2.Chart(title=f"{metric}, 95% confidence", margin=margin)
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="mean over seeds", chart=[chart])])
    value = summary_pb2.Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG,
        metadata=custom_scalar.create_summary_metadata(),
        # The plugin's own helper would need TensorFlow for this line.
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()]),
    )
    yield event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[value]))


def _experiment(settings: list[api_pb2.HParamInfo], metrics: list[api_pb2.MetricInfo]) -> summary_pb2.Summary:
    """The columns of the hyper-parameters tab."""
    summary = summary_v2.hparams_config_pb([], [], time_created_secs=0)
    data = plugin_data_pb2.HParamsPluginData.FromString(summary.value[0].metadata.plugin_data.content)
    data.experiment.hparam_infos.extend(settings)
    data.experiment.metric_infos.extend(metrics)
    summary.value[0].metadata.plugin_data.content = data.SerializeToString()
    return summary


def _kind(value: str | float | bool) -> int:
    if isinstance(value, bool):
        return int(api_pb2.DATA_TYPE_BOOL)
    return int(api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64)


def _show(value: str | float | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9=,._+-]", "_", text) or "_"
