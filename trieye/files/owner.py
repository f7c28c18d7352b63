"""Owner: the record of the directory that alone may write to the MLflow run and the mirror of a run."""

import os
import secrets
import socket
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field


class Owner(BaseModel):
    """Identifies a directory so that a renamed directory still matches and a copy does not.

    The MLflow run and each state of the mirror carry the token of their owner.

    Attributes:
        token: Random; every directory that becomes the owner gets a new one.
        host: Name of the host that recorded the directory.
        path: Absolute path of the directory on that host, without symbolic links.
        device: Device number of its file system; hosts may number the same file system differently.
        inode: Its inode, which a rename keeps and a copy cannot have.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    token: str = Field(default_factory=lambda: secrets.token_hex(16), min_length=8)
    host: str
    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return a new owner record for an existing directory."""
        status = directory.stat()
        path = str(directory.resolve())
        return cls(host=socket.gethostname(), path=path, device=status.st_dev, inode=status.st_ino)

    def is_exactly(self, directory: Path) -> bool:
        """Return True if the record matches the current path and inode of an existing directory."""
        return (self.path, self.inode) == (str(directory.resolve()), directory.stat().st_ino)

    def is_at(self, directory: Path, *, is_path_free: bool) -> bool:
        """Return True if an existing directory is certainly the recorded one.

        Args:
            directory: The directory.
            is_path_free: Whether the recorded path no longer holds the run, so a directory with its inode was renamed.
        """
        actual_owner = Owner.of(directory)
        if actual_owner.path == self.path:
            return actual_owner.host == self.host or actual_owner.inode == self.inode
        is_same_device = actual_owner.host != self.host or actual_owner.device == self.device
        return is_path_free and is_same_device and actual_owner.inode == self.inode

    def renamed(self) -> Path | None:
        """Return the recorded directory if it was renamed within its parent directory."""
        parent = Path(self.path).parent
        try:
            if parent.stat().st_dev != self.device:
                return None
            with os.scandir(parent) as entries:
                return next((Path(entry.path) for entry in entries if entry.inode() == self.inode), None)
        except OSError:
            return None

    def is_gone(self) -> bool:
        """Return True if the recorded path does not exist although its file system is mounted on this host."""
        path = Path(self.path)
        try:
            nearest = next(ancestor for ancestor in (path, *path.parents) if ancestor.exists())
            is_mounted = nearest.stat().st_dev == self.device
        except OSError:
            return False
        return nearest != path and is_mounted and self.host == socket.gethostname()
