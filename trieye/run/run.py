"""Run: the user-facing handle of one training: log, save, restore, iterate over steps."""

import atexit
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, RunClosedError, RunInterrupted, noted
from trieye.files.run_files import RunFiles
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking, texts_of
from trieye.process.progress import say
from trieye.process.signals import LeaveOnSignal, StopSignals, is_by_signal
from trieye.run.attempt import OpenAttempt, naming_changes
from trieye.run.flusher import Flusher
from trieye.run.recorder import FORKED, Recorder, RunClient
from trieye.run.rehearsal import exit_if_dry_run, refuse_if_dry_run
from trieye.run.saves import SaveHandle, objective_of, step_to_save
from trieye.run.steps import is_save_due, key_metrics, steps, with_stop_note
from trieye.sinks.base import Sink
from trieye.sinks.fan_out import check_own
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.fitting import check_restorable, needed_key_map, restore_objects
from trieye.snapshot.generators import capture_all, restore_all
from trieye.snapshot.parts import SavedParts

if TYPE_CHECKING:
    from trieye.replay import ReplayBuffer


class Run(Recorder):
    """One training with one directory and one identity across restarts.

    Use it as a context manager: every exit flushes and closes the run and records how it ended in its status.

        with trieye.Run(config) as run:
            run.restore(agent=agent)
            for step in run.steps(10_000):
                run.log(agent.update())
                if run.save_due:
                    run.save(agent=agent)

    A run pickles as a `RunClient`, so a Ray task or actor receives a client.

    Args:
        config: The config of the run.
        group: The sweep of the run; runs of one sweep never resume each other. None: the current Hydra sweep, if any.
        sinks: Additional sinks that receive every point (`trieye.sinks.base.Sink`).

    Attributes:
        config: The config of the run.
        name: Name of the run.
        dir: Directory of the run.
        step: The current step, or the last completed one.
        resumed: Whether `restore` loaded a checkpoint.
        resumed_from_another: Whether the loaded checkpoint belongs to another run.
        restored: Content of the loaded checkpoint by the names passed to `save`; restored objects may share its arrays.
        saved_step: Step of the last started save or of the restored checkpoint; -1 before the first.
        last_step: The argument of `steps`; None without a limit.
        stop_requested: Whether a signal requested a stop.
        stop_requested_at: Time of the request, as `time.monotonic`; None before it.
        exit_code: Exit code for the program after a stop request.

    Raises:
        ConfigurationError: A member of `sinks` is not a sink, or its name is already in use.
    """

    def __init__(self, config: TrieyeConfig, *, group: str | None = None, sinks: Iterable[Sink] = ()) -> None:
        super().__init__(config.run_name, config.runtime.max_pending_events)
        self.config, self._group, self._sinks = config, group, check_own(sinks)
        self._reset()
        self.dir = RunFiles(config.trieye.persistence).run_base_dir
        self._attempt: OpenAttempt | None = None
        self._closed_because = "is not open; use `with trieye.Run(config) as run:`"
        self._replay: ReplayBuffer | None = None
        self._begin_lock = threading.RLock()  # several threads may begin the attempt with their first values
        self._on_signal = LeaveOnSignal(
            f"leaving run {self.name!r}; restart with run_name={self.name} to resume it",
            requeue_exit_code=config.runtime.requeue_exit_code,
        )

    def _reset(self) -> None:
        self.step, self.saved_step, self.exit_code = 0, -1, 130
        self.resumed = self.resumed_from_another = self.stop_requested = False
        self.restored: Mapping[str, Any] = {}
        self.stop_requested_at: float | None = None
        self.last_step: int | None = None
        self.loop_signals: Sequence[StopSignals] = ()

    # lifecycle

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attempt is not None and error is not None and not isinstance(error, RunInterrupted | SystemExit):
            self._attempt.keep_output(with_stop_note(self, error))
        if isinstance(error, RunInterrupted | KeyboardInterrupt):
            is_second = self.stop_requested and getattr(error, "is_told", True)  # `steps` raises with `is_told=False`
            self._close_after(error, "KILLED", at_once=is_second)
            if isinstance(error, RunInterrupted):
                error.tell(say)
        elif kind is None or (isinstance(error, SystemExit) and not error.code):
            self.close("FINISHED")
        elif isinstance(error, SystemExit) and (self.was_interrupted or self.stop_requested or is_by_signal(error)):
            self._close_after(error, "KILLED")
        else:
            if self._attempt is not None and error is not None:
                self._attempt.keep_traceback(error)
            self._close_after(error, "FAILED")

    def open(self) -> Self:
        """Lock the run, count a new attempt and start the hub; a no-op if the run is open.

        If a checkpoint may have to be restored, counting the attempt and changing the run directory are deferred until
        `restore` succeeds, or until the first other use of the run, such as `log`.

        If the main thread opens the run, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU raise `RunInterrupted` from now on, so
        that the run is closed, unless the program has its own handlers, or `nohup` ignores SIGHUP.

        Raises:
            ConfigurationError: The directory is unusable, or a sink of `sinks.required` does not exist.
            RunLockedError: Another process is writing to the run.
        """
        if self._attempt is None:
            self._reset()  # the run may have been open before
            self._on_signal.take()
            try:
                self._attempt = OpenAttempt(self.config, self._group, self._sinks)
                atexit.register(self._close_at_exit)
                if not self._attempt.may_restore:
                    self._begun_attempt()
            except BaseException as error:
                self._close_after(error, "FAILED")
                self._on_signal.give_back()
                raise
        return self

    def close(self, status: RunStatus = "FINISHED", *, at_once: bool = False) -> None:
        """Send pending values, wait for saves, close the sinks and record how the run ended.

        Args:
            status: How the run ended.
            at_once: Stop after 2 s; the next attempt does the rest, as after a kill.

        Raises:
            CheckpointError: A save failed and was not reported yet; the run is recorded as failed.
            ProcessingError: The hub or a sink of `sinks.required` lacks metrics; the run is recorded as failed.
            RunInterrupted: A signal arrived during the call.
        """
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            self._detach_flusher()
            atexit.unregister(self._close_at_exit)
            try:
                attempt.close(status, at_once=at_once)
            finally:
                for signals in reversed(self.loop_signals):  # iterators that are still referenced keep loops open
                    signals.give_back()
                self._on_signal.give_back()

    def _drop_in_fork(self) -> None:
        if self._flusher is not None:  # in a forked child, which must not close the run of its parent
            self._detach_flusher()
            self._attempt, self._closed_because = None, FORKED.format(os.getppid())
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        say(f"run {self.name!r} was not closed before the program ended; use `with trieye.Run(config) as run:`")
        self.close("KILLED")

    def _close_after(self, error: BaseException | None, status: RunStatus, *, at_once: bool = False) -> None:
        with noted(error, f"closing run {self.name!r}"):
            self.close(status, at_once=at_once)

    @property
    def attempt(self) -> int:
        """Number of this attempt; 1 for the first start of the run."""
        return self._current_attempt().number

    def __repr__(self) -> str:
        state = "closed" if self._attempt is None else f"open, attempt {self.attempt}"
        return f"<trieye.Run {self.name!r} at step {self.step}, {state}, in {self.dir}>"

    # metrics

    def client(self) -> RunClient:
        """Return a client for logging to this run from threads, Ray tasks and actors.

        Raises:
            RunClosedError: The run is not open.
        """
        attempt = self._begun_attempt()
        return RunClient(attempt.hub, self.config.runtime, flusher=attempt.flusher)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.client().__reduce__()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters such as hyperparameters; nested dicts become dotted names, secrets become `***`."""
        self._begun_attempt().hub.ask(Tracking.log_params, texts_of(params))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run; nested dicts become dotted names, secrets become `***`."""
        self._begun_attempt().hub.ask(Tracking.set_tags, texts_of(tags))

    def log_artifact(self, path: str | Path, artifact_path: str | Path | None = None) -> None:
        """Store a file or directory with the run; its current content is copied before this returns.

        Args:
            path: The file or directory.
            artifact_path: Folder below the artifacts of the run; None stores it at their root.

        Raises:
            ConfigurationError: `path` does not exist.
            SerializationError: `path` cannot be read, or the disk has no room for the copy.
        """
        if not (file_path := Path(os.path.abspath(path))).exists():  # noqa: PTH100 - does not resolve links
            raise ConfigurationError(f"log_artifact({str(path)!r}): no such file or directory")
        folder = None if artifact_path is None else str(artifact_path)
        self._begun_attempt().hub.ask(Tracking.log_artifact, file_path, folder)

    def flush(self) -> None:
        """Wait until the hub has accepted all values logged so far and logged the windows that end at this step.

        Raises:
            ProcessingError: The hub accepts no values (they stay queued), or a sink of `sinks.required` fails.
        """
        attempt = self._begun_attempt()
        attempt.flusher.flush()
        attempt.hub.ask(HubLogic.flush, self.step)
        attempt.check_sinks()

    def best(self, name: str | None = None, mode: Literal["max", "min"] | None = None) -> float:
        """Return the best point of a metric over all attempts, as if the run ended now; open windows stay open.

        Args:
            name: Name of the metric; None selects `loop.objective`.
            mode: `max` or `min`; None selects `loop.mode`, which is allowed for `loop.objective` only.

        Raises:
            ConfigurationError: The metric has no points, or `mode` is invalid or missing.
        """
        if mode not in {"max", "min", None}:
            raise ConfigurationError(f"best({name!r}, mode={mode!r}): mode must be 'max' or 'min'")
        loop, attempt = self.config.loop, self._begun_attempt()
        metric = loop.objective if name is None else name
        summary = attempt.flushed().ask(HubLogic.current_summary)
        attempt.check_sinks()
        if metric not in summary:
            choices = f"{did_you_mean(metric, summary)} (metrics with points: {', '.join(sorted(summary)) or 'none'})"
            raise ConfigurationError(f"best({metric!r}): this metric has no points yet{choices}")
        if mode is None and metric != loop.objective:
            raise ConfigurationError(
                f"best({metric!r}): pass mode='min' or mode='max'; loop.mode={loop.mode} applies only to "
                f"loop.objective={loop.objective}"
            )
        return summary[metric][mode or loop.mode]

    def latest(self) -> Mapping[str, float]:
        """Return the last value of each name that this process has sent; newer values may still be queued."""
        return {} if self._flusher is None else self._flusher.latest

    def mlflow_run_id(self, timeout_s: float = 30.0) -> str | None:
        """Return the id of the MLflow run; None if MLflow is disabled or does not answer within `timeout_s`."""
        return self._begun_attempt().hub.ask(Tracking.wait_mlflow_run_id, timeout_s=timeout_s)

    def health(self) -> dict[str, Any]:
        """Return the state of sinks, journal and process as plain data.

        Keys include `sinks`, a list of {"name", "error", "backlog", "lag_s", "refused"} with `error` None while the
        sink works; `dropped`, {reason: events}; `late_by_metric`, {metric: events}; and `save_failures`, a count.
        """
        return self._begun_attempt().hub.ask(HubStatus.health)

    # state

    @property
    def replay(self) -> "ReplayBuffer":
        """The replay buffer built from `config.replay`; saved and restored with the run."""
        if self._replay is None:
            from trieye.replay import ReplayBuffer

            self._replay = ReplayBuffer.from_config(self.config.replay, seed=self.config.seed)
        return self._replay

    @property
    def save_due(self) -> bool:
        """Whether to save at the end of this step: the interval has passed, `steps` ends, or a signal requested a stop.

        It stays true until `save` is called, so a loop may wait for the end of an episode.
        """
        return is_save_due(self)

    def save(
        self, *, step: int | None = None, objective: float | Literal["later"] | None = None, **objects: Any
    ) -> SaveHandle:
        """Save a checkpoint for `restore`; returns after one copy in memory, and a background thread writes it.

        The checkpoint includes the step, the random generators of Python, NumPy and torch, and the replay buffer, of
        which only the rows added since the last checkpoint are copied and written.

        Args:
            step: The completed step, for a loop that does not use `steps`; it names the checkpoint, and `restore` sets
                `run.step` to it. None selects `run.step`, as in `log`.
            objective: Value of `loop.objective` for this state; `keep_best` and `best` rank checkpoints by it in the
                direction of `loop.mode`. None: not measured for this state. `later`: still being measured; the
                checkpoint is retained until `rate` sets the value.
            **objects: Objects with `state_dict()`, random generators, environments (see `EnvState`), or plain data,
                arrays and tensors.

        Returns:
            A handle that completes once the checkpoint is on disk; `save`, `restore` and `close` also report a failure.

        Raises:
            CheckpointError: An earlier save failed; this one was started nevertheless.
            ProcessingError: A sink of `sinks.required` fails; this save was started nevertheless.
            ConfigurationError: `objects` has a `replay` other than `run.replay`, or step or objective is invalid.
            TypeError: The step is not an integer.
        """
        refuse_if_dry_run("run.save()")
        attempt = self._begun_attempt()
        saves, step, is_rated = attempt.saves, step_to_save(self._step(step)), objective is not None
        quality = objective_of("save", objective)
        saves.make_room(rated=is_rated)
        replay = self._replay if self.config.persistence.save_buffer else None
        if replay is not None and objects.setdefault("replay", replay) is not replay:
            raise ConfigurationError("save(replay=...): the name 'replay' belongs to run.replay; choose another name")
        content = {"objects": objects, "rng": capture_all(), "step": step, "config": attempt.recorded_config}
        state = encode(content, known_parts=saves.known_parts)
        hub = attempt.flushed()
        hub_state = hub.ask(HubLogic.packed_state, step)
        metadata = {"objective": quality, "mode": self.config.loop.mode, "config_hash": attempt.config_hash}
        metadata |= {"seed": self.config.seed} | ({"is_awaited": True} if isinstance(objective, str) else {})
        begin = partial(hub.begin, HubLogic.save_checkpoint, step, state, metadata, hub_state)
        handle = saves.add(step, begin, parts=state.parts.keys(), rated=is_rated)
        self.saved_step = step
        saves.report(wait=False, exclude=handle)
        attempt.check_sinks()
        return handle

    def rate(self, step: int, objective: float | None) -> "Future[None]":
        """Set the objective of a checkpoint that was saved with `objective="later"`.

        Args:
            step: Step of the checkpoint.
            objective: Value of the objective; None if it was not measured after all.

        Returns:
            A future that completes once the value is stored, with `CheckpointError` if the checkpoint does not exist.
        """
        attempt, value = self._begun_attempt(), objective_of("rate", objective)
        return attempt.saves.after(step, partial(attempt.hub.begin, HubLogic.rate_checkpoint, step, value))

    def restore(
        self,
        *,
        strict: bool = True,
        key_map: Mapping[str, str] | None = None,
        from_checkpoint: Path | None = None,
        **objects: Any,
    ) -> bool:
        """Restore objects, step, random generators and replay from a checkpoint of `save`; a no-op on a fresh run.

        Args:
            strict: Refuse a checkpoint that does not match the objects. False, as for a warm start, restores the keys
                that match in name and shape, and an optimizer only if its parameters match; one message lists missing,
                unexpected and differently shaped keys.
            key_map: Renamed keys of the checkpoint, `{"old.prefix": "new.prefix"}`. A key is the name passed to `save`
                followed by the path to an array: `model.encoder.0.weight`. Own checkpoints may have the new keys.
            from_checkpoint: Directory of a checkpoint to restore even if the run has newer ones: a copy of one of this
                run, or one of another run, which contributes its state but not its curves. None: by the config.
            **objects: Objects with `load_state_dict()`, random generators, environments, and dicts, which are filled
                in place, under the names passed to `save`. The checkpoint must have all keys of a dict, unless `strict`
                is False; an empty dict accepts any keys. None fits a saved None, as of an unused scheduler.

        Returns:
            Whether a checkpoint was restored.

        Raises:
            CheckpointError: A save failed, no checkpoint is intact, or the checkpoint lacks an object, does not fit
                one, or is refused by `damaged_replay`. The objects are unchanged, except that an environment or an
                object without `state_dict()` may have loaded part of its state.
            ConfigurationError: An object cannot load a state, or `key_map` names a key that does not exist.
        """
        check_restorable(objects)  # also in a fresh run, before hours of training that could not be resumed
        (attempt := self._current_attempt()).saves.report(wait=True)  # a save in progress may be the one to restore
        checkpoint = attempt.find(from_checkpoint)
        if checkpoint is None or checkpoint.state is None:
            self._begun_attempt().flushed().ask(HubLogic.resume, None)
            if attempt.number > 1:
                say(f"run {self.name!r} was started before and left no checkpoint: it restarts at step 0")
            return False
        origin, state = checkpoint.origin, decode(checkpoint.state, on_damage=self.config.persistence.damaged_replay)
        saved_objects = state["objects"]
        has_run_replay = isinstance(saved_objects.get("replay"), SavedParts) and self.config.persistence.save_buffer
        if has_run_replay and "replay" not in objects:
            objects["replay"] = self.replay
        source = f"checkpoint {origin['path']}"
        with naming_changes(state.get("config") or {}, self.config):
            key_map = needed_key_map(saved_objects, objects, key_map) if origin["is_own"] else key_map
            mismatch = restore_objects(saved_objects, objects, source=source, strict=strict, key_map=key_map)
        if mismatch:
            say(f"run {self.name!r}: {source} fits in part: {mismatch}")
        exit_if_dry_run("restore", self.config, misfit=str(mismatch))
        attempt = self._begun_attempt()  # the run directory changes from this line on
        attempt.flushed().ask(HubLogic.resume, replace(checkpoint, state=None))
        attempt.saves.restored(origin["parts"])
        self.restored, self.resumed, self.resumed_from_another = saved_objects, True, not origin["is_own"]
        if origin["is_own"] or origin["seed"] in {None, self.config.seed}:
            restore_all(state["rng"])  # a fork with another seed must not repeat the random numbers of its parent
        self.step = self.saved_step = state["step"]
        say(f"{origin['reason']}; it continues at step {self.step}")
        return True

    # stepping

    def steps(self, total: int | None) -> Iterator[int]:
        """Yield the remaining step numbers up to `total`, the first being 1, and show a progress bar.

        The first signal (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU) lets the current step finish and sets `save_due`;
        the same signal again, or Ctrl-C, stops immediately. After Ctrl-C, the next call in an open run continues.

        Args:
            total: The last step; None yields steps until the loop is left.

        Raises:
            RunInterrupted: A signal requested a stop.
        """
        refuse_if_dry_run("run.steps()")
        return steps(self, total)

    def key_metrics(self) -> Mapping[str, float]:
        """Return the latest values for the progress bar, the objective first."""
        return key_metrics(dict(self.latest()), self.config.loop.objective)

    def supersede(self, step: int | None) -> bool:
        """Declare where a program that restores its own state resumes; return whether data is superseded.

        Points and media from that step on are superseded, except in MLflow, which cannot delete differing points.

        Args:
            step: The first repeated step; None if it is unknown, as in an attempt that restores nothing.
        """
        return self._begun_attempt().flushed().ask(HubLogic.supersede, step)

    def note_stepless(self, metric: str) -> None:
        """Declare that the program logs a metric without a step: its points at step 0 replace no older points."""
        self._begun_attempt().hub.ask(Ledger.note_stepless, metric)

    def summary(self) -> dict[str, MetricSummary]:
        """Close the open windows, and return last, min, max and step of each metric over all attempts."""
        return self._begun_attempt().flushed().ask(HubLogic.final_summary)

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal requested that this process leave the run."""
        return self._on_signal.asked_at > -math.inf

    def wait_for_saves(self) -> None:
        """Wait until all saves are safe on disk; raises `CheckpointError` if one failed."""
        self._begun_attempt().saves.report(wait=True)

    def _begun_attempt(self) -> OpenAttempt:
        """Return the attempt, and begin it if that has not happened."""
        attempt = self._current_attempt()
        with self._begin_lock:
            if self._flusher is None:
                attempt.begin()
                self._use(attempt.flusher, self._drop_in_fork)
                atexit.unregister(self._close_at_exit)
                atexit.register(self._close_at_exit)  # exit handlers run in reverse order: this before the flusher's
                attempt.check_sinks()
        return attempt

    def _current_attempt(self) -> OpenAttempt:
        """Return the attempt, which may not have begun."""
        if self._attempt is not None and self._attempt.pid != os.getpid():
            self._attempt, self._closed_because = None, FORKED.format(os.getppid())
        if self._attempt is None:
            raise RunClosedError(f"run {self.name!r} {self._closed_because}")
        return self._attempt

    def _open_flusher(self) -> Flusher:
        self._begun_attempt()
        return super()._open_flusher()
