import pytest

from trieye.checkpoints.manifest import Manifest
from trieye.files.checksum import FileEntry
from trieye.mirror.layout import MirroredFile, SavedName, StateMark
from trieye.mirror.local import LocalSave
from trieye.mirror.surplus import surplus

FILE = MirroredFile(key="history/points-0-5.parquet-0a", size_bytes=1, crc32=1)
STATE = StateMark(
    generation=2,
    owner="abcdef0123",
    run_id="r",
    attempt=1,
    written=0,
    files={"history/points-0-5.parquet": FILE},
    saved=[],
)


def local_save(step, part):
    name = f"checkpoint_step_{step}"
    manifest = Manifest(step=step, files={f"parts/{part}": FileEntry(size_bytes=1, crc32=1)})
    saved = SavedName(folder="checkpoints", name=name, key=f"checkpoints/{name}-0a")
    return LocalSave(saved, None, manifest, 0)


NEW, OLD = local_save(2, "new"), local_save(1, "old")
KEYS = [
    "states/000000000002-abcdef01/COMMIT",
    "states/000000000001-abcdef01/run.json",
    "states/000000000001-abcdef01/COMMIT",
    "history/points-0-5.parquet-0a",
    "history/points-0-3.parquet-0b",
    f"{NEW.saved.key}/COMMIT",
    f"{OLD.saved.key}/state.json",
    f"{OLD.saved.key}/COMMIT",
    "parts/new",
    "parts/old",
]


def found(keys=KEYS, saves=(NEW,), kept=(), parts_kept=()):
    return surplus(keys, [STATE], [saves, []], kept=kept, parts_kept=parts_kept)


def test_what_no_state_and_no_checkpoint_names_goes_marks_first():
    assert set(found()) == {KEYS[1], KEYS[2], KEYS[4], KEYS[6], KEYS[7], KEYS[9]}
    marks = [key.endswith("COMMIT") for key in found()]
    assert marks == sorted(marks, reverse=True)


@pytest.mark.parametrize("saves", [(), (OLD, local_save(3, "newer"))])
def test_no_checkpoint_goes_before_the_newest_is_complete(saves):
    assert not [key for key in found(saves=saves) if key.startswith(("checkpoints/", "parts/"))]


def test_what_is_kept_stays_with_its_parts():
    assert not [key for key in found(kept=[OLD.saved], parts_kept={"parts/old"}) if key.startswith(("check", "parts"))]


def test_no_part_goes_while_it_is_not_known_who_needs_it():
    assert not [key for key in found(kept=[OLD.saved], parts_kept=None) if key.startswith("parts/")]
