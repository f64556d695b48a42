"""What the C library's allocator does with memory that is freed.

By default glibc gives the top of its heap back to the system whenever more than a few megabytes of it are free. Learning
frees and takes the same hundreds of megabytes at every minibatch of images, so each of them is cleared and mapped in anew,
page by page: a fifth to a quarter of the processor time of a network with convolutions. A process that learns keeps what
it has been given; its peak is the same.
"""

from __future__ import annotations

import ctypes

# <malloc.h>; the threshold is the largest that glibc takes. Above it an allocation is a mapping of its own, as before:
# a replay memory's arrays are there to stay, and only pages that are written to count.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 << 20
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have freed memory kept for the next allocation. Returns False where the C library has no such switch (musl, macOS)."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(change and change(_MMAP_THRESHOLD, _LARGEST_KEPT) and change(_TRIM_THRESHOLD, _NEVER))
