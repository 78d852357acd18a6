"""Dequantising against the gguf package, bit by bit, on random blocks of every type."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from octavo import kernels
from octavo.errors import WeightError

TYPES = kernels.tensor_types()
U8 = npt.NDArray[np.uint8]
# Where the f16 scales lie in a block: random bytes there would mostly be huge, infinite or NaN.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}  # fmt: skip
ODD = np.array([0.0, -0.0, 6e-8, -6e-8, 3e-5, 65504.0, -65504.0, 1.0, -0.333], np.float16)


def random_blocks(name: str, rows: int, cols: int, rng: np.random.Generator, odd: bool = False) -> U8:
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel()
        return values.astype({"F32": np.float32, "F16": np.float16}[name]).view(np.uint8).ravel()
    blocks = rng.integers(0, 256, (rows * cols // block, size), dtype=np.uint8)
    for at in SCALES[name]:
        scale = (rng.standard_normal(len(blocks)) * 0.02).astype(np.float16)
        if odd:
            scale = rng.choice(ODD, len(blocks))
        blocks[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.ravel()


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_bit_equal_to_gguf(name: str, odd: bool) -> None:
    rng = np.random.default_rng(TYPES.index(name))
    rows, cols = 5, 512
    data = random_blocks(name, rows, cols, rng, odd)
    expected = dequantize(data.reshape(rows, -1), GGMLQuantizationType[name])
    got = kernels.dequantise(name, data, rows, cols, num_threads=2)
    np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


def test_every_f16_is_widened_exactly() -> None:
    every = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        expected = every.view(np.float16).astype(np.float32)
    got = kernels.dequantise("F16", every.view(np.uint8), 1, 65536)[0]
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(got.view(np.uint32)[number], expected.view(np.uint32)[number])
    assert np.isnan(got[~number]).all()


def test_row_order_permutes_rows() -> None:
    rng = np.random.default_rng(1)
    data = random_blocks("Q8_0", 6, 64, rng)
    order = np.array([3, 1, 0, 2, 5, 4], np.int32)
    plain = kernels.dequantise("Q8_0", data, 6, 64)
    np.testing.assert_array_equal(kernels.dequantise("Q8_0", data, 6, 64, order), plain[order])


@pytest.mark.parametrize(
    ("name", "missing", "rows", "cols"),
    [("Q4_K", 1, 2, 256), ("Q4_K", -1, 2, 256), ("Q8_0", 0, 2, 48), ("F32", 4, 3, 5), ("Q6_K", 0, 0, 256)],
)
def test_wrong_sizes_are_refused(name: str, missing: int, rows: int, cols: int) -> None:
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    data = np.zeros(max(rows * cols // block * size - missing, 0), np.uint8)
    with pytest.raises(WeightError):
        kernels.dequantise(name, data, rows, cols)
    with pytest.raises(WeightError):
        kernels.pack([(name, data, rows, cols, None)])


def test_unknown_type_and_bad_orders_are_refused() -> None:
    data = np.zeros(64 * 4, np.uint8)
    with pytest.raises(WeightError, match="Q4_0"):
        kernels.dequantise("TQ1_0", data, 1, 64)
    for order in ([0, 4, 1, 2], [0, -1, 1, 2], [0, 1]):
        with pytest.raises(WeightError, match="order"):
            kernels.dequantise("F32", data, 4, 16, np.array(order, np.int32))
