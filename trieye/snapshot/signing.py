"""The user's key, and signatures of pickled parts and stored commands, whose loading or use executes code.

A signature of pickled parts covers the bytes of one file, but neither its checkpoint, nor the step, nor the run. It
guarantees that a process of this user created the pickles, so that loading them executes no foreign code. A signed file
that is moved into another checkpoint yields a wrong state, as exchanged tensors do, but executes no foreign code. In
return, a checkpoint can be copied, renamed and moved to another run, as population-based training does.

The signature of a command covers its arguments and its directory: a copied or moved run can still be rerun.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple, Self

from trieye.exceptions import ConfigurationError

KEY_VARIABLE = "TRIEYE_KEY"
KEY_FILE_VARIABLE = "TRIEYE_KEY_FILE"
ALLOW_PICKLE_VARIABLE = "TRIEYE_ALLOW_PICKLE"
SIGNATURE_BYTES = 32
_MIN_KEY_BYTES = 16
_HELP = f"set {KEY_FILE_VARIABLE} to a file that this user can read, or {KEY_VARIABLE} to the key itself"
_OWN_KEY_FORBIDS = 0o077
_TEAM_KEY_FORBIDS = 0o037
"""Forbidden permission bits of a key file: anyone who can read it can sign code that its users will execute."""


class Key(bytes):
    """A key that never appears in messages, logs or tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<key>"

    __str__ = __repr__


class Trust(NamedTuple):
    """Signs pickled parts of checkpoints, and decides whether unsigned ones may be read, which can run any code.

    Attributes:
        key: None: the key of the user whose process it is.
        allow_pickle: None: the environment decides, see `pickles_allowed`.
    """

    key: Key | None = None
    allow_pickle: bool | None = None

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the key and the permission of this process, for a hub on another node."""
        key = None
        with contextlib.suppress(ConfigurationError):  # the hub looks for its own key, and reports the error
            key = load_key()
        return cls(key, pickles_allowed(None) or None)


def key_path() -> Path:
    """Return the path of the user's key: `$TRIEYE_KEY_FILE`, otherwise `trieye/key` in the configuration directory."""
    if chosen_path := os.environ.get(KEY_FILE_VARIABLE):
        return Path(chosen_path).expanduser()
    config_home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config_home) if config_home else Path.home() / ".config") / "trieye" / "key"


def key_source() -> str:
    """Return the source of the key for messages: the name of a variable or a file."""
    return f"${KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) else str(key_path())


def load_key() -> Key:
    """Return the user's key: `$TRIEYE_KEY`, otherwise the content of the key file, which the first use creates.

    Raises:
        ConfigurationError: The key has fewer than 16 bytes, or its file cannot be read or created, or other users can
            access it.
    """
    if value := os.environ.get(KEY_VARIABLE):
        return _long_enough(os.fsencode(value), "use a longer key, such as 32 random characters")
    try:
        path = key_path()
    except RuntimeError as error:
        raise ConfigurationError(f"no location for the key that signs pickled parts: {error}; {_HELP}") from error
    try:
        if not path.exists():
            _make_key(path)
        return _read_key(path)
    except OSError as error:
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, cannot be used: {error.strerror or error}; {_HELP}"
        ) from error


def check_key() -> None:
    """Check before the start of a run that a configured or existing key is usable.

    A missing key is created with the first pickled part; most runs save none.

    Raises:
        ConfigurationError: As in `load_key`.
    """
    with contextlib.suppress(RuntimeError):  # a user without home directory
        if any(map(os.environ.get, (KEY_VARIABLE, KEY_FILE_VARIABLE))) or os.path.lexists(key_path()):
            load_key()


def existing_key() -> Key | None:
    """Return the user's key, or None if it does not exist: a new key cannot have signed anything.

    Raises:
        ConfigurationError: As in `load_key`.
    """
    # Path.exists raises for a home directory without access
    return load_key() if os.environ.get(KEY_VARIABLE) or os.path.exists(key_path()) else None  # noqa: PTH110


def _read_key(path: Path) -> Key:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read()
    is_own = not os.environ.get(KEY_FILE_VARIABLE)
    if mode & (_OWN_KEY_FORBIDS if is_own else _TEAM_KEY_FORBIDS):
        team = "" if is_own else " (or 640, for a team that has a group)"
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, is accessible to others (mode {mode:o}), who could sign code "
            f"that you would execute; run `chmod 600 {path}`{team}, or delete it if another user may have read it; on "
            f"file systems without modes, set {KEY_VARIABLE} to the key itself"
        )
    return _long_enough(
        content, "delete it to create a new one (parts signed with the old key then need an explicit allow_pickle)"
    )


def _long_enough(content: bytes, advice: str) -> Key:
    key = Key(content.strip())
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigurationError(
            f"the key that signs pickled parts, {key_source()}, has {len(key)} bytes, but needs {_MIN_KEY_BYTES}; "
            f"{advice}"
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
        # a link, not a rename: if two processes create the key, the first one wins, and a key is never read partially
        with contextlib.suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        scratch.unlink()


def sign(payload: bytes, key: bytes) -> bytes:
    """Return the HMAC-SHA256 of `payload`."""
    return hmac.new(key, b"trieye objects 1\n" + payload, hashlib.sha256).digest()


def is_signed(payload: bytes, signature: bytes, key: bytes) -> bool:
    """Verify the signature of `payload` in constant time."""
    return hmac.compare_digest(sign(payload, key), signature)


def sign_command(*parts: object) -> str:
    """Return the signature for a command to store; empty if the user has no usable key.

    Args:
        *parts: Arguments, directory and other plain data that determine the process.
    """
    with contextlib.suppress(ConfigurationError):
        return _command_digest(parts, load_key())
    return ""


def is_own_command(signature: str, *parts: object) -> bool:
    """Return True if `sign_command` returned this signature for these parts and the key of this user."""
    with contextlib.suppress(ConfigurationError, RuntimeError):  # RuntimeError: a user without home directory
        key = existing_key()
        return key is not None and hmac.compare_digest(_command_digest(parts, key), ascii(signature)[1:-1])
    return False


def _command_digest(parts: tuple[object, ...], key: bytes) -> str:
    return hmac.new(key, b"trieye command 1\n" + json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def pickles_allowed(allow_pickle: bool | None) -> bool:
    """Return `allow_pickle`, or the value of TRIEYE_ALLOW_PICKLE if it is None."""
    if allow_pickle is not None:
        return allow_pickle
    return os.environ.get(ALLOW_PICKLE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
