"""CollectiveTransport: broadcasts weights to all connected explorers with torch.distributed.

Each explorer holds a connection to the learner, which breaks as soon as a process dies. Over the connections the
learner requests a broadcast and receives its results. The weights themselves go through a process group that lasts for
one epoch; it is never the default group, which belongs to the user. When an explorer joins, leaves or fails, the epoch
ends, and the connected explorers form the next one.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client, Connection, wait
from typing import Any, Literal

import torch
from torch.distributed import ProcessGroupGloo, Store, TCPStore  # type: ignore[attr-defined]  # see rendezvous

from trieye.process.progress import say
from trieye.training.exploring.flat import Flat, Layout, layout_of
from trieye.training.exploring.rendezvous import ClientListener, Rendezvous, RendezvousClient
from trieye.training.exploring.transports import SupersededError, Weights

Backend = Literal["gloo", "nccl"]

_MAX_EPOCHS = 3
_FORM_TIMEOUT_S = 10.0
_ANSWER_MARGIN_S = 2.0
"""Additional time for the answers to a broadcast to arrive."""
_FETCH_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies broadcast weights.

    Attributes:
        serial: Unique number; distinguishes repeated publications of the same version.
        version: Version of the weights.
    """

    serial: int
    version: int


@dataclass(frozen=True, slots=True)
class BroadcastRequest:
    """Request to take part in a broadcast; `rank` belongs to the member, `port` to the epoch's store."""

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


class _EpochGroup:
    """The process group of one epoch; released only when no broadcast is in progress, since that would block.

    Args:
        backend: The library, gloo or nccl.
        store: Exchanges the addresses of the members.
        host: Address of this machine for other members.
        rank: Rank of this process.
        size: Number of processes.
    """

    def __init__(self, backend: Backend, store: Store, host: str, rank: int, size: int) -> None:
        self._backend: Backend = backend
        self._store: Store | None = store  # the group uses it until it is released
        self._group: Any
        if backend == "gloo":
            self._group = ProcessGroupGloo(store, rank, size, _gloo_options(host))
        else:
            from torch.distributed import ProcessGroupNCCL  # missing in CPU builds

            self._group = ProcessGroupNCCL(store, rank, size, ProcessGroupNCCL.Options())

    def broadcast(self, flat: Flat) -> None:
        """Send from rank 0, or receive; as bytes, because gloo does not support every dtype."""
        deadline = time.monotonic() + flat.timeout_s
        # NCCL ends the process after its timeout, which must therefore exceed ours
        limit = timedelta(seconds=flat.timeout_s * (1 if self._backend == "gloo" else 10))
        works = [self._group.broadcast(buffer.view(torch.uint8), 0, limit) for buffer in flat.buffers]
        faults = [fault for work in works if (fault := self._wait(work, deadline)) is not None]
        works.clear()  # works keep the connections open, and the traceback would keep the works
        if faults:
            raise RuntimeError(faults[0])

    def close(self) -> None:
        """Close the connections; members that wait for them fail at once."""
        self._group = self._store = None

    def _wait(self, work: Any, deadline: float) -> str | None:
        """Wait for the end of a broadcast; return the error, or None."""
        pause = threading.Event()
        try:
            while self._backend == "nccl" and not work.is_completed():  # `wait` only makes the stream wait
                if time.monotonic() > deadline:
                    self._group.abort()
                    return "the broadcast timed out"
                pause.wait(0.0005)
            work.wait()
        except RuntimeError as error:
            return str(error)
        return None


def _gloo_options(host: str) -> Any:
    """Return options with this address; by default gloo looks up the host name, which may give an unusable one."""
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001 - docs/private_apis.md
    options._timeout = timedelta(seconds=_FORM_TIMEOUT_S)  # noqa: SLF001
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
    return options


def _nccl_store(host: str, port: int, *, is_master: bool) -> TCPStore:
    """Return torch's own store, because NCCL's threads use methods that `Rendezvous` lacks."""
    limit = timedelta(seconds=_FORM_TIMEOUT_S)
    return TCPStore(host, port, None, is_master=is_master, timeout=limit, wait_for_workers=False)


def _address_of(line: Connection) -> str:
    """Return the local address of a connection."""
    with socket.fromfd(line.fileno(), socket.AF_INET, socket.SOCK_STREAM) as socket_copy:
        return str(socket_copy.getsockname()[0])


class BroadcastSender:
    """The learner's side of the broadcasts.

    Args:
        host: Address of this machine for explorers.
        backend: Library of the process groups.
        device: Device of the buffers; with nccl, the device of the weights.
    """

    def __init__(self, host: str, backend: Backend, device: torch.device) -> None:
        self._host, self._backend, self._device = host, backend, device
        self.key = secrets.token_bytes(32)
        self.epoch = 0
        self._lock = threading.Lock()  # guards all fields below
        self._members: list[Connection] = []
        self._joining = deque[Connection]()  # members of the next epoch
        self._group: _EpochGroup | None = None
        self._store: Rendezvous | TCPStore | None = None
        self._serial = 0
        self._sent_weights: tuple[Handle, Flat] | None = None
        self._is_closed = False
        self._listener = ClientListener(host, self.key, self._admit)
        self.address = self._listener.address

    @torch.no_grad()
    def publish(self, version: int, weights: Weights) -> Handle:
        """Broadcast weights to the connected explorers; later ones receive them when they connect.

        Raises:
            ConnectionError: No broadcast reached all connected explorers within three epochs.
        """
        with self._lock:
            self._serial += 1
            handle, flat = Handle(self._serial, version), Flat(layout_of(weights), self._device)
            for name, tensor in weights.items():
                flat.tensors[name].copy_(tensor)
            self._deliver(handle, flat)
            self._sent_weights = (handle, flat)
            return handle

    def close(self) -> None:
        """Disconnect the explorers, and accept no others."""
        with self._lock:
            self._is_closed = True
            self._end_epoch()
            for member in (*self._members, *self._joining):
                member.close()
            self._members = []
        self._listener.close()

    def _admit(self, member: Connection) -> None:
        """Add an explorer, and send it the newest weights."""
        self._joining.append(member)  # the next holder of the lock adds all that wait, in one epoch
        with self._lock:
            if self._is_closed:
                member.close()
            elif self._joining and self._sent_weights is not None:
                try:
                    self._deliver(*self._sent_weights)
                except ConnectionError as error:
                    say(f"{error}; the next version will be sent to all of them")

    def _deliver(self, handle: Handle, flat: Flat) -> None:
        fault: Exception | None = None
        for _ in range(_MAX_EPOCHS):
            if self._joining:
                self._end_epoch()
            while self._joining:
                self._members.append(self._joining.popleft())
            if not self._members:
                return
            try:
                self._broadcast(handle, flat)
            except (RuntimeError, OSError) as error:  # torch raises RuntimeError
                fault = error
                self._end_epoch()
            else:
                return
        raise ConnectionError(
            f"version {handle.version} did not reach the explorers in {_MAX_EPOCHS} epochs: {fault}"
        ) from fault

    def _broadcast(self, handle: Handle, flat: Flat) -> None:
        self._drop_gone_members()
        store = self._store
        if store is None:
            self.epoch += 1
            is_gloo = self._backend == "gloo"
            store = Rendezvous(self._host, self.key) if is_gloo else _nccl_store(self._host, 0, is_master=True)
            self._store = store
        size = len(self._members) + 1
        for rank, member in enumerate(tuple(self._members), 1):
            try:
                member.send(BroadcastRequest(self.epoch, store.port, rank, size, handle, flat.layout))
            except OSError:
                self._drop(member)
                raise
        fault: Exception | None = None
        try:
            self._group = self._group or _EpochGroup(self._backend, store, self._host, 0, size)
            self._group.broadcast(flat)
        except RuntimeError as error:
            fault = error
            self._end_epoch()  # unblocks the waiting members
        fault = self._collect_answers(handle, flat.timeout_s if fault is None else 0.0) or fault
        if fault is not None:
            raise fault

    def _drop_gone_members(self) -> None:
        """Drop members whose connection broke, because an epoch with them would never form."""
        for member in [member for member in self._members if member.poll()]:
            try:
                while member.poll():  # a late answer
                    member.recv()
            except (EOFError, OSError):
                self._drop(member)
                self._end_epoch()

    def _collect_answers(self, handle: Handle, timeout_s: float) -> Exception | None:
        """Wait for the answers of all members, drop silent ones, and return the first fault, or None."""
        fault: Exception | None = None
        waiting_members = set(self._members)
        deadline = time.monotonic() + timeout_s + _ANSWER_MARGIN_S
        while waiting_members:
            ready_members = wait(waiting_members, max(deadline - time.monotonic(), 0.0))
            if not ready_members:
                for member in waiting_members:
                    self._drop(member)
                return TimeoutError(f"{len(waiting_members)} explorers did not answer")
            for member in waiting_members.intersection(ready_members):
                try:
                    answer: _Answer = member.recv()
                except (EOFError, OSError):
                    self._drop(member)
                    waiting_members.discard(member)
                    fault = fault or ConnectionError("an explorer died")
                    continue
                if (answer.epoch, answer.handle) == (self.epoch, handle):
                    waiting_members.discard(member)
                    fault = fault or (None if answer.fault is None else RuntimeError(answer.fault))
        return fault

    def _drop(self, member: Connection) -> None:
        self._members.remove(member)
        member.close()

    def _end_epoch(self) -> None:
        if self._group is not None:
            self._group.close()
        if isinstance(self._store, Rendezvous):
            self._store.close()
        self._group = self._store = None


class BroadcastReceiver:
    """The explorer's side of the broadcasts: a thread that receives weights and retains the newest.

    Args:
        address: Address of the sender.
        key: Authentication key of the sender.
        backend: Library of the process groups.
        keep: Number of versions to retain for a slow `get`.
    """

    def __init__(self, address: tuple[str, int], key: bytes, backend: Backend, keep: int) -> None:
        self._address, self._key, self._backend, self._num_kept = address, key, backend, keep
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        self.epoch = -1
        self._host = ""
        self._group: _EpochGroup | None = None
        self._changed = threading.Condition()  # guards all fields below
        self._flat_by_handle: dict[Handle, Flat] = {}  # oldest first
        self._fault: str | None = None
        threading.Thread(target=self._run, name="trieye-weights-receive", daemon=True).start()

    def get(self, handle: Handle, timeout_s: float) -> dict[str, torch.Tensor]:
        """Wait for weights of a handle or newer ones; see `CollectiveTransport.fetch`."""
        with self._changed:
            self._changed.wait_for(lambda: self._fault is not None or self._has_serial(handle.serial), timeout_s)
            newest = self.newest
            if newest is None or newest.serial < handle.serial:
                reason = self._fault or f"they did not arrive within {timeout_s:g} s"
                raise ConnectionError(f"cannot fetch version {handle.version} of the weights: {reason}")
            selected_handle = handle if handle in self._flat_by_handle else newest
            for old_handle in [other for other in self._flat_by_handle if other.serial < selected_handle.serial]:
                del self._flat_by_handle[old_handle]
            tensors = self._flat_by_handle[selected_handle].tensors
        if selected_handle != handle:
            raise SupersededError(selected_handle.version, tensors)
        return tensors

    @property
    def newest(self) -> Handle | None:
        """Handle of the newest weights received."""
        with self._changed:
            return max(self._flat_by_handle, key=lambda retained: retained.serial, default=None)

    def _has_serial(self, serial: int) -> bool:
        return any(retained.serial >= serial for retained in self._flat_by_handle)

    def _run(self) -> None:
        fault = "the learner died"
        try:
            while True:
                line = Client(self._address, authkey=self._key)
                with contextlib.suppress(EOFError, ConnectionError):  # dropped as too slow, or the learner died
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
                request: BroadcastRequest = line.recv()
                fault = None
                try:
                    self.take_part(request)
                except RuntimeError as error:
                    fault = str(error)
                    self._close_group()
                line.send(_Answer(request.epoch, request.handle, fault))

    def _close_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = None

    def take_part(self, request: BroadcastRequest) -> None:
        """Receive and retain the weights of a broadcast; torch's errors are RuntimeErrors."""
        if self._group is None or request.epoch != self.epoch:
            self._close_group()
            self.epoch = request.epoch
            address, is_gloo = (self._address[0], request.port), self._backend == "gloo"
            store = RendezvousClient(address, self._key) if is_gloo else _nccl_store(*address, is_master=False)
            self._group = _EpochGroup(self._backend, store, self._host, request.rank, request.size)
        flat = Flat(request.layout, self._device)
        self._group.broadcast(flat)
        with self._changed:
            self._flat_by_handle[request.handle] = flat
            while len(self._flat_by_handle) > self._num_kept:
                del self._flat_by_handle[next(iter(self._flat_by_handle))]
            self._changed.notify_all()


class CollectiveTransport:
    """Broadcasts weights to all explorers at once with torch.distributed.

    `publish` returns when all connected explorers have the weights. If one dies during a broadcast, the epoch ends, and
    the others receive the weights in the next epoch. An explorer that joins later, or was dropped because it did not
    answer, receives the newest weights when it connects.

    Args:
        host: Address of this machine for explorers.
        backend: `nccl` if the learner and every explorer have separate GPUs, else `gloo`.
        device: Device of the policy.
        keep: Number of versions that each explorer retains until it fetches newer ones; at least one more than its
            number of assignments in flight.
    """

    def __init__(self, host: str, *, backend: Backend = "gloo", device: str = "cpu", keep: int = 3) -> None:
        buffer_device = torch.device(device if backend == "nccl" else "cpu")
        self._sender: BroadcastSender | None = BroadcastSender(host, backend, buffer_device)
        self._receiver: BroadcastReceiver | None = None
        self._receiver_args = (self._sender.address, self._sender.key, backend, keep)

    def __getstate__(self) -> Any:
        """Return the parameters of a receiver; the sender stays in this process."""
        return self._receiver_args

    def __setstate__(self, receiver_args: Any) -> None:
        """Become the explorer's side, which connects on the first `fetch`."""
        self._sender, self._receiver, self._receiver_args = None, None, receiver_args

    def publish(self, version: int, weights: Weights) -> Handle:
        """Broadcast weights; see `Transport`.

        Raises:
            ConnectionError: The weights did not reach all explorers; `fetch` still returns the previous ones.
        """
        if self._sender is None:
            raise RuntimeError("publish() works only in the process that created the transport")
        return self._sender.publish(version, weights)

    def fetch(self, handle: Handle) -> dict[str, torch.Tensor]:
        """Return weights, which remain valid until the next `fetch`.

        Raises:
            SupersededError: Newer weights arrived, and these are no longer retained.
            ConnectionError: The weights did not arrive, or the learner died.
        """
        self._receiver = self._receiver or BroadcastReceiver(*self._receiver_args)
        return self._receiver.get(handle, _FETCH_TIMEOUT_S)

    def close(self) -> None:
        """Disconnect the explorers; no effect outside the publishing process."""
        if self._sender is not None:
            self._sender.close()
