from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from trieye.sinks.mlflow.run import MAX_NAME_LENGTH, mlflow_name

NASTY = st.text(alphabet="ax_045ef2sha/.@ é\n\ud800", max_size=12)


def test_a_valid_name_is_unchanged():
    for name in ("Loss/Total", "a_x", "pos_x1", "box_xa", "a b", "a:b", "v1.2-3", "é", ".hidden", "a/...", "_"):
        assert mlflow_name(name) == name


def test_a_name_that_mlflow_rejects_is_escaped():
    escaped = {"acc@1": "acc_x40_1", "a//b": "a/_x2f_b", "/a": "_x2f_a", "a/": "a_x2f_", "a/../b": "a/_x2e_./b"}
    escaped |= {"./a": "_x2e_/a", "..a": "_x2e_.a", "..": "_x2e_.", "a\n": "a_xa_", "a_x40_": "a_x5f_x40_", "": "_x_"}
    assert {name: mlflow_name(name) for name in escaped} == escaped


@given(NASTY)
@example("/" * 5)
@example("a/./../.")
def test_every_mapped_name_is_valid_in_mlflow(name):
    _validate_metric_name(mlflow_name(name))
    assert "\n" not in mlflow_name(name)


def test_escaping_has_no_collisions_between_neighboring_characters():
    # all words of a small alphabet: chance would miss the collisions of neighbors
    words = [""]
    for _ in range(6):
        words += [word + letter for word in words if len(word) == len(words[-1]) for letter in "_x4@"]
    assert len({mlflow_name(word) for word in words}) == len(set(words)) > 4000


def test_long_names_are_truncated_and_stay_different():
    first, second = "a" * 300, "a" * 301
    assert mlflow_name("a" * MAX_NAME_LENGTH) == "a" * MAX_NAME_LENGTH
    assert len(mlflow_name(first)) <= MAX_NAME_LENGTH
    assert mlflow_name(first) != mlflow_name(second)
    assert mlflow_name(mlflow_name(first)) != mlflow_name(first)
    assert len(mlflow_name("@" * 100)) <= MAX_NAME_LENGTH
