from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from trieye.sinks.tensorboard.summaries import scalars, session_start
from trieye.stats.point import Point
from trieye.testing import make_run_info


def parsed(records):
    return [Event.FromString(record) for record in records]


def test_points_of_equal_step_and_time_share_an_event():
    points = [Point("a", 1.0, 1, 10.5), Point("b", 2.0, 1, 10.5), Point("c", 3.0, 1, 11.5), Point("a", 4.0, 2, 12.0)]
    events = parsed(scalars(points))
    assert [(event.step, event.wall_time, [value.tag for value in event.summary.value]) for event in events] == [
        (1, 10.5, ["a", "b"]),
        (1, 11.5, ["c"]),
        (2, 12.0, ["a"]),
    ]


def test_events_stay_small_for_steps_with_many_metrics():
    points = [Point(f"layer_{number}/" + "x" * 200, 1.0, 1, 10.5) for number in range(1000)]
    events = parsed(scalars(points))
    assert max(len(event.summary.value) for event in events) <= 64
    assert [value.tag for event in events for value in event.summary.value] == [point.metric for point in points]


def test_values_beyond_single_precision_do_not_block_other_points():
    values = {"a": 1e300, "b": -1e300, "c": 1e-300, "d": 3.4028235e38, "e": 1.0}
    (event,) = parsed(scalars([Point(name, value, 1, 10.5) for name, value in values.items()]))
    assert [summary.tag for summary in event.summary.value] == list(values)


def params_shown(tmp_path, params):
    (event,) = parsed(session_start(params, make_run_info(tmp_path, run_name="my run", created=12.5)))
    (value,) = event.summary.value
    assert value.tag == hparams.SESSION_START_INFO_TAG
    shown = hparams.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    assert (shown.group_name, shown.start_time_secs) == ("my run", 12.5)
    return {name: getattr(parameter, parameter.WhichOneof("kind")) for name, parameter in shown.hparams.items()}


def test_parameters_are_shown_with_the_type_of_their_text(tmp_path):
    types = {"0.001": 0.001, "-3": -3.0, "1e20": 1e20, "True": True, "false": False, "\ud800": "\\ud800"}
    texts = ["CartPole-v1", "nan", "1e999", "20261121_215857_3", "07", "12345678901234567891", ""]
    expected = [*types.values(), *texts]
    shown = params_shown(tmp_path, {f"p{number}": text for number, text in enumerate([*types, *texts])})
    assert [shown[f"p{number}"] for number in range(len(expected))] == expected
    assert type(shown["p3"]) is bool


def test_parameters_are_encoded_as_by_tensorboard(tmp_path):
    params = {"lr": "0.1", "on": "true", "env.id": "CartPole-v1", "steps": "10"}
    (event,) = parsed(session_start(params, make_run_info(tmp_path, run_name="my run", created=12.5)))
    (value,) = event.summary.value
    values = {"lr": 0.1, "on": True, "env.id": "CartPole-v1", "steps": 10}
    (expected,) = hparams_pb(values, trial_id="my run", start_time_secs=12.5).value
    contents = [each.metadata.plugin_data.content for each in (value, expected)]
    shown, expected_shown = map(hparams.parse_session_start_info_plugin_data, contents)
    assert shown == expected_shown
    for each in (value, expected):
        each.metadata.plugin_data.content = b""  # its parameters have no order
    assert value == expected
