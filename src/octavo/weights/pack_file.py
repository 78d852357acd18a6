"""A file of packed matrices: a header with checksums, then their bytes. Knows no model and no folder.

    0    8 bytes   MAGIC
    8    u32       length of the header, little-endian
    12   u64       xxh3-64 of the header
    20             the header: JSON, see `Header`
    then each matrix at a multiple of 4,096 bytes; so is the file's size

Every byte is checked before a matrix is handed out, by plain reads: so a disk's error is an OSError, where a map
would end the process. The checksums find damage, not malice: who may write the file may as well write the model.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import xxhash

from octavo.util.lines import one_line

if TYPE_CHECKING:
    from octavo.kernels.native import Weight

MAGIC = b"OCTAPACK"
_PREFIX = struct.Struct("<8sIQ")
_ALIGN = 4096
PIECE = 4 << 20  # bytes of a matrix under one checksum
_STEP = 256 << 10  # bytes read at a time: they are still in the core's cache when they are summed
MAX_HEADER_BYTES = 64 << 20
MAX_BYTES = 1 << 46


class Unfit(Exception):
    """Why a file cannot be used, in words that follow its name."""


class Wanted(NamedTuple):
    """What a matrix must be. `rows` are those of both parts of an interleaved one."""

    rows: int
    cols: int
    interleaved: bool


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    format: str
    rows: int
    cols: int
    interleaved: bool
    lossless: bool
    offset: int
    nbytes: int
    sums: str  # xxh3-64 of each piece, 16 hex digits


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    packing: str  # version and layout, see pack_cache
    model: str  # digest of what was packed
    size: int  # of the whole file
    matrices: list[Entry]


# ---- reading ------------------------------------------------------------------------------------------


def read_header(fd: int) -> Header:
    """Raises Unfit for a file that is not whole, or not one of ours; OSError."""
    size = os.fstat(fd).st_size
    prefix = os.pread(fd, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise Unfit(f"is cut short ({size:,} bytes)")
    magic, length, digest = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Unfit("is not a file of packed weights")
    if length > MAX_HEADER_BYTES:
        raise Unfit(f"has a header of {length:,} bytes, more than is read")
    raw = os.pread(fd, length, _PREFIX.size)
    if len(raw) < length:
        raise Unfit(f"is cut short ({size:,} bytes)")
    if xxhash.xxh3_64_intdigest(raw) != digest:
        raise Unfit("has a damaged header")
    try:
        header = msgspec.json.decode(raw, type=Header)
    except (msgspec.DecodeError, RecursionError):
        raise Unfit("has a header of another kind") from None
    if size != header.size:
        raise Unfit(f"has {size:,} of {header.size:,} bytes")
    return header


def check_entries(header: Header, wanted: Mapping[str, Wanted], fmt: str) -> None:
    """Raises Unfit where the header names other matrices, or places that cannot be.

    `fmt`: the format of the matrices, or "file" for whatever the file's types ask for.
    """
    from octavo.kernels.native import FORMATS

    if sorted(entry.name for entry in header.matrices) != sorted(wanted):
        raise Unfit("holds other matrices")
    for entry in header.matrices:
        shape = Wanted(entry.rows, entry.cols, entry.interleaved)
        is_known = entry.format in FORMATS and (
            fmt in ("file", entry.format) or (fmt, entry.format) == ("w4", "w8")
        )
        if shape != wanted[entry.name] or not is_known:
            raise Unfit(f"holds {one_line(entry.name)} in another form")
        fits = 0 < entry.nbytes <= header.size and 0 <= entry.offset <= header.size - entry.nbytes
        if not fits or entry.offset % _ALIGN or len(entry.sums) != 16 * -(-entry.nbytes // PIECE):
            raise Unfit(f"has no room for {one_line(entry.name)}")


def read_matrices(fd: int, header: Header, num_threads: int) -> dict[str, Weight]:
    """Checks every byte, then maps them. Raises Unfit, OSError, WeightError, MemoryError."""
    from octavo.kernels import native

    pieces = [
        (entry, start, min(PIECE, entry.nbytes - start))
        for entry in header.matrices
        for start in range(0, entry.nbytes, PIECE)
    ]

    def check(piece: tuple[Entry, int, int]) -> None:
        entry, start, count = piece
        at = start // PIECE * 16
        if _sum_of(fd, entry.offset + start, count) != entry.sums[at : at + 16]:
            raise Unfit(f"is damaged in {one_line(entry.name)}")

    with ThreadPoolExecutor(max(1, num_threads), "octavo-pack") as pool:
        try:
            for _ in pool.map(check, pieces):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    found = native.map_packs(fd, header.size)
    weights = {
        e.name: found.weight(e.format, e.rows, e.cols, e.interleaved, e.lossless, e.offset)
        for e in header.matrices
    }
    for entry in header.matrices:
        if weights[entry.name].nbytes != entry.nbytes:
            raise Unfit(f"holds {entry.nbytes:,} bytes of {one_line(entry.name)}, which takes others")
    return weights


def _sum_of(fd: int, offset: int, count: int) -> str:
    digest = xxhash.xxh3_64()
    space = memoryview(bytearray(min(_STEP, count)))
    while count:
        got = os.preadv(fd, [space[: min(count, _STEP)]], offset)
        if not got:
            raise Unfit("is cut short")
        digest.update(space[:got])
        offset += got
        count -= got
    return digest.hexdigest()


# ---- writing ------------------------------------------------------------------------------------------


def file_size(weights: Mapping[str, Weight]) -> int:
    """Bytes of the file, but for a few of the header."""
    return _up(sum(256 + len(name) for name in weights)) + sum(_up(w.nbytes) for w in weights.values())


def write(fd: int, packing: str, model: str, weights: Mapping[str, Weight]) -> None:
    """Fills an empty file and gives it to the disk. Raises OSError."""
    header = _planned(packing, model, weights)
    entries = []
    for entry in header.matrices:
        data = weights[entry.name].packed().data
        sums = []
        for start in range(0, entry.nbytes, PIECE):
            piece = data[start : start + PIECE]
            sums.append(xxhash.xxh3_64_hexdigest(piece))
            _write_all(fd, piece, entry.offset + start)
        entries.append(msgspec.structs.replace(entry, sums="".join(sums)))
    os.ftruncate(fd, header.size)
    raw = msgspec.json.encode(msgspec.structs.replace(header, matrices=entries))
    prefix = _PREFIX.pack(MAGIC, len(raw), xxhash.xxh3_64_intdigest(raw))
    _write_all(fd, memoryview(prefix + raw), 0)
    os.fsync(fd)


def _planned(packing: str, model: str, weights: Mapping[str, Weight]) -> Header:
    """The header with sums of zeros: its length does not depend on what they are, nor much on the offsets."""
    entries = [
        Entry(
            name=name,
            format=w.format,
            rows=w.rows,
            cols=w.cols,
            interleaved=w.interleaved,
            lossless=w.lossless,
            offset=MAX_BYTES,
            nbytes=w.nbytes,
            sums="0" * 16 * -(-w.nbytes // PIECE),
        )
        for name, w in weights.items()
    ]
    header = Header(packing=packing, model=model, size=MAX_BYTES, matrices=entries)
    end = _up(_PREFIX.size + len(msgspec.json.encode(header)))
    placed = list(_placed(entries, end))
    size = placed[-1].offset + _up(placed[-1].nbytes) if placed else end
    return msgspec.structs.replace(header, matrices=placed, size=size)


def _placed(entries: list[Entry], end: int) -> Iterator[Entry]:
    for entry in entries:
        yield msgspec.structs.replace(entry, offset=end)
        end += _up(entry.nbytes)


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _up(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN
