"""Attempt: one start of a run, from its lock to its end; recorded once its checkpoint is accepted."""

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from trieye.config import TrieyeConfig
from trieye.config.base import did_you_mean
from trieye.config.fingerprint import changed_values, config_hash, differences
from trieye.config.hydra.launch import (
    belongs_to_other_sweep,
    earlier_run_name,
    launch_info,
    note_run,
    publish_records,
)
from trieye.config.redaction import recorded, redacted, redacted_text, redactor
from trieye.exceptions import (
    CheckpointError,
    ConfigurationError,
    ProcessingError,
    RunInterrupted,
    RunLockedError,
    noted,
)
from trieye.files.atomic import relink
from trieye.files.run_files import CHECKPOINT_PREFIX, RunFiles
from trieye.files.run_record import RunRecord, RunStatus, open_run_record
from trieye.hub.directory import HUB_GONE_AFTER_S, take_run
from trieye.hub.hub import Hub, LocalHub, settle
from trieye.hub.logic import HubLogic
from trieye.hub.saved_states import Restored, SavedStates
from trieye.process.lock import RunLock
from trieye.process.output import OutputLog
from trieye.process.progress import say
from trieye.process.signals import StopSignals
from trieye.process.waiting import TELL_EVERY_S
from trieye.run.application import check_start, completed
from trieye.run.flusher import flusher_of
from trieye.run.provenance import Notes, command_line, commit_of_program, tags_of
from trieye.run.saves import PendingSaves
from trieye.sinks.base import Sink
from trieye.snapshot import signing
from trieye.snapshot.signing import Trust

DESCRIPTION_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run."""

AT_ONCE_S = 2.0
"""How long a run may take to close after the second signal."""

_CTRL_C = 130
"""What a process exits with after Ctrl-C."""

_POLL_S = 0.1

_FIRST_TELL_S = 3.0
"""A run that takes longer than that to close says what for."""


class Attempt:
    """What a run holds while it is open: the lock, the hub, and the thread that brings events there.

    An attempt that may restore a checkpoint is *pending* at first: it holds the lock and writes nothing but `logs/`.
    `begin` counts it, writes its records and starts the hub. So an attempt whose checkpoint is refused leaves no trace.

    Args:
        config: The config of the run.
        group: The sweep that the run belongs to; None: that of Hydra, if any.
        sinks: Sinks besides those of the config.

    Attributes:
        hub: Collects, logs, saves.
        flusher: Brings events to the hub.
        saves: Checkpoints that are being written.
        group: The sweep that the run belongs to.
        config_hash: Hash of what is trained.
        number: 1 for the first start of the run.
        recorded_config: The config as files hold it, without secrets.
        has_begun: Whether the attempt is recorded and its hub runs.
        pid: The process that made it; a forked child has no part in the attempt.

    Raises:
        ConfigurationError: The directory of the run, or the key that signs pickled parts, cannot be used, or there is
            not what it should start from.
        CheckpointError: What it should start from is damaged.
        RunLockedError: Another process writes to the run.
    """

    def __init__(self, config: TrieyeConfig, group: str | None, sinks: Sequence[Sink] = ()) -> None:
        config = completed(config)
        self.group = group or _sweep()
        self.config_hash = config_hash(config)
        self.saves = PendingSaves(config.run_name, config.trieye.persistence.save_policy)
        self.has_begun, self._is_refused, self.pid = False, False, os.getpid()
        self._is_delivering = False
        self._output: OutputLog | None = None
        self._name = config.run_name
        self._requeue_exit_code = config.runtime.requeue_exit_code
        self._required = tuple(config.trieye.sinks.required)
        self._paths = RunFiles(config.trieye.persistence)
        check_start(config)
        self._paths.check_not_above()
        signing.check_key()
        self._config, self._sinks = config, sinks
        self.recorded_config = recorded(config.model_dump(mode="json"))
        self._commit = commit_of_program()
        self._lock, restored = take_run(self._paths, config, lambda: _taken(RunLock(self._paths.lock_path), config))
        try:
            if restored is not None:
                say(restored)
            self._before = self._checked_record(config)
            self.number = 1 if self._before is None else self._before.attempt + 1
            self._output = _output_log(self._paths, self.number) if config.persistence.log_output else None
            self._hub_class = _hub_class(config, sinks)
            _link_from_sweep(self._paths.run_base_dir)
            self._wait_for_last_hub()
        except BaseException:
            self._let_go()
            raise

    @property
    def may_restore(self) -> bool:
        """Whether there may be a checkpoint to restore; nothing is read."""
        chosen = self._config.persistence
        is_told = chosen.load_checkpoint_path is not None or chosen.auto_resume_latest
        return is_told or any(self._paths.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*"))

    def find(self, path: Path | None) -> Restored | None:
        """Return the checkpoint to restore; nothing of the run changes.

        Args:
            path: Directory of the checkpoint; None: the one that the config selects.

        Raises:
            ConfigurationError: `load_checkpoint_path` does not exist.
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        self._is_refused = True
        states = SavedStates(
            self._config.trieye.persistence,
            self._paths,
            Trust(),
            self.number,
            read_only=True,
        )
        return states.given(path) if path is not None else states.find(group=self.group, config_hash=self.config_hash)

    def begin(self) -> None:
        """Count the attempt, write its records and start the hub; does nothing if that has happened.

        Raises:
            ConfigurationError: The directory is a copy of another run.
            TrieyeError: The hub did not start; the attempt is recorded as failed.
        """
        if self.has_begun:
            return
        self._record = self._counted(self._config)
        note_run(self._name)
        publish_records(self._paths.run_base_dir, self._paths.log_dir)
        self.hub = self._start_hub(self._config, self._sinks)
        self._notes = Notes(self._paths.run_base_dir, self.number, self._commit)
        self.flusher = flusher_of(self.hub, self._config.runtime)
        self.has_begun = True

    def _checked_record(self, config: TrieyeConfig) -> RunRecord | None:
        before = RunRecord.read(self._paths.run_record_path)
        if before is not None and before.group not in (None, self.group) and not self._is_of_moved_sweep():
            raise ConfigurationError(
                f"run_name={self._name}: this run belongs to the sweep {before.group}; choose another run_name"
            )
        if before is not None and before.axis != config.loop.axis:
            raise ConfigurationError(
                f"loop.axis={config.loop.axis}: the steps of run {self._name!r} count {before.axis} since it began; "
                f"set loop.axis={before.axis}, or choose another run_name"
            )
        tell_changes(self._paths, config)
        return before

    def _counted(self, config: TrieyeConfig) -> RunRecord:
        return open_run_record(
            self._paths.run_record_path,
            app_name=config.app_name,
            run_name=config.run_name,
            config_hash=self.config_hash,
            group=self.group,
            axis=config.loop.axis,
            git_sha=None if self._commit is None else self._commit.sha,
            tags=redacted(config.tags),
        )

    def _wait_for_last_hub(self) -> None:
        """Wait until the hub of a killed attempt has ended: it may be writing the checkpoint to restore.

        Raises:
            RunLockedError: It does not end.
        """
        deadline, is_told = time.monotonic() + HUB_GONE_AFTER_S, False
        while True:
            try:
                RunLock.check(self._paths.hub_lock_path)
            except RunLockedError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
            if not is_told:
                say(
                    f"run {self._name!r}: waiting up to {HUB_GONE_AFTER_S:.0f} s for the hub of its last attempt to end"
                )
            is_told = True
            time.sleep(_POLL_S)

    def _is_of_moved_sweep(self) -> bool:
        """Return whether this job of a sweep that was moved, or copied with its project, began the run."""
        launch = launch_info()
        if launch is None or earlier_run_name(launch) != self._name:
            return False
        return not belongs_to_other_sweep(launch, self._paths.run_base_dir)

    def _start_hub(self, config: TrieyeConfig, sinks: Sequence[Sink]) -> Hub:
        try:
            # it writes the tags down, and need not have the environment by which their secrets are known
            tags = tags_of(self._commit) | self._note(config) | redacted(config.tags)
            known = config.trieye.model_copy(update={"tags": tags})
            return self._hub_class(known, self.recorded_config, sinks)
        except BaseException as error:
            with noted(error, "recording that"):
                self._record.close(self._paths.run_record_path, "FAILED" if isinstance(error, Exception) else "KILLED")
            raise

    def _note(self, config: TrieyeConfig) -> dict[str, str]:
        if config.description is not None:
            return {DESCRIPTION_TAG: config.description}
        return {DESCRIPTION_TAG: f"`{command_line()}`"} if self.number == 1 else {}  # later ones leave what was edited

    def close(self, status: RunStatus, *, at_once: bool = False) -> None:
        """Send what is left, wait for the saves, close the sinks and record how the run ended.

        The first signal meanwhile is put off until the end; the second one ends the waiting, and so does the first
        Ctrl-C once everything is safe on the disk and only the sinks are waited for.

        An attempt that never began is recorded only if it ends well and no checkpoint was refused.

        Args:
            status: How it ended.
            at_once: See `Run.close`.

        Raises:
            CheckpointError: A save failed that was not reported yet; the run is recorded as failed.
            ProcessingError: The hub did not take all metrics; likewise.
            RunInterrupted: A signal came, and nothing else ends the program.
        """
        if self.pid != os.getpid():
            return
        if not self.has_begun and (status != "FINISHED" or self._is_refused):
            self._let_go()
            return
        try:
            self.begin()
        except BaseException:
            self._let_go()
            raise
        try:
            self._close_patiently(status, at_once=at_once)
        finally:
            self._close_output()

    def _let_go(self) -> None:
        self._close_output()
        self._lock.release()

    def check_sinks(self) -> None:
        """Look at the sinks that this run cannot do without.

        Raises:
            ConfigurationError: There is none of that name.
            ProcessingError: One does not work, or refused something.
        """
        if not self._required:
            return
        sinks = {sink["name"]: sink for sink in self.hub.ask(HubLogic.health)["sinks"]}
        for name in self._required:
            if name not in sinks:
                raise ConfigurationError(
                    f"sinks.required: this run has no sink {name!r}{did_you_mean(name, sinks)} "
                    f"(it has: {', '.join(sinks) or 'none'})"
                )
            sink = sinks[name]
            if sink["error"] is not None or sink["refused"]:
                what = sink["error"] or f"{sink['refused']} points and other things were refused, as the log says"
                raise ProcessingError(
                    f"run {self._name!r} ends here, since sinks.required names {name!r}, which does not work: {what}; "
                    "what was logged is kept, and the next start delivers it"
                )

    def keep_traceback(self, error: BaseException) -> None:
        """Write the traceback of an error that ends the attempt to the log directory, without secrets."""
        with noted(error, f"writing the traceback of run {self._name!r}"):
            text = redacted_text("".join(traceback.format_exception(error)))
            path = self._paths.log_dir / f"failure_of_attempt_{self.number}.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def keep_output(self, error: BaseException) -> None:
        """Add the traceback of an error, which is not printed yet, to the output of the program."""
        if self._output is not None:
            self._output.keep("".join(traceback.format_exception(error)))

    def _close_output(self) -> None:
        if self._output is not None:
            self._output.close()

    def _close_patiently(self, status: RunStatus, *, at_once: bool) -> None:
        message = f"closing run {self._name!r}; the same signal again (or Ctrl-C) stops at once"
        with StopSignals(self._on_signal, message, requeue_exit_code=self._requeue_exit_code) as signals:
            try:
                if not _done_within(AT_ONCE_S if at_once else None, lambda: self._close(status), self._tell_closing):
                    self._leave(status)
            except BaseException as error:
                if not isinstance(error, Exception):  # the second signal; the thread ends with the process
                    with noted(error, "recording that"):
                        self._leave(status)
                raise
        if signals.exit_code is not None and status == "FINISHED":
            raise RunInterrupted(f"run {self._name!r} was finished when it was asked to stop", signals.exit_code)

    def _on_signal(self, exit_code: int) -> None:
        if self._is_delivering and exit_code == _CTRL_C:
            raise RunInterrupted(f"run {self._name!r} was left before its sinks had everything", exit_code)

    def _tell_closing(self) -> None:
        way_out = (
            f"; Ctrl-C leaves the rest to `trieye close {self._paths.run_base_dir}`" if self._is_delivering else ""
        )
        say(f"closing run {self._name!r}: {self.hub.progress()}{way_out}")

    def _leave(self, status: RunStatus) -> None:
        self._note_end("KILLED" if status == "FINISHED" else status)
        say(
            f"run {self._name!r} is left at once; what its sinks lack is kept, and the next start or "
            f"`trieye close {self._paths.run_base_dir}` delivers it"
        )

    def _close(self, status: RunStatus) -> None:
        self._notes.wait()
        try:
            try:
                self.flusher.close()
                if status == "FINISHED":
                    self.check_sinks()
            except Exception as error:
                with noted(error, "a save"):
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
            self.hub.close(status)
        except BaseException as error:  # it could not write down how the run ended; whoever reads run.json must know
            with noted(error, "recording that"):
                self._note_end(status)
            raise

    def _note_end(self, status: RunStatus) -> None:
        record = RunRecord.read(self._paths.run_record_path)
        if record is not None and record.status == "RUNNING":
            record.close(self._paths.run_record_path, status)


def _output_log(paths: RunFiles, attempt: int) -> OutputLog | None:
    try:
        paths.log_dir.mkdir(parents=True, exist_ok=True)
        output = OutputLog(paths.get_output_log_path(), redactor())
    except OSError as error:  # what else stands in the way there is an error of the hub
        say(f"{paths.get_output_log_path()} cannot be written ({error.strerror}); what is printed is not kept")
        return None
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    output.keep(f"--- attempt {attempt}, {now}, process {os.getpid()} on {socket.gethostname()} ---")
    return output


@contextmanager
def naming_changes(stored: Mapping[str, Any], config: TrieyeConfig) -> Iterator[None]:
    """Name the keys in which a stored config differs, in the error of a checkpoint that does not fit."""
    try:
        yield
    except CheckpointError as error:
        changes = "; ".join(differences(stored, config))
        reason = " ".join(str(error).split())  # torch's message has a line for each parameter
        raise CheckpointError(f"{changes} ({reason})" if changes else reason) from error


def tell_changes(paths: RunFiles, config: TrieyeConfig) -> None:
    """Say what is configured differently than in the last attempt, as far as it changes what is trained."""
    if changes := changed_values(paths.config_path, config):
        say(
            f"run {config.run_name!r} is configured differently than in its last attempt: {'; '.join(changes)}; "
            "if that is not meant, choose another run_name"
        )


def _done_within(patience_s: float | None, work: Callable[[], None], tell: Callable[[], None]) -> bool:
    """Do something that can be left at any moment, by a signal too, and that then ends with the process.

    Args:
        patience_s: How long to wait; None: as long as it takes.
        work: What to do.
        tell: Called now and then if it takes long.

    Returns:
        Whether it was done in time.
    """
    outcome: Future[None] = Future()
    try:
        threading.Thread(target=settle, args=(outcome, work), name="trieye-close", daemon=True).start()
    except RuntimeError:  # the interpreter is ending and starts no threads any more
        settle(outcome, work)
    pause_s = _FIRST_TELL_S if patience_s is None else patience_s
    while not wait([outcome], pause_s).done:
        if patience_s is not None:
            return False
        tell()
        pause_s = TELL_EVERY_S
    outcome.result()
    return True


def _taken(lock: RunLock, config: TrieyeConfig) -> RunLock:
    """Take the lock of a run, also from a detached hub of the same cluster that has no driver any more."""
    try:
        return lock.acquire()
    except RunLockedError:
        if config.runtime.kind != "cluster" or not lock.is_of_hub:
            raise
    from trieye.hub.in_ray import take_over

    take_over(config, lock)
    return lock.acquire(HUB_GONE_AFTER_S)


def _link_from_sweep(run_dir: Path) -> None:
    """Let whoever looks at a job of a sweep find its run."""
    launch = launch_info()
    if launch is not None and launch.sweep_dir is not None:
        job_dir = launch.sweep_dir / str(launch.job_num)
        job_dir.mkdir(parents=True, exist_ok=True)
        relink(job_dir / "run", run_dir)


def _sweep() -> str | None:
    launch = launch_info()
    return str(launch.sweep_dir) if launch is not None and launch.sweep_dir is not None else None


def _hub_class(config: TrieyeConfig, sinks: Sequence[Sink]) -> Callable[..., Hub]:
    """Return the class of the hub for `config.runtime`, and connect to Ray if it needs that."""
    if config.runtime.kind == "local":
        return LocalHub
    # the actor prints results; Ray would hide the second of two that look alike
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    if not sys.stdout.isatty():  # before what workers print, Ray puts their name in color, into files, too
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    from trieye.hub.in_ray import RayHub

    RayHub.connect(config.runtime, sinks)
    return RayHub
