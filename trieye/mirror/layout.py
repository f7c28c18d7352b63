"""The layout of a mirror: the keys of its objects, and the marker that lists the files of a state.

    <mirror>/<app>/<run>/
      states/<generation>-<owner>/    run.json, configs, a copy of the journal, COMMIT
      history/<file>-<checksum>       Parquet files, shared by the states that list them
      checkpoints/<name>-<checksum>/  files of a checkpoint, MANIFEST.json
      buffers/<name>-<checksum>/      the same for a buffer of the drop-in API
      parts/<file>                    parts of checkpoints, shared by the checkpoints that list them

The upload writes COMMIT and MANIFEST.json last: a state or a checkpoint without it is incomplete and ignored. A state
lists the checkpoints in its journal, and a restore uses no others. The upload writes such a state before the
MANIFEST.json of a checkpoint, so the journal of the newest state is always at least as new as the checkpoint.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, Manifest
from trieye.exceptions import SerializationError
from trieye.files.checksum import FileEntry

STATES, PARTS, COMMIT = "states", "parts", "COMMIT"
CONFIG, COMPOSED_CONFIG = "configs.json", "config.yaml"
FORMAT_VERSION = 1

_KEY = re.compile(r"[a-z]+(/[A-Za-z0-9][A-Za-z0-9_.-]*){1,3}")
_SAVE = re.compile(r"(?:checkpoints/checkpoint|buffers/buffer)_step_\d{1,19}-[0-9a-f]{8}")
_FILE = re.compile(r"run\.json|journal\.db|configs\.json|config\.yaml|history/points-\d+-\d+\.parquet")
_STATE = re.compile(r"states/(\d{12})-[0-9a-f]{8}")
_OBJECT = re.compile(  # a killed upload to a directory leaves a .part file
    rf"(?:{_STATE.pattern}|{_SAVE.pattern})/[^/]+"
    rf"|(?:history/points-\d+-\d+\.parquet-[0-9a-f]{{8}}|{PARTS}/[^/]+\.safetensors)(?:\.part)?"
)


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text) or ".." in text:
            raise ValueError(f"{text!r} is not a valid name in a mirror of this version of trieye")
        return text

    return AfterValidator(check)


SaveKeys = list[Annotated[str, _matching(_SAVE)]]


class SaveName(NamedTuple):
    """The components of a saved directory's key."""

    folder: str
    name: str
    step: int
    manifest_crc32: int

    @classmethod
    def of(cls, key: str) -> Self:
        """Parse the key of a saved directory."""
        folder, _, name_and_crc32 = key.partition("/")
        name, _, crc32 = name_and_crc32.rpartition("-")
        return cls(folder, name, int(name.rpartition("_")[2]), int(crc32, 16))


def save_key(folder: str, name: str, manifest_crc32: int) -> str:
    """Return the key of a saved directory; the checksum of its MANIFEST.json identifies all its files."""
    return f"{folder}/{name}-{manifest_crc32:08x}"


def manifest_key(key: str) -> str:
    """Return the key of the MANIFEST.json that marks a saved directory as complete."""
    return f"{key}/{MANIFEST_NAME}"


def object_key(key: str, file_name: str) -> str:
    """Return the key of a file of a saved directory; all saved directories share parts."""
    is_shared = file_name.startswith(f"{PARTS_DIRECTORY}/")
    return f"{PARTS}/{Path(file_name).name}" if is_shared else f"{key}/{file_name}"


def history_key(name: str, crc32: int) -> str:
    """Return the key of a file of the history, which several states share."""
    return f"{name}-{crc32:08x}"


def part_keys(manifest: Manifest) -> frozenset[str]:
    """Return the keys of the parts of a saved directory."""
    return frozenset(object_key("", name) for name in manifest.files if name.startswith(f"{PARTS_DIRECTORY}/"))


class MirroredFile(FileEntry):
    """The key of a file's object, with the size and checksum to verify it."""

    key: Annotated[str, _matching(_KEY)]


class StateMark(BaseModel):
    """The marker of a complete state: the run's identity, its journal and its history.

    Attributes:
        generation: Sequence number of the state within the run, across all machines.
        owner: Token of the uploaded directory, `owner` of its `run.json`.
        run_id: Id of the run.
        attempt: Number of the attempt.
        written: Unix time in seconds.
        files: Files of the state, by their name in the run directory.
        saved: Keys of the checkpoints and buffers in the journal, the oldest first.
        best: Key of the best checkpoint by objective; None if none has one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT_VERSION
    generation: int = Field(ge=1)
    owner: str
    run_id: str
    attempt: int
    written: float
    files: dict[Annotated[str, _matching(_FILE)], MirroredFile]
    saved: SaveKeys
    best: str | None = None

    @property
    def directory(self) -> str:
        """Directory of the objects that only this state uses."""
        return state_directory(self.generation, self.owner)

    def to_bytes(self) -> bytes:
        """Serialize the marker with its checksum, for `from_bytes`."""
        text = self.model_dump_json()
        return json.dumps({"crc32": zlib.crc32(text.encode()), "mark": text}, indent=0).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Deserialize a marker.

        Raises:
            SerializationError: The marker is damaged, or a later version of trieye wrote it.
        """
        try:
            return cls.model_validate_json(_unsealed(data))
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError) as error:
            raise SerializationError(f"a state marker of the mirror cannot be read: {error}") from error


def _unsealed(data: bytes) -> str:
    envelope = json.loads(data)
    text = str(envelope["mark"])
    if zlib.crc32(text.encode()) != envelope["crc32"]:
        raise ValueError("the checksum does not match")
    if (version := json.loads(text).get("format")) != FORMAT_VERSION:
        raise ValueError(f"written in format {version}, but this trieye reads format {FORMAT_VERSION}")
    return text


def state_directory(generation: int, owner: str) -> str:
    """Return the directory of a state's objects."""
    return f"{STATES}/{generation:012d}-{owner[:8]}"


def objects_of_run(index: Mapping[str, int]) -> dict[str, int]:
    """Return the objects of a listing that match this layout; the run never deletes others below its prefix."""
    return {key: size_bytes for key, size_bytes in index.items() if _OBJECT.fullmatch(key)}


def states_in(keys: Iterable[str]) -> dict[str, int]:
    """Return the generation of each state directory among the keys of objects."""
    matches = [_STATE.match(key) for key in keys]
    return {match[0]: int(match[1]) for match in matches if match}


def whole_states(index: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return generation and marker key of each complete state in a listing, the newest first."""
    markers = [(generation, f"{directory}/{COMMIT}") for directory, generation in states_in(index).items()]
    return sorted((item for item in markers if item[1] in index), reverse=True)
