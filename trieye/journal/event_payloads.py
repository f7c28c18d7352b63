"""Encodes event batches and operations as payloads of journal entries, and refuses events that cannot be stored."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from trieye.config.names import is_text, printable
from trieye.exceptions import SerializationError
from trieye.stats.batch import MAX_NAME_LENGTH, EventBatch, EventRow, salvage
from trieye.stats.operations import Operation

MAX_CONTEXT_TEXT = 1000
"""Maximum length of a text in a context; a longer text is not a number that a metric could read."""

MAX_SHOWN = 60
"""Number of characters of a refused name in a message."""

Drop = tuple[str, str, int]
"""(reason, name, count) of dropped events, which are only counted."""


class _Payload(msgspec.Struct, array_like=True):
    names: list[str]
    codes: bytes
    values: bytes
    steps: bytes
    times: bytes
    contexts: dict[int, dict[str, Any]]
    drops: list[Drop]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode
_operations: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(Operation)


def encode_events(batch: EventBatch, drops: Sequence[Drop] = ()) -> bytes:
    """Encode a batch and the drops that were counted with it.

    Args:
        batch: Events whose names are valid text and whose contexts hold plain values only; see `project_contexts`.
        drops: Dropped events of the batch.
    """
    return _encode(
        _Payload(
            list(batch.names),
            batch.codes.astype("<i4").tobytes(),
            batch.values.astype("<f8").tobytes(),
            batch.steps.astype("<i8").tobytes(),
            batch.times.astype("<f8").tobytes(),
            {row: dict(context) for row, context in batch.contexts.items()},
            list(drops),
        )
    )


def decode_events(payload: bytes) -> tuple[EventBatch, list[Drop]]:
    """Decode a batch and its drops from `encode_events`.

    Raises:
        SerializationError: The bytes are damaged.
    """
    try:
        fields = _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SerializationError(f"these bytes are not an encoded batch of events: {error}") from error
    batch = EventBatch(
        tuple(fields.names),
        np.frombuffer(fields.codes, "<i4"),
        np.frombuffer(fields.values, "<f8"),
        np.frombuffer(fields.steps, "<i8"),
        np.frombuffer(fields.times, "<f8"),
        fields.contexts,
    )
    return batch, fields.drops


def batch_of(rows: Sequence[EventRow | tuple[Any, ...]]) -> tuple[EventBatch, list[Drop]]:
    """Return events as a batch, and the drops: events that no batch can hold."""
    try:
        return EventBatch.from_rows(rows), []
    except (OverflowError, TypeError, ValueError):
        valid_rows, invalid_rows = salvage([EventRow(*row) for row in rows])
        counts = Counter((reason, printable(name[:MAX_SHOWN])) for reason, name in invalid_rows)
        return EventBatch.from_rows(valid_rows), [(reason, name, count) for (reason, name), count in counts.items()]


def admit(batch: EventBatch, context_keys: frozenset[str]) -> tuple[EventBatch, list[Drop]]:
    """Return the events that can be stored, and the drops: all other events.

    Args:
        batch: Events of a client.
        context_keys: Keys of contexts that metrics read; all other keys are removed.
    """
    drops: list[Drop] = []
    refused = {code: reason for code, name in enumerate(batch.names) if (reason := _refusal(name)) is not None}
    if refused:
        for code, reason in refused.items():
            drops.append((reason, ascii(batch.names[code][:MAX_SHOWN]), int((batch.codes == code).sum())))
        batch = batch.take(np.flatnonzero(~np.isin(batch.codes, list(refused))))
        batch = replace(batch, names=tuple("?" if code in refused else name for code, name in enumerate(batch.names)))
    if batch.contexts:
        batch = replace(batch, contexts=project_contexts(batch.contexts, context_keys))
    return batch, drops


def _refusal(name: str) -> str | None:
    if len(name) > MAX_NAME_LENGTH:
        return "name_too_long"
    return None if name and (name.isascii() or is_text(name)) else "unnamed"


def project_contexts(
    contexts: Mapping[int, Mapping[str, Any]], keys: frozenset[str]
) -> dict[int, dict[str, float | int | str | None]]:
    """Return the parts of contexts that metrics read, as plain values; other values become None."""
    if not keys or not contexts:
        return {}
    projections = {
        row: {key: _plain(context[key]) for key in keys if key in context} for row, context in contexts.items()
    }
    return {row: context for row, context in projections.items() if context}


def _plain(value: Any) -> float | int | str | None:
    if isinstance(value, str):
        return str.__str__(value) if len(value) <= MAX_CONTEXT_TEXT and is_text(value) else None
    if isinstance(value, int | np.integer | np.bool_) and -(1 << 63) <= (integer := int(value)) < 1 << 63:
        return integer
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # errors of float() for users' objects
        return None


def to_bytes(operation: Operation) -> bytes:
    """Encode an operation for `from_bytes`."""
    return _encode(operation)


def from_bytes(data: bytes) -> Operation:
    """Decode an operation from `to_bytes`.

    Raises:
        SerializationError: The bytes are damaged.
    """
    try:
        return _operations.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SerializationError(f"these bytes are not an encoded operation of a run: {error}") from error
