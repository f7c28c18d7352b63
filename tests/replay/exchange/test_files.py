import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.replay.plain_replay import by_id
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.replay import ReplayBuffer
from trieye.replay.exchange import export_npz, export_parquet, files, import_npz, import_parquet

FORMATS = {"npz": (export_npz, import_npz), "parquet": (export_parquet, import_parquet)}


def filled(count=300, capacity=200, **options):
    rng, envs = np.random.default_rng(0), np.arange(count) % 3
    obs = rng.normal(size=(count + 3, 2, 5)).astype(np.float16)
    buffer = ReplayBuffer(capacity, **options)
    rows = {
        "obs": obs[:-3],
        "next_obs": obs[3:],
        "action": rng.integers(0, 9, count, np.uint8),
        "reward": rng.normal(size=count),
        "flags": rng.random((count, 3)) < 0.5,
        "empty": np.zeros((count, 2, 0), np.float32),
        "terminated": rng.random(count) < 0.1,
    }
    buffer.extend(rows, envs)
    return buffer


def content(buffer):
    rows, episodes = zip(*buffer.iter_rows(1000), strict=True)
    return rows[0], episodes[0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("options", [{}, {"n_step": 3, "dedup_next": True}], ids=["plain", "linked"])
def test_exported_rows_round_trip_exactly(tmp_path, name, options, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK_BYTES", 5000)  # several row groups
    write, read = FORMATS[name]
    buffer = filled(**options)
    path = tmp_path / f"rows.{name}"
    assert write(buffer, path) == 200
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    other = ReplayBuffer(200, **options)
    assert read(other, path) == 200
    (rows, episodes), (again, other_episodes) = content(buffer), content(other)
    assert {key: array.dtype for key, array in rows.items()} == {key: array.dtype for key, array in again.items()}
    assert np.array_equal(episodes, other_episodes)
    for one, two in ((rows, again), (buffer.sample(64), other.sample(64))):
        assert all(np.array_equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", FORMATS)
def test_keys_may_have_any_name(tmp_path, name):
    write, read = FORMATS[name]
    buffer, other = ReplayBuffer(5), ReplayBuffer(5)
    rows = {"file": np.arange(3), "allow_pickle": np.arange(3) / 2}
    buffer.extend(rows)
    write(buffer, tmp_path / "rows")
    read(other, tmp_path / "rows")
    assert {key: array.tolist() for key, array in content(other)[0].items()} == {
        key: array.tolist() for key, array in rows.items()
    }


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_buffer_round_trips(tmp_path, name):
    write, read = FORMATS[name]
    assert write(ReplayBuffer(5), tmp_path / "rows") == 0
    other = ReplayBuffer(5)
    assert read(other, tmp_path / "rows") == 0
    assert len(other) == 0


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_and_foreign_files_are_rejected_by_name(tmp_path, name):
    write, read = FORMATS[name]
    write(filled(), tmp_path / "rows")
    intact_bytes = (tmp_path / "rows").read_bytes()
    for text in (b"hello", intact_bytes[: len(intact_bytes) // 2]):
        (tmp_path / "cut").write_bytes(text)
        with pytest.raises(SerializationError, match=r"cut is damaged or not an? "):
            read(ReplayBuffer(5), tmp_path / "cut")
    with pytest.raises(FileNotFoundError):
        read(ReplayBuffer(5), tmp_path / "none")


def test_files_of_other_libraries_are_read(tmp_path):
    pq.write_table(pa.table({"obs": [[1.0, 2.0], [3.0, 4.0]], "action": [1, 2]}), tmp_path / "rows.parquet")
    np.savez(tmp_path / "rows.npz", obs=np.array([[1.0, 2.0], [3.0, 4.0]]), action=np.array([1, 2]))
    for name in FORMATS:
        buffer = ReplayBuffer(5)
        assert FORMATS[name][1](buffer, tmp_path / f"rows.{name}") == 2
        assert content(buffer)[0]["obs"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0], [2.0, 3.0]], "'x' has nested lists or lists of different lengths"),
        ([1.0, None], "'x' has 1 missing values"),
        (["left", "right"], "'x' has type string; expected numbers"),
    ],
)
def test_non_numeric_or_ragged_columns_are_rejected_by_name(tmp_path, column, message):
    pq.write_table(pa.table({"x": column}), tmp_path / "rows")
    with pytest.raises(SerializationError, match=message):
        import_parquet(ReplayBuffer(5), tmp_path / "rows")


@pytest.mark.parametrize("name", FORMATS)
def test_files_with_other_columns_than_the_buffer_are_rejected(tmp_path, name):
    write, read = FORMATS[name]
    write(filled(), tmp_path / "rows")
    with pytest.raises(ConfigurationError, match=r"key 'next_obs' is unknown|key 'action' is unknown"):
        read(ReplayBuffer(5, {"obs": (np.float16, (2, 5))}), tmp_path / "rows")


@pytest.mark.parametrize("name", FORMATS)
def test_returns_never_join_rows_that_were_exported_without_their_episodes(tmp_path, name):
    write, read = FORMATS[name]
    source, buffer = ReplayBuffer(9), ReplayBuffer(9, n_step=3, gamma=1.0)
    for env_id in (0, 1, 0, 1):
        source.add(env_id, reward=1000.0**env_id, done=False)
    write(source, tmp_path / "rows")
    read(buffer, tmp_path / "rows")
    assert by_id(buffer.sample(64), "reward") == {0: 1, 1: 1000, 2: 1, 3: 1000}


@pytest.mark.parametrize("name", FORMATS)
def test_imported_episodes_are_not_joined_with_neighbouring_rows(tmp_path, name):
    write, read = FORMATS[name]
    row = {"reward": 1.0, "done": False}
    source, buffer = ReplayBuffer(9, n_step=3), ReplayBuffer(9, n_step=3)
    for one in (source, source, buffer):
        one.add(**row)
    write(source, tmp_path / "rows")
    read(buffer, tmp_path / "rows")
    buffer.add(**row)
    batch = buffer.sample(64)
    assert by_id(batch, "n") == {0: 1, 1: 2, 2: 1, 3: 1}
