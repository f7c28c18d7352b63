"""Build the pages that `trieye ui` opens: MLflow, TensorBoard and trieye's report, with their server commands."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

from trieye.cli import report_server
from trieye.config.names import check_inside
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.run_files import CONFIGS, RUN_RECORD
from trieye.process.local_servers import HOST
from trieye.runs.config import tracking_uri_of
from trieye.runs.finding import find_directories, is_sweep, resolve
from trieye.runs.stored_run import StoredRun
from trieye.sinks.mlflow import pages as mlflow_pages
from trieye.sinks.mlflow.store import database_of

Kind = Literal["mlflow", "tensorboard", "report"]

MAX_STORES = 5
"""Each store needs a server, which uses 250 MB of memory."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a running server, or of a server to start.

    Attributes:
        title: Title shown next to the link.
        fragment: Path and fragment appended to the server address.
        address: Address of a running server; None if `command` starts one.
        command: Returns the command line of the server for a port.
        health: Path that the server answers once it is ready.
        environment: Environment variables of the server.
        refresh: Adds runs that appeared since the last call; None if the page finds them itself.
    """

    title: str
    fragment: str
    address: str | None = None
    command: Callable[[int], Sequence[str]] | None = None
    health: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    refresh: Callable[[], object] | None = None


class ShownRun(NamedTuple):
    """A run with the locations of its data in MLflow and TensorBoard.

    Attributes:
        run: The run.
        mlflow_run_id: ID of its MLflow run.
        tracking_uri: URI of its MLflow store or server.
        is_in_mlflow: Whether MLflow contains it, including through `trieye sweep merge`.
        event_dir: Directory of its TensorBoard event files.
        writes_events: Whether its TensorBoard sink is enabled; other programs may write to the directory too.
    """

    run: StoredRun
    mlflow_run_id: str | None
    tracking_uri: str
    is_in_mlflow: bool
    event_dir: Path
    writes_events: bool

    @classmethod
    def of(cls, run: StoredRun) -> Self:
        """Read the locations from the run's config.

        Raises:
            LookupError, TypeError, ValueError: The config is not the config of a run.
        """
        persistence, sinks, mlflow_run_id = run.config["persistence"], run.config["sinks"], run.record.mlflow_run_id
        event_dir_name = str(persistence["tensorboard_dir_name"])
        return cls(
            run=run,
            mlflow_run_id=mlflow_run_id,
            tracking_uri=tracking_uri_of(persistence, run.run_dir),
            is_in_mlflow=bool(sinks["mlflow"]["enabled"]) or mlflow_run_id is not None,
            event_dir=run.run_dir if event_dir_name == "." else run.run_dir / check_inside(event_dir_name),
            writes_events=bool(sinks["tensorboard"]["enabled"]),
        )

    @property
    def is_in_tensorboard(self) -> bool:
        """Whether the run has event files or will write them."""
        with suppress(OSError):
            return self.writes_events or any("tfevents" in path.name for path in self.event_dir.iterdir())
        return False


class PageSelection:
    """The runs that pages show.

    Args:
        reference: A run, an app, a sweep or a directory; None: all apps.
        roots: Directories that contain all apps.

    Attributes:
        directory: Directory of the selection; None: all apps.

    Raises:
        ConfigurationError: No run, app, sweep or directory has this name.
    """

    def __init__(self, reference: str | None, roots: Sequence[Path]) -> None:
        self.directory = None if reference is None else resolve(reference, roots)
        self._roots = roots
        self._runs: dict[Path, ShownRun | str] = {}
        self.is_run = self.directory is not None and (self.directory / RUN_RECORD).exists()
        self.is_sweep = not self.is_run and self.directory is not None and is_sweep(self.directory)

    def __str__(self) -> str:
        """Return the selected directories."""
        return (
            str(self.directory) if self.directory is not None else ", ".join(map(str, self._roots)) or "this directory"
        )

    def runs(self) -> list[ShownRun]:
        """Return the current runs, oldest first; later calls read only new and skipped runs."""
        run_dirs, _ = find_directories([] if self.directory is None else [str(self.directory)], self._roots)
        readable_runs = {run_dir: run for run_dir, run in self._runs.items() if isinstance(run, ShownRun)}
        self._runs = {run_dir: readable_runs.get(run_dir) or _read(run_dir) for run_dir in run_dirs}
        runs = [run for run in self._runs.values() if isinstance(run, ShownRun)]
        return sorted(runs, key=lambda shown_run: shown_run.run.created)

    def skipped(self) -> list[str]:
        """Return a message for each run that cannot be shown."""
        return [reason for reason in self._runs.values() if isinstance(reason, str)]


def _read(run_dir: Path) -> ShownRun | str:
    try:
        return ShownRun.of(StoredRun.read(run_dir))
    except (ConfigurationError, SerializationError, ValueError, LookupError, TypeError) as error:
        reason = f"{CONFIGS} has no {error}" if isinstance(error, LookupError) else error
        return f"{run_dir} is skipped: {reason}"


def pages_of(selection: PageSelection, directory: Path, *, only: Kind | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of the selected runs, and notes on skipped runs and pages.

    Args:
        selection: The runs.
        directory: Directory for temporary files of the servers.
        only: Kind of the pages; None: all kinds.

    Raises:
        ConfigurationError: There is no page, or there are too many stores.
    """
    runs, skipped = selection.runs(), selection.skipped()
    notes = skipped[:_SHOWN] + ([f"{len(skipped) - _SHOWN} more runs are skipped"] if skipped[_SHOWN:] else [])
    if not runs:
        advice = "; ".join(notes) or "pass a run, an app or a sweep, or the directory of all apps as --root"
        raise ConfigurationError(f"no runs in {selection}; {advice}")
    pages_by_kind = {
        "mlflow": _mlflow_pages(selection, runs, notes),
        "tensorboard": _tensorboard_pages(selection, runs, directory / "tensorboard", notes),
        "report": _report_pages(selection, notes),
    }
    pages = [page for kind, pages in pages_by_kind.items() if only in {None, kind} for page in pages]
    if not pages:
        raise ConfigurationError(f"{selection}: nothing to show in the browser: {'; '.join(notes)}")
    return pages, notes


def _mlflow_pages(selection: PageSelection, runs: Sequence[ShownRun], notes: list[str]) -> Iterator[Page]:
    """Yield a page for each store; an unusable store becomes a note and does not hide the others."""
    stores: dict[str, list[ShownRun]] = {}
    for run in runs:
        if run.is_in_mlflow:
            path = database_of(run.tracking_uri)
            stores.setdefault(run.tracking_uri if path is None else f"sqlite:///{path}", []).append(run)
    if len(stores) > MAX_STORES:
        first_uris = ", ".join(redacted_text(uri) for uri in list(stores)[:_SHOWN])
        raise ConfigurationError(
            f"{selection}: its runs are in {len(stores)} MLflow stores, and each store needs a server (at most "
            f"{MAX_STORES}); select fewer runs, such as one app, or use --only tensorboard ({first_uris}, ...)"
        )
    if not stores:
        notes.append("no MLflow page: the MLflow sink was disabled")
    for uri, shown_runs in stores.items():
        apps = ", ".join(sorted({shown_run.run.app for shown_run in shown_runs}))
        try:
            yield _mlflow_page(selection, uri, shown_runs, title="MLflow" if len(stores) == 1 else f"MLflow ({apps})")
        except ConfigurationError as error:
            notes.append(f"no MLflow page: {error}")


def _mlflow_page(selection: PageSelection, uri: str, runs: Sequence[ShownRun], *, title: str) -> Page:
    database, is_server = database_of(uri), uri.startswith(("http:", "https:"))
    if database is None and not is_server:
        raise ConfigurationError(
            f"trieye starts MLflow servers for SQLite databases only; for this store run "
            f"`mlflow server --backend-store-uri {redacted_text(uri)}`"
        )
    if database is not None and not database.exists():
        raise ConfigurationError(
            f"the database {database} no longer exists; `trieye rebuild RUN --sink mlflow` creates and fills it"
        )
    if database is not None:
        mlflow_pages.check_schema(database)
    newest_of_each_app = {shown_run.run.app: shown_run.mlflow_run_id for shown_run in runs if shown_run.mlflow_run_id}
    experiments = mlflow_pages.experiments_of(uri, list(newest_of_each_app.values()))
    sweeps = {shown_run.run.sweep for shown_run in runs}
    fragment = mlflow_pages.fragment_of(
        experiments,
        run_id=runs[0].mlflow_run_id if selection.is_run else None,
        sweep=sweeps.pop() if selection.is_sweep and len(sweeps) == 1 else None,
    )
    if database is None:
        return Page(title, fragment, address=mlflow_pages.address_of(uri))
    return Page(
        title,
        fragment,
        command=partial(mlflow_pages.server_command, database),
        health=mlflow_pages.HEALTH,
        environment=mlflow_pages.server_environment(database),
    )


def _tensorboard_pages(
    selection: PageSelection, runs: Sequence[ShownRun], logdir: Path, notes: list[str]
) -> Iterator[Page]:
    """Yield a page that shows the selected runs by name, including runs that start later."""
    if not any(run.is_in_tensorboard for run in runs):
        notes.append("no TensorBoard page: the TensorBoard sink was disabled and there are no event files")
        return
    # decided once, because TensorBoard treats a renamed run as another run
    has_one_app = len({shown_run.run.app for shown_run in runs}) == 1

    def refresh() -> None:
        _link(selection.runs(), logdir, has_one_app=has_one_app)

    refresh()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", HOST, "--port"]
    yield Page(
        "TensorBoard", "/", command=lambda port: [*command, str(port)], health="/data/environment", refresh=refresh
    )


def _report_pages(selection: PageSelection, notes: list[str]) -> Iterator[Page]:
    """Yield the page of `trieye results report`."""
    if selection.directory is None:
        notes.append("no report: pass an app, a sweep or a run")
        return
    command = partial(report_server.server_command, str(Path.cwd()), str(selection.directory))
    yield Page("report", "/", command=command, health=report_server.HEALTH)


def _link(runs: Sequence[ShownRun], logdir: Path, *, has_one_app: bool) -> None:
    """Make `logdir` contain exactly one link to the event directory of each run; TensorBoard rescans it."""
    targets: dict[Path, Path] = {}
    for run in runs:
        link = logdir / ("" if has_one_app else run.run.app) / run.run.name
        while link in targets:  # a run of the same name below another root
            link = link.with_name(f"{link.name}+")
        if run.is_in_tensorboard:
            targets[link] = run.event_dir
    for link in [path for path in logdir.glob("**/*") if path.is_symlink() and targets.get(path) != path.readlink()]:
        link.unlink()
    for link, event_dir in targets.items():
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(event_dir)
