import multiprocessing
import stat

import pytest

from trieye.exceptions import ConfigurationError
from trieye.persistence.signing import is_signed, key_path, load_key, sign


def test_the_key_is_made_once_and_for_the_user_alone(own_key_home):
    first = load_key()
    assert key_path() == own_key_home / "trieye" / "key"
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    assert load_key() == first
    assert len(first) >= 32


def test_without_xdg_config_home_the_key_is_below_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    load_key()
    assert (tmp_path / ".config" / "trieye" / "key").is_file()


def test_the_environment_names_another_key(monkeypatch, tmp_path):
    (tmp_path / "mine").write_bytes(b"0123456789abcdef\n")
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "mine"))
    assert load_key() == b"0123456789abcdef"


def test_a_key_that_is_too_short_is_refused(monkeypatch, tmp_path):
    (tmp_path / "mine").write_bytes(b"")
    monkeypatch.setenv("TRIEYE_KEY_FILE", str(tmp_path / "mine"))
    with pytest.raises(ConfigurationError, match="0 bytes"):
        load_key()


def test_only_the_signed_bytes_and_the_same_key_fit():
    signature = sign(b"payload", b"key one")
    assert is_signed(b"payload", signature, b"key one")
    assert not is_signed(b"payloaD", signature, b"key one")
    assert not is_signed(b"payload", signature, b"key two")
    assert not is_signed(b"payload", bytes(32), b"key one")


def test_processes_that_make_the_key_at_once_get_the_same_one():
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        keys = [pending.get(60) for pending in [pool.apply_async(load_key) for _ in range(16)]]
    assert set(keys) == {load_key()}
    assert [path.name for path in key_path().parent.iterdir()] == ["key"]
