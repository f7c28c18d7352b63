"""What a bad disk does to a file, and how a test sees that nothing else was done to any."""

from pathlib import Path


def flip(path: Path, place: int | None = None) -> None:
    """Flip a bit of a file: of the byte at a place, else of the one in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def contents(directory: Path) -> dict[str, bytes]:
    """Return what is in every file below a directory; SQLite's shared memory is nothing that is kept."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".db-shm"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
