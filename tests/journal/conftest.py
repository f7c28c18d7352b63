import os

import pytest

from trieye.files import filesystem


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Make the temporary directory look like a network file system."""
    path = tmp_path / "mountinfo"
    path.write_text(f"1 0 0:1 / / rw - ext4 disk rw\n2 1 0:2 / {os.path.realpath(tmp_path)} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(filesystem, "MOUNTINFO", path)
    return path
