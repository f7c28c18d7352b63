"""TrieyeActor: the hub as a Ray actor; it only forwards to `ActorLogic`."""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ray

from trieye.checkpoints.path_manager import PathManager
from trieye.checkpoints.serializer import LoadedTrainingState, Serializer
from trieye.config import TrieyeConfig
from trieye.files.run_record import RunStatus
from trieye.hub.actor_arguments import resolved, sent_lightly, sent_plainly
from trieye.hub.fold import ActorState
from trieye.hub.ledger import Ledger
from trieye.hub.logic import ActorLogic
from trieye.hub.ray_start import on_this_node
from trieye.hub.requests import Group, requests_of
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking
from trieye.process.lock import RunLock, describe_process
from trieye.process.niceness import get_a_fair_share
from trieye.process.signals import outlive_signals
from trieye.sinks.base import Sink

NAMESPACE = "trieye"

Method = TypeVar("Method", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


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


def describe_hub() -> None:
    """Say in the records of the locks that this process takes which actor of which cluster it is."""
    context = ray.get_runtime_context()
    describe_process(
        kind="hub",
        address=context.gcs_address,
        namespace=context.namespace,
        actor=context.get_actor_name() or "",
        actor_id=context.get_actor_id() or "",
    )


def find_hub(lock: RunLock) -> Any | None:
    """Return the actor that holds a run, from whichever namespace; None if it is none of this cluster, or dead.

    Args:
        lock: The lock of the run.
    """
    holder = lock.holder() or {}
    if not lock.is_of_hub or not holder.get("actor"):
        return None
    try:
        actor = ray.get_actor(holder["actor"], namespace=holder.get("namespace"))
    except ValueError:
        return None
    # another cluster may have an actor of that name
    return actor if actor._actor_id.hex() == holder.get("actor_id") else None  # noqa: SLF001 - docs/private_apis.md


def this_job() -> str:
    """Return the id under which Ray knows the driver of this process."""
    return str(ray.get_runtime_context().get_job_id())


class Drivers:
    """The drivers of a hub, in whose process this is made: the first driver is the one that started the hub."""

    def __init__(self) -> None:
        self._jobs = {this_job()}

    def add(self, job_id: str) -> None:
        """Count a driver that goes on with the hub."""
        self._jobs.add(job_id)

    def living(self) -> list[str]:
        """Return those that live, for people: their process and its machine."""
        table = ray._private.state.jobs()  # noqa: SLF001 - docs/private_apis.md
        return [
            f"process {job['DriverPid']} on {job['DriverIPAddress']}"
            for job in table
            if job["JobID"] in self._jobs and not job["IsDead"]
        ]


def _forwarding(request: Callable[..., Any], group: Group) -> Callable[..., Any]:
    """Return a method of the actor that makes a request of its logic."""
    has_key = "key" in inspect.signature(request).parameters

    @functools.wraps(request)
    def forward(self: "TrieyeActor", *args: Any, **kwargs: Any) -> Any:
        if has_key:
            kwargs.setdefault("key", _call_id())
        return request(self._logic.parts[request.__name__], *args, **kwargs)

    # Ray looks for its marks on what is wrapped, where there are none; it is to find them here
    del forward.__wrapped__
    forward.__signature__ = inspect.signature(request)  # type: ignore[attr-defined]
    made = _in_group(group)(forward) if group else forward
    return sent_plainly(made) if request in {ActorLogic.log_event, ActorLogic.log_batch_events} else made


def _with_requests(actor: Class) -> Class:
    """Give a class a method for each request of a hub."""
    for part in (ActorLogic, Ledger, Tracking, HubStatus):
        for request, group in requests_of(part):
            setattr(actor, request.__name__, _forwarding(request, group))
    return actor


# The concurrency groups are those of `requests.Group`.
@ray.remote(max_restarts=-1, max_task_retries=-1, concurrency_groups={"ingest": 1, "save": 1, "wait": 4})
@_with_requests
class TrieyeActor:
    """Collects, aggregates and logs the metrics of a run, and saves and restores its state, in a process of its own.

    Used as `TrieyeActor.options(name=..., lifetime="detached").remote(config=config)`. Heavy libraries are imported in
    the background, so the actor answers at once. Besides the methods below, the actor has a method for each request
    (`trieye.hub.requests`) of `ActorLogic`, `Ledger`, `Tracking` and `HubStatus`, with the same name and arguments:
    `log_event`, `process_and_log`, `log_columns`, `set_tags`, `progress` and so on.

    Args:
        config: The config of the run.
        _path_manager: File names to use; then no directories, log file or config dump are made.
        _serializer: Reads and writes states, with the key of the driver.
        _actor_state: Pending events.
        _mlflow_client: MLflow client to use.
        _tb_writer: TensorBoard writer to use.
        _owns_run: Take the run's lock here; False if the driver holds it.
        _extra_config: What configs.json holds besides.
        _sinks: Sinks besides those of the config.
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
        _sinks: Sequence[Sink] = (),
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
            sinks=_sinks,
        ).open(owns_run=_owns_run, is_restart=_is_restart(), extra_config=_extra_config)

    @_in_group("ingest")
    def load_initial_state(self, _auto_resume_run_name: str | None = None) -> LoadedTrainingState:
        """Return what an earlier attempt or run left."""
        return self._logic.load_initial_state(key=_call_id())

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

    def get_actor_name(self) -> str:
        """Return `trieye_actor_<run_name>`."""
        return actor_name(self._logic.config.run_name)

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
