"""The `wandb` API for local runs: `import trieye.integrations.wandb as wandb` is the only line to change.

Nothing leaves this machine: values go to MLflow, TensorBoard and the history of the run, and survive a kill of the
program. `resume="must"`, `"allow"`, `"auto"` and `"never"` behave as in `wandb`.
"""

import enum
import functools
import glob
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.files.atomic import write_atomic
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord, RunStatus
from trieye.integrations import opening
from trieye.integrations.opening import AdoptedRun, safe_name
from trieye.integrations.wandb import plot
from trieye.integrations.wandb.artifacts import Artifact
from trieye.integrations.wandb.calls import ROWS_METRIC, Run
from trieye.integrations.wandb.media import Audio, Histogram, Html, Image, Molecule, Object3D, Plotly, Table, Video
from trieye.process.progress import say
from trieye.runs.finding import ROOT_VARIABLE

__all__ = ["AlertLevel", "Artifact", "Audio", "Error", "Histogram", "Html", "Image", "Molecule", "Object3D", "Plotly"]
__all__ += ["Run", "Settings", "Table", "Video", "alert", "define_metric", "finish", "init", "join", "link_model"]
__all__ += ["log", "log_artifact", "log_model", "login", "plot", "plot_table", "restore", "save", "setup", "teardown"]
__all__ += ["termerror", "termlog", "termwarn", "unwatch", "use_artifact", "use_model", "watch"]

NOT_SUPPORTED = ("Api", "ArtifactTTL", "EvalTable", "Graph", "agent", "box3d", "controller", "sweep")
"""Public names of `wandb` that need its server."""

RESUME_FILE = Path("wandb") / "wandb-resume.json"
"""File in which `resume="auto"` stores the id of an unfinished run, as in wandb."""

_VARIABLES = {"project": "WANDB_PROJECT", "name": "WANDB_NAME", "group": "WANDB_RUN_GROUP", "id": "WANDB_RUN_ID"}
_VARIABLES |= {"resume": "WANDB_RESUME", "mode": "WANDB_MODE", "dir": "WANDB_DIR"}
"""Environment variables that supply omitted arguments of `init`."""

_ARGUMENTS = {"config", "config_include_keys", "config_exclude_keys", "job_type", "notes", "reinit", "sync_tensorboard"}
_ARGUMENTS |= {"tags", "tensorboard", *_VARIABLES}
_IGNORED = {"entity", "save_code", "monitor_gym", "allow_val_change", "force", "anonymous"}
_REFUSED = {"resume_from", "fork_from"}
"""Arguments of `init`."""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("online", "offline", "shared", "disabled", "dryrun", "run"),
    "resume": ("allow", "must", "never", "auto"),
    "reinit": ("default", "return_previous", "finish_previous", "create_new"),
}
_HOW_TO_REOPEN = "for another one, call wandb.finish() first, or init with reinit='finish_previous' or 'create_new'"

_active: list[Run] = []
"""Unfinished runs, oldest first."""
_current: Run | None = None

Settings = SimpleNamespace
Error = CommError = UsageError = TrieyeError


class AlertLevel(enum.StrEnum):
    """Severity of an alert."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def init(project: str | None = None, name: str | None = None, *, settings: Any = None, **options: Any) -> Run:
    """Start or resume a run, and make it `wandb.run`.

    Args:
        project: The app of the run.
        name: The name that wandb displays; part of the name of the run if it differs from the id.
        settings: Values for omitted arguments, such as `run_id`; other settings have no effect.
        options: The other arguments of `wandb.init`, such as `id`, `resume`, `config`, `tags`, `mode` and `reinit`.

    Raises:
        ConfigurationError: An argument is unknown or has an invalid value, or `resume` does not fit the run.
    """
    global _current
    arguments = _merged({"project": project, "name": name, **options}, settings)
    if arguments["reinit"] != "create_new" and (earlier_run := _previous(arguments)) is not None:
        return earlier_run
    params = _parsed(arguments["config"], arguments["config_include_keys"], arguments["config_exclude_keys"])
    run = _made(arguments)
    run.on_finish = _finished
    _active.append(run)
    run.group, run.job_type, run.notes = arguments["group"], arguments["job_type"], arguments["notes"]
    run.tags = tuple(arguments["tags"] or ())
    run.config.update(params, allow_val_change=True)
    if arguments["reinit"] != "create_new":
        _current = run
    return run


def _merged(arguments: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Check the arguments of `init`, and take omitted ones from the settings and from environment variables."""
    for key in arguments:
        if key in _REFUSED:
            raise ConfigurationError(
                f"wandb.init({key}=...) is not supported; `trieye fork RUN --checkpoint step:N` forks a run"
            )
        if key not in _ARGUMENTS | _IGNORED:
            raise ConfigurationError(f"wandb.init({key}=...): unknown argument{did_you_mean(key, _ARGUMENTS)}")
    if without_effect := sorted(_IGNORED & arguments.keys()):
        say(f"wandb.init(): {', '.join(without_effect)} has no effect without the server of wandb")
    merged: dict[str, Any] = {key: os.environ.get(_VARIABLES.get(key, "")) for key in _ARGUMENTS}
    own_settings = settings if isinstance(settings, Mapping) else vars(settings or Settings())
    for source in ({key.removeprefix("run_"): value for key, value in own_settings.items()}, arguments):
        merged |= {key: value for key, value in source.items() if value is not None}
    for key in ("project", "id"):
        if not isinstance(merged[key], str | None):
            raise ConfigurationError(f"wandb.init({key}={merged[key]!r}): expected a string")
    for key, choices in _CHOICES.items():
        value = merged[key]
        if isinstance(value, str) and value not in choices:
            raise ConfigurationError(
                f"wandb.init({key}={value!r}) or {_VARIABLES.get(key, 'settings')}: choose from {', '.join(choices)}"
                f"{did_you_mean(value, choices)}"
            )
    return merged


def _made(options: Mapping[str, Any]) -> Run:
    """Open the run that the arguments of `init` describe."""
    project, resume = options["project"] or "uncategorized", options["resume"]
    resume = {True: "auto", False: None}[resume] if isinstance(resume, bool) else resume
    run_id = options["id"] or (_auto_id() if resume == "auto" else None) or secrets.token_hex(6)
    names = {"id": run_id, "name": options["name"] or run_id, "project": project}
    if options["mode"] == "disabled" or os.environ.get("WANDB_DISABLED") == "true":
        return Run(None, resumed=False, **names)
    root = Path(os.environ.get(ROOT_VARIABLE) or Path(options["dir"] or ".") / ".trieye_data")
    directory, exists = _directory(root / safe_name(project) / "runs", run_id, names["name"], resume)
    labels = {"id": run_id, "group": options["group"], "job_type": options["job_type"]}
    labels["tags"] = ",".join(options["tags"] or ())
    run_fields = {
        "tags": {f"wandb.{key}": value for key, value in labels.items() if value},
        "description": options["notes"],
    }
    rows: dict[str, Any] = {"stats": {"metrics": [ROWS_METRIC]}}
    adopted = AdoptedRun.join(directory.name, app=safe_name(project), root=root, **rows, **run_fields)
    is_resumed = exists and resume in {"allow", "must", "auto"}
    if exists and not is_resumed:
        adopted.resumes_at(0)
    say(f"wandb: run {run_id!r} of project {project!r} {'resumes' if is_resumed else 'begins'} in {adopted.run.dir}")
    run = Run(adopted, resumed=is_resumed, **names)
    if options["sync_tensorboard"] or options["tensorboard"]:
        run.counts_rows = True
        opening.SHARED.update(name=directory.name, app=safe_name(project), root=root)
    if resume == "auto":
        RESUME_FILE.parent.mkdir(exist_ok=True)
        write_atomic(RESUME_FILE, json.dumps({"run_id": run_id}).encode())
    _announce()
    return run


def _previous(arguments: Mapping[str, Any]) -> Run | None:
    """Return the open run for `init` to return, or None; `reinit` may finish open runs first."""
    reinit, run_id = arguments["reinit"], arguments["id"]
    for run in [run for run in _active if not run.is_open and not run.disabled]:
        _finished(run, "KILLED")
    if not _active:
        return None
    if reinit in {True, "finish_previous"} or (reinit in {None, "default"} and _is_in_ipython()):
        for run in _active[::-1]:
            say(f"wandb.init(): finishing run {run.id!r} first")
            run.finish()
        return None
    run = _active[-1]
    if arguments["resume"] == "must" and run_id != run.id:
        raise ConfigurationError(
            f"wandb.init(id={run_id!r}, resume='must'): run {run.id!r} is already open; {_HOW_TO_REOPEN}"
        )
    say(f"wandb.init(): returning run {run.id!r}, which is still open; {_HOW_TO_REOPEN}")
    return run


def _is_in_ipython() -> bool:
    """Whether this is a notebook or an IPython shell, where a re-executed `init` starts a new run."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)  # missing while a thread imports the module
    return get_ipython is not None and get_ipython() is not None


def _directory(runs: Path, run_id: str, name: str, resume: str | None) -> tuple[Path, bool]:
    """Return the directory of the run with an id, and whether the run exists."""
    directories = [runs / safe_name(run_id), *sorted(runs.glob(f"*-{glob.escape(safe_name(run_id))}"))]
    ids = {path: record.tags.get("wandb.id") for path in directories if (record := RunRecord.read(path / RUN_RECORD))}
    run_dir = next((path for path, tag in ids.items() if tag == run_id), None)
    if run_dir is None and ids.get(directories[0], "") is None:  # a run without a wandb id, such as one of trieye.Run
        run_dir = directories[0]
    exists = run_dir is not None
    directory = run_dir or runs / safe_name(run_id if name == run_id else f"{name}-{run_id}")
    if resume == "must" and not exists:
        raise ConfigurationError(f"wandb.init(id={run_id!r}, resume='must'): no run with this id in {runs}")
    if resume == "never" and exists:
        raise ConfigurationError(f"wandb.init(id={run_id!r}, resume='never'): the run exists in {directory}")
    if not exists and (directory / RUN_RECORD).exists():
        raise ConfigurationError(f"wandb.init(id={run_id!r}): {directory} belongs to another run; choose another id")
    if any(run.is_open and Path(run.dir) == directory.resolve() for run in _active):
        raise ConfigurationError(f"wandb.init(id={run_id!r}): this program has already opened this run")
    return directory, exists


@functools.cache
def _announce() -> None:
    """Print once which calls have no effect or raise an error, before the training starts."""
    say(
        f"wandb: not available without its server: {', '.join(NOT_SUPPORTED)}, use_artifact(name), use_model; "
        "registry links, displays and preemption marks have no effect"
    )


def _parsed(config: Any, include: Sequence[str] | None, exclude: Sequence[str] | None) -> dict[str, Any]:
    """Return the parameters in a dict, a namespace, or a YAML file in wandb's format.

    Raises:
        ConfigurationError: The config has another type, or the file cannot be read.
    """
    if isinstance(config, str):
        try:
            entries = (yaml.safe_load(Path(config).read_text("utf-8")) or {}).items()
        except (AttributeError, OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise ConfigurationError(f"wandb.init(config={config!r}): not a YAML file with a dict: {reason}") from error
        config = {key: item.get("value", item) if isinstance(item, dict) else item for key, item in entries}
    if not (config is None or isinstance(config, Mapping) or hasattr(config, "__dict__")):
        expected = "a dict, a namespace or the name of a YAML file"
        raise ConfigurationError(f"wandb.init(config=...): expected {expected}, not {type(config).__name__}")
    items = {} if config is None else dict(config if isinstance(config, Mapping) else vars(config))
    return {key: items[key] for key in items if key not in (exclude or ()) and (not include or key in include)}


def _finished(run: Run, status: RunStatus) -> None:
    global _current
    _current = None if _current is run else _current
    if run in _active:
        _active.remove(run)
    if opening.SHARED.get("name") == Path(run.dir).name:
        opening.SHARED.clear()
    if status == "FINISHED" and _auto_id() == run.id:
        RESUME_FILE.unlink(missing_ok=True)


def _auto_id() -> str | None:
    try:
        return str(json.loads(RESUME_FILE.read_text("utf-8"))["run_id"])
    except (OSError, ValueError, KeyError):
        return None


def _running(call: str) -> Run:
    if _current is None:
        raise ConfigurationError(f"wandb.{call}: call wandb.init() first")
    return _current


def _of_run(name: str) -> Callable[..., Any]:
    """Return a function that calls the method of that name of `wandb.run`."""
    method = getattr(Run, name)

    @functools.wraps(method)
    def call(*values: Any, **options: Any) -> Any:
        return method(_running(name), *values, **options)

    return call


log, define_metric, save, restore, alert = map(_of_run, ("log", "define_metric", "save", "restore", "alert"))
log_artifact, log_model, link_model = map(_of_run, ("log_artifact", "log_model", "link_model"))
use_artifact, use_model, watch, unwatch = map(_of_run, ("use_artifact", "use_model", "watch", "unwatch"))
mark_preempting, pin_config_keys = map(_of_run, ("mark_preempting", "pin_config_keys"))
plot_table = plot.plot_table


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish `wandb.run`, if there is one."""
    if _current is not None:
        _current.finish(exit_code, quiet)


join = finish


def login(*_: Any, **__: Any) -> bool:
    """Return True: no account is needed."""
    return True


def setup(*_: Any, **__: Any) -> None:
    """Do nothing: there is no service process to start or stop."""


teardown = require = setup


def termlog(string: str = "", *_: Any, **__: Any) -> None:
    """Print a line."""
    say(string)


termwarn = termerror = termlog


def __getattr__(name: str) -> Any:
    if name == "run":
        return _current
    if name in {"config", "summary"}:
        return getattr(_running(name), name)
    if name in NOT_SUPPORTED:
        raise AttributeError(
            f"wandb.{name} needs the wandb server. Sweeps are `python train.py -m ...`; `trieye results` reads runs "
            "(docs/adopting.md)"
        )
    raise AttributeError(
        f"trieye.integrations.wandb has no {name!r}{did_you_mean(name, __all__)}; it has {', '.join(sorted(__all__))}, "
        "run, config and summary (docs/adopting.md)"
    )
