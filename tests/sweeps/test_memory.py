"""The C library keeps what a step frees; measured in a process of its own, whose setting it changes."""

import platform
import subprocess
import sys

import pytest

BLOCK = 64 << 20
SCRIPT = f"""
import ctypes, resource
from simlab.sweeps.memory import keep_freed_memory

libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc({BLOCK})
    ctypes.memset(block, 1, {BLOCK})
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = [faults(), faults()]
keep_freed_memory()
print(*plain, faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc")
def test_a_block_that_was_freed_is_used_again():
    command = [sys.executable, "-c", SCRIPT]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, second, _, kept = map(int, printed.split())
    assert kept < min(first, second) / 10
