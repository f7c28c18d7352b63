"""Reads the scalars and parameters in event files of any writer."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trieye.exceptions import SerializationError
from trieye.sinks.tensorboard.files import unframed
from trieye.sinks.tensorboard.summaries import SESSION_START

_CELL = re.compile(r"^\|([^|\n]+)\|([^\n]*)\|\s*$", re.MULTILINE)
"""A row of the Markdown table in which CleanRL stores its parameters."""


class Scalar(NamedTuple):
    """One value of a scalar."""

    step: int
    value: float
    wall_time: float


def scalars_in(
    files: Sequence[Path], note: Callable[[Path, str], None], media: dict[str, set[str]] | None = None
) -> dict[str, list[Scalar]]:
    """Return the scalars of a run by tag.

    As in TensorBoard, a session that restarts at a step replaces all values from that step on.

    Args:
        files: The event files of the run, sorted by name.
        note: Called with the path and the reason for a truncated or damaged file; the values before that point count.
        media: Filled with the tags of images, histograms, texts and others, by their kind.
    """
    from tensorboard.compat.proto.event_pb2 import SessionLog

    scalars: dict[str, list[Scalar]] = {}
    for path in files:
        for event in _events(path, None, note):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                scalars = {tag: [item for item in items if item.step < event.step] for tag, items in scalars.items()}
            for value in event.summary.value:
                scalar = _number(value)
                if scalar is not None:
                    scalars.setdefault(value.tag, []).append(Scalar(event.step, scalar, event.wall_time))
                elif media is not None and (kind := _kind(value)) is not None:
                    media.setdefault(kind, set()).add(value.tag)
    return {tag: items for tag, items in scalars.items() if items}


def params_of(files: Sequence[Path], max_bytes: int | None = None) -> tuple[dict[str, Any], float | None]:
    """Return the parameters in the first bytes of event files (None: in all), and the wall time of the first event.

    Parameters are read from the HParams plugin's data, and from a table in a text `hyperparameters`, CleanRL's format.
    """
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    params: dict[str, Any] = {}
    began: float | None = None
    for path in files:
        for event in _events(path, max_bytes, lambda path, reason: None):  # noqa: ARG005 - cut on purpose
            began = event.wall_time if began is None else min(began, event.wall_time)
            for value in event.summary.value:
                if value.tag == SESSION_START:
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    hparams = data.session_start_info.hparams
                    params |= {name: _whole(getattr(item, item.WhichOneof("kind"))) for name, item in hparams.items()}
                elif value.tag.startswith("hyperparameters") and value.tensor.string_val:
                    params |= params_in_text(value.tensor.string_val[0].decode(errors="replace"))
    return params, began


def params_in_text(text: str) -> dict[str, str]:
    """Return the parameters in a Markdown table with two columns, CleanRL's format."""
    rows = [(key.strip(), text_value.strip()) for key, text_value in _CELL.findall(text)]
    return {key: text_value for key, text_value in rows if key != "param" and set(key) != {"-"}}


def _events(path: Path, max_bytes: int | None, note: Callable[[Path, str], None]) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        with path.open("rb") as file:
            data = file.read(-1 if max_bytes is None else max_bytes)
        for record in unframed(data):
            yield Event.FromString(record)
    except (OSError, SerializationError, DecodeError) as error:
        note(path, str(error))


def _number(value: Any) -> float | None:
    """Return the value of a scalar in the format of TensorFlow 1 or 2; None for an image, a text or a histogram."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name not in {"", "scalars"}:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(-1)[0]) if array.size == 1 and np.issubdtype(array.dtype, np.number) else None


def _kind(value: Any) -> str | None:
    """Return the kind of a non-scalar value; None for parameters, and after the first value of a TF2 series."""
    kind: str | None = value.metadata.plugin_data.plugin_name or value.WhichOneof("value")
    if kind in {None, "tensor", "hparams"} or value.tag.startswith("hyperparameters"):
        return None
    return {"histo": "histograms", "image": "images", "text": "texts"}.get(kind, kind)


def _whole(value: Any) -> Any:
    """Convert an integral float to int: the HParams plugin stores floats only."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
