"""Models and callbacks for the tests of the Lightning logger; importing them takes 7 s, so only those tests do it."""

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from torch.utils.data import DataLoader

from trieye.integrations.lightning import ResumeRun, RunLogger

__all__ = ["CSVLogger", "FailsAtStep", "Line", "Logger", "ModelCheckpoint", "ResumeRun", "RunLogger", "data", "trainer"]


class Line(LightningModule):
    def __init__(self, rate=0.1, hidden=4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.layer(batch).square().mean())

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.rate)


class FailsAtStep(Callback):
    """Raises after a number of batches."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.at:
            raise ZeroDivisionError("it fell over")


def data():
    return DataLoader(torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), batch_size=4)


def trainer(logger, *callbacks, epochs=3, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}
    options = {"enable_checkpointing": bool(callbacks), **quiet, **options}
    return Trainer(logger=logger, callbacks=list(callbacks), max_epochs=epochs, **options)
