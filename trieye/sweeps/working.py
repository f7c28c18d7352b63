"""Run a job of a sweep in this process: compose its config, run its program, record its outcome.

Configs of jobs that choose the same options of groups share one composition, which saves 90 % of the time.
"""

import bdb
import copy
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from trieye.config.hydra.loader import set_override_dirname
from trieye.config.hydra.messages import without_parser_words
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import relink
from trieye.process.output import flush_streams, printing_to
from trieye.process.signals import stop_reason, stop_reason_in
from trieye.sweeps.descriptions import save_path_in
from trieye.sweeps.grid import shown
from trieye.sweeps.jobs import (
    CLAIM,
    OUTPUT,
    OUTPUT_DIR,
    RESERVED,
    STATUS,
    STOP_REASON,
    Done,
    JobRecord,
    RunningJob,
    UnpicklableError,
    append_output,
)
from trieye.sweeps.objectives import Objectives

_MOST_BASES = 8


@dataclass(frozen=True)
class SweepContext:
    """Data that all jobs of a sweep share.

    Attributes:
        context: Hydra context, which loads configs.
        config: The config that Hydra composed for the sweep.
        task: The task function of the program.
        singletons: Hydra's global state in the process that started the sweep.
        directory: Sweep directory, absolute.
        working_dir: Directory in which the sweep was started; the initial working directory of jobs.
        varying: The keys that differ between jobs.
        bases: Configs of jobs that set no values, by their choices of options; empty if jobs cannot share them.
        objectives: How the objectives of a job follow from its outcome.
    """

    context: HydraContext
    config: DictConfig
    task: TaskFunction
    singletons: Any
    directory: Path
    working_dir: Path
    varying: tuple[str, ...] = ()
    bases: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)
    objectives: Objectives = field(default_factory=Objectives)

    def composed(self, index: int, overrides: Sequence[str], *, is_last: bool = False) -> DictConfig:
        """Compose the config of a job.

        Args:
            index: Index of the job.
            overrides: Overrides of the job.
            is_last: Whether this context composes no other config; a base is then changed instead of copied.
        """
        loader = self.context.config_loader
        if (base := self._base_of(overrides)) is None:
            config = loader.load_sweep_config(self.config, list(overrides))
        else:
            config = with_values(base if is_last else copy.deepcopy(base), loader, overrides)
        with open_dict(config):
            config.hydra.job.id = f"{config.hydra.job.name}_{index}"
            config.hydra.job.num = index
            if (save_path := save_path_in(self.directory, index)) is not None:
                config.hydra.sweep.subdir = str(self.working_dir / save_path)
            directory = (self.working_dir / str(config.hydra.sweep.dir)).resolve()
            if directory != self.directory:  # it contains a key that the job sets; a sweep has one directory
                config.hydra.sweep.subdir = os.path.relpath(directory / str(config.hydra.sweep.subdir), self.directory)
                config.hydra.sweep.dir = str(self.directory)
            if save_path is None and (earlier_dir := _earlier_output_dir(self.directory / str(index))) is not None:
                config.hydra.sweep.subdir = os.path.relpath(earlier_dir, self.directory)
        return config

    def _base_of(self, overrides: Sequence[str]) -> DictConfig | None:
        """Return the config with only the choices of a job; None if the job composes its own config."""
        loader = self.context.config_loader
        choices = choices_in(overrides, loader) if self.bases else None
        if choices is None:
            return None
        if choices not in self.bases and len(self.bases) < _MOST_BASES:
            self.bases[choices] = loader.load_sweep_config(self.config, list(choices))
        return self.bases.get(choices)

    def composed_here(self, index: int, overrides: Sequence[str], *, is_last: bool = False) -> DictConfig:
        """Compose the config of a job; the message of a `ConfigurationError` contains the cause."""
        try:
            return self.composed(index, overrides, is_last=is_last)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigurationError(message_of(error)) from error

    @property
    def runs_in_ray(self) -> bool:
        """Whether the config runs trieye's hub in Ray."""
        return OmegaConf.select(self.config, "runtime.kind", default=None) in ("ray", "cluster")

    @property
    def has_mirror(self) -> bool:
        """Whether runs are copied to a mirror."""
        return OmegaConf.select(self.config, "persistence.mirror", default=None) is not None


def work(
    context: SweepContext,
    index: int,
    overrides: Sequence[str],
    config: DictConfig | None = None,
    *,
    is_own_process: bool = True,
) -> Done:
    """Run a job and return its outcome.

    Args:
        context: Data that all jobs share.
        index: Index of the job.
        overrides: Overrides of the job.
        config: Composed config of the job; None: compose it in this process.
        is_own_process: Whether the process only runs jobs; its output then goes to the output file of the job.
    """
    directory = context.directory / str(index)
    job = RunningJob(directory, index, overrides)
    with job.running() as completed_record:
        if completed_record is not None:
            return Done(index, completed_record.objective)
        if not is_own_process:
            return _ended(context, _result(context, index, overrides, config, is_own_process=False), job)
        setup_globals()
        # keep the plugins of this process, whose modules would otherwise be executed for each job (12 ms); the rest of
        # the state arrived with this job
        instances = {**context.singletons["instances"], Plugins: Plugins.instance()}
        Singleton.set_state({**context.singletons, "instances": instances})
        context.working_dir.mkdir(parents=True, exist_ok=True)  # may be missing on another machine
        os.chdir(context.working_dir)
        with printing_to(directory / OUTPUT), stop_reason_in(directory / STOP_REASON):
            if job.record.attempt > 1:
                print(f"trieye: attempt {job.record.attempt}")  # noqa: T201 - its file
            return _ended(context, _result(context, index, overrides, config, is_own_process=True), job)


def _ended(context: SweepContext, done: Done, job: RunningJob) -> Done:
    done = context.objectives.applied(done, job.run_dir)
    if done.error is not None:
        job.end("failed", error=done.error)
    else:
        job.end("completed", done=done)
    return replace(done, record=job.record, run_dir=job.run_dir)


def _result(
    context: SweepContext, index: int, overrides: Sequence[str], config: DictConfig | None, *, is_own_process: bool
) -> Done:
    returned: JobReturn | None = None
    try:
        with _ending_forks():
            config = context.composed_here(index, overrides, is_last=is_own_process) if config is None else config
            _link_output(context.directory / str(index), config)
            returned = _run(context, overrides, config)
            return Done(index, value=returned.return_value, returned=returned)
    except SystemExit as exit_:
        if isinstance(exit_, KeyboardInterrupt):  # RunInterrupted: a stop was requested
            raise
        if exit_.code in (None, 0):
            return Done(index)
        traceback.print_exc()
        return Done(index, error=RuntimeError(f"sys.exit({exit_.code!r}) was called"))
    except bdb.BdbQuit as quit_:
        if not is_own_process:  # the user left the debugger
            raise
        error = RuntimeError("breakpoint() has no terminal in a parallel job; set hydra.launcher.isolate=none")
        error.__cause__ = quit_
        return Done(index, error=error)
    except KeyboardInterrupt:
        print(f"trieye: {stop_reason() or 'interrupted'}", file=sys.stderr)  # noqa: T201 - its file
        raise
    except BaseException as error:  # noqa: BLE001 - of the job, also asyncio.CancelledError, or of composing its config
        traceback.print_exc()
        return Done(index, error=error, returned=returned)


@contextmanager
def _ending_forks() -> Iterator[None]:
    """End a process that was forked in the block when it leaves the block, because only its parent is the job."""
    pid, error = os.getpid(), None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != pid:
            _exit_fork(error)


def _exit_fork(error: BaseException | None) -> NoReturn:
    code = 0
    try:
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            code = error.code or 0
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        flush_streams()
    finally:
        os._exit(code)


def output_dir_of(directory: Path, config: DictConfig) -> Path:
    """Return Hydra's output directory of a job.

    Args:
        directory: Directory of the job.
        config: Its composed config.

    Raises:
        ConfigurationError: `hydra.sweep.subdir` is the directory of another job, or a file of this job.
    """
    directory, pattern = directory.resolve(), _subdir_pattern(config)
    output_dir = Path(os.path.normpath(Path(str(config.hydra.sweep.dir)).resolve() / str(config.hydra.sweep.subdir)))
    is_inside = output_dir.is_relative_to(directory.parent)
    name, file, *_ = (*(output_dir.relative_to(directory.parent).parts if is_inside else ()), "", "")
    if name == directory.name and file in RESERVED:
        raise ConfigurationError(
            f"hydra.sweep.subdir={pattern}: the directory of a job contains {file} of trieye; choose another name "
            f"(reserved: {', '.join(RESERVED)})"
        )
    if name != directory.name and name.isdecimal():
        raise ConfigurationError(
            f"hydra.sweep.subdir={pattern}: job {directory.name} would write to the directory of job {name}; add a "
            f"prefix, such as run_{pattern}"
        )
    return output_dir


def _earlier_output_dir(directory: Path) -> Path | None:
    """Return the output directory of an earlier attempt of a job, which may contain a key whose value has changed.

    None if there is none, or if it belongs to another sweep, such as the original of a copied one.
    """
    link, record_path = directory / OUTPUT_DIR, directory / STATUS
    return link.resolve() if (link / CLAIM).resolve() == record_path.resolve() else None


def _link_output(directory: Path, config: DictConfig) -> None:
    """Claim the output directory of a job and link it from the job's own directory, unless that is the same one.

    Raises:
        ConfigurationError: It is the output directory of another job of the sweep, or of a running job of another one.
    """
    output_dir = output_dir_of(directory, config)
    if output_dir == directory.resolve():
        return
    output_dir.mkdir(parents=True, exist_ok=True)
    claim, record_path = output_dir / CLAIM, directory.resolve() / STATUS
    try:
        claim.symlink_to(os.path.relpath(record_path, output_dir.resolve()))
    except FileExistsError:
        owner = claim.resolve()
        if owner != record_path and owner.exists() and owner.parent.parent == record_path.parent.parent:
            raise ConfigurationError(shared_output(config, owner.parent.name, directory.name)) from None
        owner_record = JobRecord.read(owner.parent) if owner != record_path else None
        if owner_record is not None and owner_record.liveness(owner.parent) == "alive":
            raise ConfigurationError(
                f"hydra.sweep.subdir={_subdir_pattern(config)}: job {owner_record.index} of the sweep "
                f"{owner.parents[1]} is running and writes to {output_dir}; wait until it has ended, or set another "
                "hydra.sweep.subdir"
            ) from None
        relink(claim, record_path)  # of this job, or of a sweep that was moved or deleted
    relink(directory / OUTPUT_DIR, output_dir)


def shared_output(config: DictConfig, *jobs: object) -> str:
    """Return the message that two jobs have the same output directory."""
    return (
        f"hydra.sweep.subdir={_subdir_pattern(config)}: jobs {' and '.join(map(str, jobs))} would share the output "
        f"directory {str(config.hydra.sweep.subdir)!r}; add ${{hydra.job.num}}"
    )


def _subdir_pattern(config: DictConfig) -> str:
    sweep: Any = OmegaConf.to_container(config.hydra.sweep, resolve=False)
    return str(sweep["subdir"])


def _run(context: SweepContext, overrides: Sequence[str], config: DictConfig) -> JobReturn:
    if (tags := OmegaConf.select(config, "tags")) is not None and context.varying:
        with open_dict(config):
            tags.setdefault("mlflow.runName", " ".join(shown(overrides, context.varying)))
    return run_job(
        hydra_context=context.context,
        config=config,
        task_function=context.task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _without_objects(done: Done) -> Done:
    """Return an outcome with the numbers of its value and the text of its error, which any process can unpickle."""
    error = None if done.error is None else UnpicklableError(f"{type(done.error).__name__}: {done.error}")
    value = None if error is not None else done.numbers or done.number
    return Done(done.index, value, error, record=done.record, run_dir=done.run_dir)


def pickled(done: Done, directory: Path) -> bytes:
    """Return an outcome for `unpickled` in another process, with and without the objects of the user.

    Args:
        done: The outcome.
        directory: Directory of the job.
    """
    content = b""
    try:
        content = cloudpickle.dumps(done)
    except Exception as problem:  # noqa: BLE001 - pickling runs code of the user's classes
        append_output(directory, f"the outcome of the job cannot be pickled: {problem}")
    return bytes(cloudpickle.dumps((content, _without_objects(done))))


def unpickled(content: bytes) -> Done:
    """Return the outcome of `pickled`, without objects that this process cannot unpickle."""
    content, plain = pickle.loads(content)  # noqa: S301 - written by the worker
    try:
        done: Done = pickle.loads(content)  # noqa: S301 - written by the worker
    except Exception:  # noqa: BLE001 - unpickling runs code of the user's classes
        done = plain
    return done


def shared_base(loader: ConfigLoader, sweep: DictConfig) -> DictConfig | None:
    """Return the config of a job without overrides; None if jobs cannot share it.

    Args:
        loader: The config loader of the program.
        sweep: The config of the sweep.
    """
    if type(loader) is not ConfigLoaderImpl:
        return None
    try:
        base = loader.load_sweep_config(sweep, [])
    except (HydraException, OmegaConfBaseException):  # a choice that only the jobs make is missing
        return None
    return None if base.hydra.job.env_copy else base


def choices_in(overrides: Sequence[str], loader: ConfigLoader) -> tuple[str, ...] | None:
    """Return the overrides that choose options of groups; None if some neither choose options nor set values."""
    parsed_overrides = OverridesParser.create().parse_overrides(list(overrides))
    if any(one.is_delete() or one.is_sweep_override() or one.is_hydra_override() for one in parsed_overrides):
        return None
    return tuple(str(override.input_line) for override in parsed_overrides if _is_choice(override, loader))


def with_values(base: DictConfig, loader: ConfigLoader, overrides: Sequence[str]) -> DictConfig:
    """Return a base with the overrides of a job, equal to `loader.load_sweep_config`.

    Args:
        base: The config of a job with the `choices_in` the overrides and no others, which is changed.
        loader: The config loader of the program.
        overrides: The overrides of the job.
    """
    parsed_overrides = OverridesParser.create().parse_overrides(list(overrides))
    values = [override for override in parsed_overrides if not _is_choice(override, loader)]
    ConfigLoaderImpl._apply_overrides_to_config(values, base)  # noqa: SLF001 - docs/private_apis.md
    base.hydra.overrides.task = [override.input_line for override in parsed_overrides]
    set_override_dirname(base.hydra.job, parsed_overrides)
    return base


def message_of(error: Exception) -> str:
    """Return the message of a config that does not compose, with its cause, on one line without secrets."""
    causes = [str(error), *([str(error.__cause__)] if error.__cause__ is not None else [])]
    return redacted_text(" ".join(without_parser_words(": ".join(causes)).split()))


def _is_choice(override: Override, loader: ConfigLoader) -> bool:
    assert isinstance(loader, ConfigLoaderImpl)  # noqa: S101 - as `shared_base` has checked
    return override.package is not None or loader.repository.group_exists(override.key_or_group)
