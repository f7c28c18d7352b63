"""Progress and result of a delivery, as `trieye close`, `rebuild` and `attempts --restore` show them."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trieye.cli.output import print_json
from trieye.process.terminal import Terminal, Text
from trieye.runs.delivery import DeliveryResult

EXIT_MISSING = 1


def show_delivery(
    options: argparse.Namespace, schema: str, deliver: Callable[..., DeliveryResult], *arguments: Any
) -> int:
    """Deliver with a progress line, print the result, and return the exit code.

    Args:
        options: `run_name`, `root`, `timeout` and `json`.
        schema: Of the JSON document.
        deliver: Delivers, such as `trieye.runs.close`.
        arguments: Its arguments after the run.
    """
    title = f"delivering {Path(options.run_name).name}"
    with Terminal(stderr=True).status(title) as status:
        delivery = deliver(
            options.run_name,
            *arguments,
            root=options.root,
            timeout_s=options.timeout,
            progress=lambda done, total: status.update(Text(f"{title}: {done:,} of {total:,}")),
        )
    for warning in delivery.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for sink, lacks in delivery.missing.items():
        print(f"error: {sink}: {lacks}", file=sys.stderr)
    if delivery.missing:
        print("`trieye close` continues the delivery", file=sys.stderr)
    name = delivery.run_dir.name
    if options.json:
        print_json(schema, delivery)
    elif not delivery.missing and not delivery.took_s:
        # by name: sinks that a program gives to `Run(sinks=...)` are not known here
        sinks = " and ".join(delivery.sinks) or "no sink"
        print(f"run {name!r} is recorded as {delivery.status}, and nothing is missing in {sinks}")
    elif not delivery.missing:
        told = f"all {delivery.num_items:,} items, in {delivery.took_s:.1f} s"
        print(f"run {name!r}: {', '.join(delivery.sinks) or 'no sink'}: {told}; {delivery.status}")
    return EXIT_MISSING if delivery.missing else 0
