"""The pages that show runs: those of MLflow, TensorBoard and our own report, each with what serves it."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

from trieye.cli import report_server
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
"""Each is a server, which takes 250 MB."""

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Page:
    """A page, at an address that is known, or of a server that has to be started.

    Attributes:
        title: What the user calls it.
        fragment: What follows the address of the server.
        address: Of a server that is there already.
        command: Returns the words that start a server, given a port.
        health: Path that the server answers when it is up.
        environment: Variables that it needs.
        refresh: Shows it what has come since.
    """

    title: str
    fragment: str
    address: str | None = None
    command: Callable[[int], Sequence[str]] | None = None
    health: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    refresh: Callable[[], object] | None = None


class ShownRun(NamedTuple):
    """What pages show of a run.

    Attributes:
        run: The run.
        mlflow_run_id: Its MLflow run.
        tracking_uri: Its MLflow store or server.
        is_in_mlflow: Whether MLflow has it, also by `trieye sweep merge`.
        event_dir: Directory of its event files.
        writes_events: Whether it writes event files; others may do so beside it.
    """

    run: StoredRun
    mlflow_run_id: str | None
    tracking_uri: str
    is_in_mlflow: bool
    event_dir: Path
    writes_events: bool

    @classmethod
    def of(cls, run: StoredRun) -> Self:
        """Return what pages show; raises LookupError, TypeError or ValueError for a config that is not of a run."""
        persistence, sinks, mlflow_run_id = run.config["persistence"], run.config["sinks"], run.record.mlflow_run_id
        return cls(
            run=run,
            mlflow_run_id=mlflow_run_id,
            tracking_uri=tracking_uri_of(persistence, run.run_dir),
            is_in_mlflow=bool(sinks["mlflow"]["enabled"]) or mlflow_run_id is not None,
            event_dir=run.run_dir / str(persistence["tensorboard_dir_name"]),
            writes_events=bool(sinks["tensorboard"]["enabled"]),
        )

    @property
    def is_in_tensorboard(self) -> bool:
        """Whether there are event files, or will be."""
        with suppress(OSError):
            return self.writes_events or any("tfevents" in path.name for path in self.event_dir.iterdir())
        return False


class PageSelection:
    """The runs that pages show.

    Args:
        reference: A run, an app, a sweep or a directory; None: all apps.
        roots: Directories of all apps.

    Attributes:
        directory: Directory of the selection; None: all apps.

    Raises:
        ConfigurationError: There is nothing of that name.
    """

    def __init__(self, reference: str | None, roots: Sequence[Path]) -> None:
        self.directory = None if reference is None else resolve(reference, roots)
        self._roots = roots
        self._read: dict[Path, ShownRun | str] = {}
        self.is_run = self.directory is not None and (self.directory / RUN_RECORD).exists()
        self.is_sweep = not self.is_run and self.directory is not None and is_sweep(self.directory)

    def __str__(self) -> str:
        """Return the directories."""
        return (
            str(self.directory) if self.directory is not None else ", ".join(map(str, self._roots)) or "this directory"
        )

    def runs(self) -> list[ShownRun]:
        """Return the present runs, the oldest first; each is read once."""
        found, _ = find_directories([] if self.directory is None else [str(self.directory)], self._roots)
        self._read = {path: self._read.get(path) or _read(path) for path in found}
        shown = [run for run in self._read.values() if isinstance(run, ShownRun)]
        return sorted(shown, key=lambda shown: shown.run.created)

    def left_out(self) -> list[str]:
        """Return why some of them are not shown."""
        return [reason for reason in self._read.values() if isinstance(reason, str)]


def _read(run_dir: Path) -> ShownRun | str:
    try:
        return ShownRun.of(StoredRun.read(run_dir))
    except (ConfigurationError, SerializationError, ValueError, LookupError, TypeError) as error:
        reason = f"{CONFIGS} has no {error}" if isinstance(error, LookupError) else error
        return f"{run_dir} is left out: {reason}"


def pages_of(selection: PageSelection, directory: Path, *, only: Kind | None = None) -> tuple[list[Page], list[str]]:
    """Return the pages of the selected runs, and notes on the runs and pages that are left out.

    Args:
        selection: The runs.
        directory: For what the servers need.
        only: The kind of pages that is wanted; None: all.

    Raises:
        ConfigurationError: There is no page, or there are too many stores.
    """
    runs, left_out = selection.runs(), selection.left_out()
    notes = left_out[:_SHOWN] + ([f"{len(left_out) - _SHOWN} more are left out"] if left_out[_SHOWN:] else [])
    if not runs:
        advice = "; ".join(notes) or "name a run, an app or a sweep, or with --root where all apps are"
        raise ConfigurationError(f"no runs in {selection}; {advice}")
    pages: list[Page] = []
    if only in {None, "mlflow"}:
        pages += _mlflow_pages(selection, runs, notes)
    if only in {None, "tensorboard"}:
        pages += _tensorboard_pages(selection, runs, directory / "tensorboard", notes)
    if only in {None, "report"}:
        pages += _report_pages(selection, notes)
    if not pages:
        raise ConfigurationError(f"{selection}: there is no page to show: {'; '.join(notes)}")
    return pages, notes


def _mlflow_pages(selection: PageSelection, runs: Sequence[ShownRun], notes: list[str]) -> Iterator[Page]:
    """Yield a page for each store; what is wrong with a store hides no other one."""
    stores: dict[str, list[ShownRun]] = {}
    for run in runs:
        if run.is_in_mlflow:
            path = database_of(run.tracking_uri)
            stores.setdefault(run.tracking_uri if path is None else f"sqlite:///{path}", []).append(run)
    if len(stores) > MAX_STORES:
        first = ", ".join(redacted_text(uri) for uri in list(stores)[:_SHOWN])
        raise ConfigurationError(
            f"{selection}: its runs are in {len(stores)} MLflow stores, each of which needs a server; ask for less, "
            f"such as an app, or type --only tensorboard ({first}, ...)"
        )
    if not stores:
        notes.append("no MLflow: it was not among the sinks")
    for uri, held in stores.items():
        apps = ", ".join(sorted({shown.run.app for shown in held}))
        try:
            yield _mlflow_page(selection, uri, held, title="MLflow" if len(stores) == 1 else f"MLflow ({apps})")
        except ConfigurationError as error:
            notes.append(f"no MLflow: {error}")


def _mlflow_page(selection: PageSelection, uri: str, runs: Sequence[ShownRun], *, title: str) -> Page:
    database, is_server = database_of(uri), uri.startswith(("http:", "https:"))
    if database is None and not is_server:
        raise ConfigurationError(
            f"servers are started for SQLite databases only; for this store type "
            f"`mlflow server --backend-store-uri {redacted_text(uri)}`"
        )
    if database is not None and not database.exists():
        raise ConfigurationError(
            f"{database}, in which the runs were, is gone; `trieye rebuild RUN --sink mlflow` fills another one"
        )
    if database is not None:
        mlflow_pages.check_schema(database)
    last_of_each_app = {shown.run.app: shown.mlflow_run_id for shown in runs if shown.mlflow_run_id}
    experiments = mlflow_pages.experiments_of(uri, list(last_of_each_app.values()))
    groups = {shown.run.sweep for shown in runs}
    fragment = mlflow_pages.fragment_of(
        experiments,
        run_id=runs[0].mlflow_run_id if selection.is_run else None,
        sweep=groups.pop() if selection.is_sweep and len(groups) == 1 else None,
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
    """Yield a page that shows the runs, and whichever come to be among them, by their names."""
    if not any(run.is_in_tensorboard for run in runs):
        notes.append("no TensorBoard: it was not among the sinks, and there are no event files")
        return
    # decided once: names that change are other runs to TensorBoard
    has_one_app = len({shown.run.app for shown in runs}) == 1

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
        notes.append("no report: name an app, a sweep or a run")
        return
    here, place = str(Path.cwd()), str(selection.directory)
    yield Page(
        "report", "/", command=lambda port: report_server.server_command(port, here, place), health=report_server.HEALTH
    )


def _link(runs: Sequence[ShownRun], logdir: Path, *, has_one_app: bool) -> None:
    """Let a directory have a link to the event files of each run, and no others; TensorBoard looks again and again."""
    wanted: dict[Path, Path] = {}
    for shown in runs:
        link = logdir / ("" if has_one_app else shown.run.app) / shown.run.name
        while link in wanted:  # of another root
            link = link.with_name(f"{link.name}+")
        if shown.is_in_tensorboard:
            wanted[link] = shown.event_dir
    for link in [path for path in logdir.glob("**/*") if path.is_symlink() and wanted.get(path) != path.readlink()]:
        link.unlink()
    for link, event_dir in wanted.items():
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(event_dir)
