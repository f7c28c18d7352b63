"""Provenance: command, commit, packages, machine and source hashes of each attempt of a run."""

import contextlib
import hashlib
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer, ValidationError

from trieye.config.hydra.launch import launch_info, program_config
from trieye.config.names import printable
from trieye.config.packages import import_directories
from trieye.config.redaction import redacted, redacted_items, redacted_text, redacted_yaml
from trieye.config.root import TrieyeConfig
from trieye.files.atomic import write_atomic
from trieye.process.identity import user_name
from trieye.process.progress import say
from trieye.snapshot.signing import is_own_command, sign_command

DIRECTORY = "provenance"
MAX_PATCH_BYTES = 10 << 20
MAX_UNTRACKED = MAX_SOURCES = 1000
MAX_NAMED = 5
"""Maximum number of modules or packages that a message lists."""
_JOB = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_NAME_OR_VERSION = re.compile(r"^(Name|Version): *(.*?) *$", re.MULTILINE)
_YAML_FILES = ("*.yaml", "*.yml", "*.yaml.*", "*.yml.*")
_PATCH_OPTIONS = (
    "--binary", "--no-color", "--no-ext-diff", "--no-textconv",
    "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip
"""Options of `git diff` for a patch in the plain format, whatever git is configured to show."""
_ATTEMPT = re.compile(r"attempt-(\d+)\.json")
TIMEOUT_S = 10.0
"""Time limit for git and nvidia-smi."""
_OsText = Annotated[str, PlainSerializer(printable)]
"""A file name, argument or variable; JSON cannot store one that is not UTF-8 without escapes."""


class Commit(BaseModel):
    """State of the git repository at the start of a run.

    Attributes:
        directory: Root of the working tree.
        sha: The checked-out commit.
        branch: The checked-out branch; empty if HEAD is detached.
        remote: URL of `origin`, without secrets; empty if there is no such remote.
        is_dirty: Whether tracked files differ from the commit; `attempt-<n>.patch` holds the differences.
        untracked: Paths that git neither tracks nor ignores, at most `MAX_UNTRACKED`; their content is not recorded.
    """

    model_config = ConfigDict(frozen=True)

    directory: _OsText
    sha: str
    branch: _OsText
    remote: _OsText
    is_dirty: bool
    untracked: list[_OsText]


class Machine(BaseModel):
    """The machine of the process that started the run.

    Attributes:
        host: Host name.
        system: Operating system with its version.
        cpu: Model name of the processor.
        num_cpus: CPU cores available to this process.
        memory_bytes: Size of the main memory.
        gpus: Name, memory and driver version of each GPU that nvidia-smi lists.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    system: str
    cpu: str
    num_cpus: int
    memory_bytes: int
    gpus: list[str]


class Provenance(BaseModel):
    """Provenance of one attempt, without secrets.

    Attributes:
        command: The program and its arguments.
        overrides: Hydra overrides of the command; empty if Hydra did not start the program.
        program_keys: Keys of the Hydra config of a program that creates its `TrieyeConfig` in code; else empty.
        directory: Working directory of the command.
        user: Name of the user who started the program.
        commit: State of the program's git repository; None without one.
        python: Version of the interpreter.
        packages: Versions of all installed packages by name.
        machine: The machine of the process.
        job: Environment variables of the job scheduler, such as SLURM_JOB_ID.
        sources: Hashes of imported modules that belong to no installed package (the project's code), by module name.
        signature: Signature of command, overrides and directory with the user's key; empty if the user had no key.
    """

    model_config = ConfigDict(frozen=True)

    command: list[_OsText]
    overrides: list[_OsText]
    program_keys: list[str] = []
    directory: _OsText
    user: _OsText
    commit: Commit | None
    python: str
    packages: dict[str, str]
    machine: Machine
    job: dict[str, _OsText]
    sources: dict[str, str] = {}
    signature: str = ""

    @property
    def is_signed(self) -> bool:
        """Whether this user's key signed the command; any other command may be foreign and start any program."""
        return is_own_command(self.signature, self.command, self.overrides, self.directory)

    @classmethod
    def last(cls, run_dir: Path) -> Self | None:
        """Return the newest recorded provenance of a run; an attempt that was killed early recorded none."""
        paths = (run_dir / DIRECTORY).glob("*.json")
        attempts = [(int(match[1]), path) for path in paths if (match := _ATTEMPT.fullmatch(path.name))]
        for _, path in sorted(attempts, reverse=True):
            with contextlib.suppress(OSError, ValidationError):
                return cls.model_validate_json(path.read_bytes())
        return None

    def changes_since(self, before: Self) -> list[str]:
        """Return the differences from an earlier attempt that may affect the training, as parts of a message."""
        edited_modules = [name for name, digest in self.sources.items() if before.sources.get(name, digest) != digest]
        new, old = ({**provenance.packages, "Python": provenance.python} for provenance in (self, before))
        versions = [
            f"{name} {old.get(name, 'missing')} -> {new.get(name, 'missing')}"
            for name in dict.fromkeys((*new, *old))
            if new.get(name) != old.get(name)
        ]
        shas = [None if provenance.commit is None else provenance.commit.sha for provenance in (before, self)]
        changes = [f"edited: {_abbreviated(edited_modules)}"] if edited_modules else []
        changes += [f"commit {shas[0][:10]} -> {shas[1][:10]}"] if shas[0] and shas[1] and shas[0] != shas[1] else []
        return changes + ([f"packages: {_abbreviated(versions)}"] if versions else [])

    @classmethod
    def gather(cls, commit: Commit | None) -> Self:
        """Return the provenance of this process; listing packages and GPUs takes some tenths of a second."""
        launch = launch_info()
        return cls(
            command=_command(),
            overrides=[] if launch is None else [_without_secrets(word) for word in launch.overrides],
            program_keys=list(program_config(TrieyeConfig.model_fields)),
            directory=str(Path.cwd() if launch is None else launch.working_dir),
            user=user_name(),
            commit=commit,
            python=platform.python_version(),
            packages=_packages(import_directories()),
            machine=_machine(),
            job={name: os.environ[name] for name in _JOB if name in os.environ},
            sources=_sources(),
        )


def commit_of_program() -> Commit | None:
    """Return the git state of the program's directory, else of the working directory; None without a repository."""
    program = _program()
    directories = [Path.cwd()] if program is None else [program.parent, Path.cwd()]
    return next((commit for directory in directories if (commit := _commit_at(directory)) is not None), None)


def _commit_at(directory: Path) -> Commit | None:
    if not _may_be_in_repository(directory):
        return None
    lines = _git(directory, "status", "--porcelain=v2", "--branch", "--no-renames", "-z").split("\0")
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    if headers.get("branch.oid", "(initial)") == "(initial)":  # no git, no repository, or no commit yet
        return None
    return Commit(
        directory=_git(directory, "rev-parse", "--show-toplevel").strip(),
        sha=headers["branch.oid"],
        branch=headers.get("branch.head", "").replace("(detached)", ""),
        remote=redacted_text(_git(directory, "remote", "get-url", "origin").strip()),
        is_dirty=any(line[:2] in {"1 ", "2 ", "u "} for line in lines),
        untracked=[line[2:] for line in lines if line.startswith("? ")][:MAX_UNTRACKED],
    )


def _may_be_in_repository(directory: Path) -> bool:
    """Return whether git may find a repository; without one, starting git twice would take each run 10 ms."""
    git_dir = os.environ.get("GIT_DIR")
    if git_dir is not None:
        return os.path.isdir(directory / git_dir) or os.path.isfile(directory / git_dir)  # noqa: PTH112, PTH113
    path = Path(os.path.realpath(directory))
    return any(os.path.exists(parent / ".git") for parent in (path, *path.parents))  # noqa: PTH110 - no errors


def _git(directory: Path, *words: str) -> str:
    return _output_of("git", "-C", str(directory), *words)


def tags_of(commit: Commit | None) -> dict[str, str]:
    """Return tags that describe this process to sinks; MLflow shows some of them as the source of a run."""
    program = _program()
    tags = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": program.name if program else "python",
        "trieye.command": command_line(),
        "trieye.host": socket.gethostname(),
        "trieye.python": platform.python_version(),
    }
    if commit is not None:
        tags["mlflow.source.git.commit"] = commit.sha
        tags["mlflow.source.git.branch"] = commit.branch
        tags["mlflow.source.git.repoURL"] = commit.remote
        tags["trieye.uncommitted"] = str(commit.is_dirty).lower()
    return {name: text for name, text in tags.items() if text}


class ProvenanceRecorder:
    """Writes `provenance/attempt-<n>.json` in a thread, and a `.patch` file if there are uncommitted changes.

    Args:
        run_dir: Directory of the run.
        attempt: Number of the attempt.
        commit: State of the program's git repository.
    """

    def __init__(self, run_dir: Path, attempt: int, commit: Commit | None) -> None:
        self._path, self._commit = run_dir / DIRECTORY / f"attempt-{attempt}.json", commit
        self._recorded_provenance: Provenance | None = None
        self._thread = threading.Thread(target=self._write, name="trieye-provenance", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait up to `TIMEOUT_S` for the files, then add the hashes of modules that were imported in the meantime."""
        self._thread.join(TIMEOUT_S)
        if self._recorded_provenance is not None:
            sources = self._recorded_provenance.sources
            if new_sources := _sources(skip=sources):
                with contextlib.suppress(OSError):
                    self._store(self._recorded_provenance.model_copy(update={"sources": {**sources, **new_sources}}))

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(exist_ok=True)
            if self._commit is not None and self._commit.is_dirty:
                write_atomic(self._path.with_suffix(".patch"), _patch(self._commit.directory))
            provenance, last_provenance = Provenance.gather(self._commit), Provenance.last(self._path.parents[1])
            if last_provenance is not None and (changes := provenance.changes_since(last_provenance)):
                say(f"run {self._path.parents[1].name!r} changed since its last attempt: {'; '.join(changes)}")
            signature = sign_command(provenance.command, provenance.overrides, provenance.directory)
            self._store(provenance.model_copy(update={"signature": signature}))
        except OSError as error:
            say(f"the provenance of this attempt was not recorded: {self._path}: {error.strerror or error}")

    def _store(self, provenance: Provenance) -> None:
        write_atomic(self._path, provenance.model_dump_json(indent=2).encode() + b"\n")
        self._recorded_provenance = provenance


def _patch(directory: str) -> bytes:
    command = Path(directory), "diff", *_PATCH_OPTIONS
    other_patch = _git(*command, "HEAD", "--", ":/", *(f":(top,icase,exclude){pattern}" for pattern in _YAML_FILES))
    # with the whole section of a change, whose first lines may contain the secret key of all others
    yaml_patch = _git(*command, "--function-context", "HEAD", "--", *(f":(top,icase){name}" for name in _YAML_FILES))
    if len((other_patch + yaml_patch).encode("utf-8", "surrogateescape")) > MAX_PATCH_BYTES:
        return b"the uncommitted changes are larger than %d MiB and were not recorded\n" % (MAX_PATCH_BYTES >> 20)
    return (redacted_text(other_patch) + redacted_yaml(yaml_patch)).encode("utf-8", "surrogateescape")


def _abbreviated(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + suffix


def command_line() -> str:
    """Return the command that started this process, without secrets and quoted for a shell."""
    return shlex.join(_command())


def _command() -> list[str]:
    words = list(sys.orig_argv or sys.argv)
    return [_without_secrets(word, previous_word) for previous_word, word in zip(["", *words], words, strict=False)]


def _without_secrets(word: str, flag: str = "") -> str:
    """Return a word of a command line with secrets hidden: `key=secret`, `--key=secret`, or the word after `--key`."""
    key, equals, value = word.partition("=")
    if equals:
        public_value = str(redacted(value, key.lstrip("-+")))
        return f"{key}={redacted_items(public_value) if '{' in public_value else public_value}"
    return str(redacted(word, flag.lstrip("-").replace("-", "_"))) if flag.startswith("--") else redacted_text(word)


def _program() -> Path | None:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None else Path(path).resolve()


@lru_cache(maxsize=1)
def _packages(_directories: tuple[tuple[str, int], ...]) -> dict[str, str]:
    paths = [path for path in sys.path if "thirdparty_files" not in path]  # without the packages that Ray vendors
    # only two headers: parsing all of them as an email takes a tenth of a second for 200 packages
    texts = ((info.read_text("METADATA") or info.read_text("PKG-INFO") or "") for info in distributions(path=paths))
    headers = (dict(_NAME_OR_VERSION.findall(text.partition("\n\n")[0])) for text in texts)
    return dict(sorted((header["Name"], header.get("Version", "")) for header in headers if "Name" in header))


_installed: set[str] = set()
"""Names of modules without a source file of the program: thousands, at which each attempt need not look again."""


def _sources(skip: Container[str] = ()) -> dict[str, str]:
    """Return hashes of imported source files that belong to no installed package, by module name, without `skip`."""
    roots = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("-packages"))}
    installed = tuple(f"{root}{os.sep}" for root in roots)
    hashes = {}
    for name in sorted(sys.modules.keys() - _installed):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(installed) or name == "__mp_main__":
            if name != "__main__":
                _installed.add(name)
            continue
        if name == "__main__":  # one name for `python -m package.module` and `python package/module.py`
            spec = getattr(module, "__spec__", None)
            name = Path(file).stem if spec is None else spec.name  # noqa: PLW2901
        if name in skip:
            continue
        with contextlib.suppress(OSError):
            hashes[name] = _hash(file, os.stat(file).st_mtime_ns)  # noqa: PTH116 - a third of the time of a Path
    return dict(list(hashes.items())[:MAX_SOURCES])


def sources_in(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Return hashes of the modules with these names in a directory, by name, without importing them."""
    paths = {name: directory.joinpath(*name.split(".")) for name in names}
    files = {name: path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for name, path in paths.items()}
    return {name: _hash(str(file), file.stat().st_mtime_ns) for name, file in files.items() if file.is_file()}


@lru_cache(maxsize=10 * MAX_SOURCES)
def _hash(path: str, _modified_ns: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _machine() -> Machine:
    gpus = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return Machine(
        host=socket.gethostname(),
        system=platform.platform(),
        cpu=_cpu(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=_output_of(*gpus).splitlines() if shutil.which(gpus[0]) else [],
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _output_of(*command: str) -> str:
    """Return the output of a program; empty if the program is missing, fails or exceeds `TIMEOUT_S`."""
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        process = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=False, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if process.returncode else process.stdout.decode("utf-8", "surrogateescape")
