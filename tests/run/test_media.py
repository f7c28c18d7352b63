import io
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.run import media


def histogram(values, **changes):
    return media.histogram("h", values, **{"step": 3, "time": 10.5, **changes})


def image(picture, **changes):
    return media.image("i", picture, **{"step": 3, "time": 10.5, **changes})


def decoded(logged):
    return np.asarray(Image.open(io.BytesIO(logged.png)))


def test_a_histogram_counts_all_values_from_minimum_to_maximum():
    values = np.random.default_rng(0).standard_normal((10, 1000))
    logged = histogram(values)
    assert (logged.name, logged.step, logged.wall_time) == ("h", 3, 10.5)
    assert (len(logged.edges), len(logged.counts), sum(logged.counts)) == (65, 64, 10_000)
    assert (logged.edges[0], logged.edges[-1]) == (values.min(), values.max())
    assert logged.counts == np.histogram(values, 64)[0].tolist()
    assert logged.total == pytest.approx(values.sum())
    assert logged.sum_squares == pytest.approx((values**2).sum())
    assert from_bytes(to_bytes(logged)) == logged


@pytest.mark.parametrize(
    "values",
    [
        [[1.0, 2.0], [3.0, 4.0]],
        (1.0, 2, 3, 4),
        np.array([1, 2, 3, 4], np.float16),
        np.asfortranarray([[1.0, 3.0], [2.0, 4.0]]),
        np.arange(8.0)[1:5],
        np.ma.masked_greater([1, 2, 3, 4, 99], 9),
        torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True),
        torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16),
        torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0), torch.tensor(4.0)],
    ],
    ids=lambda values: type(values).__name__,
)
def test_a_histogram_accepts_any_numeric_container(values):
    logged = histogram(values, bins=3)
    assert (logged.edges, logged.counts, logged.total, logged.sum_squares) == ([1, 2, 3, 4], [1, 1, 2], 10, 30)


@pytest.mark.parametrize("kind", [np.int8, np.uint64, bool])
def test_few_distinct_integers_get_one_bin_each(kind):
    logged = histogram(np.array([0, 1, 1, 0, 1], kind))
    assert (logged.edges, logged.counts) == ([-0.5, 0.5, 1.5], [2, 3])


def test_weights_replace_the_counts_of_values():
    logged = histogram([0.5, 1.5], bins=[0, 1, 2], weights=[0.25, 2])
    assert (logged.counts, logged.total, logged.sum_squares) == ([0.25, 2], 3.125, 4.5625)
    for weights in ([1.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="weights need the shape of the values"):
            histogram([0.5, 1.5], weights=weights)
    masked = np.ma.array([0.5, 1.5], mask=[True, False])
    for values, weights in ((masked, [1, 2]), ([0.5, 1.5], masked)):
        with pytest.raises(ValueError, match="histogram 'h': weights do not support masked arrays"):
            histogram(values, weights=weights)


def test_many_distinct_integers_share_bins():
    assert len(histogram(np.arange(64)).counts) == 64
    logged = histogram(np.arange(1000))
    assert (len(logged.counts), logged.edges[0], logged.edges[-1]) == (64, 0, 999)


@pytest.mark.parametrize(
    "values", [[0.0], [-0.0, 0.0], [1e-3] * 9, [-7.0], [1e300] * 9, [5e-324], [1.0, 1.0 + 1e-15], [2**60, 2**60 + 2]]
)
def test_values_too_close_for_separate_bins_share_one_bin_around_them(values):
    logged = histogram(values)
    assert logged.counts == [len(values)]
    assert logged.edges[0] <= min(values) <= max(values) <= logged.edges[1] != logged.edges[0]


def test_non_finite_values_are_omitted():
    values = np.array([np.nan, 1.0, np.inf, 2.0, -np.inf])
    logged = histogram(values, bins=2)
    assert (logged.edges, logged.counts, logged.total) == ([1, 1.5, 2], [1, 1], 3)
    assert np.isnan(values[0])


def test_values_in_several_blocks_are_counted_once():
    values = np.arange(2 * media._BLOCK + 7, dtype=np.float32)
    values[5] = np.nan
    logged = histogram(values)
    assert sum(logged.counts) == values.size - 1
    assert logged.counts == np.histogram(values[np.isfinite(values)], 64)[0].tolist()


def test_an_overflowing_sum_of_squares_is_infinite():
    assert histogram([1e200, 2e200]).sum_squares == np.inf


@pytest.mark.parametrize(
    ("values", "problem", "message"),
    [
        ([], ValueError, r"histogram 'h': none of the 0 values is finite"),
        ([np.nan, np.inf], ValueError, r"histogram 'h': none of the 2 values is finite"),
        ([-1.7e308, 1.7e308], ValueError, r"from -1\.7e\+308 to 1\.7e\+308, exceeds the range"),
        (["a"], TypeError, r"histogram 'h': a list of dtype <U1; must be real numbers or booleans"),
        ([1j], TypeError, r"dtype complex128"),
        ([[1.0], [1.0, 2.0]], TypeError, r"histogram 'h': a list is not an array of numbers"),
        (object(), TypeError, r"histogram 'h': a object of dtype object"),
        (None, TypeError, r"histogram 'h': a NoneType of dtype object"),
    ],
)
def test_invalid_histogram_values_are_an_error_that_describes_them(values, problem, message):
    with pytest.raises(problem, match=message):
        histogram(values)


@pytest.mark.parametrize("bins", [0, -1, 10_001, np.int64(0), 2.5, [1.0], [2.0, 1.0], [0.0, np.nan]])
def test_invalid_bins_are_an_error(bins):
    with pytest.raises(ValueError, match=rf"histogram 'h': bins={re.escape(repr(bins))}; must be between 1 and 10000"):
        histogram([1.0, 2.0], bins=bins)


def test_bins_are_an_integer_of_any_type_or_edges_but_no_text():
    assert histogram([1.0, 2.0], bins=np.int64(5)) == histogram([1.0, 2.0], bins=5)
    assert histogram([1.0, 2.0], bins=torch.tensor([0, 2, 4])).counts == [1.0, 1.0]
    with pytest.raises(TypeError, match="histogram 'h', bins: a str of dtype <U4"):
        histogram([1.0, 2.0], bins="auto")


COLORS = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)


@pytest.mark.parametrize(
    ("picture", "pixels"),
    [
        (COLORS[:, :, 0], COLORS[:, :, 0]),
        (COLORS[:, :, :1], COLORS[:, :, 0]),
        (COLORS[:, :, :3], COLORS[:, :, :3]),
        (COLORS, COLORS),
        (np.moveaxis(COLORS[:, :, :3], 2, 0), COLORS[:, :, :3]),
        (np.moveaxis(COLORS, 2, 0), COLORS),
        (COLORS[None, :, :, 0], COLORS[:, :, 0]),
        (COLORS[:, :, :3] / 255 * (1 + 2e-6) - 1e-6, COLORS[:, :, :3]),  # slightly out of range
        (COLORS[:, :, :3].astype(np.float32) / 255, COLORS[:, :, :3]),
        (torch.from_numpy(COLORS[:, :, :3]).permute(2, 0, 1), COLORS[:, :, :3]),
        (torch.from_numpy(COLORS[:, :, 0].copy()).float().div(255).requires_grad_(), COLORS[:, :, 0]),
        (COLORS[:, :, 0] > 127, np.where(COLORS[:, :, 0] > 127, 255, 0)),
        ((COLORS[:, :, 0] / 255).tolist(), COLORS[:, :, 0]),
        (Image.fromarray(COLORS), COLORS),
        (Image.fromarray(COLORS[:, :, 0]), COLORS[:, :, 0]),
    ],
)
def test_an_image_is_encoded_losslessly(picture, pixels):
    logged = image(picture)
    assert np.array_equal(decoded(logged), pixels)
    assert (logged.name, logged.step, logged.wall_time) == ("i", 3, 10.5)
    assert (logged.height, logged.width) == (5, 7)
    assert logged.channels == (1 if pixels.ndim == 2 else pixels.shape[2])
    assert from_bytes(to_bytes(logged)) == logged


@pytest.mark.parametrize(
    ("mode", "channels"), [("1", 1), ("P", 3), ("LA", 4), ("PA", 4), ("CMYK", 3), ("YCbCr", 3), ("RGBX", 3)]
)
def test_other_pillow_modes_are_converted(mode, channels):
    assert image(Image.new(mode, (7, 5))).channels == channels


def test_a_transparent_palette_gets_an_alpha_channel():
    picture = Image.new("P", (7, 5))
    picture.info["transparency"] = 0
    assert image(picture).channels == 4


@pytest.mark.parametrize(
    ("picture", "problem", "message"),
    [
        (np.zeros((5, 7, 2)), ValueError, r"image 'i': the array has shape \(5, 7, 2\); must be \(height, width\)"),
        (np.zeros(5), ValueError, r"shape \(5,\)"),
        (np.zeros((1, 5, 7, 3)), ValueError, r"shape \(1, 5, 7, 3\)"),
        (np.zeros((0, 7)), ValueError, r"shape \(0, 7\)"),
        (np.full((5, 7), 255.0), ValueError, r"floats from 255 to 255; floats must be from 0 to 1"),
        (np.full((5, 7), np.nan), ValueError, r"floats from nan to nan"),
        (np.zeros((5, 7), np.int64), TypeError, r"colors of dtype int64; must be uint8, booleans, or floats"),
        (Image.new("I;16", (5, 7)), TypeError, r"mode 'I;16' has no 8-bit colors; convert it"),
        ("picture.png", TypeError, r"image 'i': a str of dtype <U11"),
    ],
)
def test_an_invalid_image_is_an_error_that_describes_it(picture, problem, message):
    with pytest.raises(problem, match=message):
        image(picture)


def test_an_oversized_image_is_rejected(monkeypatch):
    monkeypatch.setattr(media, "MAX_PNG_BYTES", 2**20)  # noise of 16 MiB takes a second
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    with pytest.raises(ValueError, match=r"image 'i' as PNG has 1,\d+,\d+ bytes, the limit is 1,048,576;"):
        image(noise)


def test_a_text_lacks_the_values_of_secret_variables(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "hunter2secretvalue")
    logged = media.text("t", "|wandb_api_key|hunter2secretvalue|\n|token|a|", step=3, time=10.5)
    assert logged.text == "|wandb_api_key|***|\n|token|a|"


def test_a_text_is_stored_unchanged_except_for_invalid_utf_8():
    logged = media.text("t\ud800", "# é\n\ud800", step=3, time=10.5)
    assert (logged.name, logged.step, logged.wall_time, logged.text) == ("t\\ud800", 3, 10.5, "# é\n\\ud800")
    assert from_bytes(to_bytes(logged)) == logged


def test_a_text_of_the_wrong_type_or_size_is_rejected():
    with pytest.raises(TypeError, match=r"text 't': the text must be a string, got bytes"):
        media.text("t", b"abc", step=3, time=10.5)
    media.text("t", "é" * 2**19, step=3, time=10.5)
    with pytest.raises(ValueError, match=r"text 't' in UTF-8 has 1,048,578 bytes, the limit is 1,048,576;"):
        media.text("t", "é" * (2**19 + 1), step=3, time=10.5)


def test_media_names_and_steps_follow_the_rules_of_events():
    with pytest.raises(ValueError, match="empty"):
        media.text("", "a", step=3, time=10.5)
    with pytest.raises(TypeError, match="step must be an integer"):
        histogram([1.0], step=1.5)
    with pytest.raises(ValueError, match="step must fit into 64 bits"):
        image(np.zeros((5, 7)), step=2**63)
    assert histogram([1.0], step=np.int64(7)).step == 7


def test_a_histogram_imports_neither_torch_nor_pillow():
    code = (
        "import sys; from trieye.run import media; media.histogram('h', [1.0], step=1, time=1.0); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "PIL"} & set(done.stdout.split())
