"""The record of a new sweep or study, from Hydra's config of this start."""

import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from trieye.config.redaction import redacted_override
from trieye.sweeps.record import SweepRecord


def new_record(config: DictConfig) -> SweepRecord:
    """Return the record of a new sweep, without its grid."""
    return _record_of(config.hydra, str(OmegaConf.select(config, "loop.mode", default="max")))


def record_of_study(mode: str) -> SweepRecord:
    """Return the record of a new study, whose program Hydra has started as a single run.

    Args:
        mode: `max` or `min`: whether a higher or lower objective is better.
    """
    if not HydraConfig.initialized():
        return SweepRecord(spec=[], working_dir=str(Path.cwd()), mode=mode)
    record = _record_of(HydraConfig.get(), mode)
    record.own = [word for word in record.own if not word.startswith(("hydra.run.dir=", "hydra.mode="))]
    return record.sign()


def _record_of(hydra: Any, mode: str) -> SweepRecord:
    overrides: Any = OmegaConf.to_container(hydra.overrides, resolve=False)  # `${cpus}` is resolved for each job
    words = _words_of_program()
    return SweepRecord(
        program=[sys.executable, *words, *_flags(hydra)] if words else [],
        working_dir=str(Path.cwd()),
        spec=[redacted_override(word) for word in overrides["task"]],
        own=[redacted_override(word) for word in overrides["hydra"]],
        mode=mode,
    ).sign()


def _words_of_program() -> list[str]:
    """Return the words after `python` that start this program; none for `python -c` and interactive sessions."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)  # absolute, unlike `sys.argv[0]`
    if spec is not None and spec.name != "__main__":
        return ["-m", spec.name.removesuffix(".__main__")]
    if file is None:
        return []
    return [str(Path(file).resolve() if spec is None else Path(file).parent.resolve())]  # of a directory or a zip file


def _flags(hydra: Any) -> list[str]:
    """Return the command-line flags of Hydra that locate the configs."""
    flags, name = [], hydra.job.config_name
    if name is not None:
        flags += ["--config-name", str(name)]
    is_elsewhere = any(word.startswith(("--config-p", "-cp")) for word in sys.argv[1:])
    for source in hydra.runtime.config_sources:
        path = source.path if source.schema == "file" else f"{source.schema}://{source.path}"
        if source.provider == "command-line":
            flags += ["--config-dir", path]
        elif source.provider == "main" and is_elsewhere:
            flags += ["--config-path", path]
    return flags
