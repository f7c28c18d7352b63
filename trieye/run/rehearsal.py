"""Dry run: a program reports its config, or whether a checkpoint fits, to the command that started it, and exits."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from trieye.config.fingerprint import config_hash, with_program
from trieye.config.redaction import recorded
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.run.provenance import Provenance, commit_of_program

VARIABLE = "TRIEYE_REHEARSAL"
"""Environment variable that requests a dry run: its last stage, a colon, and the file for the report."""

Stage = Literal["config", "restore"]
"""`config`: exit after composing the config, before anything is created; `restore`: exit after loading a checkpoint."""


class Rehearsed(BaseModel):
    """Report of a dry run.

    Attributes:
        config: The config in the form of `configs.json`.
        config_hash: Hash of the config values that determine the training.
        provenance: Command, commit, packages and machine of the program.
        misfit: Parts of the checkpoint that do not fit, if the program restores with `strict=False`.
    """

    config: dict[str, Any]
    config_hash: str | None
    provenance: Provenance
    misfit: str = ""


def is_dry_run(stage: Stage) -> bool:
    """Return True if this process is a dry run that ends at `stage`."""
    return os.environ.get(VARIABLE, "").startswith(f"{stage}:")


def exit_if_dry_run(stage: Stage, config: TrieyeConfig, *, misfit: str = "") -> None:
    """Write the report and exit if this process is a dry run that ends at `stage`.

    Raises:
        SystemExit: The dry run ends at this stage.
    """
    if not is_dry_run(stage):
        return
    items = recorded(with_program(config))
    report = Rehearsed(
        config=items,
        config_hash=config_hash(type(config), items),
        provenance=Provenance.gather(commit_of_program()),
        misfit=misfit,
    )
    Path(os.environ[VARIABLE].partition(":")[2]).write_text(
        report.model_dump_json(), encoding="utf-8", errors="backslashreplace"
    )
    raise SystemExit(0)


def refuse_if_dry_run(call: str) -> None:
    """Refuse a call that trains before `run.restore`, during a dry run that checks whether a checkpoint fits.

    Raises:
        ConfigurationError: This process is a dry run that ends at the stage `restore`.
    """
    if is_dry_run("restore"):
        raise ConfigurationError(
            f"the program calls {call} before run.restore(), so it would not start from the checkpoint; call "
            "run.restore() first"
        )
