"""Detect the type of the file system of a path, and whether it is a network file system."""

import contextlib
import os
import re
from pathlib import Path

NETWORK_TYPES = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf", "wekafs",
    }
)  # fmt: skip
_NETWORK_FUSE = re.compile(r"fuse\.(sshfs|gluster|ceph|s3|rclone|goofys|gcsfuse|blobfuse|juicefs|moosefs|mfs|dav)")


def is_network_type(kind: str) -> bool:
    """Return whether file systems of this type may be used by several machines, which share no memory."""
    return kind in NETWORK_TYPES or kind.startswith("glusterfs") or _NETWORK_FUSE.match(kind) is not None


def network_type(path: Path) -> str | None:
    """Return the file system type of a path if it is a network file system; None if it is not, or is unknown."""
    import psutil  # type: ignore[import-untyped]  # stubs would be one more package

    resolved_path, kind, depth = Path(os.path.realpath(path)), "", -1
    with contextlib.suppress(OSError):  # the mount points are unknown
        for mount in psutil.disk_partitions(all=True):
            mount_point = Path(mount.mountpoint)
            # `>=`: a later mount at the same mount point hides the earlier one
            if resolved_path.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
                kind, depth = mount.fstype, len(mount_point.parts)
    return kind if is_network_type(kind) else None
