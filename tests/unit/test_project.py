"""The project itself: documents lead to files that exist, the run script parses, nothing names a machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import octavo

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#]+)\)")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_documents_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_the_walkthrough_takes_at_most_twelve_files_and_all_exist() -> None:
    text = (ROOT / "docs/walkthrough.md").read_text(encoding="utf-8")
    files = [link for link in LINK.findall(text) if link.startswith("../")]
    assert 0 < len(files) <= 12
    assert len(files) == len(set(files))


def test_invariants_name_tests_that_exist() -> None:
    text = (ROOT / "docs/invariants.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(tests/[^`]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("script", ["run", ".ci/run"])
def test_scripts_are_executable_bash(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_run_has_help() -> None:
    shown = subprocess.run([str(ROOT / "run"), "--help"], capture_output=True, text=True, check=True).stdout
    for command in ("setup", "serve", "test", "check", "bench", "docs"):
        assert f"\n  {command}" in shown


def test_run_refuses_what_it_does_not_know() -> None:
    got = subprocess.run([str(ROOT / "run"), "sevre"], capture_output=True, text=True, check=False)
    assert got.returncode == 1
    assert "sevre" in got.stderr


def test_readme_shows_the_two_commands_and_fits_on_a_few_screens() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    text = "\n".join(lines)
    assert text.index("./run serve") < text.index("./run test") < text.index("curl")
    assert len(lines) < 90


def test_base_dependencies_are_few_and_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[><=;\s]", d)[0] for d in project["dependencies"]}
    assert names == {
        "numpy", "msgspec", "pyzmq", "pydantic", "starlette", "uvicorn", "uvloop", "httptools", "tokenizers", "jinja2",
        "huggingface_hub", "pyyaml", "tqdm", "xxhash", "cbor2",
        "llguidance", "jsonschema", "prometheus-client",
    }  # fmt: skip
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_every_document_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in sorted((ROOT / "docs").glob("*.md")) if f"(docs/{p.name})" not in text] == []


def test_the_public_surface_is_what_it_says() -> None:
    assert sorted(octavo.__all__) == [
        "BeamSearchParams",
        "LLM",
        "RepetitionDetectionParams",
        "SamplingParams",
        "StructuredOutputsParams",
        "__version__",
    ]
    for name in octavo.__all__:
        assert getattr(octavo, name)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = octavo.Nothing


def test_no_source_names_one_machine() -> None:
    pattern = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|home|tmp)/")
    for folder in ("src", "csrc", "docs", "benchmarks", "examples"):
        for path in (ROOT / folder).glob("**/*"):
            if path.suffix in (".py", ".md", ".cpp", ".h", ".txt"):
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                    assert not pattern.search(line), f"{path}:{number}: {line}"
