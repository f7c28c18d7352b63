"""Run: the `wandb.Run` API over a trieye run; `wandb.init` returns it."""

import itertools
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TextIO

from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.integrations.opening import AdoptedRun
from trieye.integrations.wandb.artifacts import Artifact
from trieye.integrations.wandb.media import Histogram, PathLike
from trieye.integrations.wandb.session import Session
from trieye.process.progress import say

_OTHER_CODE = frozenset({"wandb", "node_modules", "__pycache__"})


Names = Sequence[str] | None


class Run(Session):
    """A run with the methods of `wandb.Run`; also a context manager."""

    def __init__(self, adopted_run: AdoptedRun | None, **names: Any) -> None:
        super().__init__(adopted_run, **names)
        self._unhook: list[Callable[[], None]] = []
        self._alerts: dict[str, float] = {}

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Log histograms of gradients, parameters or `all` of torch modules every `log_freq` backward passes."""
        del criterion, idx, log_graph
        if log not in {"gradients", "parameters", "all", None}:
            raise ConfigurationError(f"watch(log={log!r}): choose from gradients, parameters, all")
        for model in models if isinstance(models, list | tuple) else [models]:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and log is not None:
                    self._hook(name, parameter, log, log_freq)

    def _hook(self, name: str, parameter: Any, log: str, every: int) -> None:
        calls = itertools.count()

        def log_histograms(gradient: Any) -> None:
            if next(calls) % every == 0 and self._adopted is not None:
                values = {"gradients": gradient, "parameters": parameter}
                kinds = values if log == "all" else [log]
                self._take({f"{kind}/{name}": Histogram(values[kind]) for kind in kinds})

        self._unhook.append(parameter.register_hook(log_histograms).remove)

    def unwatch(self, models: Any = None) -> None:
        """Remove all hooks of `watch`."""
        del models
        while self._unhook:
            self._unhook.pop()()

    def _end(self, status: RunStatus) -> None:
        super()._end(status)
        self.unwatch()

    def alert(self, title: str, text: str, level: Any = None, wait_duration: float | timedelta | None = None) -> None:
        """Print and log a message, unless an alert with the same title occurred within `wait_duration` (60 s)."""
        pause = wait_duration.total_seconds() if isinstance(wait_duration, timedelta) else wait_duration
        now = time.monotonic()
        if not self.disabled and now - self._alerts.get(title, -math.inf) >= (60.0 if pause is None else pause):
            self._alerts[title] = now
            say(f"run {self.id!r}: {title}: {text}")
            self.run.log_text("alerts", f"**{title}** ({level or 'INFO'})\n\n{text}", self.step)

    def status(self) -> SimpleNamespace:
        """Return how many values the slowest sink has not written yet."""
        sinks = [] if self.disabled else self.run.health()["sinks"]
        pending = max((sink["backlog"] or 0 for sink in sinks), default=0)
        return SimpleNamespace(sync_items_total=pending, sync_items_pending=pending, sync_time=None)

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: the call affects only the server or web page of wandb."""

    mark_preempting = pin_config_keys = write_logs = display = _do_nothing

    def to_html(self, *_: Any, **__: Any) -> str:
        """Return an empty page."""
        return ""

    def save(
        self, glob_str: PathLike, base_path: PathLike | None = None, policy: str = "live", glob: bool = True
    ) -> list[str]:
        """Store a copy of the files that match a pattern, under their paths relative to `base_path`."""
        del policy
        base = Path(base_path or ".")
        pattern = base / glob_str
        matches = Path(pattern.anchor or ".").glob(str(pattern).lstrip("/")) if glob else [pattern]
        paths = sorted(path for path in matches if path.is_file())
        if not paths:
            say(f"wandb.save({str(glob_str)!r}): no file matches")
        for path in [] if self.disabled else paths:
            is_inside = path.is_relative_to(base) and ".." not in path.parts
            folder = path.parent.relative_to(base) if is_inside else Path()
            self.run.log_artifact(path, (Path("files") / folder).as_posix())
        return [str(path) for path in paths]

    def log_artifact(
        self,
        artifact_or_path: Artifact | PathLike,
        name: str | None = None,
        type: str | None = None,  # noqa: A002 - wandb's name
        aliases: Names = None,
        tags: Names = None,
        **_: Any,
    ) -> Artifact:
        """Store the files of an artifact, or of a path, as its next version."""
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path, artifact = Path(artifact), Artifact(name or Path(artifact).name, type or "unspecified")
            artifact.add_dir(path) if path.is_dir() else artifact.add_file(path)
        artifact.aliases, artifact.tags = ["latest", *(aliases or ())], list(tags or ())
        if not self.disabled:
            version = self.versions.get(artifact.name, 0)
            self.versions[artifact.name] = version + 1
            self._keep_config()
            artifact.log_to(self.run, version, self.step)
        return artifact

    finish_artifact = upsert_artifact = log_artifact

    def link_artifact(self, artifact: Artifact, target_path: str, aliases: Names = None) -> Artifact:
        """Store an artifact that is not logged yet; there is no registry to link it to."""
        return self.log_artifact(artifact, aliases=[target_path, *(aliases or ())]) if artifact.is_draft() else artifact

    def log_model(self, path: PathLike, name: str | None = None, aliases: Names = None) -> Artifact:
        """Store a file or a directory as an artifact of type `model`."""
        return self.log_artifact(path, name, "model", aliases)

    def link_model(
        self, path: PathLike, registered_model_name: str, name: str | None = None, aliases: Names = None
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
        aliases: Names = None,
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
