# SPDX-License-Identifier: Apache-2.0
"""Two ways to another process: messages to it, and reads out of its pool of pages.

    SocketLink   any connected stream socket: the other side writes what is asked for on the connection
    NixlLink     NIXL's Python package: pools are registered, and reads go by RDMA, shared memory or TCP

Both pull: bytes come into this side's pool because this side asked for them, never because the other one liked to. And
both have one rule: while a read is moving, its bytes may land at any moment, and where they land has to be kept free.
"""

import base64
import importlib
import json
import os
import select
import socket
import time
from collections import deque

import numpy as np

CONNECT_TIMEOUT_S = 60
GONE = "the other side is gone"
MESSAGE_BYTES_MAX = 64 << 20
NONSENSE = (ValueError, KeyError, TypeError, AttributeError)  # what messages raise that are not as they should be


class PeerError(Exception):
    """There is no link to the other side, and the reason."""


class Read:
    """Bytes on their way here. `moving` until nothing of them can land any more; then `arrived` or `broken`.

    One that has an error and is still moving will not arrive, but may land all the same.
    """

    def __init__(self):
        self.state, self.error = "moving", ""

    @property
    def is_over(self):
        return self.state != "moving"

    def end(self, state, error=""):
        self.state, self.error = state, error


class Stream:
    """Messages, and bytes behind them, over a connected socket. Waits in poll() only."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.connection, self.is_open = connection, True
        self._out = deque()  # memoryviews
        self._head = bytearray()  # of a message that has not come in full
        self._targets = deque()  # where bytes behind a message go
        self._on_filled = None

    def send(self, message, payload=()):
        text = json.dumps(message).encode()
        self._out.append(memoryview(len(text).to_bytes(4, "big") + text))
        self._out.extend(payload)
        self._flush()

    def receive_into(self, targets, on_filled):
        """To be called while a message is handled: the bytes behind it go to these memoryviews."""
        self._targets.extend(targets)
        self._on_filled = on_filled

    def poll(self, on_message, timeout_s, bytes_max=1 << 20):
        if not self.is_open:
            return
        select.select([self.connection], [self.connection] if self._out else [], [], timeout_s)
        self._flush()
        try:
            while bytes_max > 0 and self.is_open:
                bytes_max -= self._receive_bytes() if self._targets else self._receive_message(on_message)
        except BlockingIOError:
            pass
        except (OSError, *NONSENSE):
            self.close()

    def close(self):
        self.is_open = False
        self._out.clear()
        self._targets.clear()
        self.connection.close()

    def _flush(self):
        try:
            while self._out and self.is_open:
                sent = self.connection.send(self._out[0])
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the other side is gone; poll() still reads what it has said before
            self._out.clear()

    def _receive_bytes(self):
        count = self.connection.recv_into(self._targets[0])
        if count == 0:
            self.close()
            return 0
        self._targets[0] = self._targets[0][count:]
        if not self._targets[0]:
            self._targets.popleft()
            if not self._targets:
                self._on_filled()
        return count

    def _receive_message(self, on_message):
        length = int.from_bytes(self._head[:4], "big") if len(self._head) >= 4 else 0
        if length > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {length} bytes")
        part = self.connection.recv(4 + length - len(self._head))
        self._head += part
        if not part:
            self.close()
        elif len(self._head) > 4 and len(self._head) == 4 + length:
            text, self._head = self._head[4:], bytearray()
            on_message(json.loads(text))
        return len(part)


class SocketLink:
    name = "socket"

    def __init__(self, stream, pool):
        self._stream, self._pool = stream, memoryview(pool)
        self._reads = {}  # by number: the read, where it goes, what to say when it has arrived
        self._next = 0
        self._said = []

    @property
    def is_open(self):
        return self._stream.is_open

    def send(self, message):
        if self.is_open:
            self._stream.send({"say": message})

    def read(self, pieces, note):
        """Reads (offset here, offset there, bytes); `note` is what the other side hears when all has arrived."""
        read, number = Read(), self._next
        self._next += 1
        if not self.is_open:
            read.end("broken", GONE)
            return read
        targets = [self._pool[here : here + length] for here, _, length in pieces]
        self._reads[number] = (read, targets, note)
        self._stream.send({"read": number, "pieces": [[there, length] for _, there, length in pieces]})
        return read

    def poll(self, timeout_s=0.0):
        """Moves what can be moved. Gives what the other side has said since."""
        self._stream.poll(self._on_message, timeout_s)
        if not self.is_open:
            self.close()
        said, self._said = self._said, []
        return said

    def close(self):
        """Nothing lands from here on: bytes come in by poll() only."""
        self._stream.close()
        for read, _, _ in self._reads.values():
            read.end("broken", GONE)
        self._reads.clear()

    def _on_message(self, message):
        if "say" in message:
            self._said.append(message["say"])
        elif "read" in message:  # the other side's
            pieces = message["pieces"]
            if any(offset < 0 or length <= 0 or offset + length > len(self._pool) for offset, length in pieces):
                raise ValueError("a read beyond the pool")
            self._stream.send({"bytes": message["read"]}, [self._pool[at : at + length] for at, length in pieces])
        else:
            read, targets, note = self._reads[message["bytes"]]

            def arrived():
                del self._reads[message["bytes"]]
                read.end("arrived")
                self.send(note)

            self._stream.receive_into(targets, arrived)


class NixlLink:
    """Messages are NIXL's notifications; the note of a read is the one that NIXL sends when it is complete."""

    name = "nixl"

    def __init__(self, stream, agent, pool, peer):
        self._stream, self._agent, self._pool = stream, agent, pool
        other = agent.add_remote_agent(base64.b64decode(peer["agent"]))
        self._other = other.decode() if isinstance(other, bytes) else other
        self._other_base = peer["base"]
        self._moving = {}  # the read of each transfer
        self._is_connected = True

    @property
    def is_open(self):
        return self._stream.is_open and self._is_connected

    def send(self, message):
        if not self.is_open:
            return
        try:
            self._agent.send_notif(self._other, json.dumps(message).encode())
        except Exception:  # noqa: BLE001  nothing but a lost connection, by whatever name
            self._is_connected = False

    def read(self, pieces, note):
        """Reads (offset here, offset there, bytes); `note` is what the other side hears when all has arrived."""
        read = Read()
        table = np.array(pieces, np.uint64)
        on_cpu = np.zeros(len(table), np.uint64)
        here, there = (
            self._agent.get_xfer_descs(np.stack([base + offsets, table[:, 2], on_cpu], axis=1), "DRAM")
            for base, offsets in ((np.uint64(self._pool.ctypes.data), table[:, 0]),
                                  (np.uint64(self._other_base), table[:, 1]))
        )
        try:
            transfer = self._agent.initialize_xfer("READ", here, there, self._other, json.dumps(note).encode())
        except Exception as error:  # noqa: BLE001  NIXL's own classes, in a module without a public name
            self._is_connected = self._is_connected and not is_disconnect(error)
            read.end("broken", GONE if is_disconnect(error) else repr(error))  # it has not begun
            return read
        self._moving[transfer] = read
        self._look_at(transfer, read, self._agent.transfer)
        return read

    def poll(self, timeout_s=0.0):
        """Moves what can be moved. Gives what the other side has said since."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._stream.is_open:
                self._stream.poll(lambda message: None, 0)  # says nothing, but ends when the other process does
            before = len(self._moving)
            for transfer, read in list(self._moving.items()):
                self._look_at(transfer, read, self._agent.check_xfer_state)
            try:
                said = [json.loads(text) for text in self._agent.get_new_notifs().get(self._other, [])]
            except ValueError:
                said, self._is_connected = [], False
            if said or len(self._moving) < before or not self.is_open or time.monotonic() >= deadline:
                return said
            time.sleep(0.0002)  # NIXL has nothing to wait for

    def close(self):
        """Nothing lands from here on, since the agent is no more."""
        self._stream.close()
        self._is_connected = False
        moving, self._moving, self._agent = self._moving, {}, None
        reads = list(moving.values())
        moving.clear()  # transfers hold the agent, too
        for read in reads:
            read.end("broken", "the connection was closed")

    def _look_at(self, transfer, read, ask):
        # A read is over when NIXL says that it is done, or that the connection is lost. Nothing else says so: after
        # release() of a transfer, and after remove_remote_agent(), its bytes may still land.
        try:
            state = ask(transfer)
        except Exception as error:  # noqa: BLE001
            if is_disconnect(error):
                self._is_connected = False
                read.end("broken", GONE)
            else:
                read.error = repr(error)
        else:
            if state == "DONE":
                read.end("arrived")
            elif state != "PROC":
                read.error = f"the transfer is in state {state}"
        if read.is_over:
            del self._moving[transfer]
            transfer.release()


def is_disconnect(error):
    return type(error).__name__ == "nixlRemoteDisconnectError"


def make_agent(name):
    """NIXL's agent, or None and the reason."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
    for package in ("nixl_cu12", "nixl_cu13", "nixl"):
        try:
            nixl = importlib.import_module(package)
        except ImportError:
            continue
        try:
            agent = nixl.nixl_agent(f"{name} {os.getpid()}", nixl.nixl_agent_config(backends=["UCX"]))
            return (agent, "") if "UCX" in agent.backends else (None, f"{package} has no UCX here")
        except Exception as error:  # noqa: BLE001
            return None, f"{package} cannot be used here: {error!r}"
    return None, "NIXL's Python package is not installed"


def connect(connection, pool, stores, transport="auto"):
    """A link over a connected socket, and why it is not NIXL if that was asked for. Both sides call this.

    `stores` says what a page is; two that differ are refused.
    """
    agent, why = make_agent("quire") if transport != "socket" else (None, "")
    stream = Stream(connection)
    hello = {"stores": stores, "pool_bytes": len(pool), "agent": None, "base": pool.ctypes.data, "why": why}
    if agent is not None:
        agent.register_memory([(pool.ctypes.data, len(pool), 0, "")], "DRAM")
        hello["agent"] = base64.b64encode(agent.get_agent_metadata()).decode()
    stream.send(hello)
    heard = []
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while not heard and stream.is_open and time.monotonic() < deadline:
        stream.poll(heard.append, 0.1, bytes_max=1)  # no more than this one message
    if not heard:
        why = "the other side did not answer" if stream.is_open else GONE
        stream.close()
        raise PeerError(why)
    peer = heard[0]
    if peer["stores"] != stores:
        stream.close()
        raise PeerError(f"the other side stores {peer['stores']}; here it is {stores}")
    if agent is not None and peer["agent"] is not None:
        return NixlLink(stream, agent, pool, peer), peer, ""
    why = why or peer["why"]
    if transport == "nixl":
        stream.close()
        raise PeerError(why or "the other side has no NIXL")
    return SocketLink(stream, pool), peer, why
