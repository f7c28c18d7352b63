"""A replay buffer in a separate process, with many writers and readers.

replay = RemoteReplay.start({"capacity": 100_000})     # an actor; needs Ray
with replay.writer() as writer:                                     # in any task or actor
    writer.add(obs=obs, action=action, reward=reward, terminated=terminated)
batch = replay.reader().sample(256)                                 # from shared memory if on the same machine
"""

from trieye.replay.remote.handle import RemoteFragments, RemoteReplay
from trieye.replay.remote.reader import Reader
from trieye.replay.remote.replay_server import ReplayServer
from trieye.replay.remote.server import FragmentServer, LocalChannel
from trieye.replay.remote.writer import Writer

__all__ = ["FragmentServer", "LocalChannel", "Reader", "RemoteFragments", "RemoteReplay", "ReplayServer", "Writer"]
