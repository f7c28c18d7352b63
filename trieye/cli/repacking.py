"""Repack the installed trieye as a wheel for a generated project; needs neither a package index nor pip."""

import base64
import hashlib
import os
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import trieye

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip archive; equal files give equal wheels
_METADATA = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def repack(directory: Path) -> Path:
    """Write a wheel with the modules, configs and template of the running trieye, and return its path.

    Args:
        directory: Directory of the wheel; created if missing.

    Raises:
        PackageNotFoundError: The distribution `trieye` is not installed.
    """
    distribution = metadata.distribution("trieye")
    stem = f"trieye-{distribution.version}"
    files = dict(_modules())
    for name in _METADATA:
        if (text := distribution.read_text(name)) is not None:
            files[f"{stem}.dist-info/{name}"] = text.encode()
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in files.items())
    record_path = f"{stem}.dist-info/RECORD"
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, record_path: f"{record}{record_path},,\n".encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
    return wheel


def _modules() -> Iterator[tuple[str, bytes]]:
    """Yield the path in the wheel and the content of each file, in order."""
    package = Path(trieye.__file__).parent
    for root in (package, package.parent / "hydra_plugins" / "trieye"):
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__" and _is_own(Path(folder, name)))
            for path in sorted(Path(folder) / name for name in names):
                yield path.relative_to(package.parent).as_posix(), path.read_bytes()


def _is_own(folder: Path) -> bool:
    """Return whether a folder belongs to the package: no link, except `conf` and `template` in a checkout."""
    return not folder.is_symlink() or folder.resolve().parent == Path(trieye.__file__).parents[1]


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
