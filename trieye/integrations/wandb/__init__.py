"""The calls of `wandb` for a run here: `import trieye.integrations.wandb as wandb` is the one line that changes.

Everything stays on this machine: MLflow, TensorBoard and the history of the run, which survives the death of the
program; `resume="must"`, `"allow"`, `"auto"` and `"never"` mean what they mean there.
"""

import functools
import json
import os
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import write_atomic
from trieye.files.run_record import RunRecord
from trieye.integrations.opening import ROOT, AdoptedRun, safe_name
from trieye.integrations.wandb.media import Artifact, Histogram, Html, Image, Table, Video
from trieye.integrations.wandb.session import Run
from trieye.process.progress import say

__all__ = ["Artifact", "Histogram", "Html", "Image", "Run", "Table", "Video", "define_metric", "finish", "init", "log"]
__all__ += ["log_artifact", "save", "unwatch", "watch"]

RESUME_FILE = Path("wandb") / "wandb-resume.json"
"""Where `resume="auto"` remembers the run that did not end well, as wandb does."""

_IGNORED = frozenset({"entity", "save_code", "monitor_gym", "settings", "allow_val_change", "force", "anonymous"})
_MODES = ("online", "offline", "shared", "disabled")
_RESUMES = ("allow", "must", "never", "auto")
_ID = string.ascii_lowercase + string.digits

_current: Run | None = None


def init(  # noqa: PLR0913 - as many as wandb has
    project: str | None = None,
    name: str | None = None,
    *,
    id: str | None = None,  # noqa: A002 - as wandb calls it
    resume: bool | str | None = None,
    config: Any = None,
    tags: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    notes: str | None = None,
    dir: str | os.PathLike[str] | None = None,  # noqa: A002 - likewise
    mode: str | None = None,
    reinit: bool | str | None = None,
    sync_tensorboard: bool | None = None,
    **more: Any,
) -> Run:
    """Begin a run, or go on with one, and make it `wandb.run`.

    Raises:
        ConfigurationError: An argument is unknown or has no such value, or `resume` does not fit what is there.
    """
    global _current
    _check_arguments(more, mode, resume)
    if _current is not None:
        if not reinit or reinit == "return_previous":
            return _current
        _current.finish()
    environment = os.environ.get
    project = project or environment("WANDB_PROJECT") or "uncategorized"
    name, group = name or environment("WANDB_NAME"), group or environment("WANDB_RUN_GROUP")
    resume = environment("WANDB_RESUME") if resume is None else resume
    resume = {True: "auto", False: None}.get(resume, resume) if isinstance(resume, bool) else resume
    id = id or environment("WANDB_RUN_ID") or (_auto_id() if resume == "auto" else None)  # noqa: A001
    chosen = id or "".join(secrets.choice(_ID) for _ in range(8))
    if (mode or environment("WANDB_MODE")) == "disabled" or environment("WANDB_DISABLED") == "true":
        made = Run(None, id=chosen, name=name or chosen, project=project, resumed=False)
    else:
        told = {"wandb.tags": ",".join(tags or ()), "wandb.group": group or "", "wandb.job_type": job_type or ""}
        given: dict[str, Any] = {"tags": {key: value for key, value in told.items() if value}, "description": notes}
        root = Path(environment(ROOT) or Path(dir or environment("WANDB_DIR") or ".") / ".trieye_data")
        made = _begun(root, project, chosen, name, resume, given)
    made.on_finish = _finished
    made.group, made.job_type, made.notes, made.tags = group, job_type, notes, tuple(tags or ())  # type: ignore[assignment]
    if config is not None:
        made.config.update(config, allow_val_change=True)
    if sync_tensorboard:
        say(
            "wandb.init(sync_tensorboard=True): take SummaryWriter from trieye.integrations.tensorboard, which is a run"
        )
    if resume == "auto" and not made.disabled:
        RESUME_FILE.parent.mkdir(exist_ok=True)
        write_atomic(RESUME_FILE, json.dumps({"run_id": chosen}).encode())
    _current = made
    return made


def _begun(
    root: Path, project: str, chosen: str, name: str | None, resume: bool | str | None, given: Mapping[str, Any]
) -> Run:
    app = safe_name(project)
    here = root / app / "runs"
    before = [*sorted(here.glob(f"*-{safe_name(chosen)}")), here / safe_name(chosen)]
    exists = next((path for path in before if RunRecord.read(path / "run.json") is not None), None)
    if resume == "must" and exists is None:
        raise ConfigurationError(f"wandb.init(id={chosen!r}, resume='must'): there is no such run in {here}")
    if resume == "never" and exists is not None:
        raise ConfigurationError(f"wandb.init(id={chosen!r}, resume='never'): {exists} is that run already")
    run_name = exists.name if exists else safe_name(f"{name}-{chosen}" if name and name != chosen else chosen)
    held = AdoptedRun.join(run_name, app=app, root=root, **given)
    goes_on = exists is not None and resume in {"allow", "must", "auto"}
    if exists is not None and not goes_on:
        held.resumes_at(0)
    say(f"wandb: run {chosen!r} of project {project!r} {'goes on' if goes_on else 'begins'} in {held.run.dir}")
    return Run(held, id=chosen, name=name or chosen, project=project, resumed=goes_on)


def _finished(run: Run) -> None:
    global _current
    _current = None if _current is run else _current
    if _auto_id() == run.id:
        RESUME_FILE.unlink(missing_ok=True)


def _check_arguments(more: Mapping[str, Any], mode: str | None, resume: bool | str | None) -> None:
    taken = ("project", "name", *(init.__kwdefaults__ or {}))
    for key in more:
        if key not in _IGNORED:
            raise ConfigurationError(f"wandb.init({key}=...): there is no such argument{did_you_mean(key, taken)}")
        say(f"wandb.init({key}=...) has no meaning on this machine, and is ignored")
    if mode is not None and mode not in _MODES:
        raise ConfigurationError(
            f"wandb.init(mode={mode!r}): it is one of {', '.join(_MODES)}{did_you_mean(str(mode), _MODES)}"
        )
    if isinstance(resume, str) and resume not in _RESUMES:
        raise ConfigurationError(f"wandb.init(resume={resume!r}): it is one of {', '.join(_RESUMES)}, True, False")


def _auto_id() -> str | None:
    try:
        return str(json.loads(RESUME_FILE.read_text("utf-8"))["run_id"])
    except (OSError, ValueError, KeyError):
        return None


def _running(what: str) -> Run:
    if _current is None:
        raise ConfigurationError(f"wandb.{what}: call wandb.init() first")
    return _current


def _of_run(name: str) -> Callable[..., Any]:
    """Return a function that calls the method of `wandb.run`."""
    method = getattr(Run, name)

    @functools.wraps(method)
    def call(*values: Any, **options: Any) -> Any:
        return method(_running(name), *values, **options)

    return call


log, define_metric, save, log_artifact = map(_of_run, ("log", "define_metric", "save", "log_artifact"))
watch, unwatch = map(_of_run, ("watch", "unwatch"))


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """Finish `wandb.run`, if there is one."""
    if _current is not None:
        _current.finish(exit_code, quiet)


def __getattr__(name: str) -> Any:
    if name == "run":
        return _current
    if name in {"config", "summary"}:
        return getattr(_running(name), name)
    raise AttributeError(
        f"trieye.integrations.wandb has no {name!r}{did_you_mean(name, __all__)}; it has {', '.join(sorted(__all__))}, "
        "run, config and summary. Sweeps are `python train.py -m ...`, `trieye results` reads runs (docs/adopting.md)"
    )
