"""Use a copy of a run as if the run had been moved."""

import json
from pathlib import Path


def moved(run_dir: Path) -> Path:
    """Make a copy the owner of its MLflow run and its mirror on first use, and return its directory."""
    path = run_dir / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "owner": None}))
    return run_dir
