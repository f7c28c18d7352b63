"""Detect the type of the file system of a path, and whether it is a network file system."""

import os
import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
"""Linux's list of mount points."""

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


def type_of(path: Path, mountinfo: str) -> str | None:
    """Return the type of the file system that holds a path.

    Args:
        path: Absolute, without links.
        mountinfo: Text in the format of `MOUNTINFO`.
    """
    kind, depth = None, -1
    for line in mountinfo.splitlines():
        mount_text, _, type_text = line.partition(" - ")
        fields = mount_text.split(" ")
        if len(fields) < 5 or not type_text:  # noqa: PLR2004 - mount id, parent, device, root, mount point
            continue
        mount_point = Path(_unescaped(fields[4]))
        # `>=`: a later mount at the same mount point hides the earlier one
        if path.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
            kind, depth = type_text.split(" ")[0], len(mount_point.parts)
    return kind


def network_type(path: Path) -> str | None:
    """Return the file system type of a path if it is a network file system; None if it is not, or is unknown."""
    try:
        mountinfo = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # not Linux
    kind = type_of(Path(os.path.realpath(path)), mountinfo)
    return kind if kind is not None and is_network_type(kind) else None


def _unescaped(field: str) -> str:
    """Decode a field of mountinfo, where spaces, tabs, newlines and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
