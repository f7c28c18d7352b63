"""What a mirror holds: the names of its objects, and the marks that make them count.

    <mirror>/<app>/<run>/
      states/<generation>-<owner>/    run.json, configs, a copy of the journal, COMMIT
      history/<file>-<checksum>       Parquet files, shared by all states that name them
      checkpoints/<name>-<checksum>/  files of a checkpoint, MANIFEST.json, COMMIT
      buffers/<name>-<checksum>/      the same for a buffer of the drop-in API
      parts/<file>                    parts of checkpoints, shared by all that name them

`COMMIT` is written last: what has none is not there. A checkpoint gets its own after that of a state that knows it, so
whoever reads the newest state finds a journal that is at least as new as any checkpoint that counts.
"""

import json
import re
import zlib
from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trieye.exceptions import SerializationError

CHECKPOINTS: Final = "checkpoints"
BUFFERS: Final = "buffers"
STATES, HISTORY, PARTS = "states", "history", "parts"
COMMIT = "COMMIT"
RUN_RECORD, JOURNAL, CONFIG, COMPOSED_CONFIG = "run.json", "journal.db", "configs.json", "config.yaml"
FORMAT_VERSION = 1

Folder = Literal["checkpoints", "buffers"]

_KEY = re.compile(r"[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.-]*){1,3}")
_SAVED = re.compile(r"(checkpoint|buffer)_step_\d{1,19}")
_FILE = re.compile(r"run\.json|journal\.db|configs\.json|config\.yaml|history/points-\d+-\d+\.parquet")
_STATE = re.compile(r"states/(\d{12})-([0-9a-f]{8})/COMMIT")


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text) or ".." in text:
            raise ValueError(f"{text!r} is no name that this trieye gives")
        return text

    return AfterValidator(check)


def _unsealed(data: bytes) -> str:
    held = json.loads(data)
    text = str(held["mark"])
    if zlib.crc32(text.encode()) != held["crc32"]:
        raise ValueError("its checksum does not match")
    if (version := json.loads(text).get("format")) != FORMAT_VERSION:
        raise ValueError(f"it has format {version}, and this trieye reads {FORMAT_VERSION}")
    return text


Key = Annotated[str, _matching(_KEY)]
FileName = Annotated[str, _matching(_FILE)]


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads, with a checksum of itself."""
        text = self.model_dump_json()
        return json.dumps({"crc32": zlib.crc32(text.encode()), "mark": text}, indent=0).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a mark.

        Raises:
            SerializationError: It is damaged, or a later version of trieye wrote it.
        """
        try:
            return cls.model_validate_json(_unsealed(data))
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError) as error:
            raise SerializationError(f"a mark of the mirror cannot be read: {error}") from error


class MirroredFile(BaseModel):
    """Where the bytes of a file are, and how one sees that they are those."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    size_bytes: int = Field(ge=0)
    crc32: int = Field(ge=0)


class SavedName(BaseModel):
    """A saved directory: what it is called in the run, and where the mirror has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Folder
    name: Annotated[str, _matching(_SAVED)]
    key: Key

    @property
    def commit(self) -> str:
        """Key of its mark."""
        return f"{self.key}/{COMMIT}"

    @property
    def step(self) -> int:
        """Global step of what was saved."""
        return int(self.name.rsplit("_", 1)[1])


class SaveMark(_Mark):
    """Says that a saved directory is complete.

    Attributes:
        manifest_crc32: CRC-32 of its MANIFEST.json, which has the checksums of all its files.
        parts: Keys of the parts that it shares with others.
    """

    format: int = FORMAT_VERSION
    manifest_crc32: int = Field(ge=0)
    parts: list[Key]


class StateMark(_Mark):
    """Says that a state of the run is complete: who it is, its journal, its history.

    Attributes:
        generation: Counts the states of the run, over all machines.
        owner: The directory that it was copied from; another one on another machine.
        run_id: Identity of the run.
        attempt: Number of the attempt.
        written: Unix time in seconds.
        files: What belongs to it, by the name in the run's directory.
        saved: Checkpoints and buffers that its journal knows, the oldest first; those with a mark are there.
    """

    format: int = FORMAT_VERSION
    generation: int = Field(ge=1)
    owner: str
    run_id: str
    attempt: int
    written: float
    files: dict[FileName, MirroredFile]
    saved: list[SavedName]

    @property
    def directory(self) -> str:
        """Where its own objects are."""
        return state_directory(self.generation, self.owner)


def state_directory(generation: int, owner: str) -> str:
    """Return where the objects of a state are."""
    return f"{STATES}/{generation:012d}-{owner[:8]}"


def state_commits(keys: Iterable[str]) -> list[tuple[int, str]]:
    """Return generation and key of the mark of each complete state, the newest first."""
    found = [(int(match[1]), key) for key in keys if (match := _STATE.fullmatch(key))]
    return sorted(found, reverse=True)


def save_directory(folder: Folder, name: str, manifest_crc32: int) -> str:
    """Return where the objects of a saved directory are."""
    return f"{folder}/{name}-{manifest_crc32:08x}"
