"""Encodes points, media and parameters as TensorBoard events, the input of `frame`."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trieye.config.names import printable
from trieye.sinks.base import RunInfo
from trieye.stats.operations import Cell, LogHistogram, LogImage, LogTable, LogText, LogVideo, Medium, typed
from trieye.stats.point import Point

SESSION_START = "_hparams_/session_start_info"
"""Tag of the parameters of a run in the HParams dashboard."""
_MAX_VALUES_PER_EVENT = 64
_BEFORE_ALL_STEPS = -(2**63)
_MAX_ROWS_SHOWN = 500
"""Maximum rows of a table; a browser needs seconds for thousands."""
_MARKDOWN = re.compile(r"[\\`*_\[\]|]")


def header(*, restarted: bool) -> list[bytes]:
    """Return the initial events of a file.

    Args:
        restarted: Earlier files were emptied, and a running reader must discard their data. TensorBoard's Python
            loader does so at the second session start that it reads. Its data server needs no such event, because
            there a point replaces all points from its step on.
    """
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    now = time.time()
    start = Event(wall_time=now, step=_BEFORE_ALL_STEPS, session_log=SessionLog(status=SessionLog.START))
    return _serialized([Event(wall_time=now, file_version="brain.Event:2"), *([start, start] if restarted else [])])


def scalars(points: Sequence[Point]) -> list[bytes]:
    """Encode points; points that share step and wall time share an event, in the order of their first point."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    limit, new_value = _MAX_VALUES_PER_EVENT, Summary.Value
    groups: dict[tuple[int, float], list[Any]] = {}
    for point in points:
        value = new_value(tag=point.metric, simple_value=point.value)
        groups.setdefault((point.step, point.wall_time), []).append(value)
    return _serialized(
        Event(step=step, wall_time=wall_time, summary=Summary(value=values[start : start + limit]))
        for (step, wall_time), values in groups.items()
        for start in range(0, len(values), limit)
    )


def media(medium: Medium) -> list[bytes]:
    """Encode a histogram, an image or another medium; an MP4, which TensorBoard cannot show, yields no event."""
    from tensorboard.compat.proto.event_pb2 import Event

    match medium:
        case LogHistogram():
            summary = _histogram(medium)
        case LogImage():
            summary = _image(medium, medium.channels, medium.png)
        case LogText():
            summary = _text(medium.name, medium.text)
        case LogTable():
            summary = _text(medium.name, _markdown(medium))
        case LogVideo():
            if medium.format != "gif":
                return []
            # TensorBoard serves the bytes with the type of their magic number, and the browser plays the animation
            summary = _image(medium, 3, medium.content)
    return _serialized([Event(step=medium.step, wall_time=medium.wall_time, summary=summary)])


def session_start(params: Mapping[str, str], run: RunInfo) -> list[bytes]:
    """Encode the parameters of a run for the HParams dashboard; each run is a separate trial.

    TensorBoard's `hparams_pb` returns the same summary, but imports boto3 and 200 other modules, which takes 0.2 s.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_FLOAT
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(group_name=printable(run.run_name), start_time_secs=run.created)
    for name, text in params.items():
        value = _typed(printable(text))
        kind = "bool_value" if isinstance(value, bool) else "string_value" if isinstance(value, str) else "number_value"
        setattr(info.hparams[printable(name)], kind, value)
    content = HParamsPluginData(version=0, session_start_info=info).SerializeToString()
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=content))
    no_value = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=0)]))
    item = Summary.Value(tag=SESSION_START, metadata=metadata, tensor=no_value)
    return _serialized([Event(wall_time=run.created, summary=Summary(value=[item]))])


def _histogram(medium: LogHistogram) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    buckets = np.column_stack([medium.edges[:-1], medium.edges[1:], medium.counts]).astype(np.float64)
    metadata = create_summary_metadata(display_name=None, description=None)
    return Summary(
        value=[Summary.Value(tag=printable(medium.name), metadata=metadata, tensor=make_tensor_proto(buckets))]
    )


def _image(medium: LogImage | LogVideo, channels: int, content: bytes) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    image = Summary.Image(width=medium.width, height=medium.height, colorspace=channels, encoded_image_string=content)
    return Summary(value=[Summary.Value(tag=printable(medium.name), image=image)])


def _text(name: str, text: str) -> Any:
    from tensorboard.plugins.text.summary_v2 import text_pb

    return text_pb(printable(name), printable(text))


def _markdown(medium: LogTable) -> str:
    columns, rows = medium.rows()
    lines = [columns, ["---"] * len(columns), *([_escaped(cell) for cell in row] for row in rows[:_MAX_ROWS_SHOWN])]
    lines[0] = [_escaped(column) for column in columns]
    note = f"\n\n... and {len(rows) - _MAX_ROWS_SHOWN} more rows" if len(rows) > _MAX_ROWS_SHOWN else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + note


def _escaped(cell: Cell) -> str:
    text = "" if cell is None else " ".join(str(cell).split())
    return _MARKDOWN.sub(r"\\\g<0>", text).replace("<", "&lt;")


def _typed(text: str) -> bool | float | str:
    value = typed(text)
    # a seed of 64 bits would lose digits in the float of the dashboard
    return text if isinstance(value, int) and int(float(value)) != value else value


def _serialized(events: Iterable[Any]) -> list[bytes]:
    return [event.SerializeToString() for event in events]
