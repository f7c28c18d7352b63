"""What stands in the files that wandb writes offline: a log in LevelDB's format of its own records."""

import json
import struct

BLOCK = 32768  # of LevelDB's log, which is wandb's format


def read(path):
    from wandb.proto.wandb_internal_pb2 import Record

    return [Record.FromString(data) for data in blocks_of(path.read_bytes())]


def blocks_of(data):
    """Yield the records of a log in LevelDB's format."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):  # it is being written
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield whole
            whole = b""


def values_of(items):
    values = {}
    for item in items:
        *parents, name = item.nested_key or [item.key]
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = json.loads(item.value_json)
    return values
