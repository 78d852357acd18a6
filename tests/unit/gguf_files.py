"""GGUF bytes for tests, written field by field, so that a test can put anything anywhere."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind: int, content: Any) -> bytes:
    """A value without its type; an array's content is (item type, items)."""
    if kind == STRING:
        return string(content)
    if kind == ARRAY:
        item, items = content
        return struct.pack("<IQ", item, len(items)) + b"".join(value(item, each) for each in items)
    return struct.pack(_FORMATS[kind], content)


def entry(key: str, kind: int, content: Any) -> bytes:
    return string(key) + struct.pack("<I", kind) + value(kind, content)


def info(name: str, dims: list[int], code: int, offset: int) -> bytes:
    """A tensor header; `dims` innermost first, as the file has them."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


def gguf(
    entries: list[bytes],
    infos: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    counts: tuple[int, int] | None = None,
) -> bytes:
    infos = infos or []
    tensors, metadata = counts or (len(infos), len(entries))
    head = magic + struct.pack("<IQQ", version, tensors, metadata) + b"".join(entries) + b"".join(infos)
    return head + b"\0" * (-len(head) % alignment) + data


def llama_metadata(architecture: str = "llama", **changes: Any) -> dict[str, tuple[int, Any]]:
    """A tiny model: 2 layers, width 64, 4 heads of 16, 2 KV heads. A None in `changes` takes a key out."""
    a = architecture
    base: dict[str, tuple[int, Any] | None] = {
        "general.architecture": (STRING, a),
        f"{a}.block_count": (U32, 2),
        f"{a}.context_length": (U32, 128),
        f"{a}.embedding_length": (U32, 64),
        f"{a}.feed_forward_length": (U32, 96),
        f"{a}.attention.head_count": (U32, 4),
        f"{a}.attention.head_count_kv": (U32, 2),
        f"{a}.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    }
    for key, change in changes.items():
        base[key.replace("__", ".")] = change
    return {key: pair for key, pair in base.items() if pair is not None}


def entries_of(metadata: dict[str, tuple[int, Any]]) -> list[bytes]:
    return [entry(key, kind, content) for key, (kind, content) in metadata.items()]


def with_tensors(metadata: dict[str, tuple[int, Any]], tensors: dict[str, np.ndarray]) -> bytes:
    """A sound file of F32 tensors."""
    infos, data = [], b""
    for name, array in tensors.items():
        infos.append(info(name, list(reversed(array.shape)), 0, len(data)))
        data += array.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    return gguf(entries_of(metadata), infos, data)
