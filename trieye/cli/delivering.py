"""Show progress and result of a delivery to sinks, for `trieye close`, `rebuild` and `attempts --restore`."""

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
        schema: Schema name of the JSON document.
        deliver: Function that delivers, such as `trieye.runs.close`.
        arguments: Positional arguments of `deliver` after the run.
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
    for sink, missing_text in delivery.missing.items():
        print(f"error: {sink}: {missing_text}", file=sys.stderr)
    if delivery.missing:
        print("`trieye close` continues the delivery", file=sys.stderr)
    name = delivery.run_dir.name
    if options.json:
        print_json(schema, delivery)
    elif not delivery.missing and not delivery.took_s:
        # the names, because sinks that a program passes to `Run(sinks=...)` are not part of the config
        sinks = " and ".join(delivery.sinks) or "no sinks"
        print(f"run {name!r} is recorded as {delivery.status}; already complete: {sinks}")
    elif not delivery.missing:
        summary = f"delivered all {delivery.num_items:,} items in {delivery.took_s:.1f} s"
        print(f"run {name!r}: {', '.join(delivery.sinks) or 'no sinks'}: {summary}; status {delivery.status}")
    return EXIT_MISSING if delivery.missing else 0
