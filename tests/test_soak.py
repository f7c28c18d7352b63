"""The short forms of what `make soak` does for half an hour: kills, damage, a full disk, a clock that jumps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

SOAK = Path(__file__).parents[1] / "soak"
OF_THEIR_OWN = ("hub_kills", "driver_kills", "replay_server_kills", "disk_full", "relaunch_kills")
"""Scripts that are no forks of a warm process: Ray starts programs, and on a full disk there is no room for output."""


def judged(script, *arguments):
    """Run a soak script and return its figures; its exit code is its judgment."""
    command = [str(SOAK / f"{script}.py"), *arguments]
    if script in OF_THEIR_OWN:
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
    "killing the only process of a local run loses and doubles nothing":
        ("local_kills --kills 1 --calm 0.5 --total 200 --rate 10000 --fork",
         lambda told: told["logging"]["events"] > 0 and told["training"]["events"] == 4000),
    "a run killed while it saves goes on from what was safe":
        ("checkpoint_kills --kills 2 --size-mb 20", lambda told: told["steps"] > 0),
    "damaged checkpoints cost what is damaged in them and nothing else":
        ("checkpoint_damage --damages 4", lambda told: told["damages"] == 4),
    "a killed training resumes bit for bit, also where only the ends of episodes can be saved":
        ("training_kills --kills 1 --steps 100 --fork --cases dqn_that_waits ppo_of_four",
         lambda told: all(run["updates"] > 20 for run in told["runs"].values())),
    "a replay buffer killed while it is saved draws what it would have drawn":
        ("replay_kills --kills 3 --calm 0.2", bool),
    "a damaged run shows nothing wrong, says what is lost and goes on from its model":  # its log, and a shared part
        ("run_damage --damages 4 --seed 4 --runs killed --no-mlflow", lambda told: told["damages"] == 4),
    "random processes of one run show the points that the reference model shows":
        ("supersession --sequences 3 --loggers Run SummaryWriter wandb --sinks-every 3",
         lambda told: told["sequences"] == 3),
    "no checkpoint holds a NaN that was injected, and the message names its source":
        ("nonfinite --injections 4 --seed 81 --ray 0", lambda told: len(told["of"]) > 3),
    "every environment step of explorers is counted once, in whatever order answers arrive":
        ("fragments --seeds 10", lambda told: told["seeds"] == 10),
    "no child that a run forks outlives SIGTERM, and no signal to the run is lost":
        ("forks --forks 6", lambda told: told["forks"] == 6),
}  # fmt: skip
"""What no other test shows."""
LONGER = {
    "a clock that jumps between attempts spoils no point":
        ("clock --steps 150", lambda told: told["points"] > 20),
    "a training whose explorer hangs is saved and ends within 10 s of a signal, and resumes":
        ("hangs --tries 1 --places threads --styles fully_async --kinds sleep --signals SIGTERM",
         lambda told: told["tries"] == 1),
    "a full disk costs nothing that was accepted":
        ("disk_full --full 1 --calm 0.5", lambda told: [run["overflow"] for run in told["runs"]] == ["block", "drop"]),
    "killing the hub and a producer loses and doubles nothing":
        ("hub_kills --kills 1 --calm 0.5 --rate 2000 --rss-limit 3",
         lambda told: told["kills"] == 1 and told["events"] > 3_000),
    "a replay actor killed at work leaves a snapshot that draws what it would have drawn":
        ("replay_server_kills --kills 1", lambda told: told["done"] > 5),
    "a run with a damaged journal logs no wrong value and reports what is lost":
        ("journal_damage --stride 0 --live 0.5 --runs 1", lambda told: told["acknowledged"] > 0),
    "short runs at once have all their points in one MLflow store when the last of them has ended":
        ("short_runs --runs 3 --busy 0 --seconds 0.2 --fork", lambda told: told["points"] > 3 * 5),
    "a sweep whose driver is killed and relaunched at once completes each job once":
        ("relaunch_kills --jobs 4 --kills 1 --kinds grid", lambda told: told["grid"]["completed"] == 4),
    "killing the driver and all that is his loses and doubles nothing":
        ("driver_kills --kills 1 --calm 0.5 --rate 3000", lambda told: told["kills"] == 1),
}  # fmt: skip
"""What tests of hubs, replay actors, journals and stores show in a shorter way."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "has_done_all"),
    [*SOAKS.values(), *(pytest.param(*each, marks=pytest.mark.long) for each in LONGER.values())],
    ids=[*SOAKS, *LONGER],
)
def test_what_is_promised_of_kills_and_damage_holds(command, has_done_all):
    assert has_done_all(judged(*command.split()))
