import numpy as np
import pytest
from tensorboard.summary.writer.record_writer import RecordWriter

from trieye.sinks.tensorboard.files import frame


class Collector:
    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def framed_by_tensorboard(records):
    collector = Collector()
    writer = RecordWriter(collector)
    for record in records:
        writer.write(record)
    return collector.data


@pytest.mark.parametrize("longest", [5, 300, 2000, 4096, 4097, 6000, 8193, 100_003])
def test_records_are_byte_identical_to_tensorboards(longest):
    random = np.random.default_rng(longest)
    records = [random.bytes(size) for size in [4, longest, *random.integers(4, longest, 40)]]
    assert frame(records) == framed_by_tensorboard(records)


def test_framing_no_records_yields_no_bytes():
    assert frame([]) == b""
