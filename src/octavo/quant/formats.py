"""The forms that the native executor packs matrices into, and what each file type becomes.

Data for the plan, for `octavo explain` and for docs/formats.md. The packing itself is native code, whose
layout this describes: blocks of 32 output columns, groups of 32 along the input, both padded.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import WeightError
from octavo.quant import BLOCKS, kquants

BLOCK_COLS = 32
GROUP = 32


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """`group_bytes`: 32 columns by 32 inputs. `exact_from`: file types whose every value survives packing."""

    name: str
    bits: float  # a weight, scales included
    group: int  # weights that share a scale; 0 = no scale
    group_bytes: int
    exact_from: frozenset[str]
    text: str


_SCALE = 2 * BLOCK_COLS  # an f16 for each column of a group

FORMATS: dict[str, PackedFormat] = {
    "f32": PackedFormat("f32", 32, 0, 4 * GROUP * BLOCK_COLS, frozenset(BLOCKS), "float32"),
    "f16": PackedFormat("f16", 16, 0, 2 * GROUP * BLOCK_COLS, frozenset({"F16"}), "float16"),
    "bf16": PackedFormat("bf16", 16, 0, 2 * GROUP * BLOCK_COLS, frozenset({"BF16"}), "bfloat16"),
    "w8": PackedFormat(
        "w8",
        8.5,
        GROUP,
        _SCALE + GROUP * BLOCK_COLS,
        frozenset({"Q8_0", "Q5_0", "Q4_0", "IQ4_NL"}),
        "int8, an f16 scale for 32 weights",
    ),
    "w4": PackedFormat(
        "w4",
        5,
        GROUP,
        2 * _SCALE + GROUP * BLOCK_COLS // 2,
        frozenset({"Q4_0", "Q4_1"}),
        "4 bits, an f16 scale and an f16 minimum for 32 weights",
    ),
}
_PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")


def natural(type: str) -> str:
    """What the choice "file" makes of a file type: the smallest form that keeps its own lattice, or comes nearest."""
    if type not in BLOCKS:
        raise WeightError(f"tensor type {type} is not supported", fix=f"use one of {', '.join(BLOCKS)}")
    return _PLAIN.get(type) or ("w4" if type in _FOUR_BITS else "w8")


def is_exact(type: str, format: str) -> bool:
    """Whether packing a file type as `format` keeps every value."""
    return type in FORMATS[format].exact_from


def packed_bytes(format: str, rows: int, cols: int) -> int:
    """Bytes of a `[rows, cols]` matrix in packed form, padding included."""
    return -(-rows // BLOCK_COLS) * -(-cols // GROUP) * FORMATS[format].group_bytes


def loss(type: str, format: str) -> str:
    """In words: what packing changes."""
    if is_exact(type, format):
        return "exact"
    if format in ("f16", "bf16"):
        return f"rounded to {FORMATS[format].text}"
    if format == "w4" and type == "Q4_K":
        return "same 4 bits; scales and minima rounded to f16"
    reason = "minima" if type in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else ""
    if type in kquants.BLOCKS and type not in ("Q4_K", "Q5_K"):
        reason = f"groups of 16{' with minima' if reason else ''}"
    because = f" ({type} has {reason})" if reason and format == "w8" else ""
    return f"quantised again to {FORMATS[format].text.split(',')[0]}{because}"


def table() -> list[list[str]]:
    """Rows of docs/formats.md, a header first: file type, its bits, what "file" packs it into, and the loss."""
    rows = [["file type", "elements in a block", "bits a weight", "packed as (file)", "bits packed", "loss"]]
    for type, (elements, nbytes) in BLOCKS.items():
        format = natural(type)
        rows.append(
            [
                type,
                str(elements),
                f"{nbytes * 8 / elements:g}",
                format,
                f"{FORMATS[format].bits:g}",
                loss(type, format),
            ]
        )
    return rows
