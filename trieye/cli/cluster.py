"""`trieye cluster`: check whether training and sweeps can run on every node of a Ray cluster; list files to upload.

Check every node of a Ray cluster and compare it with this machine.

`check` reports for each node: whether it is alive, its round-trip time, whether it can import trieye, package versions,
clock offset, free disk space, and whether the directory of runs is the same there. It uploads no project files and
changes nothing. The exit code is 0 if a training can run on every living node, and 1 if there is a problem. Dead nodes
are only notes, and so is a directory of runs that is missing or not shared on a node: only jobs of a sweep need it.
`files` needs no cluster: it lists the project files that a training or a sweep would upload.

Examples:
  trieye cluster check                              the cluster that this machine belongs to
  trieye cluster check 10.0.0.5:6379                run this on a node of the cluster
  trieye cluster check --json
  trieye cluster files                              the project that contains the working directory
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import DEFAULT_ROOT, add_action, add_actions, add_json, add_root, seconds
from trieye.cli.output import Parts, show

if TYPE_CHECKING:
    from trieye.hub.cluster import Findings, Node
    from trieye.process.terminal import TextTable

EXIT_UNFIT = 1
_RESOURCES = ("CPU", "GPU", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    actions = add_actions(parser)
    check = add_action(actions, "check", "check every node and compare it with this machine")
    check.add_argument(
        "address",
        nargs="?",
        default="auto",
        metavar="ADDRESS",
        help="cluster address, as runtime.address (default: auto)",
    )
    add_root(check, Path(DEFAULT_ROOT))
    check.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds to wait for the answer of a node (default: 60)",
    )
    files = add_action(actions, "files", "list the files that would be uploaded to the workers")
    files.add_argument(
        "directory",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="directory to upload, as runtime.working_dir (default: the project that contains the working directory)",
    )
    for action in (check, files):
        add_json(action)


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    return _files(options) if options.action == "files" else _check(options)


def _files(options: argparse.Namespace) -> int:
    from trieye.hub.working_dir import files_of, project_around

    directory = project_around(Path.cwd()) if options.directory is None else options.directory.expanduser()
    names = [file.as_posix() for file in files_of(directory.resolve())]
    show(options, "cluster.files", {"directory": directory.resolve(), "files": names}, names)
    return 0


def _check(options: argparse.Namespace) -> int:
    """Query the nodes, print their answers, and return 1 if a training cannot run on all of them."""
    from trieye.hub.cluster import compare
    from trieye.hub.ray_cluster import ask_cluster, this_process
    from trieye.process.terminal import Terminal

    root = options.root.expanduser().absolute()
    with Terminal(stderr=True).status(f"querying the nodes of the cluster at {options.address}"):
        nodes = ask_cluster(options.address, root, options.timeout)
    driver = this_process(root)
    comparison = compare(nodes, driver, str(root))
    document = {"nodes": nodes, "problems": comparison.problems, "notes": comparison.notes}
    document |= {"python": driver.python, "versions": driver.versions}
    show(options, "cluster.check", document, _parts(nodes, comparison))
    return EXIT_UNFIT if comparison.problems else 0


def _parts(nodes: "list[Node]", comparison: "Findings") -> Parts:
    from trieye.process.terminal import Text
    from trieye.process.text import counted

    yield _table(nodes)
    for line in comparison.problems:
        yield Text.assemble(("problem:", "red"), f" {line}")
    for line in comparison.notes:
        yield Text.assemble(("note:", "yellow"), f" {line}")
    num_alive, num_problems = sum(node.is_alive for node in nodes), len(comparison.problems)
    verdict = counted(num_problems, "problem") if num_problems else "a training can run on all of them"
    yield f"{num_alive} of {len(nodes)} nodes are alive: {verdict}"


def _table(nodes: "list[Node]") -> "TextTable":
    from trieye.process.terminal import TextTable

    columns = ("node", "host", "state", "resources", "Python", "trieye", "round trip", "clock offset", "free disk")
    table = TextTable(*columns, is_ruled=False)
    for node in nodes:
        resources = ", ".join(_resource(name, node.resources[name]) for name in _RESOURCES if node.resources.get(name))
        state = "dead" if not node.is_alive else "no answer" if node.error else "here" if node.is_here else "alive"
        free_bytes = min((free_bytes for free_bytes, _ in node.disks.values()), default=0)
        answer = (
            node.python,
            "missing" if node.import_error else node.versions.get("trieye") or "not installed",
            f"{node.latency_s * 1000:.1f} ms",
            f"{node.offset_s * 1000:+.1f} ms",
            f"{free_bytes / 1e9:.0f} GB",
        )
        has_answered = node.error is None and node.is_alive
        table.add_row(node.node_id[:8], node.host, state, resources, *(answer if has_answered else ()))
    return table


def _resource(name: str, amount: float) -> str:
    return f"{amount / 1e9:.0f} GB" if name == "memory" else f"{amount:g} {name}"
