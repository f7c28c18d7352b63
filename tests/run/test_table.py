import datetime as dt
import enum

import numpy as np
import pandas as pd
import pytest
import torch

from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.run import table


def make(content, **changes):
    return table.table("t", content, **{"step": 3, "time": 10.5, **changes})


class PolarsLike:
    """The part of the polars API in use: `columns`, a list of names, and columns that yield plain values."""

    columns = ("name", "score", "won")

    def __getitem__(self, column):
        return {"name": ["a", "b"], "score": [0.5, None], "won": [True, False]}[column]


@pytest.mark.parametrize(
    "content",
    [
        {"name": ["a", "b"], "score": np.array([0.5, np.nan]), "won": np.array([True, False])},
        {"name": ("a", "b"), "score": torch.tensor([0.5, torch.inf]), "won": [np.True_, False]},
        [{"name": "a", "score": 0.5, "won": True}, {"won": False, "name": "b"}],
        pd.DataFrame({"name": ["a", "b"], "score": [0.5, None], "won": [True, False]}, index=[7, 8]),
        PolarsLike(),
    ],
    ids=["columns", "tensors", "rows", "pandas", "polars"],
)
def test_columns_rows_and_frames_become_the_same_table(content):
    logged = make(content)
    assert logged.rows() == (["name", "score", "won"], [["a", 0.5, True], ["b", None, False]])
    assert (logged.name, logged.step, logged.num_rows) == ("t", 3, 2)
    assert from_bytes(to_bytes(logged)) == logged


def test_cells_of_any_library_become_plain_values():
    frame = pd.DataFrame({"at": pd.to_datetime(["2026-11-22", None]), "n": pd.array([1, None], "Int64")})
    assert make(frame).rows()[1] == [["2026-11-22T00:00:00", 1], [None, None]]
    odd = {"x": [dt.date(2026, 1, 2), 2**70, "\ud800", -np.inf, np.int8(3), np.str_("s")]}
    assert make(odd).rows()[1] == [["2026-01-02"], [str(2**70)], ["\\ud800"], [None], [3], ["s"]]
    numbers = enum.IntEnum("Numbers", {"SMALL": 1, "LARGE": 2**63})
    assert make({"x": list(numbers)}).rows()[1] == [[1], [str(2**63)]]


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_numpy_times_of_any_resolution_become_the_same_iso_text(unit):
    times = np.array(["2026-01-02T03:04:05", "1969-12-31T23:59:59", "NaT"], f"datetime64[{unit}]")
    assert make({"at": times}).rows()[1] == [["2026-01-02T03:04:05"], ["1969-12-31T23:59:59"], [None]]


def test_fractions_of_numpy_times_are_kept():
    times = np.array(["2026-01-02T03:04:05.5", "2026-01-02T03:04:05.000000001"], "datetime64[ns]")
    frame = pd.DataFrame({"at": times})
    assert make({"at": times}).rows() == (["at"], [["2026-01-02T03:04:05.500000"], ["2026-01-02T03:04:05.000000001"]])
    assert make(frame).rows() == make({"at": times}).rows()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (5, "dict of columns, a list of dicts"),
        ({}, "no columns"),
        ([], "no columns"),
        ([{"a": 1}, 2], "each row must be a dict, got int"),
        ({"a": "text"}, "column 'a' is a str"),
        ({"a": [1], "b": [1, 2]}, "'b' has 2 values.*'a' has 1"),
        ({"a": [object()]}, "'a' contains a object"),
        ({"a": np.zeros((2, 2))}, "'a' contains a ndarray"),
        ({"a": np.array([5], "timedelta64[us]")}, "'a' contains a timedelta64"),
        ({"a": np.array(["NaT", 5], "timedelta64[ns]")}, "'a' contains a timedelta64"),
        ({"a": [1], 1: [1], "1": [2]}, "'1'"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "several columns are named 'a'"),
        ({"a": ["x" * 1000] * 5000}, r"as JSON has 5,025,026 bytes, the limit is 4,194,304.*log_artifact"),
        ({"a": range(2**21 + 1)}, "as JSON has 4,194,306 bytes, the limit is 4,194,304"),
    ],
)
def test_an_invalid_or_oversized_table_is_an_error_with_a_hint(content, message):
    with pytest.raises((TypeError, ValueError), match=f"table 't'.*{message}"):
        make(content)
