"""Serializer of trieye 0.1.5: its states to and from disk."""

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from trieye.checkpoints.directory import load_state, save_state
from trieye.compat.events import Schema
from trieye.compat.pickles import load_pickle
from trieye.exceptions import SerializationError
from trieye.files.atomic import replaced
from trieye.hub.directory import write_config
from trieye.snapshot.encode import EncodedState, decode, encode
from trieye.snapshot.parts import OnDamage
from trieye.snapshot.signing import Key

logger = logging.getLogger(__name__)

_Schema = TypeVar("_Schema", bound=BaseModel)


class CheckpointData(Schema):
    """The content of a checkpoint of the drop-in API; every `dict` holds plain data, arrays and tensors."""

    run_name: str
    global_step: int = Field(ge=0)
    episodes_played: int = Field(ge=0)
    total_simulations_run: int = Field(ge=0)
    model_state_dict: dict[str, Any] = Field(default_factory=dict)
    optimizer_state_dict: dict[str, Any] = Field(default_factory=dict)
    actor_state: dict[str, Any] = Field(default_factory=dict)
    user_data: dict[str, Any] = Field(default_factory=dict)
    model_config_dict: dict[str, Any] = Field(default_factory=dict)
    env_config_dict: dict[str, Any] = Field(default_factory=dict)


class BufferData(Schema):
    """The content of a replay buffer of the drop-in API."""

    buffer_list: list[Any]
    state: Any = Field(
        default=None, description="What `load_state_dict` of a buffer gets that was saved as an object, not as a list."
    )


class LoadedTrainingState(Schema):
    """What `load_initial_state` found; both parts are None on a fresh run."""

    checkpoint_data: CheckpointData | None = None
    buffer_data: BufferData | None = None
    buffer_step: int | None = Field(default=None, description="Step of the saved buffer.")
    resumed_from: str | None = Field(default=None, description="Name of the run the state comes from.")


class Serializer:
    """Writes states as directories of safetensors and JSON, and reads them and the pickles of trieye 0.1.5.

    Args:
        key: Signs pickled parts; the user's own key if None.
        allow_pickle: Whether unsigned pickles may be read, which runs code; None asks TRIEYE_ALLOW_PICKLE.

    Attributes:
        on_damage: Whether damage in a saved replay is an error; see `persistence.damaged_replay`.
        key: Signs pickled parts; None: the key of the user whose process it is.
        allow_pickle: Whether unsigned pickles may be read; None: as `TRIEYE_ALLOW_PICKLE` says.
    """

    # on the class, too: programs of 0.1.5 hand over stand-ins that are made of it
    key: Key | None = None
    allow_pickle: bool | None = None
    on_damage: OnDamage = "partial"

    def __init__(self, *, key: bytes | None = None, allow_pickle: bool | None = None) -> None:
        self.key = None if key is None else Key(key)
        self.allow_pickle = allow_pickle

    def encode(self, data: CheckpointData | BufferData, *, copy: bool = True) -> EncodedState:
        """Return a snapshot of `data`, which `trieye.checkpoints.store.CheckpointStore.save` takes."""
        # not model_dump: it would walk and rebuild the user's values
        return encode({name: getattr(data, name) for name in type(data).model_fields}, copy=copy)

    def save_checkpoint(self, data: CheckpointData, path: Path) -> None:
        """Save a checkpoint as the directory `path`.

        Raises:
            SerializationError: It could not be written; the previous state is untouched.
        """
        metadata = {"run_name": data.run_name}
        save_state(Path(path), self.encode(data, copy=False), step=data.global_step, metadata=metadata, key=self.key)

    def load_checkpoint(self, path: Path, *, state: EncodedState | None = None) -> CheckpointData | None:
        """Return the checkpoint at `path`, a directory or a file of 0.1.5; None if it is missing or something else.

        Args:
            path: The directory or file.
            state: The content of the directory, if it was read before.

        Raises:
            UntrustedPickleError: It is a pickle or has pickled parts, and they were not allowed.
            SerializationError: It is damaged.
        """
        return self._load(Path(path), CheckpointData, state)

    def save_buffer(self, data: BufferData, path: Path) -> None:
        """Save a buffer as the directory `path`.

        Raises:
            SerializationError: It could not be written; the previous state is untouched.
        """
        save_state(Path(path), self.encode(data, copy=False), key=self.key)

    def load_buffer(self, path: Path, *, state: EncodedState | None = None) -> BufferData | None:
        """Return the buffer at `path`; as `load_checkpoint`."""
        return self._load(Path(path), BufferData, state)

    def prepare_optimizer_state(self, optimizer_state_dict: Any) -> dict[str, Any]:
        """Return an optimizer's state with its tensors on the CPU.

        Args:
            optimizer_state_dict: A state dict, or an object with a `state_dict()`.

        Raises:
            SerializationError: It is neither.
        """
        state = optimizer_state_dict
        if not isinstance(state, Mapping) and callable(getattr(state, "state_dict", None)):
            state = state.state_dict()
        if not isinstance(state, Mapping):
            raise SerializationError(
                f"an optimizer state must be a dict or have a state_dict(), and this is a {type(state).__name__}"
            )
        return {key: _on_cpu(value) for key, value in state.items()}

    def prepare_buffer_data(self, buffer_content: Any) -> BufferData | None:
        """Return the items of a buffer, any iterable of them, or None with a message if it is not one.

        A `ReplayBuffer`, or another object with a `state_dict()` or `state_parts()`, is kept unchanged, in `state`.
        """
        if isinstance(buffer_content, BufferData):
            return buffer_content
        if _has_state(buffer_content):
            return BufferData(buffer_list=[], state=buffer_content)
        if isinstance(buffer_content, str | bytes | bytearray | Mapping) or not isinstance(buffer_content, Iterable):
            logger.error(
                "a buffer must be a list or another iterable of items, and this is a %s: it is not saved",
                type(buffer_content).__name__,
            )
            return None
        items = buffer_content if isinstance(buffer_content, list) else list(buffer_content)
        return BufferData(buffer_list=items)

    def save_config_json(self, configs: Mapping[str, Any], path: Path) -> None:
        """Write a config for people to read; what JSON lacks is written as the nearest thing.

        Raises:
            SerializationError: It could not be written.
        """
        write_config(configs, Path(path))

    def _load(self, path: Path, schema: type[_Schema], state: EncodedState | None) -> _Schema | None:
        source = path if os.path.lexists(path) else replaced(path.parent).get(path.name, path)
        if not source.exists():
            logger.warning("%s does not exist", path)
            return None
        content = self._content(source, state)
        try:
            return schema.model_validate(content)
        except ValidationError as error:
            logger.error("%s holds no %s: %s", path, schema.__name__, error)  # noqa: TRY400 - the message is complete
            return None

    def _content(self, path: Path, state: EncodedState | None) -> Any:
        if path.is_dir():
            encoded_state = state or load_state(path, key=self.key, allow_pickle=self.allow_pickle)
            return decode(encoded_state, copy=False, on_damage=self.on_damage)
        content = load_pickle(path, allow_pickle=self.allow_pickle)
        # the fields, not the object, whose class belongs to 0.1.5
        return dict(vars(content)) if isinstance(content, BaseModel) else content


def _has_state(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return any(callable(getattr(value, name, None)) for name in ("state_parts", "state_dict"))


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(_on_cpu(item) for item in value)
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(item) for item in value)
    if callable(getattr(value, "cpu", None)) and callable(getattr(value, "detach", None)):
        return value.detach().cpu()
    return value
