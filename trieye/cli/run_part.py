"""Part: one thing that a run keeps on the disk, and what is damaged in it."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Damage:
    """Something that is not as it was written.

    Attributes:
        what: What was found.
        meaning: What is lost by it.
        advice: What to do.
    """

    what: str
    meaning: str
    advice: str


@dataclass(frozen=True)
class Part:
    """One thing that a run keeps on the disk.

    Attributes:
        name: What it is called.
        found: What is in it.
        size_bytes: Its size.
        damage: What is damaged; empty if it is whole.
        is_there: Whether there is anything.
    """

    name: str
    found: str
    size_bytes: int
    damage: list[Damage] = field(default_factory=list)
    is_there: bool = True


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
