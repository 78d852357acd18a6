"""Settings made to hurt: one line that names the cause, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.api.limits import Limits
from octavo.api.sampling import SamplingDefaults
from octavo.api.template_pool import TemplatePool
from octavo.config.load import read_yaml
from octavo.errors import ConfigError


@pytest.mark.parametrize("content", [b"\xff\xfe\x00port: 1", b"port: " + b"[" * 100_000])
def test_a_config_file_that_is_no_text(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not YAML"):
        read_yaml(str(path), ("server",))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"eos_token_id": [[1]]}, "eos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"top_k": float("inf")}, "top_k"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_new_tokens": -3}, "max_tokens"),
    ],
)
def test_defaults_that_no_request_could_have(given: dict[str, Any], named: str) -> None:
    """Before, some were a traceback at start, some were dropped, and some made every request a 400."""
    with pytest.raises(ConfigError, match=named):
        SamplingDefaults.read(given)


def test_ordinary_defaults() -> None:
    given = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": None,
        "eos_token_id": [1, 2],
        "do_sample": True,
        "max_new_tokens": 64,
    }
    defaults = SamplingDefaults.read(given)
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.7, 20, 1.0)
    assert (defaults.eos_token_ids, defaults.max_new_tokens) == ((1, 2), 64)


def test_a_template_worker_that_was_killed_at_rest_is_replaced() -> None:
    pool = TemplatePool(Limits(template_workers=1))
    job = {"kind": "render", "template": "{{ x }}", "variables": {"x": "a"}}
    try:
        assert pool.run(job) == "a"
        pool._idle[0]._process.kill()
        pool._idle[0]._process.wait()
        assert pool.run(job) == "a"
    finally:
        pool.close()
