"""Memory of a process: the C library keeps what is freed between steps and returns it after a sweep."""

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path

# Parameters of glibc's mallopt; malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory, in the whole process from now on.

    Otherwise glibc returns the large blocks of every step to the system, which must clear them for the next
    step: a fifth of the time of a step. Other C libraries stay as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)


def return_free_memory() -> None:
    """Give freed memory back to the system; glibc would keep it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident_bytes() -> int:
    """Return the memory that this process has in RAM, in bytes; 0 on systems without `/proc`."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.is_file() else 0
