"""TrainingStates: checkpoints and buffers as programs of trieye 0.1.5 save and load them."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trieye.compat.path_manager import TrainingChoice
from trieye.compat.serializer import BufferData, CheckpointData, LoadedTrainingState, Serializer
from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.run_files import BUFFER_PREFIX, RunFiles
from trieye.hub.saved_states import RestoredCheckpoint, SavedStates
from trieye.snapshot.encode import EncodedState

logger = logging.getLogger(__name__)


class TrainingStates:
    """Saves and finds the states of `save_training_state`: a checkpoint and a buffer, both or neither.

    Args:
        states: The checkpoints of the run.
        config: Determines whether buffers are saved, and where to resume.
        files: File names of the run.
        serializer: Encodes the states.
    """

    def __init__(self, states: SavedStates, config: PersistenceConfig, files: RunFiles, serializer: Serializer) -> None:
        serializer.on_damage = config.damaged_replay
        self._states, self._config, self._files, self._serializer = states, config, files, serializer
        self._buffers = states.store(files.buffer_dir, prefix=BUFFER_PREFIX)

    def save(self, hub_state: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint of the drop-in API, and a buffer if `save_buffer` asks for one; return the former.

        Args:
            hub_state: State of the hub.
            state: The arguments of `save_training_state`, by name.

        Raises:
            CheckpointError: A part is not valid; nothing is written.
            SerializationError: It could not be written.
        """
        # everything that can be wrong with a state is found before anything is written
        checkpoint, buffer, encode = self._checkpoint_data(hub_state, state), None, self._serializer.encode
        if state["save_buffer"] and self._config.save_buffer:
            buffer = encode(self._buffer_data(state["buffer_content"]), copy=False)
        step, encoded_state = checkpoint.global_step, encode(checkpoint, copy=False)
        metadata = {"is_best": state["is_best"]}
        with contextlib.nullcontext() if buffer is None else self._buffer_saved(step, buffer):
            return self._states.save(step, encoded_state, metadata)

    @contextlib.contextmanager
    def _buffer_saved(self, step: int, buffer: EncodedState) -> Iterator[None]:
        """Write a buffer before the checkpoint of the block: resuming pairs a checkpoint with no newer buffer."""
        is_new = not self._buffers.path(step).exists()
        path = self._buffers.save(step, buffer)
        try:
            yield
        except BaseException:
            if is_new:
                self._buffers.remove(step)
            raise
        self._files.update_buffer_link(path)
        if self._config.keep_last:
            self._prune_buffers()

    def _prune_buffers(self) -> None:
        """Delete the buffers that no checkpoint is loaded with any more."""
        buffers = [entry.step for entry in self._buffers.entries()]
        saved_steps = [entry.step for entry in self._states.checkpoints.entries()]
        needed_steps = {
            max((step for step in buffers if step <= checkpoint), default=None) for checkpoint in saved_steps
        }
        for step in set(buffers) - needed_steps - {max(buffers)}:
            self._buffers.remove(step)

    def _checkpoint_data(self, hub_state: Mapping[str, Any], state: Mapping[str, Any]) -> CheckpointData:
        try:
            return CheckpointData(
                run_name=self._config.run_name,
                global_step=state["global_step"],
                episodes_played=state["episodes_played"],
                total_simulations_run=state["total_simulations_run"],
                model_state_dict=self._model_state(state["nn_state_dict"]),
                optimizer_state_dict=self._serializer.prepare_optimizer_state(state["optimizer_state_dict"]),
                actor_state=dict(hub_state),
                user_data=state["user_data"] or {},
                model_config_dict=state["model_config_dict"] or {},
                env_config_dict=state["env_config_dict"] or {},
            )
        except (ValueError, TypeError) as error:  # pydantic's, or a number of another type
            raise CheckpointError(f"the state is not valid: {error}") from error

    def _model_state(self, model: Any) -> dict[str, Any]:
        try:
            return self._serializer.prepare_optimizer_state(model)
        except SerializationError as error:
            kind = type(model).__name__
            raise CheckpointError(f"nn_state_dict must be a dict or have a state_dict(), got {kind}") from error

    def _buffer_data(self, content: Any) -> BufferData:
        buffer = self._serializer.prepare_buffer_data(content)
        if buffer is None:
            raise CheckpointError(
                f"buffer_content is a {type(content).__name__}; give a list or another iterable of items, or an object "
                "with a state_dict(), such as a ReplayBuffer"
            )
        return buffer

    def find(self) -> tuple[LoadedTrainingState, RestoredCheckpoint | None]:
        """Return the state to resume from, and the checkpoint that it comes from.

        Raises:
            CheckpointError: There are checkpoints, and none of them is whole.
        """
        load_buffer = self._serializer.load_buffer
        choice = TrainingChoice(self._files, self._config, read=self._states.checkpoints.read)
        point = choice.point()
        if point is None:
            alone = choice.buffer_alone(None, None) if self._config.save_buffer else None
            return LoadedTrainingState(buffer_data=alone and load_buffer(alone.path)), None
        path, _, state = point.checkpoint
        buffer = choice.buffer_for(point.checkpoint)
        logger.info("%s%s", point.reason, "" if buffer is None else f", with {buffer.name}")
        checkpoint = self._serializer.load_checkpoint(path, state=state)
        if checkpoint is None:
            raise CheckpointError(f"{path} is not a checkpoint of save_training_state")
        loaded_state = LoadedTrainingState(
            checkpoint_data=checkpoint,
            buffer_data=buffer and load_buffer(buffer.path, state=buffer.state),
            buffer_step=buffer and buffer.step,
            resumed_from=point.run_name,
        )
        return loaded_state, self._states.restored(point, None, lambda: checkpoint.actor_state)
