import tempfile
from pathlib import Path

import pytest
from journal_damage_cases import KINDS, problems


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory in memory if possible: hundreds of journals are copied, opened and synced."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_cut_off_or_flipped_no_value_is_wrong_and_what_is_lost_is_reported(directory, kind):
    assert list(problems(directory, [kind], stride=128, bits=1, rounds=2, every=4)) == []
