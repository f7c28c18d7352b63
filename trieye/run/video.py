"""Encode logged frames as a video: an animated GIF or, with the extra `trieye[video]`, MP4."""

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trieye.config.packages import load
from trieye.exceptions import ConfigurationError
from trieye.run.media import array_of, check_size, colors_of, header_of, number_of, pixels_of, plain_picture
from trieye.stats.operations import LogVideo

MAX_VIDEO_BYTES = 16 * 2**20
MAX_VIDEO_PIXELS = 2**28
"""Maximum number of pixels in all frames: 1000 frames of 512 x 512, whose GIF takes half a minute to encode."""
MAX_GIF_FPS = 50
"""Browsers display frames with a duration below 20 ms for 100 ms."""
MAX_GIF_S = 655.35
"""Maximum duration of a frame, and of a GIF, because Pillow merges equal frames: 16 bits of hundredths of a second."""

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
        frames: An array or tensor `[time, height, width, channels]` or `[time, channels, height, width]`, or a sequence
            of images as for `media.image`.
        fps: Frames per second. Above `MAX_GIF_FPS`, a GIF contains only every second frame, or every third, and so on.
            A GIF longer than `MAX_GIF_S` plays faster.
        format: `gif`, with 256 colors per frame, or `mp4`.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: The frames are not images, or `fps` is not a number.
        ValueError: There are no frames, their sizes differ, or they exceed `MAX_VIDEO_PIXELS` or `MAX_VIDEO_BYTES`.
        ConfigurationError: `format` is invalid, or its library is not installed.
    """
    title, header = f"video {name!r}", header_of(name, step, time)
    if format not in {"gif", "mp4"}:
        raise ConfigurationError(f"{title}: format={format!r}; must be 'gif' or 'mp4'")
    fps = number_of(f"{name}: fps", fps)
    if not 0 < fps <= 1000:  # noqa: PLR2004 - also False for NaN
        raise ValueError(f"{title}: fps={fps}; must be above 0 and at most 1000")
    pictures = _sequence(title, frames)
    if format == "gif":
        every = -(-fps // MAX_GIF_FPS)
        pictures = pictures[:: int(every)]
        fps = max(fps / every, len(pictures) / MAX_GIF_S)
    first_frame = _frame(title, pictures[0])
    height, width = first_frame.shape[:2]
    if len(pictures) * height * width > MAX_VIDEO_PIXELS:
        raise ValueError(
            f"{title}: {len(pictures)} frames of {width} x {height} exceed the limit of {MAX_VIDEO_PIXELS:,} pixels; "
            "log fewer or smaller frames"
        )
    checked_frames = _checked_frames(title, first_frame, pictures)
    content = _gif(checked_frames, fps) if format == "gif" else _mp4(title, checked_frames, fps)
    remedy = "log fewer or smaller frames, use format='mp4'"
    check_size(f"{title} as {format}", len(content), MAX_VIDEO_BYTES, remedy)
    return LogVideo(*header, width, height, len(pictures), fps, format, content)


def _sequence(title: str, frames: Any) -> Sequence[Any] | NDArray[Any]:
    is_sequence = isinstance(frames, list | tuple)
    pictures = frames if is_sequence else array_of(title, frames)
    if not is_sequence and pictures.ndim != _NUM_DIMENSIONS:
        raise ValueError(
            f"{title}: the array has shape {pictures.shape}; must be (time, height, width, channels) or "
            "(time, channels, height, width)"
        )
    if not len(pictures):
        raise ValueError(f"{title}: no frames; pass at least one")
    return pictures


def _checked_frames(title: str, first_frame: Frame, pictures: Sequence[Any] | NDArray[Any]) -> Iterator[Frame]:
    yield first_frame
    for index, picture in enumerate(pictures[1:], start=1):
        frame = _frame(title, picture)
        if frame.shape[:2] != first_frame.shape[:2]:
            raise ValueError(
                f"{title}: frame {index} is {frame.shape[1]} x {frame.shape[0]}, but the first frame is "
                f"{first_frame.shape[1]} x {first_frame.shape[0]}"
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
    ends = [round(100 * index / fps) for index in range(len(pictures) + 1)]  # GIF measures hundredths of a second
    durations_ms = [10 * (end - start) for start, end in pairwise(ends)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "gif", save_all=True, append_images=pictures[1:], duration=durations_ms, loop=0)
    return buffer.getvalue()


def _mp4(title: str, frames: Iterator[Frame], fps: float) -> bytes:
    av = load("av", f"{title}: format='mp4'", "pass format='gif'")
    from PIL import Image

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        first = next(frames)
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        height, width = (size + size % 2 for size in first.shape[:2])  # yuv420p, which browsers play, needs even sizes
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for frame in chain([first], frames):
            pixels = np.asarray(Image.fromarray(frame).convert("RGB"))
            padded = np.pad(pixels, ((0, height - len(pixels)), (0, width - pixels.shape[1]), (0, 0)), mode="edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(padded, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()
