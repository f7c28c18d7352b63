"""Artifact: files and media that a run stores under a name and a version."""

import contextlib
import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from trieye.exceptions import ConfigurationError
from trieye.integrations.opening import safe_name
from trieye.integrations.wandb.media import Media, PathLike
from trieye.process.progress import say
from trieye.run.run import Run

_SERVER_ONLY = re.compile(
    "collection|commit_hash|created_at|digest|digest_algorithm|distributed_id|entity|history_step|id|incremental|"
    "is_link|linked_artifacts|linked_at|manifest|project|qualified_name|source_artifact|source_collection|"
    "source_entity|source_name|source_project|source_qualified_name|source_version|ttl|updated_at|url|use_as"
)
"""Attributes that only the server of wandb sets; None here."""

_SERVER_CALLS = re.compile(
    "delete|finalize|get_added_local_path_name|json_encode|link|logged_by|new_draft|save|unlink|used_by|verify"
)
"""Methods that act on the server of wandb; here they only print that they have no effect."""


class Artifact:
    """Files and media under a name; each `log_artifact` stores them with the run as a new version.

    Attributes:
        name, type, description, metadata: The arguments.
        aliases, tags, version, state: Set by `log_artifact`.
        entries: Maps names in the artifact to files.
    """

    def __init__(self, name: str, type: str, description: str | None = None, metadata: Any = None, **_: Any) -> None:  # noqa: A002 - wandb's name
        self.name, self.type, self.description, self.metadata = name, type, description, dict(metadata or {})
        self.aliases, self.tags = list[str](), list[str]()
        self.version, self.state = "", "PENDING"
        self.entries, self._media, self._references = dict[str, Path](), dict[str, Media](), dict[str, str]()
        self._new_files = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self._new_files, ignore_errors=True)

    def add_file(self, local_path: PathLike, name: str | None = None, **_: Any) -> SimpleNamespace:
        """Add a file.

        Raises:
            ConfigurationError: The file does not exist.
        """
        path = Path(local_path)
        if not path.is_file():
            raise ConfigurationError(f"Artifact.add_file({str(local_path)!r}): the file does not exist")
        self.entries[_inside(name or path.name)] = path
        return self.get_entry(name or path.name)

    def add_dir(self, local_path: PathLike, name: str | None = None, **_: Any) -> None:
        """Add all files below a directory."""
        root = Path(local_path)
        if not root.is_dir():
            raise ConfigurationError(f"Artifact.add_dir({str(local_path)!r}): the directory does not exist")
        file_paths = [path for path in sorted(root.rglob("*")) if path.is_file()]
        self.entries |= {_inside((Path(name or "") / path.relative_to(root)).as_posix()): path for path in file_paths}

    @contextlib.contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None, **_: Any) -> Iterator[Any]:
        """Open a new file of the artifact for writing."""
        path = self._new_files / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode.replace("x", "w"), encoding=encoding) as file:
            yield file
        self.entries[_inside(name)] = path

    def add(self, obj: Media, name: str, overwrite: bool = False) -> None:
        """Add a table, an image or another medium, which is logged together with the artifact."""
        del overwrite
        if not isinstance(obj, Media):
            raise ConfigurationError(f"Artifact.add({name!r}): {type(obj).__name__} is not a media type; use add_file")
        self._media[name] = obj

    def add_reference(self, uri: str, name: str | None = None, **_: Any) -> None:
        """Add local files (`file://...`), or record the URI of remote files."""
        path = Path(unquote(urlsplit(uri).path))
        if urlsplit(uri).scheme != "file":
            self._references[name or uri] = uri
        elif path.is_dir():
            self.add_dir(path, name)
        else:
            self.add_file(path, name)

    def get(self, name: str) -> Media | None:
        """Return an added medium, or None."""
        return self._media.get(name)

    def get_entry(self, name: PathLike) -> SimpleNamespace:
        """Return an added file.

        Raises:
            KeyError: The artifact has no such file.
        """
        key = Path(name).as_posix()
        if key not in self.entries:
            raise KeyError(f"artifact {self.name!r} has no file {key!r}")
        path = str(self.entries[key])
        return SimpleNamespace(path=key, local_path=path, download=lambda *_, **__: path)

    get_path = get_entry

    def remove(self, item: Any) -> None:
        """Remove a file."""
        self.entries.pop(str(getattr(item, "path", item)), None)

    def files(self, names: list[str] | None = None, **_: Any) -> list[SimpleNamespace]:
        """Return the files."""
        return [self.get_entry(name) for name in names or self.entries]

    def file(self, root: PathLike | None = None) -> str:
        """Copy the only file to a directory, and return the path of the copy."""
        if len(self.entries) != 1:
            raise ValueError(f"artifact {self.name!r} has {len(self.entries)} files, expected one")
        return str(Path(self.download(root)) / next(iter(self.entries)))

    def download(self, root: PathLike | None = None, **_: Any) -> str:
        """Copy the files to a directory, `artifacts/NAME` by default, and return it."""
        directory = Path(root or Path("artifacts") / safe_name(self.name))
        for name, path in self.entries.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, directory / name)
        return str(directory)

    checkout = download

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(path.stat().st_size for path in self.entries.values())

    @property
    def file_count(self) -> int:
        """Number of files."""
        return len(self.entries)

    def is_draft(self) -> bool:
        """Whether the artifact is not logged yet."""
        return self.state == "PENDING"

    def wait(self, timeout: float | None = None) -> Self:
        """Return the artifact at once: it is complete when `log_artifact` returns."""
        del timeout
        return self

    def log_to(self, run: Run, version: int, step: int) -> None:
        """Store files, media and description with the run.

        Raises:
            ConfigurationError: An added file no longer exists.
        """
        if missing_paths := [str(path) for path in self.entries.values() if not path.is_file()]:
            raise ConfigurationError(
                f"artifact {self.name!r}: these added files no longer exist: {', '.join(missing_paths)}"
            )
        self.version, self.state = f"v{version}", "COMMITTED"
        fields = {name: getattr(self, name) for name in ("name", "type", "description", "metadata", "aliases", "tags")}
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch) / self.version  # a directory is stored under its name
            for name, path in self.entries.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(path.resolve())
            if "artifact.json" not in self.entries:
                root.mkdir(exist_ok=True)
                text = json.dumps({**fields, "references": self._references}, indent=1, default=str)
                (root / "artifact.json").write_text(text, "utf-8")
            run.log_artifact(root, f"artifacts/{safe_name(self.name)}")
        for name, medium in self._media.items():
            medium.log_to(run, f"{safe_name(self.name)}/{name}", step)

    def __getattr__(self, name: str) -> Any:
        if _SERVER_ONLY.fullmatch(name):
            return None
        if _SERVER_CALLS.fullmatch(name):
            hint = "; run.log_artifact(artifact) stores the files" if name == "save" else ""
            return lambda *_, **__: say(f"Artifact.{name}() has no effect without the server of wandb{hint}")
        raise AttributeError(f"Artifact has no {name!r}")


def _inside(name: str) -> str:
    """Return the normalized name of a file in an artifact.

    Raises:
        ConfigurationError: The name is absolute or leaves the artifact.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ConfigurationError(f"artifact: the file name {name!r} is not relative to the artifact")
    return path.as_posix()
