"""Short runs of the scripts of `make soak` whose guarantees have no other test: kills, damage and signals."""

import json
from pathlib import Path

import pytest

from tests import warm

SOAK = Path(__file__).parents[1] / "soak"
SOAKS = {
    "killing the process of a local run neither loses nor duplicates events":
        ("local_kills --kills 1 --calm 0.2 --total 100 --rate 10000 --fork",
         lambda figures: figures["logging"]["events"] > 0 and figures["training"]["events"] == 2000),
    "a damaged checkpoint loses only its damaged parts":
        ("checkpoint_damage --damages 4", lambda figures: figures["damages"] == 4),
    "a killed training resumes bit-exactly, even if it can be saved only between episodes":
        ("training_kills --kills 1 --steps 100 --fork --cases dqn_that_waits",
         lambda figures: all(run["updates"] > 20 for run in figures["runs"].values())),
    "a replay buffer killed during a save resumes with the same samples":
        ("replay_kills --kills 2 --calm 0.2", bool),
    "a damaged run shows no wrong values, reports its losses and resumes from its model":  # its log, and a shared part
        ("run_damage --damages 4 --seed 4 --runs killed --no-mlflow", lambda figures: figures["damages"] == 4),
    "every environment step of explorers is counted once, in any order of answers":
        ("fragments --seeds 4", lambda figures: figures["seeds"] == 4),
    "no forked child of a run outlives SIGTERM, and no signal to the run is lost":
        ("forks --forks 6", lambda figures: figures["forks"] == 6),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("command", "has_done_all"), SOAKS.values(), ids=SOAKS)
def test_guarantees_hold_after_kills_and_damage(command, has_done_all):
    script, *arguments = command.split()
    done = warm.run([str(SOAK / f"{script}.py"), *arguments], SOAK)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    figures = json.loads(lines[-1])
    assert done.returncode == 0, figures
    assert figures["met"]
    assert has_done_all(figures)
