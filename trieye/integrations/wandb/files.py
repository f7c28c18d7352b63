"""FileCalls: the methods of a wandb run that store files and artifacts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from trieye.exceptions import ConfigurationError
from trieye.integrations.wandb.artifacts import Artifact
from trieye.integrations.wandb.media import PathLike
from trieye.process.progress import say
from trieye.run.run import Run

_OTHER_CODE = frozenset({"wandb", "node_modules", "__pycache__"})


class FileCalls:
    """Stores files with a run.

    Attributes:
        disabled: Whether nothing is stored.
        step: Step of the current row.
        versions: Number of versions of each artifact, over all attempts.
    """

    disabled: bool
    step: int
    versions: dict[str, int]

    @property
    def run(self) -> Run:
        """The `trieye.Run`."""
        raise NotImplementedError

    def _count_version(self, name: str) -> int:
        """Reserve and return the next version number of an artifact."""
        raise NotImplementedError

    def save(
        self, glob_str: PathLike, base_path: PathLike | None = None, policy: str = "live", glob: bool = True
    ) -> list[str]:
        """Store a copy of the files that match a pattern."""
        del policy
        pattern = Path(base_path or ".") / glob_str
        matches = Path(pattern.anchor or ".").glob(str(pattern).lstrip("/")) if glob else [pattern]
        paths = sorted(path for path in matches if path.is_file())
        if not paths:
            say(f"wandb.save({str(glob_str)!r}): no file matches")
        for path in [] if self.disabled else paths:
            self.run.log_artifact(path, "files")
        return [str(path) for path in paths]

    def log_artifact(
        self,
        artifact_or_path: Artifact | PathLike,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - wandb's name
        aliases: Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        **more: Any,
    ) -> Artifact:
        """Store the files of an artifact, or of a path, as its next version."""
        del more
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path, artifact = Path(artifact), Artifact(name or Path(artifact).name, type or "unspecified")
            artifact.add_dir(path) if path.is_dir() else artifact.add_file(path)
        artifact.aliases, artifact.tags = ["latest", *(aliases or ())], list(tags or ())
        if not self.disabled:
            artifact.log_to(self.run, self._count_version(artifact.name), self.step)
        return artifact

    finish_artifact = upsert_artifact = log_artifact

    def link_artifact(self, artifact: Artifact, target_path: str, aliases: Sequence[str] | None = None) -> Artifact:
        """Store an artifact that is not logged yet; there is no registry to link it to."""
        return self.log_artifact(artifact, aliases=[target_path, *(aliases or ())]) if artifact.is_draft() else artifact

    def log_model(self, path: PathLike, name: str | None = None, aliases: Sequence[str] | None = None) -> Artifact:
        """Store a file or a directory as an artifact of type `model`."""
        return self.log_artifact(path, name, "model", aliases)

    def link_model(
        self,
        path: PathLike,
        registered_model_name: str,
        name: str | None = None,
        aliases: Sequence[str] | None = None,
    ) -> Artifact:
        """Store a model; there is no registry to link it to."""
        return self.log_model(path, name, [registered_model_name, *(aliases or ())])

    def log_code(
        self,
        root: str | None = ".",
        name: str | None = None,
        include_fn: Callable[..., bool] | None = None,
        exclude_fn: Callable[..., bool] | None = None,
    ) -> Artifact | None:
        """Store the Python files below a directory, except hidden directories, as an artifact of type `code`."""
        top, artifact = Path(root or "."), Artifact(name or "source", "code")
        for directory, below, files in os.walk(top):
            below[:] = sorted(entry for entry in below if not entry.startswith(".") and entry not in _OTHER_CODE)
            for path in (Path(directory) / file for file in sorted(files)):
                is_code = _matches(include_fn, path, top) if include_fn else path.suffix == ".py"
                if is_code and not (exclude_fn and _matches(exclude_fn, path, top)):
                    artifact.add_file(path, path.relative_to(top).as_posix())
        return self.log_artifact(artifact) if artifact.entries else None

    def use_artifact(
        self,
        artifact_or_name: Artifact | str,
        type: str | None = None,  # noqa: A002 - wandb's name
        aliases: Sequence[str] | None = None,
        use_as: str | None = None,
    ) -> Artifact:
        """Store an artifact that this program created and uses.

        Raises:
            ConfigurationError: A name was passed, which only the server of wandb can resolve.
        """
        del type, use_as
        if not isinstance(artifact_or_name, Artifact):
            _refuse("use_artifact", artifact_or_name)
        return self.log_artifact(artifact_or_name, aliases=aliases) if artifact_or_name.is_draft() else artifact_or_name

    def use_model(self, name: str) -> str:
        """Raise, since only the server of wandb can resolve the name.

        Raises:
            ConfigurationError: Always.
        """
        _refuse("use_model", name)

    def restore(
        self, name: str, run_path: str | None = None, replace: bool = False, root: str | None = None
    ) -> TextIO | None:
        """Open a file below `root` or the working directory; return None if it does not exist."""
        del run_path, replace
        path = Path(root or ".") / name
        if path.is_file():
            return path.open(encoding="utf-8")
        say(f"wandb.restore({name!r}): {path} does not exist, and nothing is downloaded")
        return None


def _refuse(call: str, name: object) -> NoReturn:
    raise ConfigurationError(
        f"wandb.{call}({name!r}): artifacts of other runs cannot be downloaded, since nothing leaves or enters this "
        "machine; pass the path of the file to your program instead"
    )


def _matches(function: Callable[..., bool], path: Path, root: Path) -> bool:
    """Call a function of (path) or (path, root)."""
    try:
        return function(str(path), str(root))
    except TypeError:
        return function(str(path))
