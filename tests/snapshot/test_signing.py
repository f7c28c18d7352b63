import multiprocessing
import pickle
import stat

import pytest

from tests.permissions import restricted_access
from trieye.exceptions import ConfigurationError
from trieye.snapshot.signing import Key, existing_key, is_signed, key_path, key_source, load_key, sign


def test_the_key_is_created_once_and_readable_by_its_user_only(own_key_home):
    first = load_key()
    assert key_path() == own_key_home / "trieye" / "key"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert load_key() == first
    assert len(first) >= 32


def test_without_xdg_config_home_the_key_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_key()
    assert (tmp_path / ".config" / "trieye" / "key").is_file()


def test_trieye_key_file_selects_another_key(monkeypatch, tmp_path):
    (tmp_path / "mine").write_bytes(b"0123456789abcdef\n")
    (tmp_path / "mine").chmod(0o640)  # shared by a team
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "mine"))
    assert load_key() == b"0123456789abcdef"


def test_a_key_that_is_too_short_is_rejected(monkeypatch, tmp_path):
    (tmp_path / "mine").write_bytes(b"")
    (tmp_path / "mine").chmod(0o600)
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "mine"))
    with pytest.raises(ConfigurationError, match="0 bytes"):
        load_key()


def test_trieye_key_takes_precedence_over_key_files(monkeypatch, tmp_path, own_key_home):
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("TRIEYE_KEY", " 0123456789abcdef\n")
    assert load_key() == existing_key() == b"0123456789abcdef"
    assert key_source() == "$TRIEYE_KEY"
    assert not list(own_key_home.iterdir())
    monkeypatch.setenv("TRIEYE_KEY", "0123456789")
    with pytest.raises(ConfigurationError, match=r"\$TRIEYE_KEY, has 10 bytes, but needs 16") as caught:
        load_key()
    assert "0123456789" not in str(caught.value)
    monkeypatch.setenv("TRIEYE_KEY", "")  # the value of an unset secret in a CI job
    monkeypatch.delenv("TRIEYE_KEY_FILE")
    assert load_key() == key_path().read_bytes().strip()


def test_existing_key_returns_none_and_creates_no_key():
    assert existing_key() is None
    assert not key_path().exists()
    assert load_key() == existing_key()


def test_a_home_directory_without_access_has_no_key(monkeypatch, tmp_path):
    (tmp_path / "home").mkdir(mode=0)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with restricted_access():
        assert existing_key() is None


@pytest.mark.parametrize(("mode", "is_open"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_the_default_key_must_not_be_accessible_to_others(mode, is_open):
    load_key()
    key_path().chmod(mode)
    if not is_open:
        assert load_key()
        return
    with pytest.raises(ConfigurationError, match=rf"accessible to others \(mode {mode:o}\)") as caught:
        load_key()
    assert f"chmod 600 {key_path()}" in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o606])
def test_a_team_key_file_may_be_readable_by_its_group_only(mode, monkeypatch, tmp_path):
    (tmp_path / "mine").write_bytes(b"0123456789abcdef")
    (tmp_path / "mine").chmod(mode)
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "mine"))
    with pytest.raises(ConfigurationError, match="or 640, for a team"):
        load_key()


def test_a_key_hides_its_bytes_in_messages_and_can_be_pickled():
    key = Key(b"0123456789abcdef")
    assert f"{key} {key!r} {[key]}" == "<key> <key> [<key>]"
    sent = pickle.loads(pickle.dumps(key))
    assert sent == key
    assert repr(sent) == "<key>"
    assert sign(b"payload", sent) == sign(b"payload", b"0123456789abcdef")


def test_a_signature_is_valid_only_for_its_bytes_and_key():
    signature = sign(b"payload", b"key one")
    assert is_signed(b"payload", signature, b"key one")
    assert not is_signed(b"payloaD", signature, b"key one")
    assert not is_signed(b"payload", signature, b"key two")
    assert not is_signed(b"payload", bytes(32), b"key one")


def test_processes_that_create_the_key_concurrently_agree_on_it():
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        keys = [pending.get(60) for pending in [pool.apply_async(load_key) for _ in range(16)]]
    assert set(keys) == {load_key()}
    assert [path.name for path in key_path().parent.iterdir()] == ["key"]
