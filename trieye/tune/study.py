"""Study: many trials of an experiment under Ray Tune, begun, gone on with and summed up."""

import importlib
import logging
import math
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter

from trieye.checkpoints.directory import peek
from trieye.checkpoints.store import CheckpointStore
from trieye.config import RuntimeConfig, TrieyeConfig
from trieye.config.hydra.launch import launch_info
from trieye.config.sweeper import SweeperConfig
from trieye.config.tune import study_dir
from trieye.exceptions import ConfigurationError, RunInterrupted, TrieyeError
from trieye.experiment.experiment import Experiment
from trieye.experiment.finished import Result
from trieye.files.run_files import RunFiles
from trieye.hub.ray_start import join_ray
from trieye.process.progress import say
from trieye.process.signals import StopSignals, exit_code_of
from trieye.run.application import check_start
from trieye.sweeps.launcher import record_of_study
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.report import final_table
from trieye.sweeps.search import remarks
from trieye.sweeps.status import status_of, sum_up
from trieye.sweeps.tracking import show_in_mlflow
from trieye.tune.best import best_config, write_best
from trieye.tune.schedulers import scheduler_of
from trieye.tune.search import Asking
from trieye.tune.space import Space
from trieye.tune.trainable import StudyPlace, as_trainable, run_name_of
from trieye.tune.values import named
from trieye.tune.watching import Watch, Watching

_STORED = "tune"
"""Directory, in that of the study, with what Ray Tune keeps."""

_KEPT = 4
"""Copies of a trial's newest checkpoints, from which others may go on meanwhile."""


class StudyError(TrieyeError):
    """Raised at the end of a study some of whose trials failed, or none of which came to its end."""


class Study:
    """One study; the same again goes on with it.

    Args:
        experiment: What is trained.
        config: The config of all trials, with `tune`.

    Raises:
        ConfigurationError: The study cannot be run like this; nothing was started.
    """

    def __init__(self, experiment: type[Experiment[Any]] | str, config: TrieyeConfig) -> None:
        launch = launch_info()
        if launch is not None and launch.is_multirun:
            raise ConfigurationError("tune runs many trials by itself, and -m many jobs; leave one of them out")
        self._launch = launch
        self._config = config
        self._space = Space(config)
        working_dir = Path.cwd() if launch is None else launch.working_dir
        self.directory = study_dir(working_dir, config.run_name).absolute()
        self._place = StudyPlace(self.directory, working_dir.absolute(), tuple(sys.path))
        self._trainable = as_trainable(experiment, config, self._place)
        self._size = self._num_trials()
        self._scheduler, self._search = scheduler_of(config, self._space), self._searcher()
        check_start(named(config, run_name_of(config, 0)))

    def run(self) -> Result:
        """Run the study, or what is left of it; return what the best trial has reached.

        Raises:
            ConfigurationError: A study of this name tried something else.
            RunLockedError: Another process runs it.
            RunInterrupted: A signal; the same command goes on with it.
            StudyError: Trials failed.
        """
        with lock_in(self.directory):
            record, before = record_of_study(self._config.loop.mode), SweepRecord.read(self.directory)
            record.study = {"run_name": self._config.run_name, **self._told()}
            record.varying, record.size = self._space.keys, self._size
            if before is not None:
                self._check_same(before, record)
                record.follow(before)
                record.summary = before.summary
            record.write(self.directory)
            if self._is_over(record):
                say(f"study {self._config.run_name!r} is finished; choose another run_name for another one")
            else:
                self._fit()
            return self._result(record)

    def _told(self) -> dict[str, Any]:
        """Return what makes the study this study."""
        asked = self._config.tune.model_dump(
            mode="json", include={"space", "search", "scheduler", "num_trials", "seed"}
        )
        return {**asked, "seed_of_trials": self._config.seed}

    def _check_same(self, before: SweepRecord, now: SweepRecord) -> None:
        if not before.is_study:
            raise ConfigurationError(f"{self.directory} holds a sweep; choose another run_name")
        for key, value in now.study.items():
            if before.study.get(key) != value:
                named_key = "seed" if key == "seed_of_trials" else f"tune.{key}"
                raise ConfigurationError(
                    f"study {self._config.run_name!r} was begun with {named_key}={before.study.get(key)}, and now it "
                    f"is {value}; a study goes on as it was begun: choose another run_name"
                )

    @staticmethod
    def _is_over(record: SweepRecord) -> bool:
        counts = {how: number for how, number in record.summary.items() if how in {"completed", "pruned"}}
        return bool(counts) and sum(counts.values()) == record.size

    def _num_trials(self) -> int:
        asked = self._config.tune
        if asked.search != "grid":
            return asked.num_trials
        return asked.num_trials * math.prod(len(held["grid_search"]) for held in self._space.domains().values())

    def _searcher(self) -> Any:
        asked, loop = self._config.tune, self._config.loop
        if asked.search != "optuna":
            return BasicVariantGenerator(random_state=asked.seed, max_concurrent=asked.at_once or 0)
        options = SweeperConfig(kind="optuna", sampler=asked.sampler, seed=asked.seed)
        search = Asking(
            self._space.dimensions, options, metric=loop.objective, mode=loop.mode, num_trials=asked.num_trials
        )
        return ConcurrencyLimiter(search, asked.at_once) if asked.at_once is not None else search

    def _fit(self) -> None:
        runtime = self._config.runtime
        is_cluster = runtime.kind == "cluster"
        with _quiet():
            join_ray(runtime if is_cluster else RuntimeConfig(kind="ray", num_cpus=runtime.num_cpus))
            self._check_room(is_cluster=is_cluster)
            watch = Watch(self._config, self.directory, self._space.keys, self._size)
            Watching.watch = watch
            stops = StopSignals(
                lambda _: signal.raise_signal(signal.SIGUSR1),  # which Tune takes for the wish to save and to stop
                "trials save and stop; the same signal again (or Ctrl-C) stops at once",
                requeue_exit_code=runtime.requeue_exit_code,
            )
            try:
                with watch.progress, stops:
                    results = self._tuner().fit()
                    while watch.given_up_early and stops.exit_code is None:
                        watch.given_up_early.clear()
                        results = self._tuner().fit()
            finally:
                watch.left()
                Watching.watch = None
        is_interrupted = results.num_terminated + results.num_errors < len(results)
        if stops.exit_code is not None or is_interrupted:
            code = stops.exit_code if stops.exit_code is not None else exit_code_of(signal.SIGUSR1)
            interrupt = RunInterrupted(
                f"the study was stopped; it goes on with the same command, or: trieye sweep relaunch {self.directory}",
                code,
            )
            interrupt.tell(say)
            raise interrupt

    def _check_room(self, *, is_cluster: bool) -> None:
        """Refuse trials that this Ray has no room for; a cluster may grow, so there it is only said.

        Raises:
            ConfigurationError: A trial needs more than there is.
        """
        needed, offered = self._trainable.default_resource_request({}).required_resources, ray.cluster_resources()
        missing = [
            f"{name} {need:g} of {offered.get(name, 0.0):g}"
            for name, need in needed.items()
            if need > offered.get(name, 0.0)
        ]
        if not missing:
            return
        text = (
            f"a trial with its explorers needs more than this Ray has ({', '.join(missing)}); lower tune.num_cpus, "
            "tune.num_gpus or what explorer.num explorers need (explorer.num_cpus, num_gpus, resources)"
        )
        if not is_cluster:
            raise ConfigurationError(f"{text}, or raise runtime.num_cpus")
        say(f"{text}; no trial starts until nodes join the cluster")

    def _tuner(self) -> tune.Tuner:
        stored = str(self.directory / _STORED)
        if tune.Tuner.can_restore(stored):
            return tune.Tuner.restore(stored, self._trainable, resume_errored=True, param_space=self._space.domains())
        asked, loop = self._config.tune, self._config.loop
        return tune.Tuner(
            self._trainable,
            param_space={} if asked.search == "optuna" else self._space.domains(),
            tune_config=tune.TuneConfig(
                metric=loop.objective,
                mode=loop.mode,
                search_alg=self._search,
                scheduler=self._scheduler,
                num_samples=asked.num_trials,
                reuse_actors=asked.reuse_actors,
                time_budget_s=asked.time_s,
                trial_dirname_creator=_own_directory,
            ),
            run_config=tune.RunConfig(
                name=_STORED,
                storage_path=str(self.directory),
                verbose=0,
                callbacks=[Watching()],
                stop=TargetStopper() if asked.target is not None else None,
                failure_config=tune.FailureConfig(max_failures=asked.retries),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=1, checkpoint_at_end=True, num_to_keep=_KEPT
                ),
            ),
        )

    def _result(self, record: SweepRecord) -> Result:
        """Write down and show what the study has found; return that of its best trial."""
        sum_up(self.directory, record)
        record.write(self.directory)
        show_in_mlflow(self.directory, record)
        final_table(self.directory, record)
        for remark in remarks(status_of(self.directory)) if self._config.tune.search != "grid" else []:
            say(remark)
        counts = ", ".join(f"{number} {how}" for how, number in record.summary.items() if how in _HOWS)
        failed = [job for job in status_of(self.directory) if job.how == "failed"]
        index = record.summary.get("best")
        if index is not None:
            self._write_best(int(index), float(record.summary["objective"]))
        if failed:
            record_of_first = failed[0].record
            said = "" if record_of_first is None else f"; trial {failed[0].index} said: {record_of_first.error}"
            raise StudyError(
                f"{counts} of {self._size} trials{said}. All of them: trieye sweep status {self.directory}; once more: "
                f"trieye sweep relaunch {self.directory}"
            )
        if index is None:
            raise StudyError(f"no trial of {self.directory} came to its end with an objective: {counts}")
        return self._result_of(int(index), float(record.summary["objective"]), counts)

    def _result_of(self, index: int, objective: float, reason: str) -> Result:
        config = named(self._config, run_name_of(self._config, index))
        paths = RunFiles(config.trieye.persistence)
        store = CheckpointStore(paths.checkpoint_dir, read_only=True)
        newest, ranked = store.entries()[-1], store.ranked(config.loop.mode)
        env_steps = int(peek(newest.path, "objects", "loop", "env_steps"))
        best = (ranked or [newest])[0].path
        return Result(objective, newest.step, env_steps, reason, paths.run_base_dir, best)

    def _write_best(self, index: int, objective: float) -> None:
        made = best_config(self._config, self.directory, index)
        path = write_best(made, self._launch, self.directory, index=index, objective=objective)
        say(f"the config of the best trial is in {path}: run it again with experiment={path.stem}")


_HOWS = ("completed", "pruned", "failed", "incomplete", "running", "missing")


class TargetStopper(tune.Stopper):  # type: ignore[misc]  # Ray has no types for us
    """Ends a study when a trial has reached the target; pickled with the study."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Stop no trial by itself."""
        del trial_id, result
        return False

    def stop_all(self) -> bool:
        """Tell whether the target is reached."""
        return Watching.watch is not None and Watching.watch.has_reached_target


def _own_directory(trial: Any) -> str:
    return str(trial.trial_id)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray Tune say nothing that the table and the records of the study say, and write no second set of curves."""
    wanted = {
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
    }
    before = {name: os.environ.get(name) for name in wanted}
    importlib.import_module("ray.tune.tune")  # it makes its logger
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.train", "ray.air")]
    levels = [logger.level for logger in loggers]
    os.environ |= wanted
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
