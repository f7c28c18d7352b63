"""Hugging Face Transformers callback: logs a training to a run, which `resume_from_checkpoint` resumes."""

from numbers import Real
from typing import Any

from trieye.config.packages import explaining
from trieye.integrations.opening import AdoptedRun, run_dir_of, safe_name

with explaining(__name__):
    from transformers import TrainerCallback
    from transformers.integrations import rewrite_logs


class RunCallback(TrainerCallback):  # type: ignore[misc]  # types are checked without the library
    """Logs the values of `Trainer` in rank 0, under the names of its TensorBoard callback.

    `trainer.train(resume_from_checkpoint=True)` resumes the run; points after the checkpoint are superseded. The run
    closes at program exit, so `evaluate` after `train` logs to the same run.

    Args:
        name: Name of the run; an invalid name raises ConfigurationError. Search trials are named `name-<hp_name>`.
        app: Name of the app; None: `TRIEYE_APP`, or the name of the working directory.
    """

    def __init__(self, name: str, *, app: str | None = None) -> None:
        run_dir_of(name, app=app)  # validates the name early
        self._name, self._app = name, app
        self._adopted: AdoptedRun | None = None
        self._last_logged: dict[str, tuple[int, Any]] = {}

    def _open(self, state: Any) -> AdoptedRun:
        name = f"{self._name}-{safe_name(state.trial_name)}" if state.trial_name else self._name
        if self._adopted is None or self._adopted.is_closed or self._adopted.run.name != name:
            self._adopted = AdoptedRun.join(name, app=self._app)
            self._adopted.users.add(self)
        return self._adopted

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Record the arguments; after a resume, supersede the points after the checkpoint."""
        if state.is_world_process_zero:
            step, is_first = state.global_step, self._adopted is None
            adopted_run = self._open(state)
            adopted_run.run.log_params(args.to_sanitized_dict())
            adopted_run.resumes_at(0 if is_first and not step else step + 1)
            self._last_logged = {name: (metric["step"], None) for name, metric in adopted_run.run.summary().items()}

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any, **_more: Any) -> None:
        """Log numbers and texts, except values already logged at this step, such as the epoch."""
        step = state.global_step
        for name, value in rewrite_logs(logs).items() if state.is_world_process_zero else ():
            if self._last_logged.get(name) not in ((step, None), (step, value)):
                self._last_logged[name], run = (step, value), self._open(state).run
                run.log(name, value, step=step) if isinstance(value, Real) else run.log_text(name, str(value), step)

    def on_save(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Flush the values before the checkpoint, and tag the run with the best checkpoint."""
        if state.is_world_process_zero:
            self._open(state).run.flush()
            if state.best_model_checkpoint:
                self._open(state).run.set_tags({"transformers/best_checkpoint": state.best_model_checkpoint})
