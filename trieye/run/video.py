"""What may be logged as a video: frames, encoded as an animated GIF or, with the extra `trieye[video]`, as MP4."""

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.run.media import array_of, colors_of, pixels_of, place_of, plain_picture
from trieye.stats.operations import LogVideo

MAX_VIDEO_BYTES = 16 * 2**20
MAX_VIDEO_PIXELS = 2**28
"""Pixels of all frames together, 1000 frames of 512 x 512: a GIF of them takes half a minute."""
MAX_GIF_FPS = 50
"""Browsers show a frame that is to stay for less than 20 ms for 100 ms."""

_NUM_DIMENSIONS = 4

Frame = NDArray[np.uint8]
"""`[height, width]` gray, or `[height, width, 3 or 4]`."""


def video(
    name: str,
    frames: Any,
    *,
    fps: float,
    format: Literal["gif", "mp4"],  # noqa: A002 - as wandb calls it
    step: int,
    time: float,
) -> LogVideo:
    """Encode frames as a video.

    Args:
        name: Name of the series.
        frames: An array or a tensor `[time, height, width, channels]` or `[time, channels, height, width]`, or a
            sequence of pictures as `media.image` takes them.
        fps: Frames per second. Of more than `MAX_GIF_FPS`, a GIF shows every second one, or every third, and so on.
        format: `gif`, of 256 colors for each frame, or `mp4`.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: They are no pictures.
        ValueError: They have different sizes, there are none, or more than `MAX_VIDEO_PIXELS` or `MAX_VIDEO_BYTES`.
        ConfigurationError: `format` is something else, or its library is not installed.
    """
    title, where = f"video {name!r}", place_of(name, step, time)
    if format not in {"gif", "mp4"}:
        raise ConfigurationError(f"{title}: format={format!r}; possible are 'gif' and 'mp4'")
    if not 0 < fps <= 1000:  # noqa: PLR2004 - also False for NaN
        raise ValueError(f"{title}: fps={fps}; between 0 and 1000 frames per second are possible")
    given = _sequence(title, frames)
    if format == "gif":
        every = -(-fps // MAX_GIF_FPS)
        given, fps = given[:: int(every)], fps / every
    first = _frame(title, given[0])
    height, width = first.shape[:2]
    if len(given) * height * width > MAX_VIDEO_PIXELS:
        raise ValueError(
            f"{title}: {len(given)} frames of {width} x {height} have more pixels than the {MAX_VIDEO_PIXELS:,} that "
            "are possible; log fewer or smaller frames"
        )
    alike = _alike(title, first, given)
    content = _gif(alike, fps) if format == "gif" else _mp4(title, alike, fps)
    if len(content) > MAX_VIDEO_BYTES:
        raise ValueError(
            f"{title}: its {len(given)} frames of {width} x {height} take {len(content) / 2**20:.1f} MiB as {format}; "
            f"at most {MAX_VIDEO_BYTES // 2**20} MiB are possible, so log fewer or smaller frames, or as mp4, or save "
            "it with log_artifact"
        )
    return LogVideo(*where, width, height, len(given), fps, format, content)


def _sequence(title: str, frames: Any) -> Sequence[Any] | NDArray[Any]:
    is_sequence = isinstance(frames, list | tuple)
    given = frames if is_sequence else array_of(title, frames)
    if not is_sequence and given.ndim != _NUM_DIMENSIONS:
        raise ValueError(
            f"{title}: an array of shape {given.shape}; possible are (time, height, width, channels) and "
            "(time, channels, height, width)"
        )
    if not len(given):
        raise ValueError(f"{title}: it has no frames")
    return given


def _alike(title: str, first: Frame, given: Sequence[Any] | NDArray[Any]) -> Iterator[Frame]:
    yield first
    for number, held in enumerate(given[1:], start=1):
        frame = _frame(title, held)
        if frame.shape[:2] != first.shape[:2]:
            raise ValueError(
                f"{title}: frame {number} has the size {frame.shape[1]} x {frame.shape[0]}, and the first one "
                f"{first.shape[1]} x {first.shape[0]}"
            )
        yield frame


def _frame(title: str, picture: Any) -> Frame:
    from PIL import Image

    if isinstance(picture, Image.Image):
        return np.asarray(plain_picture(title, picture))
    return colors_of(title, pixels_of(title, array_of(title, picture)))


def _gif(frames: Iterator[Frame], fps: float) -> bytes:
    from PIL import Image

    pictures = [Image.fromarray(frame).convert("RGB") for frame in frames]
    ends = [round(100 * number / fps) for number in range(len(pictures) + 1)]  # GIF counts hundredths of a second
    durations_ms = [10 * (end - start) for start, end in pairwise(ends)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "gif", save_all=True, append_images=pictures[1:], duration=durations_ms, loop=0)
    return buffer.getvalue()


def _mp4(title: str, frames: Iterator[Frame], fps: float) -> bytes:
    try:
        import av
    except ImportError as error:
        raise ConfigurationError(
            f"{title}: format='mp4' needs PyAV: pip install \"trieye[video]\"; format='gif' needs nothing"
        ) from error
    from PIL import Image

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        first = next(frames)
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        height, width = (size + size % 2 for size in first.shape[:2])  # what browsers play has even sizes
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for frame in chain([first], frames):
            pixels = np.asarray(Image.fromarray(frame).convert("RGB"))
            padded = np.pad(pixels, ((0, height - len(pixels)), (0, width - pixels.shape[1]), (0, 0)), mode="edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(padded, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()
