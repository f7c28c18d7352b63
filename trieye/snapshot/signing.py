"""The user's own key, and what it signs: pickled parts and stored commands that may be run when they are read.

A signature of pickled parts covers the bytes of one file and nothing else: neither the checkpoint that the file lies
in, nor the step, nor the run. What it promises is that this user's own process made these pickles, so that reading
them runs no stranger's code. A signed file that is moved into another checkpoint gives a wrong state, as tensors that
are exchanged do, which no key protects; it runs nothing that the user did not write. In return a checkpoint can be
copied, renamed and moved to another run, as population-based training does.

The signature of a command covers its words and its directory: a copied or moved run can still be run again.
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
"""What others may not do with a key file: anyone who reads it can sign what its users will run."""


class Key(bytes):
    """A key that shows up in no message, log or traceback."""

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
        with contextlib.suppress(ConfigurationError):  # the hub looks for a key of its own, and reports the error
            key = load_key()
        return cls(key, pickles_allowed(None) or None)


def key_path() -> Path:
    """Return where the user's key is: `$TRIEYE_KEY_FILE`, else `trieye/key` below the configuration directory."""
    if chosen := os.environ.get(KEY_FILE_VARIABLE):
        return Path(chosen).expanduser()
    config_home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config_home) if config_home else Path.home() / ".config") / "trieye" / "key"


def key_source() -> str:
    """Return where the key comes from, for messages: the name of a variable or a file."""
    return f"${KEY_VARIABLE}" if os.environ.get(KEY_VARIABLE) else str(key_path())


def load_key() -> Key:
    """Return the user's key: `$TRIEYE_KEY` itself, else what its file holds, which the first use makes.

    Raises:
        ConfigurationError: The key has fewer than 16 bytes, or its file cannot be read or made, or is open to others.
    """
    if given := os.environ.get(KEY_VARIABLE):
        return _long_enough(os.fsencode(given), "take a longer one, such as 32 random characters")
    try:
        path = key_path()
    except RuntimeError as error:
        raise ConfigurationError(f"there is no place for the key that signs pickled parts: {error}; {_HELP}") from error
    try:
        if not path.exists():
            _make_key(path)
        return _read_key(path)
    except OSError as error:
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, cannot be used: {error.strerror or error}; {_HELP}"
        ) from error


def check_key() -> None:
    """Make sure, before a run begins, that the key it was given, or has used before, can sign and be trusted.

    Where there is none yet, the first pickled part makes it: most runs save none.

    Raises:
        ConfigurationError: As `load_key`.
    """
    with contextlib.suppress(RuntimeError):  # a user without home directory
        if any(map(os.environ.get, (KEY_VARIABLE, KEY_FILE_VARIABLE))) or os.path.lexists(key_path()):
            load_key()


def existing_key() -> Key | None:
    """Return the user's key, or None where there is none yet: one that is made now has signed nothing.

    Raises:
        ConfigurationError: As `load_key`.
    """
    return load_key() if os.environ.get(KEY_VARIABLE) or key_path().exists() else None


def _read_key(path: Path) -> Key:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read()
    is_own = not os.environ.get(KEY_FILE_VARIABLE)
    if mode & (_OWN_KEY_FORBIDS if is_own else _TEAM_KEY_FORBIDS):
        team = "" if is_own else " (or 640, for a team that has a group)"
        raise ConfigurationError(
            f"the key that signs pickled parts, {path}, is open to others (mode {mode:o}), who could sign what you "
            f"would run; type `chmod 600 {path}`{team}, and delete it instead if somebody may have read it; where "
            f"files have no modes, set {KEY_VARIABLE} to the key itself"
        )
    return _long_enough(
        content, "delete it and a new one is made (parts that were signed with it then need an explicit allow_pickle)"
    )


def _long_enough(content: bytes, advice: str) -> Key:
    key = Key(content.strip())
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigurationError(
            f"the key that signs pickled parts, {key_source()}, has {len(key)} bytes and needs {_MIN_KEY_BYTES}; "
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


def sign_command(*parts: object) -> str:
    """Return the signature of a command that is about to be stored; empty if the user has no usable key.

    Args:
        *parts: Words, directory and other plain data that determine the process.
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
    """Return `allow_pickle`, or what the environment says if it is None."""
    if allow_pickle is not None:
        return allow_pickle
    return os.environ.get(ALLOW_PICKLE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}
