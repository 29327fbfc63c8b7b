"""What the C library does with freed memory: keeps it between steps, returns it after a compilation."""

import contextlib
import ctypes
from functools import cache

# Parameters of glibc's mallopt; malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what a step frees: it gives large blocks back to the system, which clears them again.

    That takes a fifth of the time of a step. Other C libraries stay as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)


def return_free_memory() -> None:
    """Give memory that a compilation has freed back to the system; glibc would keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
