"""The GGUF container, versions 2 and 3: metadata and tensor headers out of a memory map.

Owns the byte layout and its limits; knows nothing of what keys or tensors mean (weights.names does).
The file is untrusted: every length and offset is checked against the file before it is used, and a
malformed file raises WeightError, whatever its bytes are.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, overload

import numpy as np

from octavo.errors import WeightError
from octavo.quant import BLOCKS, row_bytes

MAX_HEADER_BYTES = 1 << 29  # the largest vocabularies take about 10 MB
MAX_ITEMS = 1 << 24  # strings, entries and tensors of one file, together
MAX_STRING_BYTES = 1 << 24
MAX_KEY_BYTES = (1 << 16) - 1  # the specification's own limit
MAX_NAME_BYTES = 1024
MAX_NESTING = 4
MAX_ELEMENTS = 1 << 48

TENSOR_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4",
}  # fmt: skip

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_u32 = struct.Struct("<I").unpack_from
_u64 = struct.Struct("<Q").unpack_from


class StringArray(Sequence[str]):
    """The strings of a metadata array, decoded when first asked for.

    Only the process that tokenises needs a vocabulary; the others must not pay for decoding it.
    """

    def __init__(self, buffer: mmap.mmap, start: int, end: int, count: int, key: str) -> None:
        self._buffer, self._start, self._end, self._count, self._key = buffer, start, end, count, key
        self._items: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    def _decoded(self) -> list[str]:
        if self._items is None:
            blob = self._buffer[self._start : self._end]  # lengths were checked by the reader
            items: list[str] = []
            append, length, pos = items.append, _u64, 0
            try:
                for _ in repeat(None, self._count):
                    begin = pos + 8
                    pos = begin + length(blob, pos)[0]
                    append(blob[begin:pos].decode())
            except UnicodeDecodeError:
                raise WeightError(f"string {len(items)} of {self._key} is not UTF-8") from None
            self._items = items
        return self._items

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """`shape` is outermost first (the file has it the other way round); `offset` is absolute."""

    name: str
    shape: tuple[int, ...]
    type: str
    nbytes: int
    offset: int


@dataclass(slots=True)
class GGUFFile:
    """Metadata values are int, float, bool, str, a numpy array, a StringArray, or a list of arrays."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    data_start: int
    file_bytes: int


class _Header:
    """Cursor over the header. `at` never passes `end`; anything that would is a WeightError."""

    def __init__(self, buffer: mmap.mmap, path: str) -> None:
        self.buffer, self.path = buffer, path
        self.at, self.items = 0, 0
        self.end = min(len(buffer), MAX_HEADER_BYTES)

    def bad(self, message: str) -> WeightError:
        return WeightError(
            f"{self.path} is not a sound GGUF file: {message}", fix="download it again, or convert it anew"
        )

    def take(self, nbytes: int, what: str) -> int:
        """Start of the next `nbytes`, which are consumed."""
        start = self.at
        if nbytes > self.end - start:
            raise self.bad(
                f"{what} at byte {start} wants {nbytes} bytes; the header has {self.end - start} left"
            )
        self.at = start + nbytes
        return start

    def count(self, number: int, least_bytes: int, what: str) -> int:
        """`number` entries of at least `least_bytes` each must fit what is left, and the budget."""
        self.items += number
        if number * least_bytes > self.end - self.at or self.items > MAX_ITEMS:
            raise self.bad(f"{what} claims {number} entries, which cannot fit its {self.end - self.at} bytes")
        return number

    def u32(self, what: str) -> int:
        return int(_u32(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_u64(self.buffer, self.take(8, what))[0])

    def string(self, what: str, max_bytes: int = MAX_STRING_BYTES) -> str:
        nbytes = self.u64(what)
        if nbytes > max_bytes:
            raise self.bad(f"{what} claims {nbytes} bytes; at most {max_bytes} are allowed")
        start = self.take(nbytes, what)
        try:
            return self.buffer[start : self.at].decode()
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self.array(key, 1)
        if kind not in _NUMBERS:
            raise self.bad(f"{key} has the unknown value type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        number = np.frombuffer(self.buffer, dtype, 1, self.take(dtype.itemsize, key))[0]
        return bool(number) if kind == _BOOL else number.item()

    def array(self, key: str, depth: int) -> Any:
        kind, count = self.u32(key), self.u64(key)
        if kind == _STRING:
            return self.strings(key, self.count(count, 8, key))
        if kind == _ARRAY:
            if depth == MAX_NESTING:
                raise self.bad(f"{key} nests arrays more than {MAX_NESTING} deep")
            return [self.array(key, depth + 1) for _ in range(self.count(count, 12, key))]
        if kind not in _NUMBERS:
            raise self.bad(f"{key} is an array of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        start = self.take(count * dtype.itemsize, key)
        numbers = np.frombuffer(self.buffer, dtype, count, start)
        return numbers.astype(np.bool_) if kind == _BOOL else numbers.copy()

    def strings(self, key: str, count: int) -> StringArray:
        start, end, pos = self.at, self.end, self.at
        # Slow if written with take(): there are 100,000 to 500,000 of these. A length that leads out
        # of the header stops the walk, because reading the next one fails.
        length, buffer = _u64, self.buffer
        try:
            for _ in repeat(None, count):
                pos += 8 + length(buffer, pos)[0]
        except (struct.error, OverflowError):
            pos = end + 1
        if pos > end:
            raise self.bad(f"a string of {key} leads past the end of the header")
        self.at = pos
        return StringArray(self.buffer, start, pos, count, key)


def read_gguf(path: str) -> GGUFFile:
    """Parse the header of a GGUF file. Raises WeightError for anything that is not a sound, supported file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise WeightError(
                    f"{path} has {size} bytes, too few for a GGUF file", fix="download it again"
                )
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror or error}") from None
    header = _Header(buffer, path)
    version = _version(header)
    tensor_count, entry_count = header.u64("tensor count"), header.u64("metadata count")
    metadata = _metadata(header, header.count(entry_count, 13, "metadata"))
    split = metadata.get("split.count", 0)
    if isinstance(split, int) and split > 1:
        raise WeightError(
            f"{path} is one of {split} shards of a split GGUF model; only single files are read",
            fix="merge the shards with llama-gguf-split --merge",
        )
    infos = _tensor_infos(header, header.count(tensor_count, 24, "the tensor table"))
    tensors, data_start = _placed(header, infos, _alignment(header, metadata), size)
    return GGUFFile(path, version, metadata, tensors, data_start, size)


def _version(header: _Header) -> int:
    magic = header.buffer[:4]
    header.take(4, "magic")
    if magic != b"GGUF":
        raise WeightError(f"{header.path} is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    version = header.u32("version")
    if version not in (2, 3):
        if version and version % 65536 == 0:
            raise WeightError(
                f"{header.path} is a big-endian GGUF file; only little-endian ones are read",
                fix="convert it with gguf-convert-endian",
            )
        raise WeightError(
            f"{header.path} is GGUF version {version}; versions 2 and 3 are read",
            fix="convert the model anew",
        )
    return version


def _metadata(header: _Header, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = header.string("a metadata key", MAX_KEY_BYTES)
        if key in metadata:
            raise header.bad(f"the metadata key {key!r} is there twice")
        metadata[key] = header.value(header.u32(key), key)
    return metadata


def _alignment(header: _Header, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise header.bad(f"general.alignment is {alignment!r}; a power of two up to 1048576 is allowed")
    return alignment


def _tensor_infos(header: _Header, count: int) -> dict[str, tuple[tuple[int, ...], str, int]]:
    infos: dict[str, tuple[tuple[int, ...], str, int]] = {}
    unsupported: dict[str, int] = {}
    for _ in range(count):
        name = header.string("a tensor name", MAX_NAME_BYTES)
        if name in infos:
            raise header.bad(f"the tensor {name!r} is there twice")
        rank = header.u32(name)
        if not 1 <= rank <= 4:
            raise header.bad(f"tensor {name!r} has {rank} dimensions; 1 to 4 are allowed")
        dims = [header.u64(name) for _ in range(rank)]
        elements = 1
        for dim in dims:
            elements *= dim
            if not 0 < elements <= MAX_ELEMENTS:
                raise header.bad(f"tensor {name!r} has the impossible shape {dims}")
        code = header.u32(name)
        type = TENSOR_TYPES.get(code, f"number {code}")
        if type not in BLOCKS:
            unsupported[type] = unsupported.get(type, 0) + 1
        elif dims[0] % BLOCKS[type][0]:
            raise header.bad(f"tensor {name!r} has rows of {dims[0]} elements, which {type} cannot hold")
        infos[name] = tuple(reversed(dims)), type, header.u64(name)
    if unsupported:
        found = ", ".join(f"{type} ({number} tensors)" for type, number in unsupported.items())
        raise WeightError(
            f"{header.path} has tensors of unsupported types: {found}",
            fix=f"use a file made of {', '.join(BLOCKS)}",
        )
    return infos


def _placed(
    header: _Header, infos: dict[str, tuple[tuple[int, ...], str, int]], alignment: int, size: int
) -> tuple[dict[str, GGUFTensor], int]:
    """Absolute offsets; refuses misaligned, overlapping and out-of-file tensors."""
    data_start = -(-header.at // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for name, (shape, type, offset) in infos.items():
        nbytes = row_bytes(type, shape[-1])
        for dim in shape[:-1]:
            nbytes *= dim
        if offset % alignment:
            raise header.bad(f"tensor {name!r} starts at {offset}, which is not a multiple of {alignment}")
        if offset + nbytes > size - data_start:
            raise header.bad(
                f"tensor {name!r} ends at byte {data_start + offset + nbytes}; the file has {size}"
            )
        tensors[name] = GGUFTensor(name, shape, type, nbytes, data_start + offset)
    previous: GGUFTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if previous is not None and tensor.offset < previous.offset + previous.nbytes:
            raise header.bad(f"tensors {previous.name!r} and {tensor.name!r} overlap")
        previous = tensor
    return tensors, data_start
