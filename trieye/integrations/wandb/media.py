"""The media types of `wandb`, logged to a run."""

import io
import json
import numbers
import os
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import printable
from trieye.exceptions import ConfigurationError
from trieye.integrations import media
from trieye.run.media import array_of, number_of
from trieye.run.run import Run

PathLike = str | os.PathLike[str]
_PATHS = (str, os.PathLike)


class Media:
    """A value other than a number."""

    caption: str | None = None

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log the value to a run, and its caption as a text."""
        self._log(run, name, step)
        if self.caption:
            run.log_text(f"{name}/caption", self.caption, step)

    def _log(self, run: Run, name: str, step: int) -> None:
        raise NotImplementedError


class File(Media):
    """A sound, a molecule, a scene or a page: a file, an open file, or data that is stored as JSON."""

    folder = ""

    def __init__(self, data_or_path: Any, caption: str | None = None, **_: Any) -> None:
        self.caption = caption
        self._path = Path(data_or_path) if isinstance(data_or_path, _PATHS) else None
        self._content: Any = None if self._path else self._copied(data_or_path)

    def _copied(self, data: Any) -> Any:
        """Copy the data, so that later changes do not affect it: here, return bytes and a file suffix."""
        if hasattr(data, "read"):
            content = data.read()
            return content if isinstance(content, bytes) else content.encode(), Path(getattr(data, "name", "")).suffix
        return json.dumps(data, default=_plain).encode(), ".json"

    def _log(self, run: Run, name: str, step: int) -> None:
        if self._path:
            run.log_artifact(self._path, f"{self._folder_of(name)}/{step}")
        else:
            self._log_content(run, name, step)

    def _log_content(self, run: Run, name: str, step: int) -> None:
        content, suffix = self._content
        media.keep_file(run, self._folder_of(name), f"{step}{suffix}", content)

    def _folder_of(self, name: str) -> str:
        return f"media/{self.folder or type(self).__name__.lower()}/{name}"


class Image(File):
    """An image: an array `[height, width, channels]`, a tensor `[channels, height, width]`, a figure, or a file.

    Masks are logged as images of their class numbers; boxes and class names are stored as a JSON file.
    """

    folder = "images"

    def __init__(
        self,
        data_or_path: Any,
        mode: str | None = None,
        caption: str | None = None,
        grouping: int | None = None,
        classes: Any = None,
        boxes: Mapping[str, Any] | None = None,
        masks: Mapping[str, Any] | None = None,
        file_type: str | None = None,
    ) -> None:
        del mode, grouping, file_type
        super().__init__(data_or_path, caption)
        parts = {name: dict(mask) for name, mask in (masks or {}).items()}
        masks = {name: mask.pop("mask_data", None) for name, mask in parts.items()}
        self._masks = {name: np.array(array_of("Image", data)) for name, data in masks.items() if data is not None}
        labels = {"classes": getattr(classes, "class_set", classes), "boxes": boxes, "masks": parts}
        self._labels = {name: value for name, value in labels.items() if value}

    def _copied(self, data: Any) -> Any:
        if hasattr(data, "getbands"):
            return data.copy()
        if callable(getattr(data, "savefig", None)):
            return media.drawn("Image", data.gcf() if hasattr(data, "gcf") else getattr(data, "figure", data))
        return _colors(array_of("Image", data))

    def _log(self, run: Run, name: str, step: int) -> None:
        super()._log(run, name, step)
        for mask, classes in self._masks.items():
            run.log_image(f"{name}/masks/{mask}", np.clip(classes, 0, 255).astype(np.uint8), step)
        if self._labels:
            media.keep_text(run, self._folder_of(name), f"{step}.json", json.dumps(self._labels, default=_plain))

    def _log_content(self, run: Run, name: str, step: int) -> None:
        run.log_image(name, self._content, step)


class Video(File):
    """A video: an array `[time, channels, height, width]`, several of them, or a file."""

    folder = "videos"

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(data_or_path, caption)
        self._fps, self._format = fps or 4, format

    def _copied(self, data: Any) -> Any:
        array = array_of("Video", data)
        return _colors(np.concatenate(list(array), axis=-1) if array.ndim == 5 else array)  # noqa: PLR2004 - several

    def _log_content(self, run: Run, name: str, step: int) -> None:
        run.log_video(name, self._content, step, fps=self._fps, format="mp4" if self._format == "mp4" else "gif")


class Html(File):
    """An HTML page, from its text or a file."""

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        del inject
        is_path = isinstance(data, os.PathLike) or (isinstance(data, str) and data.endswith(".html"))
        is_file = is_path and not data_is_not_path
        text = Path(data).read_text("utf-8") if is_file else data.read() if hasattr(data, "read") else str(data)
        self._path, self._content = None, (printable(text).encode(), ".html")


class Audio(File):
    """A sound: a file, or samples in [-1, 1], `[time]` or `[time, channels]`, with a `sample_rate` in Hz."""

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        if sample_rate is None and not isinstance(data_or_path, _PATHS):
            raise ConfigurationError("Audio: samples need a sample_rate")
        self._rate = sample_rate or 0
        super().__init__(data_or_path, caption)

    def _copied(self, data: Any) -> Any:
        samples = array_of("Audio", data)
        if samples.dtype.kind == "f":
            samples = np.clip(np.nan_to_num(samples), -1.0, 1.0) * 32767
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setparams((1 if samples.ndim == 1 else samples.shape[1], 2, self._rate, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
        return buffer.getvalue(), ".wav"


class Object3D(File):
    """A point cloud or a scene, as data or a file."""


class Molecule(File):
    """A molecule in a file."""


class Plotly(File):
    """A Plotly figure, stored as a page."""

    def _copied(self, data: Any) -> Any:
        return str(data.to_html()).encode(), ".html"


class Images(Media):
    """Several images or other media under one name."""

    def __init__(self, items: Sequence[Media]) -> None:
        self._items = items

    def _log(self, run: Run, name: str, step: int) -> None:
        for index, item in enumerate(self._items):
            item.log_to(run, f"{name}/{index}" if len(self._items) > 1 else name, step)


class Histogram(Media):
    """The distribution of an array, or a histogram from `numpy.histogram`."""

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        if (sequence is None) == (np_histogram is None):
            raise ConfigurationError("Histogram: give either a sequence or np_histogram")
        self._bins: Any = num_bins
        self._weights: NDArray[np.float64] | None = None
        if np_histogram is not None:
            self._weights, edges = (np.asarray(part, np.float64) for part in np_histogram)
            sequence, self._bins = (edges[1:] + edges[:-1]) / 2.0, edges.tolist()
        self._values = array_of("Histogram", sequence).astype(np.float64).reshape(-1)

    def _log(self, run: Run, name: str, step: int) -> None:
        if np.isfinite(self._values).any():
            run.log_histogram(name, self._values, step, self._bins, weights=self._weights)


class Table(Media):
    """Rows and columns, or a data frame. Cells that are images or other media are logged under the table's name."""

    def __init__(
        self, columns: Sequence[str] | None = None, data: Any = None, rows: Any = None, dataframe: Any = None, **_: Any
    ) -> None:
        data = rows if data is None else data
        frame = dataframe if dataframe is not None else data if hasattr(data, "columns") else None
        if frame is not None:
            columns, data = [str(name) for name in frame.columns], frame.to_numpy().tolist()
        self.columns = ["Input", "Output", "Expected"] if columns is None else list(columns)
        self.data: list[list[Any]] = []
        for row in () if data is None else data:
            self.add_data(*row)

    def add_data(self, *row: Any) -> None:
        """Add a row.

        Raises:
            ValueError: The numbers of cells and columns differ.
        """
        if len(row) != len(self.columns):
            raise ValueError(
                f"row {len(self.data)}: the table has {len(self.columns)} columns, the row {len(row)} cells"
            )
        self.data.append(list(row))

    add_row = add_data

    def add_column(self, name: str, data: Any, optional: bool = False) -> None:
        """Add a column; the first one creates the rows."""
        del optional
        cells = list(data)
        self.data = self.data if self.columns else [[] for _ in cells]
        self.columns.append(name)
        for row, cell in zip(self.data, cells, strict=True):
            row.append(cell)

    def add_computed_columns(self, fn: Callable[[int, dict[str, Any]], Mapping[str, Any]]) -> None:
        """Add columns from `fn(row_number, {column: cell})`, which returns the new cells of a row by column."""
        new_columns = [fn(index, dict(zip(self.columns, row, strict=True))) for index, row in self.iterrows()]
        for name in new_columns[0] if new_columns else ():
            self.add_column(name, [values[name] for values in new_columns])

    def get_column(self, name: str, convert_to: str | None = None) -> Any:
        """Return the cells of a column as a list, or as an array with `convert_to="numpy"`."""
        cells = [row[self.columns.index(name)] for row in self.data]
        return np.array(cells) if convert_to == "numpy" else cells

    def get_dataframe(self) -> Any:
        """Return the table as a pandas data frame."""
        return import_module("pandas").DataFrame(self.data, columns=self.columns)

    def get_index(self) -> list[int]:
        """Return the numbers of the rows."""
        return list(range(len(self.data)))

    def iterrows(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number and the cells of each row."""
        return iter(enumerate(self.data))

    def set_pk(self, *_: Any, **__: Any) -> None:
        """Do nothing: tables of a run have no keys."""

    set_fk = cast = set_pk

    def _log(self, run: Run, name: str, step: int) -> None:
        """Log the table; objects are shown as text, media cells as the names under which they are logged."""
        cells: dict[str, list[Any]] = {column: [] for column in self.columns}
        for index, row in self.iterrows():
            for column, cell in zip(self.columns, row, strict=True):
                medium_name = f"{name}/{column}/{index}"
                if isinstance(cell, Media):
                    cell.log_to(run, medium_name, step)
                cells[column].append(medium_name if isinstance(cell, Media) else _cell(cell))
        run.log_table(name, cells, step)


class Text(Media):
    """A text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def _log(self, run: Run, name: str, step: int) -> None:
        media.log_text(run, name, self._text, step)


def medium_of(name: str, value: Any) -> float | Media | None:
    """Convert a number to a float, an empty value to None, and everything else to `Media`.

    Raises:
        ValueError: An integer is beyond the range of a float.
    """
    if value is None or isinstance(value, Media):
        return value
    if isinstance(value, numbers.Real | np.bool_) or value is np.ma.masked:
        return number_of(name, value)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Media) for item in value):
        return Images(value)
    for attribute, kind in _KINDS.items():
        if hasattr(value, attribute):
            return kind(value)
    try:
        array = array_of("wandb.log", value)
    except TypeError:  # ragged lists, objects
        return Text(str(value))
    return Histogram(array) if array.size > 1 else float(array.reshape(-1)[0]) if array.size else None


_KINDS: Mapping[str, Callable[[Any], Media]] = {
    "casefold": lambda text: Text(str(text)),
    "savefig": Image,
    "getbands": Image,
    "to_plotly_json": Plotly,
    "columns": lambda frame: Table(dataframe=frame),
}
"""Media types of the objects of other libraries, by an attribute of these objects."""


def _colors(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a uint8 copy; floats range to 1 or to 255."""
    scale = 255.0 if array.dtype.kind == "f" and array.size and float(np.nanmax(array)) <= 1.0 else 1.0
    return np.clip(np.nan_to_num(array.astype(np.float64)) * scale, 0, 255).astype(np.uint8)


def _cell(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def _plain(value: Any) -> Any:
    """Convert an array to a list and other objects to text, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
