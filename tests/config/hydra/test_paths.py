"""Paths of a config are checked without leaving anything behind."""

from pathlib import Path

import pytest

from trieye.config import PersistenceConfig
from trieye.config.hydra.paths import check_paths
from trieye.exceptions import ConfigurationError


def _refused(**fields: object) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check_paths(PersistenceConfig(**fields))
    return str(caught.value)


def test_a_root_that_can_be_made_is_fine_and_is_not_made(tmp_path: Path):
    check_paths(PersistenceConfig(root_data_dir=str(tmp_path / "a" / "b")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_root_at_or_below_a_file_is_refused(tmp_path: Path, below: str):
    file = tmp_path / "file"
    file.touch()
    root = file / below
    assert _refused(root_data_dir=str(root)) == (
        f"persistence.root_data_dir={root}: {file} is a file and no directory; choose a directory that you may write to"
    )


def test_a_root_below_a_dangling_link_is_refused(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "link" in _refused(root_data_dir=str(tmp_path / "link"))


def test_a_root_that_cannot_be_written_is_refused_even_for_root():
    assert _refused(root_data_dir="/proc/x").startswith(
        "persistence.root_data_dir=/proc/x: nothing can be written there ("
    )


def test_a_root_with_a_null_byte_is_refused():
    assert "nothing can be written there" in _refused(root_data_dir="a\0b")


@pytest.mark.parametrize("key", ["load_checkpoint_path", "load_buffer_path"])
def test_a_file_to_start_from_must_exist(tmp_path: Path, key: str):
    (tmp_path / "step_100").mkdir()
    (tmp_path / "step_100" / "model").touch()
    root = str(tmp_path / "data")
    path = tmp_path / "step_10" / "model"
    assert _refused(root_data_dir=root, **{key: str(path)}) == (
        f"persistence.{key}={path}: there is no such file or directory; "
        f"did you mean '{tmp_path / 'step_100' / 'model'}'?"
    )
    check_paths(PersistenceConfig(root_data_dir=root, **{key: str(tmp_path / "step_100")}))


def test_a_file_to_start_from_with_an_unlike_name_is_answered_with_what_is_there(tmp_path: Path):
    (tmp_path / "step_100").mkdir()
    message = _refused(root_data_dir=str(tmp_path / "data"), load_checkpoint_path=str(tmp_path / "zzz"))
    assert message.endswith(f"there is no such file or directory; {tmp_path} holds step_100")


@pytest.mark.parametrize(("word", "meant"), [("bets", "best"), ("first:bst", "first:best")])
def test_a_mistyped_word_for_a_checkpoint_is_answered_with_the_words_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, meant: str
):
    monkeypatch.chdir(tmp_path)
    message = _refused(root_data_dir=str(tmp_path / "data"), load_checkpoint_path=word)
    assert message.startswith(f"persistence.load_checkpoint_path={word}: ")
    assert f"did you mean {meant!r}? (best, latest, step:1200, or another run" in message
    assert str(tmp_path) not in message
    assert meant not in _refused(root_data_dir=str(tmp_path / "data"), load_buffer_path=word)
