"""Rehearsal: a program is started to see what it would run, or whether a checkpoint fits it, and ends there."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from trieye.config.fingerprint import config_hash
from trieye.config.redaction import recorded
from trieye.config.root import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.run.provenance import Provenance, commit_of_program

VARIABLE = "TRIEYE_REHEARSAL"
"""The environment variable that asks for one: how far the program is to go, a colon, and the file for what it says."""

Stage = Literal["config", "restore"]
"""`config` = until its config is known, before anything is made; `restore` = until its run has loaded a checkpoint."""


class Rehearsed(BaseModel):
    """What a program said of itself.

    Attributes:
        config: Its config, as configs.json of a run has it.
        config_hash: Hash of what is trained.
        provenance: What it would run.
        misfit: What of the checkpoint does not fit, where the program wants no more than a part of it.
    """

    config: dict[str, Any]
    config_hash: str | None
    provenance: Provenance
    misfit: str = ""


def end_if_rehearsed(stage: Stage, config: TrieyeConfig, *, misfit: str = "") -> None:
    """End the program if it was started for no more than this.

    Raises:
        SystemExit: It was; what was asked for is written down.
    """
    asked, _, path = os.environ.get(VARIABLE, "").partition(":")
    if asked != stage:
        return
    said = Rehearsed(
        config=recorded(config.model_dump(mode="json")),
        config_hash=config_hash(config),
        provenance=Provenance.gather(commit_of_program()),
        misfit=misfit,
    )
    Path(path).write_text(said.model_dump_json(), encoding="utf-8", errors="backslashreplace")
    raise SystemExit(0)


def refuse_if_rehearsed(what: str) -> None:
    """Stop a program that trains without having loaded the checkpoint that it was to begin from.

    Raises:
        ConfigurationError: It was started to see whether a checkpoint fits.
    """
    if os.environ.get(VARIABLE, "").startswith("restore:"):
        raise ConfigurationError(
            f"the program comes to {what} without run.restore(), so it would not begin from the checkpoint; let it "
            "restore first"
        )
