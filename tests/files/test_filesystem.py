from pathlib import Path

import pytest

from trieye.files import filesystem
from trieye.files.filesystem import is_network_type, network_type, type_of

MOUNTINFO = r"""
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
22 21 0:21 / /proc rw,relatime - proc proc rw
30 21 0:40 / /home rw,relatime shared:1 - nfs4 server:/export/home rw,vers=4.2
31 30 254:1 / /home/local rw,relatime shared:2 master:3 - xfs /dev/vdb rw
32 21 0:41 / /data/with\040blank rw - lustre 10.0.0.1@tcp:/fs rw
33 21 0:42 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
34 21 0:43 / /mnt/twice rw - nfs server:/a rw
35 34 254:2 / /mnt/twice rw - btrfs /dev/vdc rw
a line that means nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs", "ext4"),
        ("/", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/runs/journal.db", "nfs4"),
        ("/home/local/runs", "xfs"),
        ("/home2", "ext4"),
        ("/data/with blank/runs", "lustre"),
        ("/data/with", "ext4"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/mnt/twice/x", "btrfs"),
    ],
)
def test_the_deepest_and_latest_mount_determines_the_type(path, kind):
    assert type_of(Path(path), MOUNTINFO) == kind


def test_network_filesystem_types_are_recognized():
    shared = "nfs nfs4 cifs smb3 9p lustre fuse.sshfs fuse.glusterfs"
    local = "ext4 xfs btrfs zfs tmpfs overlay apfs fuse.ntfs-3g fuseblk"
    assert [kind for kind in f"{shared} {local}".split() if is_network_type(kind)] == shared.split()
    assert type_of(Path("/runs"), "") is None, "unknown without mount points"


def test_the_filesystem_of_a_link_is_that_of_its_target(tmp_path, monkeypatch):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 d rw\n2 1 0:2 / {real} rw - nfs4 server:/ rw\n")
    assert network_type(link / "journal.db") is None, "a local disk"
    monkeypatch.setattr(filesystem, "MOUNTINFO", mounts)
    assert network_type(link / "journal.db") == "nfs4"
    assert network_type(tmp_path / "journal.db") is None


def test_without_mountinfo_no_path_is_on_a_network_filesystem(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "MOUNTINFO", tmp_path / "missing")
    assert network_type(tmp_path) is None
