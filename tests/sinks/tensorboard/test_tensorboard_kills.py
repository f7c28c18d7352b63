"""A writing process is killed at random moments and restarted until all points are written."""

import json
import random
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests import warm
from trieye.testing import make_run_info

pytestmark = pytest.mark.usefixtures("warm_programs")
WARM = warm.RUN

NUM_POINTS = 20_000
NUM_KILLS = 6
WRITER = """
import json, os, random, sys
from pathlib import Path
from trieye.sinks.tensorboard.files import frame
from trieye.sinks.tensorboard.summaries import scalars
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.stats.point import Point
from trieye.testing import make_run_info

root, cursor, num_points, chance = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), random.Random(sys.argv[4])
index, position = json.loads(cursor.read_text()) if cursor.exists() else (0, None)
sink = TensorboardSink()
sink.open(make_run_info(root))
if not sink.resume(position):
    sink.clear()
    index = 0
frame(scalars([Point("a", float(step), step, 10.5) for step in range(400)]))  # warm-up
print("ready", index, flush=True)
while index < num_points:
    end = min(num_points, index + chance.randint(1, 400))
    sink.write([Point("a", float(step), step, 10.5 + step) for step in range(index, end)])
    index = end
    if chance.random() < 0.5:
        sink.flush()
    if chance.random() < 0.2:
        new = cursor.with_suffix(".new")
        new.write_text(json.dumps([index, sink.position()]))
        os.replace(new, cursor)
sink.close("FINISHED")
"""


def attempt(root, seed, delay_s):
    """Run the writer, kill it after a delay; return whether it finished, and the index of its first point."""
    arguments = [str(root), str(root / "cursor.json"), str(NUM_POINTS), str(seed)]
    with subprocess.Popen([sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        first_index = int(process.stdout.readline().split()[1])
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.returncode == 0, first_index


@pytest.mark.long
@pytest.mark.slow
def test_every_point_is_written_exactly_once_despite_random_kills(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails
    chance = random.Random(seed)
    first_indices = []
    for number in range(NUM_KILLS):
        is_finished, index = attempt(tmp_path, seed + number, chance.uniform(0.0, 0.08))
        first_indices.append(index)
        if is_finished:
            break
    assert attempt(tmp_path, seed, None)[0]
    assert first_indices == sorted(first_indices)
    files = sorted(make_run_info(tmp_path).tensorboard_dir.iterdir())
    steps = [event.step for path in files for event in EventFileLoader(str(path)).Load() if event.summary.value]
    assert steps == list(range(NUM_POINTS))
    accumulator = EventAccumulator(str(files[0].parent), size_guidance={"tensors": 0, "scalars": 0}).Reload()
    assert [event.step for event in accumulator.Scalars("a")] == steps
    assert json.loads((tmp_path / "cursor.json").read_text())[0] <= NUM_POINTS
    assert len(files) > 1
