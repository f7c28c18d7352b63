"""StudyMonitor: records events of Ray Tune trials as the records and the progress table of a sweep."""

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from trieye.config import TrieyeConfig
from trieye.config.redaction import redacted_text
from trieye.files.atomic import relink
from trieye.process.identity import ProcessIdentity
from trieye.sweeps.jobs import RUN, TARGET_REACHED, TIME_OVER, Done, Job, JobRecord, ReportedError
from trieye.sweeps.progress import SweepProgress
from trieye.tune.ended import REPORTED, overrides_of, record_before
from trieye.tune.trainable import index_of, run_name_of
from trieye.tune.trial import DAMAGE

_WRITE_EVERY_S = 1.0
_LONGEST = 300


class StudyMonitor(Callback, Stopper):  # type: ignore[misc]  # Ray has no types for us
    """Records the trials of a study in the layout of sweep records, and ends the study at its target.

    Tune passes all arguments of events by keyword.

    Args:
        config: The config of the study.
        directory: Directory of the study.
        keys: The varying keys.
        size: Number of trials.
        ended: Records of the trials that have ended.

    Attributes:
        progress: The progress table.
        has_reached_target: Whether a completed trial has reached `tune.target`.
        retryable: Indices of trials that Tune marked as failed although retries are left.
    """

    def __init__(
        self, config: TrieyeConfig, directory: Path, keys: Sequence[str], size: int, ended: Iterable[JobRecord] = ()
    ) -> None:
        self._config, self._directory, self._size = config, directory, size
        self._records: dict[int, JobRecord] = {}
        self._written: dict[int, float] = {}
        self._running: set[int] = set()
        self.progress = SweepProgress(directory, size, keys, of="study")
        self._process = ProcessIdentity.current().as_mapping()
        self.has_reached_target = False
        self.retryable: set[int] = set()
        for record in ended:
            self.progress.skipped()
            self._check_target(record)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune stores its options, which a study never reads

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: trials are not stopped individually."""
        del trial_id, result
        return False

    def stop_all(self) -> bool:
        """Return whether the target is reached."""
        return self.has_reached_target

    def on_step_end(self, **_: Any) -> None:
        """Refresh the table."""
        self.progress.show()

    def on_trial_start(self, *, trial: Trial, **_: Any) -> None:
        """Record that a trial has started or resumed."""
        record = self._record_of(trial)
        record.overrides = overrides_of(trial.config)
        job = Job(record.index, tuple(record.overrides))
        if record.index not in self._running:
            self.progress.began(job)
            self._running.add(record.index)
        job_dir = self._directory / str(record.index)
        job_dir.mkdir(parents=True, exist_ok=True)
        name = run_name_of(self._config, record.index)
        relink(job_dir / RUN, self._config.persistence.get_run_base_dir().with_name(name))
        self._write(record)

    def on_trial_result(self, *, trial: Trial, result: dict[str, Any], **_: Any) -> None:
        """Record a result of a trial."""
        record, mode = self._record_of(trial), self._config.loop.mode
        record.step = int(result["step"])
        record.attempt = max(record.attempt, int(result.get("attempt") or 1))
        value = result.get(self._config.loop.objective)
        if value is not None and math.isfinite(value):
            old_best = record.objective
            record.objective = value if old_best is None else (max if mode == "max" else min)(value, old_best)
            with (self._directory / str(record.index) / REPORTED).open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps([result[TRAINING_ITERATION], value])}\n")
        record.heartbeat = time.time()
        record.overrides = overrides_of(trial.config)
        self.progress.report(self._job(record), record.step, value)
        if DAMAGE in result:
            self._fell_back(record, result[DAMAGE])
            self.progress.began(self._job(record))  # it has resumed already
        elif time.monotonic() - self._written.get(record.index, -math.inf) > _WRITE_EVERY_S:
            self._write(record)

    def _check_target(self, record: JobRecord) -> None:
        target, value = self._config.tune.target, record.objective
        if target is not None and value is not None and record.state == "completed":
            self.has_reached_target |= value >= target if self._config.loop.mode == "max" else value <= target

    def on_trial_recover(self, *, trial: Trial, **_: Any) -> None:
        """Record that a trial failed or its process died, and that it will be retried."""
        record = self._record_of(trial)
        self._fell_back(record, _reason(trial))
        self._running.discard(record.index)

    def _fell_back(self, record: JobRecord, reason: str) -> None:
        record.deaths += 1
        record.error = redacted_text(reason)
        self._write(record)
        self.progress.retried(self._job(record), f"{reason}; resuming from its last checkpoint")

    def on_trial_complete(self, *, trial: Trial, **_: Any) -> None:
        """Record that a trial has completed, or that a scheduler stopped it."""
        result, record = trial.last_result or {}, self._record_of(trial)
        is_done = bool(result.get("done")) and result.get("stop_reason") is not None
        scheduler, reason = self._config.tune.scheduler, None
        if not is_done and scheduler != "none":
            reason = f"tune.scheduler={scheduler}, after {result.get(TRAINING_ITERATION)} evaluations"
        self._end(record, "completed" if is_done else "pruned", reason)

    def _end(self, record: JobRecord, state: Literal["completed", "pruned"], reason: str | None) -> None:
        record.state, record.reason = state, reason
        record.error, record.ended = None, time.time()
        self._check_target(record)
        self._write(record, is_lasting=True)
        self._show(Done(record.index, record.objective, is_pruned=state == "pruned", reason=reason), record)

    def on_trial_error(self, *, trial: Trial, **_: Any) -> None:
        """Record that a trial has failed, permanently unless retries are left."""
        record, reason = self._record_of(trial), _reason(trial)
        if trial.should_recover():  # Ray fails a trial whose process dies while it restores another trial's state
            self.retryable.add(record.index)
            self.on_trial_recover(trial=trial)
            return
        record.fail(reason)
        self._write(record, is_lasting=True)
        self._show(Done(record.index, error=ReportedError(reason)), record)

    def end_by_limit(self) -> str | None:
        """Mark all unfinished trials as pruned if a limit of the study ended it, and return that limit.

        Tune does not report to its callbacks which trials it stops at a limit of the study.
        """
        records = [
            self._records.get(index) or record_before(self._directory / str(index)) for index in range(self._size)
        ]
        unfinished_records = [
            record for record in records if record is None or record.state in ("running", "interrupted")
        ]
        if not unfinished_records or not (self.has_reached_target or self._config.tune.time_s):
            return None
        limit = TARGET_REACHED if self.has_reached_target else TIME_OVER
        for record in filter(None, unfinished_records):
            self._end(record, "pruned", limit)
        return limit

    def mark_interrupted(self) -> None:
        """Mark all unfinished trials as interrupted."""
        for record in self._records.values():
            if record.state == "running":
                record.state, record.ended = "interrupted", time.time()
                self._write(record, is_lasting=True)

    def _show(self, done: Done, record: JobRecord) -> None:
        if record.index not in self._running:
            self.progress.began(self._job(record))
        self._running.discard(record.index)
        self.progress.ended(self._job(record), done)

    @staticmethod
    def _job(record: JobRecord) -> Job:
        return Job(record.index, tuple(record.overrides))

    def _record_of(self, trial: Trial) -> JobRecord:
        index = index_of(trial.trial_id)
        assert index is not None  # noqa: S101 - trials of a study have indices
        if index not in self._records:
            record = JobRecord(index=index, overrides=overrides_of(trial.config), **self._process)
            if (earlier_record := record_before(self._directory / str(index))) is not None:
                record.attempt, record.deaths = earlier_record.attempt, earlier_record.deaths
                record.step, record.objective = earlier_record.step, earlier_record.objective
            self._records[index] = record
        return self._records[index]

    def _write(self, record: JobRecord, *, is_lasting: bool = False) -> None:
        self._written[record.index] = time.monotonic()
        record.write(self._directory / str(record.index), is_lasting=is_lasting)


def _reason(trial: Trial) -> str:
    """Return the reason of a trial's last failure: the last line of its error, or the death of its process."""
    path = None if trial.error_file is None else Path(trial.error_file)  # copied to Tune's storage only later
    text = path.read_text("utf-8", "replace") if path is not None and path.exists() else str(trial.get_error() or "")
    lines = [line.strip() for line in text.rpartition("Failure # ")[2].splitlines() if line.strip()]
    if any("The actor died" in line or "The actor is unavailable" in line for line in lines):
        return "its process died: it was killed, or ran out of memory"
    return (lines or ["it failed"])[-1][:_LONGEST]
