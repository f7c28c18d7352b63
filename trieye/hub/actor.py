"""TrieyeActor: the hub as a Ray actor; it only forwards to `ActorLogic`."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import ray

from trieye.checkpoints.path_manager import PathManager
from trieye.checkpoints.serializer import LoadedTrainingState, Serializer
from trieye.config import TrieyeConfig
from trieye.files.run_record import MetricSummary, RunStatus
from trieye.hub.actor_arguments import resolved, sent_lightly, sent_plainly
from trieye.hub.detached import Drivers, describe_hub, find_hub, on_this_node, this_job
from trieye.hub.logic import ActorLogic
from trieye.hub.pending import ActorState, RawMetricEvent
from trieye.process.lock import RunLock
from trieye.process.niceness import get_a_fair_share
from trieye.process.signals import outlive_signals
from trieye.snapshot.encode import EncodedState
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation

NAMESPACE = "trieye"


Method = TypeVar("Method", bound=Callable[..., Any])


def _in_group(name: str) -> Callable[[Method], Method]:
    """Run a method on the threads of a concurrency group."""
    decorator: Callable[[Method], Method] = ray.method(concurrency_group=name)
    return decorator


def actor_name(run_name: str) -> str:
    """Return the name by which the actor of a run is found."""
    return f"trieye_actor_{run_name}"


def _call_id() -> str:
    """Return what tells the present call from every other one, and is the same when Ray repeats it."""
    return str(ray.get_runtime_context().get_task_id())


def _is_restart() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own use of what it deprecates
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


# `ingest` has one thread, so events are taken in the order in which each caller sent them, and a long save in `save`
# never delays them; who waits for MLflow waits in `wait`. Everything else is quick and runs in the default group.
# A call that was under way when the process died is made again by Ray, so each has to stand being made twice.
@ray.remote(max_restarts=-1, max_task_retries=-1, concurrency_groups={"ingest": 1, "save": 1, "wait": 4})
class TrieyeActor:
    """Collects, aggregates and logs the metrics of a run, and saves and restores its state, in a process of its own.

    Used as `TrieyeActor.options(name=..., lifetime="detached").remote(config=config)`. Heavy libraries are imported in
    the background, so the actor answers at once.

    Args:
        config: The config of the run.
        _path_manager: File names to use; then no directories, log file or config dump are made.
        _serializer: Reads and writes states, with the key of the driver.
        _actor_state: Pending events.
        _mlflow_client: MLflow client to use.
        _tb_writer: TensorBoard writer to use.
        _owns_run: Take the run's lock here; False if the driver holds it.
        _extra_config: What configs.json holds besides.
    """

    def __init__(
        self,
        config: TrieyeConfig,
        _path_manager: PathManager | None = None,
        _serializer: Serializer | None = None,
        _actor_state: ActorState | None = None,
        _mlflow_client: Any = None,
        _tb_writer: Any = None,
        *,
        _owns_run: bool = True,
        _extra_config: Mapping[str, Any] | None = None,
    ) -> None:
        outlive_signals()
        get_a_fair_share()
        describe_hub()
        self._drivers = Drivers()
        self._logic = ActorLogic(
            config,
            _actor_state,
            _path_manager,
            _serializer,
            mlflow_client=_mlflow_client,
            tb_writer=_tb_writer,
        ).open(owns_run=_owns_run, is_restart=_is_restart(), extra_config=_extra_config)

    @sent_plainly
    @_in_group("ingest")
    def log_event(self, event: RawMetricEvent) -> None:
        """Accept one event."""
        self._logic.log_event(event, key=_call_id())

    @sent_plainly
    @_in_group("ingest")
    def log_batch_events(self, events: list[RawMetricEvent]) -> None:
        """Accept events."""
        self._logic.log_batch_events(events, key=_call_id())

    @_in_group("ingest")
    def log_columns(self, batch: EventBatch, *, client: str = "", seq: int | None = None) -> None:
        """Accept events in columns; see `ActorLogic.log_columns`."""
        self._logic.log_columns(batch, client=client, seq=seq)

    @_in_group("ingest")
    def log_operation(self, operation: Operation, *, key: str | None = None) -> None:
        """Record a histogram, a picture or a text."""
        self._logic.log_operation(operation, key=key or _call_id())

    @_in_group("ingest")
    def count_dropped(self, reason: str, count: int, *, key: str | None = None) -> None:
        """Count events that a client had to drop."""
        self._logic.count_dropped(reason, count, key=key or _call_id())

    @_in_group("ingest")
    def process_and_log(self, current_global_step: int) -> None:
        """Say that a step is complete; does nothing before the processing interval is over."""
        self._logic.process_and_log(current_global_step)

    @_in_group("ingest")
    def force_process_and_log(self, current_global_step: int) -> None:
        """Log everything up to a step now."""
        self._logic.force_process_and_log(current_global_step)

    @_in_group("ingest")
    def flush(self, complete_step: int | None = None) -> None:
        """Put every accepted event into its window, and close windows up to a step."""
        self._logic.flush(complete_step)

    @_in_group("ingest")
    def load_initial_state(self, _auto_resume_run_name: str | None = None) -> LoadedTrainingState:
        """Return what an earlier attempt or run left."""
        return self._logic.load_initial_state(key=_call_id())

    @_in_group("ingest")
    def restore(self, *, group: str | None, config_hash: str | None) -> tuple[EncodedState, dict[str, Any]] | None:
        """Return the state to go on with and its origin."""
        return self._logic.restore(group=group, config_hash=config_hash, key=_call_id())

    @_in_group("ingest")
    def get_state(self, complete_step: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint keeps of the hub, after closing windows up to a step."""
        return self._logic.get_state(complete_step)

    @_in_group("ingest")
    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where `get_state` left off."""
        self._logic.set_state(state, key=_call_id())

    @_in_group("ingest")
    def summary(self) -> dict[str, MetricSummary]:
        """Return the extremes of the points of each metric."""
        return self._logic.summary()

    @sent_lightly
    @_in_group("save")
    def save_training_state(  # noqa: PLR0913, PLR0917 - the drop-in API
        self,
        nn_state_dict: Any,
        optimizer_state_dict: Any,
        buffer_content: Any,
        global_step: int,
        episodes_played: int,
        total_simulations_run: int,
        is_best: bool = False,
        save_buffer: bool = False,
        model_config_dict: dict[str, Any] | None = None,
        env_config_dict: dict[str, Any] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint, and a buffer if asked to; what raises has written nothing.

        Models, optimizers and buffers may be objects with a `state_dict()`; `ObjectRef`s may be anywhere in the lists,
        tuples, sets, deques and dicts of the arguments.
        """
        # asked of the ingest thread, so that every event sent before this call is in it
        hub_state = ray.get(ray.get_runtime_context().current_actor.get_state.remote())
        self._logic.save_training_state(
            actor_state_data=hub_state,
            resolve=resolved,
            nn_state_dict=nn_state_dict,
            optimizer_state_dict=optimizer_state_dict,
            buffer_content=buffer_content,
            global_step=global_step,
            episodes_played=episodes_played,
            total_simulations_run=total_simulations_run,
            is_best=is_best,
            save_buffer=save_buffer,
            model_config_dict=model_config_dict,
            env_config_dict=env_config_dict,
            user_data=user_data,
        )

    @_in_group("save")
    def save_checkpoint(
        self, step: int, state: EncodedState, metadata: Mapping[str, Any], hub_state: Mapping[str, Any]
    ) -> str:
        """Write a checkpoint and return its path."""
        return self._logic.save_checkpoint(step, state, metadata, hub_state)

    @_in_group("save")
    def shutdown(self, status: RunStatus = "FINISHED", *, patient: bool = False) -> None:
        """Wait for the saves and events sent before, log what is left and close everything."""
        me = ray.get_runtime_context().current_actor
        ray.wait([me.flush.remote(), me.health.remote()], num_returns=2)  # what was sent before, in either group
        self._logic.shutdown(status, patient=patient)

    @_in_group("save")
    def terminate(self, status: RunStatus = "FINISHED") -> None:
        """Shut down and end the process, so that a detached actor gives its name back."""
        self.shutdown(status)
        ray.actor.exit_actor()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run."""
        self._logic.tracking.log_params(params)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        self._logic.tracking.set_tags(tags)

    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Keep a file with the run."""
        self._logic.tracking.log_artifact(path, artifact_path)

    def save_run_config(self, configs: dict[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self._logic.tracking.save_run_config(configs)

    def get_actor_name(self) -> str:
        """Return `trieye_actor_<run_name>`."""
        return actor_name(self._logic.config.run_name)

    @_in_group("wait")
    def get_mlflow_run_id(self) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready soon after the start of the actor."""
        return self._logic.tracking.mlflow_run_id()

    @_in_group("wait")
    def wait_mlflow_run_id(self, timeout_s: float) -> str | None:
        """Return the id of the MLflow run; None if MLflow is off or not ready in time."""
        return self._logic.tracking.mlflow_run_id(timeout_s)

    @_in_group("wait")
    def progress(self) -> str:
        """Return what takes long at the moment and how far it is, in words; it changes as long as work goes on."""
        return self._logic.status.progress()

    def get_run_base_dir_str(self) -> str:
        """Return the absolute directory of the run."""
        return str(self._logic.files.paths.run_base_dir)

    def get_config(self) -> TrieyeConfig:
        """Return a deep copy of the config."""
        return self._logic.config.model_copy(deep=True)

    def add_driver(self, job_id: str) -> None:
        """Count a driver that goes on with this hub."""
        self._drivers.add(job_id)

    def living_drivers(self) -> list[str]:
        """Return the processes that use this hub, as far as they started it or called `get_or_create`."""
        return self._drivers.living()

    def health(self) -> dict[str, Any]:
        """Return the state of each sink, drops by reason, late events and failed saves."""
        return self._logic.health()

    def close_tb_writer(self) -> None:
        """Flush and close the TensorBoard sink."""
        self._logic.tracking.close_tb_writer()


def get_or_create(config: TrieyeConfig, **options: Any) -> Any:
    """Return the detached actor of a run, from any script on the cluster.

    An actor that holds the run is found in every namespace and under any name, also after the death of its driver.

    Args:
        config: The config of the run, for a new actor.
        **options: Ray options, such as `namespace` (`trieye` if not given).
    """
    actor = find_hub(RunLock(PathManager(config.persistence).lock_path))
    if actor is None:
        own = {"namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "scheduling_strategy": on_this_node()}
        actor = TrieyeActor.options(  # type: ignore[attr-defined]  # ray.remote adds it
            name=actor_name(config.run_name), get_if_exists=True, **{**own, **options}
        ).remote(config=config, _serializer=Serializer.of_this_process())
    actor.add_driver.remote(this_job())
    return actor
