"""The command that runs a sweep again, or some of its jobs."""

from collections.abc import Sequence
from pathlib import Path

from trieye.config.hydra.axes import quoted
from trieye.config.redaction import HIDDEN
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError
from trieye.sweeps.record import SweepRecord

_LAUNCHER = "hydra/launcher=trieye_ray"
_OURS = ("hydra.sweep.dir", "hydra.launcher.only", "hydra.mode")


def command_of(record: SweepRecord, directory: Path, *more: str, only: Sequence[int] | None = None) -> list[str]:
    """Return the words of the command that goes on with a sweep.

    Args:
        record: The sweep.
        directory: Where it is.
        *more: Further overrides.
        only: Numbers of the jobs to run; None = all that are not completed. A study goes on as a whole.

    Raises:
        ConfigurationError: It was planned without a program, or has a secret.
    """
    if not record.program:
        raise ConfigurationError(
            f"{directory}: the sweep was planned without a program; plan it once more with one, as in "
            f"`trieye sweep plan my_agent.train {' '.join(record.spec)} -o {directory}`"
        )
    hidden = next((word for word in [*record.own, *record.spec] if HIDDEN in word), None)
    if hidden is not None:
        raise ConfigurationError(
            f"{directory}: {hidden}: a secret is not written down; take it from the environment, as in "
            f"{hidden.partition('=')[0]}='${{oc.env:MY_SECRET}}', and begin the sweep with that"
        )
    if record.is_study:
        return _command_of_study(record, directory, *more)
    own = [word for word in record.own if word.partition("=")[0].lstrip("+") not in _OURS]
    of_others = any(word.startswith("hydra/launcher=") and word != _LAUNCHER for word in own)
    if of_others and only is not None:  # which such a launcher cannot be told
        own = [*(word for word in own if not word.startswith(("hydra/launcher=", "hydra.launcher."))), _LAUNCHER]
    chosen = [] if only is None else [f"hydra.launcher.only=[{','.join(map(str, only))}]"]
    place = f"hydra.sweep.dir={quoted(str(directory.resolve()))}"
    return [*record.program, "-m", *own, *record.spec, place, *more, *chosen]


def _command_of_study(record: SweepRecord, directory: Path, *more: str) -> list[str]:
    name = str(record.study["run_name"])
    home = study_dir(Path(record.working_dir), name)
    if directory.resolve() != home.resolve():
        raise ConfigurationError(f"{directory}: the study was begun in {home}, and goes on there only; move it back")
    return [*record.program, *record.own, *record.spec, f"run_name={name}", *more]
