"""What the C library's allocator does with memory that is freed.

glibc gives an allocation of 128 KiB or more a mapping of its own, which goes back to the system when it is freed; but with each
that is freed it moves that limit up, to 32 MiB at last. The buffers of a TLS connection (256 KiB) and a page of a list then lie
in the heap among small things that live long, and what they leave is not given back. A process that runs for months keeps the
limit where it was. Threads have arenas of their own, two of them here: one of the operator's loop, one of kopf's.

Small pieces stay in the heap. What a burst of thousands of runs has left there between what lives on is given back when asked
for, page by page: glibc itself only gives back what is free at the heap's end.
"""

from __future__ import annotations

import ctypes

# <malloc.h>
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
_LARGEST_IN_HEAP = 128 << 10
_ARENAS = 2


def give_back_freed_memory() -> bool:
    """Have large pieces given back when they are freed. Returns False where the C library has no such switch (musl, macOS)."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(change and change(_MMAP_THRESHOLD, _LARGEST_IN_HEAP) and change(_ARENA_MAX, _ARENAS))


def give_back_free_pages() -> None:
    """Give back every page of the heap on which nothing lives: some ten milliseconds. Does nothing without such a switch."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
