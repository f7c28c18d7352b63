"""Run: the object that user code holds."""

import atexit
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import leaves
from trieye.config.redaction import redacted
from trieye.exceptions import ConfigurationError, RunClosedError, RunInterrupted, noted
from trieye.files.run_files import RunFiles
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.hub.logic import HubLogic
from trieye.hub.tracking import Tracking
from trieye.process.progress import say
from trieye.process.signals import LeaveOnSignal
from trieye.run.attempt import Attempt, naming_changes
from trieye.run.flusher import Flusher
from trieye.run.recorder import Recorder, RunClient
from trieye.run.rehearsal import end_if_rehearsed, refuse_if_rehearsed
from trieye.run.saves import SaveHandle, step_to_save
from trieye.run.steps import key_metrics, steps
from trieye.sinks.base import Sink
from trieye.sinks.fan_out import check_own
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.fitting import restore_objects
from trieye.snapshot.generators import capture_all, restore_all
from trieye.snapshot.parts import SavedParts

if TYPE_CHECKING:
    from trieye.replay import ReplayBuffer


class Run(Recorder):
    """One training with one directory and one identity, across restarts.

    Use it as a context manager: it is flushed and closed on every way out, and its status says which one it was.

        with trieye.Run(config) as run:
            run.restore(agent=agent)
            for step in run.steps(10_000):
                run.log(agent.update())
                if run.save_due:
                    run.save(agent=agent)

    Sent to a Ray task or actor it arrives as a `RunClient`.

    Args:
        config: The config of the run.
        group: The sweep that it belongs to, whose members never resume each other; None: that of Hydra, if any.
        sinks: Sinks of one's own, besides those of the config, which get every point (`trieye.sinks.base.Sink`).

    Attributes:
        config: The config of the run.
        name: Its name.
        dir: Its directory.
        step: The step that is under way, or the last one that is complete.
        resumed: Whether `restore` found a state.
        resumed_from_another: Whether that state is of another run.
        restored: What `save` was given, by name, as `restore` found it: the states of objects, and plain data.
        saved_step: The last step that was handed over to be saved, or restored; -1 before the first.
        stop_requested: Whether a signal asked the run to stop.
        stop_requested_at: When it did, as `time.monotonic`; None before.
        exit_code: What the program should exit with then.

    Raises:
        ConfigurationError: One of `sinks` is no sink, or its name is taken.
    """

    def __init__(self, config: TrieyeConfig, *, group: str | None = None, sinks: Sequence[Sink] = ()) -> None:
        check_own(sinks)
        super().__init__(config.run_name, config.runtime.max_pending_events)
        self.config = config
        self.resumed = self.resumed_from_another = False
        self.restored: Mapping[str, Any] = {}
        self.stop_requested, self.exit_code, self.saved_step = False, 130, -1
        self.stop_requested_at: float | None = None
        self.dir = RunFiles(config.trieye.persistence).run_base_dir
        self._group, self._sinks = group, sinks
        self._attempt: Attempt | None = None
        self._closed_because = "is not open; use `with trieye.Run(config) as run:`"
        self._replay: ReplayBuffer | None = None
        self._opening = threading.RLock()  # several threads may be the first to log
        self._on_signal = LeaveOnSignal(
            f"leaving run {self.name!r}; start it again with run_name={self.name} to go on",
            requeue_exit_code=config.runtime.requeue_exit_code,
        )

    # life

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attempt is not None and error is not None and not isinstance(error, RunInterrupted | SystemExit):
            self._attempt.keep_output(error)
        if isinstance(error, RunInterrupted | KeyboardInterrupt):
            is_second = self.stop_requested and getattr(error, "is_told", True)  # what `steps` raises is not told yet
            self._close_after(error, "KILLED", at_once=is_second)
            if isinstance(error, RunInterrupted):
                error.tell(say)
        elif kind is None or (isinstance(error, SystemExit) and not error.code):
            self.close("FINISHED")
        elif issubclass(kind, SystemExit):
            self._close_after(error, "KILLED")
        else:
            if self._attempt is not None and error is not None:
                self._attempt.keep_traceback(error)
            self._close_after(error, "FAILED")

    def open(self) -> Self:
        """Take the run's lock, count a new attempt and start the hub; does nothing if it is open.

        If there may be a checkpoint to restore, the attempt is counted, and the run directory changed, after `restore`
        has succeeded, or at the first use of the run without it, such as `log`.

        In the main thread SIGTERM, SIGUSR1 and SIGXCPU end the program from now on by `RunInterrupted`, so that the run
        is closed, unless the program has handlers of its own.

        Raises:
            ConfigurationError: The directory cannot be used, or the run has no sink that `sinks.required` names.
            RunLockedError: Another process writes to the run.
        """
        if self._attempt is None:
            self._on_signal.take()
            try:
                self._attempt = Attempt(self.config, self._group, self._sinks)
                atexit.register(self._close_at_exit)
                if not self._attempt.may_restore:
                    self._opened()
            except BaseException as error:
                self._close_after(error, "FAILED")
                self._on_signal.give_back()
                raise
        return self

    def close(self, status: RunStatus = "FINISHED", *, at_once: bool = False) -> None:
        """Send what is left, wait for the saves, close the sinks and record how the run ended.

        Args:
            status: How it ended.
            at_once: Leave what takes longer than 2 s to the next attempt, as a kill does.

        Raises:
            CheckpointError: A save failed that was not reported yet; the run is recorded as failed.
            ProcessingError: The hub did not take all metrics; likewise.
            RunInterrupted: A signal came meanwhile.
        """
        if self._attempt is not None:
            attempt, self._attempt = self._attempt, None
            self._let_go()
            atexit.unregister(self._close_at_exit)
            try:
                attempt.close(status, at_once=at_once)
            finally:
                self._on_signal.give_back()

    def _forget(self) -> None:
        if self._flusher is not None:  # in a forked child, which has no right to close the run of its parent
            self._let_go()
            self._attempt, self._closed_because = None, f"is open in process {os.getppid()}, not in this fork of it"
            atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        say(f"run {self.name!r} was never closed; use `with trieye.Run(config) as run:`")
        self.close("KILLED")

    def _close_after(self, error: BaseException | None, status: RunStatus, *, at_once: bool = False) -> None:
        with noted(error, f"closing run {self.name!r}"):
            self.close(status, at_once=at_once)

    @property
    def attempt(self) -> int:
        """How often the run was started, this time included."""
        return self._entered().number

    def __repr__(self) -> str:
        state = "closed" if self._attempt is None else f"open, attempt {self.attempt}"
        return f"<trieye.Run {self.name!r} at step {self.step}, {state}, in {self.dir}>"

    # metrics

    def client(self) -> RunClient:
        """Return what threads, Ray tasks and actors hold to log to this run.

        Raises:
            RunClosedError: The run is not open.
        """
        attempt = self._opened()
        return RunClient(attempt.hub, self.config.runtime, flusher=attempt.flusher)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.client().__reduce__()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run, such as hyperparameters; nested dicts become dotted names, secrets `***`."""
        self._opened().hub.ask(Tracking.log_params, dict(leaves(redacted(params))))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._opened().hub.ask(Tracking.set_tags, redacted({str(key): str(value) for key, value in tags.items()}))

    def log_artifact(self, path: str | Path, artifact_path: str | None = None) -> None:
        """Keep a file or directory with the run, as it is now: a copy of it is made before this returns.

        Args:
            path: The file.
            artifact_path: Folder among the artifacts of the run; None: their root.

        Raises:
            ConfigurationError: There is no such file.
            SerializationError: It cannot be read, or there is no room for the copy.
        """
        file = Path(os.path.abspath(path))  # noqa: PTH100 - links stay
        if not file.exists():
            raise ConfigurationError(f"log_artifact({str(path)!r}): there is no such file")
        self._opened().hub.ask(Tracking.log_artifact, file, artifact_path)

    def flush(self) -> None:
        """Return when everything logged so far is accepted by the hub, and windows that end at this step are logged.

        Raises:
            ProcessingError: The hub takes nothing; the values are kept, and sent as soon as it does. Or a sink of
                `sinks.required` does not work.
        """
        attempt = self._opened()
        attempt.flusher.flush()
        attempt.hub.ask(HubLogic.flush, self.step)
        attempt.check_sinks()

    def best(self, name: str | None = None, mode: Literal["max", "min"] | None = None) -> float:
        """Return the best logged point of a metric, over all attempts; of the objective, what a sweep wants to know.

        Args:
            name: Name of the metric; None: the objective, `loop.objective`.
            mode: `max` or `min`; None: `loop.mode`, which says it of the objective only.

        Raises:
            ConfigurationError: Nothing was logged under that name, `mode` is something else, or it is missing.
        """
        if mode not in {"max", "min", None}:
            raise ConfigurationError(f"best({name!r}, mode={mode!r}): a mode is 'max' or 'min'")
        loop = self.config.loop
        metric = loop.objective if name is None else name
        self.flush()
        seen = self._opened().hub.ask(HubLogic.summary)
        if metric not in seen:
            raise ConfigurationError(
                f"best({metric!r}): no point of that metric yet{did_you_mean(metric, seen)} "
                f"(known: {', '.join(sorted(seen)) or 'none'})"
            )
        if mode is None and metric != loop.objective:
            raise ConfigurationError(
                f"best({metric!r}): say whether a lower or a higher value is better, by mode='min' or mode='max'; "
                f"loop.mode={loop.mode} says so of loop.objective={loop.objective}"
            )
        return seen[metric][mode or loop.mode]

    def latest(self) -> Mapping[str, float]:
        """Return the last value logged under each name, a moment ago."""
        return {} if self._flusher is None else self._flusher.latest

    def mlflow_run_id(self, timeout_s: float = 30.0) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or does not answer in time."""
        return self._opened().hub.ask(Tracking.wait_mlflow_run_id, timeout_s=timeout_s)

    def health(self) -> dict[str, Any]:
        """Return how the run is, as plain data.

        Among others `sinks`, a list of {"name", "error", "backlog", "lag_s", "refused"}, whose `error` is None while
        the sink works; `dropped`, {reason: events}; `late_by_metric`, {metric: events}; `save_failures`, a number.
        """
        return self._opened().hub.ask(HubLogic.health)

    # state

    @property
    def replay(self) -> "ReplayBuffer":
        """The replay buffer that the config describes; saved and restored with the run."""
        if self._replay is None:
            from trieye.replay import ReplayBuffer

            self._replay = ReplayBuffer.from_config(self.config.replay, seed=self.config.seed)
        return self._replay

    @property
    def save_due(self) -> bool:
        """Whether to save at the end of this step: it is its turn, or a signal asked the run to stop.

        It stays true until something is saved, so that a loop may wait for the end of an episode.
        """
        every = self.config.persistence.checkpoint_save_freq_steps
        return self.stop_requested or (every > 0 and self.step // every > max(self.saved_step, 0) // every)

    def save(
        self, *, step: int | None = None, objective: float | Literal["later"] | None = None, **objects: Any
    ) -> SaveHandle:
        """Save everything that `restore` brings back; returns after one copy in memory, a thread writes it.

        The step, the random generators of python, numpy and torch and the replay buffer are included. Of a buffer, only
        what is new since the last checkpoint is copied and written.

        Args:
            step: The step that is complete, in a loop that counts by itself and does not go through `steps`; it names
                the checkpoint, and `restore` sets `run.step` to it. None: `run.step`, as in `log`.
            objective: Value of the objective (`loop.objective`) in this state, by which `keep_best` and `best` choose
                among the checkpoints, as `loop.mode` says; None: it was not measured now; `later`: it is being
                measured, the checkpoint is kept until `rate` tells it.
            **objects: Objects with `state_dict()`, random generators, environments (see `EnvState`), or plain data,
                arrays and tensors.

        Returns:
            What tells when it is safe on disk. A save that fails is also reported by the next one, and by `close`.

        Raises:
            CheckpointError: An earlier save failed; this one was begun all the same.
            ProcessingError: A sink of `sinks.required` does not work; likewise.
            ConfigurationError: `replay` is something else than `run.replay`, which is in use; or the step is negative.
            TypeError: The step is no integer.
        """
        refuse_if_rehearsed("run.save()")
        attempt = self._opened()
        saves, hub, step, rated = attempt.saves, attempt.hub, step_to_save(self._step(step)), objective is not None
        is_awaited = isinstance(objective, str)
        quality = None if objective is None or isinstance(objective, str) else float(objective)  # of NumPy, torch, too
        saves.make_room(rated=rated)
        own = self._replay if self.config.persistence.save_buffer else None
        if own is not None and objects.setdefault("replay", own) is not own:
            raise ConfigurationError("save(replay=...): run.replay is in use and has this name; choose another one")
        held = {"objects": objects, "rng": capture_all(), "step": step, "config": attempt.recorded_config}
        state = encode(held, known=saves.known_parts)
        attempt.flusher.flush()
        hub_state = hub.ask(HubLogic.packed_state, step)
        metadata = {"objective": quality, "mode": self.config.loop.mode, "config_hash": attempt.config_hash}
        metadata |= {"seed": self.config.seed} | ({"is_awaited": True} if is_awaited else {})
        begin = partial(hub.begin, HubLogic.save_checkpoint, step, state, metadata, hub_state)
        handle = saves.add(step, begin, parts=state.parts.keys(), rated=rated)
        self.saved_step = step
        saves.report(wait=False, but=handle)
        attempt.check_sinks()
        return handle

    def rate(self, step: int, objective: float | None) -> "Future[None]":
        """Tell the objective of a checkpoint that was saved with `objective="later"`, as soon as it is known.

        Args:
            step: The step that names the checkpoint.
            objective: Its value; None: it was not measured after all.

        Returns:
            What tells when it is noted; it raises `CheckpointError` if there is no such checkpoint.
        """
        hub = self._opened().hub
        return hub.begin(HubLogic.rate_checkpoint, step, None if objective is None else float(objective))

    def restore(
        self,
        *,
        strict: bool = True,
        key_map: Mapping[str, str] | None = None,
        from_checkpoint: Path | None = None,
        **objects: Any,
    ) -> bool:
        """Bring back what `save` kept: objects, step, random generators and replay; does nothing on a fresh run.

        Args:
            strict: Refuse a checkpoint that does not fit the objects. With False, as for a warm start, what has the
                same key and shape is restored, an optimizer only if it has the same parameters; one message says what
                was missing, unexpected and of another shape.
            key_map: New names, `{"old.prefix": "new.prefix"}`, of keys in the checkpoint. A key is the name given to
                `save`, and the keys on the way to an array: `model.encoder.0.weight`.
            from_checkpoint: The directory of a checkpoint to go on from, whatever the run itself has saved: one that
                this run saved and somebody copied, or one of another run, whose curves are left alone then. None: as
                the config says.
            **objects: Objects with `load_state_dict()`, random generators, environments, and dicts, which are filled,
                under the names given to `save`.

        Returns:
            Whether there was something to restore.

        Raises:
            CheckpointError: None of the checkpoints is whole, or it lacks an object, or does not fit one, or
                `damaged_replay` refuses it. The objects are as they were; an environment, and an object without
                `state_dict()`, may have taken a part of its state.
            ConfigurationError: An object cannot take a state, or `key_map` names what is not there.
        """
        found = self._entered().find(from_checkpoint)
        if found is None or found.state is None:
            (attempt := self._opened()).hub.ask(HubLogic.resume, None)
            if attempt.number > 1:
                say(f"run {self.name!r} was started before and left no checkpoint: it begins at step 0 again")
            return False
        origin, state = found.origin, decode(found.state, on_damage=self.config.persistence.damaged_replay)
        held = state["objects"]
        is_ours = isinstance(held.get("replay"), SavedParts) and self.config.persistence.save_buffer
        if is_ours and "replay" not in objects:
            objects["replay"] = self.replay
        source = f"checkpoint {origin['path']}"
        with naming_changes(state.get("config") or {}, self.config):
            misfit = restore_objects(held, objects, source=source, strict=strict, key_map=key_map)
        if misfit:
            say(f"run {self.name!r}: {source} fits in part: {misfit}")
        end_if_rehearsed("restore", self.config, misfit=str(misfit))
        attempt = self._opened()  # from here on the run changes
        attempt.hub.ask(HubLogic.resume, replace(found, state=None))
        attempt.saves.restored(origin["parts"])
        self.restored = held
        if origin["is_own"] or origin["seed"] in {None, self.config.seed}:
            restore_all(state["rng"])  # a fork with another seed is to draw other numbers than its parent
        self.step = self.saved_step = state["step"]
        self.resumed, self.resumed_from_another = True, not origin["is_own"]
        say(f"run {self.name!r} resumes at step {self.step}: {origin['reason']}")
        return True

    # stepping

    def steps(self, total: int | None) -> Iterator[int]:
        """Yield the numbers of the steps that are left, 1 to `total`, with a progress bar.

        The first signal (Ctrl-C, SIGTERM, SIGUSR1, SIGXCPU) lets the step end and makes `save_due` true; the same
        signal again, or Ctrl-C, stops at once.

        Args:
            total: The last step; None: go on until the loop is left.

        Raises:
            RunInterrupted: A signal asked the run to stop.
        """
        refuse_if_rehearsed("run.steps()")
        return steps(self, total)

    def key_metrics(self) -> Mapping[str, float]:
        """Return the last value logged under each name, those for the progress bar only, the objective first."""
        return key_metrics(dict(self.latest()), self.config.loop.objective)

    def supersede(self, step: int | None) -> bool:
        """Tell at which step a program resumes that restores its own state; return whether anything is superseded.

        Points and media from that step on are superseded; MLflow, which cannot delete points, keeps those that differ.

        Args:
            step: The first step that is repeated; None: unknown, as in an attempt that restores nothing.
        """
        return self._opened().hub.ask(HubLogic.supersede, step)

    def note_stepless(self, metric: str) -> None:
        """Note that the program logs a metric without a step: its points at step 0 replace no older ones."""
        self._opened().hub.ask(HubLogic.note_stepless, metric)

    def summary(self) -> dict[str, MetricSummary]:
        """Close the open windows, and return last, min, max and step of each metric over all attempts."""
        return self._opened().hub.ask(HubLogic.final_summary)

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal asked this process to leave the run."""
        return self._on_signal.asked_at > -math.inf

    def wait_for_saves(self) -> None:
        """Return when everything that was saved is safe on disk.

        Raises:
            CheckpointError: A save failed.
        """
        self._opened().saves.report(wait=True)

    def _opened(self) -> Attempt:
        """Return the attempt, which begins now if it has not."""
        attempt = self._entered()
        with self._opening:
            if self._flusher is None:
                attempt.begin()
                self._use(attempt.flusher, self._forget)
                atexit.unregister(self._close_at_exit)
                atexit.register(self._close_at_exit)  # runs before the exit handler of the flusher
                attempt.check_sinks()
        return attempt

    def _entered(self) -> Attempt:
        """Return the attempt, whether it has begun or not."""
        if self._attempt is not None and self._attempt.pid != os.getpid():
            self._attempt, self._closed_because = None, f"is open in process {os.getppid()}, not in this fork of it"
        if self._attempt is None:
            raise RunClosedError(f"run {self.name!r} {self._closed_because}")
        return self._attempt

    def _open_flusher(self) -> Flusher:
        self._opened()
        return super()._open_flusher()
