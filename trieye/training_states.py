"""TrainingStates: what `save_training_state` of the drop-in API saves, a checkpoint with or without a buffer."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trieye.config import PersistenceConfig
from trieye.exceptions import CheckpointError, SerializationError
from trieye.path_manager import PathManager
from trieye.persistence.atomic import remove_directory
from trieye.persistence.checkpoints import CheckpointStore
from trieye.persistence.encoding import EncodedState
from trieye.schemas import BufferData, CheckpointData
from trieye.serializer import Serializer

WriteCheckpoint = Callable[[int, EncodedState, Mapping[str, Any]], Path]
"""Writes a state under its step, with metadata, and returns where it is."""


class TrainingStates:
    """Saves the states of the drop-in API: all of one, or nothing.

    Args:
        config: Whether buffers are saved, and what is kept.
        paths: File names of the run.
        serializer: Encodes the states.
        checkpoints: The checkpoints of the run.
        buffers: Its buffers.
    """

    def __init__(
        self,
        config: PersistenceConfig,
        paths: PathManager,
        serializer: Serializer,
        checkpoints: CheckpointStore,
        buffers: CheckpointStore,
    ) -> None:
        self._config, self._paths, self._serializer = config, paths, serializer
        self._checkpoints, self._buffers = checkpoints, buffers

    def save(self, hub_state: Mapping[str, Any], state: Mapping[str, Any], write: WriteCheckpoint) -> Path:
        """Write a checkpoint, and a buffer if `save_buffer` asks for one; return the former.

        Args:
            hub_state: State of the hub.
            state: The arguments of `save_training_state`, by name.
            write: Writes the checkpoint.

        Raises:
            CheckpointError: A part is not what it should be; nothing is written.
            SerializationError: It could not be written.
        """
        # everything that can be wrong with a state is found before anything is written
        checkpoint = _checkpoint_data(self._serializer, self._config.run_name, {**state, "actor_state": hub_state})
        wanted = state["save_buffer"] and self._config.save_buffer
        buffer = _buffer_data(self._serializer, state["buffer_content"]) if wanted else None
        encoded = self._serializer.encode(checkpoint, copy=False)
        metadata = {"is_best": state["is_best"], "hub": hub_state}
        if buffer is None:
            return write(checkpoint.global_step, encoded, metadata)
        with self._buffer_saved(checkpoint.global_step, self._serializer.encode(buffer, copy=False)):
            return write(checkpoint.global_step, encoded, metadata)

    @contextlib.contextmanager
    def _buffer_saved(self, step: int, buffer: EncodedState) -> Iterator[None]:
        """Write a buffer for the checkpoint of the block, before it: resuming pairs one with what is not newer."""
        is_new = not self._buffers.path(step).exists()
        path = self._buffers.save(step, buffer)
        try:
            yield
        except BaseException:
            if is_new:
                remove_directory(path)
            raise
        self._paths.update_buffer_link(path)
        if self._config.keep_last:
            self._prune_buffers()

    def _prune_buffers(self) -> None:
        """Delete the buffers with which no checkpoint is loaded any more."""
        buffers = [entry.step for entry in self._buffers.entries()]
        saved = [entry.step for entry in self._checkpoints.entries()]
        needed = {max((step for step in buffers if step <= checkpoint), default=None) for checkpoint in saved}
        for step in set(buffers) - needed - {max(buffers)}:
            self._buffers.remove(self._buffers.path(step).name)


def _checkpoint_data(serializer: Serializer, run_name: str, state: Mapping[str, Any]) -> CheckpointData:
    """Return the checkpoint that the arguments of `save_training_state` ask for.

    Args:
        serializer: Prepares the states.
        run_name: The run that saves.
        state: The arguments by name, and the state of the hub as `actor_state`.

    Raises:
        CheckpointError: One of them is not what it should be.
    """
    try:
        return CheckpointData(
            run_name=run_name,
            global_step=state["global_step"],
            episodes_played=state["episodes_played"],
            total_simulations_run=state["total_simulations_run"],
            model_state_dict=_model_state(serializer, state["nn_state_dict"]),
            optimizer_state_dict=serializer.prepare_optimizer_state(state["optimizer_state_dict"]),
            actor_state=dict(state["actor_state"]),
            user_data=state["user_data"] or {},
            model_config_dict=state["model_config_dict"] or {},
            env_config_dict=state["env_config_dict"] or {},
        )
    except (ValueError, TypeError) as error:  # pydantic's, or a number of another type
        raise CheckpointError(f"the state is not valid: {error}") from error


def _buffer_data(serializer: Serializer, content: Any) -> BufferData:
    """Return the buffer that `save_training_state` got.

    Raises:
        CheckpointError: It is none.
    """
    buffer = serializer.prepare_buffer_data(content)
    if buffer is None:
        raise CheckpointError(
            f"buffer_content is a {type(content).__name__}; give a list or another iterable of items, or an object "
            "with a state_dict(), such as a ReplayBuffer"
        )
    return buffer


def _model_state(serializer: Serializer, model: Any) -> dict[str, Any]:
    try:
        return serializer.prepare_optimizer_state(model)
    except SerializationError as error:
        kind = type(model).__name__
        raise CheckpointError(f"nn_state_dict must be a dict or have a state_dict(), and it is a {kind}") from error
