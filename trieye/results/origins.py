"""Origin: the commit, packages and machine of a run, from the records in its directory."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.config.fingerprint import json_of
from trieye.config.redaction import redacted_text
from trieye.exceptions import SerializationError
from trieye.files.run_files import CONFIGS, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.results.runs import LoadedRun
from trieye.run.provenance import Provenance

_PRIVATE = {"command": [], "overrides": [], "directory": "", "user": "", "job": {}, "sources": {}, "signature": ""}
_PUBLIC_ADDRESS = re.compile(r"(https?|git)://[^@]+|(ssh://)?git@.+")  # names no user and no path of a machine


@dataclass(frozen=True)
class Origin:
    """Attempts and provenance of a run.

    Attributes:
        attempt: Number of its last attempt.
        duration_s: Seconds from the first start to the end, including pauses; None if the end was not recorded.
        provenance: Provenance of its last attempt; None if it was not recorded.
        mlflow: URL of the run in an MLflow server; empty if it is on no server.
    """

    attempt: int
    duration_s: float | None
    provenance: Provenance | None
    mlflow: str = ""

    @classmethod
    def of(cls, run: LoadedRun) -> "Origin | None":
        """Return the origin of a run; None if it has no intact trieye run directory, and its export had none."""
        if (values := run.source.origin(run)) is not None:
            return cls._restored(values)
        directory = Path(run.path)
        try:
            record = RunRecord.read(directory / RUN_RECORD) if directory.is_dir() else None
        except SerializationError:
            return None
        if record is None:
            return None
        duration = None if record.ended is None else record.ended - record.created
        return cls(record.attempt, duration, Provenance.last(directory), _in_mlflow(directory, record))

    def exported(self) -> dict[str, Any]:
        """Return the attempt, the duration, and the provenance without private fields: no user, host or path."""
        of_run = {"attempt": self.attempt, "duration_s": self.duration_s}
        if self.provenance is None:
            return of_run
        public_values = self.provenance.model_copy(update=_PRIVATE).model_dump()
        public_values["machine"]["host"] = ""
        if (commit := public_values["commit"]) is not None:
            commit |= {"directory": "", "untracked": []}
            if not _PUBLIC_ADDRESS.fullmatch(commit["remote"]):
                commit["remote"] = ""
        return {**of_run, **public_values}

    @classmethod
    def _restored(cls, values: Mapping[str, Any]) -> "Origin":
        provenance = Provenance.model_validate(values) if "python" in values else None
        return cls(values["attempt"], values["duration_s"], provenance)


@dataclass(frozen=True)
class Versions:
    """Package versions of several runs, including Python.

    Attributes:
        same: Version of each package with the same version in all runs.
        differing: For other packages, the number of runs per version; None: not installed.
    """

    same: Mapping[str, str]
    differing: Mapping[str, Mapping[str | None, int]]

    @classmethod
    def of(cls, provenances: Iterable[Provenance]) -> "Versions":
        """Compare the packages of runs."""
        runs = [{"Python": one.python, **one.packages} for one in provenances]
        names = dict.fromkeys(name for packages in runs for name in packages)
        counts = {name: Counter(packages.get(name) for packages in runs) for name in names}
        common_versions = {name: packages[name] for packages in runs[:1] for name in packages if len(counts[name]) == 1}
        return cls(common_versions, {name: versions for name, versions in counts.items() if len(versions) > 1})


def _in_mlflow(directory: Path, record: RunRecord) -> str:
    """Return the URL of a run in its MLflow server, which needs only the run id; empty without a server."""
    try:
        persistence = json_of(directory / CONFIGS).get("persistence") or {}
        store = str(persistence.get("mlflow_tracking_uri") or persistence.get("MLFLOW_TRACKING_URI"))
    except (OSError, ValueError, AttributeError):
        return ""
    if record.mlflow_run_id is None or not store.startswith(("http://", "https://")):
        return ""
    return f"{redacted_text(store).rstrip('/')}/#/runs/{record.mlflow_run_id}"
