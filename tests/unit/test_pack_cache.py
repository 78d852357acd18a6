"""The folder of packed weights: hits, misses that say why, the cap, and files that hold anything at all."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.config.plan import PackCachePlan
from octavo.kernels import native
from octavo.weights import pack_cache, pack_file
from octavo.weights.pack_cache import PackCache
from octavo.weights.pack_file import Wanted
from octavo.weights.source import ModelSource, TensorInfo, TokenizerFiles

WANTED = {"a": Wanted(70, 96, False), "b vocabulary": Wanted(40, 33, False), "c": Wanted(64, 64, True)}
ANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are always new, and small disks will do."""
    monkeypatch.setattr(pack_cache, "SETTLED_S", -1.0)
    monkeypatch.setattr(pack_cache, "FREE_BYTES", 0)


@pytest.fixture(scope="module")
def weights() -> dict[str, native.Weight]:
    rng = np.random.default_rng(1)

    def part(rows: int, cols: int) -> native.Part:
        values = rng.normal(size=(rows, cols)).astype(np.float32)
        return ("F32", values.view(np.uint8).reshape(-1), rows, cols, None)

    return {
        "a": native.pack([part(70, 96)], "w4"),
        "b vocabulary": native.pack([part(40, 33)], "w8"),
        "c": native.pack([part(32, 64), part(32, 64)], "w4", interleave=True),
    }


class World:
    """A model of one file, and a folder."""

    def __init__(self, root: Path) -> None:
        self.model, self.folder = root / "model.bin", root / "packed"
        self.model.write_bytes(bytes(64))
        self.max_bytes = 1 << 30

    def cache(self, form: str = "w4", wanted: dict[str, Wanted] | None = None) -> PackCache:
        tensors = {n: TensorInfo(n, (4, 4), "F32", 64, str(self.model), 0) for n in ("x",)}
        source = ModelSource(
            path=str(self.model), format="gguf", config={}, tensors=tensors, tokenizer=TokenizerFiles()
        )
        plan = PackCachePlan(folder=str(self.folder), max_bytes=self.max_bytes, reason="test")
        return PackCache(plan, source, form, WANTED if wanted is None else wanted)

    def missed(self, **more: Any) -> PackCache:
        cache = self.cache(**more)
        assert cache.load(2) is None
        return cache

    def keep(self, weights: dict[str, native.Weight], **more: Any) -> PackCache:
        cache = self.missed(**more)
        cache.keep(weights)
        cache.wait()
        return cache

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder))

    @property
    def file(self) -> Path:
        (name,) = self.files
        return self.folder / name

    def why(self) -> str:
        """Why the file is of no use; explain says it too, unless a start had to read the payload to know."""
        cache = self.missed()
        topic, outcome, reason = cache.row()
        assert (topic, outcome) == ("pack cache", "miss")
        looked = self.cache().look()
        assert looked[1] == "hit" or looked[2] == reason
        return reason


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def same(found: dict[str, native.Weight] | None, weights: dict[str, native.Weight]) -> bool:
    assert found is not None
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        got = found[name]
        for field in ("format", "rows", "cols", "interleaved", "nbytes", "lossless"):
            assert getattr(got, field) == getattr(weight, field)
        np.testing.assert_array_equal(got.packed(), weight.packed())
        np.testing.assert_array_equal(got.unpack(), weight.unpack())
    return True


# ---- hits and misses ----------------------------------------------------------------------------------


def test_a_second_start_maps_what_the_first_packed(world: World, weights: dict[str, native.Weight]) -> None:
    first = world.missed()
    assert first.row()[1:] == ["miss", f"{world.folder} has no packed form of this model yet"]
    assert first.look()[1] == "miss"
    first.keep(weights)
    assert "are being written" in first.row()[2]
    first.wait()
    assert (os.stat(world.folder).st_mode & 0o777, os.stat(world.file).st_mode & 0o777) == (0o700, 0o600)
    second = world.cache()
    assert second.look()[1] == "hit"
    found = second.load(2)
    assert same(found, weights)
    assert second.row()[1] == "hit" and "every byte checked" in second.row()[2]
    second.keep(weights)  # nothing to do
    assert len(world.files) == 1


def test_mapped_weights_outlive_the_file_and_cannot_be_written(
    world: World, weights: dict[str, native.Weight]
) -> None:
    world.keep(weights)
    found = world.cache().load(1)
    os.unlink(world.file)
    assert same(found, weights) and found is not None
    assert not found["a"].packed().flags.writeable
    data = found.pop("a").packed()
    found.clear()
    np.testing.assert_array_equal(data, weights["a"].packed())


def test_other_formats_and_matrices_have_files_of_their_own(
    world: World, weights: dict[str, native.Weight]
) -> None:
    world.keep(weights)
    world.keep(weights, form="file")
    world.keep({"a": weights["a"]}, wanted={"a": WANTED["a"]})
    assert len(world.files) == 3
    assert same(world.cache().load(1), weights)


@pytest.mark.parametrize("change", ["content", "mtime only", "content, mtime set back", "replaced"])
def test_a_changed_model_is_packed_again(
    world: World, weights: dict[str, native.Weight], change: str
) -> None:
    world.keep(weights)
    before = os.stat(world.model)
    if change == "replaced":
        other = world.model.with_suffix(".new")
        other.write_bytes(world.model.read_bytes())
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.rename(other, world.model)
    else:
        if change != "mtime only":
            world.model.write_bytes(b"\1" * 64)
        kept = before.st_mtime_ns if "back" in change else before.st_mtime_ns + 1
        os.utime(world.model, ns=(before.st_atime_ns, kept))
    assert "before the model's files changed" in world.why()
    world.keep(weights)
    assert len(world.files) == 1 and same(world.cache().load(1), weights)


def test_off_says_why(world: World, weights: dict[str, native.Weight]) -> None:
    cache = PackCache(
        PackCachePlan(reason="--no-pack-cache"),
        world.cache()._source,
        "w4",
        WANTED,
    )
    assert cache.load(1) is None
    cache.keep(weights)
    assert cache.row() == cache.look() == ["pack cache", "off", "--no-pack-cache"]
    assert not world.folder.exists()


def test_the_map_hands_out_only_what_it_holds(world: World, weights: dict[str, native.Weight]) -> None:
    world.keep(weights)
    size = world.file.stat().st_size
    with open(world.file, "rb") as file:
        found = native.map_packs(file.fileno(), size)
        with pytest.raises(OSError, match="empty"):
            native.map_packs(file.fileno(), 0)
    with pytest.raises(OSError, match="mmap"):
        native.map_packs(-1, size)
    assert found.bytes().nbytes == size and not found.bytes().flags.writeable
    assert found.weight("w4", 70, 96, False, True, 4096).nbytes == weights["a"].nbytes
    big = 1 << 40
    for rows, cols, offset in (
        (70, 96, size - 64), (70, 96, 4097), (70, 96, -64), (70, 96, big), (70, 96, (1 << 63) - 64),
        (0, 96, 0), (70, -1, 0), (big, 1 << 32, 0), (big + 1, 1, 0), (1 << 62, 1 << 62, 0), (71, 96, 0),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            found.weight("w4", rows, cols, rows == 71, True, offset)
    with pytest.raises(ValueError, match="w5"):
        found.weight("w5", 70, 96, False, True, 0)


# ---- files that cannot be used ------------------------------------------------------------------------


def rewrite(path: Path, change: Any) -> None:
    """The header changed as JSON, with a checksum that fits."""
    raw = path.read_bytes()
    _, length, _ = struct.unpack_from("<8sIQ", raw)
    header = json.loads(raw[20 : 20 + length])
    change(header)
    made = json.dumps(header).encode()
    prefix = struct.pack("<8sIQ", pack_file.MAGIC, len(made), xxhash.xxh3_64_intdigest(made))
    path.write_bytes((prefix + made).ljust(4096, b"\0") + raw[4096:])


def put(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_what_is_wrong_is_said(
    world: World, weights: dict[str, native.Weight], caplog: pytest.LogCaptureFixture
) -> None:
    world.keep(weights)
    file = world.file
    good = file.read_bytes()

    def why(data: bytes | None = None, change: Any = None) -> str:
        file.write_bytes(good if data is None else data)
        if change is not None:
            rewrite(file, change)
        return world.why()

    def of_first(**fields: Any) -> Any:
        return lambda header: header["matrices"][0].update(fields)

    assert "is cut short (0 bytes)" in why(b"")
    assert "of 24,576 bytes" in why(good[:-1]) and "of 24,576 bytes" in why(good + b"\0")
    assert "is not a file of packed weights" in why(b"GGUF" + good[4:])
    assert "damaged header" in why(good[:100] + b"?" + good[101:])
    assert "header of another kind" in why(change=lambda h: h.pop("size"))
    assert "header of another kind" in why(change=lambda h: h.update(more=1))
    assert "packed by another version (lanes32-little-0, not" in why(
        change=lambda h: h.update(packing="lanes32-little-0")
    )
    assert "holds other matrices" in why(change=lambda h: h["matrices"].pop())
    assert "holds a in another form" in why(change=of_first(rows=71))
    assert "holds a in another form" in why(change=of_first(format="bf16"))
    assert "no room for a" in why(change=of_first(offset=24576))
    assert "no room for a" in why(change=of_first(offset=4097))
    assert "no room for a" in why(change=of_first(nbytes=-1))
    assert "is damaged in a" in why(change=of_first(sums="0" * 16))
    assert "is damaged in a" in why(good[:4200] + bytes([good[4200] ^ 1]) + good[4201:])
    assert "which takes others" in why(
        change=of_first(nbytes=64, sums=xxhash.xxh3_64_hexdigest(good[4096:4160]))
    )
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        why(good[:5000])
    (line,) = caplog.messages
    assert line.startswith(f"pack cache: {file.name} has 5,000 of") and line.endswith(": packed again")
    world.keep(weights)  # repaired
    assert same(world.cache().load(1), weights)


def test_links_folders_pipes_and_files_that_others_may_write(
    world: World, weights: dict[str, native.Weight]
) -> None:
    world.keep(weights)
    file = world.file
    file.chmod(0o666)
    assert "only this user can write" in world.why()
    elsewhere = world.folder.parent / "elsewhere"
    os.rename(file, elsewhere)
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    assert "is a link" in world.why()
    file.unlink()
    os.mkfifo(file)
    assert "only this user can write" in world.why()  # and does not wait for a writer
    file.unlink()
    file.mkdir()
    assert "only this user can write" in world.why()
    cache = world.keep(weights)  # a folder cannot be renamed over
    assert "not kept: Is a directory" in cache.row()[2]
    assert world.files == [file.name]


@pytest.fixture(scope="module")
def fuzzed(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[str, native.Weight]
) -> Iterator[tuple[World, bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack_cache, "SETTLED_S", -1.0)
        world = World(tmp_path_factory.mktemp("fuzz"))
        world.keep(weights)
        yield world, world.file.read_bytes()


def load_anything(world: World, weights: dict[str, native.Weight], *, is_whole: bool) -> None:
    """No error comes out, and what is loaded is what was packed. `is_whole`: checksums stand for the bytes."""
    cache = world.cache()
    cache.look()
    found = cache.load(1)
    assert cache.row()[1] == ("miss" if found is None else "hit")
    if found is None:
        return
    if is_whole:
        same(found, weights)
    for weight in found.values():
        weight.unpack()  # every byte lies in the map


@given(data=st.data())
@ANY
def test_random_bytes_cuts_and_flips(
    fuzzed: tuple[World, bytes], weights: dict[str, native.Weight], data: st.DataObject
) -> None:
    world, good = fuzzed
    kind = data.draw(st.sampled_from(["bytes", "magic", "cut", "longer", "flips", "spliced"]))
    if kind in ("bytes", "magic"):
        made = data.draw(st.binary(max_size=200))
        made = pack_file.MAGIC + made if kind == "magic" else made
    elif kind == "cut":
        made = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "longer":
        made = good + data.draw(st.binary(min_size=1, max_size=50))
    else:
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.one_of(st.integers(0, 1200), st.integers(0, len(good) - 1)))
            if kind == "flips":
                changed[at] ^= 1 << data.draw(st.integers(0, 7))
            else:
                piece = data.draw(st.binary(max_size=40))
                changed[at : at + len(piece)] = piece
        made = bytes(changed)
    world.file.write_bytes(made)
    load_anything(world, weights, is_whole=True)


FIELDS = ["name", "format", "rows", "cols", "interleaved", "lossless", "offset", "nbytes", "sums"]
VALUES = st.one_of(
    st.integers(),
    st.integers(-1, 1 << 17),
    st.sampled_from([0, 1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1, 4096, 8192, 4096 * 6]),
    st.booleans(),
    st.none(),
    st.text(max_size=40),
    st.sampled_from(["f32", "f16", "bf16", "w8", "w4", "file", "a", "c", "b vocabulary"]),
    st.lists(st.integers(), max_size=3),
    st.floats(),
)


@given(
    changes=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(FIELDS), VALUES), min_size=1, max_size=4),
    top=st.dictionaries(
        st.sampled_from(["packing", "model", "size", "matrices", "more"]), VALUES, max_size=1
    ),
    sums_again=st.booleans(),
)
@ANY
def test_headers_that_lie_with_good_checksums(
    fuzzed: tuple[World, bytes],
    weights: dict[str, native.Weight],
    changes: list[tuple[int, str, Any]],
    top: dict[str, Any],
    sums_again: bool,
) -> None:
    world, good = fuzzed
    world.file.write_bytes(good)

    def change(header: dict[str, Any]) -> None:
        for index, field, value in changes:
            header["matrices"][index][field] = value
        for entry in header["matrices"] if sums_again else ():
            offset, count = entry["offset"], entry["nbytes"]
            if type(offset) is int and type(count) is int and 0 <= offset <= len(good) and count > 0:
                entry["sums"] = xxhash.xxh3_64_hexdigest(good[offset : offset + count])
        header.update(top)

    rewrite(world.file, change)
    load_anything(world, weights, is_whole=False)


# ---- writing ------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(world: World, weights: dict[str, native.Weight]) -> None:
    names = ["file", "w8", "bf16", "w4"]
    paths = {}
    for age, name in enumerate(names[:3]):
        cache = world.keep(weights, form=name)
        paths[name] = cache._path
        os.utime(cache._path, (1000 + age, 1000 + age))
    (world.folder / "notes.txt").write_text("not ours")
    size = os.stat(paths["w8"]).st_size
    found = world.cache("file").load(1)  # used now, though it is the oldest
    assert found is not None
    world.max_bytes = 3 * size + 8192
    world.keep(weights)
    assert not paths["w8"].exists()
    assert paths["file"].exists() and paths["bf16"].exists() and world.cache().load(1) is not None
    assert (world.folder / "notes.txt").exists()
    assert same(found, weights)


def test_what_is_larger_than_the_cap_is_not_kept(world: World, weights: dict[str, native.Weight]) -> None:
    world.max_bytes = 10_000
    cache = world.keep(weights)
    assert (
        "not kept: it takes" in cache.row()[2] and "--pack-cache-bytes allows 10,000 bytes" in cache.row()[2]
    )
    assert not world.folder.exists()


def test_a_full_disk_is_one_line(
    world: World,
    weights: dict[str, native.Weight],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pack_cache, "FREE_BYTES", 1 << 60)
        assert "on the disk" in world.keep(weights).row()[2]
    written = 0

    def full(fd: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += 1
        if written > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return 0 if written == 2 else len(data)

    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        cache = world.keep(weights)
    assert cache.row()[2].endswith("not kept: No space left on device")
    assert len(caplog.messages) == 1 and world.files == []
    world.keep(weights)
    assert same(world.cache().load(1), weights)


def test_a_folder_that_cannot_be_is_one_line(
    world: World, weights: dict[str, native.Weight], caplog: pytest.LogCaptureFixture
) -> None:
    world.folder.write_text("a file")
    cache = world.keep(weights)
    assert cache.row()[1] == "miss" and "not kept: " in cache.row()[2]
    assert len([m for m in caplog.messages if "not kept" in m]) == 1


def test_a_read_only_folder_is_used_but_not_filled(
    world: World, weights: dict[str, native.Weight], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.keep(weights)

    def refused(*args: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    assert same(world.cache().load(1), weights)
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *a: refused() if flags & os.O_CREAT else real(path, flags, *a)
    )
    cache = world.keep(weights, form="w8")
    assert "not kept: Read-only file system" in cache.row()[2]


def test_disk_errors_while_reading(
    world: World, weights: dict[str, native.Weight], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.keep(weights)

    def broken(*args: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    assert "cannot be read (Input/output error)" in world.missed().row()[2]


def test_a_model_written_a_moment_ago_is_not_kept(
    world: World, weights: dict[str, native.Weight], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "SETTLED_S", 1e6)
    assert "may still change" in world.keep(weights).row()[2]


def test_a_model_that_changes_while_it_is_packed_is_not_kept(
    world: World, weights: dict[str, native.Weight]
) -> None:
    cache = world.missed()
    world.model.write_bytes(b"\2" * 64)
    cache.keep(weights)
    assert "have changed since" in cache.row()[2]


def test_one_of_two_writers_writes(world: World, weights: dict[str, native.Weight]) -> None:
    first, second = world.missed(), world.missed()
    world.folder.mkdir()
    fd = first._take_lock()
    second.keep(weights)
    assert "another process is writing it" in second.row()[2]
    first._write(fd, weights, 1)
    assert same(world.cache().load(1), weights)
    assert len(world.files) == 1


def test_a_lock_that_comes_too_late_touches_nothing(
    world: World, weights: dict[str, native.Weight], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was finished and renamed between another's open and its lock."""
    first, second = world.missed(), world.missed()
    world.folder.mkdir()
    fd = first._take_lock()
    real = fcntl.flock

    def late(other: int, how: int) -> None:
        first._write(fd, weights, 1)
        real(other, how)

    monkeypatch.setattr(fcntl, "flock", late)
    second.keep(weights)
    assert "another process has written it" in second.row()[2]
    assert same(world.cache().load(1), weights)


def test_what_killed_writers_left_is_taken_over_or_removed(
    world: World, weights: dict[str, native.Weight]
) -> None:
    world.folder.mkdir()
    cache = world.missed()
    cache._new.write_bytes(b"half" * 10_000)
    other = world.folder / ("0" * 32 + ".pack.new")
    busy = world.folder / ("1" * 32 + ".pack.new")
    other.write_bytes(b"x")
    busy.write_bytes(b"x")
    with open(busy, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache.keep(weights)
        cache.wait()
        assert same(world.cache().load(1), weights)
        assert not other.exists() and not cache._new.exists() and busy.exists()


def test_many_at_once(world: World, weights: dict[str, native.Weight]) -> None:
    """Readers see nothing or all of it, whoever writes."""
    failures: list[BaseException] = []

    def start() -> None:
        try:
            for _ in range(10):
                cache = world.cache()
                found = cache.load(1)
                if found is None:
                    assert "no packed form" in cache.row()[2]
                    cache.keep(weights)
                    cache.wait()
                else:
                    same(found, weights)
                    os.unlink(cache._path)
        except FileNotFoundError:
            pass  # unlinked by another one
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
