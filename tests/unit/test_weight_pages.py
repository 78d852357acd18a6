"""Weights are not resident twice: pages of the file that packing has read are given back, and can be read again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from octavo.weights.source import ModelSource, TensorInfo, TokenizerFiles

SIZE = 4 << 20


def is_resident(path: Path) -> bool | None:
    """Whether this process holds pages of a file; None where nobody says so (and the advice is not given)."""
    if sys.platform != "linux":
        return None
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total > 0


def test_pages_of_a_packed_file_are_given_back(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    file.write_bytes(content.tobytes())
    info = TensorInfo("w", (SIZE // 4,), "F32", SIZE, str(file), 0)
    source = ModelSource(
        path=str(file), format="safetensors", config={}, tensors={"w": info}, tokenizer=TokenizerFiles()
    )
    data = source.read("w").data
    assert (data == content).all()
    assert is_resident(file) in (True, None)
    source.leave_pages()
    assert is_resident(file) in (False, None)
    assert (data == content).all()
    assert is_resident(file) in (True, None)
    os.utime(file, (1, 1))  # another file by the map's key: nothing of it was read, and nothing breaks
    source.leave_pages()
