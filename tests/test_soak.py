"""The short forms of what `make soak` does for half an hour: kills, damage, a full disk, a clock that jumps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

SOAK = Path(__file__).parents[1] / "soak"
OF_THEIR_OWN = ("hub_kills", "driver_kills", "replay_server_kills", "disk_full")
"""Scripts that are no forks of a warm process: Ray starts programs, and on a full disk there is no room for output."""


def judged(script, *arguments):
    """Run a soak script and return its figures; its exit code is its judgment."""
    command = [str(SOAK / f"{script}.py"), *map(str, arguments)]
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


@pytest.mark.slow
def test_killing_the_hub_and_a_producer_loses_and_doubles_nothing():
    figures = judged("hub_kills", "--kills", 2, "--calm", 0.5, "--rate", 3000, "--rss-limit", 3)
    assert figures["kills"] == 2
    assert figures["events"] > 5_000


@pytest.mark.slow
def test_killing_the_driver_and_all_that_is_his_loses_and_doubles_nothing():
    figures = judged("driver_kills", "--kills", 1, "--calm", 0.5, "--rate", 3000)
    assert figures["kills"] == 1


@pytest.mark.slow
def test_killing_the_only_process_of_a_local_run_loses_and_doubles_nothing():
    figures = judged("local_kills", "--kills", 1, "--calm", 0.5, "--total", 200, "--fork")
    assert figures["logging"]["events"] > 0
    assert figures["training"]["events"] == 4000


@pytest.mark.slow
def test_a_run_killed_while_it_saves_goes_on_from_what_was_safe():
    assert judged("checkpoint_kills", "--kills", 2, "--size-mb", 20)["steps"] > 0


@pytest.mark.slow
def test_damaged_checkpoints_cost_what_is_damaged_in_them_and_nothing_else():
    assert judged("checkpoint_damage", "--damages", 4)["damages"] == 4


@pytest.mark.slow
def test_a_killed_dqn_resumes_bit_for_bit_also_where_only_the_ends_of_episodes_can_be_saved():
    figures = judged("exact_resume", "--kills", 1, "--steps", 120, "--fork")
    assert figures["runs"]["CartPole-v1"]["updates"] > 200


@pytest.mark.slow
def test_a_replay_buffer_killed_while_it_is_saved_draws_what_it_would_have_drawn():
    assert judged("replay_kills", "--kills", 3, "--calm", 0.2)


@pytest.mark.slow
def test_a_replay_actor_killed_at_work_leaves_a_snapshot_that_draws_what_it_would_have_drawn():
    assert judged("replay_server_kills", "--kills", 2)["done"] > 10


@pytest.mark.slow
def test_a_run_with_a_damaged_journal_logs_no_wrong_value_and_reports_what_is_lost():
    assert judged("journal_damage", "--stride", 0, "--live", 0.5, "--runs", 1)["acknowledged"] > 0


@pytest.mark.slow
def test_a_damaged_run_shows_nothing_wrong_says_what_is_lost_and_goes_on_from_its_model():
    options = ("--damages", 4, "--seed", 4, "--runs", "killed", "--no-mlflow")  # its log, and a part that is shared
    assert judged("run_damage", *options)["damages"] == 4


@pytest.mark.slow
def test_a_full_disk_costs_nothing_that_was_accepted():
    figures = judged("disk_full", "--full", 2, "--rate", 10_000)
    assert [run["overflow"] for run in figures["runs"]] == ["block", "drop"]


@pytest.mark.slow
def test_a_clock_that_jumps_between_attempts_spoils_no_point():
    assert judged("clock", "--steps", 150)["points"] > 20


@pytest.mark.slow
def test_no_child_that_a_run_forks_outlives_sigterm_and_no_signal_to_the_run_is_lost():
    assert judged("forks", "--forks", 12)["forks"] == 12
