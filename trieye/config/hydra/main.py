"""The command line of a task function: parse, check, then let Hydra run it."""

import contextlib
import functools
import hashlib
import inspect
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import (
    detect_calling_file_or_module_from_task_function,
    detect_task_name,
    get_args_parser,
)
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, flag_override

from trieye.config.base import did_you_mean, nearest
from trieye.config.hydra.hooks import Hooks
from trieye.config.hydra.keys import keys_meant, keys_named
from trieye.config.hydra.launch import RECORDS, Launch, earlier_run_name, launch_info, num_runs_begun
from trieye.config.hydra.loader import Loader, Source, absolute, opened, parsed, quoted
from trieye.config.hydra.preflight import Checked, Preflight, check_keys, check_paths
from trieye.config.hydra.records import RedactingTask, sheltered
from trieye.config.hydra.registration import RefusedError
from trieye.config.hydra.running import ComposedHydra, Job, run_hydra
from trieye.config.hydra.schema import name_runs
from trieye.config.hydra.typed import resolved, typed
from trieye.config.names import check_name
from trieye.config.persistence import default_run_name
from trieye.config.redaction import redacted_text
from trieye.config.root import TrieyeConfig
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError, RunInterrupted, TrieyeError

_FAILED, _INTERRUPTED = 1, 130  # exit codes; those of trieye's errors are `TrieyeError.exit_code`
_LONGEST_SWEEP, _DIGEST_CHARS = 100, 6
_STOCK_RUN_DIR = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"
_STOCK_LOG_DIR = "${hydra.runtime.output_dir}"
_STOCK_SWEEP_DIR = "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}"


@dataclass(frozen=True)
class _Prepared:
    """What a checked command line adds to what was typed.

    Attributes:
        own_overrides: Overrides of Hydra's own keys.
        names: Values by key: they name the directory of the run, which exists, or all runs of a sweep.
    """

    own_overrides: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def run_command_line(task: Callable[[Any], Any], *, config_path: str, config_name: str, hooks: Hooks) -> None:
    """Run the command line in `sys.argv`.

    Args:
        task: Gets the typed config.
        config_path: The config directory, relative to the file of the task, or absolute, or `pkg://` and a package.
        config_name: The primary config, without `.yaml`.
        hooks: Calls into the packages above the config.

    Raises:
        SystemExit: It failed; the message is on stderr.
    """
    num_begun = num_runs_begun()
    try:
        config_type = config_type_of(task)
        arguments = _arguments(config_type)
        source = _source(arguments, task, config_path, config_name)
        default_name, job = default_run_name(), _job_of(task, config_type, hooks)
        _check_flags(arguments)
        if not (arguments.help or arguments.cfg or _is_for_hydra(arguments)):
            check_keys(arguments.overrides, config_type)
        with opened(source, config_type, run_name=default_name) as loader:
            if _is_for_hydra(arguments):
                run_hydra(source, job, _argv_of_hydra(arguments, source, config_type))
            elif arguments.help:
                from trieye.config.hydra.help import print_help  # here, for nothing else needs it

                print_help(loader, Preflight(loader, config_type), arguments.overrides, task, config_type)
            elif arguments.cfg:
                _show(arguments, loader, config_type)
            else:
                checked = Preflight(loader, config_type).compose(
                    arguments.overrides, hooks.check, multirun=arguments.multirun
                )
                _check_directory(checked, default_name, hooks)
                _run(checked, arguments.overrides, loader, job, default_name)
    except TrieyeError as error:
        _leave(error, is_mistake=num_runs_begun() == num_begun)
    except RefusedError as refusal:
        _leave(refusal.error, is_mistake=num_runs_begun() == num_begun)
    except RunInterrupted as interrupt:
        if interrupt.is_told:
            raise
        _stop(_words(interrupt), interrupt.exit_code)
    except KeyboardInterrupt:
        _stop("interrupted", _INTERRUPTED)


def _arguments(config_type: type[TrieyeConfig]) -> Namespace:
    """Parse the command line; `--seed=1`, as other programs want it, is answered with what to type here."""
    parser = get_args_parser()
    arguments, unknown = parser.parse_known_intermixed_args(sys.argv[1:])
    flags = [flag for flag in unknown if flag.startswith("-")]
    if flags:
        known = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001 - no public way
        raise ConfigurationError("\n".join(_about_flag(flag, known, config_type) for flag in flags))
    return arguments


def _about_flag(flag: str, known: list[str], config_type: type[TrieyeConfig]) -> str:
    dashed, equals, value = flag.partition("=")
    key = dashed.lstrip("-").replace("-", "_")
    named = keys_named(key, config_type) or keys_meant(key, config_type)
    meant = [key] if key.partition(".")[0] in config_type.model_fields else named
    long = [name for name in known if name.startswith("--")]
    if not meant and (not equals or nearest(dashed, long)):
        return f"{flag}: there is no such flag{did_you_mean(dashed, long)} (--help lists them)"
    typed = [f"{name}={value if equals else '<value>'}" for name in meant or [key]]
    return f"{flag}: keys are typed without dashes; type {' or '.join(typed)}"


def config_type_of(task: Callable[..., Any]) -> type[TrieyeConfig]:
    """Return the config type that a task function is annotated with.

    Raises:
        ConfigurationError: It takes no parameter, or one that is annotated with something else, or not at all.
    """
    first = next(iter(inspect.signature(task).parameters.values()), None)
    if first is None:
        raise ConfigurationError(f"{task.__name__} takes no parameter; its first one gets the config")
    annotation = first.annotation
    if isinstance(annotation, str):
        with contextlib.suppress(NameError):  # imported for type checkers only
            annotation = inspect.get_annotations(task, eval_str=True)[first.name]
    if isinstance(annotation, type) and issubclass(annotation, TrieyeConfig):
        return annotation
    found = "not annotated" if annotation is inspect.Parameter.empty else f"annotated with {annotation!r}"
    wanted = f"{task.__name__}({first.name}: TrainConfig)"
    raise ConfigurationError(
        f"{task.__name__}: {first.name} is {found}; write {wanted} with the type of your config, trieye.TrieyeConfig "
        "or a subclass of it that is imported there"
    )


def _source(arguments: Namespace, task: Callable[[Any], Any], config_path: str, config_name: str) -> Source:
    file, module = detect_calling_file_or_module_from_task_function(task)
    directory = absolute(arguments.config_path or config_path, inspect.getsourcefile(inspect.unwrap(task)))
    extra = str(Path(arguments.config_dir).resolve()) if arguments.config_dir is not None else None
    name = (arguments.config_name or config_name).removesuffix(".yaml")
    return Source(directory, name, extra, detect_task_name(file, module))


def _show(arguments: Namespace, loader: Loader, config_type: type[TrieyeConfig]) -> None:
    """Print the config; a value that is not allowed is named beside it, for the config shows where it comes from."""
    preflight = Preflight(loader, config_type)
    composed = preflight.load(arguments.overrides)
    prepared = _Prepared()
    try:
        config = preflight.validated(composed, arguments.overrides)
        prepared = _Prepared(_records_in(config.persistence.get_run_base_dir()))
    except ConfigurationError as error:
        lines = ["note: a run with this config would be refused", *_words(error).splitlines()]
        sys.stderr.write("\n      ".join(lines) + "\n")
    _apply(prepared, arguments.overrides, composed, loader)
    ComposedHydra(loader, composed).show(arguments)


def _check_directory(checked: Checked[TrieyeConfig], default_name: str, hooks: Hooks) -> None:
    """Refuse a directory in use before Hydra writes its records over those of a running attempt."""
    config = checked.config
    check_paths(config.persistence)
    if not (checked.is_multirun or config.tune.enabled or config.run_name == default_name):
        hooks.check_lock(config.persistence.get_run_base_dir(), config.runtime.kind == "cluster")


def _run(checked: Checked[TrieyeConfig], overrides: Sequence[str], loader: Loader, job: Job, default_name: str) -> None:
    """Run a checked command line."""
    if checked.is_multirun and checked.config.tune.enabled:
        raise ConfigurationError("tune runs many trials by itself, and -m many jobs; leave one of them out")
    place, mode = (_sweep_place, "MULTIRUN") if checked.is_multirun else (_run_place, "RUN")
    prepared = place(checked, default_name)
    prepared = replace(prepared, own_overrides=[*prepared.own_overrides, f"hydra.mode={mode}"])
    _apply(prepared, overrides, checked.composed, loader)
    ComposedHydra(loader, checked.composed).start(job)


def _apply(prepared: _Prepared, overrides: Sequence[str], composed: DictConfig, loader: Loader) -> None:
    """Put into a composed config what was prepared, and environment variables in the places of secrets."""
    for item in parsed(prepared.own_overrides, loader.config_type):
        loader.apply(item, composed)
    without_secrets = {override: sheltered(override, loader) for override in overrides}
    secret = [new for old, new in without_secrets.items() if new != quoted(old, loader.config_type)]
    references = {item.key_or_group: item.value() for item in parsed(secret, loader.config_type)}
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        for key, value in {**prepared.names, **references}.items():
            OmegaConf.update(composed, key, value)
    loader.record([*prepared.own_overrides, *without_secrets.values()], composed)


def _argv_of_hydra(arguments: Namespace, source: Source, config_type: type[TrieyeConfig]) -> list[str]:
    """Return the command line for Hydra's own flags."""
    argv = [*(quoted(override, config_type) for override in arguments.overrides), *_flags(arguments.overrides)]
    # Hydra would look for a relative one elsewhere if this is a console script; the last one counts
    return [*argv, "--config-path", source.directory] if arguments.config_path is not None else argv


def _is_for_hydra(arguments: Namespace) -> bool:
    """Return whether a flag asks for something that Hydra does by itself."""
    return bool(arguments.info or arguments.hydra_help or arguments.shell_completion or arguments.experimental_rerun)


def _check_flags(arguments: Namespace) -> None:
    """Refuse flags that exclude each other, of which Hydra 1.3 makes a traceback."""
    commands = ("run", "multirun", "cfg", "info", "shell_completion")
    given = [f"--{name.replace('_', '-')}" for name in commands if getattr(arguments, name)]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} do not go together; type one of them")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigurationError("--resolve goes together with --cfg only; type --cfg job --resolve")


def _run_place(checked: Checked[TrieyeConfig], default_name: str) -> _Prepared:
    """Return the names of a single run, and the override that puts Hydra's records into its directory."""
    config = checked.config
    directory = config.persistence.get_run_base_dir()
    chosen = _unresolved(checked.composed, "run")
    if chosen != _STOCK_RUN_DIR:
        raise ConfigurationError(
            f"hydra.run.dir={chosen}: the records of Hydra lie in the directory of the run, {directory}; to have it "
            "elsewhere, leave hydra.run.dir out and set persistence.root_data_dir, app_name or run_name"
        )
    if config.tune.enabled:  # its trials are runs, and it is none
        directory = study_dir(Path.cwd(), config.run_name)
    if config.run_name == default_name:
        directory = reserved(directory.parent, default_name)
    pinned = {
        "run_name": directory.name,
        "app_name": config.app_name,
        "persistence.root_data_dir": config.persistence.root_data_dir,
    }
    staged = [] if config.tune.enabled else _staged(checked.composed, directory, config.persistence.log_dir_name)
    return _Prepared([*_records_in(directory), *staged], pinned)


def _staged(composed: DictConfig, run_dir: Path, log_dir_name: str) -> list[str]:
    """Return overrides that keep what Hydra writes in the log directory: the run may refuse this attempt."""
    held: Any = OmegaConf.to_container(composed.hydra, resolve=False)
    (run_dir / log_dir_name).mkdir(parents=True, exist_ok=True)
    overrides = []
    if (run_dir / "run.json").exists() and held["output_subdir"] == RECORDS:
        overrides.append(f"hydra.output_subdir={log_dir_name}/{RECORDS}")
    file = (held["job_logging"] or {}).get("handlers", {}).get("file", {})
    if file.get("filename") == f"{_STOCK_LOG_DIR}/${{hydra.job.name}}.log":
        overrides.append(
            f"hydra.job_logging.handlers.file.filename={_STOCK_LOG_DIR}/{log_dir_name}/${{hydra.job.name}}.log"
        )
    return overrides


def _records_in(directory: Path) -> list[str]:
    """Return the override that puts Hydra's records into a directory."""
    if "${" in str(directory):  # Hydra's own logging config breaks on a path with an interpolation in it
        return []
    return [f"hydra.run.dir={QuotedString(str(directory), Quote.single).with_quotes()}"]


def _sweep_place(checked: Checked[TrieyeConfig], default_name: str) -> _Prepared:
    """Return the name of a sweep, and the override that sets its directory."""
    if checked.config.run_name != default_name:
        try:
            check_name("run_name", f"{checked.config.run_name}_0000")  # what a job appends
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
    own_overrides = []
    if _unresolved(checked.composed, "sweep") == _STOCK_SWEEP_DIR:
        directory = reserved(Path("multirun"), datetime.now().astimezone().strftime("%Y%m%d_%H%M%S"))
        name, own_overrides = directory.name, [f"hydra.sweep.dir={directory}"]
    else:
        name = _name_of_sweep(Path(str(checked.composed.hydra.sweep.dir)).resolve()) or default_name
    name_runs(name)
    return _Prepared(own_overrides, {"run_name": name} if checked.composed.run_name == default_name else {})


def _name_of_sweep(directory: Path) -> str:
    """Return what the runs of a sweep are called: the path of its directory below this one, which no other sweep has.

    A directory elsewhere, or with a path that is too long for a name, adds a hash of its path to its last part.
    """
    path = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else None
    if path is None or len(str(path)) > _LONGEST_SWEEP:
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:_DIGEST_CHARS]
        path = Path(f"{directory.name[:_LONGEST_SWEEP]}-{digest}")
    return re.sub(r"[^\w.=+-]+|\.\.+", "_", str(path), flags=re.ASCII).strip("_.-=+ ")


def _name_of_job(composed: DictConfig, launch: Launch) -> str:
    """Return the name of the run of a job: that of an earlier start, which it resumes, or else a new one."""
    return earlier_run_name(launch) or f"{composed.run_name}_{launch.job_num}"


def _unresolved(composed: DictConfig, kind: str) -> str:
    holder: Any = OmegaConf.to_container(composed.hydra[kind], resolve=False)
    return str(holder["dir"])


def reserved(parent: Path, name: str) -> Path:
    """Make a directory that nobody else has, also if two processes ask in the same second."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1000):
            try:
                directory = parent / (f"{name}_{number}" if number else name)
                directory.mkdir()
            except FileExistsError:
                continue
            return directory
    except OSError as error:
        raise ConfigurationError(f"{parent / name} cannot be made: {error.strerror}") from error
    raise ConfigurationError(f"{parent} holds a thousand directories named {name}")


def _job_of(task: Callable[[Any], Any], config_type: type[TrieyeConfig], hooks: Hooks) -> Job:
    @functools.wraps(task)
    def job(composed: DictConfig) -> Any:
        launch = launch_info()
        assert launch is not None  # noqa: S101 - Hydra calls this
        try:
            if launch.is_multirun:
                with flag_override(composed, ["struct", "readonly"], [False, False]):
                    composed.run_name = _name_of_job(composed, launch)
            values = resolved(composed, config_type)
            config = typed(values, config_type, overrides=launch.overrides, working_dir=launch.working_dir)
            for name in ("steps", "env_steps"):
                if getattr(config.loop, name) != (replaced := values["loop"][name]):
                    hooks.say(
                        f"loop.{name}={replaced} of the config is replaced by the typed limit: both count env_steps"
                    )
            if config.print_config:
                hooks.print_config(config)
            return task(config)
        except TrieyeError as error:
            if launch.is_multirun:
                raise  # the launcher decides what becomes of the other jobs
            raise RefusedError(error) from error

    return RedactingTask(job)


def _flags(overrides: list[str]) -> list[str]:
    """Return the flags, which follow the overrides: Hydra 1.3 takes none after a flag that follows others."""
    flags = list(sys.argv[1:])
    for override in overrides:
        flags.remove(override)
    return flags


def _leave(error: Exception, *, is_mistake: bool) -> NoReturn:
    has_own_code = is_mistake or not isinstance(error, ConfigurationError)
    code = error.exit_code if isinstance(error, TrieyeError) and has_own_code else _FAILED
    _stop(_words(error), code, is_error=True)


def _words(error: BaseException) -> str:
    """Return the message of an error with its notes, without secrets."""
    return redacted_text("\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", [])]))


def _stop(message: str, exit_code: int, *, is_error: bool = False) -> NoReturn:
    lines = message.splitlines() or ["interrupted"]
    sys.stderr.write("error: " + "\n       ".join(lines) + "\n" if is_error else "\n".join(lines) + "\n")
    raise SystemExit(exit_code)
