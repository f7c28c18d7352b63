"""Lightning: a logger that makes a training a run, and a callback that lets it go on with `fit(ckpt_path=...)`."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.integrations.opening import AdoptedRun, run_dir_of
from trieye.integrations.wandb.media import Image
from trieye.run.run import Run

try:
    from lightning.fabric.loggers.logger import rank_zero_experiment
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.utilities import rank_zero_only
except ModuleNotFoundError:  # the package has had two names
    if not TYPE_CHECKING:
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
        from pytorch_lightning.utilities import rank_zero_only


class RunLogger(Logger):
    """Logs to a run, which process 0 holds; it ends with the program, so that `fit` and `test` share it.

    Lightning's own files, such as its checkpoints, are in `lightning/` in the directory of the run, at the same place
    in every attempt: with `ModelCheckpoint(save_last=True)` and `ResumeRun()`, `fit(ckpt_path="last")` goes on.

    Args:
        name: Name of the run; another start with the same name goes on in the same run.
        root: Directory of all runs; None: as the environment says, or `.trieye_data`.
        app: Name of the app; None: as the environment says, or that of the working directory.
        prefix: Comes before the names of metrics, with a `/`.
        tags: Of the run.

    Raises:
        ConfigurationError: The name cannot be that of a run.
    """

    def __init__(
        self,
        name: str = "lightning",
        *,
        root: str | Path | None = None,
        app: str | None = None,
        prefix: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._run_name, self._prefix, self._tags = name, prefix, dict(tags or {})
        self._app, self._root = app, None if root is None else Path(root).absolute()
        self._dir = run_dir_of(name, app=app, root=self._root)
        self._adopted: AdoptedRun | None = None
        self._told_at: tuple[int, frozenset[str]] = (-1, frozenset())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_adopted": None}  # another process opens the run again, if it is process 0

    @property
    def adopted(self) -> AdoptedRun:
        """Return the run, opened now if it is not open; for process 0."""
        if self._adopted is None or self._adopted.is_closed:
            self._adopted = AdoptedRun.join(self._run_name, app=self._app, root=self._root)
            if self._tags:
                self._adopted.run.set_tags(self._tags)
        return self._adopted

    @property
    @rank_zero_experiment
    def experiment(self) -> Run:
        """Return the `trieye.Run`; in processes other than the first one something that takes any call."""
        return self.adopted.run

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self._run_name

    @property
    def version(self) -> str:
        """Return the name of the directory of Lightning's files, the same in every attempt."""
        return "lightning"

    @property
    def save_dir(self) -> str:
        """Return the directory of the runs of the app."""
        return str(self._dir.parent)

    @property
    def root_dir(self) -> str:
        """Return the directory of the run."""
        return str(self._dir)

    @property
    def log_dir(self) -> str:
        """Return the directory of Lightning's files."""
        return str(self._dir / self.version)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values at a step; None: the last one."""
        run, before = self.adopted.run, f"{self._prefix}/" if self._prefix else ""
        at = run.step if step is None else step
        known_step, known = self._told_at
        told = {f"{before}{name}": value for name, value in metrics.items()}
        run.log({name: value for name, value in told.items() if at != known_step or name not in known}, step=at)
        run.step = max(run.step, at)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace | None, *args: Any, **kwargs: Any) -> None:
        """Record parameters; what is no plain data is recorded as its text."""
        del args, kwargs
        self.experiment.log_params(_as_dicts(params or {}))

    @rank_zero_only
    def log_image(
        self, key: str, images: Sequence[Any], step: int | None = None, caption: Sequence[str] | None = None
    ) -> None:
        """Log pictures: arrays, tensors `[3, height, width]`, PIL images, figures or files, with a caption for each.

        Raises:
            TypeError: It is no list.
            ConfigurationError: There are not as many captions as pictures.
        """
        if not isinstance(images, list | tuple):
            raise TypeError(f"log_image({key!r}): images is a {type(images).__name__}; give a list of pictures")
        if caption is not None and len(caption) != len(images):
            raise ConfigurationError(f"log_image({key!r}): there are {len(images)} images and {len(caption)} captions")
        run = self.adopted.run
        for number, image in enumerate(images):
            name = f"{key}/{number}" if len(images) > 1 else key
            Image(image, caption=None if caption is None else caption[number]).log_to(
                run, name, run.step if step is None else step
            )

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Make safe what belongs to a checkpoint; note as tags where the best and the last one are, and the score."""
        self.experiment.flush()
        score = checkpoint_callback.best_model_score
        told = {
            "lightning/best_checkpoint": checkpoint_callback.best_model_path,
            "lightning/last_checkpoint": getattr(checkpoint_callback, "last_model_path", ""),
            "lightning/best_score": "" if score is None else f"{float(score):g}",
        }
        self.experiment.set_tags({name: str(value) for name, value in told.items() if value})

    @rank_zero_only
    def save(self) -> None:
        """Do nothing: what is logged is on its way, and safe when the program is killed."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Bring what was logged to the hub; the run stays open for what the program does next."""
        del status
        if self._adopted is not None and not self._adopted.is_closed:
            self._adopted.run.flush()

    def goes_on_after(self, step: int) -> None:
        """Leave out what was logged after a step, and what comes again at it; for process 0."""
        adopted = self.adopted
        adopted.resumes_at(step + 1)
        self._told_at = step, frozenset(name for name, seen in adopted.run.summary().items() if seen["step"] == step)


class ResumeRun(Callback):
    """Resumes the run where `trainer.fit(ckpt_path=...)` resumes: what was logged after that is superseded.

    Without a `ckpt_path`, or where there is no checkpoint yet, metrics replace their older points as they are logged.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make sure that there is a logger to tell.

        Raises:
            ConfigurationError: The trainer has no `RunLogger`.
        """
        del pl_module, stage
        if not _run_loggers(trainer):
            kinds = [type(logger).__name__ for logger in trainer.loggers]
            hint = did_you_mean("RunLogger", kinds)
            raise ConfigurationError(f"ResumeRun: the trainer's loggers are {kinds}; give it a RunLogger{hint}")

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the loggers from which step the training resumes."""
        del pl_module
        if trainer.ckpt_path is None:
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001 - docs/private_apis.md
        for logger in _run_loggers(trainer):
            logger.goes_on_after(step)


def _run_loggers(trainer: Trainer) -> list[RunLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]


def _as_dicts(params: Any) -> Any:
    """Return dicts in place of the namespaces among parameters."""
    held = vars(params) if isinstance(params, Namespace) else params
    return {key: _as_dicts(value) for key, value in held.items()} if isinstance(held, Mapping) else held
