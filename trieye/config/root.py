"""TrieyeConfig: the whole config of a run, the base class of a project's config."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from trieye.config.base import Marker
from trieye.config.hydra.launch import new_run_name
from trieye.config.locations import require_packages
from trieye.config.loop import LoopConfig
from trieye.config.names import Name
from trieye.config.packages import require
from trieye.config.persistence import PersistenceConfig
from trieye.config.redaction import HIDDEN, with_secrets
from trieye.config.replay import ReplayConfig
from trieye.config.runtime import RuntimeConfig
from trieye.config.sinks import SinksConfig
from trieye.config.spellings import ModelOf015
from trieye.config.stats import StatsConfig
from trieye.config.tune import TuneConfig
from trieye.exceptions import ConfigurationError
from trieye.renames import current_config

PERSISTENCE_OF_RUN: dict[str, Any] = {"auto_resume_latest": False, "tensorboard_dir_name": "."}
STATS_OF_RUN: dict[str, Any] = {"undeclared": "auto"}
"""Defaults for `trieye.Run` and YAML; the models themselves have the defaults of trieye 0.1.5."""


class TrieyeConfig(ModelOf015):
    """The whole config of a run; a project subclasses it to add its own groups."""

    spellings = ("app_name", "run_name", "persistence", "stats")

    app_name: Name = Field(default="default_app", description="Name of the app: its runs share an MLflow experiment.")
    run_name: Name = Field(
        default_factory=new_run_name, description="Name of one training; starting it again resumes it."
    )
    seed: int = Field(default=0, ge=0, lt=1 << 32, description="Seed of all random generators of the run.")
    tags: dict[str, str] = Field(default_factory=dict, description="Tags of the run, in run.json and MLflow.")
    description: str | None = Field(
        default=None, description="Purpose of the run in Markdown, shown in MLflow; null = the run's command line."
    )
    print_config: bool = Field(default=False, description="Print the composed config as YAML before the run starts.")
    progress_bar: bool = Field(
        default=True, description="Show a progress bar on terminals; false = print a line every 10 seconds."
    )
    runtime: RuntimeConfig = Field(
        default_factory=RuntimeConfig, description="Where the hub lives, which records the run."
    )
    persistence: Annotated[PersistenceConfig, Marker(yaml_default=PERSISTENCE_OF_RUN)] = Field(
        default_factory=PersistenceConfig, description="Files of the run, saving and resuming."
    )
    stats: Annotated[StatsConfig, Marker(yaml_default=STATS_OF_RUN)] = Field(
        default_factory=StatsConfig, description="Metrics: how events become points."
    )
    sinks: Annotated[SinksConfig, Marker(yaml_default={})] = Field(
        default_factory=SinksConfig.all_enabled,
        description="Where points go. YAML: only the selected sinks. Python: mlflow, tensorboard and console unless "
        "disabled, wandb if enabled; {} disables all.",
    )
    replay: ReplayConfig = Field(default_factory=ReplayConfig, description="Replay buffer.")
    loop: LoopConfig = Field(default_factory=LoopConfig, description="Length of an experiment, and evaluations.")
    tune: TuneConfig = Field(default_factory=TuneConfig, description="Study of many trials, under Ray Tune.")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise for a field of a project that redefines a field of trieye with an incompatible type."""
        super().__pydantic_init_subclass__(**kwargs)
        bases = [base for base in cls.__mro__[1:] if isinstance(base, type) and issubclass(base, TrieyeConfig)]
        for base in bases:
            for name in cls.__annotations__.keys() & base.model_fields.keys():
                field, annotation = base.model_fields[name], cls.model_fields[name].annotation
                is_narrower = isinstance(annotation, type) and isinstance(field.annotation, type)
                if annotation != field.annotation and not (is_narrower and issubclass(annotation, field.annotation)):  # type: ignore[arg-type]
                    raise ConfigurationError(
                        f"{cls.__name__}.{name}: trieye already has a key of this name ({field.description}); choose "
                        "another name"
                    )

    @field_validator("sinks", mode="before")
    @classmethod
    def _unnamed_sinks_stay_on(cls, sinks: Any) -> Any:
        return SinksConfig.completed(sinks) if isinstance(sinks, Mapping) and sinks else sinks

    @model_validator(mode="after")
    def _copy_names_to_persistence(self) -> Self:
        # a copy: the caller may reuse its PersistenceConfig for another run
        names = {"app_name": self.app_name, "run_name": self.run_name}
        self.__dict__["persistence"] = self.persistence.model_copy(update=names)
        self.model_fields_set.add("persistence")
        return self

    def with_run_defaults(self) -> Self:
        """Return the config with the defaults of `trieye.Run` instead of the 0.1.5 defaults.

        A run of an older version keeps its directory `tensorboard`.
        """
        persistence, stats = self.persistence, self.stats
        unset = {name: value for name, value in PERSISTENCE_OF_RUN.items() if name not in persistence.model_fields_set}
        persistence = persistence.model_copy(update=unset)
        if persistence.tensorboard_dir_name == "." and (persistence.get_run_base_dir() / "tensorboard").is_dir():
            persistence = persistence.model_copy(update={"tensorboard_dir_name": "tensorboard"})
        if stats.undeclared is None:
            stats = stats.model_copy(update=STATS_OF_RUN)
        return self.model_copy(update={"persistence": persistence, "stats": stats})

    @classmethod
    def of_run(cls, run_dir: Path, values: Mapping[str, Any] | None = None) -> Self:
        """Return the config of a run, with secrets restored from the environment.

        Args:
            run_dir: Directory of the run.
            values: Config stored in a checkpoint, `LoadedCheckpoint.config`; None = the configs.json of the run.

        Raises:
            ConfigurationError: The config is missing or does not match this class, or a secret is not set.
        """
        path = run_dir / "configs.json"
        try:
            values = json.loads(path.read_text("utf-8")) if values is None else values
            # configs.json may contain additions of the program and groups of a subclass
            values = current_config(values)
            fields = {name: value for name, value in values.items() if name in cls.model_fields or name == HIDDEN}
            return cls.model_validate_json(json.dumps(with_secrets(fields)))
        except ConfigurationError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} does not contain a {cls.__name__}: {error}") from error

    def check(self) -> None:
        """Raise if this machine cannot run the config, before a run starts or writes files.

        Called when a command line is checked (in a sweep, for each value of each axis) and when a run is opened.
        Projects may override it, call `super().check()`, and check their own requirements, such as the environment. An
        override must be fast and leave nothing behind.

        Raises:
            ConfigurationError: A requirement is missing; the message states the fix.
        """
        if self.runtime.kind != "local":
            require("ray", f"runtime.kind={self.runtime.kind}", "set runtime.kind=local")
        self.sinks.check()
        self.tune.check()
        if self.persistence.mirror is not None:
            require_packages(self.persistence.mirror)

    _sent_at: float | None = PrivateAttr(default=None)

    def __getstate__(self) -> dict[Any, Any]:
        """Record when the config is sent to another process, which must answer within some seconds."""
        config_copy = self.model_copy()
        config_copy._sent_at = time.time()  # noqa: SLF001 - its own class
        return super(TrieyeConfig, config_copy).__getstate__()

    @property
    def sent_at(self) -> float | None:
        """Unix time of sending the config to this process, in seconds; None in the process that created it."""
        return self._sent_at

    @property
    def trieye(self) -> "TrieyeConfig":
        """The config without fields of a subclass, which is sent to a hub in another process."""
        if type(self) is TrieyeConfig:
            return self
        fields: dict[str, Any] = {name: getattr(self, name) for name in TrieyeConfig.model_fields}
        return TrieyeConfig.model_construct(_fields_set=self.model_fields_set & set(fields), **fields)
