"""A run and its mirror in a directory."""

import pytest

from tests.mirror.mirrored_run import MirroredRun


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/mirror"


@pytest.fixture
def run(tmp_path, url):
    begun = MirroredRun(tmp_path / "first", url)
    yield begun
    begun.journal.close()
