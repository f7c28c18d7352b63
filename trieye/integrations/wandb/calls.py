"""Run: the `wandb.Run` API over a trieye run: rows, config, summary, files and the end; `wandb.init` returns it."""

import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from trieye.config.redaction import HIDDEN, redacted
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus
from trieye.integrations.opening import AdoptedRun, AdoptingLogger
from trieye.integrations.wandb.artifacts import Artifact
from trieye.integrations.wandb.axes import Axes
from trieye.integrations.wandb.media import Histogram, Media, PathLike, medium_of
from trieye.integrations.wandb.values import Summary, WandbConfig, flat, plain
from trieye.process.progress import say
from trieye.run.attempt import DESCRIPTION_TAG
from trieye.run.media import step_of
from trieye.run.run import Run as TrieyeRun

Names = Sequence[str] | None
Filter = Callable[..., bool] | None

_EXTREMES: Mapping[Any, Callable[[Any, Any], float]] = {"max": max, "min": min}
_SUMMARY, _CONFIG = "wandb-summary.json", "wandb-config.json"

ROWS = "trieye/wandb_step"
"""Metric that records the number of the last row, in runs whose metrics have other steps; in the history only."""

ROWS_METRIC = {"name": ROWS, "aggregation": "max", "log_frequency_steps": 0, "log_frequency_seconds": 30, "log_to": []}
"""Config of that metric."""

_TAGS = {"name": "mlflow.runName", "notes": DESCRIPTION_TAG, "tags": "wandb.tags"}
"""Tag of the run that an attribute of a session sets."""

_OWN = "_wandb"
"""Key of the config file under which the adapter stores its state."""

_OTHER_CODE = frozenset({"wandb", "node_modules", "__pycache__"})


class Run(AdoptingLogger):
    """A run with the attributes and methods of `wandb.Run`; also a context manager.

    Args:
        adopted: The run; None: nothing is logged.
        id, name, project: As passed to `init` or chosen by it.
        resumed: Whether the run continues an earlier attempt.

    Attributes:
        group, job_type, notes, tags: As passed to `init`; setting `name`, `notes` or `tags` sets tags of the run.
        config: The parameters.
        summary: The final value of each name.
        step: Step of the next row.
        starting_step, start_time: First step and Unix start time of this attempt.
        disabled: Whether nothing is logged.
        dir, sync_dir: The directory of the run.
        path: `project/id`.
        on_finish: Called with the run and its status when it finishes.
    """

    entity = url = project_url = sweep_id = sweep_url = settings = None
    offline = True
    group: str | None = None
    job_type: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()

    def __init__(self, adopted: AdoptedRun | None, *, id: str, name: str, project: str, resumed: bool) -> None:  # noqa: A002
        self.id, self.name, self.project, self.resumed = id, name, project, resumed
        self.path, self.disabled, self._adopted, self._pid = f"{project}/{id}", adopted is None, adopted, os.getpid()
        self.dir = self.sync_dir = "" if adopted is None else str(adopted.run.dir.resolve())
        self.step, self.counts_rows, self._has_ignored = 0, False, False
        self.on_finish: Callable[[Any, RunStatus], None] = lambda *_: None
        self._lock = threading.RLock()  # guards `step` and `_row`
        self._row: dict[str, float] = {}
        self._extremes: Mapping[str, MetricSummary] = {}
        self._unhook: list[Callable[[], None]] = []
        self._alerts: dict[str, float] = {}
        config = {} if adopted is None else _items_in(adopted.run.dir / _CONFIG)
        own_items = config.pop(_OWN, {})
        self.versions = dict(own_items.get("versions", {}))
        self._axes = Axes(self._note_fraction, own_items.get("fractional", ()) if resumed else ())
        self.config = WandbConfig(config if resumed else {}, self._record_config)
        self.summary = Summary(self._earlier_summary() if resumed else {}, self._keep_summary)
        self.starting_step, self.start_time = self.step, time.time()
        if adopted is not None:
            adopted.users.add(self)
            adopted.before_close.append(self._end)
        if not resumed:
            self._keep_config()
            self._keep_summary()

    def __setattr__(self, key: str, value: Any) -> None:
        is_changed = key in _TAGS and getattr(self, "_adopted", None) is not None and getattr(self, key) != value
        super().__setattr__(key, value)
        if is_changed:
            self.run.set_tags({_TAGS[key]: ",".join(value) if key == "tags" else value or ""})

    def _earlier_summary(self) -> dict[str, Any]:
        """Continue after the last row of earlier attempts; return their summary.

        A summary file is complete if the last attempt finished. After a kill, its numbers come from the points.
        """
        extremes = self.run.summary()
        steps = {name: extreme["step"] for name, extreme in extremes.items()}
        self.counts_rows = ROWS in steps
        self.step = steps.get(ROWS, max(steps.values(), default=-1)) + 1
        self._axes.update({name: extreme["last"] for name, extreme in extremes.items()})
        record = RunRecord.read(self.run.dir / RUN_RECORD)
        summary = _items_in(self.run.dir / _SUMMARY)
        if record is None or record.status_before not in {"FINISHED", "FAILED"}:
            self._extremes = {name: extreme for name, extreme in extremes.items() if not name.startswith("trieye/")}
            summary |= {name: extreme["last"] for name, extreme in self._extremes.items()}
        return summary

    @property
    def run(self) -> TrieyeRun:
        """The `trieye.Run`.

        Raises:
            ConfigurationError: The run is finished or disabled, or was opened before this process was forked.
        """
        if self._adopted is None:
            raise ConfigurationError("the run is finished; call wandb.init() first")
        if self._pid != os.getpid():
            raise ConfigurationError(
                f"run {self.id!r} was opened by process {self._pid} before this process was forked; log there, "
                "or call wandb.init() with another id in this process"
            )
        return self._adopted.run

    @property
    def is_open(self) -> bool:
        """Whether the run accepts values; False in a fork of the process that opened it."""
        return self._adopted is not None and self._pid == os.getpid() and not self._adopted.is_closed

    @property
    def config_static(self) -> dict[str, Any]:
        """A copy of the parameters."""
        return self.config.as_dict()

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Add values to the row of a step; the row is written when the next row begins, or at once without a step.

        Args:
            data: Numbers, media, texts; dicts inside become `a.b`.
            step: Step of the row. Earlier steps are ignored with a warning, as in wandb. None: the next row.
            commit: Whether the row is complete; None: if there is no `step`.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"wandb.log takes a dict, not a {type(data).__name__}")
        if not all(isinstance(key, str) and key for key in data):
            raise TypeError(f"wandb.log: keys must be non-empty strings, got {list(data)}")
        if self.disabled:
            return
        run = self.run  # raises in a forked child, before it waits for a lock that the parent held
        with self._lock:
            if step is None or self._begin_row(step):
                self._take(run, {key: medium_of(key, value) for key, value in flat(data)})
                if commit or (commit is None and step is None):
                    self._write()
                    self.step += 1

    def _begin_row(self, step: int) -> bool:
        """Write the row before a step, and return whether the step is not an earlier one."""
        row_step = step_of("wandb.log", step)
        if row_step > self.step:
            self._write()
            self.step = row_step
        elif row_step < self.step and not self._has_ignored:
            self._has_ignored = True
            say(f"wandb.log(step={step}): the current step is {self.step}; rows of earlier steps are ignored")
        return row_step == self.step

    def _take(self, run: TrieyeRun, values: Mapping[str, float | Media | None]) -> None:
        """Buffer numbers until the end of the row; log media at once."""
        numbers = {key: value for key, value in values.items() if isinstance(value, float)}
        self._row |= numbers
        self._axes.update(numbers)
        for key, value in values.items():
            if isinstance(value, Media):
                value.log_to(run, key, self._axes.step_of(key, self.step))
                self.summary.set_silently({key: value})

    def _write(self) -> None:
        row, self._row = self._row, {}
        for key, value in row.items():
            self.run.log(key, value, step=self._axes.step_of(key, self.step))
            self._summarize(key, value, self._axes.rule_of(key)[1])
        if row and self.counts_rows:
            self.run.log(ROWS, float(self.step), step=self.step)

    def _summarize(self, key: str, value: float, how: str | None) -> None:
        """Update the summary with a logged number; after a kill, it is restored from the history."""
        old_value = self.summary.get(key)
        if how in _EXTREMES:
            if not math.isfinite(value):
                return
            if isinstance(old_value, float) and math.isfinite(old_value):
                value = _EXTREMES[how](old_value, value)
        if how != "none":
            self.summary.set_silently({key: value})

    def define_metric(
        self,
        name: str,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> SimpleNamespace:
        """Set the step metric and the summary of a metric: `min`, `max`, `last`, `none`, or `best` with a goal."""
        del step_sync, hidden, overwrite
        aggregation = {"best": {"minimize": "min"}.get(goal or "", "max"), "copy": "last"}.get(summary or "", summary)
        if aggregation in {"mean", "first"} or "," in (aggregation or ""):
            say(f"define_metric({name!r}, summary={summary!r}) is not available; the summary is the last value")
            aggregation = "last"
        if aggregation not in {None, "none", "last", *_EXTREMES}:
            raise ConfigurationError(f"define_metric(summary={summary!r}): choose from min, max, last, best, none")
        self._axes.define(name, getattr(step_metric, "name", step_metric), aggregation)
        self.counts_rows = self.counts_rows or bool(self._axes.step_metrics)
        for metric, extremes in self._extremes.items():
            if aggregation in _EXTREMES and self._axes.rule_of(metric)[1] == aggregation:
                self.summary.set_silently({metric: extremes["max" if aggregation == "max" else "min"]})
        return SimpleNamespace(name=name, step_metric=step_metric, summary=summary)

    def _note_fraction(self, axis: str, x: float) -> None:
        say(
            f"wandb: step metric {axis!r} has the value {x:g}, but steps are integers. From here on, its metrics are "
            f"logged at the numbers of their rows, and {axis!r} is a curve over the same steps"
        )
        self._keep_config()

    def _record_config(self, items: Mapping[str, Any]) -> None:
        if self._adopted is not None:
            self.run.log_params(items)
            self._keep_config()

    def _keep_config(self) -> None:
        own_items = {"fractional": sorted(self._axes.fractional), "versions": self.versions}
        self._keep(_CONFIG, {**redacted(plain(self.config.as_dict())), _OWN: own_items})

    def _keep_summary(self, _changed: Mapping[str, Any] | None = None) -> None:
        self._keep(_SUMMARY, plain(self.summary))

    def _keep(self, file_name: str, items: Mapping[str, Any]) -> None:
        """Store items in the run directory, for later attempts."""
        if self._adopted is not None:
            text = json.dumps(items, indent=1)
            write_atomic(self.run.dir / file_name, text.encode(), is_lasting=False)

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write the current row and close the run, as FAILED if the exit code is not 0."""
        del quiet
        self._end("FAILED" if exit_code else "FINISHED")

    def _end(self, status: RunStatus) -> None:
        adopted_run = self._adopted
        if adopted_run is None or not self.is_open:
            status = "KILLED"  # a forked child, or a disabled run, leaves the run resumable
        else:
            status = "KILLED" if adopted_run.run.was_interrupted else status
            with self._lock:
                self._write()
                self._keep_summary()
                if self._end in adopted_run.before_close:
                    adopted_run.before_close.remove(self._end)
                adopted_run.leave(self, status)
        self._adopted = None
        self.on_finish(self, status)
        self.unwatch()

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
                values = {"gradients": gradient.to_dense(), "parameters": parameter}
                kinds = values if log == "all" else [log]
                self.log({f"{kind}/{name}": Histogram(values[kind]) for kind in kinds}, commit=False)

        self._unhook.append(parameter.register_hook(log_histograms).remove)

    def unwatch(self, models: Any = None) -> None:
        """Remove all hooks of `watch`."""
        del models
        while self._unhook:
            self._unhook.pop()()

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
        self, root: str | None = ".", name: str | None = None, include_fn: Filter = None, exclude_fn: Filter = None
    ) -> Artifact | None:
        """Store the Python files below a directory, except hidden directories and runs, as a `code` artifact."""
        top, artifact = Path(root or "."), Artifact(name or "source", "code")
        root_of_runs = Path(self.dir, "../../..").resolve()
        for directory, subdirs, files in os.walk(top):
            subdirs[:] = sorted(entry for entry in subdirs if not entry.startswith(".") and entry not in _OTHER_CODE)
            subdirs[:] = [entry for entry in subdirs if Path(directory, entry).resolve() != root_of_runs]
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
        artifact = artifact_or_name
        if not isinstance(artifact, Artifact):
            raise ConfigurationError(
                f"wandb.use_artifact({artifact!r}): nothing is downloaded, since nothing enters this machine; pass the "
                "path of the file to your program instead"
            )
        return self.log_artifact(artifact, aliases=aliases) if artifact.is_draft() else artifact

    def use_model(self, name: str) -> Artifact:
        """Raise, since only the server of wandb can resolve the name; see `use_artifact`."""
        return self.use_artifact(name)

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


def _matches(function: Callable[..., bool], path: Path, root: Path) -> bool:
    """Call a function of (path) or (path, root)."""
    try:
        return function(str(path), str(root))
    except TypeError:
        return function(str(path))


def _items_in(path: Path) -> dict[str, Any]:
    """Return the items in a JSON file of an earlier attempt, except redacted items."""
    try:
        items = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in items.items() if HIDDEN not in json.dumps(value)}
