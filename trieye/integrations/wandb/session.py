"""Session: the rows, the config and the summary of a wandb run, and its end."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trieye.config.redaction import HIDDEN, redacted
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import MetricSummary, RunRecord, RunStatus
from trieye.integrations.opening import AdoptedRun, AdoptingLogger
from trieye.integrations.wandb.axes import Axes
from trieye.integrations.wandb.media import Media, Text, medium_of
from trieye.integrations.wandb.values import Summary, WandbConfig, flat
from trieye.process.progress import say
from trieye.run.attempt import DESCRIPTION_TAG
from trieye.run.media import step_of
from trieye.run.run import Run as TrieyeRun

_EXTREMES: Mapping[Any, Callable[[Any, Any], float]] = {"max": max, "min": min}
_SUMMARY, _CONFIG = "wandb-summary.json", "wandb-config.json"

ROWS = "trieye/wandb_step"
"""Metric that records the number of the last row, in runs whose metrics have other steps; in the history only."""

ROWS_METRIC = {
    "name": ROWS,
    "aggregation": "max",
    "log_frequency_steps": 0,
    "log_frequency_seconds": 30.0,
    "log_to": [],
}
"""Config of that metric."""

_MOST_ITEMS = 1000
"""Size of the largest array that a summary or config stores as numbers."""

_TAGS = {"name": "mlflow.runName", "notes": DESCRIPTION_TAG, "tags": "wandb.tags"}
"""Tag of the run that an attribute of a session sets."""

_OWN = "_wandb"
"""Key of the config file under which the adapter stores its state."""


class Session(AdoptingLogger):
    """An open run: rows, config and summary.

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
        self._row: dict[str, float] = {}
        self._extremes: Mapping[str, MetricSummary] = {}
        config, summary = self._earlier() if resumed else ({}, {})
        own_items = config.pop(_OWN, {})
        self.versions = dict(own_items.get("versions", {}))
        self._axes = Axes(self._note_fraction, own_items.get("fractional", ()))
        self.config = WandbConfig(config, self._record_config)
        self.summary = Summary(summary, self._keep_summary)
        self.starting_step, self.start_time = self.step, time.time()
        if adopted is not None:
            adopted.before_close.append(self._end)
            for file_name in () if resumed else (_SUMMARY, _CONFIG):
                (adopted.run.dir / file_name).unlink(missing_ok=True)

    def __setattr__(self, key: str, value: Any) -> None:
        is_changed = key in _TAGS and getattr(self, "_adopted", None) is not None and getattr(self, key) != value
        super().__setattr__(key, value)
        if is_changed:
            self.run.set_tags({_TAGS[key]: ",".join(value) if key == "tags" else value or ""})

    def _earlier(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Continue after the last row of earlier attempts; return their config and summary.

        A summary file is complete if the last attempt finished. After a kill, its numbers come from the points.
        """
        extremes = self.run.summary()
        steps = {name: seen["step"] for name, seen in extremes.items()}
        self.counts_rows = ROWS in steps
        self.step = steps.get(ROWS, max(steps.values(), default=-1)) + 1
        record = RunRecord.read(self.run.dir / RUN_RECORD)
        summary = _items_in(self.run.dir / _SUMMARY)
        if record is None or record.status_before not in {"FINISHED", "FAILED"}:
            self._extremes = {name: seen for name, seen in extremes.items() if not name.startswith("trieye/")}
            summary |= {name: seen["last"] for name, seen in self._extremes.items()}
        return _items_in(self.run.dir / _CONFIG), summary

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
        if self.disabled or not (step is None or self._begin_row(step)):
            return
        self._take({key: medium_of(key, value) for key, value in flat(data)})
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

    def _take(self, values: Mapping[str, float | Media | None]) -> None:
        """Buffer numbers until the end of the row; log media at once."""
        run, numbers = self.run, {key: value for key, value in values.items() if isinstance(value, float)}
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
        self._keep(_CONFIG, {**redacted(_plain(self.config.as_dict())), _OWN: own_items})

    def _keep_summary(self, _changed: Mapping[str, Any] | None = None) -> None:
        self._keep(_SUMMARY, _plain(self.summary))

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
        if adopted_run is not None and self.is_open:
            status = "KILLED" if adopted_run.run.was_interrupted else status
            self._write()
            self._keep_summary()
            if self._end in adopted_run.before_close:
                adopted_run.before_close.remove(self._end)
            adopted_run.leave(status)
        self._adopted = None
        self.on_finish(self, status)


def _plain(value: Any) -> Any:
    """Convert a value to JSON; arrays and tensors become numbers and lists, large ones text."""
    if isinstance(value, Media):
        return {"_type": type(value).__name__.lower()} if not isinstance(value, Text) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist") and math.prod(getattr(value, "shape", ())) <= _MOST_ITEMS:
        items = value.tolist()  # of a longdouble, the value itself
        return str(value) if type(items) is type(value) else _plain(items)
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _items_in(path: Path) -> dict[str, Any]:
    """Return the items in a JSON file of an earlier attempt, except redacted items."""
    try:
        items = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in items.items() if HIDDEN not in json.dumps(value)}
