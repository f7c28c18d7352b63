"""Command line of a task function: parses and checks it, then runs the task, a sweep or a flag in Hydra."""

import contextlib
import functools
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import detect_calling_file_or_module_from_task_function, detect_task_name, get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, flag_override

from trieye.config.base import did_you_mean
from trieye.config.hydra.hooks import Hooks
from trieye.config.hydra.keys import keys_meant, keys_named
from trieye.config.hydra.launch import (
    RECORDS,
    SWEEPS,
    earlier_run_name,
    launch_info,
    num_started_runs,
    runs_of_sweep,
    unused_run_name,
)
from trieye.config.hydra.loader import ConfigSource, Loader, absolute, opened, parsed, quoted
from trieye.config.hydra.preflight import Checked, Preflight, check_keys, check_paths
from trieye.config.hydra.records import RedactingTask, reference_of, set_references
from trieye.config.hydra.registration import RefusedError
from trieye.config.hydra.running import ComposedHydra, Job, run_hydra
from trieye.config.hydra.schema import name_runs
from trieye.config.hydra.typed import resolved, typed
from trieye.config.names import check_name
from trieye.config.redaction import redacted_text
from trieye.config.root import TrieyeConfig
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError, RunInterrupted, TrieyeError

_FAILED, _INTERRUPTED = 1, 130  # exit codes; errors of trieye have `TrieyeError.exit_code`
_STOCK_RUN_DIR = "outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}"
_STOCK_LOG_DIR = "${hydra.runtime.output_dir}"
_STAMP_FORMAT = "%Y%m%d_%H%M%S"
"""Names of the directories of new sweeps."""
_STOCK_SWEEP_DIR = "multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}"


def run_command_line(task: Callable[[Any], Any], *, config_path: str, config_name: str, hooks: Hooks) -> None:
    """Run the command line in `sys.argv`.

    Args:
        task: Task function that takes the typed config.
        config_path: Config directory: absolute, `pkg://` and a package, or relative to the file of the task.
        config_name: Primary config, without `.yaml`.
        hooks: Callbacks into higher packages.

    Raises:
        SystemExit: The command failed; the message is on stderr.
    """
    num_begun = num_started_runs()
    try:
        config_type = config_type_of(task)
        arguments = _arguments(config_type)
        source = _source(arguments, task, config_path, config_name)
        default_name, make_job = unused_run_name(), functools.partial(_job_of, task, config_type, hooks)
        _check_flags(arguments)
        is_start = not (arguments.help or arguments.cfg or _is_for_hydra(arguments))
        items = check_keys(arguments.overrides, config_type) if is_start else None
        with opened(source, config_type, run_name=default_name) as loader:
            if _is_for_hydra(arguments):
                run_hydra(source, make_job(), _argv_of_hydra(arguments, source, config_type))
            elif arguments.help:
                from trieye.config.hydra.help import print_help  # only needed here

                print_help(loader, Preflight(loader, config_type), arguments.overrides, task, config_type)
            elif arguments.cfg:
                _show(arguments, loader, config_type)
            else:
                checked = Preflight(loader, config_type).compose(
                    arguments.overrides, hooks.check, multirun=arguments.multirun, items=items
                )
                _check_directory(checked, default_name, hooks)
                _suggest_launcher(checked, arguments.overrides, hooks)
                _run(checked, arguments.overrides, loader, make_job, default_name, hooks.announce)
    except (TrieyeError, RefusedError) as caught:
        error = caught.error if isinstance(caught, RefusedError) else caught
        _exit(error, is_user_error=num_started_runs() == num_begun)
    except RunInterrupted as interrupt:
        if interrupt.is_told:
            raise
        _exit_with(_message(interrupt), interrupt.exit_code)
    except KeyboardInterrupt:
        _exit_with("interrupted", _INTERRUPTED)


def _arguments(config_type: type[TrieyeConfig]) -> Namespace:
    """Parse the command line; for flags of other programs, such as `--seed=1`, the error names the override."""
    parser = get_args_parser()
    arguments, unknown_words = parser.parse_known_intermixed_args(sys.argv[1:])
    flags = [flag for flag in unknown_words if flag.startswith("-")]
    if flags:
        names = [name for action in parser._actions for name in action.option_strings]  # noqa: SLF001 - not public
        raise ConfigurationError("\n".join(_about_flag(flag, names, config_type) for flag in flags))
    return arguments


def _about_flag(flag: str, names: list[str], config_type: type[TrieyeConfig]) -> str:
    option, _, text = flag.partition("=")
    value = text or "<value>"
    key = option.lstrip("-").replace("-", "_")
    is_key = key.partition(".")[0] in config_type.model_fields
    keys = [key] if is_key else keys_named(key, config_type) or keys_meant(key, config_type)
    if keys:
        return f"{flag}: keys have no dashes; type {' or '.join(f'{name}={value}' for name in keys)}"
    return f"{flag}: unknown flag{did_you_mean(option, [name for name in names if name.startswith('--')])} (see --help)"


def config_type_of(task: Callable[..., Any]) -> type[TrieyeConfig]:
    """Return the config type in the annotation of a task function's first parameter.

    Raises:
        ConfigurationError: There is no parameter, or its annotation is missing or not a `TrieyeConfig`.
    """
    parameter = next(iter(inspect.signature(task).parameters.values()), None)
    if parameter is None:
        raise ConfigurationError(f"{task.__name__} takes no parameter; add one for the config")
    annotation = parameter.annotation
    if isinstance(annotation, str):
        with contextlib.suppress(NameError):  # imported for type checkers only
            annotation = inspect.get_annotations(task, eval_str=True)[parameter.name]
    if isinstance(annotation, type) and issubclass(annotation, TrieyeConfig):
        return annotation
    state = "not annotated" if annotation is inspect.Parameter.empty else f"annotated with {annotation!r}"
    signature = f"{task.__name__}({parameter.name}: TrainConfig)"
    raise ConfigurationError(
        f"{task.__name__}: parameter {parameter.name} is {state}; write {signature} with the type of your config, "
        "trieye.TrieyeConfig or a subclass that is imported in this module"
    )


def _source(arguments: Namespace, task: Callable[[Any], Any], config_path: str, config_name: str) -> ConfigSource:
    file, module = detect_calling_file_or_module_from_task_function(task)
    directory = absolute(arguments.config_path or config_path, inspect.getsourcefile(inspect.unwrap(task)))
    extra_directory = str(Path(arguments.config_dir).resolve()) if arguments.config_dir is not None else None
    name = (arguments.config_name or config_name).removesuffix(".yaml")
    return ConfigSource(directory, name, extra_directory, detect_task_name(file, module))


def _show(arguments: Namespace, loader: Loader, config_type: type[TrieyeConfig]) -> None:
    """Print the config, even if it is invalid, with a note on stderr: it shows where the invalid value is set."""
    preflight = Preflight(loader, config_type)
    composed = preflight.load(arguments.overrides)
    own_overrides = []
    try:
        config = preflight.validated(composed, arguments.overrides)
        own_overrides = _records_in(config.persistence.get_run_base_dir())
    except ConfigurationError as error:
        lines = ["note: this config is invalid, and a run with it would fail", *_message(error).splitlines()]
        sys.stderr.write("\n      ".join(lines) + "\n")
    _apply(own_overrides, {}, arguments.overrides, composed, loader)
    ComposedHydra(loader, composed).show(arguments)


def _check_directory(checked: Checked[TrieyeConfig], default_name: str, hooks: Hooks) -> None:
    """Raise if the run directory is in use, before Hydra overwrites the records of a running attempt."""
    config = checked.config
    check_paths(config.persistence)
    if not (checked.is_multirun or config.tune.enabled or config.run_name == default_name):
        hooks.check_lock(config.persistence.get_run_base_dir(), config.runtime.kind == "cluster")


def _run(
    checked: Checked[TrieyeConfig],
    overrides: Sequence[str],
    loader: Loader,
    make_job: Callable[[Checked[TrieyeConfig] | None], Job],
    default_name: str,
    announce: Callable[[Path], None],
) -> None:
    """Run a checked command line."""
    if checked.is_multirun and checked.config.tune.enabled:
        raise ConfigurationError("tune and -m cannot be combined: a study already runs many trials; remove tune or -m")
    if checked.is_multirun:
        own_overrides, names = _sweep_prepared(checked, default_name)
    else:
        own_overrides, names = _run_prepared(checked, default_name, announce)
    own_overrides.append(f"hydra.mode={'MULTIRUN' if checked.is_multirun else 'RUN'}")
    _apply(own_overrides, names, overrides, checked.composed, loader)
    job = make_job(None if checked.is_multirun else checked)
    ComposedHydra(loader, checked.composed).start(job)


def _suggest_launcher(checked: Checked[TrieyeConfig], overrides: Sequence[str], hooks: Hooks) -> None:
    """Print a hint if a sweep uses Hydra's own sweeper and launcher, and the user did not choose them."""
    groups = ("hydra/sweeper", "hydra/launcher")
    choices = OmegaConf.select(checked.composed, "hydra.runtime.choices")
    is_typed = any(word.partition("=")[0] in groups for word in overrides)
    if checked.is_multirun and not is_typed and all(choices[group] == "basic" for group in groups):
        words = " ".join(f"{group}=trieye" for group in groups)
        hooks.say(f"jobs run one after another and do not resume; add {words} to run them in parallel")


def _apply(
    own_overrides: Sequence[str],
    names: Mapping[str, str],
    overrides: Sequence[str],
    composed: DictConfig,
    loader: Loader,
) -> None:
    """Add overrides of Hydra's own keys and names to a composed config, and replace secrets by environment variables.

    Args:
        own_overrides: Overrides of Hydra's own keys.
        names: Values by key that fix the name of the run and its directory, which exists, or the name of a sweep's
            runs.
        overrides: Overrides as typed.
        composed: The composed config.
        loader: Loader of the config.
    """
    own_items = parsed(own_overrides, loader.config_type)
    for override in own_items:
        loader.apply(override, composed)
    items = parsed(overrides, loader.config_type)
    references = [reference_of(override, loader) for override in items]
    secrets = {
        index: parsed([reference], loader.config_type)[0]
        for index, reference in enumerate(references)
        if reference is not None
    }
    recorded_items = [secrets.get(index, override) for index, override in enumerate(items)]
    with flag_override(composed, ["struct", "readonly"], [False, False]):
        for key, value in names.items():
            OmegaConf.update(composed, key, value)
        for override in secrets.values():
            set_references(composed, override.key_or_group)
    loader.record([*own_items, *recorded_items], composed)


def _argv_of_hydra(arguments: Namespace, source: ConfigSource, config_type: type[TrieyeConfig]) -> list[str]:
    """Return the arguments for a flag that Hydra executes: first the overrides, as Hydra 1.3 requires."""
    flags = list(sys.argv[1:])
    for override_text in arguments.overrides:
        flags.remove(override_text)
    argv = [*(quoted(override_text, config_type) for override_text in arguments.overrides), *flags]
    # in a console script Hydra resolves a relative path differently; the last --config-path is used
    return [*argv, "--config-path", source.directory] if arguments.config_path is not None else argv


def _is_for_hydra(arguments: Namespace) -> bool:
    """Return True if a flag is executed by Hydra itself."""
    return bool(arguments.info or arguments.hydra_help or arguments.shell_completion or arguments.experimental_rerun)


def _check_flags(arguments: Namespace) -> None:
    """Raise for flags that exclude each other; Hydra 1.3 would print a traceback."""
    commands = ("run", "multirun", "cfg", "info", "shell_completion")
    flags = [f"--{name.replace('_', '-')}" for name in commands if getattr(arguments, name)]
    if len(flags) > 1:
        raise ConfigurationError(f"{' and '.join(flags)} cannot be combined; choose one")
    if arguments.resolve and not (arguments.cfg or arguments.help):
        raise ConfigurationError("--resolve requires --cfg; type --cfg job --resolve")


def _run_prepared(
    checked: Checked[TrieyeConfig], default_name: str, announce: Callable[[Path], None]
) -> tuple[list[str], dict[str, str]]:
    """Return the overrides that put Hydra's records into the directory of a single run, and the names of the run."""
    config = checked.config
    directory = config.persistence.get_run_base_dir()
    run_dir = _unresolved(checked.composed, "run")
    if run_dir != _STOCK_RUN_DIR:
        raise ConfigurationError(
            f"hydra.run.dir={run_dir}: Hydra's records are stored in the run directory, {directory}; to change it, "
            "leave out hydra.run.dir and set persistence.root_data_dir, app_name or run_name"
        )
    if config.tune.enabled:  # a study is not a run, its trials are
        directory = study_dir(Path.cwd(), config.run_name)
    if config.run_name == default_name:
        directory = reserved(directory.parent, default_name)
    names = {
        "run_name": directory.name,
        "app_name": config.app_name,
        "persistence.root_data_dir": config.persistence.root_data_dir,
    }
    staged_overrides = (
        [] if config.tune.enabled else _staged(checked.composed, directory, config.persistence.log_dir_name, announce)
    )
    return [*_records_in(directory), *staged_overrides], names


def _staged(composed: DictConfig, run_dir: Path, log_dir_name: str, announce: Callable[[Path], None]) -> list[str]:
    """Return overrides that make Hydra write to the log directory, because the run may still refuse this attempt."""
    node: Any = OmegaConf.to_container(composed.hydra, resolve=False)
    run_dir.mkdir(parents=True, exist_ok=True)
    overrides = []
    if not (run_dir / "run.json").exists():
        announce(run_dir)
    elif node["output_subdir"] == RECORDS:
        overrides.append(f"hydra.output_subdir={log_dir_name}/{RECORDS}")
    (run_dir / log_dir_name).mkdir(exist_ok=True)
    file_handler = (node["job_logging"] or {}).get("handlers", {}).get("file", {})
    if file_handler.get("filename") == f"{_STOCK_LOG_DIR}/${{hydra.job.name}}.log":
        overrides.append(
            f"hydra.job_logging.handlers.file.filename={_STOCK_LOG_DIR}/{log_dir_name}/${{hydra.job.name}}.log"
        )
    return overrides


def _records_in(directory: Path) -> list[str]:
    """Return the override that sets the directory of Hydra's records."""
    if "${" in str(directory):  # Hydra's logging config fails if the path contains an interpolation
        return []
    return [f"hydra.run.dir={QuotedString(str(directory), Quote.single).with_quotes()}"]


def _sweep_prepared(checked: Checked[TrieyeConfig], default_name: str) -> tuple[list[str], dict[str, str]]:
    """Return the override that sets the directory of a new sweep, and the common name of the sweep's runs."""
    if checked.config.run_name != default_name:
        check_name("run_name", f"{checked.config.run_name}_0000")  # jobs append their index
    own_overrides = []
    if _unresolved(checked.composed, "sweep") == _STOCK_SWEEP_DIR:
        directory = reserved(Path(SWEEPS), datetime.now().astimezone().strftime(_STAMP_FORMAT))
        name, own_overrides = directory.name, [f"hydra.sweep.dir={directory}"]
    else:
        name = runs_of_sweep(Path(str(checked.composed.hydra.sweep.dir)), Path.cwd()) or default_name
    name_runs(name)
    return own_overrides, {"run_name": name} if checked.composed.run_name == default_name else {}


def _unresolved(composed: DictConfig, kind: str) -> str:
    node: Any = OmegaConf.to_container(composed.hydra[kind], resolve=False)
    return str(node["dir"])


def reserved(parent: Path, name: str) -> Path:
    """Create and return a new directory, unique even if two processes start in the same second."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count():
            directory = parent / (f"{name}_{number}" if number else name)
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                break
    except OSError as error:
        raise ConfigurationError(f"cannot create {parent / name}: {error.strerror}") from error
    return directory


def _job_of(
    task: Callable[[Any], Any],
    config_type: type[TrieyeConfig],
    hooks: Hooks,
    checked: Checked[TrieyeConfig] | None = None,
) -> Job:
    """Return the job that calls the task with the typed config; one that was checked is not validated again."""

    @functools.wraps(task)
    def job(composed: DictConfig) -> Any:
        launch = launch_info()
        assert launch is not None  # noqa: S101 - Hydra calls this
        try:
            if launch.is_multirun:
                with flag_override(composed, ["struct", "readonly"], [False, False]):
                    # a repeated job resumes the run of its earlier attempt
                    composed.run_name = earlier_run_name(launch) or f"{composed.run_name}_{launch.job_num}"
            values = resolved(composed, config_type)
            if checked is not None and values == checked.values:
                config = checked.config
            else:
                config = typed(values, config_type, overrides=launch.overrides, working_dir=launch.working_dir)
            for name in ("steps", "env_steps"):
                if getattr(config.loop, name) != (limit := values["loop"][name]):
                    hooks.say(f"the typed limit replaces loop.{name}={limit} of the config: both count env_steps")
            if config.print_config:
                hooks.print_config(config)
            return task(config)
        except TrieyeError as error:
            if launch.is_multirun:
                raise  # the launcher decides whether other jobs continue
            raise RefusedError(error) from error

    return RedactingTask(job)


def _exit(error: Exception, *, is_user_error: bool) -> NoReturn:
    has_own_code = is_user_error or not isinstance(error, ConfigurationError)
    code = error.exit_code if isinstance(error, TrieyeError) and has_own_code else _FAILED
    _exit_with(_message(error), code, is_error=True)


def _message(error: BaseException) -> str:
    """Return the message and notes of an error, without secrets."""
    return redacted_text("\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", [])]))


def _exit_with(message: str, exit_code: int, *, is_error: bool = False) -> NoReturn:
    lines = message.splitlines() or ["interrupted"]
    sys.stderr.write("error: " + "\n       ".join(lines) + "\n" if is_error else "\n".join(lines) + "\n")
    raise SystemExit(exit_code)
