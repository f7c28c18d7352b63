"""Media as `wandb` has them: what a user makes, and how a run logs it."""

import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.integrations import media
from trieye.run.media import array_of, number_of
from trieye.run.run import Run


class Media:
    """Something that is no number."""

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it to a run."""
        raise NotImplementedError


class Image(Media):
    """A picture: an array `[height, width, channels]`, a tensor `[channels, height, width]`, a figure, or a file."""

    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **more: Any) -> None:
        del mode, more
        self._file = Path(data_or_path) if isinstance(data_or_path, str | os.PathLike) else None
        self._picture = None if self._file else _picture(data_or_path)
        self.caption = caption

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it as a picture; a caption becomes a text beside it."""
        if self._file:
            run.log_artifact(self._file, f"media/images/{name}")
        else:
            run.log_image(name, self._picture, step)
        if self.caption:
            run.log_text(f"{name}/caption", self.caption, step)


class Images(Media):
    """Several pictures or other media under one name."""

    def __init__(self, items: Sequence[Media]) -> None:
        self._items = items

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log each with its number."""
        for number, item in enumerate(self._items):
            item.log_to(run, f"{name}/{number}" if len(self._items) > 1 else name, step)


class Histogram(Media):
    """The distribution of numbers, or one that NumPy has made."""

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        if (sequence is None) == (np_histogram is None):
            raise ConfigurationError("Histogram: give either a sequence or np_histogram")
        self._bins: Any = num_bins
        if np_histogram is not None:
            counts, edges = (np.asarray(part, np.float64) for part in np_histogram)
            self._values = np.repeat((edges[1:] + edges[:-1]) / 2.0, counts.astype(np.int64))
            self._bins = edges.tolist()
        else:
            self._values = array_of("Histogram", sequence).astype(np.float64).reshape(-1)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it as a histogram; of nothing there is none."""
        if np.isfinite(self._values).any():
            run.log_histogram(name, self._values, step, self._bins)


class Video(Media):
    """A video: an array `[time, channels, height, width]`, several of them, or a file."""

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        del caption
        self._file = Path(data_or_path) if isinstance(data_or_path, str | os.PathLike) else None
        self._frames = None if self._file else _frames(data_or_path)
        self._fps, self._format = fps or 4, format

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it as a video; a file is kept as it is."""
        if self._file:
            run.log_artifact(self._file, f"media/videos/{name}")
        else:
            run.log_video(name, self._frames, step, fps=self._fps, format="mp4" if self._format == "mp4" else "gif")


class Table(Media):
    """Rows of columns; a data frame is one."""

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        data: Any = None,
        dataframe: Any = None,
        **more: Any,
    ) -> None:
        del more
        frame = dataframe if dataframe is not None else data if hasattr(data, "columns") else None
        if frame is not None:
            columns, data = [str(name) for name in frame.columns], frame.to_numpy().tolist()
        self.columns = list(columns or ["Input", "Output", "Expected"])
        self.data: list[list[Any]] = [list(row) for row in data] if data is not None else []

    def add_data(self, *row: Any) -> None:
        """Add a row.

        Raises:
            ValueError: It has another number of cells than there are columns.
        """
        if len(row) != len(self.columns):
            raise ValueError(f"this table has {len(self.columns)} columns, and the row has {len(row)} cells")
        self.data.append(list(row))

    def add_column(self, name: str, data: Sequence[Any]) -> None:
        """Add a column."""
        self.columns.append(name)
        for row, cell in zip(self.data, data, strict=True):
            row.append(cell)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it as a table; what is no plain cell is shown as a text."""
        cells = {column: [_cell(row[place]) for row in self.data] for place, column in enumerate(self.columns)}
        run.log_table(name, cells, step)


class Html(Media):
    """A page: its text, or a file."""

    def __init__(self, data: Any, inject: bool = True) -> None:
        del inject
        is_file = isinstance(data, os.PathLike) or (isinstance(data, str) and data.endswith(".html"))
        self._text = Path(data).read_text("utf-8") if is_file else data.read() if hasattr(data, "read") else str(data)

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Keep it as a file of the run."""
        media.keep_text(run, f"media/html/{name}", f"{step}.html", self._text)


class Text(Media):
    """A text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text

    def log_to(self, run: Run, name: str, step: int) -> None:
        """Log it as a text."""
        media.log_text(run, name, self._text, step)


class Artifact:
    """Files under a name, which `log_artifact` keeps.

    Attributes:
        name, type, description, metadata: As given.
        files: (file, its name in the artifact).
    """

    def __init__(
        self,
        name: str,
        type: str,  # noqa: A002 - as wandb calls it
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.type, self.description, self.metadata = name, type, description, dict(metadata or {})
        self.files: list[tuple[Path, str]] = []

    def add_file(self, local_path: str | os.PathLike[str], name: str | None = None) -> None:
        """Add a file.

        Raises:
            ConfigurationError: There is none.
        """
        path = Path(local_path)
        if not path.is_file():
            raise ConfigurationError(f"Artifact.add_file({str(local_path)!r}): there is no such file")
        self.files.append((path, name or path.name))

    def add_dir(self, local_path: str | os.PathLike[str], name: str | None = None) -> None:
        """Add all files below a directory."""
        root = Path(local_path)
        if not root.is_dir():
            raise ConfigurationError(f"Artifact.add_dir({str(local_path)!r}): there is no such directory")
        inside = [path for path in sorted(root.rglob("*")) if path.is_file()]
        self.files += [(path, (Path(name or "") / path.relative_to(root)).as_posix()) for path in inside]


def medium_of(name: str, value: Any) -> float | Media | None:
    """Return a number as a float, what else there is as `Media`, and None for what is empty.

    Raises:
        ValueError: It is an integer beyond the range of a float.
    """
    if value is None or isinstance(value, Media):
        return value
    if isinstance(value, numbers.Real | np.bool_):
        return number_of(name, value)
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Media) for item in value):
        return Images(value)
    if callable(getattr(value, "savefig", None)) or hasattr(value, "getbands"):
        return Image(value)
    return Table(dataframe=value) if hasattr(value, "columns") else _medium_of_numbers(value)


def _medium_of_numbers(value: Any) -> float | Media | None:
    try:
        array = array_of("wandb.log", value)
    except TypeError:  # texts, lists of several lengths, objects
        return Text(str(value))
    if array.size == 1:
        return float(array.reshape(-1)[0])
    return Histogram(array) if array.size else None


def _picture(given: Any) -> Any:
    """Return what a picture shows now, whatever becomes of what it is given as."""
    if hasattr(given, "getbands"):
        return given.copy()
    if callable(getattr(given, "savefig", None)):
        return media.drawn("Image", given.gcf() if hasattr(given, "gcf") else getattr(given, "figure", given))
    return _colors(array_of("Image", given))


def _frames(given: Any) -> Any:
    array = array_of("Video", given)
    return _colors(np.concatenate(list(array), axis=-1) if array.ndim == 5 else array)  # noqa: PLR2004 - several videos


def _colors(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a copy as uint8; floats go to 1 or to 255."""
    scale = 255.0 if array.dtype.kind == "f" and array.size and float(np.nanmax(array)) <= 1.0 else 1.0
    return np.clip(np.nan_to_num(array.astype(np.float64)) * scale, 0, 255).astype(np.uint8)


def _cell(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)
