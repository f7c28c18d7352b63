"""`trieye results`, on real runs and a real sweep."""

import csv
import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import trieye
from tests.results.runs_of import make_run
from trieye.cli import main
from trieye.integrations.opening import adopted_config
from trieye.results import load
from trieye.results.statistics import aggregate, difference, probability_of_improvement

SCORES = {"dqn": [5.0, 9.0, 6.0], "ppo": [10.0, 14.0, 11.0]}
PROGRAM = """
import trieye

class Agent(trieye.StrictModel):
    lr: float = 0.1
    size: int = 1

class Config(trieye.TrieyeConfig):
    agent: Agent = Agent()

@trieye.main(config_path="pkg://trieye.conf", config_name="trieye")
def train(config: Config) -> float:
    with trieye.Run(config) as run:
        for step in range(3):
            run.log({"eval/return": config.agent.lr * config.agent.size + config.seed}, step=step)
    return 0.0

if __name__ == "__main__":
    train()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    for algo, scores in SCORES.items():
        for seed, score in enumerate(scores):
            values = np.linspace(0.0, score, 11)
            make_run(root, f"{algo}{seed}", values, every=1000, seed=seed, agent={"algo": algo})
    return root


@pytest.fixture
def results(made, tmp_path, monkeypatch, capfd):
    """Return a function that runs an action on the runs, and gives its exit code and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(action, *words, place=made):
        code = main(["results", action, str(place), *map(str, words)])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def as_json(results):
    def run(*words):
        code, out, err = results(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


def near(found, estimate):
    assert found == {
        "value": pytest.approx(estimate.value),
        "low": pytest.approx(estimate.low),
        "high": pytest.approx(estimate.high),
        "n": estimate.n,
        "n_missing": estimate.n_missing,
    }


def test_a_table_has_the_figures_of_each_group_with_intervals_and_the_best_first(results, as_json):
    code, out, err = results("table", "--by", "algo", "--last", "1")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.strip().startswith(("dqn", "ppo"))]
    assert [row[:3] for row in rows] == [["ppo", "3", "11.67"], ["dqn", "3", "6.667"]]
    held = as_json("table", "--by", "algo", "--last", "1", "--stat", "mean")
    assert [group["label"] for group in held["groups"]] == ["ppo", "dqn"]
    for group in held["groups"]:
        near(group["mean"], aggregate(SCORES[group["label"]], "mean"))
    assert held["metric"] == "eval/return"  # the loop.objective of the runs
    fewer = as_json("table", "--by", "algo", "--min", "--confidence", "0.5")
    assert [group["label"] for group in fewer["groups"]] == ["dqn", "ppo"]


def test_conditions_choose_runs(as_json):
    chosen = as_json("table", "--where", "algo=ppo", "--where", "seed>=1", "--last", "1", "--stat", "mean")
    near(chosen["groups"][0]["mean"], aggregate([14.0, 11.0], "mean"))
    one = as_json("table", "--where", "algo=ppo,sac", "--where", "seed=1")["groups"][0]["iqm"]
    assert (one["n"], one["low"]) == (1, None)


def test_a_curve_is_drawn_in_the_terminal_or_into_a_picture(results, tmp_path):
    code, out, _ = results("curve", "--by", "algo")
    assert code == 0
    assert "\x1b" not in out
    assert "ppo: 11.67 [10, 14] at 10,000, of 3 runs" in out
    for name in ("c.png", "c.svg", "c.pdf"):
        code, out, _ = results("curve", "--by", "algo", "--runs", "-o", name)
        assert (code, out) == (0, f"written to {name}\n")
    assert np.asarray(Image.open(tmp_path / "c.png").convert("RGB")).std() > 10
    picture = (tmp_path / "c.svg").read_text()
    assert all(f">{text}</text>" in picture for text in ("dqn (n=3)", "ppo (n=3)", "step"))
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


def test_curves_as_json_have_null_where_there_is_none(as_json, tmp_path):
    make_run(tmp_path / "root", "short", [1.0, 2.0], every=1000, seed=0, agent={"algo": "dqn"})
    make_run(tmp_path / "root", "long", [1.0, 2.0, 3.0], every=1000, seed=1, agent={"algo": "dqn"})
    held = json.loads(json.dumps(load(tmp_path / "root").curve("eval/return", grid=3).y.tolist()))
    assert held[0][1] == [1.0, 2.0, 3.0]
    (curve,) = as_json("curve", "--grid", "3", "--where", "name=ppo0")["curves"]
    assert (curve["band"]["at"], curve["band"]["low"]) == ([0.0, 5000.0, 10000.0], [None] * 3)


def test_a_comparison_says_how_surely_and_by_how_much_and_what_differs(results, as_json):
    code, out, _ = results("compare", "--by", "algo", "--last", "1", "-o", "profile.png")
    assert code == 0
    assert "what differs" in out
    assert "algo" in out
    (pair,) = as_json("compare", "--by", "algo", "--last", "1")["pairs"]
    near(pair["probability"], probability_of_improvement(SCORES["dqn"], SCORES["ppo"]))
    near(pair["difference"], difference(SCORES["dqn"], SCORES["ppo"]))
    (less,) = as_json("compare", "--by", "algo", "--last", "1", "--min")["pairs"]
    assert less["probability"]["value"] == 1.0
    assert less["difference"]["value"] == pair["difference"]["value"]


def test_a_comparison_of_few_runs_that_all_agree_has_a_caveat(results, tmp_path):
    code, out, err = results("compare", "--by", "algo", "--last", "1")
    assert code == 0, err
    (row,) = (line for line in out.splitlines() if line.split()[:2] == ["dqn", "ppo"])
    assert " 3 + 3 " in row
    assert " 0 [0, 0]* " in row
    assert "* All pairs of runs agree" in out
    assert results("report", "--by", "algo", "--last", "1", "-o", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert ">3 + 3</td>" in page
    assert "[1, 1]*" in page
    assert "* All pairs of runs agree" in page
    make_run(tmp_path / "root", "other", [6.0], seed=3, agent={"algo": "ppo"})
    code, out, err = results("compare", "--by", "algo", "--last", "1", tmp_path / "root")
    assert (code, "3 + 4" in out, "*" in out) == (0, True, False), err


def test_two_places_are_compared_with_one_another(made, tmp_path, capsys):
    for name, algo in (("one", "dqn"), ("other", "ppo")):
        for seed in range(3):
            shutil.copytree(made / f"app/runs/{algo}{seed}", tmp_path / name / "app/runs" / f"{algo}{seed}")
    words = ["results", "compare", str(tmp_path / "one"), str(tmp_path / "other"), "--last", "1", "--json"]
    assert main(words) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["x"], pair["y"]) == (str(tmp_path / "one"), str(tmp_path / "other"))
    near(pair["difference"], difference(SCORES["dqn"], SCORES["ppo"]))


def test_a_parameter_matters_as_much_as_its_values_differ(results, as_json, tmp_path):
    code, out, _ = results("sensitivity", "--param", "algo", "--last", "1", "-o", "algo.svg")
    assert code == 0
    assert out.index("dqn") < out.index("ppo")
    assert (tmp_path / "algo.svg").exists()
    (line,) = as_json("sensitivity", "--param", "algo", "--last", "1", "--stat", "mean")["lines"]
    assert [setting["value"] for setting in line["settings"]] == ["dqn", "ppo"]
    near(line["settings"][1]["best"], aggregate(SCORES["ppo"], "mean", resamples=2_000))


def test_what_a_parameter_matters_in_each_group_names_the_best_config_of_that_group(results, tmp_path):
    for number, (algo, lr, clip, score) in enumerate(
        (("ppo", 0.1, 0.1, 2.0), ("ppo", 0.1, 0.3, 4.0), ("ppo", 0.2, 0.1, 3.0), ("dqn", 0.1, 0.1, 1.0))
    ):
        make_run(tmp_path / "root", f"r{number}", [score], agent={"algo": algo, "lr": lr}, ppo={"clip": clip})
    code, out, err = results("sensitivity", "--param", "lr", "--by", "algo", place=tmp_path / "root")
    assert code == 0, err
    best = {tuple(line.split()[:2]): line.split()[-2:] for line in out.splitlines() if line.strip()[:3] in SCORES}
    assert best[("ppo", "0.1")] == ["lr=0.1", "clip=0.3"]


def test_the_best_is_chosen_with_those_that_cannot_be_told_from_it(results, as_json):
    held = as_json("select", "--last", "1")["groups"][0]
    assert (held["best"], held["not_worse"]) == ("ppo", ["ppo"])
    assert as_json("select", "--last", "1", "--min")["groups"][0]["best"] == "dqn"
    code, out, _ = results("select")
    assert code == 0
    assert "looks better than it is" in " ".join(out.split())


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table", "--metric", "eval/retur"], "did you mean 'eval/return'?"),
        (["table", "--by", "alg"], "did you mean 'algo'?"),
        (["table", "--by", "seed"], "seed=0 is 2 configs, which differ in agent.algo"),
        (["table", "--where", "algo"], "--where algo: this is not KEY=VALUE"),
        (["table", "--where", "algo=sac"], "none of 6 runs fits"),
        (["table", "--last", "0%"], "--last 0%: give a part, such as 10%"),
        (["table", "--last", "many"], "--last many: give a part, such as 10%"),
        (["table", "--range", "a=1"], "--range a=1: this is not TASK=LOW:HIGH"),
        (["table", "--confidence", "95"], "--confidence 95: it is between 0 and 1"),
        (["curve", "-o", "c.pgn"], "pgn is no format of pictures; did you mean 'png'?"),
        (["curve", "--grid", "0"], "grid=0"),
        (["compare", "--where", "algo=ppo"], "there is one group only"),
        (["sensitivity", "--param", "agent.algos"], "did you mean 'agent.algo'?"),
        (["select", "--rerun", "0"], "--rerun 0: it has to be 1 or more"),
        (["select", "--rerun", "1"], "is of no sweep; it needs one sweep"),
        (["export", "-o", "x.parqet"], ".parqet is no format of tables; did you mean '.parquet'?"),
        (["export", "--metric", "los", "-o", "x.csv"], "los: no run has it; did you mean 'loss'?"),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_written(words, told, results, tmp_path):
    code, _, err = results(*words)
    assert code == 2
    assert told in err
    assert not list(tmp_path.iterdir())


def test_damaged_foreign_and_empty_directories_are_named_and_the_rest_counts(made, results, tmp_path):
    root = shutil.copytree(made, tmp_path / "copy")
    runs = root / "app/runs"
    (runs / "dqn0/run.json").write_text("{")
    (runs / "dqn1/configs.json").unlink()
    (runs / "stray").mkdir()
    code, out, err = results("table", "--by", "algo", "--json", place=root)
    assert code == 0, err
    held = json.loads(out)
    assert {group["label"]: group["iqm"]["n"] for group in held["groups"]} == {"ppo": 3, "dqn": 1}
    assert [sum(name in text for text in held["problems"]) for name in ("dqn0", "dqn1", "stray")] == [1, 1, 1]
    _, _, err = results("table", "--by", "algo", place=root)
    assert "stray" in err


def test_nothing_heavy_is_loaded_for_figures(made):
    code = (
        "import sys\nfrom trieye.cli import main\n"
        f"main(['results', 'table', {str(made)!r}])\n"
        "print([name for name in ('torch', 'ray', 'mlflow', 'hydra', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_best_config_is_run_again_with_fresh_seeds_and_both_stages_are_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "train.py").write_text(PROGRAM)
    own = ["runtime=local", "sinks=[]", "hydra.launcher.isolate=none"]
    assert main(["sweep", "plan", "train.py", "agent.lr=0.1,0.9", "agent.size=1,2", "seed=0,1", *own, "-o", "s"]) == 0
    assert main(["sweep", "relaunch", "s"]) == 0
    capfd.readouterr()
    select = ["results", "select", "s", "--stat", "mean", "--rerun", "2"]
    assert main([*select, "--dry-run"]) == 0
    assert "job 1: agent.lr=0.9 agent.size=2 runtime=local sinks=[] seed=3" in capfd.readouterr().out
    assert not list(tmp_path.glob("s_rerun*"))
    assert main(select) == 0
    out = capfd.readouterr().out
    (line,) = [line.split() for line in out.splitlines() if "fresh seeds" in line]
    assert line[-4:] == ["2", "4.3", "[3.8,", "4.8]"]
    assert main([*select, "--close"]) == 0  # size=1 is as good in one of 20 resamples
    (rerun, close) = sorted(tmp_path.glob("s_rerun*"), key=lambda path: len(list(path.iterdir())))
    assert (len(load(rerun)), len(load(close))) == (2, 4)
    assert {run.seed for run in load(close)} == {2, 3}


def test_without_a_place_it_is_the_only_app_and_its_objective(tmp_path, monkeypatch, capfd):
    """As it is for programs that log through `trieye.integrations`, whose config is no parameter."""
    monkeypatch.chdir(tmp_path)
    for app in ("one", "two"):
        with trieye.Run(adopted_config("first", app, {"loop": {"objective": "eval/reward"}})) as run:
            run.log({"eval/reward": 3.0, "other": 1.0}, step=1)
        code = main(["results", "table"])
        said = capfd.readouterr()
        if app == "one":
            assert code == 0, said.err
            assert "eval/reward, mean of" in said.out
            assert "runs of .trieye_data/one" in said.err
        else:
            assert code == 2
            assert "one of .trieye_data/one, .trieye_data/two" in said.err
