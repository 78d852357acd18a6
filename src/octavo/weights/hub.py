"""Models of the Hugging Face Hub, in the Hub's own cache, which other programs share.

Downloads through huggingface_hub, imported only then; finds what is there by the layout of the cache.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from octavo import env
from octavo.errors import WeightError
from octavo.registry import HubSource

PATTERNS = ("*.json", "*.jinja", "*.safetensors", "tokenizer.model", "*.txt")


def _hub_cache(download_dir: str | None) -> Path:
    """Where huggingface_hub keeps repositories, by its own variables."""
    if download_dir:
        return Path(download_dir)
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "huggingface" / "hub"


def locate_hub(source: HubSource, download_dir: str | None) -> str | None:
    """A snapshot in the Hub's cache: refs/<revision> names the commit, snapshots/<commit> holds the files."""
    repo = _hub_cache(download_dir) / f"models--{source.repo.replace('/', '--')}"
    commit = source.revision
    reference = repo / "refs" / source.revision
    if reference.is_file():
        commit = reference.read_text(encoding="utf-8", errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        return None
    path = repo / "snapshots" / commit / source.file if source.file else repo / "snapshots" / commit
    return str(path) if path.exists() else None


def fetch_hub(source: HubSource, download_dir: str | None, token: str | None) -> str:
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise WeightError(
            "hf: models need the package huggingface_hub", fix="pip install huggingface_hub"
        ) from None
    token = token or env.hf_token()
    print(f"octavo: fetching {source.repo} at {source.revision} from the Hub", file=sys.stderr, flush=True)
    try:
        file = source.file
        if not file:
            file = _only_gguf(
                source, HfApi(token=token).list_repo_files(source.repo, revision=source.revision)
            )
        folder = snapshot_download(
            source.repo,
            revision=source.revision,
            cache_dir=str(_hub_cache(download_dir)),
            allow_patterns=[file] if file else list(PATTERNS),
            token=token,
        )
    except WeightError:
        raise
    except Exception as error:  # the package raises its own, httpx's, requests' and the system's errors
        raise _hub_error(source, error) from None
    path = os.path.join(folder, file) if file else folder
    if not os.path.exists(path):
        raise WeightError(f"{source.repo} has no file {file!r}", fix="look at the repository's list of files")
    return path


def _only_gguf(source: HubSource, files: list[str]) -> str:
    """ "" when the repository holds safetensors, else its one GGUF file."""
    if any(file.endswith(".safetensors") for file in files):
        return ""
    ggufs = [file for file in files if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs[0]
    raise WeightError(
        f"{source.repo} holds {len(ggufs)} .gguf files and no .safetensors",
        fix=f"name one: hf:{source.repo}#{ggufs[0]}; there are {', '.join(ggufs[:20])}"
        if ggufs
        else "use another one",
    )


def _hub_error(source: HubSource, error: Exception) -> WeightError:
    kind = type(error).__name__
    fixes = {
        "GatedRepoError": "accept its terms on the Hub and give a token (--hf-token or HF_TOKEN)",
        "RepositoryNotFoundError": "check the name; a private repository needs a token (--hf-token or HF_TOKEN)",
        "RevisionNotFoundError": "check the revision",
        "OfflineModeIsEnabled": "unset HF_HUB_OFFLINE",
    }
    first_line = (str(error).strip().splitlines() or [kind])[0][:300]
    return WeightError(
        f"cannot fetch {source.repo} ({source.revision}): {first_line}",
        fix=fixes.get(kind, "check the network; a copy that was fetched elsewhere can be named by its path"),
    )
