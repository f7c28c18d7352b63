"""The command line that resumes a sweep, or runs some of its jobs."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trieye.config.fingerprint import json_of
from trieye.config.hydra.axes import quoted
from trieye.config.launcher import ranges
from trieye.config.redaction import HIDDEN
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import CONFIGS
from trieye.renames import current_overrides
from trieye.sweeps.jobs import RUN
from trieye.sweeps.record import SweepRecord

_LAUNCHER = "hydra/launcher=trieye"
_PLAIN_PATH = re.compile(r"/[\w./-]+", re.ASCII)
_OURS = ("hydra.sweep.dir", "hydra.launcher.only", "hydra.mode")


def command_of(record: SweepRecord, directory: Path, *more_words: str, only: Sequence[int] | None = None) -> list[str]:
    """Return the words of the command that resumes a sweep.

    Args:
        record: The sweep.
        directory: Directory of the sweep.
        *more_words: Further overrides.
        only: Indices of the jobs to run; None: all unfinished jobs. A study always resumes as a whole.

    Raises:
        ConfigurationError: The program of the sweep is not recorded, or its command contains a secret.
    """
    if not record.program and record.is_study:
        raise ConfigurationError(
            f"{directory}: no program is recorded: the study was started by python -c or interactively; repeat its "
            f"command in {record.working_dir} with run_name={record.study['run_name']}"
        )
    if not record.program:
        raise ConfigurationError(
            f"{directory}: no program is recorded: the sweep was started by python -c or interactively, or planned "
            f"without a program; repeat its command with hydra.sweep.dir={directory}, or its `trieye sweep plan` with "
            "the program as first word, such as my_agent.train or train.py"
        )
    hidden_word = next((word for word in [*record.own, *record.spec] if HIDDEN in word), None)
    if hidden_word is not None:
        raise ConfigurationError(
            f"{directory}: {hidden_word}: secrets are not recorded; take the value from the environment, and restart "
            f"the sweep with {shlex.quote(hidden_word.replace(HIDDEN, '${oc.env:MY_SECRET}'))}"
        )
    if record.is_study:
        return _command_of_study(record, directory, *more_words)
    config = _config_in(directory)
    words, spec = current_overrides(record.own, config), current_overrides(record.spec, config)
    words = [word for word in words if word.partition("=")[0].lstrip("+") not in _OURS]
    is_foreign_launcher = any(word.startswith("hydra/launcher=") and word != _LAUNCHER for word in words)
    if is_foreign_launcher and only is not None:  # other launchers cannot select jobs
        words = [*(word for word in words if not word.startswith(("hydra/launcher=", "hydra.launcher."))), _LAUNCHER]
    selection_words = [] if only is None else [f"hydra.launcher.only={quoted(ranges(only))}"]
    path = str(directory.resolve())
    sweep_dir = f"hydra.sweep.dir={path if _PLAIN_PATH.fullmatch(path) else quoted(path)}"
    return [*record.program, "-m", *words, *spec, sweep_dir, *more_words, *selection_words]


def _config_in(directory: Path) -> dict[str, Any] | None:
    """Return the config of a run of the sweep in a directory, whatever its job; None if there is none."""
    for path in directory.glob(f"*/{RUN}/{CONFIGS}"):
        with suppress(OSError, ValueError):
            return json_of(path)
    return None


def _command_of_study(record: SweepRecord, directory: Path, *more_words: str) -> list[str]:
    name = str(record.study["run_name"])
    home = study_dir(Path(record.working_dir), name)
    if directory.resolve() != home.resolve():
        raise ConfigurationError(f"{directory}: the study was started in {home} and resumes only there; move it back")
    return [
        *record.program,
        *current_overrides([*record.own, *record.spec], _config_in(directory)),
        f"run_name={name}",
        *more_words,
    ]
