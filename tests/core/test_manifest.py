"""The manifest tells processors apart, whose float32 sums differ."""

import platform

import pytest

from simlab.core.manifest import device, processor

X86 = """processor\t: 0
cpu family\t: 6
model\t\t: 207
model name\t: Some Xeon
stepping\t: 2
flags\t\t: fpu fma avx avx512f amx_tile sse

processor\t: 1
model\t\t: 208
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("description", "name", "vectors"),
    [
        (X86, "Some Xeon, cpu family 6, model 207, stepping 2", "fma avx avx512f amx_tile"),
        (ARM, platform.processor() or platform.machine(), "asimd sve"),
        ("", platform.processor() or platform.machine(), ""),
    ],
)
def test_a_processor_is_what_its_description_says(description, name, vectors):
    assert processor(description) == {"processor": name, "vectors": vectors}


def test_the_device_of_a_result_names_its_processor():
    assert device()["processor"]
