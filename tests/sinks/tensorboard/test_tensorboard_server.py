"""A real `tensorboard` reads while the sink writes; its pages are rendered from the JSON routes tested here."""

import importlib.util
import json
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request

import numpy as np
import pytest

from tests.waiting import wait_until
from trieye.run import media
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.stats.point import Point
from trieye.testing import make_run_info

TIMEOUT_S = 60
RUN = "app/runs/run/tensorboard"
EVERY_SESSION = {
    "experimentName": "",
    "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
    "sliceSize": 10,
    "colParams": [],
}


class Server:
    """The JSON routes of a server."""

    def __init__(self, url):
        self.url = url
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def get(self, route, body=None, **query):
        request = urllib.request.Request(  # noqa: S310 - http, to the server above
            f"{self.url}data/plugin/{route}?{urllib.parse.urlencode(query)}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with self.open(request, timeout=TIMEOUT_S) as response:
            data = response.read()
            return json.loads(data) if "json" in response.headers["Content-Type"] else data

    def scalars(self, tag):
        """Return (step, value) of a curve, or None before it exists."""
        if tag not in self.get("scalars/tags").get(RUN, {}):
            return None
        return [(step, value) for _, step, value in self.get("scalars/scalars", run=RUN, tag=tag)]

    def wait_for(self, tag, expected):
        """Wait until a curve has the expected points."""
        wait_until(lambda: self.scalars(tag) == expected, pause_s=0.1)


HAS_DATA_SERVER = importlib.util.find_spec("tensorboard_data_server") is not None
"""Whether `tensorboard` starts it here; otherwise, its loader in Python serves everybody."""


@pytest.fixture(
    params=[
        pytest.param("true", marks=pytest.mark.skipif(not HAS_DATA_SERVER, reason="no data server for this platform")),
        pytest.param("false", marks=pytest.mark.long if HAS_DATA_SERVER else ()),
    ],
    ids=["data server", "loader in Python"],
)
def server(request, tmp_path):
    (tmp_path / RUN).mkdir(parents=True)
    arguments = ["--logdir", str(tmp_path), "--host", "127.0.0.1", "--port", "0", "--reload_interval", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *arguments, f"--load_fast={request.param}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            url = next(match[0] for line in process.stderr if (match := re.search(r"http://\S+", line)))
            rest = threading.Thread(target=process.stderr.read)  # so that the pipe never fills
            rest.start()
            yield Server(url)
        finally:
            process.terminate()
            rest.join(TIMEOUT_S)


@pytest.fixture
def sink(tmp_path):
    sink = TensorboardSink()
    sink.open(make_run_info(tmp_path))
    yield sink
    sink.close("FINISHED")


def write(sink, first, end, value):
    sink.write([Point("a", value, step, 10.5 + step) for step in range(first, end)])
    sink.flush()


@pytest.mark.long
def test_each_dashboard_shows_the_logged_values_of_the_surviving_branch(server, sink, tmp_path):
    sink.log_params({"lr": "0.1", "env": "CartPole"})
    sink.log_media(media.histogram("h", np.arange(100.0), bins=4, step=3, time=10.5))
    sink.log_media(media.image("i", np.zeros((2, 3), np.uint8), step=3, time=10.5))
    sink.log_media(media.text("t", "# Title", step=3, time=10.5))
    write(sink, 0, 20, 1.0)
    position = sink.position()
    server.wait_for("a", [(step, 1.0) for step in range(20)])

    ((wall_time, step, buckets),) = server.get("histograms/histograms", run=RUN, tag="h")
    assert (wall_time, step, buckets) == (10.5, 3, [[24.75 * n, 24.75 * (n + 1), 25.0] for n in range(4)])
    ((_, _, percentiles),) = server.get("distributions/distributions", run=RUN, tag="h")
    assert percentiles[4] == [5000, pytest.approx(49.5)]
    (shown,) = server.get("images/images", run=RUN, tag="i", sample=0)
    image = server.get("images/individualImage", blob_key=shown["query"].removeprefix("blob_key="))
    assert image.startswith(b"\x89PNG")
    assert server.get("text/text", run=RUN, tag="t")[0]["text"] == "<h1>Title</h1>"
    (group,) = server.get("hparams/session_groups", EVERY_SESSION)["sessionGroups"]
    assert (group["name"], group["hparams"]) == ("run", {"lr": 0.1, "env": "CartPole"})
    assert [(metric["name"]["tag"], metric["value"]) for metric in group["metricValues"]] == [("a", 1.0)]

    later = TensorboardSink()
    later.open(make_run_info(tmp_path))
    assert later.resume(position)
    write(later, 20, 30, 2.0)
    server.wait_for("a", [(step, 1.0 if step < 20 else 2.0) for step in range(30)])
    for end in (10, 5):
        later.clear()
        write(later, 0, end, 1.0)
        write(later, end, end + 3, 3.0)
        server.wait_for("a", [(step, 1.0 if step < end else 3.0) for step in range(end + 3)])
    later.close("FINISHED")
