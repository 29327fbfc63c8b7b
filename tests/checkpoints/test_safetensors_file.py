"""The safetensors format: against its library, and against files that were cut or made to harm."""

import contextlib

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from simlab.checkpoints.safetensors_file import DTYPES, TensorToWrite, read_header, write_safetensors
from tests.checkpoints.folders import write_raw, write_safetensors_by_hand
from tests.tolerances import assert_exact

TENSORS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.asarray([1.5, -0.0, 3.0e38, -np.inf], np.float32),
    "c": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_library_reads_written_safetensors(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    tensors = {name: np.where(np.abs(x) > 1e4, 1e4, x).astype(np.float32) for name, x in TENSORS.items()}
    # A transposed view, as parameters are written.
    planned = [
        TensorToWrite(name, x.swapaxes(-1, -2) if x.ndim > 1 else x, dtype) for name, x in tensors.items()
    ]
    write_safetensors(path, planned)
    expected = {name: values.astype(DTYPES[dtype]) for name, values, _ in planned}
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(tensors)
        for name, values in expected.items():
            assert file.get_slice(name).get_dtype() == dtype
            assert_exact(file.get_tensor(name).astype(np.float32), values.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_reader_reads_library_safetensors(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    with np.errstate(over="ignore"):
        tensors = {name: x.astype(dtype) for name, x in TENSORS.items()}
    safetensors.numpy.save_file(tensors, path)
    found = read_header(path)
    assert set(found) == set(tensors)
    for name, x in tensors.items():
        assert found[name].shape == x.shape
        rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
        assert_exact(found[name].rows(0, len(rows)), rows)
        assert_exact(found[name].rows(len(rows) - 1, len(rows)), rows[-1:])


@pytest.mark.parametrize("value", [7e4, -1e38])
def test_writer_rejects_float16_overflow(tmp_path, value):
    tensors = [TensorToWrite("w", np.asarray([1.0, value], np.float32), "F16")]
    with pytest.raises(ValueError, match=r"weights of 'w' must fit F16, got .* Use F32 or BF16"):
        write_safetensors(tmp_path / "x.safetensors", tensors)
    assert not list(tmp_path.iterdir())


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": 1, "a": 2}', "a name occurs twice"),
        ([], "not a JSON object"),
        ({"a": 7}, "'a' .* must have dtype, shape and data_offsets"),
        ({"a": {**ENTRY, "more": 1}}, "must have dtype"),
        ({"a": {**ENTRY, "dtype": "F8_E4M3"}}, "'a' .* must be one of F32, F16, BF16, got 'F8_E4M3'"),
        ({"a": {**ENTRY, "dtype": []}}, "must be one of F32"),
        ({"a": {**ENTRY, "shape": [2.0]}}, "corrupt: shape"),
        ({"a": {**ENTRY, "shape": [-2]}}, "corrupt: shape"),
        ({"a": {**ENTRY, "shape": [True, 2]}}, "corrupt: shape"),
        ({"a": {**ENTRY, "shape": [2**62, 4]}}, "needs 73786976294838206464 bytes, got 8"),
        ({"a": {**ENTRY, "shape": [3]}}, "needs 12 bytes, got 8"),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "needs 8 bytes, got -8"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, "corrupt: shape"),
        ({"a": {**ENTRY, "data_offsets": [4, 12]}}, "'a' must start at byte"),
        ({"a": {**ENTRY, "shape": [10**6], "data_offsets": [0, 4 * 10**6]}}, "is truncated: the tensors end"),
        ({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}, "is corrupt: the tensors end"),
        ({"a": ENTRY, "b": ENTRY}, "'b' must start at byte"),
    ],
)
def test_reader_rejects_wrong_header(tmp_path, header, words):
    write_raw(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(ValueError, match=words) as error:
        read_header(tmp_path / "x.safetensors")
    assert "x.safetensors" in str(error.value)


@pytest.mark.parametrize("length", [9, 2**40, 2**63])
def test_reader_rejects_header_longer_than_file(tmp_path, length):
    (tmp_path / "x.safetensors").write_bytes(length.to_bytes(8, "little") + bytes(8))
    with pytest.raises(ValueError, match="truncated or not a safetensors file"):
        read_header(tmp_path / "x.safetensors")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "x.safetensors"
    write_safetensors_by_hand(path, TENSORS)
    return path


@given(data=st.data())
def test_reader_rejects_truncated_file(sound, data):
    content = sound.read_bytes()
    cut = sound.with_name("cut.safetensors")
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match=r"cut\.safetensors"):
        read_header(cut)


@given(data=st.data())
def test_reader_rejects_or_survives_changed_byte(sound, data):
    """Nothing but a clear error comes out, and what is accepted can be read."""
    content = bytearray(sound.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    changed = sound.with_name("changed.safetensors")
    changed.write_bytes(content)
    with contextlib.suppress(ValueError):
        for tensor in read_header(changed).values():
            assert tensor.rows(0, 1).dtype == np.float32
