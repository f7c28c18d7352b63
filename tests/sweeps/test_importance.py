"""Importance of the keys of a sweep for its objective."""

import json
import math
import random

import pytest

from trieye.cli import main
from trieye.sweeps.importance import Importance, importances
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.report import importance_table
from trieye.sweeps.status import JobStatus


def shares(values, objectives):
    return {one.key: one.share for one in importances(values, objectives)}


@pytest.mark.parametrize("num", [60, 200])
def test_keys_are_ranked_by_effect_on_the_objective_at_any_scale(num):
    draw = random.Random(0)
    rows = [
        {"lr": repr(10 ** draw.uniform(-5, -1)), "agent": draw.choice("ab"), "idle": draw.random()} for _ in range(num)
    ]
    objectives = [-((math.log10(float(row["lr"])) + 3) ** 2) + (row["agent"] == "a") for row in rows]
    share = shares(rows, objectives)
    assert list(share) == ["lr", "agent", "idle"]
    assert share["lr"] > 0.6
    assert 0.02 < share["agent"] < 0.3
    assert share["idle"] < 0.05
    objectives[0] = -1e12
    assert shares(rows, [value * 1e9 for value in objectives])["lr"] == pytest.approx(share["lr"], abs=0.1)


def test_a_key_that_determines_the_objective_explains_all_of_it():
    rows = [{"x": x, "seed": seed} for x in (1, 2, 3) for seed in (0, 1, 2)]
    assert shares(rows, [row["x"] * 10.0 for row in rows]) == {"x": 1.0, "seed": 0.0}


def test_jobs_without_a_key_or_an_objective_are_ignored():
    rows = [{"x": x % 2, "same": 1} | ({"clip": x % 4} if x < 10 else {}) for x in range(20)]
    objectives = [math.nan if number == 0 else float(row["x"]) for number, row in enumerate(rows)]
    assert importances(rows, objectives) == [Importance("x", 1.0, 19), Importance("clip", 1.0, 9)]


def test_null_is_a_group_beside_the_quantiles_of_numbers():
    rows = [{"clip": None if x % 2 else x / 10} for x in range(40)]
    assert importances(rows, [float(x % 2) for x in range(40)]) == [Importance("clip", 1.0, 40)]


def test_few_jobs_and_equal_objectives_have_no_importance():
    assert math.isnan(shares([{"x": x} for x in range(7)], list(map(float, range(7))))["x"])
    assert math.isnan(shares([{"x": x % 2} for x in range(20)], [1.0] * 20)["x"])
    assert importances([], []) == []


def test_the_table_of_a_search_has_a_column_for_each_objective():
    jobs = [
        JobStatus(at, "completed", {"lr": str(at % 4), "n": str(at % 3)}, JobRecord(
            index=at, overrides=[], recorded_objectives={"return": float(at % 4), "time": float(at % 3)},
        ))
        for at in range(24)
    ]  # fmt: skip
    table = importance_table(jobs)
    assert [str(column.header) for column in table.columns] == ["key", "jobs", "return", "time"]
    cells = [list(map(str, column.cells)) for column in table.columns]
    assert cells == [["lr", "n"], ["24", "24"], ["100%", "0%"], ["0%", "100%"]]
    assert importance_table(jobs[:5]) is None


def test_jobs_without_a_conditional_key_are_not_counted_with_its_default(sweep, capfd):
    words = ["hydra.sweeper.kind=random", "hydra.sweeper.num_trials=6", "hydra.sweeper.when={cpus: {agent: ppo}}"]
    jobs = sweep.search(lambda cfg: float(cfg.cpus), "+agent=dqn,ppo", "cpus=1,2,3", *words)
    capfd.readouterr()
    assert main(["results", "importance", str(sweep.directory), "--json"]) == 0
    keys = {one["key"]: one["num_jobs"] for one in json.loads(capfd.readouterr().out)["keys"]}
    num_configs = len(set(jobs))  # equal jobs are replicates
    assert keys["agent"] == num_configs
    assert keys["cpus"] == sum("+agent=ppo" in job for job in set(jobs)) < num_configs
