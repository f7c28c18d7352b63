"""What may be logged: numbers, histograms, pictures and texts, with errors that name the event."""

import io
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import printable
from trieye.stats.batch import MAX_CONTEXT_BYTES, context_bytes
from trieye.stats.operations import LogHistogram, LogImage, LogText

MAX_BINS = 10_000
MAX_PNG_BYTES = 16 * 2**20
MAX_TEXT_BYTES = 2**20

_BLOCK = 2**18
"""Values that are counted at once: they fit into the cache, and 1e8 of them need no second copy in memory."""
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_MAX_HALVES = 2**52
"""Beyond it a float has no place for the half between two integers."""
_COLOR_SLACK = 1e-3
"""How far beyond 0 and 1 a color may be, as those that were resampled are."""
_PLAIN = (str, int, float, bool, type(None))


def name_of(name: Any) -> str:
    """Return an event's name.

    Raises:
        TypeError: It is no string.
        ValueError: It is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"log({name!r}, ...): the name of an event is a string, and this is a {type(name).__name__}")
    if not name:
        raise ValueError("log('', ...): the name of an event is empty")
    return name


def number_of(name: str, value: Any) -> float:
    """Return a value as a float.

    Raises:
        TypeError: It is no number, NumPy scalar or tensor with one element.
        ValueError: It is a text that is no number, or an integer beyond the range of a float.
    """
    try:
        # torch warns when it makes a number of a tensor that a graph hangs on
        return float(value.detach() if getattr(value, "requires_grad", False) else value)
    except OverflowError as error:
        raise ValueError(f"log({name!r}, ...): the value is beyond the range of a float") from error
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"log({name!r}, {_shown(value)}): a value is one number: {error}") from error
    except ValueError as error:
        raise ValueError(f"log({name!r}, {_shown(value)}): a value is one number: {error}") from error


def step_of(name: str, step: Any) -> int:
    """Return a global step as an int.

    Raises:
        TypeError: It is no integer.
    """
    try:
        return operator.index(step)
    except TypeError as error:
        raise TypeError(f"log({name!r}, ..., step={_shown(step)}): a step is an integer") from error


def context_of(name: str, context: Any) -> dict[str, Any] | None:
    """Return a copy of a context with plain values, which can be sent to another process.

    Raises:
        TypeError: It is no mapping, or a value is neither a number, a text, a boolean nor None.
        ValueError: It is too large.
    """
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise TypeError(f"log({name!r}, ..., context={_shown(context)}): a context is a dict")
    plain = {str(key): _plain(name, key, value) for key, value in context.items()}
    if (size := context_bytes(plain)) > MAX_CONTEXT_BYTES:
        raise ValueError(
            f"log({name!r}, ...): the context takes {size:,} bytes, and at most {MAX_CONTEXT_BYTES:,} are kept; "
            "log_text and log_artifact keep more"
        )
    return plain


def _plain(name: str, key: Any, value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if callable(getattr(value, "item", None)):  # NumPy scalars and tensors
        return _plain(name, key, value.item())
    raise TypeError(f"log({name!r}, ...): context[{key!r}] is a {type(value).__name__}; only plain values can be kept")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal


def histogram(name: str, values: Any, *, bins: int | Sequence[float] = 64, step: int, time: float) -> LogHistogram:
    """Count values in bins of equal width between the smallest and the largest.

    Integers that span fewer numbers than there are bins get a bin for each number, and values that (nearly) agree get
    one bin around them. Values that are not finite are left out: the counts add up to those that are.

    Args:
        name: Name of the curve.
        values: Numbers or booleans of any shape: an array, a tensor on any device, or nested lists.
        bins: How many bins, at most `MAX_BINS`, or the borders between them, ascending.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: They are no real numbers.
        ValueError: None of them is finite, they span more than a float holds, or `bins` is out of range.
    """
    title, where = f"histogram {name!r}", place_of(name, step, time)
    num_bins = bins if isinstance(bins, int) else len(bins) - 1
    if not 1 <= num_bins <= MAX_BINS:
        raise ValueError(f"{title}: bins={num_bins}; between 1 and {MAX_BINS} are possible")
    array = array_of(title, values)
    low, high, total, sum_squares = _moments(title, array)
    if isinstance(bins, int):
        edges = _edges(low, high, bins, whole=array.dtype.kind in "bui")
    else:
        edges = np.asarray(bins, np.float64)
    if not np.isfinite(edges).all():
        raise ValueError(f"{title}: its values, from {low:g} to {high:g}, span more than a float holds")
    counts = np.zeros(len(edges) - 1)
    for block in _blocks(array):
        even = (len(counts), (edges[0], edges[-1])) if isinstance(bins, int) else (edges, None)
        counts += np.histogram(block, *even)[0]
    return LogHistogram(*where, edges.tolist(), counts.tolist(), total, sum_squares)


def figure(name: str, drawn: Any, *, step: int, time: float) -> LogImage:
    """Let a figure draw itself as PNG.

    Args:
        name: Name of the series.
        drawn: A matplotlib `Figure`, or anything else that has `savefig(file, format="png")`.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: It has no `savefig`.
        ValueError: It has more than `MAX_PNG_BYTES` as PNG.
    """
    from PIL import Image

    if not callable(getattr(drawn, "savefig", None)):
        hint = "; give its .figure" if callable(getattr(getattr(drawn, "figure", None), "savefig", None)) else ""
        raise TypeError(f"figure {name!r}: a {type(drawn).__name__} has no savefig(){hint}")
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png")
    return image(name, Image.open(buffer), step=step, time=time)


def image(name: str, picture: Any, *, step: int, time: float) -> LogImage:
    """Encode a picture as PNG.

    Args:
        name: Name of the series.
        picture: A Pillow image, or an array or a tensor of shape `[height, width]`, `[height, width, channels]` or
            `[channels, height, width]` with 1 (gray), 3 (RGB) or 4 (RGBA) channels: uint8, booleans, or floats within
            0 and 1.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: It is no picture, or its numbers are of another type.
        ValueError: It has another shape, colors out of range, or more than `MAX_PNG_BYTES` as PNG.
    """
    from PIL import Image

    title, where = f"image {name!r}", place_of(name, step, time)
    if isinstance(picture, Image.Image):
        pillow = plain_picture(title, picture)
    else:
        pillow = Image.fromarray(colors_of(title, pixels_of(title, array_of(title, picture))))
    buffer = io.BytesIO()
    pillow.save(buffer, "png")
    if buffer.tell() > MAX_PNG_BYTES:
        raise ValueError(
            f"{title}: its {pillow.width} x {pillow.height} pixels take {buffer.tell() / 2**20:.1f} MiB as PNG; at most"
            f" {MAX_PNG_BYTES // 2**20} MiB are possible, so make it smaller or save it with log_artifact"
        )
    return LogImage(*where, pillow.width, pillow.height, _CHANNELS[pillow.mode], buffer.getvalue())


def text(name: str, text: str, *, step: int, time: float) -> LogText:
    """Check a text.

    Args:
        name: Name of the series.
        text: Plain text or Markdown.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: It is no string.
        ValueError: It has more than `MAX_TEXT_BYTES` in UTF-8.
    """
    where = place_of(name, step, time)
    if not isinstance(text, str):
        raise TypeError(f"text {name!r}: a text is a string, and this is a {type(text).__name__}")
    shown = printable(text)
    size_bytes = len(shown.encode())
    if size_bytes > MAX_TEXT_BYTES:
        raise ValueError(
            f"text {name!r}: it has {size_bytes} bytes in UTF-8; at most {MAX_TEXT_BYTES} are possible,"
            " so shorten it or save it with log_artifact"
        )
    return LogText(*where, shown)


def place_of(name: str, step: int, time: float) -> tuple[str, int, float]:
    """Return name, step and time of a medium, checked."""
    number = step_of(name, step)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"log({name!r}, ..., step={number}): a step has at most 64 bits")
    return printable(name_of(name)), number, number_of(name, time)


def array_of(title: str, values: Any) -> NDArray[Any]:
    """Return numbers or booleans of any kind of array as one of NumPy.

    Raises:
        TypeError: They are something else.
    """
    if callable(getattr(values, "detach", None)):  # a torch tensor, perhaps on a GPU or with a gradient
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no such numbers
            values = values.float()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{title}: a {type(values).__name__} that is no array of numbers: {error}") from error
    if array.dtype.kind not in "buif":
        raise TypeError(
            f"{title}: a {type(values).__name__} of dtype {array.dtype}; real numbers or booleans are possible"
        )
    return array


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """Yield the finite values, some at a time."""
    flat = array.ravel(order="K")
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        is_finite = np.isfinite(block)
        yield block if is_finite.all() else block[is_finite]


def _moments(title: str, array: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return the smallest and the largest finite value, the sum and the sum of squares (which may be infinite)."""
    low, high, total, sum_squares = np.inf, -np.inf, 0.0, 0.0
    with np.errstate(over="ignore"):
        for block in _blocks(array):
            if block.size:
                low, high = min(low, float(block.min())), max(high, float(block.max()))
                total += float(block.sum())
                sum_squares += float(np.dot(block, block))
    if low > high:
        raise ValueError(f"{title}: none of its {array.size} values is finite")
    return low, high, total, sum_squares


def _edges(low: float, high: float, bins: int, *, whole: bool) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        if whole and high - low < bins and max(abs(low), abs(high)) < _MAX_HALVES:
            return np.arange(low - 0.5, high + 1)
        edges = np.linspace(low, high, bins + 1)
        if not np.isfinite(edges).all() or (edges[1:] > edges[:-1]).all():
            return edges
        half = max(abs(low), abs(high)) / 2 or 0.5
        return np.array([low - half, high + half])


def plain_picture(title: str, picture: Any) -> Any:
    """Return a Pillow image as one of gray, RGB or RGBA.

    Raises:
        TypeError: It has no 8 bit colors.
    """
    mode = picture.mode
    if mode in _CHANNELS:
        return picture
    if mode == "1":
        return picture.convert("L")
    if mode in {"LA", "La", "PA", "RGBa"} or (mode == "P" and picture.has_transparency_data):
        return picture.convert("RGBA")
    if mode in {"P", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}:
        return picture.convert("RGB")
    raise TypeError(f"{title}: a Pillow image of mode {mode!r} has no 8 bit colors; convert it to 'L', 'RGB' or 'RGBA'")


def pixels_of(title: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return `[height, width]` or `[height, width, 3 or 4]`.

    Raises:
        ValueError: It is no picture.
    """
    channels = set(_CHANNELS.values())
    if array.ndim == 3 and array.shape[2] not in channels and array.shape[0] in channels:  # noqa: PLR2004 - dimensions
        array = np.moveaxis(array, 0, 2)
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in channels)  # noqa: PLR2004 - dimensions
    if not is_picture or not array.size:
        raise ValueError(
            f"{title}: an array of shape {array.shape}; possible are (height, width), (height, width, channels) and"
            " (channels, height, width) with 1, 3 or 4 channels"
        )
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array  # noqa: PLR2004 - dimensions


def colors_of(title: str, pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return colors from 0 to 255.

    Raises:
        TypeError: They are other numbers than uint8, booleans and floats.
        ValueError: They are floats beyond 0 and 1.
    """
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind != "f":
        raise TypeError(
            f"{title}: colors of dtype {pixels.dtype}; possible are uint8, booleans, and floats within 0 and 1"
        )
    low, high = pixels.min(), pixels.max()
    if not -_COLOR_SLACK <= low <= high <= 1 + _COLOR_SLACK:  # also False if one is no number
        raise ValueError(
            f"{title}: floats from {low:g} to {high:g}; floats are to be within 0 and 1 (colors up to 255 are uint8)"
        )
    colors: NDArray[np.float64] = np.clip(pixels, 0, 1).astype(np.float64) * 255
    return np.round(colors).astype(np.uint8)
