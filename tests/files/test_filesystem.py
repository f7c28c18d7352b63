from types import SimpleNamespace

import psutil
import pytest

from trieye.files.filesystem import is_network_type, network_type

MOUNTS = [
    ("/", "nfs"),
    ("/proc", "proc"),
    ("/home", "nfs4"),
    ("/home/local", "xfs"),
    ("/data/with blank", "lustre"),
    ("/data/local", "ext4"),
    ("/mnt/ssh", "fuse.sshfs"),
    ("/mnt/twice", "nfs4"),
    ("/mnt/twice", "btrfs"),
]


def mount(monkeypatch, mounts):
    partitions = [SimpleNamespace(mountpoint=str(path), fstype=kind) for path, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: partitions)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/runs", "nfs"),
        ("/", "nfs"),
        ("/home", "nfs4"),
        ("/home/me/runs/journal.db", "nfs4"),
        ("/home/local/runs", None),
        ("/home2", "nfs"),
        ("/data/with blank/runs", "lustre"),
        ("/data/local", None),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/mnt/twice/x", None),
    ],
)
def test_the_deepest_and_latest_mount_determines_the_type(path, kind, monkeypatch):
    mount(monkeypatch, MOUNTS)
    assert network_type(path) == kind


def test_network_filesystem_types_are_recognized():
    shared = "nfs nfs4 cifs smb3 9p lustre fuse.sshfs fuse.glusterfs"
    local = "ext4 xfs btrfs zfs tmpfs overlay apfs fuse.ntfs-3g fuseblk"
    assert [kind for kind in f"{shared} {local}".split() if is_network_type(kind)] == shared.split()


def test_the_filesystem_of_a_link_is_that_of_its_target(tmp_path, monkeypatch):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    assert network_type(link / "journal.db") is None, "a local disk"
    mount(monkeypatch, [("/", "ext4"), (real.resolve(), "nfs4")])
    assert network_type(link / "journal.db") == "nfs4"
    assert network_type(tmp_path / "journal.db") is None


def test_without_known_mounts_no_path_is_on_a_network_filesystem(tmp_path, monkeypatch):
    def fail(**_):
        raise FileNotFoundError("/proc/filesystems")

    monkeypatch.setattr(psutil, "disk_partitions", fail)
    assert network_type(tmp_path) is None
