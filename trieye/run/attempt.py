"""Attempt: one start of a run, from taking its lock to closing; recorded once its checkpoint is accepted."""

import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from trieye.config import RuntimeConfig, TrieyeConfig
from trieye.config.fingerprint import config_hash, differences, json_of, with_program
from trieye.config.hydra.launch import Launch, is_of_moved_sweep, launch_info, note_run, publish_records
from trieye.config.redaction import recorded, redacted, redacted_text, redactor
from trieye.exceptions import CheckpointError, ConfigurationError, RunInterrupted, RunLockedError, noted
from trieye.files.atomic import relink
from trieye.files.run_files import CHECKPOINT_PREFIX, RunFiles
from trieye.files.run_record import RunRecord, RunStatus, open_run_record
from trieye.hub.directory import HUB_GONE_AFTER_S, take_run
from trieye.hub.hub import Hub, LocalHub
from trieye.hub.saved_states import RestoredCheckpoint, SavedStates
from trieye.hub.status import HubStatus
from trieye.process.lock import RunLock
from trieye.process.output import OutputLog
from trieye.process.progress import say
from trieye.process.signals import StopSignals
from trieye.process.waiting import TELL_EVERY_S
from trieye.process.worker import settle
from trieye.run.application import check_start
from trieye.run.flusher import flusher_of
from trieye.run.provenance import ProvenanceRecorder, command_line, commit_of_program, tags_of
from trieye.run.saves import PendingSaves
from trieye.sinks.base import Sink
from trieye.snapshot import signing
from trieye.snapshot.signing import Trust

DESCRIPTION_TAG = "mlflow.note.content"
"""Tag that MLflow displays as the description of a run."""

AT_ONCE_S = 2.0
"""Time limit for closing a run after the second signal."""

_CTRL_C = 130
"""Exit code of a process after Ctrl-C."""

_FIRST_PROGRESS_S = 3.0
"""A run that takes longer than this to close reports its progress."""


def check_job(paths: RunFiles, launch: Launch | None, group: str | None) -> None:
    """Raise `ConfigurationError` if a run belongs to another sweep or job; `group` is the sweep of this attempt."""
    record = RunRecord.read(paths.run_record_path)
    refusal = None if record is None else record.refusal_in(group, None if launch is None else launch.job_num)
    if refusal is not None and not is_of_moved_sweep(launch, paths.run_base_dir):
        raise ConfigurationError(f"run_name={paths.run_base_dir.name}: {refusal}")


class OpenAttempt:
    """The resources of an open run: its lock, its hub, and the thread that sends events to the hub.

    An attempt that may restore a checkpoint is *pending* at first: it holds the lock and writes only to `logs/`.
    `begin` counts it, writes its records and starts the hub, so an attempt whose checkpoint is refused leaves no trace.

    Args:
        config: The config of the run.
        group: The sweep of the run; None selects the current Hydra sweep, if any.
        sinks: Additional sinks, as in `Run`.

    Attributes:
        hub: Processes events, writes to sinks, saves checkpoints.
        flusher: Sends events to the hub.
        saves: Checkpoints that are being written.
        group: The sweep of the run.
        config_hash: Hash of the config values that determine the training.
        number: 1 for the first start of the run.
        recorded_config: The config as stored in files, without secrets.
        has_begun: Whether the attempt is recorded and its hub runs.
        pid: Process that created the attempt; a forked child must not use it.

    Raises:
        ConfigurationError: The run directory or the signing key is unusable, or the checkpoint to load does not exist.
        CheckpointError: The checkpoint to load is damaged.
        RunLockedError: Another process is writing to the run.
    """

    def __init__(self, config: TrieyeConfig, group: str | None, sinks: Sequence[Sink] = ()) -> None:
        launch = self._launch = launch_info()
        config = config.with_run_defaults()
        check_start(config)
        self.recorded_config = recorded(with_program(config))
        self.config_hash = config_hash(type(config), self.recorded_config)
        self.group = group or (str(launch.sweep_dir) if launch is not None and launch.sweep_dir is not None else None)
        self._job = None if launch is None else launch.job_num
        self.saves = PendingSaves(config.run_name, config.trieye.persistence.save_policy)
        self.has_begun, self._is_refused, self.pid = False, False, os.getpid()
        self._is_delivering = False
        self._output: OutputLog | None = None
        self._name = config.run_name
        self._required_sinks = tuple(config.trieye.sinks.required)
        self._paths = RunFiles(config.trieye.persistence)
        self._paths.check_not_above()
        signing.check_key()
        self._config, self._sinks = config, sinks
        self._commit = commit_of_program()
        mirror_url, runtime = config.persistence.mirror, config.runtime
        check_job(self._paths, launch, self.group)  # names the job, which a held lock does not
        self._lock, notice = take_run(
            self._paths, mirror_url, lambda: _acquired(RunLock(self._paths.lock_path), runtime, self._name)
        )
        try:
            if notice is not None:
                say(notice)
            previous_record = self._checked_record(config)
            self.number = 1 if previous_record is None else previous_record.attempt + 1
            self._output = _output_log(self._paths, self.number) if config.persistence.log_output else None
            self._hub_class = _hub_class(runtime, sinks)
            self._link_from_sweep()
            self._wait_for_last_hub()
        except BaseException:
            self._close_output()
            self._lock.release()
            raise

    @property
    def may_restore(self) -> bool:
        """Whether the config or a file name suggests a checkpoint to restore; no file is read."""
        persistence = self._config.persistence
        is_configured = persistence.load_checkpoint_path is not None or persistence.auto_resume_latest
        return is_configured or any(self._paths.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*"))

    def find(self, path: Path | None) -> RestoredCheckpoint | None:
        """Return the checkpoint to restore, without changing the run.

        Args:
            path: Directory of the checkpoint; None selects it by the config.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: Checkpoints exist, and none is intact.
        """
        self._is_refused = True
        states = SavedStates(self._config.trieye.persistence, self._paths, Trust(), self.number, read_only=True)
        return states.given(path) if path is not None else states.find(group=self.group, config_hash=self.config_hash)

    def flushed(self) -> Hub:
        """Return the hub after it has accepted all values logged so far."""
        self.flusher.flush()
        return self.hub

    def begin(self) -> None:
        """Count the attempt, write its records and start the hub; a no-op after the first call.

        Raises:
            ConfigurationError: The directory is a copy of another run.
            TrieyeError: The hub did not start; the attempt is recorded as failed.
        """
        if self.has_begun:
            return
        config = self._config
        self._record = open_run_record(
            self._paths.run_record_path,
            app_name=config.app_name,
            run_name=config.run_name,
            config_hash=self.config_hash,
            group=self.group,
            job=self._job,
            axis=config.loop.axis,
            git_sha=None if self._commit is None else self._commit.sha,
            tags=redacted(config.tags),
        )
        say(f"run {self._name!r}, attempt {self.number}, in {self._paths.run_base_dir}")
        note_run(self._name)
        if self._launch is not None and not self._launch.is_multirun:
            publish_records(self._launch.output_dir, self._paths.run_base_dir, self._paths.log_dir)
        self.hub = self._start_hub()
        self._provenance = ProvenanceRecorder(self._paths.run_base_dir, self.number, self._commit)
        self.flusher = flusher_of(self.hub, self._config.runtime)
        self.has_begun = True

    def _checked_record(self, config: TrieyeConfig) -> RunRecord | None:
        previous = RunRecord.read(self._paths.run_record_path)
        check_job(self._paths, self._launch, self.group)
        if previous is not None and previous.axis != config.loop.axis:
            raise ConfigurationError(
                f"loop.axis={config.loop.axis}: run {self._name!r} has counted its steps in {previous.axis} since its "
                f"first start; set loop.axis={previous.axis}, or choose another run_name"
            )
        check_changes(self._paths, config)
        return previous

    def _wait_for_last_hub(self) -> None:
        """Wait until the hub of a killed attempt has exited: it may be writing the checkpoint to restore.

        Raises:
            RunLockedError: The hub does not exit in time.
        """
        try:
            RunLock.check(self._paths.hub_lock_path)
        except RunLockedError:
            say(f"run {self._name!r}: waiting up to {HUB_GONE_AFTER_S:.0f} s for the hub of the last attempt to end")
            RunLock(self._paths.hub_lock_path).acquire(HUB_GONE_AFTER_S).release()

    def _link_from_sweep(self) -> None:
        """Link the run directory from the directory of its sweep job."""
        if self._launch is not None and self._launch.sweep_dir is not None:
            job_dir = self._launch.sweep_dir / str(self._launch.job_num)
            job_dir.mkdir(parents=True, exist_ok=True)
            relink(job_dir / "run", self._paths.run_base_dir)

    def _start_hub(self) -> Hub:
        try:
            # redacted here: the hub writes the tags, but may lack the environment variables that identify secrets
            tags = tags_of(self._commit) | self._description() | redacted(self._config.tags)
            hub_config = self._config.trieye.model_copy(update={"tags": tags})
            return self._hub_class(hub_config, self.recorded_config, self._sinks)
        except BaseException as error:
            with noted(error, "recording that the hub did not start"):
                self._record.close(self._paths.run_record_path, "FAILED" if isinstance(error, Exception) else "KILLED")
            raise

    def _description(self) -> dict[str, str]:
        if self._config.description is not None:
            return {DESCRIPTION_TAG: self._config.description}
        # later attempts keep a description that the user has edited
        return {DESCRIPTION_TAG: f"`{command_line()}`"} if self.number == 1 else {}

    def close(self, status: RunStatus, *, at_once: bool = False) -> None:
        """Send pending values, wait for saves, close the sinks and record how the run ended.

        A first signal during the call takes effect at its end. A second signal stops the wait, and so does the first
        Ctrl-C once all values are safe on disk and only the delivery to sinks remains.

        An attempt that has not begun is recorded only if it ends as FINISHED and no checkpoint was refused.

        Args:
            status: How the run ended.
            at_once: See `Run.close`.

        Raises:
            CheckpointError: A save failed and was not reported yet; the run is recorded as failed.
            ProcessingError: The hub did not accept all metrics, or a sink of `sinks.required` did not receive
                everything; the run is recorded as failed.
            RunInterrupted: A signal arrived, and no other exception ends the program.
        """
        if self.pid != os.getpid():
            return
        try:
            if self.has_begun or (status == "FINISHED" and not self._is_refused):
                self.begin()
                self._close_interruptibly(status, at_once=at_once)
        finally:
            self._close_output()
            if not self.has_begun:
                self._lock.release()

    def check_sinks(self) -> None:
        """Check that the sinks of `sinks.required` exist and work.

        Raises:
            ConfigurationError: A required sink does not exist.
            ProcessingError: A required sink fails, or refused points.
        """
        if self._required_sinks:
            self.hub.ask(HubStatus.check_sinks, self._required_sinks)

    def keep_traceback(self, error: BaseException) -> None:
        """Write the traceback of an error that ends the attempt to the log directory, with secrets hidden."""
        with noted(error, f"writing the traceback of run {self._name!r}"):
            text = redacted_text("".join(traceback.format_exception(error)))
            path = self._paths.log_dir / f"failure_of_attempt_{self.number}.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def keep_output(self, error: BaseException) -> None:
        """Add the traceback of an error to `output.log`; the interpreter prints it after the log is closed."""
        if self._output is not None:
            self._output.keep("".join(traceback.format_exception(error)))

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()

    def _close_interruptibly(self, status: RunStatus, *, at_once: bool) -> None:
        message = f"closing run {self._name!r}; the same signal again (or Ctrl-C) stops immediately"
        requeue_exit_code = self._config.runtime.requeue_exit_code
        with StopSignals(self._on_signal, message, requeue_exit_code=requeue_exit_code) as signals:
            try:
                if not _done_within(AT_ONCE_S if at_once else None, lambda: self._close(status), self._report_closing):
                    self._abandon(status)
            except BaseException as error:
                if not isinstance(error, Exception):  # the second signal; the thread ends with the process
                    with noted(error, "recording how the run ended"):
                        self._abandon(status)
                raise
        if signals.exit_code is not None and status == "FINISHED":
            raise RunInterrupted(f"run {self._name!r} was already finished when a signal arrived", signals.exit_code)

    def _on_signal(self, exit_code: int) -> None:
        if self._is_delivering and exit_code == _CTRL_C:
            raise RunInterrupted(
                f"run {self._name!r}: interrupted before its sinks were complete; "
                f"`trieye close {self._paths.run_base_dir}` delivers the rest",
                exit_code,
            )

    def _report_closing(self) -> None:
        way_out = (
            f"; Ctrl-C leaves the rest to `trieye close {self._paths.run_base_dir}`" if self._is_delivering else ""
        )
        say(f"closing run {self._name!r}: {self.hub.progress()}{way_out}")

    def _abandon(self, status: RunStatus) -> None:
        self._record_end("KILLED" if status == "FINISHED" else status)
        say(
            f"run {self._name!r}: closing was cut short; values missing in its sinks are stored, and the next start or "
            f"`trieye close {self._paths.run_base_dir}` delivers them"
        )

    def _close(self, status: RunStatus) -> None:
        self._provenance.wait()
        try:
            try:
                self.flusher.close()
                if status == "FINISHED":
                    self.check_sinks()
            except Exception as error:
                with noted(error, "saving a checkpoint"):
                    self.saves.report(wait=True)
                raise
            self.saves.report(wait=True)
        except BaseException:
            status = "FAILED" if status == "FINISHED" else status
            raise
        finally:
            try:
                self._close_hub(status)
            finally:
                self._lock.release()

    def _close_hub(self, status: RunStatus) -> None:
        self._is_delivering = True
        try:
            self.hub.close(status, required_sinks=self._required_sinks if status == "FINISHED" else ())
        except BaseException as error:  # the hub could not record the end of the run in run.json
            with noted(error, "recording how the run ended"):
                self._record_end(status)
            raise

    def _record_end(self, status: RunStatus) -> None:
        record = RunRecord.read(self._paths.run_record_path)
        if record is not None and record.status == "RUNNING":
            record.close(self._paths.run_record_path, status)


def _output_log(paths: RunFiles, attempt: int) -> OutputLog | None:
    try:
        paths.log_dir.mkdir(parents=True, exist_ok=True)
        output = OutputLog(paths.get_output_log_path(), redactor())
    except OSError as error:  # any other obstacle in that directory is an error of the hub
        say(f"{paths.get_output_log_path()} cannot be written ({error.strerror}); printed output is not recorded")
        return None
    opened_at = datetime.now().astimezone().isoformat(" ", "seconds")
    output.keep(f"--- attempt {attempt}, {opened_at}, process {os.getpid()} on {socket.gethostname()} ---")
    return output


@contextmanager
def naming_changes(stored: Mapping[str, Any], config: TrieyeConfig) -> Iterator[None]:
    """Add the config keys that differ from the stored config to the error of a checkpoint that does not fit."""
    try:
        yield
    except CheckpointError as error:
        changes = "; ".join(differences(stored, config))
        reason = " ".join(str(error).split())  # torch's message has a line for each parameter
        raise CheckpointError(f"{changes} ({reason})" if changes else reason) from error


def check_changes(paths: RunFiles, config: TrieyeConfig) -> None:
    """Report the config values that differ from the last attempt and affect the training.

    Raises:
        ConfigurationError: Another algorithm than in the last attempt, whose checkpoints do not fit.
    """
    try:
        stored = json_of(paths.config_path)
    except (OSError, ValueError):
        return
    agent, current_kind = stored.get("agent"), getattr(getattr(config, "agent", None), "kind", None)
    kind = agent.get("kind") if isinstance(agent, Mapping) else None
    if kind is not None and current_kind not in (None, kind):
        raise ConfigurationError(
            f"agent={current_kind}: run {config.run_name!r} trains agent={kind}; choose another run_name, or set "
            f"agent={kind}"
        )
    if changes := differences(stored, config):
        say(
            f"run {config.run_name!r} is configured differently than in its last attempt: {'; '.join(changes)}; "
            "if this is not intended, choose another run_name"
        )


def _done_within(timeout_s: float | None, work: Callable[[], None], report: Callable[[], None]) -> bool:
    """Run `work` in a thread that a timeout or a signal abandons; an abandoned thread ends with the process.

    Args:
        timeout_s: Seconds to wait; None waits until `work` returns.
        work: The work.
        report: Called at intervals during a long wait.

    Returns:
        Whether `work` returned in time.
    """
    outcome: Future[None] = Future()
    try:
        threading.Thread(target=settle, args=(outcome, work), name="trieye-close", daemon=True).start()
    except RuntimeError:  # the interpreter is shutting down and cannot start threads
        settle(outcome, work)
    pause_s = _FIRST_PROGRESS_S if timeout_s is None else timeout_s
    while not wait([outcome], pause_s).done:
        if timeout_s is not None:
            return False
        report()
        pause_s = TELL_EVERY_S
    outcome.result()
    return True


def _acquired(lock: RunLock, runtime: RuntimeConfig, run_name: str) -> RunLock:
    """Acquire the lock of a run, if necessary from a detached hub of the same cluster whose driver is dead."""
    try:
        return lock.acquire()
    except RunLockedError:
        if runtime.kind != "cluster" or not lock.is_of_hub:
            raise
    from trieye.hub.in_ray import take_over

    take_over(runtime, run_name, lock)
    return lock.acquire(HUB_GONE_AFTER_S)


def _hub_class(runtime: RuntimeConfig, sinks: Sequence[Sink]) -> Callable[..., Hub]:
    """Return the hub class of a runtime, and connect to Ray if the class needs it."""
    if runtime.kind == "local":
        return LocalHub
    # the actor prints results, and Ray would drop the second of two similar lines
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not sys.stdout.isatty():  # Ray prefixes the lines of workers with a colored name, even in files
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    from trieye.hub.in_ray import RayHub

    RayHub.connect(runtime, sinks)
    return RayHub
