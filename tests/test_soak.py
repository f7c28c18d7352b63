"""Short runs of the scripts of `make soak`: kills, damage, a full disk, a jumping clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

SOAK = Path(__file__).parents[1] / "soak"
NEVER_FORKED = ("hub_kills", "driver_kills", "replay_server_kills", "disk_full", "relaunch_kills")
"""Scripts that do not fork from a warm process: Ray starts programs, and a full disk has no space for output."""


def judged(script, *arguments):
    """Run a soak script, check its exit code, and return its figures."""
    command = [str(SOAK / f"{script}.py"), *arguments]
    if script in NEVER_FORKED:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=240)
    else:
        done = warm.run(command, SOAK)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    figures = json.loads(lines[-1])
    assert done.returncode == 0, figures
    assert figures["met"]
    return figures


SOAKS = {
    "killing the process of a local run neither loses nor duplicates events":
        ("local_kills --kills 1 --calm 0.5 --total 200 --rate 10000 --fork",
         lambda figures: figures["logging"]["events"] > 0 and figures["training"]["events"] == 4000),
    "a damaged checkpoint loses only its damaged parts":
        ("checkpoint_damage --damages 4", lambda figures: figures["damages"] == 4),
    "a killed training resumes bit-exactly, even if it can be saved only between episodes":
        ("training_kills --kills 1 --steps 100 --fork --cases dqn_that_waits",
         lambda figures: all(run["updates"] > 20 for run in figures["runs"].values())),
    "a replay buffer killed during a save resumes with the same samples":
        ("replay_kills --kills 3 --calm 0.2", bool),
    "a damaged run shows no wrong values, reports its losses and resumes from its model":  # its log, and a shared part
        ("run_damage --damages 4 --seed 4 --runs killed --no-mlflow", lambda figures: figures["damages"] == 4),
    "every environment step of explorers is counted once, in any order of answers":
        ("fragments --seeds 10", lambda figures: figures["seeds"] == 10),
    "no forked child of a run outlives SIGTERM, and no signal to the run is lost":
        ("forks --forks 6", lambda figures: figures["forks"] == 6),
}  # fmt: skip
"""Guarantees without another test."""
LONGER = {
    "a run killed during a save resumes from the last complete checkpoint":
        ("checkpoint_kills --kills 2 --size-mb 20", lambda figures: figures["steps"] > 0),
    "random processes of one run produce the points of the reference model":
        ("supersession --sequences 3 --loggers Run SummaryWriter wandb --sinks-every 3",
         lambda figures: figures["sequences"] == 3),
    "no checkpoint contains an injected NaN, and the message names its source":
        ("nonfinite --injections 4 --seed 81 --ray 0", lambda figures: len(figures["of"]) > 3),
    "a clock that jumps between attempts corrupts no point":
        ("clock --steps 150", lambda figures: figures["points"] > 20),
    "a training with a hanging explorer saves, exits within 10 s of a signal, and resumes":
        ("hangs --tries 1 --places threads --styles fully_async --kinds sleep --signals SIGTERM",
         lambda figures: figures["tries"] == 1),
    "a full disk loses no accepted events":
        ("disk_full --full 1 --calm 0.5",
         lambda figures: [run["overflow"] for run in figures["runs"]] == ["block", "drop"]),
    "killing the hub and a producer neither loses nor duplicates events":
        ("hub_kills --kills 1 --calm 0.5 --rate 2000 --rss-limit 3",
         lambda figures: figures["kills"] == 1 and figures["events"] > 3_000),
    "a killed replay actor leaves a snapshot that resumes with the same samples":
        ("replay_server_kills --kills 1", lambda figures: figures["done"] > 5),
    "a run with a damaged journal logs no wrong value and reports what is lost":
        ("journal_damage --stride 0 --live 0.5 --runs 1", lambda figures: figures["acknowledged"] > 0),
    "concurrent short runs deliver all points to one MLflow store":
        ("short_runs --runs 3 --busy 0 --seconds 0.2 --fork", lambda figures: figures["points"] > 3 * 5),
    "a sweep whose driver is killed and relaunched immediately completes each job once":
        ("relaunch_kills --jobs 4 --kills 1 --kinds grid", lambda figures: figures["grid"]["completed"] == 4),
    "killing the driver and its processes neither loses nor duplicates events":
        ("driver_kills --kills 1 --calm 0.5 --rate 3000", lambda figures: figures["kills"] == 1),
}  # fmt: skip
"""Guarantees with shorter tests: of checkpoints, histories, trainings, hubs, replay actors, journals and stores."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "has_done_all"),
    [*SOAKS.values(), *(pytest.param(*each, marks=pytest.mark.long) for each in LONGER.values())],
    ids=[*SOAKS, *LONGER],
)
def test_guarantees_hold_after_kills_and_damage(command, has_done_all):
    assert has_done_all(judged(*command.split()))
