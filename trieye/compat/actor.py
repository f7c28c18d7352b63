"""TrieyeActor of trieye 0.1.5: the hub as a Ray actor with that version's arguments and methods."""

from typing import Any

import ray

from trieye.compat.actor_arguments import resolved, sends_events_plainly, sent_lightly
from trieye.compat.actor_logic import ActorLogic
from trieye.compat.actor_state import ActorState
from trieye.compat.path_manager import PathManager
from trieye.compat.serializer import Serializer
from trieye.config import TrieyeConfig
from trieye.files.run_files import RunFiles
from trieye.hub.actor import ACTOR_OPTIONS, HubActor, actor_name, find_hub, in_group, this_job, with_requests
from trieye.hub.ray_start import on_this_node
from trieye.process.lock import RunLock
from trieye.snapshot.signing import Trust

NAMESPACE = "trieye"


@ray.remote(**ACTOR_OPTIONS)
@sends_events_plainly
@with_requests(ActorLogic)
class TrieyeActor(HubActor):
    """Collects, aggregates and logs the metrics of a run, and saves and restores its state, in a separate process.

    Used as `TrieyeActor.options(name=..., lifetime="detached").remote(config=config)`. The actor also has the methods
    of `HubActor`, and one for each request of `ActorLogic`: `log_event`, `process_and_log` and so on.

    Args:
        config: The config of the run.
        _path_manager: File names to use; then no directories, log file or config dump are made.
        _serializer: Reads and writes states, with the key of the driver.
        _actor_state: Pending events.
        _mlflow_client: MLflow client to use.
        _tb_writer: TensorBoard writer to use.
    """

    _logic: ActorLogic

    def __init__(
        self,
        config: TrieyeConfig,
        _path_manager: PathManager | None = None,
        _serializer: Serializer | None = None,
        _actor_state: ActorState | None = None,
        _mlflow_client: Any = None,
        _tb_writer: Any = None,
    ) -> None:
        logic = ActorLogic(config, _actor_state, _path_manager, _serializer, None, _mlflow_client, _tb_writer)
        self._open(logic, owns_run=True, extra_config=None)

    @sent_lightly
    @in_group("save")
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
        state = {name: value for name, value in locals().items() if name != "self"}
        # asked of the ingest thread, so that every event sent before this call is in it
        hub_state = ray.get(ray.get_runtime_context().current_actor.get_state.remote())
        self._logic.save_training_state(actor_state_data=hub_state, resolve=resolved, **state)

    def get_run_base_dir_str(self) -> str:
        """Return the absolute directory of the run."""
        return str(self._logic.files.paths.run_base_dir)

    def get_config(self) -> TrieyeConfig:
        """Return a deep copy of the config."""
        return self._logic.config.model_copy(deep=True)


def get_or_create(config: TrieyeConfig, **options: Any) -> Any:
    """Return the detached actor of a run, from any script on the cluster.

    An actor that holds the run is found in every namespace and under any name, also after the death of its driver.

    Args:
        config: The config of the run, for a new actor.
        **options: Ray options, such as `namespace` (`trieye` if not given).
    """
    actor = find_hub(RunLock(RunFiles(config.persistence).lock_path))
    if actor is None:
        defaults = {
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": 0,
            "scheduling_strategy": on_this_node(),
        }
        actor = TrieyeActor.options(  # type: ignore[attr-defined]  # ray.remote adds it
            name=actor_name(config.run_name), get_if_exists=True, **{**defaults, **options}
        ).remote(config=config, _serializer=Serializer(**Trust.of_this_process()._asdict()))
    actor.add_driver.remote(this_job())
    return actor
