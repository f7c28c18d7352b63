"""What event files show: the scalars and parameters in those of a directory, whoever wrote them."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trieye.exceptions import SerializationError
from trieye.sinks.tensorboard.files import unframed

_CELL = re.compile(r"^\|([^|\n]+)\|([^\n]*)\|\s*$", re.MULTILINE)
"""A row of the table that CleanRL writes its parameters in."""


class Scalar(NamedTuple):
    """One value of a scalar."""

    step: int
    value: float
    wall_time: float


def scalars_in(
    files: Sequence[Path], note: Callable[[Path, str], None], media: dict[str, set[str]] | None = None
) -> dict[str, list[Scalar]]:
    """Return the scalars of a run by their tag.

    As TensorBoard does, a session that starts again at a step takes the place of what was there from that step on.

    Args:
        files: Its event files, in the order of their names.
        note: Called for a file that is cut or damaged, whose values up to there count.
        media: Filled with the tags of images, histograms, texts and others, by their kind.
    """
    from tensorboard.compat.proto.event_pb2 import SessionLog

    found: dict[str, list[Scalar]] = {}
    for path in files:
        for event in _events(path, None, note):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                found = {tag: [one for one in held if one.step < event.step] for tag, held in found.items()}
            for value in event.summary.value:
                number = _number(value)
                if number is not None:
                    found.setdefault(value.tag, []).append(Scalar(event.step, number, event.wall_time))
                elif media is not None and (kind := _kind(value)) is not None:
                    media.setdefault(kind, set()).add(value.tag)
    return {tag: held for tag, held in found.items() if held}


def params_of(files: Sequence[Path], first_bytes: int) -> tuple[dict[str, Any], float | None]:
    """Return the parameters that stand in the first bytes of event files, and the wall time of the first event.

    They are those of the HParams dashboard, or of a text `hyperparameters` that is a table, as CleanRL writes it.
    """
    from tensorboard.plugins.hparams import metadata

    params: dict[str, Any] = {}
    began: float | None = None
    for path in files:
        for event in _events(path, first_bytes, lambda path, reason: None):  # noqa: ARG005 - cut on purpose
            began = event.wall_time if began is None else min(began, event.wall_time)
            for value in event.summary.value:
                if value.tag == metadata.SESSION_START_INFO_TAG:
                    held = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content).hparams
                    params |= {name: _whole(getattr(one, one.WhichOneof("kind"))) for name, one in held.items()}
                elif value.tag.startswith("hyperparameters") and value.tensor.string_val:
                    params |= params_in_text(value.tensor.string_val[0].decode(errors="replace"))
    return params, began


def params_in_text(text: str) -> dict[str, str]:
    """Return the parameters in a Markdown table of two columns, as CleanRL writes it."""
    rows = [(key.strip(), shown.strip()) for key, shown in _CELL.findall(text)]
    return {key: shown for key, shown in rows if key != "param" and set(key) != {"-"}}


def _events(path: Path, first_bytes: int | None, note: Callable[[Path, str], None]) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        with path.open("rb") as file:
            data = file.read(-1 if first_bytes is None else first_bytes)
        for record in unframed(data):
            yield Event.FromString(record)
    except (OSError, SerializationError, DecodeError) as error:
        note(path, str(error))


def _number(value: Any) -> float | None:
    """Return the value of a scalar, as TensorFlow 1 or 2 writes it; None for a picture, a text or a histogram."""
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
    """Return the kind of a value that is no scalar; None for parameters, and after the first value of a TF2 series."""
    plugin = value.metadata.plugin_data.plugin_name or {"histo": "histograms"}.get(value.WhichOneof("value") or "", "")
    plugin = plugin or {"image": "images", "audio": "audio"}.get(value.WhichOneof("value") or "", "")
    if not plugin or plugin == "hparams" or value.tag.startswith("hyperparameters"):
        return None
    return {"text": "texts"}.get(plugin, plugin)


def _whole(value: Any) -> Any:
    """Return a number as an int if it is one: the dashboard has floats only."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
