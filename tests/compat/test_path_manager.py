import logging
import stat
from pathlib import Path

import pytest

from trieye.checkpoints.store import CheckpointStore
from trieye.compat.path_manager import PathManager
from trieye.config import PersistenceConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_files import BUFFER_PREFIX
from trieye.snapshot.encode import encode


def make(root, run_name="r", **changes):
    return PathManager(PersistenceConfig(root_data_dir=str(root), app_name="a", run_name=run_name, **changes))


def save(paths, *steps, buffers=()):
    for step in steps:
        CheckpointStore(paths.checkpoint_dir).save(step, encode({"step": step}))
    for step in buffers:
        CheckpointStore(paths.buffer_dir, prefix=BUFFER_PREFIX).save(step, encode([step]))


def test_the_layout_equals_that_of_0_1_5(tmp_path):
    paths = make(tmp_path)
    run = tmp_path / "a" / "runs" / "r"
    assert (paths.root_data_dir, paths.app_root_dir, paths.runs_root_dir) == (tmp_path, tmp_path / "a", run.parent)
    assert (paths.run_base_dir, paths.mlflow_dir) == (run, tmp_path / "a" / "mlruns")
    assert (paths.checkpoint_dir, paths.buffer_dir) == (run / "checkpoints", run / "buffers")
    assert (paths.log_dir, paths.tb_log_dir, paths.profile_dir) == (
        run / "logs",
        run / "tensorboard",
        run / "profile_data",
    )
    assert paths.config_path == paths.get_config_path() == run / "configs.json"
    assert paths.latest_checkpoint_path == paths.get_checkpoint_path() == run / "checkpoints" / "latest.pkl"
    assert paths.get_checkpoint_path(3, is_latest=True) == paths.latest_checkpoint_path
    assert paths.best_checkpoint_path == paths.get_checkpoint_path(is_best=True) == run / "checkpoints" / "best.pkl"
    assert paths.get_checkpoint_path(3) == run / "checkpoints" / "checkpoint_step_3"
    assert paths.default_buffer_path == paths.get_buffer_path() == run / "buffers" / "buffer.pkl"
    assert paths.get_buffer_path(0) == run / "buffers" / "buffer_step_0"
    assert paths.get_profile_path(2, 7) == run / "profile_data" / "worker_2_ep_7.prof"
    assert paths.get_log_file_path() == run / "logs" / "r_trieye.log"
    assert (paths.run_record_path, paths.lock_path) == (run / "run.json", run / "run.lock")
    assert list(tmp_path.iterdir()) == []


def test_directories_are_created_and_buffers_only_if_saved(tmp_path):
    paths = make(tmp_path)
    paths.create_run_directories()
    paths.create_run_directories()
    directories = {path.name for path in paths.run_base_dir.iterdir()}
    assert directories == {"checkpoints", "buffers", "logs", "tensorboard", "profile_data"}
    assert paths.mlflow_dir.is_dir()
    other = make(tmp_path, "s", save_buffer=False)
    other.create_run_directories()
    assert not other.buffer_dir.exists()


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("{tmp}/file", r"root_data_dir='.*file'.*Not a directory"),
        ("/proc/trieye", r"root_data_dir='/proc/trieye': /proc/trieye"),  # not even root can write to it
        ("{tmp}/root", "checkpoints cannot be written: File exists"),
    ],
)
def test_an_unwritable_directory_is_named(tmp_path, root, message):
    (tmp_path / "file").write_text("")
    make(tmp_path / "root").run_base_dir.mkdir(parents=True)
    make(tmp_path / "root").checkpoint_dir.write_text("")
    with pytest.raises(ConfigurationError, match=message):
        make(root.format(tmp=tmp_path)).create_run_directories()


@pytest.mark.parametrize(
    "field", ["run_name", "app_name", "runs_dir_name", "checkpoint_save_dir_name", "config_filename"]
)
@pytest.mark.parametrize("name", ["../escape", "a/b", "", "x" * 300, "nul\0", "line\nbreak"])
def test_a_name_that_was_not_validated_cannot_leave_the_root(tmp_path, field, name):
    config = PersistenceConfig(root_data_dir=str(tmp_path)).model_copy(update={field: name})
    with pytest.raises(ConfigurationError, match=field):
        PathManager(config)


def test_links_point_at_the_checkpoint_and_move_with_the_tree(tmp_path):
    paths = make(tmp_path / "here")
    save(paths, 1, 2, buffers=(2,))
    paths.update_checkpoint_links(paths.get_checkpoint_path(1), is_best=True)
    paths.update_checkpoint_links(paths.get_checkpoint_path(2), is_best=False)
    paths.update_buffer_link(paths.get_buffer_path(2))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = make(tmp_path / "there")
    assert moved.latest_checkpoint_path.resolve() == moved.get_checkpoint_path(2)
    assert moved.best_checkpoint_path.resolve() == moved.get_checkpoint_path(1)
    assert moved.default_buffer_path.resolve() == moved.get_buffer_path(2)


def test_a_link_to_a_missing_checkpoint_is_not_created(tmp_path, caplog):
    paths = make(tmp_path)
    with caplog.at_level(logging.WARNING):
        paths.update_checkpoint_links(paths.get_checkpoint_path(1), is_best=True)
    assert "checkpoint_step_1" in caplog.text
    assert not paths.checkpoint_dir.exists()


def test_a_wrong_link_to_the_newest_checkpoint_is_not_trusted(tmp_path):
    paths = make(tmp_path)
    save(paths, 1, 2)
    paths.update_checkpoint_links(paths.get_checkpoint_path(1), is_best=False)
    assert paths.determine_checkpoint_to_load(None, auto_resume=True) == paths.get_checkpoint_path(2)


def test_checkpoints_are_chosen_in_the_order_explicit_own_earlier(tmp_path, caplog):
    paths, earlier = make(tmp_path), make(tmp_path, "earlier")
    assert paths.determine_checkpoint_to_load(None, auto_resume=True) is None
    assert paths.find_latest_run_dir("r") is None
    save(earlier, 5)
    assert paths.find_latest_run_dir("r") == "earlier"
    assert paths.determine_checkpoint_to_load(None, auto_resume=True) == earlier.get_checkpoint_path(5)
    assert paths.determine_checkpoint_to_load(None, auto_resume=False) is None
    save(paths, 3)
    with caplog.at_level(logging.INFO):
        assert paths.determine_checkpoint_to_load(None, auto_resume=True) == paths.get_checkpoint_path(3)
    assert "its own newest checkpoint" in caplog.text
    explicit = str(earlier.get_checkpoint_path(5))
    assert paths.determine_checkpoint_to_load(explicit, auto_resume=True) == Path(explicit)
    assert paths.determine_checkpoint_to_load("/nowhere", auto_resume=True) == paths.get_checkpoint_path(3)


def test_the_chosen_buffer_fits_the_checkpoint(tmp_path):
    paths, earlier = make(tmp_path), make(tmp_path, "earlier")
    save(earlier, 5, buffers=(4, 9))

    def choose(path, run_name, step=None, *, auto_resume=True):
        return paths.determine_buffer_to_load(path, auto_resume, run_name, step)

    assert choose(None, "earlier", 5) == earlier.get_buffer_path(4)
    assert choose(None, "earlier") == earlier.get_buffer_path(9)
    assert choose(None, "earlier", 3) is None
    assert choose(None, None) == earlier.get_buffer_path(9)
    assert choose(None, None, auto_resume=False) is None
    assert choose(str(earlier.get_buffer_path(4)), None) == earlier.get_buffer_path(4)
    assert choose("/nowhere", "earlier") == earlier.get_buffer_path(9)
    with pytest.raises(ConfigurationError, match="run_name"):
        choose(None, "../../elsewhere")


def test_a_private_run_is_closed_to_other_users_even_if_it_was_open(tmp_path):
    run_dir = tmp_path / "a" / "runs" / "r"
    for is_private, mode in ((True, 0o700), (False, 0o755), (True, 0o700)):
        make(tmp_path, private=is_private).create_run_directories()
        assert stat.S_IMODE(run_dir.stat().st_mode) == mode
        run_dir.chmod(0o755)


LINKED_PARTS = ["", "checkpoints", "logs", "tensorboard", "history", "journal.db", "run.json"]
LINKED_PARTS += ["journal.db-wal", "run.lock.holder", "logs/run.log", "tensorboard/events.out.tfevents.1.trieye"]


@pytest.mark.parametrize("part", LINKED_PARTS)
def test_nothing_is_written_through_a_link_that_leaves_the_root(tmp_path, part):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "root" / "a" / "runs" / "r" / part
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"is a link to .*elsewhere, which is outside root_data_dir"):
        make(tmp_path / "root").create_run_directories()


def test_the_root_itself_can_be_a_link_and_links_of_the_user_can_lead_anywhere(tmp_path):
    (tmp_path / "big_disk").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "big_disk")
    paths = make(tmp_path / "root")
    paths.create_run_directories()
    assert (tmp_path / "big_disk" / "a" / "runs" / "r" / "checkpoints").is_dir()
    (paths.run_base_dir / "data").symlink_to(tmp_path)
    (paths.run_base_dir / "profile_data" / "newest").symlink_to(tmp_path)
    paths.create_run_directories()
