"""Fixtures: a run, and its mirror in a local directory."""

import pytest

from tests.mirror.mirrored_run import MirroredRun


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/mirror"


@pytest.fixture
def run(tmp_path, url):
    mirrored_run = MirroredRun(tmp_path / "first", url)
    yield mirrored_run
    mirrored_run.journal.close()
