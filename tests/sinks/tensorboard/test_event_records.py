import io

import numpy as np
from tensorboard.summary.writer.record_writer import RecordWriter

from trieye.sinks.tensorboard.files import frame


def framed_by_tensorboard(records):
    file = io.BytesIO()
    writer = RecordWriter(file)
    for record in records:
        writer.write(record)
    return file.getvalue()


def test_records_are_byte_identical_to_tensorboards():
    random = np.random.default_rng(0)
    records = [random.bytes(size) for size in (4, 5, 300, 2000, 4096, 4097, 8193, 100_003)]
    assert frame(records) == framed_by_tensorboard(records)
    assert frame([]) == b""
