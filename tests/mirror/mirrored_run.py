"""A run without a hub: a directory with run.json, journal and checkpoints, and the upload to its mirror."""

import numpy as np

from trieye.checkpoints.store import CheckpointStore, Retention
from trieye.config import PersistenceConfig
from trieye.files.run_files import BUFFER_PREFIX, RunFiles
from trieye.files.run_record import RunRecord, open_run_record
from trieye.journal.journal import Journal
from trieye.mirror.local import LocalRun
from trieye.mirror.store import MirrorStore
from trieye.mirror.upload import MirrorUpload
from trieye.snapshot.encode import encode

APP, RUN = "app", "first [1] ü"


def no_check():
    pass


class MirroredRun:
    def __init__(self, root, url, *, begin=True):
        self.url = url
        self.paths = RunFiles(PersistenceConfig(root_data_dir=str(root), app_name=APP, run_name=RUN))
        self.paths.create_run_directories()
        self.checkpoints = CheckpointStore(self.paths.checkpoint_dir)
        self.buffers = CheckpointStore(self.paths.buffer_dir, prefix=BUFFER_PREFIX)
        if begin:
            self.begin()

    def begin(self):
        self.record = open_run_record(self.paths.run_record_path, app_name=APP, run_name=RUN)
        self.journal = Journal(self.paths.journal_path)
        return self

    def save(self, step, *, buffer=False, growing=None, objective=None):
        """Append journal entries up to the number of the step, save a checkpoint, and return its path."""
        while self.journal.last_pos < step:
            self.journal.append("e", b"x" * 100, at=float(self.journal.last_pos))
        if buffer:
            self.buffers.save(step, encode([step], copy=False))
        state = {"a": np.full(100, step)} | ({} if growing is None else {"growing": growing})
        stored_names = {name for entry in self.checkpoints.entries() for name in entry.manifest.part_names}
        return self.checkpoints.save(
            step,
            encode(state, copy=False, known_parts=stored_names),
            metadata={} if objective is None else {"objective": objective},
            hub_state=b"the state of a hub",
        )

    def prune(self, keep_last):
        self.checkpoints.prune(Retention(keep_last))
        self.buffers.prune(Retention(keep_last))

    def store(self):
        return MirrorStore(self.url, APP, RUN)

    def upload(self, store=None):
        """Execute one round of the mirror thread."""
        upload = MirrorUpload(store or self.store(), LocalRun(self.paths), no_check)
        upload.connect()
        while pending := upload.pending():
            upload.upload_save(pending[0])
            upload.clean()
        upload.upload_state()
        upload.clean()
        return upload

    def steps(self):
        return [entry.step for entry in self.checkpoints.entries()]

    def run_id(self):
        return RunRecord.read(self.paths.run_record_path).run_id

    def num_records(self):
        journal = Journal(self.paths.journal_path)
        try:
            assert journal.damage == []
            return journal.last_pos
        finally:
            journal.close()
