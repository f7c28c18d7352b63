"""Convert logged values to events: numbers, histograms, images and texts, with errors that name the event."""

import io
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trieye.config.names import printable
from trieye.config.redaction import without_secret_variables
from trieye.stats.batch import MAX_CONTEXT_BYTES, context_bytes
from trieye.stats.operations import LogHistogram, LogImage, LogText

MAX_BINS = 10_000
MAX_PNG_BYTES = 16 * 2**20
MAX_TEXT_BYTES = 2**20

LAST_S = 253402300799
"""The last second of the year 9999."""

_BLOCK = 2**18
"""Values per block: a block fits into the CPU cache, and converting 1e8 values makes no second copy of all of them."""
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_CONVERTED_MODES = frozenset({"1", "P", "PA", "LA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
_MAX_HALVES = 2**52
"""Above this value a float cannot represent the midpoint between two integers."""
_COLOR_SLACK = 1e-3
"""Tolerance for colors outside 0 to 1, as resampling produces them."""
_ARRAYS = (np.ndarray, np.complexfloating)
"""Types whose `item()` is converted: float() of a complex NumPy scalar only warns."""


def name_of(name: Any) -> str:
    """Return the name of an event as a plain string, checked.

    Raises:
        TypeError: The name is not a string.
        ValueError: The name is empty.
    """
    if not isinstance(name, str):
        raise TypeError(f"log({name!r}, ...): the name must be a string, got {type(name).__name__}")
    if not name:
        raise ValueError("log('', ...): the name must not be empty")
    return str.__str__(name)  # the hub's process may not have the class of an Enum member


def items_of(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values without None; the values of a nested dict are named `name/key`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name_of(name)}/{name_of(key)}", item) for key, item in items_of(value))
        elif value is not None:
            yield name, value


def number_of(name: str, value: Any) -> float:
    """Return a value as a float.

    Raises:
        TypeError: The value is not a number, a NumPy scalar or a tensor with one element.
        ValueError: The value is a string that does not represent a number, or an integer beyond the range of a float.
    """
    try:
        return float_of(value)
    except OverflowError as error:
        raise ValueError(f"log({name!r}, ...): the value exceeds the range of a float") from error
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"log({name!r}, {_shown(value)}): the value must be one number: {error}") from error
    except ValueError as error:
        raise ValueError(f"log({name!r}, {_shown(value)}): the value must be one number: {error}") from error


def float_of(value: Any) -> float:
    """Return a number, a NumPy scalar or a tensor with one element as a float; other values raise various errors."""
    if isinstance(value, _ARRAYS) and value.size == 1:
        value = math.nan if np.ma.is_masked(value) else value.item()
    # torch warns when it converts a tensor that requires a gradient to a number
    return float(value.detach() if getattr(value, "requires_grad", False) else value)


def step_of(name: str, step: Any) -> int:
    """Return a global step as an int.

    Raises:
        TypeError: The step is not an integer.
    """
    try:
        return operator.index(step)
    except TypeError as error:
        raise TypeError(f"log({name!r}, ..., step={_shown(step)}): step must be an integer") from error


def time_of(name: str, wall_time: Any) -> float:
    """Return the Unix time of an event as a float.

    Raises:
        TypeError: The time is not a number.
        ValueError: The time is not a number in a string, not finite, before 1970, or beyond the year 9999.
    """
    seconds, kind = math.nan, cast("type[Exception]", ValueError)
    try:
        seconds = float(wall_time)
    except (TypeError, RuntimeError):
        kind = TypeError
    except (ValueError, OverflowError):
        pass  # the same error as for other numbers
    if not 0.0 <= seconds <= LAST_S:
        raise kind(
            f"log({name!r}, ..., wall_time={_shown(wall_time)}): wall_time must be a Unix time in seconds, from 0 to "
            f"{LAST_S} (the end of the year 9999)"
        )
    return seconds


def context_of(name: str, context: Any) -> dict[str, Any] | None:
    """Return a copy of a context with plain values, which can be sent to another process.

    Raises:
        TypeError: The context is not a mapping, or a value is not a number, string, boolean or None.
        ValueError: The context is too large.
    """
    if context is None:
        return None
    if not isinstance(context, Mapping):
        raise TypeError(f"log({name!r}, ..., context={_shown(context)}): context must be a dict")
    plain = {str(key): _plain(name, key, value) for key, value in context.items()}
    check_size(f"log({name!r}, ...): the context", context_bytes(plain), MAX_CONTEXT_BYTES, "use log_text")
    return plain


def _plain(name: str, key: Any, value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str.__str__(value)
    if callable(getattr(value, "item", None)):  # NumPy scalars and tensors
        with suppress(ValueError, RuntimeError):  # it has several elements
            return _plain(name, key, value.item())
    raise TypeError(
        f"log({name!r}, ...): context[{key!r}] is a {type(value).__name__}; "
        "it must be a number, string, boolean or None"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line of a terminal


def histogram(
    name: str, values: Any, *, bins: int | Sequence[float] = 64, weights: Any = None, step: int, time: float
) -> LogHistogram:
    """Return a histogram with bins of equal width between the smallest and the largest value, or with given edges.

    With a number of bins, integers that span fewer numbers than bins get one bin per number, and (nearly) equal values
    get a single bin around them. Values that are masked or not finite are not counted.

    Args:
        name: Name of the series.
        values: Numbers or booleans of any shape: an array, a tensor on any device, or nested lists.
        bins: Number of bins, at most `MAX_BINS`, or ascending bin edges; values outside the edges are not counted.
        weights: Contribution of each value to its bin; requires finite values; None: 1.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: `values` or `bins` are not real numbers.
        ValueError: No value is finite, the span of the values exceeds the range of a float, `bins` is out of range, or
            `weights` has another shape, is not finite, or is given with a masked array.
    """
    title, header = f"histogram {name!r}", header_of(name, step, time)
    edges = array_of(f"{title}, bins", bins)
    is_number = not edges.ndim and edges.dtype.kind in "iu"
    num_bins, edges = int(edges) if is_number else edges.size - 1, edges.astype(np.float64)
    if not 1 <= num_bins <= MAX_BINS or not (np.diff(edges.ravel()) >= 0).all():
        raise ValueError(f"{title}: bins={_shown(bins)}; must be between 1 and {MAX_BINS}, or ascending edges")
    if np.ma.isMaskedArray(values) and weights is None:
        values = values.compressed()
    elif np.ma.isMaskedArray(values) or np.ma.isMaskedArray(weights):
        raise ValueError(f"{title}: weights do not support masked arrays; select the values and their weights first")
    array = array_of(title, values)
    low, high, total, sum_squares = _moments(title, array)
    if is_number:
        edges = _edges(low, high, num_bins, is_integer=array.dtype.kind in "bui")
    if not np.isfinite(edges).all():
        raise ValueError(f"{title}: the span of its values, from {low:g} to {high:g}, exceeds the range of a float")
    if weights is not None:
        factors = array_of(title, weights).astype(np.float64)
        if factors.shape != array.shape or not (np.isfinite(factors).all() and np.isfinite(array).all()):
            raise ValueError(f"{title}: weights need the shape of the values, {array.shape}, and finite numbers")
        heights = np.histogram(array, edges, weights=factors)[0]
        moments = float(np.vdot(factors, array)), float(np.vdot(factors, np.square(array, dtype=np.float64)))
        return LogHistogram(*header, edges.tolist(), heights.tolist(), *moments)
    counts = np.zeros(len(edges) - 1)
    for block in _blocks(array):
        bins_and_range = (len(counts), (edges[0], edges[-1])) if is_number else (edges, None)
        counts += np.histogram(block, *bins_and_range)[0]
    return LogHistogram(*header, edges.tolist(), counts.tolist(), total, sum_squares)


def figure(name: str, drawn: Any, *, step: int, time: float) -> LogImage:
    """Render a figure as PNG.

    Args:
        name: Name of the series.
        drawn: A matplotlib `Figure`, or another object with `savefig(file, format="png")`.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: The object has no `savefig`.
        ValueError: The PNG exceeds `MAX_PNG_BYTES`.
    """
    from PIL import Image

    if not callable(getattr(drawn, "savefig", None)):
        hint = "; pass its .figure" if callable(getattr(getattr(drawn, "figure", None), "savefig", None)) else ""
        raise TypeError(f"figure {name!r}: a {type(drawn).__name__} has no savefig(){hint}")
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png")
    return image(name, Image.open(buffer), step=step, time=time)


def image(name: str, picture: Any, *, step: int, time: float) -> LogImage:
    """Encode an image as PNG.

    Args:
        name: Name of the series.
        picture: A Pillow image, or an array or tensor of shape `[height, width]`, `[height, width, channels]` or
            `[channels, height, width]` with 1 (gray), 3 (RGB) or 4 (RGBA) channels, and dtype uint8, bool, or float
            with values from 0 to 1.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: `picture` is not an image, or its dtype is not supported.
        ValueError: The shape is not supported, colors are out of range, or the PNG exceeds `MAX_PNG_BYTES`.
    """
    from PIL import Image

    title, header = f"image {name!r}", header_of(name, step, time)
    if isinstance(picture, Image.Image):
        pillow = plain_picture(title, picture)
    else:
        pillow = Image.fromarray(colors_of(title, pixels_of(title, array_of(title, picture))))
    buffer = io.BytesIO()
    pillow.save(buffer, "png")
    check_size(f"{title} as PNG", buffer.tell(), MAX_PNG_BYTES, "log fewer pixels")
    return LogImage(*header, pillow.width, pillow.height, _CHANNELS[pillow.mode], buffer.getvalue())


def text(name: str, text: str, *, step: int, time: float) -> LogText:
    """Check a text.

    Args:
        name: Name of the series.
        text: Plain text or Markdown.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: `text` is not a string.
        ValueError: The text exceeds `MAX_TEXT_BYTES` in UTF-8.
    """
    header = header_of(name, step, time)
    if not isinstance(text, str):
        raise TypeError(f"text {name!r}: the text must be a string, got {type(text).__name__}")
    printable_text = printable(without_secret_variables(text))
    check_size(f"text {name!r} in UTF-8", len(printable_text.encode()), MAX_TEXT_BYTES, "shorten it")
    return LogText(*header, printable_text)


def check_size(title: str, size_bytes: int, max_bytes: int, remedy: str) -> None:
    """Raise `ValueError` if data are too large for the journal."""
    if size_bytes > max_bytes:
        raise ValueError(f"{title} has {size_bytes:,} bytes, the limit is {max_bytes:,}; {remedy}, or use log_artifact")


def header_of(name: str, step: int, time: float) -> tuple[str, int, float]:
    """Return name, step and time of a medium, checked."""
    step_number = step_of(name, step)
    if not -(2**63) <= step_number < 2**63:
        raise ValueError(f"log({name!r}, ..., step={step_number}): step must fit into 64 bits")
    return printable(name_of(name)), step_number, number_of(name, time)


def array_of(title: str, values: Any) -> NDArray[Any]:
    """Return an array, tensor or nested list of numbers or booleans as a NumPy array.

    Raises:
        TypeError: `values` are not real numbers or booleans.
    """
    if callable(getattr(values, "detach", None)):  # a torch tensor, which may be on a GPU or require a gradient
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no bfloat16
            values = values.float()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{title}: a {type(values).__name__} is not an array of numbers: {error}") from error
    if array.dtype.kind not in "buif":
        raise TypeError(f"{title}: a {type(values).__name__} of dtype {array.dtype}; must be real numbers or booleans")
    return array


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """Yield the finite values in blocks."""
    flat = array.ravel(order="K")
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        is_finite = np.isfinite(block)
        yield block if is_finite.all() else block[is_finite]


def _moments(title: str, array: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return minimum, maximum, sum and sum of squares of the finite values; the sums may be infinite."""
    low, high, total, sum_squares = np.inf, -np.inf, 0.0, 0.0
    with np.errstate(over="ignore"):
        for block in _blocks(array):
            if block.size:
                low, high = min(low, float(block.min())), max(high, float(block.max()))
                total += float(block.sum())
                sum_squares += float(np.dot(block, block))
    if low > high:
        raise ValueError(f"{title}: none of the {array.size} values is finite")
    return low, high, total, sum_squares


def _edges(low: float, high: float, bins: int, *, is_integer: bool) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        if is_integer and high - low < bins and max(abs(low), abs(high)) < _MAX_HALVES:
            return np.arange(low - 0.5, high + 1)
        edges = np.linspace(low, high, bins + 1)
        if not np.isfinite(edges).all() or (edges[1:] > edges[:-1]).all():
            return edges
        half = max(abs(low), abs(high)) / 2 or 0.5
        return np.array([low - half, high + half])


def plain_picture(title: str, picture: Any) -> Any:
    """Return a Pillow image converted to gray, RGB or RGBA.

    Raises:
        TypeError: The image does not have 8-bit colors.
    """
    mode = picture.mode
    if mode in _CHANNELS:
        return picture
    if mode in _CONVERTED_MODES:
        return picture.convert("L" if mode == "1" else "RGBA" if picture.has_transparency_data else "RGB")
    raise TypeError(f"{title}: a Pillow image of mode {mode!r} has no 8-bit colors; convert it to 'L', 'RGB' or 'RGBA'")


def pixels_of(title: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an image array as `[height, width]` or `[height, width, 3 or 4]`.

    Raises:
        ValueError: The shape does not fit an image.
    """
    channels = set(_CHANNELS.values())
    if array.ndim == 3 and array.shape[2] not in channels and array.shape[0] in channels:  # noqa: PLR2004 - dimensions
        array = np.moveaxis(array, 0, 2)
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in channels)  # noqa: PLR2004 - dimensions
    if not is_picture or not array.size:
        raise ValueError(
            f"{title}: the array has shape {array.shape}; must be (height, width), (height, width, channels) or"
            " (channels, height, width) with 1, 3 or 4 channels"
        )
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array  # noqa: PLR2004 - dimensions


def colors_of(title: str, pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return pixels as colors from 0 to 255.

    Raises:
        TypeError: The dtype is not uint8, bool or float.
        ValueError: Floats are outside 0 to 1.
    """
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.kind != "f":
        raise TypeError(f"{title}: colors of dtype {pixels.dtype}; must be uint8, booleans, or floats from 0 to 1")
    low, high = pixels.min(), pixels.max()
    if not -_COLOR_SLACK <= low <= high <= 1 + _COLOR_SLACK:  # also rejects NaN
        raise ValueError(
            f"{title}: floats from {low:g} to {high:g}; floats must be from 0 to 1 (use uint8 for colors up to 255)"
        )
    colors: NDArray[np.float64] = np.clip(pixels, 0, 1).astype(np.float64) * 255
    return np.round(colors).astype(np.uint8)
