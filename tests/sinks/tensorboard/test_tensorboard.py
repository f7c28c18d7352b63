import io
import shutil

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util import tensor_util

from tests.sinks.feeding import SOON_S, add, points
from trieye.run import media
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory, SinkContract


def loaded(run):
    accumulator = EventAccumulator(str(run.tensorboard_dir), size_guidance={"scalars": 0, "tensors": 0, "images": 0})
    accumulator.Reload()
    return accumulator


def scalars_of(run, tag="a"):
    return [(event.step, event.value) for event in loaded(run).Scalars(tag)]


def params_of(run):
    """Return the parameters in the HParams dashboard, which shows the first summary."""
    shown = loaded(run).summary_metadata.get(hparams.SESSION_START_INFO_TAG)
    if shown is None:
        return None
    parameters = hparams.parse_session_start_info_plugin_data(shown.plugin_data.content).hparams
    return {name: value.number_value for name, value in parameters.items()}


class TestContract(SinkContract):
    exactly_once = True

    def make_sink(self):
        return TensorboardSink()

    def read_points(self, run):
        if not run.tensorboard_dir.exists():
            return []
        accumulator = loaded(run)
        return [
            (tag, event.value, event.step)
            for tag in accumulator.Tags()["scalars"]
            for event in accumulator.Scalars(tag)
        ]


@pytest.fixture
def open_sink(run):
    sinks = []

    def make():
        sinks.append(TensorboardSink())
        sinks[-1].open(run)
        return sinks[-1]

    yield make
    for sink in sinks:
        sink._files.close()


def point(step, value=1.0):
    return Point("a", value, step, 10.5 + step)


def test_files_deleted_during_a_run_are_rewritten_at_the_next_start(run, caplog):
    source = MemoryHistory(points(0, 10))
    thread = SinkThread(TensorboardSink(0.01), run, source, first_delay_s=0.01)
    assert thread.flush(SOON_S)
    shutil.rmtree(run.tensorboard_dir)
    for first in range(10, 40, 10):
        add(thread, source, points(first, 10))
        assert not thread.flush(0.1)
    assert thread.health.is_gone
    thread.close("FINISHED", SOON_S)
    (warning,) = (record.getMessage() for record in caplog.records if "trieye rebuild" in record.getMessage())
    assert f"`trieye rebuild {run.run_dir} --sink tensorboard`" in warning
    assert SinkThread(TensorboardSink(), run, source).close("FINISHED", SOON_S)
    assert [step for step, _ in scalars_of(run, "m")] == list(range(40))


def test_an_idle_attempt_keeps_the_previous_position(run, open_sink):
    first = open_sink()
    first.write([point(1)])
    position = first.position()
    for _ in range(2):
        idle = open_sink()
        assert idle.resume(position)
        assert idle.position() == position
    assert len(list(run.tensorboard_dir.iterdir())) == 1


@pytest.mark.parametrize("position", ["", "7", "{}x", '{"place": ["a", "b", 3]}', '{"place": ["../a", 1, 3]}'])
def test_an_invalid_position_cannot_be_resumed(open_sink, position):
    assert not open_sink().resume(position)


def test_the_latest_value_of_each_parameter_is_shown_across_attempts(run, open_sink):
    first = open_sink()
    first.log_params({"lr": "0.1", "loop.steps": "100"})
    first.log_params({"gamma": "0.9"})
    first.write([point(1)])
    first.flush()
    first.log_params({"late": "1"})
    position = first.position()
    second = open_sink()
    assert second.resume(position)
    second.log_params({"loop.steps": "200"})
    second.write([point(2)])
    second.close("FINISHED")
    assert params_of(run) == {"lr": 0.1, "gamma": 0.9, "late": 1.0, "loop.steps": 200.0}
    assert scalars_of(run) == [(1, 1.0), (2, 1.0)]


def test_parameters_are_shown_without_any_points_and_tags_are_ignored(run, open_sink):
    sink = open_sink()
    sink.set_tags({"a": "b"})
    sink.flush()
    assert not run.tensorboard_dir.exists()
    sink.log_params({"lr": "0.1"})
    sink.close("FAILED")
    assert params_of(run) == {"lr": 0.1}


def test_a_damaged_parameter_file_loses_no_points(run, open_sink):
    first = open_sink()
    first.log_params({"lr": "0.1"})
    first.write([point(1)])
    position = first.position()
    damaged = next(path for path in run.tensorboard_dir.iterdir() if path.name.endswith(".hparams"))
    damaged.write_bytes(b"no event" * 9)
    second = open_sink()
    assert second.resume(position)
    second.log_params({"lr": "0.1"})
    second.close("FINISHED")
    assert params_of(run) == {"lr": 0.1}
    assert scalars_of(run) == [(1, 1.0)]


def test_parameters_are_shown_after_a_rewind(run, open_sink):
    sink = open_sink()
    for _ in range(2):
        sink.log_params({"lr": "0.1"})
        sink.write([point(1)])
        sink.flush()
        assert (params_of(run), scalars_of(run)) == ({"lr": 0.1}, [(1, 1.0)])
        sink.clear()


def test_histograms_images_and_texts_can_be_read_back(run, open_sink):
    sink = open_sink()
    values = np.arange(100.0)
    for step in (1, 2):
        sink.log_media(media.histogram("h", values * step, bins=4, step=step, time=10.5))
        sink.log_media(media.image("i", np.full((2, 3, 3), 40 * step, np.uint8), step=step, time=10.5))
        sink.log_media(media.text("t", f"# é {step}", step=step, time=10.5))
    sink.flush()
    accumulator = loaded(run)
    plugins = {tag: shown.plugin_data.plugin_name for tag, shown in accumulator.summary_metadata.items()}
    assert {tag: plugins[tag] for tag in "ht"} == {"h": "histograms", "t": "text"}

    def tensors(tag):
        return [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)]

    assert [(step, buckets.tolist()) for step, buckets in tensors("h")] == [
        (step, [[24.75 * step * n, 24.75 * step * (n + 1), 25.0] for n in range(4)]) for step in (1, 2)
    ]
    assert [(step, text.item().decode()) for step, text in tensors("t")] == [(1, "# é 1"), (2, "# é 2")]
    images = accumulator.Images("i")
    assert [(event.step, event.width, event.height) for event in images] == [(1, 3, 2), (2, 3, 2)]
    pixels = [Image.open(io.BytesIO(event.encoded_image_string)).getpixel((0, 0)) for event in images]
    assert pixels == [(40, 40, 40), (80, 80, 80)]


def test_a_failed_close_can_be_retried(run, open_sink, tmp_path):
    run.tensorboard_dir.write_text("in the way")
    sink = open_sink()
    sink.log_params({"lr": "0.1"})
    sink.write([point(1)])
    for _ in range(2):
        with pytest.raises(OSError, match="tensorboard"):
            sink.close("FINISHED")
    run.tensorboard_dir.unlink()
    sink.close("FINISHED")
    assert scalars_of(run) == [(1, 1.0)]
