import json
import zlib

import pytest

from trieye.exceptions import SerializationError
from trieye.mirror.layout import MirroredFile, SavedName, SaveMark, StateMark, state_commits

FILE = MirroredFile(key="states/000000000001-abcdef01/run.json", size_bytes=3, crc32=7)
SAVED = SavedName(folder="checkpoints", name="checkpoint_step_5", key="checkpoints/checkpoint_step_5-0000abcd")
STATE = StateMark(
    generation=1, owner="abcdef0123", run_id="r", attempt=2, written=1.5, files={"run.json": FILE}, saved=[SAVED]
)


@pytest.mark.parametrize("mark", [STATE, SaveMark(manifest_crc32=5, parts=["parts/seg-0-5-abcd.safetensors"])])
def test_a_mark_comes_back_as_it_was(mark):
    assert type(mark).from_bytes(mark.to_bytes()) == mark


def test_a_mark_that_was_cut_or_changed_anywhere_is_found_out():
    data = STATE.to_bytes()
    text_begins = data.index(b'"mark"') + 10
    for size in range(len(data)):
        with pytest.raises(SerializationError):
            StateMark.from_bytes(data[:size])
    for place in range(text_begins, len(data) - 4):
        if data[place : place + 1].isdigit():
            changed = bytearray(data)
            changed[place] ^= 1
            with pytest.raises(SerializationError):
                StateMark.from_bytes(bytes(changed))


def test_a_mark_of_a_later_version_is_not_taken_for_one_of_this():
    later = STATE.model_copy(update={"format": 2}).to_bytes()
    with pytest.raises(SerializationError, match="format 2, and this trieye reads 1"):
        StateMark.from_bytes(later)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("files", {"../run.json": FILE.model_dump()}),
        ("files", {"/etc/passwd": FILE.model_dump()}),
        ("files", {"history/../../x.parquet": FILE.model_dump()}),
        ("files", {"run.json": {**FILE.model_dump(), "key": "../other/run.json"}}),
        ("files", {"run.json": {**FILE.model_dump(), "key": "states/../../run.json"}}),
        ("files", {"run.json": {**FILE.model_dump(), "size_bytes": -1}}),
        ("saved", [{**SAVED.model_dump(), "name": "../../x"}]),
        ("saved", [{**SAVED.model_dump(), "name": "checkpoint_step_5/../../x"}]),
        ("saved", [{**SAVED.model_dump(), "folder": "logs"}]),
        ("generation", 0),
    ],
)
def test_a_mark_with_a_name_that_leads_elsewhere_is_refused_although_its_checksum_is_right(change, value):
    text = json.dumps({**STATE.model_dump(), change: value})
    planted = json.dumps({"mark": text, "crc32": zlib.crc32(text.encode())}).encode()
    with pytest.raises(SerializationError, match="cannot be read"):
        StateMark.from_bytes(planted)


def test_a_mark_that_was_made_by_hand_is_read_if_its_names_are_right():
    text = json.dumps(STATE.model_dump())
    assert StateMark.from_bytes(json.dumps({"mark": text, "crc32": zlib.crc32(text.encode())}).encode()) == STATE


def test_the_newest_state_with_a_mark_comes_first():
    keys = [
        "states/000000000009-aaaaaaaa/COMMIT",
        "states/000000000010-bbbbbbbb/COMMIT",
        "states/000000000011-c/run.json",
    ]
    assert state_commits(keys) == [(10, keys[1]), (9, keys[0])]
