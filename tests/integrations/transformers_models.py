"""Models and callbacks for the tests of the Trainer's callback; importing them takes seconds, so they do it on use."""

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from trieye.integrations.transformers import RunCallback

__all__ = ["FailsAtStep", "Line", "RunCallback", "get_last_checkpoint", "trainer"]


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels=None):
        predicted = self.layer(x).squeeze(-1)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


class FailsAtStep(transformers.TrainerCallback):
    """Raises after a step."""

    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **more):
        if state.global_step == self.at:
            raise ZeroDivisionError("it fell over")


def trainer(name, *callbacks, **options):
    values = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    data = [{"x": value, "labels": value.sum()} for value in values]
    args = transformers.TrainingArguments(
        "out",
        **{"max_steps": 8, "per_device_train_batch_size": 4, "logging_steps": 1, "save_steps": 4, **options},
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    hf_trainer = transformers.Trainer(
        Line(), args, train_dataset=data, eval_dataset=data[:8], callbacks=[RunCallback(name), *callbacks]
    )
    hf_trainer.remove_callback(transformers.PrinterCallback)
    return hf_trainer
