"""Run: what `wandb.init` returns, over a run of trieye."""

import fnmatch
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.integrations.opening import AdoptedRun, safe_name
from trieye.integrations.wandb.media import Artifact, Histogram, Media, Text, medium_of
from trieye.integrations.wandb.values import Config, Summary
from trieye.process.progress import say
from trieye.run.media import step_of
from trieye.run.run import Run as TrieyeRun

_EXTREMES: Mapping[Any, Callable[[Any, Any], float]] = {"max": max, "min": min}
_SUMMARY = "wandb-summary.json"


class Run:
    """What `init` returns; also a context manager.

    Attributes:
        id, name, project, group, job_type, notes, tags: As `init` was given or has chosen them.
        config: The parameters.
        summary: What stands for each name in the end.
        resumed: Whether the run was begun before, and goes on.
        step: Of the next row.
        disabled: Whether nothing is kept.
        on_finish: Called with the run when it finishes.
    """

    def __init__(self, held: AdoptedRun | None, *, id: str, name: str, project: str, resumed: bool) -> None:  # noqa: A002
        self.id, self.name, self.project, self.resumed = id, name, project, resumed
        self.group = self.job_type = self.notes = None
        self.tags: tuple[str, ...] = ()
        self.disabled, self._held = held is None, held
        last = held.last_step if held is not None and resumed else None
        self.step = 0 if last is None else last + 1
        self.summary = Summary(_summary_in(held.run.dir) if held is not None and resumed else {})
        self.config = Config(self._record_config)
        self.on_finish: Callable[[Run], None] = lambda _: None
        self._row: dict[str, float] = {}
        self._has_ignored = False
        self._xs: dict[str, float] = {}
        self._met: set[str] = set()
        self._rules: list[tuple[str, str | None, str | None]] = []
        self._unhook: list[Callable[[], None]] = []

    @property
    def run(self) -> TrieyeRun:
        """The `trieye.Run`.

        Raises:
            ConfigurationError: The run is finished, or disabled.
        """
        if self._held is None:
            raise ConfigurationError("the run is finished; call wandb.init() first")
        return self._held.run

    @property
    def dir(self) -> str:
        """The directory of the run."""
        return "" if self._held is None else str(self.run.dir)

    @property
    def path(self) -> str:
        """`project/id`."""
        return f"{self.project}/{self.id}"

    url = None

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Add values to the row of a step, and write it when the next one begins, or at once without a step.

        Args:
            data: Numbers, media, texts; dicts inside become `a.b`.
            step: Of the row; one that is over is refused with a warning, as wandb does. None: that of the next row.
            commit: Whether the row is complete; None: if there is no `step`.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"wandb.log takes a dict, not a {type(data).__name__}")
        if not all(isinstance(key, str) and key for key in data):
            raise TypeError("wandb.log: the names in a dict are strings, and none is empty")
        if self.disabled:
            return
        _ = self.run
        if step is not None:
            number = step_of("wandb.log", step)
            if number < self.step:
                if not self._has_ignored:
                    self._has_ignored = True
                    say(f"wandb.log(step={step}): step {self.step} is under way; rows of steps before it are ignored")
                return
            if number > self.step:
                self._write()
                self.step = number
        self._take({key: medium_of(key, value) for key, value in _flat(data)})
        if commit or (commit is None and step is None):
            self._write()
            self.step += 1

    def _take(self, given: Mapping[str, float | Media | None]) -> None:
        """Let numbers wait for the end of the row; media are logged as they are now."""
        numbers = {key: value for key, value in given.items() if isinstance(value, float)}
        self._row |= numbers
        self._xs |= numbers
        for key, value in given.items():
            if isinstance(value, Media):
                value.log_to(self.run, key, self._place_of(key)[0])
                self.summary[key] = value

    def _write(self) -> None:
        row, self._row = self._row, {}
        for key, value in row.items():
            step, how = self._place_of(key)
            self.run.log(key, value, step=step)
            if how != "none":
                self._summarize(key, value, how)

    def _summarize(self, key: str, number: float, how: str | None) -> None:
        before = self.summary.get(key)
        if how not in _EXTREMES:
            self.summary[key] = number
        elif math.isfinite(number):
            if self.resumed and key not in self._met:  # a killed attempt left no summary, but the points
                before = self.run.best(key, "max" if how == "max" else "min")
            self._met.add(key)
            is_number = isinstance(before, float) and math.isfinite(before)
            self.summary[key] = _EXTREMES[how](before, number) if is_number else number

    def _place_of(self, key: str) -> tuple[int, str | None]:
        """Return the step at which a name is shown now, and how it is summarized."""
        step_metric, how = self._rule_of(key)
        x = self._xs.get(step_metric) if step_metric is not None else None
        return self.step if x is None or not math.isfinite(x) else int(x), how

    def _rule_of(self, key: str) -> tuple[str | None, str | None]:
        """Return x axis and summary of a name, by the last definition that fits."""
        for pattern, step_metric, summary in reversed(self._rules):
            if key == pattern or fnmatch.fnmatchcase(key, pattern):
                return (None if step_metric == key else step_metric), summary
        return None, None

    def define_metric(
        self,
        name: str,
        step_metric: str | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> None:
        """Say what a metric is shown over, and what its summary is: `min`, `max`, `last`, `none`, `best` of a goal."""
        del step_sync, hidden, overwrite
        chosen = {"best": {"minimize": "min"}.get(goal or "", "max"), "copy": "last"}.get(summary or "", summary)
        if chosen not in {None, "none", "last", *_EXTREMES}:
            raise ConfigurationError(f"define_metric(summary={summary!r}): it is one of min, max, last, best, none")
        self._rules.append((name, step_metric, chosen))

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Log histograms of gradients, parameters or `all` of torch modules with every so many backward passes."""
        del criterion, idx, log_graph
        if log not in {"gradients", "parameters", "all", None}:
            raise ConfigurationError(f"watch(log={log!r}): it is one of gradients, parameters, all")
        for model in models if isinstance(models, list | tuple) else [models]:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and log is not None:
                    self._hook(name, parameter, log, log_freq)

    def _hook(self, name: str, parameter: Any, log: str, every: int) -> None:
        count = 0

        def look(gradient: Any) -> None:
            nonlocal count
            if count % every == 0 and self._held is not None:
                if log != "parameters":
                    self._take({f"gradients/{name}": Histogram(gradient)})
                if log != "gradients":
                    self._take({f"parameters/{name}": Histogram(parameter)})
            count += 1

        self._unhook.append(parameter.register_hook(look).remove)

    def unwatch(self, models: Any = None) -> None:
        """Watch nothing any more."""
        del models
        for remove in self._unhook:
            remove()
        self._unhook.clear()

    def save(self, glob_str: str | os.PathLike[str], base_path: str | None = None, policy: str = "live") -> list[str]:
        """Keep files with the run, as they are now."""
        del policy
        pattern = Path(base_path or ".") / glob_str
        found = sorted(path for path in Path(pattern.anchor or ".").glob(str(pattern).lstrip("/")) if path.is_file())
        if not found:
            say(f"wandb.save({str(glob_str)!r}): there is no such file")
        return [self._keep(path, "files") for path in found]

    def _keep(self, path: Path, where: str) -> str:
        if not self.disabled:
            self.run.log_artifact(path, where)
        return str(path)

    def log_artifact(
        self,
        artifact: Artifact | str | os.PathLike[str],
        name: str | None = None,
        type: str | None = None,  # noqa: A002
    ) -> Artifact:
        """Keep the files of an artifact with the run."""
        if not isinstance(artifact, Artifact):
            path, artifact = Path(artifact), Artifact(name or Path(artifact).name, type or "unspecified")
            artifact.add_dir(path) if path.is_dir() else artifact.add_file(path)
        for path, inside in artifact.files:
            folder = Path("artifacts") / safe_name(artifact.name) / Path(inside).parent
            self._keep(path, folder.as_posix())
        return artifact

    def _record_config(self, items: Mapping[str, Any]) -> None:
        if self._held is not None:
            self.run.log_params(items)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write what is left, and close the run; an exit code other than 0 says that it failed."""
        del quiet
        self.on_finish(self)
        if self._held is None:
            return
        self._write()
        self.unwatch()
        own = {key: _plain(value) for key, value in self.summary.items()}
        write_atomic(self.run.dir / _SUMMARY, json.dumps(own, indent=1).encode())
        held, self._held = self._held, None
        held.leave("FAILED" if exit_code else "FINISHED")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(0 if kind is None else 1)


def _flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _plain(value: Any) -> Any:
    if isinstance(value, Media):
        return {"_type": type(value).__name__.lower()} if not isinstance(value, Text) else str(value)
    is_plain = isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)


def _summary_in(directory: Path) -> Mapping[str, Any]:
    """Return the summary that an attempt which finished has left."""
    try:
        return dict(json.loads((directory / _SUMMARY).read_text("utf-8")))
    except (OSError, ValueError):
        return {}
