"""ActorLogic of trieye 0.1.5: the hub with that version's arguments and methods."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trieye.compat.actor_state import ActorState
from trieye.compat.events import RawMetricEvent, SentEvents, rows_of
from trieye.compat.serializer import LoadedTrainingState, Serializer
from trieye.compat.training_states import TrainingStates
from trieye.config import TrieyeConfig
from trieye.files.run_files import RunFiles
from trieye.files.run_record import RunRecord
from trieye.hub.directory import HubFiles
from trieye.hub.logic import SYNC_TIMEOUT_S, HubLogic, plain_step
from trieye.hub.requests import request
from trieye.sinks.base import Sink
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.tensorboard.sink import ScalarWriterSink
from trieye.snapshot.signing import Trust


class ActorLogic(HubLogic):
    """A hub that also takes single events and saves what `save_training_state` is given.

    Args:
        config: The config of the run.
        actor_state: Pending events; a new one if None.
        path_manager: File names of the run; made from the config if None. If given, `open` creates no directories,
            log file or config dump: the caller has its own.
        serializer: Reads and writes states.
        mlflow_run_id: The MLflow run to continue, for an injected client.
        mlflow_client, tb_writer: The MLflow client and the TensorBoard writer to use.
        **clocks: See `HubLogic`.
    """

    def __init__(
        self,
        config: TrieyeConfig,
        actor_state: ActorState | None = None,
        path_manager: RunFiles | None = None,
        serializer: Serializer | None = None,
        mlflow_run_id: str | None = None,
        mlflow_client: Any = None,
        tb_writer: Any = None,
        **clocks: Any,
    ) -> None:
        self._serializer = serializer or Serializer()
        make_files = HubFiles if path_manager is None else _GivenFiles
        trust = Trust(self._serializer.key, self._serializer.allow_pickle)
        super().__init__(config, files=make_files(config, trust, path_manager), **clocks)
        self._state = actor_state or ActorState()
        self._run_id, self._client, self._writer = mlflow_run_id, mlflow_client, tb_writer
        self._last_asked = self._clock()

    def _start(self, record: RunRecord, extra_config: Mapping[str, Any]) -> None:
        early, record.mlflow_run_id = self._state.take(), self._run_id or record.mlflow_run_id
        super()._start(record, extra_config)
        self._training = TrainingStates(self.files.states, self.config.persistence, self.files.paths, self._serializer)
        if early:  # Ray gives them to each hub of the attempt
            self.log_batch_events(early, key=f"early:{record.run_id}:{record.attempt}")

    def _pass(self, *, step: int | None, force: bool = False) -> None:
        if len(self._state):
            self.log_batch_events(self._state.take())
        super()._pass(step=step, force=force)
        self._state.update_last_processed_time(self._wall_clock())
        if step is not None:
            self._state.update_last_processed_step(plain_step(step))

    def _make_sinks(self) -> list[Sink]:
        sink_by_name: dict[str, Sink] = {}
        if self._client is not None:
            sink_by_name["mlflow"] = MlflowSink(self.files.note_mlflow_run_id, self._client)
        if self._writer is not None:
            sink_by_name["tensorboard"] = ScalarWriterSink(self._writer, self.config.sinks.tensorboard.flush_interval_s)
        return [sink_by_name.get(sink.name, sink) for sink in super()._make_sinks()]

    @request("ingest")
    def log_event(self, event: RawMetricEvent | SentEvents, *, key: str = "") -> None:
        """Accept one event; the hub counts anything else, and warns about it.

        Args:
            event: The event.
            key: The same text when the caller repeats the call; empty: the caller does not.

        Raises:
            RunClosedError: The run was shut down.
            JournalFullError: The journal cannot store the event now.
        """
        self.log_batch_events(event if isinstance(event, SentEvents) else [event], key=key)

    @request("ingest")
    def log_batch_events(self, events: Iterable[RawMetricEvent] | SentEvents, *, key: str = "") -> None:
        """Accept events; an invalid event does not affect its neighbors; see `log_event`."""
        self._check_open()
        self._ledger.accept_rows(*rows_of(events, arrived=self._wall_clock()), key=key)

    @request("ingest")
    def process_and_log(self, current_global_step: int) -> None:
        """Close windows up to a complete step, at most once per processing interval."""
        if self._clock() - self._last_asked >= self.config.stats.processing_interval_seconds:
            self._last_asked = self._clock()
            self._pass(step=current_global_step)

    @request("ingest")
    def force_process_and_log(self, current_global_step: int) -> None:
        """Log everything up to a step now, open windows too; returns when the sinks that work have the points."""
        self._pass(step=current_global_step, force=True)
        self._sinks.flush(SYNC_TIMEOUT_S, working_only=True)

    process_and_log_metrics = process_and_log

    def save_training_state(
        self, *, actor_state_data: dict[str, Any] | None = None, resolve: Callable[[Any], Any] = dict, **state: Any
    ) -> None:
        """Write a checkpoint, and a buffer if asked to, of the drop-in API.

        Args:
            actor_state_data: State of the hub; the present one if None.
            resolve: Resolves references in the state.
            **state: `nn_state_dict`, `optimizer_state_dict`, `buffer_content`, `global_step`, `episodes_played`,
                `total_simulations_run`, `is_best`, `save_buffer`, `model_config_dict`, `env_config_dict`, `user_data`.

        Raises:
            CheckpointError: Nothing was written; counted in `persistence/save_failures`.
        """
        step = state["global_step"]
        hub_state = self.get_state(plain_step(step)) if actor_state_data is None else actor_state_data
        self._saved(step, lambda: self._training.save(hub_state, resolve(state)))

    @request("ingest")
    def load_initial_state(self, _auto_resume_run_name: str | None = None, *, key: str = "") -> LoadedTrainingState:
        """Return the state of an earlier attempt or run, and continue its windows unless this attempt already does."""
        self._check_open()
        with self.status.doing("reading a checkpoint"):
            loaded_state, restored = self._training.find()
        if restored is None or not self._ledger.is_under_way(restored.hub_state):
            self._continue_from(restored, key)
        return loaded_state

    @request("ingest")
    def get_state(self, complete_step: int | None = None) -> dict[str, Any]:
        """Return the state of the hub for a checkpoint, as plain data.

        Args:
            complete_step: Close windows up to this step first: they are logged now, and not again by another attempt.
        """
        self._check_open()
        state = self._ledger.to_state(complete_step)
        self._show()
        return {**self._state.get_persistable_state(), **state}

    @request("ingest")
    def set_state(self, state: Mapping[str, Any], *, key: str = "") -> None:
        """Continue from a state of `get_state`, and supersede everything that was logged since; empty: start over."""
        self._rewind(state, key)

    def _rewind(self, state: Mapping[str, Any], key: str, step: int | None = None) -> None:
        super()._rewind(state, key, step)
        self._state.restore_from_state(dict(state))

    @request()
    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self.tracking.save_run_config(configs)

    save_initial_config = save_run_config


class _GivenFiles(HubFiles):
    """Files of a run whose directories, log file and config dump belong to the caller."""

    def open(self, **_: bool) -> RunRecord:
        """Open a journal and a history in memory."""
        self.record = RunRecord(app_name=self._config.app_name, run_name=self._config.run_name)
        self._open_stores(None)
        return self.record
