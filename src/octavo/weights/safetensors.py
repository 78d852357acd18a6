"""The safetensors container: header parser for one file, and the index of a sharded model.

Owns the byte layout and its checks (the file is untrusted); hands out raw byte ranges, so no dtype
needs support here. Knows nothing of models.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from octavo.errors import WeightError
from octavo.weights.tensor import TensorInfo

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_INDEX_BYTES = 100_000_000
MAX_ELEMENTS = 1 << 48
MAX_RANK = 8

DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64,
    "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def read_safetensors(path: str) -> dict[str, TensorInfo]:
    """Headers of one file. Raises WeightError for anything malformed; reads no tensor bytes."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise _bad(path, f"its header claims {length} bytes; the file has {size}")
            raw = file.read(length)
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror or error}") from None
    header = _parse(path, raw)
    header.pop("__metadata__", None)
    data_start = 8 + length
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in header.items()}
    _check_layout(path, tensors, data_start, size)
    return tensors


def read_sharded(directory: str, index_name: str) -> dict[str, TensorInfo]:
    """Headers of every shard that `index_name` (a model.safetensors.index.json) lists."""
    path = os.path.join(directory, index_name)
    try:
        if os.path.getsize(path) > MAX_INDEX_BYTES:
            raise _bad(path, f"it is larger than {MAX_INDEX_BYTES} bytes")
        with open(path, "rb") as file:
            index = _parse(path, file.read(MAX_INDEX_BYTES))
    except OSError as error:
        raise WeightError(f"cannot read {path}: {error.strerror or error}") from None
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise _bad(path, "weight_map must map tensor names to file names")
    shards = sorted(set(places.values()))
    for shard in shards:
        if os.path.basename(shard) != shard or not shard.endswith(".safetensors") or "\0" in shard:
            raise _bad(path, f"{shard!r} is not the name of a .safetensors file beside it")
    absent = [shard for shard in shards if not os.path.isfile(os.path.join(directory, shard))]
    if absent:
        raise WeightError(
            f"{directory} lacks {len(absent)} of {len(shards)} shards: {', '.join(absent[:5])}",
            fix="finish the download",
        )
    headers = {shard: read_safetensors(os.path.join(directory, shard)) for shard in shards}
    missing = [name for name, shard in places.items() if name not in headers[shard]]
    if missing:
        raise _bad(path, f"{len(missing)} tensors are not in the shard that it names, e.g. {missing[0]!r}")
    return {name: headers[shard][name] for name, shard in places.items()}


def renamed(info: TensorInfo, name: str) -> TensorInfo:
    return replace(info, name=name)


def _bad(path: str, message: str) -> WeightError:
    return WeightError(f"{path} is not a sound safetensors file: {message}", fix="download it again")


def _parse(path: str, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise _bad(path, "its header names something twice")
        return table

    try:
        header = json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise _bad(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is not a JSON object")
    return header


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _tensor(path: str, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _bad(path, f"the entry of {name!r} is not an object")
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _bad(path, f"{name!r} has the unknown dtype {dtype!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or not all(_is_count(d, MAX_ELEMENTS) for d in shape)
    ):
        raise _bad(path, f"{name!r} has the impossible shape {str(shape)[:100]}")
    if not isinstance(span, list) or len(span) != 2 or not all(_is_count(at, 1 << 62) for at in span):
        raise _bad(path, f"{name!r} has the impossible offsets {str(span)[:100]}")
    elements = 1
    for dim in shape:
        elements *= dim
    bits = elements * DTYPE_BITS[dtype]
    if elements > MAX_ELEMENTS or bits % 8 or span[1] - span[0] != bits // 8:
        raise _bad(
            path, f"{name!r}: {dtype} {shape} does not take the {span[1] - span[0]} bytes of its offsets"
        )
    return TensorInfo(name, tuple(shape), dtype, bits // 8, path, data_start + span[0])


def _check_layout(path: str, tensors: dict[str, TensorInfo], data_start: int, size: int) -> None:
    """The tensors must tile the data exactly: an overlap or a hole means a damaged or forged file."""
    at = data_start
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        if info.offset != at:
            problem = "overlaps the tensor before it" if info.offset < at else "leaves a hole before it"
            raise _bad(path, f"{info.name!r} {problem}")
        at += info.nbytes
        if at > size:
            raise _bad(path, f"{info.name!r} ends at byte {at}; the file has {size}")
    if at != size:
        raise _bad(path, f"its tensors end at byte {at}; the file has {size}")
