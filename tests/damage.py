"""Damage files as a bad disk does, and read directories to detect unexpected changes."""

from pathlib import Path


def flip(path: Path, offset: int | None = None) -> None:
    """Flip a bit of the byte at an offset of a file, by default in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if offset is None else offset] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Truncate a file to its first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def contents(directory: Path) -> dict[str, bytes]:
    """Return the contents of every file below a directory, except for the shared memory of SQLite."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".db-shm"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
