"""`trieye cluster`: whether a training or a sweep can run on each node of a Ray cluster, and which files it would send.

Ask every node of a Ray cluster how it is, and compare it with this machine.

For each node: is it alive, how long does it take to answer, can it import trieye, which versions does it have, how far
is its clock off, how full are its disks, and is the directory of runs the same there. Nothing of your project is sent,
and nothing is changed. The exit code is 0 if all is well, and 1 if something keeps a training from running there.
`files` needs no cluster: it lists the files of the project that a training would send.

Examples:
  trieye cluster check                              the cluster that this machine is a part of
  trieye cluster check 10.0.0.5:6379                on a node of the cluster
  trieye cluster check --json
  trieye cluster files                              of the project around this directory
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trieye.cli.arguments import AnyOrder
from trieye.cli.output import print_json

if TYPE_CHECKING:
    from trieye.hub.cluster import Node
    from trieye.process.terminal import Table

EXIT_UNFIT = 1
_RESOURCES = ("CPU", "GPU", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    actions = parser.add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True, parser_class=AnyOrder
    )
    check = actions.add_parser("check", help="ask every node how it is")
    check.add_argument(
        "address", nargs="?", default="auto", metavar="ADDRESS", help="of the cluster, as runtime.address (auto)"
    )
    check.add_argument(
        "--root", type=Path, default=Path(".trieye_data"), metavar="DIR", help="directory of all runs (.trieye_data)"
    )
    check.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds that a node may take to answer (60)"
    )
    check.add_argument("--json", action="store_true", help="print JSON, for scripts")
    files = actions.add_parser("files", help="list the files that would be sent to the workers")
    files.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR", help="as runtime.working_dir (the project around here)"
    )
    files.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    return _files(options) if options.action == "files" else _check(options)


def _files(options: argparse.Namespace) -> int:
    from trieye.hub.working_dir import files_of, project_around

    directory = project_around(Path.cwd()) if options.directory is None else options.directory.expanduser()
    names = [file.as_posix() for file in files_of(directory.resolve())]
    if options.json:
        print_json("cluster.files", {"directory": directory.resolve(), "files": names})
    else:
        print(*names, sep="\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Ask the nodes, print their answers, and return 1 if a training cannot run on all of them."""
    from trieye.hub.cluster import compare
    from trieye.hub.ray_cluster import ask_cluster, this_process
    from trieye.process.terminal import Terminal, Text

    root = options.root.expanduser().absolute()
    with Terminal(stderr=True).status(f"asking the nodes of the cluster at {options.address}"):
        nodes = ask_cluster(options.address, root, options.timeout)
    here = this_process(root)
    found = compare(nodes, here, str(root))
    if options.json:
        told = {"nodes": nodes, "problems": found.problems, "notes": found.notes}
        print_json("cluster.check", {**told, "python": here.python, "versions": here.versions})
        return EXIT_UNFIT if found.problems else 0
    console = Terminal()
    console.print(_table(nodes))
    for line in found.problems:
        console.print(Text.assemble(("problem:", "red"), f" {line}"))
    for line in found.notes:
        console.print(Text.assemble(("note:", "yellow"), f" {line}"))
    alive = sum(node.is_alive for node in nodes)
    num = len(found.problems)
    verdict = f"{num} problem{'' if num == 1 else 's'}" if found.problems else "a training can run on all of them"
    console.print(f"{alive} of {len(nodes)} nodes are alive: {verdict}")
    return EXIT_UNFIT if found.problems else 0


def _table(nodes: "list[Node]") -> "Table":
    from trieye.process.terminal import Table

    table = Table("node", "host", "is", "offers", "Python", "trieye", "round trip", "clock", "free", is_ruled=False)
    for node in nodes:
        offers = ", ".join(_offer(name, node.resources[name]) for name in _RESOURCES if node.resources.get(name))
        state = "dead" if not node.is_alive else "silent" if node.error else "here" if node.is_here else "alive"
        if node.error is not None or not node.is_alive:
            table.add_row(node.node_id[:8], node.host, state, offers)
            continue
        free = min((free for free, _ in node.disks.values()), default=0)
        table.add_row(
            node.node_id[:8],
            node.host,
            state,
            offers,
            node.python,
            "missing" if node.import_error else node.versions.get("trieye") or "not installed",
            f"{node.latency_s * 1000:.1f} ms",
            f"{node.offset_s * 1000:+.1f} ms",
            f"{free / 1e9:.0f} GB",
        )
    return table


def _offer(name: str, number: float) -> str:
    return f"{number / 1e9:.0f} GB" if name == "memory" else f"{number:g} {name}"
