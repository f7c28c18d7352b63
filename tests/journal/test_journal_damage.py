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
    with tempfile.TemporaryDirectory(dir=memory) as memory_directory:
        monkeypatch.setattr(tempfile, "tempdir", memory_directory)
        yield Path(memory_directory)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_truncated_or_corrupted_files_yield_no_wrong_values_and_losses_are_reported(directory, kind):
    assert list(problems(directory, [kind], stride=128, bits=1, rounds=2, every=8)) == []
