"""`trieye sweep merge`: bring the runs of a sweep from their mirror, and show all of them in one MLflow store."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import DEFAULT_ROOT, add_root, add_timeout
from trieye.cli.output import print_json
from trieye.exceptions import ConfigurationError, TrieyeError

if TYPE_CHECKING:
    from trieye.sweeps.record import SweepRecord

_MIRROR = "persistence.mirror"
LOCK = "merge.lock"


def add_merge(actions: Any) -> None:
    """Add the action to the others."""
    merge = actions.add_parser("merge", help="bring the runs of other machines here, and into one MLflow store")
    merge.add_argument("dir", nargs="?", type=Path, metavar="DIR", help="directory of the sweep")
    merge.add_argument("--mirror", metavar="URL", help=f"where the runs are mirrored ({_MIRROR} of the sweep)")
    add_root(merge, Path(DEFAULT_ROOT))
    add_timeout(merge)


def merge(options: argparse.Namespace, directory: Path, record: "SweepRecord") -> int:
    """Bring what is new of each run here, deliver it to MLflow, and return the exit code."""
    from trieye.process.lock import RunLock
    from trieye.sweeps.jobs import RUN
    from trieye.sweeps.status import status_of
    from trieye.sweeps.tracking import show_in_mlflow

    mirror = _mirror(options.mirror, record)
    failed: dict[int, str] = {}
    with RunLock(directory / LOCK):
        begun = [job for job in status_of(directory) if (directory / str(job.index) / RUN).is_symlink()]
        for job in begun:
            try:
                run_dir, is_new = _brought(directory / str(job.index) / RUN, mirror, options.root.resolve())
                if is_new and (missing := _deliver(run_dir, options.timeout)):
                    failed[job.index] = "; ".join(f"{sink}: {lacks}" for sink, lacks in missing.items())
            except (TrieyeError, OSError) as error:
                failed[job.index] = str(error)
        show_in_mlflow(directory, record)
    if options.json:
        print_json("sweep.merge", {"sweep": directory, "num_runs": len(begun), "failed": failed})
    else:
        for index, reason in failed.items():
            print(f"job {index}: {reason}")
        print(f"{len(begun) - len(failed)} of {len(begun)} runs are in {options.root}")
    return 1 if failed else 0


def _mirror(given: str | None, record: "SweepRecord") -> str:
    from trieye.config.mirror import check_mirror_url

    typed = [word.partition("=")[2] for word in record.spec if word.lstrip("+").startswith(f"{_MIRROR}=")]
    url = given or (typed[-1] if typed else None)
    if url is None:
        raise ConfigurationError(
            f"name the mirror of the runs, {_MIRROR} in their config: --mirror file:///shared/runs"
        )
    try:
        return check_mirror_url(url)
    except ValueError as error:
        raise ConfigurationError(f"--mirror {url}: {error}") from error


def _brought(link: Path, mirror: str, root: Path) -> tuple[Path, bool]:
    """Bring the run of a job here, if it is not, or is older than in its mirror.

    Returns:
        Its directory, and whether there is something new in it.

    Raises:
        ConfigurationError: The mirror does not have it, or there is another run here.
    """
    from trieye.config import TrieyeConfig
    from trieye.files.atomic import relink, remove
    from trieye.files.run_files import RunFiles
    from trieye.mirror.layout import STATES, whole_states
    from trieye.mirror.local import LocalRun
    from trieye.mirror.restore import restore_run
    from trieye.mirror.store import MirrorStore
    from trieye.process.lock import RunLock

    there = link.readlink()  # on the machine that ran the job
    if len(there.parts) < 3:  # noqa: PLR2004 - app, runs, name
        raise ConfigurationError(
            f"{link} leads to {str(there)!r}; the link to a run ends in APP/RUNS/NAME. Delete it, and relaunch the job"
        )
    app, runs, name = there.parts[-3:]
    held = TrieyeConfig(
        app_name=app, run_name=name, persistence={"root_data_dir": str(root), "runs_dir_name": runs}
    ).persistence
    paths = RunFiles(held)
    here, local = paths.run_base_dir, LocalRun(paths)
    newest = whole_states(MirrorStore(mirror, app, name).list(STATES))
    if not newest:
        raise ConfigurationError(f"run {name!r} is not in {mirror}; had its job {_MIRROR}={mirror}?")
    if not local.is_lost():
        known = local.record().generation
        if not known and there == here:
            return here, False  # this machine ran the job
        if not known:
            raise ConfigurationError(f"{here} is a run that did not come from a mirror; choose another --root")
        if known >= newest[0][0]:
            return here, False
        remove(here)
    paths.create_run_directories()
    with RunLock(paths.lock_path):
        restore_run(paths, mirror)
    relink(link, here)
    return here, True


def _deliver(run_dir: Path, timeout_s: float) -> Mapping[str, str]:
    """Deliver a run to MLflow, and return what is missing, by sink."""
    from trieye.runs.config import config_of
    from trieye.runs.delivery import deliver

    config = config_of(run_dir)
    mlflow = config.sinks.mlflow.model_copy(update={"enabled": True})
    sinks = config.sinks.model_copy(update={"mlflow": mlflow})
    persistence = config.persistence.model_copy(update={"mirror": None})  # which has it all
    config = config.model_copy(update={"sinks": sinks, "persistence": persistence})
    return deliver(config, timeout_s, rewritten=["mlflow"]).missing  # MLflow drops what it has
