"""A flipped bit in a part of a replay buffer: the model and all rows of other parts are restored."""

import numpy as np
import pytest

import trieye
from trieye.checkpoints.directory import VERIFIED_EVERY
from trieye.checkpoints.manifest import verify
from trieye.checkpoints.store import load_checkpoint
from trieye.exceptions import CheckpointError
from trieye.files.run_files import CHECKPOINT_PREFIX
from trieye.replay import ReplayBuffer
from trieye.runs.checkpoint_rows import rows_in

ROWS = 100


def add_rows(run, count=ROWS):
    first = run.replay.stats()["added"]
    numbers = np.arange(first, first + count)
    run.replay.extend({"obs": np.repeat(numbers[:, None], 8, axis=1), "done": numbers % 10 == 9})


def save(run, step, count=ROWS):
    add_rows(run, count)
    run.step = step
    return run.save(weights=np.full(3, float(step))).wait()


def flip_a_bit(part):
    """Damage a file in place, so that all its hard links are damaged and its size is unchanged."""
    with part.open("r+b") as file:
        file.seek(-5, 2)
        (byte,) = file.read(1)
        file.seek(-5, 2)
        file.write(bytes([byte ^ 4]))


def part_of(checkpoint, first_row):
    (part,) = (checkpoint / "parts").glob(f"seg-{first_row}-*")
    return part


@pytest.fixture
def damaged(make_config):
    """A run of three saves that share parts; a bit in the second part is flipped."""
    config = make_config(replay={"capacity": 10_000})
    with trieye.Run(config) as run:
        for step in (1, 2, 3):
            newest = save(run, step)
    flip_a_bit(part_of(newest, ROWS))
    return config


def test_a_restore_loads_the_model_and_the_intact_rows(damaged, caplog, make_config):
    with trieye.Run(damaged) as run:
        assert run.restore()
        assert run.step == 3
        assert run.restored["weights"].tolist() == [3.0] * 3
        assert run.replay.stats()["size"] == 2 * ROWS
        assert run.replay.stats()["lost"] == ROWS
        rows = np.unique(run.replay.sample(5000)["obs"][:, 0])
        assert rows.tolist() == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]
        newest = save(run, 4)
    assert "rows 100-199 of the replay are lost" in caplog.text
    assert "parts/seg-100-200-" in caplog.text
    verify(newest)  # the remaining rows are written again
    with trieye.Run(make_config(replay={"capacity": 10_000})) as run:
        run.restore()
        assert (run.step, run.replay.stats()["size"], run.replay.stats()["lost"]) == (4, 3 * ROWS, ROWS)


def test_a_run_can_refuse_a_damaged_replay_with_a_hint(damaged, make_config):
    config = make_config(replay={"capacity": 10_000}, persistence={"damaged_replay": "refuse"})
    with (
        pytest.raises(CheckpointError, match=r"parts/seg-100-200-\w+.safetensors is damaged.*damaged_replay=partial"),
        trieye.Run(config) as run,
    ):
        run.restore()
    with trieye.Run(damaged) as run:  # no checkpoint was quarantined
        assert run.restore()
        assert run.replay.stats()["size"] == 2 * ROWS


def test_later_saves_detect_the_damage_and_rewrite_the_rows(make_config, caplog):
    with trieye.Run(make_config(replay={"capacity": 10_000}, persistence={"keep_last": 2})) as run:
        for step in (1, 2):
            path = save(run, step)
        part = part_of(path, 0)
        flip_a_bit(part)
        for step in range(3, 4 + VERIFIED_EVERY):
            path = save(run, step, 10)
        verify(path)
        assert not (path / "parts" / part.name).exists()
        assert f"parts/{part.name} is damaged" in caplog.text
    with trieye.Run(run.config) as again:
        again.restore()
        assert again.replay.stats()["lost"] == 0
        assert again.replay.stats()["size"] == run.replay.stats()["size"] == 2 * ROWS + 10 * (1 + VERIFIED_EVERY)


def test_a_checkpoint_with_a_damaged_replay_loads_without_a_run(damaged):
    checkpoint = load_checkpoint(damaged.persistence.get_run_base_dir())
    assert (checkpoint.step, checkpoint.objects["weights"].tolist()) == (3, [3.0] * 3)
    buffer = ReplayBuffer(10_000)
    buffer.load_state_dict(checkpoint.objects["replay"])
    assert len(buffer) == 2 * ROWS


def test_rows_in_lists_the_lost_rows_of_each_checkpoint(damaged):
    directory = damaged.persistence.get_run_base_dir() / "checkpoints"
    intact, *others = rows_in(directory, CHECKPOINT_PREFIX, checksums=True)
    assert intact.state == "whole"
    for saved in others:
        assert saved.state == "partial"
        assert saved.is_usable
        assert saved.lost_rows == ("100-199",)
        assert "parts/seg-100-200-" in saved.problems[0]
