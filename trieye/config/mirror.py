"""Validation of mirror URLs (destinations for copies of a run) and of the packages that they need."""

import re

from trieye.config.base import did_you_mean
from trieye.config.packages import require

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""Additional package that a scheme needs."""

_SCHEMES = ("file", *_PACKAGES, "memory")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)")


def check_mirror_url(url: str) -> str:
    """Return a mirror URL, without trailing slash.

    Raises:
        ValueError: The scheme is missing or unknown, the URL contains credentials, or its path is not valid.
    """
    match = _URL.fullmatch(url)
    if match is None or match[1] not in _SCHEMES:
        from importlib.metadata import entry_points  # imports 15 modules, and reads the metadata of all packages

        schemes = [*_SCHEMES, *(plugin.name for plugin in entry_points(group="fsspec.specs"))]
        allowed = ", ".join(dict.fromkeys(schemes))
        if match is None:
            raise ValueError(f"a mirror URL needs a scheme, as in s3://bucket/prefix (schemes: {allowed})")
        if match[1] not in schemes:
            raise ValueError(
                f"unknown mirror scheme {match[1]!r}{did_you_mean(match[1], schemes)} (schemes: {allowed})"
            )
    scheme, path = match.groups()
    if "@" in path.split("/", 1)[0] and scheme not in {"abfs", "az"}:
        raise ValueError(
            "a mirror URL must not contain credentials, because every tracker shows it; pass them by environment "
            "variables such as AWS_ACCESS_KEY_ID and GOOGLE_APPLICATION_CREDENTIALS"
        )
    if scheme == "file" and not path.startswith("/"):
        raise ValueError("the directory must be absolute, as in file:///backup/runs")
    if not path.strip("/") or ".." in path.split("/") or "::" in path:
        raise ValueError("invalid path; expected a URL such as s3://bucket/prefix or file:///backup/runs")
    return url.rstrip("/")


def require_packages(url: str) -> None:
    """Check that the packages that a mirror URL needs are installed, without importing them.

    Raises:
        MissingPackageError: A package is missing; the message has the pip command.
    """
    require("fsspec", f"persistence.mirror={url}")
    if package := _PACKAGES.get(url.split("://", 1)[0]):
        require(package, f"persistence.mirror={url}")
