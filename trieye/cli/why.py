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
from trieye.cli.output import Parts, show

if TYPE_CHECKING:
    from trieye.runs.diagnosis import Diagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    add_run(parser)


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis."""
    from trieye.runs import diagnose

    diagnosis = diagnose(options.run_name, root=options.root)
    stored, checkpoint = diagnosis.run, diagnosis.checkpoint
    checkpoint_row = None if checkpoint is None else {"step": checkpoint.step, "created": checkpoint.created}
    run_fields = {"run": str(stored), "run_dir": stored.run_dir, "status": stored.status, "attempt": stored.attempt}
    fields = {name: getattr(diagnosis, name) for name in ("reason", "error", "output", "output_path", "sinks")}
    document = {**run_fields, **fields, "checkpoint": checkpoint_row, "next_steps": diagnosis.next_steps}
    show(options, "why", document, _parts(diagnosis))
    return 0


def _parts(diagnosis: "Diagnosis") -> Parts:
    from trieye.cli.runs import RUN_COLORS
    from trieye.process.terminal import Text
    from trieye.process.text import duration

    stored_run, checkpoint = diagnosis.run, diagnosis.checkpoint
    step = "" if stored_run.step is None else f", step {stored_run.step:,}"
    status = (stored_run.status, RUN_COLORS[stored_run.status])
    yield Text.assemble((str(stored_run), "bold"), "  ", status, f"  attempt {stored_run.attempt}{step}")
    yield diagnosis.reason
    if diagnosis.error is not None:
        yield Text(f"\n{diagnosis.error}", "red")
    if diagnosis.output:
        yield f"\nlast output ({diagnosis.output_path}):"
        yield "\n".join(f"  {line}" for line in diagnosis.output)
    yield ""
    for sink in diagnosis.sinks:
        state = f", {sink['error']}" if sink["error"] else ""
        yield f"sink {sink['name']}: {sink['backlog']:,} items to deliver{state}"
    ago = "" if checkpoint is None else f", {duration(time.time() - checkpoint.created)} ago"
    yield f"newest checkpoint: {'none' if checkpoint is None else f'step {checkpoint.step:,}{ago}'}"
    for index, action in enumerate(diagnosis.next_steps):
        label = "      " if index else "\nnext: "
        yield f"{label}{action.command}    # {action.effect}"
