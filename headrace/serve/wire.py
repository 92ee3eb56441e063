"""Messages between processes of one machine: each comes whole, or not at all.

A message is one packet on a pair of sockets. A small one lies in the packet itself; for others the packet carries the
descriptor of a piece of memory that has no name, or of a file without one where the system makes no such memory, out of
which the receiver takes it. So nobody waits in the middle of a message for a process that was stopped or killed, a
process that was leaves nothing behind, and a message of any size is sent at once.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from headrace.files import memory_file

INLINE_BYTES = 16 << 10
ALIGN = 64
"""Arrays begin at multiples of this, as their libraries have it."""
PACKET_BYTES = INLINE_BYTES + 64

_NUMBER = struct.Struct("<q")
_DESCRIPTOR = struct.Struct("@i")


class Parcel(NamedTuple):
    """A message, ready to be sent once."""

    packet: bytes
    """Its bytes; with memory, how many bytes lie there."""
    memory: int | None = None
    """A descriptor."""


class Wire:
    """One of two ends."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Wire, Wire]:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            return cls(one), cls(other)
        except BaseException:  # an interrupt
            one.close()
            other.close()
            raise

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any) -> None:
        self.post(parcel(message))

    def post(self, parcel: Parcel) -> None:
        """BrokenPipeError: there is nobody at the other end."""
        if parcel.memory is None:
            self._end.send(parcel.packet)
            return
        try:
            socket.send_fds(self._end, [parcel.packet], [parcel.memory])
        finally:
            os.close(parcel.memory)

    def receive(self) -> Any:
        """The next message. EOFError: there is none, and nobody at the other end."""
        try:
            packet, extra, flags, _ = self._packet()
        except ConnectionResetError:  # the other end closed with something unread; what it had sent is still there
            packet, extra, flags, _ = self._packet()
        if not packet:
            raise EOFError
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "a message came, but this process may open no more files; raise `ulimit -n`")
        if not extra:
            return ForkingPickler.loads(packet)
        return _from_memory(*_DESCRIPTOR.unpack(extra[0][2]), *_NUMBER.unpack(packet))

    def _packet(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        return self._end.recvmsg(PACKET_BYTES, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)

    def close(self) -> None:
        self._end.close()

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting() and hasattr(self, "_end"):  # an interrupt may have come before it had one
            self.close()


def parcel(message: Any) -> Parcel:
    text = io.BytesIO()
    arrays: list[Any] = []
    _Pickler(text, 5, True, arrays.append).dump(message)
    parts = [text.getbuffer(), *[array.raw() for array in arrays]]
    if len(parts) == 1 and len(parts[0]) <= INLINE_BYTES:
        return Parcel(text.getvalue())
    memory = memory_file("headrace")
    try:
        size = _write(memory, parts)
    except BaseException:
        os.close(memory)
        raise
    return Parcel(_NUMBER.pack(size), memory)


def _write(memory: int, parts: list[memoryview]) -> int:
    """How many parts, the length of each, and the parts, each at a round place."""
    sizes = [part.nbytes for part in parts]
    with os.fdopen(memory, "wb", closefd=False) as file:
        at = file.write(struct.pack(f"<{len(parts) + 1}q", len(parts), *sizes))
        for part in parts:
            at += file.write(bytes(-at % ALIGN))
            at += file.write(part)
    return at


def _from_memory(memory: int, size: int) -> Any:
    # Copied, not mapped: a mapping keeps its descriptor for as long as one array of the message lives.
    import numpy as np

    room = np.empty(size + ALIGN, dtype=np.uint8)
    view, done = room.data[-room.ctypes.data % ALIGN :][:size], 0
    try:
        while done < size:
            done += os.preadv(memory, [view[done:]], done)
    finally:
        os.close(memory)
    (count,) = _NUMBER.unpack_from(view)
    at, parts = _NUMBER.size * (count + 1), []
    for length in struct.unpack_from(f"<{count}q", view, _NUMBER.size):
        at += -at % ALIGN
        parts.append(view[at : at + length])
        at += length
    return ForkingPickler.loads(parts[0], buffers=parts[1:])  # the arrays in it keep the memory


class _Pickler(ForkingPickler):
    """Tensors go as arrays do. torch's own way needs a thread in the sender that the receiver asks for each of them."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.device.type != "cpu" or value.requires_grad:
            return NotImplemented
        if value.layout is not torch.strided:
            return NotImplemented
        flat = value.contiguous().view(-1).view(torch.uint8).numpy()
        return _tensor, (flat, value.dtype, tuple(value.shape))


def _tensor(flat: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(dtype).view(shape)
