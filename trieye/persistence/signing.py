"""The user's own key, and what it signs: pickled parts that may be run when they are read."""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from trieye.exceptions import ConfigurationError

KEY_FILE_VARIABLE = "TRIEYE_KEY_FILE"
ALLOW_PICKLE_VARIABLE = "TRIEYE_ALLOW_PICKLE"
SIGNATURE_BYTES = 32
_MIN_KEY_BYTES = 16


def key_path() -> Path:
    """Return where the user's key is: `$TRIEYE_KEY_FILE`, else `trieye/key` below the configuration directory."""
    if chosen := os.environ.get(KEY_FILE_VARIABLE):
        return Path(chosen).expanduser()
    config_home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config_home) if config_home else Path.home() / ".config") / "trieye" / "key"


def load_key() -> bytes:
    """Return the user's key; the first use makes it, readable by the user alone.

    Raises:
        ConfigurationError: The file cannot be read or made, or holds fewer than 16 bytes.
    """
    path = key_path()
    try:
        if not path.exists():
            _make_key(path)
        key = path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, cannot be used: {error.strerror or error}; "
            f"set {KEY_FILE_VARIABLE} to a file that this user can read"
        ) from error
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, has {len(key)} bytes and needs {_MIN_KEY_BYTES}; "
            "delete it and a new one is made (parts that were signed with it then need an explicit allow_pickle)"
        )
    return key


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        # a link, not a rename: of two processes that make the key at once, the first wins and nobody reads half a key
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        scratch.unlink()


def sign(payload: bytes, key: bytes) -> bytes:
    """Return the HMAC-SHA256 of `payload`."""
    return hmac.new(key, b"trieye objects 1\n" + payload, hashlib.sha256).digest()


def is_signed(payload: bytes, signature: bytes, key: bytes) -> bool:
    """Tell whether `signature` is that of `payload`, in constant time."""
    return hmac.compare_digest(sign(payload, key), signature)


def pickles_allowed(allow_pickle: bool | None) -> bool:
    """Return `allow_pickle`, or what the environment says if it is None."""
    if allow_pickle is not None:
        return allow_pickle
    return os.environ.get(ALLOW_PICKLE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
