"""Conversion of images, videos, figures and texts from the forms of other loggers to arrays of a run."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import printable
from trieye.files.atomic import write_atomic
from trieye.run.media import MAX_TEXT_BYTES, array_of
from trieye.run.run import Run

Picture = NDArray[np.uint8]
"""`[height, width, channels]`."""

_IN_A_ROW = 8
_SHOWN = 10_000


def picture(title: str, data: Any, axes: str) -> Picture:
    """Convert an array or a tensor to an image; a batch becomes one image with eight per row.

    Args:
        title: Prefix of error messages.
        data: uint8, or numbers in [0, 1].
        axes: Order of the axes, such as `CHW` or `NCHW`.

    Raises:
        TypeError: The data is not numeric.
        ValueError: `axes` does not fit the shape.
    """
    array, axes = array_of(title, data), axes.upper()
    if len(axes) != array.ndim or set(axes) - set("NHWC") or not {"H", "W"} <= set(axes):
        raise ValueError(f"{title}: dataformats={axes!r} does not name the axes of an array of shape {array.shape}")
    if array.dtype != np.uint8:
        array = np.clip(array.astype(np.float32) * 255.0, 0.0, 255.0).astype(np.uint8)
    array = array.transpose([axes.index(axis) for axis in "NHWC" if axis in axes])
    if "C" not in axes:
        array = array[..., None]
    return _tiled(list(array)) if "N" in axes else array


def frames(title: str, videos: Any) -> NDArray[np.uint8]:
    """Place videos `[videos, time, channels, height, width]` side by side in `[time, height, width, channels]`.

    Args:
        title: Prefix of error messages.
        videos: uint8, or numbers in [0, 1].

    Raises:
        TypeError: The data is not numeric.
        ValueError: The data does not have five axes.
    """
    array = array_of(title, videos)
    if array.ndim != 5:  # noqa: PLR2004 - the axes of torch's add_video
        raise ValueError(f"{title}: a video is [videos, time, channels, height, width], not {array.shape}")
    return np.stack([picture(title, array[:, time], "NCHW") for time in range(array.shape[1])])


def drawn(title: str, figure: Any, *, close: bool = False) -> Picture:
    """Render a matplotlib figure, or a list of figures in one image.

    Args:
        title: Prefix of error messages.
        figure: The figure or the list.
        close: Whether to close the figures in pyplot afterwards.

    Raises:
        TypeError: An item is no figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    pictures, figures = list[Picture](), figure if isinstance(figure, list) else [figure]
    for one in figures:
        if not callable(getattr(one, "savefig", None)):
            raise TypeError(f"{title}: expected a matplotlib figure, got {type(one).__name__}")
        canvas: Any = FigureCanvasAgg(one)  # it has no types
        canvas.draw()
        pictures.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    if close:
        import matplotlib.pyplot as plt

        for one in figures:
            plt.close(one)
    return _tiled(_same_size(pictures))


def _tiled(pictures: list[Picture]) -> Picture:
    """Tile images of equal size into one."""
    across = min(len(pictures), _IN_A_ROW)
    cells = [*pictures, *[np.zeros_like(pictures[0])] * (-len(pictures) % across)]
    rows = [np.concatenate(cells[first : first + across], axis=1) for first in range(0, len(cells), across)]
    return np.concatenate(rows, axis=0)


def _same_size(pictures: list[Picture]) -> list[Picture]:
    height, width = (max(one.shape[axis] for one in pictures) for axis in (0, 1))
    return [np.pad(one, ((0, height - one.shape[0]), (0, width - one.shape[1]), (0, 0))) for one in pictures]


def log_text(run: Run, name: str, text: str, step: int) -> None:
    """Log a text; a text above the size limit is truncated, and stored in full as an artifact.

    Raises:
        TypeError: The text is not a string.
    """
    if isinstance(text, str) and len(text) * 4 > MAX_TEXT_BYTES < len(printable(text).encode()):
        folder, file_name = f"media/text/{name}", f"{step}.txt"
        keep_text(run, folder, file_name, text)
        text = f"{text[:_SHOWN]} ...\n\n{len(text):,} characters; full text in artifact {folder}/{file_name}"
    run.log_text(name, text, step)


def keep_text(run: Run, folder: str, file_name: str, text: str) -> None:
    """Store a text as an artifact of a run."""
    keep_file(run, folder, file_name, printable(text).encode())


def keep_file(run: Run, folder: str, file_name: str, content: bytes) -> None:
    """Store bytes as an artifact of a run."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / file_name
        write_atomic(path, content, is_lasting=False)
        run.log_artifact(path, folder)
