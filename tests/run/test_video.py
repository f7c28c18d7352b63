import io
import itertools
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from trieye.exceptions import ConfigurationError
from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.run import video


def make(frames, **changes):
    return video.video("v", frames, **{"fps": 10, "format": "gif", "step": 3, "time": 10.5, **changes})


def moving_dot(num_frames=6, size=(12, 16)):
    """Return frames `[time, height, width, 3]` with few colors; all frames differ."""
    frames = np.full((num_frames, *size, 3), (10, 20, 30), np.uint8)
    for number in range(num_frames):
        frames[number, number, number] = (250, 5 * number, 128)
    return frames


def decoded(logged):
    """Return the frames as a browser shows them, and their durations in milliseconds."""
    opened = Image.open(io.BytesIO(logged.content))
    shown_frames = [
        (np.asarray(frame.convert("RGB")), frame.info["duration"]) for frame in ImageSequence.Iterator(opened)
    ]
    return np.stack([frame for frame, _ in shown_frames]), [duration for _, duration in shown_frames], opened.info


@pytest.mark.parametrize(
    "content",
    [
        moving_dot(),
        moving_dot().transpose(0, 3, 1, 2),
        torch.from_numpy(moving_dot()),
        moving_dot() / 255.0,
        list(moving_dot()),
        [Image.fromarray(frame) for frame in moving_dot()],
    ],
    ids=["channels last", "channels first", "tensor", "floats", "list", "Pillow"],
)
def test_a_gif_contains_every_frame_unchanged_and_loops(content):
    logged = make(content)
    frames, durations, info = decoded(logged)
    assert (frames == moving_dot()).all()
    assert (durations, info["loop"]) == ([100] * 6, 0)
    assert (logged.width, logged.height, logged.num_frames, logged.fps, logged.format) == (16, 12, 6, 10, "gif")
    assert from_bytes(to_bytes(logged)) == logged


@pytest.mark.parametrize(("fps", "shown_fps", "every"), [(30, 30, 1), (50, 50, 1), (60, 30, 2), (120, 40, 3)])
def test_a_gif_has_the_duration_of_the_video_at_any_frame_rate(fps, shown_fps, every):
    logged = make(moving_dot(12), fps=fps)
    frames, durations, _ = decoded(logged)
    assert (frames == moving_dot(12)[::every]).all()
    assert logged.fps == shown_fps
    assert min(durations) >= 20  # browsers slow down shorter durations
    assert sum(durations) == pytest.approx(1000 * 12 / fps, abs=10)


def test_a_frame_rate_may_be_any_kind_of_number():
    for fps in (np.float32(12.5), Fraction(25, 2), torch.tensor(12.5)):
        logged = make(moving_dot(), fps=fps)
        assert type(logged.fps) is float
        assert from_bytes(to_bytes(logged)) == logged == make(moving_dot(), fps=12.5)
    with pytest.raises(TypeError, match=r"'v: fps'.*one number"):
        make(moving_dot(), fps=[12.5])


@pytest.mark.parametrize(("num_frames", "fps"), [(700, 1), (1, 0.001)])
def test_a_gif_that_exceeds_the_maximum_duration_plays_faster(num_frames, fps):
    logged = make(np.zeros((num_frames, 2, 2, 3), np.uint8), fps=fps)  # Pillow merges the frames to one
    assert decoded(logged)[1] == [655_350]
    assert logged.fps == pytest.approx(num_frames / 655.35)


def test_gray_and_repeated_frames_are_shown():
    still = [np.full((4, 4), 200, np.uint8)] * 3 + [np.zeros((4, 4, 1), np.uint8)]
    frames, durations, _ = decoded(make(still))
    assert sum(durations) == 400
    assert {frame.max() for frame in frames} == {0, 200}


@pytest.mark.parametrize(
    ("frames", "changes", "message"),
    [
        (np.zeros((4, 4, 3), np.uint8), {}, r"shape \(4, 4, 3\).*time, height, width, channels"),
        (np.zeros((2, 5, 5, 7), np.uint8), {}, "shape"),
        ([], {}, "no frames"),
        ([np.zeros((4, 4), np.uint8), np.zeros((4, 5), np.uint8)], {}, "frame 1 is 5 x 4.* 4 x 4"),
        (moving_dot().astype(np.int64), {}, "int64"),
        (moving_dot(), {"fps": 0}, "fps=0"),
        (np.broadcast_to(np.uint8(0), (2000, 512, 512, 3)), {}, "268,435,456"),
    ],
    ids=itertools.count(),
)
def test_an_invalid_or_oversized_video_is_an_error_that_describes_it(frames, changes, message):
    with pytest.raises((TypeError, ValueError), match=f"video 'v': .*{message}"):
        make(frames, **changes)


def test_a_video_with_too_many_bytes_is_an_error_with_the_limit(monkeypatch):
    monkeypatch.setattr(video, "MAX_VIDEO_BYTES", 2**16)  # noise of 16 MiB takes 20 s
    noise = np.random.default_rng(0).integers(0, 256, (3, 160, 160, 3), np.uint8)
    with pytest.raises(ValueError, match=r"as gif has \d+,\d+ bytes, the limit is 65,536; .*mp4.*log_artifact"):
        make(noise)


def test_an_unknown_format_or_a_missing_library_is_named(monkeypatch):
    with pytest.raises(ConfigurationError, match="'gif' or 'mp4'"):
        make(moving_dot(), format="avi")
    monkeypatch.setitem(sys.modules, "av", None)  # makes the import fail
    with pytest.raises(ConfigurationError, match=r"trieye\[video\]"):
        make(moving_dot(), format="mp4")


def test_an_mp4_has_the_frames_the_rate_and_an_even_size():
    av = pytest.importorskip("av", reason="trieye[video] is not installed")
    smooth = np.linspace(0, 255, 5 * 17 * 21).reshape(5, 17, 21).astype(np.uint8)
    logged = make(np.repeat(smooth[..., None], 3, axis=3), format="mp4", fps=60)
    with av.open(io.BytesIO(logged.content)) as container:
        stream = container.streams.video[0]
        assert (stream.average_rate, stream.width, stream.height) == (60, 22, 18)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
    assert frames.shape == (5, 18, 22, 3)
    assert np.abs(frames[:, :17, :21, 0].astype(int) - smooth).mean() < 8  # it is lossy
    assert (logged.fps, logged.format) == (60, "mp4")
