"""Files of the table of scores."""

import csv

import pytest

from trieye.results.score_files import write_scores
from trieye.results.statistics import aggregate


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a table of groups with these values, and returns its cells."""

    def cells(values, suffix):
        path = tmp_path / f"scores.{suffix}"
        figures = [{name: aggregate([1.0, 2.0], name) for name in ("iqm", "mean")} for _ in values]
        write_scores(values, figures, [0] * len(values), "iqm", path, confidence=0.95)
        if suffix == "csv":
            with path.open(newline="") as file:
                return list(csv.reader(file))
        return [[cell.strip() for cell in line.strip("| ").split("|")] for line in path.read_text().splitlines()]

    return cells


@pytest.mark.parametrize("suffix", ["csv", "md"])
def test_null_is_written_and_a_missing_parameter_is_not(written, suffix):
    rows = written([{"lr": 0.1, "clip": None}, {"lr": 0.2}, {"lr": 0.3, "clip": 0.2}], suffix)
    column = [row[rows[0].index("clip")] for row in rows]
    assert column[-3:] == ["null", "" if suffix == "csv" else "-", "0.2"]


@pytest.mark.parametrize("suffix", ["csv", "md"])
def test_a_parameter_named_like_a_figure_does_not_replace_it(written, suffix):
    rows = written([{"mean": 0.1, "runs": 7, "run": 4}, {"mean": 0.2, "runs": 8, "": "script"}], suffix)
    assert rows[0][:4] == ["param.mean", "param.runs", "run", "param.run"]
    assert float(rows[-1][0]) == 0.2
    assert float(rows[-1][rows[0].index("mean")]) == 1.5


def test_no_row_of_a_latex_table_starts_with_an_option_of_the_preceding_line(written):
    rows = written([{"net": [64, 64]}, {"net": "*"}, {"net": "relu"}], "tex")
    assert [row[0].partition(" & ")[0] for row in rows[-5:-2]] == ["{}[64, 64]", "{}*", "relu"]
