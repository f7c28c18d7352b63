"""Origin: from which commit, packages and machine a run of trieye came, as its own directory says."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trieye.config.fingerprint import json_of
from trieye.config.redaction import redacted_text
from trieye.exceptions import SerializationError
from trieye.files.run_files import CONFIGS, RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.results.runs import LoadedRun
from trieye.run.provenance import Provenance

_T = TypeVar("_T", bound=Hashable)


@dataclass(frozen=True)
class Origin:
    """Where a run came from.

    Attributes:
        record: Who it is.
        provenance: What its last attempt ran; None if nobody wrote that down.
        mlflow: Address of the run in an MLflow server; empty if it is in none.
    """

    record: RunRecord
    provenance: Provenance | None
    mlflow: str

    @classmethod
    def of(cls, run: LoadedRun) -> "Origin | None":
        """Return the origin of a run; None if it has no directory of trieye, or a damaged one."""
        directory = Path(run.path)
        try:
            record = RunRecord.read(directory / RUN_RECORD) if directory.is_dir() else None
        except SerializationError:
            return None
        return None if record is None else cls(record, Provenance.last(directory), _in_mlflow(directory, record))

    @property
    def duration_s(self) -> float | None:
        """Seconds from its first start to its end, pauses among them; None if nobody saw it end."""
        return None if self.record.ended is None else self.record.ended - self.record.created


@dataclass(frozen=True)
class Versions:
    """The packages of several runs, Python among them.

    Attributes:
        same: The version of each package that is the same in all.
        differing: For the others, how many runs had which version; None for those that lacked it.
    """

    same: Mapping[str, str]
    differing: Mapping[str, Mapping[str | None, int]]

    @classmethod
    def of(cls, found: Iterable[Provenance]) -> "Versions":
        """Return the packages of runs."""
        held = [{"Python": one.python, **one.packages} for one in found]
        names = dict.fromkeys(name for packages in held for name in packages)
        counts = {name: Counter(packages.get(name) for packages in held) for name in names}
        same = {name: packages[name] for packages in held[:1] for name in packages if len(counts[name]) == 1}
        return cls(same, {name: versions for name, versions in counts.items() if len(versions) > 1})


def counted(found: Iterable[Any], key: Callable[[Any], _T]) -> list[tuple[_T, int]]:
    """Return what things have in common, and how many of them: the most frequent first."""
    return Counter(map(key, found)).most_common()


def _in_mlflow(directory: Path, record: RunRecord) -> str:
    """Return where a server shows a run; a run is found there by its id alone, whatever its experiment is."""
    try:
        persistence = json_of(directory / CONFIGS).get("persistence") or {}
        store = str(persistence.get("mlflow_tracking_uri") or persistence.get("MLFLOW_TRACKING_URI"))
    except (OSError, ValueError, AttributeError):
        return ""
    if record.mlflow_run_id is None or not store.startswith(("http://", "https://")):
        return ""
    return f"{redacted_text(store).rstrip('/')}/#/runs/{record.mlflow_run_id}"
