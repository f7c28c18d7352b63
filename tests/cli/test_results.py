"""`trieye results`, on real runs and a real sweep."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tensorboardX import SummaryWriter

import trieye
from tests.cli.conftest import Command
from tests.moved import moved
from tests.results.runs_of import config, make_run
from trieye.cli import main
from trieye.cli.results import STATS
from trieye.integrations.opening import adopted_config
from trieye.results import load
from trieye.results.aggregates import Aggregate
from trieye.results.statistics import aggregate, difference, probability_of_improvement
from trieye.results.tables import SEPARATE
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SWEEP, SweepRecord

SCORES = {"dqn": [5.0, 9.0, 6.0], "ppo": [10.0, 14.0, 11.0]}
COMPLETES_JOBS = """
import json, sys
from pathlib import Path

directory = Path(next(word for word in sys.argv if word.startswith("hydra.sweep.dir=")).partition("=")[2])
axes = json.loads((directory / "sweep.json").read_text())["grid"]["axes"]
jobs = [()]
for axis in axes:
    jobs = [(*job, f"{axis['keys'][0]}={value}") for job in jobs for (value,) in axis["places"]]
for index, job in enumerate(jobs):
    score = 100 * ("name=a" in job) + 2 * ("lr=2" in job) + ("lr=1" in job)
    record = {"index": index, "overrides": job, "state": "completed", "objective": score}
    (directory / str(index)).mkdir()
    (directory / str(index) / "status.json").write_text(json.dumps(record))
"""


@pytest.fixture(scope="module")
def scored_runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    for algo, scores in SCORES.items():
        for seed, score in enumerate(scores):
            values = np.linspace(0.0, score, 11)
            make_run(root, f"{algo}{seed}", values, every=1000, seed=seed, agent={"algo": algo})
    return root


def write_jobs(directory, scores):
    """Record a sweep whose jobs have returned these scores, by their overrides."""
    spec = sorted({word for overrides in scores for word in overrides})
    SweepRecord(spec=spec, search={"kind": "random"}, size=len(scores)).write(directory)
    for index, (overrides, score) in enumerate(scores.items()):
        job = JobRecord(index=index, overrides=list(overrides), state="completed", objective=score)
        job.write(directory / str(index))
    return directory


class Results(Command):
    """Commands `trieye results`, by default on the runs of this module."""

    def __init__(self, capfd, scored_runs):
        super().__init__(capfd, "results")
        self._scored_runs = scored_runs

    def __call__(self, action, *arguments, run_source=None):
        return super().__call__(action, run_source or self._scored_runs, *arguments)


@pytest.fixture
def results(scored_runs, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return Results(capfd, scored_runs)


@pytest.fixture
def as_json(results):
    def run(*arguments, **options):
        out = results.output(*arguments, "--json", **options)
        return json.loads(out)

    return run


def assert_estimate(reported, estimate):
    assert reported == {
        "value": pytest.approx(estimate.value),
        "low": pytest.approx(estimate.low),
        "high": pytest.approx(estimate.high),
        "n": estimate.n,
        "n_missing": estimate.n_missing,
    }


def test_unequal_budgets_of_groups_are_noted(as_json, tmp_path):
    assert as_json("table", "--by", "algo")["problems"] == []
    for algo, num_points in (("dqn", 11), ("ppo", 40)):
        make_run(tmp_path, algo, [1.0] * num_points, every=1000, agent={"algo": algo})
    text = "unequal budgets: groups trained for 10,000 to 39,000 steps, which may explain the better score"
    assert as_json("table", "--by", "algo", run_source=tmp_path)["problems"] == [text]


def test_a_table_lists_groups_with_intervals_best_first(results, as_json):
    code, out, err = results("table", "--by", "algo", "--last", "1")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("dqn", "ppo"))]
    assert [row[:3] for row in rows] == [["ppo", "3", "11.67"], ["dqn", "3", "6.667"]]
    table = as_json("table", "--by", "algo", "--last", "1", "--stat", "mean")
    assert [group["label"] for group in table["groups"]] == ["ppo", "dqn"]
    for group in table["groups"]:
        assert_estimate(group["mean"], aggregate(SCORES[group["label"]], "mean"))
    assert table["metric"] == "eval/return"  # the loop.objective of the runs
    fewer = as_json("table", "--by", "algo", "--mode", "min", "--confidence", "0.5")
    assert [group["label"] for group in fewer["groups"]] == ["dqn", "ppo"]


def test_runs_that_match_all_conditions_are_selected(as_json):
    for conditions, num_runs in (
        (["seed>=1"], 2),
        (["algo=ppo,sac", "seed=1"], 1),
        (["seed!=0", "seed!=1"], 1),
        (["seed!=0,1"], 1),
        (["algo=sac, ppo", "name != ppo0, ppo1"], 1),
        (["seed=0,1", "seed=1,2"], 1),
    ):
        arguments = [word for condition in ("algo=ppo", *conditions) for word in ("--where", condition)]
        assert as_json("table", *arguments)["groups"][0]["iqm"]["n"] == num_runs, conditions


@pytest.mark.long
def test_a_curve_is_drawn_in_the_terminal_or_as_an_image(results, tmp_path):
    out = results.output("curve", "--by", "algo")
    assert "\x1b" not in out
    assert "ppo: 11.67 [10, 14] at 10,000 (3 runs)" in out
    for name in ("c.png", "c.svg", "c.pdf"):
        code, out, _ = results("curve", "--by", "algo", "--runs", "-o", name)
        assert (code, out) == (0, f"written to {name}\n")
    assert np.asarray(Image.open(tmp_path / "c.png").convert("RGB")).std() > 10
    picture = (tmp_path / "c.svg").read_text()
    assert all(f">{text}</text>" in picture for text in ("dqn (n=3)", "ppo (n=3)", "step"))
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


def test_curves_in_json_have_null_for_missing_values(as_json):
    (curve,) = as_json("curve", "--grid", "3", "--where", "name=ppo0")["curves"]
    assert (curve["band"]["at"], curve["band"]["low"]) == ([0.0, 5000.0, 10000.0], [None] * 3)


def test_runs_with_one_point_are_dots_at_their_own_steps_or_noted(results, as_json, tmp_path):
    for seed, step in enumerate((1000, 1400, 2100)):
        with trieye.Run(config(tmp_path / "root", f"r{seed}", seed=seed)) as run:
            run.log("eval/return", seed + 1.0, step=step)
    assert results.output("curve", run_source=tmp_path / "root").count("\N{BULLET}") == 3
    (curve,) = as_json("curve", run_source=tmp_path / "root")["curves"]
    values = zip(curve["band"]["at"], curve["band"]["value"], strict=True)
    assert [point for point in values if point[1] is not None] == [(1000, 1), (1400, 2), (2100, 3)]
    code, _, err = results("curve", "--grid", "2", run_source=tmp_path / "root")
    assert code == 0
    assert [line.split(":")[0][-2:] for line in err.splitlines() if "the grid has no point" in line] == ["r1"]


@pytest.mark.long
def test_a_comparison_ends_with_a_verdict_on_each_pair(results, as_json, tmp_path):
    arguments = ("compare", "--by", "algo", "--last", "1")
    assert "dqn and ppo: inconclusive with 3 + 3 runs: each group needs 5 or more runs" in results(*arguments)[1]
    arguments = ("compare", "--by", "lr", "--last", "1")
    for lr, lowest in ((0.1, 0.0), (0.2, 10.0), (0.3, 9.5)):
        for seed in range(5):
            make_run(tmp_path / "root", f"{lr}_{seed}", [lowest + seed], seed=seed, agent={"lr": lr})
    out = results(*arguments, run_source=tmp_path / "root")[1]
    assert "lr=0.1 is lower than lr=0.2 with 5 + 5 runs" in out
    assert "lr=0.2 and lr=0.3: inconclusive with 5 + 5 runs: the interval of their difference includes 0" in out
    assert "not corrected for the number of pairs, 3" in out
    make_run(tmp_path / "root", "0.3_5", [0.0, math.nan], seed=5, agent={"lr": 0.3})
    pairs = as_json(*arguments, run_source=tmp_path / "root")["pairs"]
    assert [pair["verdict"] for pair in pairs] == ["lower", "inconclusive", "inconclusive"]
    out = results(*arguments, run_source=tmp_path / "root")[1]
    assert "lr=0.3 (1 of 6 diverged): inconclusive with 5 + 5 runs: diverged runs have no score" in out


@pytest.mark.long
def test_a_report_of_few_agreeing_runs_has_a_caveat(results, tmp_path):
    results.output("report", "--by", "algo", "--last", "1", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "[1, 1]*" in page
    assert "* All pairs of runs agree" in page


def test_a_comparison_names_the_groups_that_where_excludes(results, tmp_path):
    lrs = (("lr=0.1", "clip=0.1"), ("lr=0.2", "clip=0.1"), ("lr=0.3",))
    jobs = write_jobs(tmp_path / "jobs", dict.fromkeys(lrs, 1.0))
    arguments = ("compare", "--by", "lr", "--where")
    code, _, err = results(*arguments, "lr!=0.3", run_source=jobs)
    assert (code, "--where lr!=0.3 excludes all runs of lr=0.3" in err) == (0, True), err
    code, _, err = results(*arguments, "clip=0.1", "--strict", "--where", "lr<0.2", run_source=jobs)
    text = "only one group to compare (lr=0.1); --where clip=0.1 --where lr<0.2 excludes all runs of lr=0.2, lr=0.3"
    assert (code, text in err) == (2, True), err


def test_a_comparison_writes_all_pairs_as_csv_markdown_and_latex(results, tmp_path):
    scores = {  # 21 pairs; the terminal shows 15
        (f"name=g_{number}", f"seed={seed}"): 100.0 * number + seed
        for number in range(7)
        for seed in range(5 if number < 2 else 1)
    }
    jobs = write_jobs(tmp_path / "jobs", scores)
    arguments = ("compare", "--by", "name", "-o")
    code, out, err = results(*arguments, "pairs.csv", run_source=jobs)
    assert (code, "written to pairs.csv" in out, "6 more pairs" in out) == (0, True, True), err
    assert " 0 [0, 0]* " in out
    for name in ("pairs.md", "pairs.tex"):
        assert results(*arguments, name, "--where", "name=g_0,g_1", run_source=jobs)[0] == 0
    with (tmp_path / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 21
    estimate = difference(np.arange(5.0), 100.0 + np.arange(5.0))
    numbers = dict.fromkeys(("probability", "probability_low", "probability_high"), 0.0) | {"runs_x": 5, "runs_y": 5}
    numbers |= {"difference": -100.0, "difference_low": estimate.low, "difference_high": estimate.high}
    assert {key: float(rows[0][key]) for key in numbers} == numbers
    assert (rows[0]["x"], rows[0]["y"], rows[0]["verdict"]) == ("g_0", "g_1", "lower")
    ends = f"[{estimate.low:.3g}, {estimate.high:.3g}]"
    lines = (tmp_path / "pairs.md").read_text().splitlines()
    assert lines[0] == "| X | Y | runs | P(X > Y) | 95% CI | iqm, X - Y | 95% CI | verdict |"
    assert lines[2] == f"| g_0 | g_1 | 5 + 5 | 0* | [0, 0] | -100 | {ends} | lower |"
    assert lines[4] == "objective; higher is better"
    assert lines[6] == f"\\* {SEPARATE}"
    text = (tmp_path / "pairs.tex").read_text()
    assert "X & Y & runs & P(X \\textgreater{} Y) & 95\\% CI & iqm, X - Y & 95\\% CI & verdict \\\\\n" in text
    ends = ends.replace("-", "$-$")  # LaTeX prints "-" as a hyphen
    assert f"g\\_0 & g\\_1 & 5 + 5 & 0* & [0, 0] & $-$100 & {ends} & lower \\\\\n" in text
    assert text.startswith(f"% {lines[4]}\n% * {SEPARATE}\n% requires")
    err = results.error(*arguments, "pairs.tx", run_source=jobs)
    assert "unknown format 'tx'; did you mean 'tex'?" in err


def test_two_directories_are_compared_by_probability_and_difference(scored_runs, results, as_json, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for directory, algo in ((one, "dqn"), (other, "ppo")):
        for seed in range(3):
            shutil.copytree(scored_runs / f"app/runs/{algo}{seed}", directory / "app/runs" / f"{algo}{seed}")
    (pair,) = as_json("compare", other, "--last", "1", run_source=one)["pairs"]
    assert (pair["x"], pair["y"]) == ("one", "other")
    assert_estimate(pair["probability"], probability_of_improvement(SCORES["dqn"], SCORES["ppo"]))
    assert_estimate(pair["difference"], difference(SCORES["dqn"], SCORES["ppo"]))
    (less,) = as_json("compare", other, "--last", "1", "--mode", "min", run_source=one)["pairs"]
    assert (less["probability"]["value"], less["difference"]["value"]) == (1.0, pair["difference"]["value"])
    make_run(other, "dqn", [1.0], agent={"algo": "dqn"})
    err = results.error("compare", other, run_source=one)
    assert "other is 2 configs, which differ in agent.algo; separate them by --by place,agent.algo, " in err
    pairs = as_json("compare", other, "--by", "place,agent.algo", run_source=one)["pairs"]
    assert {pair["y"] for pair in pairs} == {"place=other algo=dqn", "place=other algo=ppo"}


def test_sensitivity_compares_the_values_of_a_parameter(results, as_json, tmp_path):
    out = results.output("sensitivity", "--param", "algo", "--last", "1", "-o", "algo.svg")
    assert out.index("dqn") < out.index("ppo")
    assert (tmp_path / "algo.svg").exists()
    (line,) = as_json("sensitivity", "--param", "algo", "--last", "1", "--stat", "mean")["lines"]
    assert [setting["value"] for setting in line["settings"]] == ["dqn", "ppo"]
    assert_estimate(line["settings"][1]["best"], aggregate(SCORES["ppo"], "mean"))


def test_sensitivity_names_the_best_config_of_each_group(results, tmp_path):
    scores = {
        ("algo=ppo", "lr=0.1", "clip=0.1"): 2.0,
        ("algo=ppo", "lr=0.1", "clip=0.3"): 4.0,
        ("algo=ppo", "lr=0.2", "clip=0.1"): 3.0,
        ("algo=dqn", "lr=0.1", "clip=0.1"): 1.0,
    }
    jobs = write_jobs(tmp_path / "jobs", scores)
    out = results.output("sensitivity", "--param", "lr", "--by", "algo", run_source=jobs)
    best = {tuple(line.split()[:2]): line.split()[-2:] for line in out.splitlines() if line.strip()[:3] in SCORES}
    assert best[("ppo", "0.1")] == ["lr=0.1", "clip=0.3"]


@pytest.mark.long
def test_sensitivity_to_a_tag_separates_its_values(as_json, tmp_path):
    for number, (variant, seed) in enumerate((variant, seed) for variant in ("new", "old") for seed in (0, 1)):
        make_run(tmp_path, f"r{number}", [number], seed=seed, tags={"variant": variant})
    (line,) = as_json("sensitivity", "--param", "tags.variant", run_source=tmp_path)["lines"]
    assert {setting["value"]: setting["best"]["value"] for setting in line["settings"]} == {"new": 0.5, "old": 2.5}


def test_the_importance_of_parameters_is_printed_and_plotted(results, tmp_path):
    scores = {(f"lr={lr}", f"clip={clip}"): 10.0 * lr + clip for lr in range(4) for clip in (0, 1)}
    jobs = write_jobs(tmp_path / "jobs", scores)
    arguments = ("importance", "-o", "parallel.png")
    out = results.output(*arguments, run_source=jobs)
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["lr"], ["clip"])]
    assert [row[:2] for row in rows] == [["lr", "8"], ["clip", "8"]]
    with Image.open(tmp_path / "parallel.png") as picture:
        assert picture.width > 500
    err = results.error(*arguments, "--where", "clip=0", run_source=jobs)
    assert "needs two or more varying keys and 8 configs" in err


def test_select_reports_the_best_config_and_those_not_clearly_worse(results, as_json):
    group = as_json("select", "--last", "1")["groups"][0]
    assert (group["best"], group["not_worse"]) == ("ppo", ["ppo"])
    assert as_json("select", "--last", "1", "--mode", "min")["groups"][0]["best"] == "dqn"
    out = results.output("select")
    assert "the selected config is optimistic" in " ".join(out.split())


def test_the_lowest_optimality_gap_ranks_first_and_requires_higher_scores_to_be_better(results, as_json, tmp_path):
    jobs = write_jobs(tmp_path / "jobs", {("algo=dqn",): 0.1, ("algo=ppo",): 0.8})
    table = ("table", "--stat", "optimality_gap", "--by", "algo")
    assert [group["label"] for group in as_json(*table, run_source=jobs)["groups"]] == ["ppo", "dqn"]
    err = results.error(*table, "--mode", "min", run_source=jobs)
    assert "optimality_gap" in err
    assert "--mode max" in err


def test_with_json_figures_are_written_and_only_the_document_is_printed(as_json, tmp_path):
    for action in ("table", "compare"):
        assert as_json(action, "-o", f"{action}.svg", "--by", "algo")["schema"] == f"trieye.results.{action}/1"
        assert (tmp_path / f"{action}.svg").read_text().rstrip().endswith("</svg>")


def test_marks_are_lines_with_labels_in_the_legend_and_json_writes_an_equal_image(results, as_json, tmp_path):
    arguments = ("curve", "--by", "algo", "--mark", "2_500:killed at 2,500", "-o", "curves.svg")
    assert "written to curves.svg" in results.output(*arguments)
    image = tmp_path / "curves.svg"
    written = image.read_text()
    assert "killed at 2,500" in written
    image.unlink()
    assert as_json(*arguments)["schema"] == "trieye.results.curve/1"
    assert image.read_text() == written


def test_points_are_exported_as_a_table(results, tmp_path):
    for name in ("points.parquet", "points.csv", "points.feather"):
        code, out, _ = results("export", "--metric", "eval/return", "-o", name)
        assert (code, out) == (0, f"66 points of 6 runs written to {name}\n")
    table = pq.read_table(tmp_path / "points.parquet")
    assert table.column_names == ["run", "metric", "seed", "agent.algo", "step", "value", "wall_time"]
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["value"]) for row in rows] == table["value"].to_pylist()
    assert {path.name for path in tmp_path.iterdir()} == {"points.parquet", "points.csv", "points.feather"}


def test_an_invalid_argument_prints_one_message_and_writes_nothing(results, tmp_path):
    for arguments, message in (
        (["table", "--metric", "eval/retur"], "did you mean 'eval/return'?"),
        (["table", "--by", "alg"], "did you mean 'algo'?"),
        (["table", "--by", "algo,seed"], "seed: runs that differ only in their seed are replicates"),
        (["table", "--where", "algo"], "--where algo: expected KEY=VALUE"),
        (["table", "--where", "seed>=0,1"], "--where seed>=0,1: >= takes one value; only = and != take several"),
        (["table", "--where", "algo=sac"], "none of 6 runs match (agent.algo is dqn, ppo)"),
        (["table", "--last", "0%"], "--last 0%: expected a percentage, such as 10%"),
        (["table", "--last", "many"], "--last many: expected a percentage, such as 10%"),
        (["table", "--range", "a=1"], "--range a=1: expected TASK=LOW:HIGH"),
        (["table", "--confidence", "95"], "--confidence 95: must be between 0 and 1"),
        (["curve", "-o", "c.csv"], "unknown image format 'csv'; `trieye results export` writes points"),
        (["curve", "-o", "c.pgn"], "unknown image format 'pgn'; did you mean 'png'?"),
        (["curve", "--grid", "0"], "grid=0"),
        (["curve", "--mark", "soon", "-o", "c.svg"], "--mark"),
        (["compare", "--where", "algo=ppo"], "only one group to compare"),
        (["sensitivity", "--param", "agent.algos"], "did you mean 'agent.algo'?"),
        (["select", "--rerun", "0"], "--rerun 0: must be at least 1"),
        (["select", "--rerun", "1"], "belong to no sweep; --rerun needs runs of one sweep"),
        (["export", "-o", "x.parqet"], "unknown table format '.parqet'; did you mean '.parquet'?"),
        (["export", "--metric", "los", "-o", "x.csv"], "--metric los: no run logged it; did you mean 'loss'?"),
    ):
        assert message in results.error(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_printing_figures_imports_no_slow_packages(scored_runs):
    code = (
        "import sys\nfrom trieye.cli import main\n"
        f"main(['results', 'table', {str(scored_runs)!r}])\n"
        "print([name for name in ('torch', 'ray', 'mlflow', 'hydra', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def in_project(tmp_path, monkeypatch):
    """A working directory with a program that completes the jobs of a sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "fit.py").write_text(COMPLETES_JOBS)


@pytest.fixture
def run_sweep(in_project, capfd):
    """Return a function that runs a sweep in the directory `s`."""

    def run(*axes):
        assert main(["sweep", "plan", "fit.py", *axes, "-o", "s"]) == 0
        assert main(["sweep", "relaunch", "--yes", "s"]) == 0
        capfd.readouterr()

    return run


SELECT = ("results", "select", "s", "--stat", "mean", "--rerun", "2")


def test_the_best_config_is_rerun_with_fresh_seeds_and_both_stages_are_shown(run_sweep, tmp_path, command):
    run_sweep("lr=1,2", "size=1,2", "seed=0,1")
    assert "job 1: lr=2 size=1 seed=3" in command.output(*SELECT, "--dry-run")
    sweep = tmp_path / "s" / SWEEP
    record = sweep.read_text()
    sweep.write_text(record.replace('"signature": "', '"signature": "x'))
    assert "has not signed for this directory" in command.error(*SELECT)
    assert not list(tmp_path.glob("s_rerun*"))
    sweep.write_text(record)
    (line,) = [line.split() for line in command.output(*SELECT).splitlines() if "fresh seeds" in line]
    assert line[-4:-2] == ["2", "2"]  # two runs, each of which returns 2
    command.output(*SELECT, "--close")  # size=2 is as good as size=1
    rerun, close = sorted(tmp_path.glob("s_rerun*"), key=lambda path: len(list(path.iterdir())))
    assert (len(load(rerun)), len(load(close))) == (2, 4)
    assert {run.seed for run in load(close)} == {2, 3}


@pytest.mark.usefixtures("in_project")
def test_the_best_trial_of_a_search_is_rerun_with_fresh_seeds(tmp_path, command):
    sweep = SweepRecord(
        program=[sys.executable, "fit.py"], working_dir=str(tmp_path), spec=["lr=interval(0.1,0.9)", "size=1"],
        search={"kind": "random"}, size=3,
    )  # fmt: skip
    sweep.sign().write(tmp_path / "s")
    for index, lr in enumerate((0.3, 0.8, 0.5)):
        job = JobRecord(index=index, overrides=[f"lr={lr}", "size=1"], state="completed", objective=lr)
        job.write(tmp_path / "s" / str(index))
    assert command.output("results", "select", "s").count("too few runs") == 2
    status = tmp_path / "s/1/status.json"
    recorded = status.read_text()
    status.write_text(recorded.replace('"size=1"', '"size=1", "description=planted"'))
    assert "has not signed for this directory" in command.error("results", "select", "s", "--rerun", "2")
    status.write_text(recorded)
    assert "fresh seeds" in command.output("results", "select", "s", "--rerun", "2")
    (fresh,) = tmp_path.glob("s_rerun*")
    assert [(run.params["lr"], run.seed) for run in load(fresh)] == [(0.8, 0), (0.8, 1)]


def test_the_best_config_is_rerun_in_each_task_and_of_each_group(run_sweep, command):
    run_sweep("name=a,b", "lr=1,2", "seed=0,1")
    assert "rerun with seeds 2 to 3: a lr=2, b lr=2" in command.output(*SELECT, "--by", "name", "--dry-run")
    out = command.output(*SELECT, "--task", "name", "--yes")
    rows = [line.split() for line in out.splitlines() if " seeds " in line]
    assert [row[-4:-2] for row in rows[-2:]] == [["4", "52"], ["4", "52"]]


def test_each_aggregate_is_a_choice_of_the_command():
    assert set(STATS) == set(get_args(Aggregate))


def test_without_a_source_the_only_app_and_its_objective_are_analyzed(tmp_path, monkeypatch, command):
    """Also for programs that log through `trieye.integrations`, whose config is not a parameter."""
    monkeypatch.chdir(tmp_path)

    def log(app):
        settings = {"loop": {"objective": "eval/reward"}, "sinks": {"mlflow": {"enabled": False}}}
        with trieye.Run(adopted_config("first", app, settings)) as run:
            run.log({"eval/reward": 3.0, "other": 1.0}, step=1)

    log("one")
    code, out, err = command("results", "table")
    assert (code, out[:11], err.count("runs of .trieye_data/one")) == (0, "eval/reward", 1)
    monkeypatch.setenv("TRIEYE_ROOT", "adopted")
    log("two")
    assert ": .trieye_data/one, adopted/two" in command.error("results", "table")


# diverged runs

FINITE = [3.0, 2.0, 1.0]
"""The finite part of a loss that diverges."""


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """Return a root with two configs of two seeds; one run logs only NaN after a fifth of its steps."""
    root = tmp_path_factory.mktemp("diverged")
    bad = [*FINITE, *[math.nan] * 12]
    for name, lr, seed, values in (
        ("sound0", 0.1, 0, np.linspace(9.0, 5.0, 15)),
        ("sound1", 0.1, 1, np.linspace(9.0, 5.5, 15)),
        ("bad0", 0.9, 0, bad),
        ("bad1", 0.9, 1, np.linspace(9.0, 4.0, 15)),
    ):
        make_run(root, name, values, every=10, seed=seed, agent={"lr": lr})
    return root


@pytest.mark.long
def test_a_diverged_run_wins_only_if_its_finite_points_are_included(diverged, as_json):
    arguments = ("--mode", "min", "--last", "1", "--stat", "mean")
    table = as_json("table", *arguments, run_source=diverged)
    assert [(group["label"], group.get("diverged")) for group in table["groups"]] == [("lr=0.1", 0), ("lr=0.9", 1)]
    assert (table["groups"][1]["mean"]["value"], table["groups"][1]["mean"]["n"]) == (4.0, 1)
    assert {Path(run).name: step for run, step in table["diverged"].items()} == {"bad0": 30}
    (chosen,) = as_json("select", *arguments, run_source=diverged)["groups"]
    assert (chosen["best"], chosen["not_worse"]) == ("lr=0.1", ["lr=0.1"])
    assert {config["label"]: config["p_best"] for config in chosen["configs"]} == {"lr=0.1": 1.0, "lr=0.9": 0.0}
    finite = as_json("table", *arguments, "--include-diverged", run_source=diverged)["groups"]
    assert [(group["label"], group["mean"]["value"]) for group in finite] == [("lr=0.9", 2.5), ("lr=0.1", 5.25)]
    assert as_json("select", *arguments, "--include-diverged", run_source=diverged)["groups"][0]["best"] == "lr=0.9"
    (line,) = as_json("sensitivity", "--param", "algo", *arguments, run_source=diverged)["lines"]
    assert [setting["best"]["value"] for setting in line["settings"]] == [5.25]


def test_scores_near_the_largest_number_are_shown_in_a_few_digits_without_warnings(results, tmp_path):
    for seed in range(4):
        make_run(tmp_path, f"huge{seed}", [1.5e308] * 30, every=10, seed=seed, agent={"lr": 0.1})
        make_run(tmp_path, f"large{seed}", [2e200 + seed * 1e200] * 30, every=10, seed=seed, agent={"lr": 0.2})
    code, out, err = results("table", "--last", "1", run_source=tmp_path)
    assert code == 0, err
    assert "3.5e+200" in out
    assert "inf" in out
    assert results("table", run_source=tmp_path)[0] == 0  # the mean of the last points of a run is infinite


def test_a_diverged_run_is_marked_in_each_view_of_its_group(diverged, results):
    for action in ("table", "curve", "select", "compare"):
        code, out, err = results(action, "--mode", "min", run_source=diverged)
        assert code == 0, err
        assert "lr=0.9 (1 of 2 diverged)" in out, action
        assert "lr=0.1 (" not in out, action
        assert "bad0: diverged: eval/return is NaN or infinite from step" in err, action


@pytest.mark.long
def test_a_report_marks_diverged_runs_and_ranks_their_group_last(diverged, results, tmp_path):
    results.output("report", "--mode", "min", run_source=diverged)
    page = (tmp_path / "report.html").read_text()
    assert "lr=0.9 (1 of 2 diverged)" in page
    assert page.index("lr=0.1") < page.index("lr=0.9 (1 of 2 diverged)")
    assert "eval/return is NaN or infinite from step" in page


def test_a_diverged_foreign_run_wins_neither_before_nor_after_its_import(as_json, tmp_path, capfd):
    for name, values in {"sound_1": [9.0, 7.0, 5.0], "bad_1": [3.0, 1.0, math.nan, math.inf, math.nan]}.items():
        with SummaryWriter(str(tmp_path / "logs" / name)) as writer:
            for step, value in enumerate(values):
                writer.add_scalar("loss", value, step)
    arguments = ("table", "--mode", "min", "--metric", "loss", "--last", "1", "--by", "name")
    before = as_json(*arguments, run_source=tmp_path / "logs")
    assert main(["import", "tensorboard", str(tmp_path / "logs"), "--root", str(tmp_path / "root")]) == 0
    capfd.readouterr()
    after = as_json(*arguments, run_source=tmp_path / "root")
    for table in (before, after):
        rows = [(group["label"], group.get("diverged"), group["iqm"]["value"]) for group in table["groups"]]
        assert rows == [("sound_1", 0, 5.0), ("bad_1", 1, None)]


# which runs count


def test_runs_that_are_not_counted_are_named_and_equal_runs_of_two_apps_are_exported(results, tmp_path):
    root = tmp_path / "root"
    for app, name, value in (("strong", "first", 96.6), ("weak", "first", 29.7), ("weak", "second", 50.0)):
        make_run(root, name, [value], app=app)
    _, out, err = results("table", run_source=root)
    assert [value in out for value in ("96.6", "50", "29.7")] == [True, True, False]
    assert "1 of 3 runs are not counted" in err
    assert "weak/runs/first: not counted" in err
    results.output("export", "-o", "points.parquet", run_source=root)
    assert set(pq.read_table(tmp_path / "points.parquet")["app"].to_pylist()) == {"strong", "weak"}


@pytest.mark.long
def test_equal_runs_have_equal_intervals_and_missing_seeds_in_each_table(as_json, tmp_path):
    for number, value in enumerate(np.random.default_rng(0).normal(size=13)):
        make_run(tmp_path, f"r{number}", [value], seed=number // 2, agent={"algo": ("dqn", "ppo")[number % 2]})
    table = {group["label"]: group["iqm"] for group in as_json("table", run_source=tmp_path)["groups"]}
    (chosen,) = as_json("select", run_source=tmp_path)["groups"]
    (line,) = as_json("sensitivity", "--param", "algo", run_source=tmp_path)["lines"]
    assert {config["label"]: config["estimate"] for config in chosen["configs"]} == table
    assert {setting["value"]: setting["best"] for setting in line["settings"]} == table
    assert {label: estimate["n_missing"] for label, estimate in table.items()} == {"dqn": 0, "ppo": 1}


@pytest.mark.long
def test_the_median_of_one_task_is_its_run_median_with_unique_column_names(results, as_json, tmp_path):
    arguments = ("--by", "algo", "--last", "1", "--stat", "median")
    groups = {group["label"]: group for group in as_json("table", *arguments)["groups"]}
    assert_estimate(groups["ppo"]["run_median"], aggregate(SCORES["ppo"], "run_median"))
    _, out, _ = results("table", *arguments)
    (heading,) = [line for line in out.splitlines() if "median" in line]
    assert heading.count("median") == 1
    for seed, rate, score in ((0, 0.1, 1.0), (1, 0.1, 9.0), (2, 0.1, 2.0), (0, 0.2, 5.0), (1, 0.2, 7.0), (2, 0.2, 0.0)):
        make_run(tmp_path / "root", f"r{rate}-{seed}", [score], seed=seed, agent={"lr": rate})
    _, out, _ = results("table", "--task", "lr", "--stat", "run_median", run_source=tmp_path / "root")
    (heading,) = [line for line in out.splitlines() if "median" in line]
    names = [name.strip() for name in heading.split("  ") if "median" in name]
    assert sorted(names) == ["median", "run median"]


def test_ranges_for_only_some_tasks_are_rejected_naming_the_others(results, tmp_path):
    jobs = write_jobs(tmp_path / "jobs", {("lr=0.1",): 1.0, ("lr=0.2",): 2.0, ("lr=0.3",): 3.0})
    arguments = ("table", "--task", "lr", "--range", "0.1=0:10")
    assert "0.2, 0.3 have no range" in results.error(*arguments, run_source=jobs)
    code, _, err = results(*arguments, "--range", "0.2=0:10", "--range", "0.3=0:10", run_source=jobs)
    assert code == 0, err
    assert "raw scores" not in err
    _, _, err = results("table", "--task", "lr", run_source=jobs)
    assert "--task lr: raw scores of 3 tasks are combined" in " ".join(err.split())


def test_a_killed_run_with_points_only_in_its_journal_names_the_close_command(results, tmp_path):
    root = tmp_path / "root"
    with trieye.Run(config(root, "open", seed=1)) as run:
        run.log({"eval/return": 3.0}, step=7)
        run.flush()
        killed = moved(shutil.copytree(run.dir, root / "app/runs/killed", ignore=shutil.ignore_patterns("*lock*")))
    shutil.rmtree(run.dir)
    record = json.loads((killed / "run.json").read_text())
    record["summary"] = {"eval/return": {"last": 3.0, "min": 3.0, "max": 3.0, "step": 7}}
    (killed / "run.json").write_text(json.dumps(record))
    message = results.error("table", "--metric", "eval/return", run_source=root)
    assert "eval/return: no run has its points in the history" in message
    assert f"trieye close {killed}" in message
    make_run(root, "whole", [1.0], seed=0)
    code, out, err = results("table", run_source=root)
    assert code == 0
    assert "1 missing" in out
    assert f"trieye close {killed}" in err
    assert main(["close", str(killed)]) == 0
    code, _, err = results("table", "--include-unfinished", run_source=root)
    assert "trieye close" not in err


@pytest.mark.parametrize("action", [("table",), ("export", "-o", "points.csv")])
def test_runs_and_apps_are_selected_as_in_other_commands(action, scored_runs, results, tmp_path):
    shutil.copytree(scored_runs / "app", tmp_path / ".trieye_data/app")
    (tmp_path / "app").mkdir()  # a package named like the app
    for names in (["dqn0", "app/dqn1"], ["app"]):
        results.output(*action, *names[1:], run_source=names[0])
    err = results.error(*action, run_source="dqn7")
    assert "did you mean" in err
    assert "dqn" in err


# exported tables


def test_a_parameter_named_like_a_column_does_not_replace_it(tmp_path):
    column_names = ("run", "metric", "step", "value", "wall_time", "param.run")
    for number in range(2):
        with trieye.Run(config(tmp_path / "root", f"r{number}", seed=number)) as run:
            run.log_params({name: f"{name}-{number}" for name in column_names})
            run.log("loss", 0.5 + number, step=3)
    out = tmp_path / "points.parquet"
    assert main(["results", "export", str(tmp_path / "root"), "--metric", "loss", "-o", str(out)]) == 0
    table = pq.read_table(out).to_pydict()
    assert (table["run"], table["metric"], table["step"]) == (["r0", "r1"], ["loss"] * 2, [3, 3])
    assert table["value"] == [0.5, 1.5]
    for name in column_names:
        assert [f"{name}-0", f"{name}-1"] in table.values()


@pytest.mark.long
def test_a_csv_export_contains_no_spreadsheet_formulas(tmp_path):
    texts = ["=cmd()", "+cmd", "-cmd", "@cmd", "-0.5", "+1e3", "plain"]
    for number, text in enumerate(texts):
        with trieye.Run(config(tmp_path / "root", f"r{number}", seed=0)) as run:
            run.log_params({"=note": text})
            run.log("=loss", -1.0, step=0)
    out = tmp_path / "points.csv"
    assert main(["results", "export", str(tmp_path / "root"), "-o", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == {"'=loss"}
    assert {row["value"] for row in rows} == {"-1"}
    assert [row.get("'=note") for row in rows] == ["'=cmd()", "'+cmd", "'-cmd", "'@cmd", "-0.5", "1000.0", "plain"]
