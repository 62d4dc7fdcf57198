"""TensorBoard's events of a configuration and of a sweep, written without torch or TensorFlow.

Tags are named so that their groups stand in this order: performance, replacement, speed, state, summary, support.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalar
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from cbp_ray.results.curve_summary import CurveSummary
from cbp_ray.results.run_names import Settings

REPLACEMENT = ("replacements", "nonfinite_utilities", "age", "utility")
"""Metrics about generate-and-test at work."""
SPEED = ("examples_per_second",)
FIRST_STEP = 1
"""All points have at least this step: what stands at 0 is about the run and stays when points are replaced."""


@dataclass(frozen=True)
class Chart:
    """A chart with bands of some configurations of a sweep. Its number tells its tags from those of other charts."""

    title: str
    number: int | None = None
    """None for the only chart."""

    @property
    def tags(self) -> tuple[str, str]:
        """Tags of the lower and the upper end of the band."""
        end = "" if self.number is None else f"_{self.number:02}"
        return f"support/lower{end}", f"support/upper{end}"


def encode(events: Iterable[event_pb2.Event], *, begins: bool = True) -> bytes:
    """Events as the content of a TensorBoard file, or as what can be appended to one."""
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    if begins:
        writer.write(event_pb2.Event(file_version="brain.Event:2").SerializeToString())
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()


def about_run(name: str, settings: Settings) -> Iterable[event_pb2.Event]:
    """The hyper-parameters of a run."""
    yield event_pb2.Event(step=0, summary=summary_v2.hparams_pb(settings, trial_id=name, start_time_secs=0))


def points(summary: CurveSummary, chart: Chart, *, first: int, replaces: bool, complete: bool) -> Iterable[event_pb2.Event]:
    """The points of a run from bin number `first` on.

    Args:
      summary: all bins so far.
      chart: where the band is drawn.
      first: number of the first bin to write.
      replaces: whether TensorBoard may have seen these points, or others behind them, before.
      complete: whether to sum up the run, whose points are then all written.
    """
    if replaces:
        # TensorBoard forgets what it has read from this step on. Its fast loader goes by the steps alone, with the same effect.
        step = FIRST_STEP if first == 0 else int(summary.examples[first])
        yield event_pb2.Event(step=step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    judged, band = summary.performance, summary.interval()
    lower, upper = chart.tags
    columns = {f"performance/{judged}": band.estimate}
    columns |= {_tag(name): values for name, values in summary.means.items() if name != judged}
    columns |= {lower: band.low, upper: band.high, "support/seeds": summary.seeds}
    for index in range(first, len(summary.examples)):
        values = {tag: float(column[index]) for tag, column in columns.items()}
        yield _scalars(int(summary.examples[index]), {tag: value for tag, value in values.items() if np.isfinite(value)})
    if complete and len(band.estimate):
        whole, end = float(band.estimate.mean()), float(band.estimate[-1])
        values = {f"summary/{judged}_whole_run": whole, f"summary/{judged}_end": end}
        yield _scalars(int(summary.examples[-1]), {tag: value for tag, value in values.items() if np.isfinite(value)})


def _tag(name: str) -> str:
    return f"{'replacement' if name in REPLACEMENT else 'speed' if name in SPEED else 'state'}/{name}"


def _scalars(step: int, values: dict[str, float]) -> event_pb2.Event:
    entries = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    # Wall time stays 0: the same results give the same file.
    return event_pb2.Event(step=step, summary=summary_pb2.Summary(value=entries))


def about_sweep(metric: str, columns: Settings, charts: Sequence[Chart]) -> Iterable[event_pb2.Event]:
    """What is common to all runs: the columns of the hyper-parameters tab and the charts with bands."""
    tags = {f"summary/{metric}_whole_run": None, f"summary/{metric}_end": None, "support/seeds": "seeds"}
    infos = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=name or tag.partition("/")[2])
        for tag, name in tags.items()
    ]
    settings = [api_pb2.HParamInfo(name=name, type=_kind(value)) for name, value in columns.items()]
    summary = summary_v2.hparams_config_pb([], [], time_created_secs=0)
    data = plugin_data_pb2.HParamsPluginData.FromString(summary.value[0].metadata.plugin_data.content)
    data.experiment.hparam_infos.extend(settings)
    data.experiment.metric_infos.extend(infos)
    summary.value[0].metadata.plugin_data.content = data.SerializeToString()
    yield event_pb2.Event(step=0, summary=summary)
    drawn = []
    # The dashboard shows the last one first.
    for chart in reversed(charts):
        lower, upper = chart.tags
        series = layout_pb2.MarginChartContent.Series(value=f"performance/{metric}", lower=lower, upper=upper)
        drawn.append(layout_pb2.Chart(title=chart.title, margin=layout_pb2.MarginChartContent(series=[series])))
    title = f"{metric}, mean over seeds with its 95% confidence interval"
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title=title, chart=drawn)])
    value = summary_pb2.Summary.Value(
        tag=custom_scalar.CONFIG_SUMMARY_TAG,
        metadata=custom_scalar.create_summary_metadata(),
        # The plugin's own helper would need TensorFlow for this line.
        tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[layout.SerializeToString()]),
    )
    yield event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[value]))


def picture(name: str, png: bytes) -> event_pb2.Event:
    """A figure, the content of a PNG file, for the Images tab."""
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    image = summary_pb2.Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
    return event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, image=image)]))


def _kind(value: str | float | bool) -> int:
    if isinstance(value, bool):
        return int(api_pb2.DATA_TYPE_BOOL)
    return int(api_pb2.DATA_TYPE_STRING if isinstance(value, str) else api_pb2.DATA_TYPE_FLOAT64)
