"""One loader for flags, YAML and keywords: a value means the same wherever it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.serve import parser
from octavo.config.asked import TOPICS, Asked, options
from octavo.config.known import refused_flags, why_refused
from octavo.config.load import asked_from, from_keywords, parse, shown_default
from octavo.errors import ConfigError


def serve(*argv: str) -> Asked:
    return parse(parser(), argv, tuple(TOPICS))[0]


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        serve(*argv)
    return str(caught.value)


def test_nothing_given_is_all_defaults() -> None:
    assert serve() == Asked()


def test_values_reach_their_fields() -> None:
    asked = serve(
        "model.gguf", "--max-model-len", "8k", "--port=9000", "--api-key", "a", "b", "-O1", "--dtype", "float32",
        "--no-enable-prefix-caching", "--watermark", "0.1", "--default-chat-template-kwargs", '{"x": 1}',
    )  # fmt: skip
    assert asked.model.model == "model.gguf"
    assert asked.model.max_model_len == 8000
    assert asked.model.optimization_level == 1
    assert asked.model.dtype == "float32"
    assert asked.cache.enable_prefix_caching is False
    assert asked.scheduler.watermark == 0.1
    assert asked.server.port == 9000
    assert asked.server.api_key == ("a", "b")
    assert asked.server.default_chat_template_kwargs == {"x": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1024", 1024), ("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 2**20), ("2g", 2 * 10**9),
        ("4G", 4 * 2**30),
    ],
)  # fmt: skip
def test_integers_take_suffixes(text: str, value: int) -> None:
    assert serve("--kv-cache-memory-bytes", text).cache.kv_cache_memory_bytes == value


@pytest.mark.parametrize("text", ["auto", "-1", "AUTO"])
def test_auto_is_minus_one(text: str) -> None:
    assert serve(f"--max-model-len={text}").model.max_model_len == -1


def test_underscores_are_dashes() -> None:
    assert serve("--max_model_len", "100") == serve("--max-model-len", "100")
    assert serve("--no_async_scheduling").scheduler.async_scheduling is False


def test_value_with_underscores_is_kept() -> None:
    assert serve("--api-key=my_key").server.api_key == ("my_key",)


def test_none_means_unset() -> None:
    assert serve("--quantization", "none").model.quantization == "none"
    assert serve("--revision", "None").model.revision is None


def test_list_may_be_json() -> None:
    assert serve("--allowed-origins", '["a", "b"]').server.allowed_origins == ("a", "b")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--port", "99999"], ["99999", "<= 65535"]),
        (["--port", "web"], ["web", "whole number"]),
        (["--watermark", "1"], ["--watermark", "< 1"]),
        (["--max-step-ms", "-1"], ["--max-step-ms", ">= 0"]),
        (["--max-step-ms", "nan"], ["--max-step-ms"]),
        (["--dtype", "bflot16"], ["bflot16", "did you mean bfloat16"]),
        (["--max-modl-len", "1"], ["--max-modl-len", "did you mean --max-model-len"]),
        (
            ["--bogus"],
            ["--bogus is not an option", "--help` lists them all"],
        ),  # not --uds, which shares dashes
        (["--block-size", "17"], ["17", "multiple of 16"]),
        (["-tp", "2"], ["--tensor-parallel-size is 2", "1"]),
        (["--api-server-count", "65"], ["api-server-count", "64"]),
        (["a", "b"], ["'b'", "too many"]),
        (["a", "--model", "b"], ["given twice"]),
        (["--enforce-eager", "-O2"], ["-O0", "-O2"]),
        (["--uds", "/s", "--port", "1"], ["--uds"]),
        (["--allow-credentials"], ["--allowed-origins"]),
        (["--kv-cache-memory-bytes", "1g", "--num-gpu-blocks-override", "3"], ["leave one of them out"]),
        (["--override-generation-config", "[1]"], ["--override-generation-config", "JSON object"]),
        (["--port"], ["--port", "expected"]),
    ],
)
def test_refusals_say_what_is_allowed(argv: list[str], words: list[str]) -> None:
    message = refusal(*argv)
    for word in words:
        assert word in message
    assert "\n" not in message


def test_a_bad_api_key_is_never_printed() -> None:
    with pytest.raises(ConfigError) as caught:
        asked_from({"api_key": {"secret": 1}})
    assert "secret" not in str(caught.value)


def test_every_known_flag_of_vllm_is_refused_with_its_reason() -> None:
    flags = refused_flags()
    assert len(flags) > 250
    for flag, reason in flags.items():
        message = refusal(flag)
        assert flag in message
        assert reason in message


def test_twins_and_dotted_keys_of_refused_flags_are_known_too() -> None:
    assert why_refused("--no-enable-lora") == why_refused("--enable-lora")
    assert why_refused("--speculative-config.method") is not None
    assert why_refused("--max-model-len") is None


def test_no_flag_both_acts_and_is_refused() -> None:
    acting = {spelling for o in options().values() for spelling in o.spellings}
    assert not acting & set(refused_flags())


def test_names_and_spellings_are_unique() -> None:
    spellings = [s for o in options().values() for s in o.spellings]
    assert len(spellings) == len(set(spellings))
    assert sum(len(options((topic,))) for topic in TOPICS) == len(options())


@pytest.mark.parametrize("option", options().values(), ids=lambda o: o.name)
def test_every_option_is_documented(option: Any) -> None:
    assert option.doc.text.endswith((".", "}."))
    assert shown_default(option)


# ---- YAML -------------------------------------------------------------------------------------------


def yaml_file(folder: Path, text: str) -> str:
    path = folder / "serve.yaml"
    path.write_text(text)
    return str(path)


def test_yaml_means_what_flags_mean(tmp_path: Path) -> None:
    path = yaml_file(
        tmp_path,
        "model: m.gguf\nmax-model-len: 8K\nmax_num_seqs: 4\nenable-prefix-caching: false\n"
        "api-key: [a, b]\noverride-generation-config: {temperature: 0.5}\n",
    )
    flags = ["m.gguf", "--max-model-len", "8K", "--max-num-seqs", "4", "--no-enable-prefix-caching"]
    flags += ["--api-key", "a", "b", "--override-generation-config", '{"temperature": 0.5}']
    assert serve("--config", path) == serve(*flags)


def test_the_command_line_wins_over_yaml(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "port: 1\nseed: 7\nmodel: other\n")
    asked = serve("mine", "--config", path, "--port", "2")
    assert (asked.server.port, asked.model.seed, asked.model.model) == (2, 7, "mine")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot: 1", "did you mean --port"),
        ("enable-lora: true", "LoRA"),
        ("- 1", "mapping"),
        ("a: [", "not YAML"),
        ("port: true", "whole number"),
        ("max-num-seqs: 4\nmax_num_seqs: 5", "twice"),
    ],
)
def test_yaml_faults_are_named(tmp_path: Path, text: str, word: str) -> None:
    assert word in refusal("--config", yaml_file(tmp_path, text))


def test_missing_config_file_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refusal("--config", str(tmp_path / "none.yaml"))
    assert ".yaml" in refusal("--config", "flags.json")


# ---- keywords ---------------------------------------------------------------------------------------


def test_keywords_mean_what_flags_mean() -> None:
    asked = from_keywords("m", {"max_model_len": 512, "enable_prefix_caching": False, "dtype": "float32"})
    assert asked == serve("m", "--max-model-len", "512", "--no-enable-prefix-caching", "--dtype", "float32")


@pytest.mark.parametrize(
    ("keyword", "word"),
    [
        ("gpu_memory_utilization", "kv-cache-memory-bytes"),
        ("max_modl_len", "max_model_len"),
        ("port", "not an option"),
    ],
)
def test_keyword_faults_are_named(keyword: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        from_keywords("m", {keyword: 1})


@given(st.integers(min_value=0, max_value=2**62))
def test_any_integer_survives_text(value: int) -> None:
    assert asked_from({"seed": str(value)}).model.seed == value


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    for name in ("port", "watermark", "dtype", "override_generation_config", "enable_prefix_caching"):
        try:
            asked_from({name: text})
        except ConfigError as error:
            assert error.fix


# ---- errors name the place in its own terms ---------------------------------------------------------


def test_no_context_at_all_is_refused_as_the_help_says() -> None:
    text = refusal("--max-model-len", "0")
    assert "--max-model-len is '0'" in text
    assert ">= 1 or auto" in text


def test_a_bad_keyword_is_named_as_a_keyword() -> None:
    with pytest.raises(ConfigError, match=r"LLM: max_model_len is -7"):
        from_keywords("m", {"max_model_len": -7})


def test_a_bad_value_of_a_file_names_the_file(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, "port: abc\n")
    assert refusal("--config", path).startswith(f"{path}: --port is 'abc'")
    assert serve("--config", path, "--port", "1").server.port == 1
    assert refusal("--config", path, "--port", "x").startswith("--port is 'x'")


def test_a_broken_file_is_one_line_with_its_place(tmp_path: Path) -> None:
    text = refusal("--config", yaml_file(tmp_path, "port: [1,\n  foo: bar: x\n"))
    assert "line 2, column 11" in text
    assert "^" not in text


def test_hints_name_the_command_that_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_COMMAND", raising=False)
    assert "`octavo serve --help`" in refusal("--zzz")
    monkeypatch.setenv("OCTAVO_COMMAND", "./run octavo")
    assert "`./run octavo serve --help`" in refusal("--zzz")


@pytest.mark.parametrize("text", ["port: 1\nport: 2\n", 'port: 1\nseed: 3\n"port": 1\n'])
def test_a_key_that_a_file_gives_twice_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    """PyYAML keeps the last of them and says nothing."""
    refused = refusal("--config", yaml_file(tmp_path, text))
    assert "port is given twice" in refused
    assert f"line {text.count(chr(10))}," in refused


def test_a_key_that_json_gives_twice_is_refused() -> None:
    text = refusal("--override-generation-config", '{"temperature": 1, "temperature": 0}')
    assert "'temperature' is given twice" in text
    nested = refusal("--default-chat-template-kwargs", '{"a": {"b": 1, "b": 2}}')
    assert "'b' is given twice" in nested


def test_merge_keys_of_yaml_still_work(tmp_path: Path) -> None:
    text = "default_chat_template_kwargs: {<<: {a: 1}, b: 2}\n"
    asked = serve("--config", yaml_file(tmp_path, text))
    assert asked.server.default_chat_template_kwargs == {"a": 1, "b": 2}


@pytest.mark.parametrize("name", ["", " ", " m", "m\n", "a\nb", "\x1b[2J", "\u202em"])
def test_names_that_no_client_could_send_are_refused(name: str) -> None:
    assert "--served-model-name has the name" in refusal("--served-model-name", "ok", name)
    assert serve("--served-model-name", "a b", "org/m").model.served_model_name == ("a b", "org/m")
