"""Chunks: columns of the history as bytes for the journal."""

import msgspec
import numpy as np

from trieye.exceptions import SerializationError
from trieye.history.columns import Columns, Targets


class _Payload(msgspec.Struct, array_like=True):
    first: int
    names: list[str]
    name_codes: bytes
    values: bytes
    steps: bytes
    times: bytes
    targets: list[Targets]
    target_codes: bytes
    counts: bytes
    operations: dict[int, bytes]


# not compressed: that takes half as long as everything else together, and a chunk lives for minutes
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode


def encode_chunk(columns: Columns) -> bytes:
    """Return columns as bytes from which `decode_chunk` makes the same ones, to the last bit."""
    return _encode(
        _Payload(
            columns.first,
            columns.names,
            columns.name_codes.tobytes(),
            columns.values.tobytes(),
            columns.steps.tobytes(),
            columns.times.tobytes(),
            columns.targets,
            columns.target_codes.tobytes(),
            columns.counts.tobytes(),
            dict(columns.operations),
        )
    )


def decode_chunk(payload: bytes) -> Columns:
    """Return what `encode_chunk` was given.

    Raises:
        SerializationError: The bytes are not whole.
    """
    try:
        held = _decode(payload)
        columns = Columns(
            held.first,
            held.names,
            np.frombuffer(held.name_codes, "<i4"),
            np.frombuffer(held.values, "<f8"),
            np.frombuffer(held.steps, "<i8"),
            np.frombuffer(held.times, "<f8"),
            held.targets,
            np.frombuffer(held.target_codes, "<i4"),
            np.frombuffer(held.counts, "<i8"),
            held.operations,
        )
        columns.check()
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
        raise SerializationError(f"not a chunk of the history: {error}") from error
    return columns
