"""CollectiveTransport: weights that torch.distributed broadcasts to the explorers that are there.

Each explorer has a line to the learner, a connection that says who is there: it breaks the moment a process dies. Over
the lines the learner orders a broadcast, and hears what became of it; the weights go through a process group, which is
made for an epoch, and never the default group, which is the user's. When somebody comes, goes or fails, the epoch ends,
and those that are there form the next one.
"""

import contextlib
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any, Literal

import torch
from torch.distributed import ProcessGroupGloo, Store, TCPStore  # type: ignore[attr-defined]  # see rendezvous

from trieye.process.progress import say
from trieye.training.exploring.flat import Flat, Layout, layout_of
from trieye.training.exploring.rendezvous import MOST_AT_ONCE, Rendezvous, Visitor
from trieye.training.exploring.synchronizer import Handle
from trieye.training.exploring.transports import SupersededError, Weights

Backend = Literal["gloo", "nccl"]

_ATTEMPTS = 3
_FORM_S = 10.0
_ANSWER_S = 2.0
"""How much longer its result may take to arrive."""
_FETCH_S = 120.0


@dataclass(frozen=True, slots=True)
class Order:
    """A broadcast that members take part in; `rank` is that of the member, and `port` that of the epoch's store."""

    epoch: int
    port: int
    rank: int
    size: int
    handle: Handle
    layout: Layout


@dataclass(frozen=True, slots=True)
class _Answer:
    epoch: int
    handle: Handle
    fault: str | None


class _Group:
    """A process group of one epoch; it is let go only when no broadcast is under way, since that would wait for it.

    Args:
        backend: Which library.
        store: Where members find one another.
        host: Address of this machine, where the others reach it.
        rank: Of this process.
        size: How many processes there are.
    """

    def __init__(self, backend: Backend, store: Store, host: str, rank: int, size: int) -> None:
        self._backend: Backend = backend
        self._store: Store | None = store  # which has to be there as long as the group
        self._group: Any
        if backend == "gloo":
            self._group = ProcessGroupGloo(store, rank, size, _gloo_options(host))
        else:
            from torch.distributed import ProcessGroupNCCL  # which builds for CPUs do not have

            self._group = ProcessGroupNCCL(store, rank, size, ProcessGroupNCCL.Options())

    def broadcast(self, flat: Flat) -> None:
        """Send from rank 0, or receive; the bytes, since gloo does not know each type of number."""
        limit = timedelta(seconds=flat.timeout_s)
        until = time.monotonic() + flat.timeout_s
        works = [self._group.broadcast(buffer.view(torch.uint8), 0, self._longer(limit)) for buffer in flat.buffers]
        faults = [fault for work in works if (fault := self._fault_of(work, until)) is not None]
        works.clear()  # each keeps the connections open, and the traceback would keep them
        if faults:
            raise RuntimeError(faults[0])

    def close(self) -> None:
        """Close the connections; the others, if they wait for something, hear of it."""
        self._group = self._store = None

    def _longer(self, limit: timedelta) -> timedelta:
        """Return the limit of the library's own: that of NCCL ends the process, and must not be the first."""
        return limit if self._backend == "gloo" else 10 * limit

    def _fault_of(self, work: Any, until: float) -> str | None:
        """Wait for the end of a broadcast; return what went wrong."""
        try:
            if self._backend == "nccl":
                self._poll(work, until)
            work.wait()
        except RuntimeError as error:
            return str(error)
        return None

    def _poll(self, work: Any, until: float) -> None:
        pause = threading.Event()
        while not work.is_completed():  # `wait` only makes the stream wait
            if time.monotonic() > until:
                self._group.abort()
                raise RuntimeError("the broadcast did not end in time")
            pause.wait(0.0005)


def _gloo_options(host: str) -> Any:
    """Return options with this address: torch's default asks DNS for that of the host's name, which may be no use."""
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001 - docs/private_apis.md
    options._timeout = timedelta(seconds=_FORM_S)  # noqa: SLF001
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
    return options


def _nccl_store(host: str, port: int, *, is_master: bool) -> TCPStore:
    """Return the store of torch's own, since NCCL's threads use more of it than a `Rendezvous` has."""
    limit = timedelta(seconds=_FORM_S)
    return TCPStore(host, port, None, is_master=is_master, timeout=limit, wait_for_workers=False)


def _address_of(line: Connection) -> str:
    """Return the address of this machine that a line goes out from."""
    with socket.fromfd(line.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        found: str = same.getsockname()[0]
        return found


class Sender:
    """The learner's side.

    Args:
        host: Address of this machine, where explorers reach it.
        backend: Of the process groups.
        device: Where buffers are: that of the weights for nccl.
    """

    def __init__(self, host: str, backend: Backend, device: torch.device) -> None:
        self._host, self._backend, self._device = host, backend, device
        self.key = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=MOST_AT_ONCE, authkey=self.key)
        self.address: tuple[str, int] = self._listener.address
        self.epoch = 0
        self._lock = threading.Lock()  # guards all that follows
        self._members: list[Connection] = []
        self._group: _Group | None = None
        self._store: Rendezvous | TCPStore | None = None
        self._serial = 0
        self._sent: tuple[Handle, Flat] | None = None
        self._spare: Flat | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._admit, name="trieye-weights-admit", daemon=True)
        self._thread.start()

    @property
    def num_members(self) -> int:
        """How many explorers are there."""
        return len(self._members)

    @property
    def newest(self) -> Handle | None:
        """The newest weights."""
        return None if self._sent is None else self._sent[0]

    @torch.no_grad()
    def publish(self, version: int, weights: Weights) -> Handle:
        """Broadcast weights to those that are there; who comes later gets them then.

        Raises:
            ConnectionError: No broadcast reached all that were there, in three epochs.
        """
        with self._lock:
            self._serial += 1
            handle, layout = Handle(self._serial, version), layout_of(weights)
            spare, self._spare = self._spare, None
            flat = spare if spare is not None and spare.layout == layout else Flat(layout, self._device)
            for name, tensor in weights.items():
                flat.tensors[name].copy_(tensor)
            try:
                self._deliver(handle, flat)
            except ConnectionError:
                self._spare = flat
                raise
            self._spare = None if self._sent is None else self._sent[1]
            self._sent = (handle, flat)
            return handle

    def close(self) -> None:
        """Let the explorers go."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_epoch()
            for member in self._members:
                member.close()
            self._members = []
        with contextlib.suppress(OSError):  # closing alone does not wake who waits for it
            socket.create_connection(self.address, timeout=1.0).close()
        self._thread.join(5.0)
        self._listener.close()

    def _admit(self) -> None:
        """Let in who comes, and send the newest weights; the body of a thread."""
        while True:
            try:
                member = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):
                if self._is_closed:
                    return
                continue  # it was no explorer
            with self._lock:
                if self._is_closed:
                    return
                self._end_epoch()
                self._members.append(member)
                if self._sent is not None:
                    try:
                        self._deliver(*self._sent)
                    except ConnectionError as error:
                        say(f"{error}; the next version is sent to all")

    def _deliver(self, handle: Handle, flat: Flat) -> None:
        fault: Exception | None = None
        for _ in range(_ATTEMPTS):
            if not self._members:
                return
            try:
                self._broadcast(handle, flat)
            except (RuntimeError, OSError) as error:  # what torch raises is a RuntimeError
                fault = error
                self._end_epoch()
            else:
                return
        raise ConnectionError(
            f"version {handle.version} did not reach the explorers in {_ATTEMPTS} epochs: {fault}"
        ) from fault

    def _broadcast(self, handle: Handle, flat: Flat) -> None:
        self._look_who_is_gone()
        store = self._store
        if store is None:
            self.epoch += 1
            is_gloo = self._backend == "gloo"
            store = Rendezvous(self._host, self.key) if is_gloo else _nccl_store(self._host, 0, is_master=True)
            self._store = store
        size = len(self._members) + 1
        for rank, member in enumerate(tuple(self._members), 1):
            try:
                member.send(Order(self.epoch, store.port, rank, size, handle, flat.layout))
            except OSError:
                self._lose(member)
                raise
        fault: Exception | None = None
        try:
            self._group = self._group or _Group(self._backend, store, self._host, 0, size)
            self._group.broadcast(flat)
        except RuntimeError as error:
            fault = error
            self._end_epoch()  # those that wait for us see that it is over
        fault = self._hear(handle, flat.timeout_s if fault is None else 0.0) or fault
        if fault is not None:
            raise fault

    def _look_who_is_gone(self) -> None:
        """Lose members whose line broke, as an epoch with them would not begin."""
        for member in [member for member in self._members if member.poll()]:
            try:
                while member.poll():  # an answer that came too late
                    member.recv()
            except (EOFError, OSError):
                self._lose(member)
                self._end_epoch()

    def _hear(self, handle: Handle, timeout_s: float) -> Exception | None:
        """Wait for the answers of all members; lose those that give none, and return what went wrong."""
        fault: Exception | None = None
        waiting = set(self._members)
        until = time.monotonic() + timeout_s + _ANSWER_S
        while waiting:
            ready = wait(waiting, max(until - time.monotonic(), 0.0))
            if not ready:
                for member in waiting:
                    self._lose(member)
                return TimeoutError(f"{len(waiting)} explorers did not answer")
            for member in waiting.intersection(ready):
                try:
                    answer: _Answer = member.recv()
                except (EOFError, OSError):
                    self._lose(member)
                    waiting.discard(member)
                    fault = fault or ConnectionError("an explorer is gone")
                    continue
                if (answer.epoch, answer.handle) == (self.epoch, handle):
                    waiting.discard(member)
                    fault = fault or (None if answer.fault is None else RuntimeError(answer.fault))
        return fault

    def _lose(self, member: Connection) -> None:
        self._members.remove(member)
        member.close()

    def _end_epoch(self) -> None:
        if self._group is not None:
            self._group.close()
        if isinstance(self._store, Rendezvous):
            self._store.close()
        self._group = self._store = None


class Receiver:
    """An explorer's side: a thread that takes part in broadcasts, and keeps what came.

    Args:
        address: Of the sender.
        key: Which the sender wants to see.
        backend: Of the process groups.
        keep: How many weights stay for those that are slow to fetch them.
    """

    def __init__(self, address: tuple[str, int], key: bytes, backend: Backend, keep: int) -> None:
        self._address, self._key, self._backend, self._keep = address, key, backend, keep
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self.epoch = -1
        self._host = ""
        self._group: _Group | None = None
        self._changed = threading.Condition()  # guards all that follows
        self._kept: dict[Handle, Flat] = {}  # the oldest first
        self._free: list[Flat] = []
        self._fault: str | None = None
        threading.Thread(target=self._listen, name="trieye-weights-receive", daemon=True).start()

    def get(self, handle: Handle, timeout_s: float) -> dict[str, torch.Tensor]:
        """Wait for weights, or for newer ones; see `CollectiveTransport.fetch`."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or self._has(handle.serial), timeout_s)
            newest = self.newest
            if newest is None or newest.serial < handle.serial:
                what = self._fault or f"they did not come within {timeout_s:g} s"
                raise ConnectionError(f"the weights of version {handle.version}: {what}")
            found = handle if handle in self._kept else newest
            for old in [kept for kept in self._kept if kept.serial < found.serial]:
                self._free.append(self._kept.pop(old))
            tensors = self._kept[found].tensors
        if found != handle:
            raise SupersededError(found.version, tensors)
        return tensors

    @property
    def newest(self) -> Handle | None:
        """The newest weights that came."""
        with self._changed:
            return max(self._kept, key=lambda kept: kept.serial, default=None)

    def _has(self, serial: int) -> bool:
        return any(kept.serial >= serial for kept in self._kept)

    def _listen(self) -> None:
        fault = "the learner is gone"
        try:
            while True:
                line = Client(self._address, authkey=self._key)
                with contextlib.suppress(EOFError, ConnectionError):  # left out, as it was slow; or the learner is gone
                    self._serve(line)
        except Exception as error:  # noqa: BLE001 - the border of the thread: `get` raises it in the explorer
            fault = f"{fault}: {type(error).__name__}: {error}"
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def _serve(self, line: Connection) -> None:
        with line:
            self._host = _address_of(line)
            while True:
                order: Order = line.recv()
                fault = None
                try:
                    self.take_part(order)
                except RuntimeError as error:
                    fault = str(error)
                    self._leave()
                line.send(_Answer(order.epoch, order.handle, fault))

    def _leave(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None

    def take_part(self, order: Order) -> None:
        """Receive what a broadcast brings, and keep it; what torch raises is a RuntimeError."""
        if self._group is None or order.epoch != self.epoch:
            self._leave()
            self.epoch = order.epoch
            host = self._address[0]
            is_gloo = self._backend == "gloo"
            store = (
                Visitor((host, order.port), self._key) if is_gloo else _nccl_store(host, order.port, is_master=False)
            )
            self._group = _Group(self._backend, store, self._host, order.rank, order.size)
        with self._changed:
            flat = next((free for free in self._free if free.layout == order.layout), None)
            self._free.clear()
        flat = flat or Flat(order.layout, self._device)
        self._group.broadcast(flat)
        with self._changed:
            if order.handle in self._kept:  # sent again, as somebody came
                self._free = [flat]
                return
            self._kept[order.handle] = flat
            while len(self._kept) > self._keep:
                del self._kept[next(iter(self._kept))]
            self._changed.notify_all()


class CollectiveTransport:
    """A broadcast by torch.distributed to all explorers at once.

    Each publish returns when all explorers that are there have the weights. One that dies meanwhile ends the epoch, and
    the others get them in the next one; who comes later, or was left out since it did not answer, gets the newest when
    it comes.

    Args:
        host: Address of this machine, where explorers reach it.
        backend: gloo, or nccl where the learner and all explorers have GPUs of their own.
        device: Of the policy.
        keep: How many weights each explorer keeps until it fetches newer ones; one more than the fragments that it may
            be told to collect.
    """

    def __init__(self, host: str, *, backend: Backend = "gloo", device: str = "cpu", keep: int = 3) -> None:
        held_on = torch.device(device if backend == "nccl" else "cpu")
        self._sender: Sender | None = Sender(host, backend, held_on)
        self._receiver: Receiver | None = None
        self._way = (self._sender.address, self._sender.key, backend, keep)

    def __getstate__(self) -> Any:
        """Leave behind what is of this process."""
        return self._way

    def __setstate__(self, way: Any) -> None:
        """Arrive in an explorer."""
        self._sender, self._receiver, self._way = None, None, way

    def publish(self, version: int, weights: Weights) -> Handle:
        """Broadcast weights; see `Transport`.

        Raises:
            ConnectionError: They did not reach all explorers; `fetch` goes on giving those before.
        """
        if self._sender is None:
            raise RuntimeError("only the process that made the transport publishes")
        return self._sender.publish(version, weights)

    def fetch(self, handle: Handle) -> dict[str, torch.Tensor]:
        """Return weights; they hold until the next `fetch`.

        Raises:
            SupersededError: Newer ones have come since, and more than are kept.
            ConnectionError: They did not come, or the learner is gone.
        """
        self._receiver = self._receiver or Receiver(*self._way)
        return self._receiver.get(handle, _FETCH_S)

    @property
    def way(self) -> tuple[tuple[str, int], bytes, Backend, int]:
        """What a `Receiver` is made of."""
        return self._way

    @property
    def epoch(self) -> int:
        """Number of the group that the learner, or this explorer, was in last."""
        side = self._sender or self._receiver
        return -1 if side is None else side.epoch

    @property
    def newest(self) -> Handle | None:
        """The newest weights that were broadcast, as far as the learner, or this explorer, knows."""
        side = self._sender or self._receiver
        return None if side is None else side.newest

    @property
    def num_members(self) -> int:
        """Explorers that are there; only where weights are published."""
        return 0 if self._sender is None else self._sender.num_members

    def close(self) -> None:
        """Let the explorers go; only where weights are published."""
        if self._sender is not None:
            self._sender.close()
