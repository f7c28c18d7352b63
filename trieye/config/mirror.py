"""Addresses of mirrors: where a run is copied to, besides the disk of its machine."""

import importlib.util
import re

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""What has to be installed besides for a scheme."""

_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs"}
"""Extras of trieye that bring those packages."""

_SCHEMES = ("file", *_PACKAGES, "memory")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)")


def check_mirror_url(url: str) -> str:
    """Return the address of a mirror, without a slash at its end, if it can be one.

    Raises:
        ValueError: It has no scheme or an unknown one, holds credentials, or names no place.
    """
    from importlib.metadata import entry_points  # here, for it loads 15 modules

    match = _URL.fullmatch(url)
    known = [*_SCHEMES, *(plugin.name for plugin in entry_points(group="fsspec.specs"))]
    allowed = ", ".join(dict.fromkeys(known))
    if match is None:
        raise ValueError(f"a mirror begins with its scheme, as in s3://bucket/prefix (schemes: {allowed})")
    scheme, place = match.groups()
    if scheme not in known:
        raise ValueError(f"{scheme!r} is no scheme of a mirror{did_you_mean(scheme, known)} (schemes: {allowed})")
    if "@" in place.split("/", 1)[0] and scheme not in {"abfs", "az"}:
        raise ValueError(
            "credentials do not belong here, where every tracker shows them: give them to the library, as the "
            "environment variables AWS_ACCESS_KEY_ID and GOOGLE_APPLICATION_CREDENTIALS do"
        )
    if scheme == "file" and not place.startswith("/"):
        raise ValueError("the path of a directory has to be absolute, as in file:///backup/runs")
    if not place.strip("/") or ".." in place.split("/") or "::" in place:
        raise ValueError("it names no place, as s3://bucket/prefix and file:///backup/runs do")
    return url.rstrip("/")


def require_package(url: str) -> None:
    """Make sure that what an address needs is installed; imports nothing.

    Raises:
        ConfigurationError: It is not; the message says what to type.
    """
    package = _PACKAGES.get(url.split("://", 1)[0])
    if package is None or importlib.util.find_spec(package) is not None:
        return
    wanted = f'"trieye[{_EXTRAS[package]}]"' if package in _EXTRAS else package
    raise ConfigurationError(f"persistence.mirror={url}: the package {package} is missing; pip install {wanted}")
