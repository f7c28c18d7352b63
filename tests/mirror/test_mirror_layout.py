import json
import zlib

import pytest

from trieye.exceptions import SerializationError
from trieye.mirror.layout import MirroredFile, StateMark, whole_states

FILE = MirroredFile(key="states/000000000001-abcdef01/run.json", size_bytes=3, crc32=7)
SAVED = "checkpoints/checkpoint_step_5-0000abcd"
STATE = StateMark(
    generation=1, owner="abcdef0123", run_id="r", attempt=2, written=1.5, files={"run.json": FILE}, saved=[SAVED]
)


def manipulated_mark(**changes):
    """Return a manipulated mark with a valid checksum."""
    text = json.dumps({**STATE.model_dump(), **changes})
    return json.dumps({"mark": text, "crc32": zlib.crc32(text.encode())}).encode()


def test_a_mark_is_parsed_unless_it_is_truncated_or_changed():
    data = STATE.to_bytes()
    assert StateMark.from_bytes(data) == STATE
    digits = [i for i in range(data.index(b'"mark"') + 10, len(data) - 4) if data[i : i + 1].isdigit()]
    changed = [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in digits]
    for damaged in [data[:size] for size in range(len(data))] + changed:
        with pytest.raises(SerializationError):
            StateMark.from_bytes(damaged)


def test_a_mark_of_a_later_version_is_rejected():
    with pytest.raises(SerializationError, match="format 2, but this trieye reads format 1"):
        StateMark.from_bytes(manipulated_mark(format=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../run.json": FILE.model_dump()}},
        {"files": {"/etc/passwd": FILE.model_dump()}},
        {"files": {"history/../../x.parquet": FILE.model_dump()}},
        {"files": {"run.json": {**FILE.model_dump(), "key": "../other/run.json"}}},
        {"files": {"run.json": {**FILE.model_dump(), "key": "states/../../run.json"}}},
        {"files": {"run.json": {**FILE.model_dump(), "size_bytes": -1}}},
        {"saved": ["checkpoints/../../x-0000abcd"]},
        {"saved": ["checkpoints/checkpoint_step_5/../../x-0000abcd"]},
        {"saved": ["logs/checkpoint_step_5-0000abcd"]},
        {"generation": 0},
    ],
)
def test_a_mark_with_a_path_outside_the_run_is_rejected(changes):
    with pytest.raises(SerializationError, match="cannot be read"):
        StateMark.from_bytes(manipulated_mark(**changes))


def test_complete_states_are_sorted_newest_first():
    keys = [
        "states/000000000009-aaaaaaaa/COMMIT",
        "states/000000000010-bbbbbbbb/COMMIT",
        "states/000000000011-cccccccc/run.json",
    ]
    assert whole_states(dict.fromkeys(keys, 1)) == [(10, keys[1]), (9, keys[0])]
