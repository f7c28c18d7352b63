"""Which sweep a command means: the one that was named, else the one here or the newest."""

import sys
from pathlib import Path

from trieye.exceptions import ConfigurationError


def directory_of(given: Path | None) -> Path:
    """Return the directory of the sweep that is meant.

    Raises:
        ConfigurationError: None was named, and there is none here.
    """
    from trieye.sweeps.record import SWEEP

    if given is not None:
        return given
    if Path(SWEEP).is_file():
        return Path()
    newest = max(Path("multirun").rglob(SWEEP), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise ConfigurationError("no sweep here, and none below multirun/; name its directory")
    print(f"sweep in {newest.parent}", file=sys.stderr)
    return newest.parent
