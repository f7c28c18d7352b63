"""Study: runs, resumes and summarizes the trials of an experiment under Ray Tune."""

import importlib
import logging
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import tune

from trieye.checkpoints.directory import peek
from trieye.checkpoints.store import CheckpointStore
from trieye.config import RuntimeConfig, TrieyeConfig
from trieye.config.hydra.launch import launch_info
from trieye.config.redaction import redacted
from trieye.config.sweeper import SweeperConfig
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError, RunInterrupted, TrieyeError
from trieye.experiment.experiment import Experiment
from trieye.experiment.finished import Result
from trieye.files.run_files import RUN_RECORD, RunFiles
from trieye.files.run_record import RunRecord, require_owner
from trieye.hub.ray_start import environment, join_ray
from trieye.process.lock import RunLock
from trieye.process.progress import say
from trieye.process.signals import StopSignals, exit_code_of
from trieye.process.text import command_text
from trieye.run.application import check_start
from trieye.runs.delivery import close
from trieye.runs.stored_run import config_in
from trieye.sweeps.jobs import STATUS, JobRecord
from trieye.sweeps.record import SWEEP, SweepRecord, lock_in
from trieye.sweeps.recorder import record_of_study
from trieye.sweeps.report import final_table
from trieye.sweeps.search import OptunaSearch, RandomSearch, Search, print_remarks
from trieye.sweeps.space import SearchSpace
from trieye.sweeps.status import ENDED, ENDED_BY, HOWS, status_of, sum_up
from trieye.sweeps.tracking import show_in_mlflow
from trieye.tune.best import best_config, changes_since, write_best
from trieye.tune.ended import ended_record, record_before, with_secrets_of
from trieye.tune.schedulers import scheduler_of
from trieye.tune.search import GridSearch, StudySearch
from trieye.tune.space import Space
from trieye.tune.trainable import StudyPlace, as_trainable, run_name_of
from trieye.tune.values import named
from trieye.tune.watching import StudyMonitor

_KEYS = {"seed_of_trials": "seed", "objective": "loop.objective", "mode": "loop.mode"}
"""Names in messages of the options that must not change."""

_STORED = "tune"
"""Subdirectory of the study with the state of Ray Tune."""

_MAX_PENDING = 200
"""Maximum number of trials that wait for resources; each has a placement group, and more of them slow Ray down."""

_CLOSING_S = 60.0
"""Seconds that the process of a pruned trial may take to close its run."""

_RETAINED_CHECKPOINTS = 4
"""Retained copies of a trial's newest checkpoints, since other trials may still be loading them."""


class StudyError(TrieyeError):
    """Raised at the end of a study if a trial failed, or if no trial completed."""


class Study:
    """One study; constructing it again resumes it.

    Args:
        experiment: The experiment to train.
        config: The config of all trials, with `tune`.

    Raises:
        ConfigurationError: The options are invalid; nothing was started.
    """

    def __init__(self, experiment: type[Experiment[Any]] | str, config: TrieyeConfig) -> None:
        launch = launch_info()
        if launch is not None and launch.is_multirun:
            raise ConfigurationError("tune=... and -m cannot be combined, since both run many jobs; remove either")
        self._launch = launch
        self._config = config
        self._space = Space(config)
        working_dir = Path.cwd() if launch is None else launch.working_dir
        self.directory = study_dir(working_dir, config.run_name).absolute()
        self._study_place = StudyPlace(self.directory, working_dir.absolute(), tuple(sys.path))
        self._trainable = as_trainable(experiment, config, self._study_place)
        self._size = config.tune.num_trials * (self._space.grid.size if config.tune.search == "grid" else 1)
        scheduler_of(config, self._space, self.directory), self._search()  # fail before anything starts
        check_start(named(config, run_name_of(config, 0)))

    def run(self) -> Result:
        """Run or resume the study; return the result of the best trial.

        Raises:
            ConfigurationError: A study of this name has other options.
            RunLockedError: Another process runs the study.
            RunInterrupted: A signal stopped the study; the same command resumes it.
            StudyError: A trial failed, or no trial completed.
        """
        with lock_in(self.directory):
            record, before = record_of_study(self._config.loop.mode), SweepRecord.read(self.directory)
            record.study = {"run_name": self._config.run_name, **self._identity()}
            record.varying, record.size = self._space.keys, self._size
            if before is not None:
                self._check_same(before, record)
                record.follow(before)
                record.summary = before.summary
            self._check_runs(before)
            self._check_stored(is_begun=before is not None)
            record.write(self.directory)
            limit = record.summary.get(ENDED_BY)
            if limit is not None:
                say(f"study {self._config.run_name!r} has ended: {limit}; for more trials, set another run_name")
            elif self._size in (sum(record.summary.get(how, 0) for how in ENDED), len(self._ended())):
                say(f"study {self._config.run_name!r} is finished; raise tune.num_trials, or set another run_name")
            else:
                limit = self._fit()
            return self._result(record, limit)

    def _identity(self) -> dict[str, Any]:
        """Return the options that must not change when the study resumes."""
        options = self._config.tune.model_dump(
            mode="json", include={"space", "search", "scheduler", "num_trials", "seed"}
        )
        loop, options["space"] = self._config.loop, redacted(options["space"])
        return {**options, "seed_of_trials": self._config.seed, "objective": loop.objective, "mode": loop.mode}

    def _check_same(self, old_record: SweepRecord, new_record: SweepRecord) -> None:
        if not old_record.is_study:
            raise ConfigurationError(f"{self.directory} contains a sweep, not a study; set another run_name")
        old_study = old_record.study
        for key, value in new_record.study.items():
            if key == "num_trials" and value > old_study[key]:
                say(f"study: grows from {old_study[key]} to {value} trials")
            elif old_study.get(key) != value:
                named_key = _KEYS.get(key, f"tune.{key}")
                raise ConfigurationError(
                    f"study {self._config.run_name!r} was started with {named_key}={old_study.get(key)} and cannot "
                    f"resume with {value}; restore the value, or set another run_name"
                )

    def _check_runs(self, before: SweepRecord | None) -> None:
        """Check that trials have new runs or resume their own; record the new directory in the runs of a moved study.

        Raises:
            ConfigurationError: A trial would resume a run that the study did not start, and report its objective, or
                the study or a run is a copy.
        """
        directory, old_dir = str(self.directory), "" if before is None else self._former_directory(before)
        moved_runs: dict[Path, RunRecord] = {}
        for index in range(self._size):
            run_dir, job_dir = self._run_dir(index), self.directory / str(index)
            run, has_ended = RunRecord.read(run_dir / RUN_RECORD), ended_record(job_dir) is not None
            is_begun = before is not None or (job_dir / STATUS).exists()
            if run is None or (is_begun and run.group == directory):
                continue
            if is_begun and run.group == old_dir:
                moved_runs[run_dir / RUN_RECORD] = run
                if not has_ended:
                    require_owner(run, run_dir, accept_move=True)
            elif not has_ended:
                raise ConfigurationError(
                    f"run_name={self._config.run_name}: trial {index} would resume {run_dir}, which this study did "
                    f"not start; delete it ({command_text('rm', run_dir)}), or set another run_name"
                )
        for path, run in moved_runs.items():
            run.group = directory
            run.save(path)

    def _check_stored(self, *, is_begun: bool) -> None:
        """Check that Tune's directory belongs to this study, which replaces it at each start.

        Raises:
            ConfigurationError: It is a link, or was there before the study.
        """
        stored_dir = self.directory / _STORED
        is_begun = is_begun or any(self.directory.glob(f"*/{STATUS}"))
        if stored_dir.is_symlink() or (stored_dir.exists() and not is_begun):
            kind = "is a link" if stored_dir.is_symlink() else "was not written by this study"
            raise ConfigurationError(f"{stored_dir} {kind} and would be replaced; move it, or set another run_name")

    def _former_directory(self, before: SweepRecord) -> str:
        """Return the directory of the study at its last start, where a copied study has its original."""
        old_dir = Path(before.directory or self.directory)
        if (old_dir / SWEEP).exists() and not old_dir.samefile(self.directory):
            raise ConfigurationError(
                f"{self.directory} is a copy of the study in {old_dir}: both would write to the same runs; resume the "
                "original, or set another run_name"
            )
        return str(old_dir)

    def _run_dir(self, index: int) -> Path:
        return named(self._config, run_name_of(self._config, index)).persistence.get_run_base_dir()

    def _search(self) -> Search:
        config = self._config.tune
        if config.search == "grid":
            return GridSearch(self._space.grid)
        space = SearchSpace.of(self._space.dimensions)
        if config.search == "random":
            return RandomSearch(space, config.seed)
        options = SweeperConfig(kind="optuna", sampler=config.sampler, seed=config.seed)
        return OptunaSearch(space, options, self._config.loop.mode)

    def _records(self) -> dict[int, JobRecord]:
        """Return the records of the trials of earlier starts by index, with the secrets in their values."""
        records = (record_before(self.directory / str(index)) for index in range(self._size))
        return {
            record.index: msgspec.structs.replace(
                record, overrides=with_secrets_of(self._space.dimensions, record.overrides)
            )
            for record in records
            if record is not None
        }

    def _ended(self) -> list[JobRecord]:
        """Return the records of the trials that have ended, unless the checkpoint of their last step is gone."""
        records = (ended_record(self.directory / str(index)) for index in range(self._size))
        return [record for record in records if record is not None and self._has_checkpoint(record)]

    def _has_checkpoint(self, record: JobRecord) -> bool:
        paths = RunFiles(named(self._config, run_name_of(self._config, record.index)).trieye.persistence)
        store = CheckpointStore(paths.checkpoint_dir, read_only=True)
        return record.step is not None and store.path(record.step).exists()

    def _fit(self) -> str | None:
        """Run the trials; return the limit that ended the study before its trials, or None."""
        runtime = self._config.runtime
        is_cluster = runtime.kind == "cluster"
        # Optuna's samplers choose as late as possible, from the results of all other trials
        num_pending = 1 if self._config.tune.search == "optuna" else _MAX_PENDING
        with _quiet(num_pending):
            join_ray(runtime if is_cluster else RuntimeConfig(kind="ray", num_cpus=runtime.num_cpus))
            self._check_room(is_cluster=is_cluster)
            monitor = StudyMonitor(self._config, self.directory, self._space.keys, self._size, self._ended())
            stops = StopSignals(
                lambda _: signal.raise_signal(signal.SIGUSR1),  # Tune saves and stops on this signal
                "trials are saving and stopping; the same signal again (or Ctrl-C) stops at once",
                requeue_exit_code=runtime.requeue_exit_code,
            )
            try:
                with monitor.progress, stops:
                    results = self._tuner(monitor).fit()
                    while monitor.retryable and stops.exit_code is None:
                        monitor.retryable.clear()
                        results = self._tuner(monitor).fit()
                    is_interrupted = results.num_terminated + results.num_errors < len(results)
                    is_interrupted |= stops.exit_code is not None
                    limit = None if is_interrupted else monitor.end_by_limit()
            finally:
                monitor.mark_interrupted()
        if is_interrupted:
            code = stops.exit_code if stops.exit_code is not None else exit_code_of(signal.SIGUSR1)
            interrupt = RunInterrupted(
                "the study was stopped; resume it with the same command, or: "
                f"{command_text('sweep', 'relaunch', self.directory)}",
                code,
            )
            interrupt.tell(say)
            raise interrupt
        return limit

    def _check_room(self, *, is_cluster: bool) -> None:
        """Check that Ray has the resources for a trial; on a cluster, which may grow, only warn.

        Raises:
            ConfigurationError: A trial needs more resources than a local Ray has.
        """
        demand, supply = self._trainable.default_resource_request({}).required_resources, ray.cluster_resources()
        shortages = [
            f"{name} {amount:g} of {supply.get(name, 0.0):g}"
            for name, amount in demand.items()
            if amount > supply.get(name, 0.0)
        ]
        if not shortages:
            return
        text = (
            f"a trial with its explorers needs more than Ray has ({', '.join(shortages)}); lower tune.num_cpus, "
            "tune.num_gpus, explorer.num or the resources of an explorer (explorer.num_cpus, num_gpus, resources)"
        )
        if not is_cluster:
            raise ConfigurationError(f"{text}, or raise runtime.num_cpus")
        say(f"{text}; no trial starts until nodes join the cluster")

    def _tuner(self, monitor: StudyMonitor) -> tune.Tuner:
        """Return a tuner of the trials that have not ended, whose runs resume from their own checkpoints."""
        if (self.directory / _STORED).exists():
            shutil.rmtree(self.directory / _STORED)  # of an earlier start
        config, ended = self._config.tune, [record.index for record in self._ended()]
        search = StudySearch(
            self._search(),
            self._size,
            self._records(),
            ended,
            directory=self.directory,
            max_concurrent=config.max_concurrent_trials,
        )
        return tune.Tuner(
            self._trainable,
            tune_config=tune.TuneConfig(
                search_alg=search,
                scheduler=scheduler_of(self._config, self._space, self.directory, ended),
                reuse_actors=config.reuse_actors,
                time_budget_s=config.time_s,
                trial_dirname_creator=_own_directory,
            ),
            run_config=tune.RunConfig(
                name=_STORED,
                storage_path=str(self.directory),
                verbose=0,
                callbacks=[monitor],
                stop=monitor,
                failure_config=tune.FailureConfig(max_failures=config.max_failures),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=1, checkpoint_at_end=True, num_to_keep=_RETAINED_CHECKPOINTS
                ),
            ),
        )

    def _result(self, record: SweepRecord, limit: str | None) -> Result:
        """Record and print the results of the study; return the result of its best trial."""
        self._close_trials()
        record.summary = {} if limit is None else {ENDED_BY: limit}
        record.write(self.directory)  # which determines the states of trials that had not started
        jobs = status_of(self.directory)
        sum_up(jobs, record)
        record.write(self.directory)
        show_in_mlflow(self.directory, record, jobs)
        final_table(jobs, record, self.directory)
        if self._config.tune.search != "grid":
            print_remarks(jobs)
        counts = ", ".join(f"{number} {how}" for how, number in record.summary.items() if how in HOWS)
        counts += "" if limit is None else f" ({limit})"
        failed = [job for job in jobs if job.how == "failed"]
        index = record.summary.get("best")
        if index is not None:
            self._write_best(int(index), float(record.summary["objective"]))
        if failed:
            record_of_first = failed[0].record
            error = "" if record_of_first is None else f"; trial {failed[0].index} failed with {record_of_first.error}"
            raise StudyError(
                f"{counts} of {self._size} trials{error}. For all trials: "
                f"{command_text('sweep', 'status', self.directory)}; to retry: "
                f"{command_text('sweep', 'relaunch', self.directory)}"
            )
        if index is None:
            raise StudyError(f"no trial of {self.directory} completed with an objective: {counts}")
        return self._result_of(int(index), float(record.summary["objective"]), counts)

    def _close_trials(self) -> None:
        """Deliver the values of pruned trials whose processes were killed, or had no time to deliver them."""
        for index in range(self._size):
            run_dir, record = self._run_dir(index), ended_record(self.directory / str(index))
            if record is None or record.state != "pruned":
                continue
            try:
                run = RunRecord.read(run_dir / RUN_RECORD)
                if run is None or run.group != str(self.directory):  # another study has taken the name of the run
                    continue
                RunLock(run_dir / "run.lock").acquire(_CLOSING_S).release()  # Tune ends before its trials
                missing_by_sink = close(run_dir).missing
            except TrieyeError as error:
                say(f"trial {index} is not closed: {error}")
                continue
            if missing_by_sink:
                lacks = "; ".join(f"{sink}: {missing_text}" for sink, missing_text in missing_by_sink.items())
                say(f"trial {index}: {lacks}; later: {command_text('close', run_dir)}")

    def _result_of(self, index: int, objective: float, reason: str) -> Result:
        config = named(self._config, run_name_of(self._config, index))
        paths = RunFiles(config.trieye.persistence)
        store = CheckpointStore(paths.checkpoint_dir, read_only=True)
        newest_entry, ranked_entries = store.entries()[-1], store.ranked(config.loop.mode)
        env_steps = int(peek(newest_entry.path, "objects", "loop", "env_steps"))
        best_path = (ranked_entries or [newest_entry])[0].path
        return Result(objective, newest_entry.step, env_steps, reason, paths.run_base_dir, best_path)

    def _write_best(self, index: int, objective: float) -> None:
        config, values = best_config(self._config, self.directory, index)
        try:
            changes = "; ".join(changes_since(config, values, config_in(self._run_dir(index))))
            reason = f"the config of the study has changed since: {changes}" if changes else ""
        except ConfigurationError as error:  # only the preset needs the config of the run, not the result of the study
            reason = str(error)
        if reason:
            say(f"the preset of the best trial is not written, because {reason}")
            return
        path = write_best((config, values), self._launch, self.directory, index=index, objective=objective)
        say(f"the config of the best trial is in {path}; rerun it with experiment={path.stem}")


def _own_directory(trial: Any) -> str:
    return str(trial.trial_id)


@contextmanager
def _quiet(num_pending: int) -> Iterator[None]:
    """Silence Ray Tune's output and loggers, which duplicate the table, records and curves of the study.

    Args:
        num_pending: Maximum number of trials that wait for resources.
    """
    variables = {
        "TUNE_MAX_PENDING_TRIALS_PG": str(num_pending),
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }
    importlib.import_module("ray.tune.tune")  # creates its logger
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray.air")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with environment(variables), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
