"""`trieye why`: explain why a run ended or makes no progress.

Explain why a run ended or makes no progress: last error, last output, sinks, newest checkpoint, and what to do next.

The command changes nothing, and works during the training.

Examples:
  trieye why first
  trieye why my_agent/first --json
"""

import argparse
import time
from typing import TYPE_CHECKING

from trieye.cli.arguments import add_run

if TYPE_CHECKING:
    from trieye.process.terminal import Terminal
    from trieye.runs.diagnosis import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis."""
    from trieye.cli.output import print_json
    from trieye.process.terminal import Terminal
    from trieye.runs import diagnose

    diagnosis = diagnose(options.run_name, root=options.root)
    stored, checkpoint = diagnosis.run, diagnosis.checkpoint
    if not options.json:
        _print(diagnosis, Terminal())
        return 0
    checkpoint_row = None if checkpoint is None else {"step": checkpoint.step, "created": checkpoint.created}
    about = {"run": str(stored), "run_dir": stored.run_dir, "status": stored.status, "attempt": stored.attempt}
    fields = {name: getattr(diagnosis, name) for name in ("reason", "error", "output", "output_path", "sinks")}
    print_json("why", {**about, **fields, "checkpoint": checkpoint_row, "next_steps": diagnosis.next_steps})
    return 0


def _print(diagnosis: "Diagnosis", console: "Terminal") -> None:
    from trieye.cli.runs import RUN_COLORS
    from trieye.process.terminal import Text
    from trieye.process.text import duration

    stored_run, checkpoint = diagnosis.run, diagnosis.checkpoint
    step = "" if stored_run.step is None else f", step {stored_run.step:,}"
    status = (stored_run.status, RUN_COLORS[stored_run.status])
    console.print(Text.assemble((str(stored_run), "bold"), "  ", status, f"  attempt {stored_run.attempt}{step}"))
    console.print(diagnosis.reason)
    if diagnosis.error is not None:
        console.print(f"\n{diagnosis.error}", style="red")
    if diagnosis.output:
        console.print(f"\nlast output ({diagnosis.output_path}):")
        console.print("\n".join(f"  {line}" for line in diagnosis.output))
    console.print()
    for sink in diagnosis.sinks:
        state = f", {sink['error']}" if sink["error"] else ""
        console.print(f"sink {sink['name']}: {sink['backlog']:,} items to deliver{state}")
    ago = "" if checkpoint is None else f", {duration(time.time() - checkpoint.created)} ago"
    console.print(f"newest checkpoint: {'none' if checkpoint is None else f'step {checkpoint.step:,}{ago}'}")
    for index, action in enumerate(diagnosis.next_steps):
        label = "      " if index else "\nnext: "
        console.print(f"{label}{action.command}    # {action.effect}")
