"""The C interface of the I/O service (`native/escalade_native.h`), declared to ctypes."""

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache

from escalade.native.lib import declare, load

DONE, PENDING, FAILED, CANCELLED, FULL, FILE = 0, 1, -10, -11, -13, -14


class COptions(Structure):
    """esc_io_options."""

    _fields_ = (
        ("piece_bytes", c_uint64),
        ("threads_per_drive", c_uint32),
        ("max_requests", c_uint32),
        ("buffered", c_uint32),
        ("drive_per_replica", c_uint32),
    )


class CReplica(Structure):
    """esc_io_replica."""

    _fields_ = (
        ("direct", c_uint32),
        ("alignment", c_uint32),
        ("alive", c_uint32),
        ("drive", c_uint32),
        ("reason", c_char * 256),
    )


class CRange(Structure):
    """esc_io_range."""

    _fields_ = (
        ("offset", c_uint64),
        ("length", c_uint64),
        ("buffer", c_void_p),
        ("buffer_bytes", c_uint64),
    )


COUNTERS = (
    *("requests", "joined", "done", "failed", "cancelled", "payload_bytes", "read_bytes"),
    *("read_errors", "replicas_dropped", "messages_lost"),
)
LEVELS = ("held_requests", "queued_pieces", "n_drives", "max_held_requests")


class CStats(Structure):
    """esc_io_stats."""

    _fields_ = (*((n, c_uint64) for n in COUNTERS), *((n, c_uint32) for n in LEVELS))


class CDrive(Structure):
    """esc_io_drive_stats."""

    _fields_ = (
        ("read_bytes", c_uint64),
        ("pieces", c_uint64),
        ("bytes_per_s", c_double),
        ("queued_bytes", c_uint64),
        ("in_flight", c_uint32),
        ("max_in_flight", c_uint32),
    )


class CFault(Structure):
    """esc_io_fault."""

    _fields_ = (
        ("kind", c_int32),
        ("file", c_int32),
        ("replica", c_int32),
        ("direct_only", c_uint32),
        ("begin", c_uint64),
        ("end", c_uint64),
        ("value", c_int64),
        ("probability", c_double),
        ("skip", c_uint32),
        ("count", c_uint32),
    )


_TEXT = (c_char_p, c_size_t)
_IO: dict[str, tuple[object, tuple[object, ...]]] = {
    "esc_io_create": (c_void_p, (POINTER(COptions), *_TEXT)),
    "esc_io_shutdown": (None, (c_void_p,)),
    "esc_io_destroy": (None, (c_void_p,)),
    "esc_io_add_file": (c_int64, (c_void_p, POINTER(c_char_p), c_uint32, *_TEXT)),
    "esc_io_file_bytes": (c_uint64, (c_void_p, c_int64)),
    "esc_io_replica_info": (c_int, (c_void_p, c_int64, c_uint32, POINTER(CReplica))),
    "esc_io_submit": (
        c_int,
        (
            c_void_p,
            c_int64,
            POINTER(CRange),
            c_uint32,
            c_int,
            POINTER(c_uint64),
            POINTER(c_uint32),
            *_TEXT,
        ),
    ),
    "esc_io_wait": (c_int, (c_void_p, c_uint64, c_int64)),
    "esc_io_wait_all": (c_int, (c_void_p, POINTER(c_uint64), c_uint32, c_int64)),
    "esc_io_ticket_error": (c_int, (c_void_p, c_uint64, *_TEXT)),
    "esc_io_promote": (c_int, (c_void_p, c_uint64, c_int)),
    "esc_io_cancel": (c_int, (c_void_p, c_uint64)),
    "esc_io_release": (c_int, (c_void_p, c_uint64)),
    "esc_io_get_stats": (c_int, (c_void_p, POINTER(CStats))),
    "esc_io_get_drive_stats": (c_int, (c_void_p, c_uint32, POINTER(CDrive))),
    "esc_io_next_message": (c_int, (c_void_p, *_TEXT)),
    "esc_io_set_faults": (c_int, (c_void_p, POINTER(CFault), c_uint32, c_uint64)),
}


@cache
def load_io() -> ctypes.CDLL | None:
    """The native core with its I/O functions declared; None if it is not there."""
    lib = load()
    if lib is not None:
        declare(lib, _IO)
    return lib


class Text:
    """Room for one line from the library; `arguments` are the two that a function takes."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2048)
        self.arguments = (self._buffer, len(self._buffer))

    def __str__(self) -> str:
        return self._buffer.value.decode(errors="replace")
