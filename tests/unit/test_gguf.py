"""The GGUF container: what a sound file gives, and what is refused and why."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf as reference
import numpy as np
import pytest
from tests.unit import gguf_files as make

from octavo.errors import WeightError
from octavo.weights.gguf import read_gguf


def read(tmp_path: Path, data: bytes):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return read_gguf(str(path))


def refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(WeightError, match=why):
        read(tmp_path, data)


ARCH = make.entry("general.architecture", make.STRING, "llama")


def test_every_value_type(tmp_path: Path) -> None:
    kinds = {
        0: 200,
        1: -5,
        2: 60000,
        3: -300,
        4: 1 << 31,
        5: -7,
        6: 0.5,
        7: True,
        8: "hällo",
        10: 1 << 60,
        11: -9,
        12: 0.1,
    }
    entries = [make.entry(f"k{kind}", kind, content) for kind, content in kinds.items()]
    entries += [make.entry(f"a{kind}", make.ARRAY, (kind, [content] * 3)) for kind, content in kinds.items()]
    entries.append(make.entry("nested", make.ARRAY, (make.ARRAY, [(5, [1, 2]), (8, ["x"])])))
    entries.append(make.entry("empty", make.ARRAY, (8, [])))
    metadata = read(tmp_path, make.gguf(entries)).metadata
    for kind, content in kinds.items():
        assert metadata[f"k{kind}"] == content and type(metadata[f"k{kind}"]) is type(content)
        assert list(metadata[f"a{kind}"]) == [content] * 3
    assert [list(inner) for inner in metadata["nested"]] == [[1, 2], ["x"]]
    assert list(metadata["empty"]) == [] and len(metadata["empty"]) == 0


def test_string_arrays_behave_as_sequences(tmp_path: Path) -> None:
    words = ["", "a", "äöü", "你好", "🙂" * 100]
    array = read(tmp_path, make.gguf([make.entry("w", make.ARRAY, (8, words))])).metadata["w"]
    assert len(array) == 5 and list(array) == words and array[3] == "你好" and array[1:3] == words[1:3]
    assert "a" in array


def test_bad_utf8_in_an_array_is_reported_when_it_is_read(tmp_path: Path) -> None:
    array = read(tmp_path, make.gguf([make.entry("w", make.ARRAY, (8, ["a", b"\xff"]))])).metadata["w"]
    with pytest.raises(WeightError, match="string 1 of w is not UTF-8"):
        list(array)


def test_against_the_reference_writer(tmp_path: Path) -> None:
    path = tmp_path / "reference.gguf"
    writer = reference.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_custom_alignment(64)
    writer.add_array("names", ["x", "y"])
    rng = np.random.default_rng(0)
    one, two = rng.random((5, 32), np.float32), rng.random((3, 7, 64), np.float32)
    quant = reference.GGMLQuantizationType.Q8_0
    writer.add_tensor("one", one)
    writer.add_tensor("two", reference.quants.quantize(two, quant), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(str(path))
    assert (
        file.version == 3
        and file.metadata["llama.block_count"] == 3
        and list(file.metadata["names"]) == ["x", "y"]
    )
    assert file.tensors["one"].shape == (5, 32) and file.tensors["one"].type == "F32"
    assert file.tensors["two"].shape == (3, 7, 64) and file.tensors["two"].type == "Q8_0"
    data = path.read_bytes()
    tensor = file.tensors["one"]
    assert data[tensor.offset : tensor.offset + tensor.nbytes] == one.tobytes()
    assert all(tensor.offset % 64 == 0 for tensor in file.tensors.values())


def test_version_2_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, make.gguf([ARCH], version=2)).version == 2


def test_other_files_are_named(tmp_path: Path) -> None:
    refused(tmp_path, b"PK\x03\x04" + b"\0" * 60, "is not a GGUF file: it begins with b'PK")
    refused(tmp_path, b"", "has 0 bytes, too few")
    refused(tmp_path, make.gguf([ARCH], version=1), "GGUF version 1; versions 2 and 3")
    refused(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")
    refused(tmp_path, make.gguf([make.entry("split.count", 2, 3)]), "one of 3 shards")
    with pytest.raises(WeightError, match="cannot read"):
        read_gguf(str(tmp_path / "absent.gguf"))


def test_hostile_counts_are_refused(tmp_path: Path) -> None:
    huge = (1 << 64) - 1
    for counts in ((huge, 1), (1, huge), (1 << 40, 1), (1, 1 << 40)):
        refused(tmp_path, make.gguf([ARCH], counts=counts), "claims .* entries, which cannot fit")
    for kind in (0, 4, 8, 9, 12):
        data = make.gguf([make.string("k") + struct.pack("<IIQ", make.ARRAY, kind, huge)])
        refused(tmp_path, data, "wants|cannot fit")
    refused(tmp_path, make.gguf([struct.pack("<Q", huge)]), "at most 65535|cannot fit")
    refused(tmp_path, make.gguf([make.string("k") + struct.pack("<IQ", 8, huge)]), "at most")
    lies = make.string("k") + struct.pack("<IIQQQ", make.ARRAY, 8, 2, 1 << 62, 0)
    refused(tmp_path, make.gguf([lies]), "leads past the end")
    nested = make.string("k") + struct.pack("<I", make.ARRAY) + struct.pack("<IQ", make.ARRAY, 1) * 9
    refused(tmp_path, make.gguf([nested + b"\0" * 64]), "nests arrays more than 4 deep")


def test_malformed_metadata(tmp_path: Path) -> None:
    refused(tmp_path, make.gguf([ARCH, ARCH]), "'general.architecture' is there twice")
    refused(
        tmp_path, make.gguf([make.string("k") + struct.pack("<I", 77) + b"\0" * 8]), "unknown value type 77"
    )
    refused(tmp_path, make.gguf([make.entry("k", make.ARRAY, (77, []))]), "array of the unknown type 77")
    refused(tmp_path, make.gguf([make.entry("k", make.STRING, b"\xff\xfe")]), "k is not UTF-8")
    for bad in (0, 3, 1 << 21):
        refused(tmp_path, make.gguf([make.entry("general.alignment", make.U32, bad)]), "a power of two")


def test_tensor_table(tmp_path: Path) -> None:
    ok = make.info("a", [32, 2], 0, 0)
    data = b"\1" * 256
    assert read(tmp_path, make.gguf([ARCH], [ok], data)).tensors["a"].nbytes == 256
    refused(tmp_path, make.gguf([ARCH], [ok], data[:-1]), "ends at byte .*; the file has")
    refused(tmp_path, make.gguf([ARCH], [ok, ok], data), "tensor 'a' is there twice")
    refused(tmp_path, make.gguf([ARCH], [ok, make.info("b", [32], 0, 128)], data), "'a' and 'b' overlap")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [8], 0, 8)], data), "not a multiple of 32")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [33], 2, 0)], data), "which Q4_0 cannot hold")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [0, 4], 0, 0)], data), "impossible shape")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [1 << 40, 1 << 40], 0, 0)], data), "impossible shape")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [1] * 5, 0, 0)], data), "5 dimensions; 1 to 4")
    refused(tmp_path, make.gguf([ARCH], [make.info("a", [32], 0, (1 << 64) - 32)], data), "ends at byte")


def test_unsupported_types_are_named_with_the_supported(tmp_path: Path) -> None:
    infos = [make.info("a", [256], 16, 0), make.info("b", [256], 16, 96), make.info("c", [32], 99, 192)]
    with pytest.raises(WeightError) as error:
        read(tmp_path, make.gguf([ARCH], infos, b"\0" * 1024))
    text = str(error.value)
    assert "IQ2_XXS (2 tensors), number 99 (1 tensors)" in text and "Q4_K" in text and "IQ4_NL" in text
