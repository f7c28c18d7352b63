"""Provenance: what a start of a run ran, from which commit, with which packages and on which machine."""

import contextlib
import getpass
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
from collections.abc import Container, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from trieye.config.hydra.launch import launch_info
from trieye.config.redaction import redacted, redacted_text
from trieye.files.atomic import write_atomic
from trieye.process.progress import say
from trieye.snapshot.signing import is_own_command, sign_command

DIRECTORY = "provenance"
MAX_PATCH_BYTES = 10 << 20
MAX_UNTRACKED = MAX_SOURCES = 1000
MAX_NAMED = 5
"""Modules or packages that a message names."""
_JOB = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_NAME_OR_VERSION = re.compile(r"^(Name|Version): *(.*?) *$", re.MULTILINE)
_ATTEMPT = re.compile(r"attempt-(\d+)\.json")
PATIENCE_S = 10.0
"""How long git, or the driver of a GPU, may take to answer."""


class Commit(BaseModel):
    """The state of the repository from which a run was started.

    Attributes:
        directory: Where its working tree is.
        sha: The commit that is checked out.
        branch: Its branch; empty if none is.
        remote: Where the repository comes from; empty if from nowhere.
        is_dirty: Whether tracked files differ from the commit; then `attempt-<n>.patch` says how.
        untracked: Files that git neither knows nor ignores; their content is kept nowhere.
    """

    model_config = ConfigDict(frozen=True)

    directory: str
    sha: str
    branch: str
    remote: str
    is_dirty: bool
    untracked: list[str]


class Machine(BaseModel):
    """The machine on which the driver of a run is.

    Attributes:
        host: Its name.
        system: Operating system and its version.
        cpu: Name of the processor.
        num_cpus: Cores that this process may use.
        memory_bytes: Main memory.
        gpus: Name, memory and driver of each GPU that the driver of NVIDIA knows.
    """

    model_config = ConfigDict(frozen=True)

    host: str
    system: str
    cpu: str
    num_cpus: int
    memory_bytes: int
    gpus: list[str]


class Provenance(BaseModel):
    """What one attempt ran; nothing in it is a secret.

    Attributes:
        command: The program and its arguments.
        overrides: What of the command changes the config, where Hydra started the program.
        directory: Where the command was given.
        user: Who gave it.
        commit: The repository of the program; None if there is none.
        python: Version of the interpreter.
        packages: Version of every package that is installed, by its name.
        machine: Where it ran.
        job: What the scheduler says of the job, such as SLURM_JOB_ID.
        sources: Hashes of the modules that were imported and are not installed, by name: the code of the project.
        signature: Of the command, the overrides and the directory, by the user's key; empty if there was none.
    """

    model_config = ConfigDict(frozen=True)

    command: list[str]
    overrides: list[str]
    directory: str
    user: str
    commit: Commit | None
    python: str
    packages: dict[str, str]
    machine: Machine
    job: dict[str, str]
    sources: dict[str, str] = {}
    signature: str = ""

    @property
    def is_signed(self) -> bool:
        """Whether this user's key signs the command: whoever else wrote it may have any program started."""
        return is_own_command(self.signature, self.command, self.overrides, self.directory)

    @classmethod
    def last(cls, run_dir: Path) -> Self | None:
        """Return what the last attempt of a run ran that said so; one that was killed at once did not."""
        paths = (run_dir / DIRECTORY).glob("*.json")
        found = [(int(match[1]), path) for path in paths if (match := _ATTEMPT.fullmatch(path.name))]
        for _, path in sorted(found, reverse=True):
            with contextlib.suppress(OSError, ValidationError):
                return cls.model_validate_json(path.read_bytes())
        return None

    def changes_since(self, before: Self) -> list[str]:
        """Return differences from an earlier attempt that may change the training, for a message."""
        edited = [name for name, digest in self.sources.items() if before.sources.get(name, digest) != digest]
        ours, theirs = ({**side.packages, "Python": side.python} for side in (self, before))
        versions = [
            f"{name} {theirs.get(name, 'missing')} -> {ours.get(name, 'missing')}"
            for name in dict.fromkeys((*ours, *theirs))
            if ours.get(name) != theirs.get(name)
        ]
        shas = [None if side.commit is None else side.commit.sha for side in (before, self)]
        changes = [f"edited: {_named(edited)}"] if edited else []
        changes += [f"commit {shas[0][:10]} -> {shas[1][:10]}"] if shas[0] and shas[1] and shas[0] != shas[1] else []
        return changes + ([f"packages: {_named(versions)}"] if versions else [])

    @classmethod
    def gather(cls, commit: Commit | None) -> Self:
        """Look at this process and its machine; asking for packages and GPUs takes some tenths of a second."""
        launch = launch_info()
        return cls(
            command=_command(),
            overrides=[] if launch is None else [_without_secrets(word) for word in launch.overrides],
            directory=str(Path.cwd() if launch is None else launch.working_dir),
            user=_user(),
            commit=commit,
            python=platform.python_version(),
            packages=_packages(),
            machine=_machine(),
            job={name: os.environ[name] for name in _JOB if name in os.environ},
            sources=_sources(),
        )


def commit_of_program() -> Commit | None:
    """Return the state of the repository that the program lies in, or else the working directory; None without one."""
    program = _program()
    places = [Path.cwd()] if program is None else [program.parent, Path.cwd()]
    return next((commit for place in places if (commit := _commit_at(place)) is not None), None)


def _commit_at(directory: Path) -> Commit | None:
    lines = _git(directory, "status", "--porcelain=v2", "--branch", "-z").split("\0")
    about = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    if about.get("branch.oid", "(initial)") == "(initial)":  # no git, no repository, or nothing committed yet
        return None
    return Commit(
        directory=_git(directory, "rev-parse", "--show-toplevel").strip(),
        sha=about["branch.oid"],
        branch=about.get("branch.head", "").replace("(detached)", ""),
        remote=redacted_text(_git(directory, "remote", "get-url", "origin").strip()),
        is_dirty=any(line[:2] in {"1 ", "2 ", "u "} for line in lines),
        untracked=[line[2:] for line in lines if line.startswith("? ")][:MAX_UNTRACKED],
    )


def _git(directory: Path, *words: str) -> str:
    return _said("git", "-C", str(directory), *words)


def tags_of(commit: Commit | None) -> dict[str, str]:
    """Return what sinks are told of this process, among it what MLflow shows as the source of a run."""
    program = _program()
    found = {
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": program.name if program else "python",
        "trieye.command": command_line(),
        "trieye.host": socket.gethostname(),
        "trieye.python": platform.python_version(),
    }
    if commit is not None:
        found["mlflow.source.git.commit"] = commit.sha
        found["mlflow.source.git.branch"] = commit.branch
        found["mlflow.source.git.repoURL"] = commit.remote
        found["trieye.uncommitted"] = str(commit.is_dirty).lower()
    return {name: text for name, text in found.items() if text}


class Notes:
    """Writes down what an attempt ran, on a thread: `provenance/attempt-<n>.json`, and `.patch` if it is not committed.

    Args:
        run_dir: Directory of the run.
        attempt: Number of the attempt.
        commit: The repository of the program.
    """

    def __init__(self, run_dir: Path, attempt: int, commit: Commit | None) -> None:
        self._path, self._commit = run_dir / DIRECTORY / f"attempt-{attempt}.json", commit
        self._found: Provenance | None = None
        self._thread = threading.Thread(target=self._write, name="trieye-provenance", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when all is written, with the modules that were imported later, or if that takes too long."""
        self._thread.join(PATIENCE_S)
        if self._found is not None:
            known = self._found.sources
            if later := _sources(known):
                with contextlib.suppress(OSError):
                    self._keep(self._found.model_copy(update={"sources": {**known, **later}}))

    def _write(self) -> None:
        try:
            self._path.parent.mkdir(exist_ok=True)
            if self._commit is not None and self._commit.is_dirty:
                write_atomic(self._path.with_suffix(".patch"), _patch(self._commit.directory))
            found, before = Provenance.gather(self._commit), Provenance.last(self._path.parents[1])
            if before is not None and (changes := found.changes_since(before)):
                say(f"run {self._path.parents[1].name!r} changed since its last attempt: {'; '.join(changes)}")
            signature = sign_command(found.command, found.overrides, found.directory)
            self._keep(found.model_copy(update={"signature": signature}))
        except OSError as error:
            say(f"what this attempt ran is not written down: {self._path}: {error.strerror or error}")

    def _keep(self, found: Provenance) -> None:
        write_atomic(self._path, found.model_dump_json(indent=2).encode("utf-8", "backslashreplace") + b"\n")
        self._found = found


def _patch(directory: str) -> bytes:
    text = redacted_text(_git(Path(directory), "diff", "--binary", "HEAD"))
    patch = text.encode("utf-8", "surrogateescape")
    if len(patch) <= MAX_PATCH_BYTES:
        return patch
    return b"the uncommitted changes are larger than %d MiB and were not kept\n" % (MAX_PATCH_BYTES >> 20)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def command_line() -> str:
    """Return the command that started this process, without secrets, as one would type it."""
    return shlex.join(_command())


def _command() -> list[str]:
    words = list(sys.orig_argv or sys.argv)
    return [_without_secrets(word, before) for before, word in zip(["", *words], words, strict=False)]


def _without_secrets(word: str, flag: str = "") -> str:
    """Return a word of a command line without its secret: `key=secret`, `--key=secret`, or what follows `--key`."""
    key, equals, value = word.partition("=")
    if equals:
        return f"{key}={redacted(value, key.lstrip('-+'))}"
    return str(redacted(word, flag.lstrip("-").replace("-", "_"))) if flag.startswith("--") else redacted_text(word)


def _program() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if file is None else Path(file).resolve()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid()) if hasattr(os, "getuid") else ""


def _packages() -> dict[str, str]:
    own = [place for place in sys.path if "thirdparty_files" not in place]  # what Ray brings for its workers only
    # two of the headers: to parse all of them, as those of a mail, takes a tenth of a second for 200 packages
    heads = ((held.read_text("METADATA") or held.read_text("PKG-INFO") or "") for held in distributions(path=own))
    found = (dict(_NAME_OR_VERSION.findall(head.partition("\n\n")[0])) for head in heads)
    return dict(sorted((one["Name"], one.get("Version", "")) for one in found if "Name" in one))


def _sources(known: Container[str] = ()) -> dict[str, str]:
    """Return hashes of the imported source files that belong to no installed package, by module, except known ones."""
    roots = {sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith("-packages"))}
    installed = tuple(f"{root}{os.sep}" for root in roots)
    found = {}
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(installed) or name == "__mp_main__":
            continue
        if name == "__main__":  # the same module as `python -m package.module` and by its path
            spec = getattr(module, "__spec__", None)
            name = Path(file).stem if spec is None else spec.name  # noqa: PLW2901
        if name in known:
            continue
        with contextlib.suppress(OSError):
            found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return dict(list(found.items())[:MAX_SOURCES])


def _machine() -> Machine:
    gpus = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return Machine(
        host=socket.gethostname(),
        system=platform.platform(),
        cpu=_cpu(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=_said(*gpus).splitlines() if shutil.which(gpus[0]) else [],
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _said(*command: str) -> str:
    """Return what a program prints; nothing if it is not there, fails or takes too long."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PATIENCE_S, check=False, env=quiet, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "surrogateescape")
