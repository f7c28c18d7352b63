"""Lightning adapter: `RunLogger` logs a training to a run; `ResumeRun` resumes it with `fit(ckpt_path=...)`."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.config.packages import explaining
from trieye.exceptions import ConfigurationError
from trieye.integrations.opening import AdoptedRun, run_dir_of
from trieye.integrations.wandb.media import Image, Images
from trieye.run.run import Run

with explaining(__name__):
    try:
        from lightning.fabric.loggers.logger import rank_zero_experiment
        from lightning.pytorch import Callback, LightningModule, Trainer
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities import rank_zero_only
    except ModuleNotFoundError:  # the older name of the package
        if not TYPE_CHECKING:
            from pytorch_lightning import Callback, LightningModule, Trainer
            from pytorch_lightning.loggers.logger import Logger, rank_zero_experiment
            from pytorch_lightning.utilities import rank_zero_only


class RunLogger(Logger):
    """Logs to a run, which rank 0 opens; the run closes at program exit, so `fit` and `test` share it.

    Lightning's files, such as its checkpoints, are in `lightning/` in the run directory, at the same path in every
    attempt: with `ModelCheckpoint(save_last=True)` and `ResumeRun()`, `fit(ckpt_path="last")` resumes the training.

    Args:
        name: Name of the run; a later start with the same name resumes it.
        root: Directory of all runs; None: `TRIEYE_ROOT`, or `.trieye_data`.
        app: Name of the app; None: `TRIEYE_APP`, or the name of the working directory.
        prefix: Prefix of metric names, joined with a `/`.
        tags: Tags of the run.

    Raises:
        ConfigurationError: The name is no valid run name.
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
        self._logged_at: tuple[int, frozenset[str]] = (-1, frozenset())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_adopted": None}  # an unpickled copy reopens the run if its process is rank 0

    @property
    def adopted(self) -> AdoptedRun:
        """Return the run, opened if necessary; rank 0 only."""
        if self._adopted is None or self._adopted.is_closed:
            self._adopted = AdoptedRun.join(self._run_name, app=self._app, root=self._root)
            self._adopted.users.add(self)
            if self._tags:
                self._adopted.run.set_tags(self._tags)
        return self._adopted

    @property
    @rank_zero_experiment
    def experiment(self) -> Run:
        """Return the `trieye.Run`; in ranks other than 0 a dummy that accepts any call."""
        return self.adopted.run

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self._run_name

    @property
    def version(self) -> str:
        """Return the name of the directory of Lightning's files, which all attempts share."""
        return "lightning"

    @property
    def save_dir(self) -> str:
        """Return the directory that contains the runs of the app."""
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
        """Log values at a step; None: the last step."""
        run, prefix = self.adopted.run, f"{self._prefix}/" if self._prefix else ""
        current_step = run.step if step is None else step
        logged_step, logged_names = self._logged_at
        values = {f"{prefix}{name}": value for name, value in metrics.items()}
        run.log(
            {name: value for name, value in values.items() if current_step != logged_step or name not in logged_names},
            step=current_step,
        )
        run.step = max(run.step, current_step)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace | None, *args: Any, **kwargs: Any) -> None:
        """Record hyperparameters; values other than plain data are recorded as text."""
        del args, kwargs
        self.experiment.log_params(_as_dicts(params or {}))

    @rank_zero_only
    def log_image(
        self, key: str, images: Sequence[Any], step: int | None = None, caption: Sequence[str] | None = None
    ) -> None:
        """Log images (arrays, tensors `[3, height, width]`, PIL images, figures or files), each with a caption.

        Raises:
            TypeError: `images` is no list.
            ConfigurationError: The numbers of captions and images differ.
        """
        if not isinstance(images, list | tuple):
            raise TypeError(f"log_image({key!r}): images is a {type(images).__name__}; expected a list of images")
        if caption is not None and len(caption) != len(images):
            raise ConfigurationError(f"log_image({key!r}): there are {len(images)} images and {len(caption)} captions")
        run, captions = self.adopted.run, [""] * len(images) if caption is None else caption
        media = Images([Image(image, caption=text) for image, text in zip(images, captions, strict=True)])
        media.log_to(run, key, run.step if step is None else step)

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Flush the values before a checkpoint; tag the run with the best and last checkpoint paths and the score."""
        self.experiment.flush()
        score = checkpoint_callback.best_model_score
        tags = {
            "lightning/best_checkpoint": checkpoint_callback.best_model_path,
            "lightning/last_checkpoint": getattr(checkpoint_callback, "last_model_path", ""),
            "lightning/best_score": "" if score is None else f"{float(score):g}",
        }
        self.experiment.set_tags({name: str(value) for name, value in tags.items() if value})

    @rank_zero_only
    def save(self) -> None:
        """Do nothing: logged values are sent without it and survive a kill."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Flush logged values to the hub; the run stays open for later calls such as `test`."""
        del status
        if self._adopted is not None and not self._adopted.is_closed:
            self._adopted.run.flush()

    def resume_after(self, step: int) -> None:
        """Supersede points after a step, and skip metrics logged again at that step; rank 0 only."""
        adopted = self.adopted
        adopted.resumes_at(step + 1)
        self._logged_at = step, frozenset(name for name, seen in adopted.run.summary().items() if seen["step"] == step)


class ResumeRun(Callback):
    """Resumes the run at the step of `trainer.fit(ckpt_path=...)`; later points are superseded.

    Without a `ckpt_path`, or before the first checkpoint, newly logged points replace older ones of the same metric.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check that the trainer has a `RunLogger`.

        Raises:
            ConfigurationError: The trainer has no `RunLogger`.
        """
        del pl_module, stage
        if not _run_loggers(trainer):
            kinds = [type(logger).__name__ for logger in trainer.loggers]
            raise ConfigurationError(f"ResumeRun: the trainer's loggers are {kinds}; give it a RunLogger")

    @rank_zero_only
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resume the loggers after the restored step."""
        del pl_module
        if trainer.ckpt_path is None:
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001 - docs/private_apis.md
        for logger in _run_loggers(trainer):
            logger.resume_after(step)


def _run_loggers(trainer: Trainer) -> list[RunLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]


def _as_dicts(params: Any) -> Any:
    """Convert namespaces among the parameters to dicts."""
    items = vars(params) if isinstance(params, Namespace) else params
    return {key: _as_dicts(value) for key, value in items.items()} if isinstance(items, Mapping) else items
