"""--kv-events-config: its forms, its keys, and what cannot act."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config.asked import TOPICS, Asked
from octavo.config.kv_events import KVEventsPlan, kv_events_plan
from octavo.config.load import Parser, add_options, parse
from octavo.errors import ConfigError

ON = {"enable_kv_cache_events": True}


def serve(*argv: str) -> Asked:
    parser = Parser(prog="octavo serve", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    add_options(parser, tuple(TOPICS))
    return parse(parser, argv, tuple(TOPICS))[0]


def plan(given: dict[str, Any], *, has_prefix_cache: bool = True) -> KVEventsPlan:
    return kv_events_plan(given, has_prefix_cache=has_prefix_cache)


def test_off_unless_asked_for() -> None:
    for given in (
        {},
        {"enable_kv_cache_events": False, "endpoint": "tcp://*:1"},
        {**ON, "publisher": "null"},
    ):
        assert plan(given) == KVEventsPlan() and not plan(given).is_on


def test_on_it_is_at_loopback_unless_another_address_is_given() -> None:
    assert plan(ON) == KVEventsPlan(publisher="zmq")
    assert plan(ON).endpoint == "tcp://127.0.0.1:5557" and plan(ON).replay_endpoint == ""
    given = {**ON, "endpoint": "tcp://*:9", "replay_endpoint": "ipc:///tmp/x", "topic": "t", "hwm": 5}
    made = plan(given)
    assert (made.endpoint, made.replay_endpoint, made.topic, made.hwm) == (
        "tcp://*:9",
        "ipc:///tmp/x",
        "t",
        5,
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**ON, "port": 5}, "unknown field `port`"),
        ({**ON, "publisher": "kafka"}, "kafka"),
        ({**ON, "buffer_steps": -1}, "buffer_steps"),
        ({**ON, "max_queue_size": 0}, "max_queue_size"),
        ({**ON, "endpoint": "127.0.0.1:5557"}, "must begin with tcp://"),
        ({**ON, "replay_endpoint": "http://x"}, "replay_endpoint"),
        ({"enable_kv_cache_events": "yes"}, "enable_kv_cache_events"),
        ({"publisher": "zmq"}, "cannot act without enable_kv_cache_events"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plan(given)
    assert "--kv-events-config" in str(caught.value) and caught.value.fix


def test_without_a_prefix_cache_there_is_nothing_to_tell() -> None:
    with pytest.raises(ConfigError, match="--no-enable-prefix-caching"):
        plan(ON, has_prefix_cache=False)
    assert not plan({}, has_prefix_cache=False).is_on


def test_json_and_keys_and_yaml_are_one(tmp_path: Path) -> None:
    want = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:7", "hwm": 3}
    path = tmp_path / "flags.yaml"
    path.write_text(
        "kv-events-config:\n  enable_kv_cache_events: true\n  endpoint: tcp://127.0.0.1:7\n  hwm: 3\n"
    )
    flag = "--kv-events-config"
    for argv in (
        [flag, '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:7", "hwm": 3}'],
        [f"{flag}.enable_kv_cache_events", "true", f"{flag}.endpoint=tcp://127.0.0.1:7", f"{flag}.hwm", "3"],
        ["--kv_events_config.hwm=3", flag, '{"enable_kv_cache_events": true, "endpoint": "x", "hwm": 9}',
         f"{flag}.endpoint", "tcp://127.0.0.1:7"],
        ["--config", str(path)],
    ):  # fmt: skip
        assert serve(*argv).cache.kv_events_config == want, argv


def test_keys_of_other_flags_that_take_json_work_too() -> None:
    asked = serve(
        "--override-generation-config.temperature", "0.5", "--default-chat-template-kwargs.a.b", "x"
    )
    assert asked.model.override_generation_config == {"temperature": 0.5}
    assert asked.server.default_chat_template_kwargs == {"a": {"b": "x"}}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--kv-events-config.hwm"], "has no value"),
        (["--kv-events-config..x", "1"], "has no key"),
        (["--kv-events-config.a", "1", "--kv-events-config.a.b", "1"], "goes through a"),
        (["--kv-events-config", "[1]", "--kv-events-config.hwm", "1"], "a JSON object"),
        (["--max-model-len.x", "1"], "not an option"),
    ],
)
def test_subkeys_that_make_no_sense(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        serve(*argv)
    assert words in f"{caught.value} {caught.value.fix}"
