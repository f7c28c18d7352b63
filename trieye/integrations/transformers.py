"""Transformers of Hugging Face: one callback makes a training a run, which goes on with `resume_from_checkpoint`."""

from numbers import Real
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import rewrite_logs

from trieye.integrations.opening import AdoptedRun, run_dir_of, safe_name


class RunCallback(TrainerCallback):  # type: ignore[misc]  # types are checked without the library
    """Logs what `Trainer` logs, in process 0, under the names that its callback for TensorBoard has.

    `trainer.train(resume_from_checkpoint=True)` goes on in the same run; what was logged after the checkpoint is
    superseded. The run ends with the program, so that `evaluate` after `train` belongs to it.

    Args:
        name: Name of the run, a ConfigurationError if it cannot be one; a trial of a search is `name-<hp_name>`.
        app: Name of the app; None: as the environment says, or that of the working directory.
    """

    def __init__(self, name: str, *, app: str | None = None) -> None:
        run_dir_of(name, app=app)  # says now if there can be none
        self._name, self._app = name, app
        self._adopted: AdoptedRun | None = None
        self._told: dict[str, tuple[int, Any]] = {}

    def _open(self, state: Any) -> AdoptedRun:
        name = f"{self._name}-{safe_name(state.trial_name)}" if state.trial_name else self._name
        if self._adopted is None or self._adopted.is_closed or self._adopted.run.name != name:
            self._adopted = AdoptedRun.join(name, app=self._app)
        return self._adopted

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Record the arguments, and leave out what was logged after the checkpoint with which the training goes on."""
        if state.is_world_process_zero:
            step, is_first = state.global_step, self._adopted is None
            adopted = self._open(state)
            adopted.run.log_params(args.to_sanitized_dict())
            adopted.resumes_at(0 if is_first and not step else step + 1)
            self._told = {name: (seen["step"], None) for name, seen in adopted.run.summary().items()}

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any, **_more: Any) -> None:
        """Log numbers and texts, but for what was told at this step before, such as the epoch."""
        step = state.global_step
        for name, value in rewrite_logs(logs).items() if state.is_world_process_zero else ():
            if self._told.get(name) not in ((step, None), (step, value)):
                self._told[name], run = (step, value), self._open(state).run
                run.log(name, value, step=step) if isinstance(value, Real) else run.log_text(name, str(value), step)

    def on_save(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Make safe what belongs to the checkpoint, and note the best one as a tag of the run."""
        if state.is_world_process_zero:
            self._open(state).run.flush()
            if state.best_model_checkpoint:
                self._open(state).run.set_tags({"transformers/best_checkpoint": state.best_model_checkpoint})
