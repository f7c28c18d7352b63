"""Compare stored runs: values of the config, commit, packages and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trieye.config.fingerprint import leaves
from trieye.config.redaction import HIDDEN, redacted
from trieye.run.provenance import Commit, Provenance
from trieye.runs.finding import RunReference, get
from trieye.runs.stored_run import StoredRun

_NOT_COMPARED = {"run_name", "persistence.run_name", "persistence.MLFLOW_TRACKING_URI", "run_config"}
"""Keys that differ between any two runs."""

Differences = Mapping[str, tuple[Any, Any]]
"""The values of both operands by name; None where one has none."""


@dataclass(frozen=True)
class Divergence:
    """What differs between two operands.

    Attributes:
        config: Values of the config.
        commit: The commit, its branch, whether there were uncommitted changes, and hashes of modules of the program.
        packages: Versions of packages, and of Python.
    """

    config: Differences
    commit: Differences
    packages: Differences

    @classmethod
    def between(
        cls,
        first: tuple[Mapping[str, Any], Provenance | None],
        second: tuple[Mapping[str, Any], Provenance | None],
        *,
        ignored: Sequence[str] = (),
    ) -> "Divergence":
        """Compare configs and provenances; without one of the latter, the configs only.

        Args:
            first: Config and provenance of one operand.
            second: The same of the other one.
            ignored: Keys of the config that are not compared.
        """
        configs = [{key: value for key, value in config.items() if key != HIDDEN} for config, _ in (first, second)]
        pairs = _differing(*(redacted(dict(leaves(config))) for config in configs))
        left_out = _NOT_COMPARED | set(ignored)
        config = {key: pairs[key] for key in pairs if left_out.isdisjoint((key, key.partition(".")[0]))}
        provenances = [provenance for _, provenance in (first, second) if provenance is not None]
        if len(provenances) < 2:  # noqa: PLR2004 - one of the operands has none
            return cls(config, {}, {})
        packages = [{**provenance.packages, "python": provenance.python} for provenance in provenances]
        modules = sorted(provenances[0].sources.keys() & provenances[1].sources.keys())
        commits = [
            {**_about(provenance.commit), **{f"module {name}": provenance.sources[name][:8] for name in modules}}
            for provenance in provenances
        ]
        return cls(config, _differing(*commits), _differing(*packages))

    def parts(self) -> dict[str, Differences]:
        """Return the differences by part."""
        return {"config": self.config, "commit": self.commit, "packages": self.packages}


@dataclass(frozen=True)
class RunDiff:
    """Two runs, compared.

    Attributes:
        first: One run.
        second: The other one.
        divergence: What differs in config, commit and packages.
        metrics: The last value of each metric in both runs, and the best one of an objective.
    """

    first: StoredRun
    second: StoredRun
    divergence: Divergence
    metrics: Differences


def diff(first: RunReference, second: RunReference, *, root: Path | None = None) -> RunDiff:
    """Compare two runs; they may be alive, killed, or lack a provenance.

    Args:
        first: A run, its directory or its name.
        second: Another one.
        root: Directory of all apps; None: the directories of the project around the working directory.

    Raises:
        ConfigurationError: There is no such run, or its run.json or configs.json is missing or damaged.
    """
    runs = get(first, root=root), get(second, root=root)
    operands = [(run.config, run.provenance) for run in runs]
    return RunDiff(*runs, Divergence.between(*operands), _metrics(*runs))


def _metrics(first: StoredRun, second: StoredRun) -> Differences:
    sides = first.metrics, second.metrics
    pairs: dict[str, tuple[Any, Any]] = {}
    for run in (first, second):
        name = str(run.metric)
        if any(name in metrics for metrics in sides):
            pairs[f"best {name}"] = (sides[0].get(name, {}).get(run.mode), sides[1].get(name, {}).get(run.mode))
    for name in sorted({*sides[0], *sides[1]}):
        pairs[name] = (sides[0].get(name, {}).get("last"), sides[1].get(name, {}).get("last"))
    return pairs


def _about(commit: Commit | None) -> dict[str, Any]:
    if commit is None:
        return {}
    return {"sha": commit.sha, "branch": commit.branch, "uncommitted changes": commit.is_dirty}


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*first, *second])
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}
