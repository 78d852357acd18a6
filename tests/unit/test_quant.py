"""Dequantisation against the reference definition (the `gguf` package), bit by bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from octavo.errors import WeightError
from octavo.quant import BLOCKS, dequantise, formats, row_bytes


def random_bytes(type: str, rows: int, cols: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, rows * row_bytes(type, cols), dtype=np.uint8)
    if type in ("F32", "F16", "BF16"):
        return data
    # Keep the f16 scales finite: an infinite one times zero would be a NaN, whose bits nobody defines.
    blocks = data.reshape(-1, BLOCKS[type][1])
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(type, (0, 2)):
        if type in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL") and at == 2:
            continue
        blocks[:, at + 1] &= 0xBF
    return data


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (7, 512), (64, 2048)])
def test_bit_equal_to_reference(type: str, rows: int, cols: int) -> None:
    data = random_bytes(type, rows, cols, seed=rows * cols)
    quant = gguf.GGMLQuantizationType[type]
    with np.errstate(all="ignore"):
        if type in ("F32", "F16"):
            expected = data.view({"F32": np.float32, "F16": np.float16}[type]).astype(np.float32)
        else:
            expected = gguf.quants.dequantize(data.reshape(rows, -1), quant)
        got = dequantise(data, type, rows, cols)
    assert got.dtype == np.float32 and got.shape == (rows, cols)
    if type in ("F32", "F16", "BF16"):
        np.testing.assert_array_equal(got.reshape(-1), expected.reshape(-1))
    else:
        assert got.tobytes() == expected.astype(np.float32).tobytes()


def test_many_blocks_are_done_in_pieces() -> None:
    rows, cols = 40, 256 * 500  # more blocks than one piece holds
    data = random_bytes("Q4_K", rows, cols, seed=3)
    whole = dequantise(data, "Q4_K", rows, cols)
    last = dequantise(data[-row_bytes("Q4_K", cols) :], "Q4_K", 1, cols)
    assert whole[-1].tobytes() == last.tobytes()


def test_block_table_agrees_with_reference() -> None:
    for type, size in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]] == size


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(WeightError, match=r"not supported.*Q4_K"):
        dequantise(np.zeros(4, np.uint8), "IQ1_S", 1, 256)
    with pytest.raises(WeightError, match=r"blocks hold 32"):
        dequantise(np.zeros(18, np.uint8), "Q4_0", 1, 31)
    with pytest.raises(WeightError, match=r"take 36 bytes, not 18"):
        dequantise(np.zeros(18, np.uint8), "Q4_0", 2, 32)


def test_packed_formats() -> None:
    assert formats.packed_bytes("f32", 32, 32) == 4096 and formats.packed_bytes("bf16", 33, 32) == 4096
    assert (
        formats.packed_bytes("w8", 32, 64) == 2 * (1024 + 64)
        and formats.packed_bytes("w4", 1, 1) == 512 + 128
    )
    for name, format in formats.FORMATS.items():
        assert formats.packed_bytes(name, 320, 3200) * 8 / (320 * 3200) == format.bits


def test_format_table_covers_every_file_type() -> None:
    header, *rows = formats.table()
    assert [row[0] for row in rows] == list(BLOCKS) and all(len(row) == len(header) for row in rows)
    by_type = {row[0]: row for row in rows}
    assert by_type["Q4_1"][3] == "w4" and by_type["Q4_1"][5] == "exact"
    assert by_type["Q8_0"][3] == "w8" and by_type["Q6_K"][3] == "w8" and "exact" not in by_type["Q6_K"][5]
    with pytest.raises(WeightError, match=r"not supported"):
        formats.natural("IQ1_S")
