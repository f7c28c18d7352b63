"""ActorLogic of trieye 0.1.5: the hub with that version's arguments and methods."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from trieye.sinks.base import RunInfo, Sink
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
        sinks: Sinks besides those of the config.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.
    """

    files: "_Files"

    def __init__(  # noqa: PLR0913 - the arguments of 0.1.5
        self,
        config: TrieyeConfig,
        actor_state: ActorState | None = None,
        path_manager: RunFiles | None = None,
        serializer: Serializer | None = None,
        mlflow_run_id: str | None = None,
        mlflow_client: Any = None,
        tb_writer: Any = None,
        *,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        make_files = _Files if path_manager is None else _GivenFiles
        files = make_files(config, serializer or Serializer(), path_manager)
        super().__init__(config, files=files, sinks=sinks, clock=clock, wall_clock=wall_clock)
        self._pending = self._state = actor_state or ActorState()
        self.files.mlflow_run_id, self._client, self._writer = mlflow_run_id, mlflow_client, tb_writer
        self._last_asked = clock()

    def _start(self, record: RunRecord, extra_config: Mapping[str, Any]) -> None:
        early = self._state.take()
        super()._start(record, extra_config)
        for number, batch in enumerate(early):  # which comes again with each hub of this attempt
            self._ledger.log_columns(batch, client=f"early:{record.attempt}:{number}")

    def _make_sinks(self) -> list[Sink]:
        given: dict[str, Sink] = {}
        if self._client is not None:
            given["mlflow"] = MlflowSink(self.files.note_mlflow_run_id, self._client)
        if self._writer is not None:
            given["tensorboard"] = ScalarWriterSink(self._writer, self.config.sinks.tensorboard.flush_interval_s)
        return [given.get(sink.name, sink) for sink in super()._make_sinks()]

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
        """Accept events; one that is not valid never costs its neighbors; see `log_event`."""
        self._check_open()
        self._ledger.accept_rows(*rows_of(events, arrived=self._wall_clock()), key=key)

    @request("ingest")
    def process_and_log(self, current_global_step: int) -> None:
        """Say that a step is complete; does nothing if the last call was less than the processing interval ago."""
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
            resolve: Replaces what stands for a value elsewhere.
            **state: `nn_state_dict`, `optimizer_state_dict`, `buffer_content`, `global_step`, `episodes_played`,
                `total_simulations_run`, `is_best`, `save_buffer`, `model_config_dict`, `env_config_dict`, `user_data`.

        Raises:
            CheckpointError: Nothing was written; counted in `persistence/save_failures`.
        """
        step = state["global_step"]
        hub_state = self.get_state(plain_step(step)) if actor_state_data is None else actor_state_data
        self._saved(step, lambda: self.files.states.save_training(hub_state, resolve(state)))

    def load_initial_state(self, *, key: str = "") -> LoadedTrainingState:
        """Return what an earlier attempt or run left, and go on with its windows, unless the run goes on already."""
        self._check_open()
        with self.status.doing("reading a checkpoint"):
            loaded, restored = self.files.states.find_training()
        if restored is None or not self._ledger.is_under_way(restored.hub_state):
            self._go_on_from(restored, key)
        return loaded

    @request("ingest")
    def get_state(self, complete_step: int | None = None) -> dict[str, Any]:
        """Return what a checkpoint keeps of the hub, as plain data.

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

    def _rewind(self, state: Mapping[str, Any], key: str) -> None:
        super()._rewind(state, key)
        self._state.restore_from_state(dict(state))

    @request()
    def save_run_config(self, configs: Mapping[str, Any]) -> None:
        """Add to configs.json, and record it."""
        self.tracking.save_run_config(configs)

    save_initial_config = save_run_config


class _Files(HubFiles):
    """Files of a run whose states are those of `save_training_state`.

    Args:
        config: The config of the run.
        serializer: Reads and writes states.
        paths: File names; made from the config if None.

    Attributes:
        mlflow_run_id: The MLflow run of an injected client; None: that of earlier attempts, if any.
    """

    states: TrainingStates
    mlflow_run_id: str | None = None

    def __init__(self, config: TrieyeConfig, serializer: Serializer, paths: RunFiles | None) -> None:
        super().__init__(config, Trust(serializer.key, serializer.allow_pickle), paths)
        self._serializer = serializer

    def _make_states(self) -> TrainingStates:
        return TrainingStates(self._config.persistence, self.paths, self._serializer, self.record.attempt)

    def run_info(self) -> RunInfo:
        """Return what the sinks may know of the run."""
        info = super().run_info()
        return replace(info, mlflow_run_id=self.mlflow_run_id or info.mlflow_run_id)


class _GivenFiles(_Files):
    """Files of a run whose directories, log file and config dump belong to the caller."""

    def open(self, **_: bool) -> RunRecord:
        """Open a journal and a history in memory."""
        self.record = RunRecord(app_name=self._config.app_name, run_name=self._config.run_name)
        self._open_stores(None)
        return self.record
