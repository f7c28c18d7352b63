"""`trieye sweep`: plan a sweep, show the status of its jobs and run unfinished jobs.

Plan a sweep, show the status of its jobs, and run unfinished jobs.

Varying keys are written as for Hydra's -m. The last key varies fastest, and a job's index never changes. DIR is the
sweep directory; default: the working directory if it contains a sweep, else the newest sweep below multirun/.

Examples:
  trieye sweep plan my_agent.train 'agent.lr=1e-4,3e-4' 'agent=ppo,dqn' --seeds 5 -o sweeps/first
  trieye sweep plan my_agent.train experiments/sarsa.json --seeds 30       a PyExpUtils experiment description
  trieye sweep show 7                           overrides of job 7
  trieye sweep find agent.lr=3e-4 seed=2        indices of the jobs with these values
  trieye sweep run -i $SLURM_ARRAY_TASK_ID --stride 100
  trieye sweep status multirun/20260101_120000
  trieye sweep relaunch --only failed           resumes from checkpoints; never repeats completed jobs
  trieye sweep relaunch hydra.launcher.backend=slurm hydra.launcher.slurm.hours=3
  trieye sweep merge                            copies runs from other machines here and logs them to MLflow
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import (
    add_action,
    add_actions,
    add_confirmed,
    add_json,
    add_output,
    add_repeatable,
    condition,
    exclusion,
    listed,
    pair,
    positive,
    sweep_directory,
)
from trieye.cli.confirmation import confirm
from trieye.cli.output import print_json, show
from trieye.cli.sweep_merge import add_merge, merge
from trieye.cli.sweep_status import UNFINISHED, print_status, tables_of
from trieye.exceptions import ConfigurationError
from trieye.process.text import command_text, counted

if TYPE_CHECKING:
    from trieye.sweeps.descriptions import Description
    from trieye.sweeps.record import SweepRecord
    from trieye.sweeps.status import JobStatus

_SELECTABLE = (*UNFINISHED, "removed")
_DEFAULT = ",".join(UNFINISHED)
_BUSY = ("running", "unknown", "waiting")
_LAUNCHER = "hydra.launcher."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    actions = add_actions(parser)
    _add_plan(actions)
    texts = {
        "show": "show the overrides of a job",
        "find": "list the jobs that have these values",
        "run": "run jobs on this machine",
    }
    for name, text in texts.items():
        action = add_action(actions, name, text)
        action.add_argument("-d", "--dir", type=Path, metavar="DIR", help="sweep directory")
        if name == "show":
            action.add_argument("index", type=int, metavar="I", help="index of the job")
        elif name == "find":
            action.add_argument("values", nargs="+", metavar="KEY=VALUE", help="values of the jobs")
        else:
            action.add_argument("-i", "--index", required=True, metavar="I", help="jobs to run, such as 3 or 0-9,12")
            action.add_argument("--stride", type=positive, metavar="K", help="also run the jobs I+K, I+2K and so on")
            help_text = "parallel jobs (default: 1)"
            action.add_argument("--max-concurrent", type=positive, default=1, metavar="N", help=help_text)
            help_text = "overrides of the launcher, such as hydra.launcher.timeout_min=60"
            action.add_argument("words", nargs="*", metavar=f"{_LAUNCHER}KEY=VALUE", help=help_text)
            add_confirmed(action)
    status = add_action(actions, "status", "show the status of the jobs; exit code 0 if all are completed or pruned")
    status.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="sweep directory")
    relaunch = add_action(actions, "relaunch", "run unfinished jobs, from checkpoints where available")
    relaunch.add_argument(
        "words",
        nargs="*",
        metavar="DIR",
        help="sweep directory, and overrides of the launcher: hydra.launcher.KEY=VALUE",
    )
    relaunch.add_argument(
        "--only",
        default=_DEFAULT,
        metavar="STATE,...",
        help=f"run only jobs in these states: {', '.join(_SELECTABLE)} (default: {_DEFAULT})",
    )
    relaunch.add_argument("--dry-run", action="store_true", help="show the jobs and the command without starting them")
    add_confirmed(relaunch)
    add_merge(actions)
    for action in actions.choices.values():
        add_json(action)
    parser.set_defaults(when_interrupted="interrupted; `trieye sweep relaunch` runs unfinished jobs")


def _add_plan(actions: Any) -> None:
    plan = add_action(actions, "plan", "show the jobs of a sweep; -o writes the plan to a directory")
    plan.add_argument(
        "words",
        nargs="+",
        metavar="[PROGRAM] KEY=VALUES",
        help="module or file to run, then varying keys such as agent.lr=1e-3,1e-4, or JSON files that describe "
        "experiments of PyExpUtils",
    )
    plan.add_argument("--seeds", type=positive, metavar="N", help="repeat each job with the seeds 0 to N-1")
    add_repeatable(plan, "--zip", "KEY,KEY", "vary these keys together; repeatable")
    text = "exclude the jobs with these values, such as agent=ppo,agent.lr=1e-4; repeatable"
    add_repeatable(plan, "--exclude", "KEY=VALUE,...", text)
    text = (
        "KEY exists only in jobs with these values, such as agent.clip_range:agent=ppo; ppo|a2c allows both; repeatable"
    )
    add_repeatable(plan, "--when", "KEY:KEY=VALUE,...", text)
    add_output(plan, "DIR", "directory to write the plan to, for `run` and `relaunch` (default: show the jobs only)")


def run(options: argparse.Namespace) -> int:
    """Run the selected action."""
    return int(_ACTIONS[options.action](options))


def _plan(options: argparse.Namespace) -> int:
    from trieye.config.hydra.axes import typed
    from trieye.config.redaction import redacted_override
    from trieye.config.sweeper import SweeperConfig
    from trieye.sweeps.descriptions import write_save_paths
    from trieye.sweeps.record import SweepRecord, lock_in
    from trieye.sweeps.report import plan_table
    from trieye.sweeps.spec import grid_of

    program, overrides = _program(options.words)
    words, hydra_words, descriptions = _split(overrides, options.seeds)
    sweeper_options = _sweeper_options(options)
    option_words = [f"hydra.sweeper.{key}={typed(value)}" for key, value in sweeper_options.items() if value]
    record = SweepRecord(
        program=program,
        working_dir=str(Path.cwd()),
        spec=[redacted_override(word) for word in words],
        own=["hydra/sweeper=trieye", "hydra/launcher=trieye", *option_words, *hydra_words],
    ).sign()
    grid = grid_of(words, SweeperConfig.model_validate(sweeper_options))
    with nullcontext() if options.output is None else lock_in(options.output):
        if options.output is not None and (old_record := SweepRecord.read(options.output)) is not None:
            old_record = old_record.at(options.output)
            record.extend(old_record, options.output)
            grid = old_record.going_on(grid, words, options.output)
        record.set_grid(grid)
        is_saving = len(descriptions) == 1 and descriptions[0].save_pattern is not None
        save_paths = descriptions[0].save_paths(grid) if is_saving else []
        if options.output is not None:
            if save_paths:
                write_save_paths(options.output, save_paths)
            record.write(options.output)
    if options.json:
        experiments = [{"path": description.path, "name": description.name} for description in descriptions]
        public_axes = grid.without_secrets().axes
        axes = [{"keys": list(axis.keys), "values": [list(values) for values in axis.places]} for axis in public_axes]
        document = {"num_jobs": grid.num_jobs, "fingerprint": grid.fingerprint}
        print_json("sweep.plan", {**document, "axes": axes, "experiments": experiments, "sweep": options.output})
        return 0
    plan_table(grid)
    for description in descriptions:
        print(f"{description.path}: experiment {description.name}{_saved_to(description, save_paths)}")
    if options.output is not None:
        command = f"run it: {command_text('sweep', 'relaunch', options.output)}"
        print(f"written to {options.output}; {command if program else 'to run it, pass the program first'}")
    return 0


def _sweeper_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a plan by their keys below `hydra.sweeper`."""
    return {
        "seeds": options.seeds,
        "zip": [group.split(",") for group in options.zip],
        "exclude": list(map(exclusion, options.exclude)),
        "when": dict(map(condition, options.when)),
    }


def _saved_to(description: "Description", save_paths: Sequence[str]) -> str:
    if save_paths:
        return f"; Hydra's output directory of job 0 is {save_paths[0]}"
    if description.save_pattern is None:
        return ""
    return "; save_path is ignored, because the sweep has keys or values that are not in this description"


def _program(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the command of the program, empty if the first word is not a program, and the other words."""
    program, *arguments = words
    if "=" in program or program.startswith("~") or program.endswith(".json"):
        return [], list(words)
    from trieye.config.base import did_you_mean

    if not arguments:
        raise ConfigurationError(f"{program}: no varying keys; add KEY=VALUES, such as 'seed=range(0,5)'")
    if program.endswith(".py"):
        if not Path(program).is_file():
            hint = did_you_mean(Path(program).name, [path.name for path in Path(program).parent.glob("*.py")])
            raise ConfigurationError(f"{program}: no such file{hint}")
        return [sys.executable, program], arguments
    if not _is_module(program):
        raise ConfigurationError(
            f"{program}: no such module in the working directory; pass a module, such as my_agent.train, or a .py file"
        )
    return [sys.executable, "-m", program], arguments


def _is_module(name: str) -> bool:
    """Return whether `python -m name` would find a module, without importing its parent packages."""
    qualified_name, *parts = name.split(".")
    spec = PathFinder.find_spec(qualified_name, [str(Path.cwd())]) or find_spec(qualified_name)
    for part in parts:
        if spec is None:
            break
        qualified_name = f"{qualified_name}.{part}"
        spec = PathFinder.find_spec(qualified_name, spec.submodule_search_locations or [])
    return spec is not None


def _split(words: Sequence[str], seeds: int | None) -> "tuple[list[str], list[str], list[Description]]":
    """Return the program's overrides (descriptions expanded in place), Hydra's own overrides, and the descriptions."""
    from trieye.sweeps.descriptions import Description

    task_words: list[str] = []
    hydra_words: list[str] = []
    descriptions: list[Description] = []
    for word in words:
        if word.endswith(".json") and "=" not in word:
            descriptions.append(Description.read(Path(word), runs=seeds or 1))
            task_words += descriptions[-1].words
        elif word.lstrip("+").startswith(("hydra.sweep", "hydra/sweep", "hydra.mode")):
            raise ConfigurationError(f"{word}: a plan does not accept this key; use --seeds, --zip, --exclude and -o")
        elif word.lstrip("+").startswith(("hydra.", "hydra/")):
            hydra_words.append(word)
        else:
            task_words.append(word)
    return task_words, hydra_words, descriptions


def _show(options: argparse.Namespace) -> int:
    from trieye.sweeps.record import SweepRecord

    directory = sweep_directory(options.dir)
    grid = SweepRecord.of(directory).the_grid()
    try:
        job_overrides = grid[options.index]
    except IndexError as error:
        raise ConfigurationError(str(error)) from None
    is_excluded = grid.is_left_out(options.index)
    if options.json:
        document = {"sweep": directory, "index": options.index, "overrides": job_overrides, "is_left_out": is_excluded}
        print_json("sweep.show", document)
    else:  # not by rich, which replaces tabs and control characters
        print(shlex.join(job_overrides) + ("   (excluded)" if is_excluded else ""))
    return 0


def _find(options: argparse.Namespace) -> int:
    from trieye.sweeps.record import SweepRecord

    directory = sweep_directory(options.dir)
    grid = SweepRecord.of(directory).the_grid()
    indices = list(grid.find(dict(map(pair, options.values))))
    if not indices:
        raise ConfigurationError(f"{' '.join(options.values)}: all jobs with these values are excluded by --exclude")
    if options.json:
        print_json("sweep.find", {"sweep": directory, "indices": indices})
    else:
        print(*indices, sep="\n")
    return 0


def _run(options: argparse.Namespace) -> int:
    from trieye.config.launcher import numbers

    _check_launcher(options.words)
    directory = sweep_directory(options.dir)
    record = _record_at(directory)
    grid = record.the_grid()
    indices = numbers(options.index, grid.size)
    if options.stride:
        indices = [index for first in indices for index in range(first, grid.size, options.stride)]
    words = ["hydra.launcher.is_part=true", f"hydra.launcher.num_jobs={options.max_concurrent}"]
    if options.max_concurrent == 1:
        words.append("hydra.launcher.isolate=none")
    return _start(options, record, directory, *words, *options.words, only=indices)


def _relaunch(options: argparse.Namespace) -> int:
    from trieye.sweeps.command import command_of

    launcher_words = [word for word in options.words if word.startswith(_LAUNCHER)]
    other_words = [word for word in options.words if word not in launcher_words]
    refused_words = [word for word in other_words if "=" in word and not Path(word).exists()] or other_words[1:]
    if refused_words:
        raise ConfigurationError(
            f"{refused_words[0]}: expected one sweep directory, and overrides of {_LAUNCHER}*; to "
            "change or extend the sweep, repeat its command with hydra.sweep.dir=DIRECTORY"
        )
    options.dir = Path(other_words[0]) if other_words else None
    _check_launcher(launcher_words)
    directory, record, jobs = _unfinished(options)
    indices = [job.index for job in jobs]
    if not jobs or options.dry_run:
        command = command_of(record, directory, *launcher_words, only=indices) if jobs else None
        document = {"sweep": directory, "jobs": indices, "command": command, "is_dry_run": options.dry_run}
        end = f"{counted(len(jobs), 'job')}; the command: {shlex.join(command or [])}"
        show(options, "sweep.relaunch", document, [*tables_of(jobs), end] if jobs else [])
        return 0
    return _start(options, record, directory, *launcher_words, only=indices)


def _check_launcher(words: Sequence[str]) -> None:
    """Raise `ConfigurationError` if a word is no override of an option of the launcher, or selects jobs."""
    from trieye.config.base import did_you_mean
    from trieye.config.launcher import LauncherConfig

    for word in words:
        if not word.startswith(_LAUNCHER):
            raise ConfigurationError(f"{word}: expected overrides of {_LAUNCHER}*")
        name = word.removeprefix(_LAUNCHER).partition("=")[0].partition(".")[0]
        if name in ("only", "is_part"):
            hint = "`trieye sweep run -i` selects jobs by index, `trieye sweep relaunch --only` by state"
            raise ConfigurationError(f"{word}: not accepted here; {hint}")
        if name not in LauncherConfig.model_fields:
            raise ConfigurationError(f"{word}: unknown option{did_you_mean(name, LauncherConfig.model_fields)}")


def _unfinished(options: argparse.Namespace) -> "tuple[Path, SweepRecord, list[JobStatus]]":
    """Return the sweep directory, its record and the jobs that `--only` selects; print a message if there are none.

    `incomplete` also selects jobs that run without a driver or may run on another machine: they become incomplete when
    their process ends, and the launcher waits for that.
    """
    from trieye.sweeps.status import ENDED, status_of

    out = sys.stderr if options.json else sys.stdout
    for name in ENDED.intersection(map(str.strip, options.only.split(","))):
        raise ConfigurationError(f"--only {name}: {name} jobs do not run again (choose from: {', '.join(_SELECTABLE)})")
    states = listed(options.only, _SELECTABLE, "--only", "job state")
    directory = sweep_directory(options.dir)
    record = _record_at(directory)
    all_jobs = status_of(directory)
    jobs = [job for job in all_jobs if job.how in states or (job.how in _BUSY and "incomplete" in states)]
    if not jobs:
        states_text = " or ".join(filter(None, (", ".join(states[:-1]), states[-1])))
        print(f"no jobs to run: no job of {directory} is {states_text}", file=out)
    indices = [job.index for job in all_jobs if job.how == "removed" and job not in jobs]
    if indices:
        print(f"the runs of {len(indices)} completed jobs were deleted; --only removed reruns these jobs", file=out)
    return directory, record, jobs


def _record_at(directory: Path) -> "SweepRecord":
    """Return the record of a sweep; print its project directory if sweep and project were moved or copied."""
    from trieye.sweeps.record import SweepRecord

    stored_record = SweepRecord.of(directory)
    record = stored_record.at(directory)
    if record.working_dir != stored_record.working_dir:
        print(
            f"sweep moved or copied here from {stored_record.directory}; running its program in {record.working_dir}",
            file=sys.stderr,
        )
    return record


def _start(
    options: argparse.Namespace, record: "SweepRecord", directory: Path, *more_words: str, only: Sequence[int]
) -> int:
    """Run the program of a sweep in its working directory, and return its exit code."""
    from trieye.process.child import run_program
    from trieye.sweeps.command import command_of

    command = command_of(record, directory, *more_words, only=only)
    if not Path(record.working_dir).is_dir():
        raise ConfigurationError(
            f"{directory}: the working directory of the sweep, {record.working_dir}, no longer exists; restore it, "
            "because the jobs run there"
        )
    if not record.is_signed:
        confirm(command, record.working_dir, str(directory), is_confirmed=options.yes)
    if options.json:
        document = {"sweep": directory, "jobs": list(only), "command": command, "is_dry_run": False}
        print_json(f"sweep.{options.action}", document)
    return run_program(command, record.working_dir, stdout=sys.stderr if options.json else None)


_ACTIONS = {
    "plan": _plan,
    "show": _show,
    "find": _find,
    "run": _run,
    "status": print_status,
    "relaunch": _relaunch,
    "merge": merge,
}
