"""What the C library's allocator does with memory that is freed.

glibc gives an allocation of 128 KiB or more a mapping of its own, which goes back to the system when it is freed; but with each
that is freed it moves that limit up, to 32 MiB at last. A page of a list then lies in the heap among small things that live
long, and what it leaves is not given back. A process that runs for months keeps the limit where it was set: above the 256 KiB
that every read of a TLS connection takes for a moment, since a mapping for each would cost up to a third of a request. Threads
have arenas of their own, two of them here: one of the operator's loop, one of kopf's.

What is smaller stays in the heap. What a burst of thousands of runs has left there between what lives on is given back when
asked for, page by page: glibc itself only gives back what is free at the heap's end.
"""

from __future__ import annotations

import ctypes

# <malloc.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_IN_HEAP = 1 << 20
_FREE_AT_THE_END = 8 << 20
"""More than this is given back at once: not what the next read takes again."""
_ARENAS = 2


def give_back_freed_memory() -> bool:
    """Have large pieces given back when they are freed. Returns False where the C library has no such switch (musl, macOS)."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(
        change
        and change(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        and change(_TRIM_THRESHOLD, _FREE_AT_THE_END)
        and change(_ARENA_MAX, _ARENAS)
    )


def give_back_free_pages() -> None:
    """Give back every page of the heap on which nothing lives: some ten milliseconds. Does nothing without such a switch."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
