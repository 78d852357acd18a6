"""Bytes of tensors, mapped from their files and given back.

A file is mapped once for a size and a time of change. Knows headers only, no model.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from octavo.errors import WeightError
from octavo.weights.names import ROW_ORDERS
from octavo.weights.tensor import RawTensor, TensorInfo


@lru_cache(maxsize=64)
def _map(path: str, size: int, mtime_ns: int) -> mmap.mmap:
    """The file's map. Size and time are in the key, so that a replaced file is mapped anew."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


def read_tensor(info: TensorInfo) -> RawTensor:
    """Mapped bytes of one tensor, and the order of its rows when the file has them permuted.

    For a vector (a bias) `row_order` permutes its elements. Raises WeightError when the file has
    shrunk since it was opened.
    """
    try:
        status = os.stat(info.file)
        if info.offset + info.nbytes > status.st_size:
            raise WeightError(f"{info.file} was cut short while in use: {info.name!r} is no longer in it")
        buffer = _map(info.file, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError) as error:
        raise WeightError(f"cannot map {info.file}: {error}") from None
    data = np.frombuffer(buffer, np.uint8, info.nbytes, info.offset)  # [nbytes] u8
    order = None
    if info.row_order is not None:
        kind, heads = info.row_order
        order = ROW_ORDERS[kind](info.shape[0], heads)
    return RawTensor(info, data, order)


def leave_pages(tensors: Iterable[TensorInfo]) -> None:
    """Takes what was read of these tensors' files out of this process: the maps stay, and pages come back when read.

    Packing reads every weight once; without this the file would stay resident beside its packed form.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None or sys.platform != "linux":  # elsewhere the same advice means something else
        return
    for file in {info.file for info in tensors}:
        try:
            status = os.stat(file)
            _map(file, status.st_size, status.st_mtime_ns).madvise(advice)
        except (OSError, ValueError):  # replaced meanwhile: then this map is not the one that was read
            continue
