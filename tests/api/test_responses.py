"""/v1/responses in process: shapes, order of events, what is stored, what is refused and how."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.api_world import World, world
from tests.fakes.response_events import check_response, fold, plain, read_events, types
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def prompt_of(w: World, index: int = -1) -> str:
    return w.engine.codec.decode(w.engine.seen[index].prompt, skip_special_tokens=False)


async def respond(w: World, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await w.post("/v1/responses", body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_bb_125_an_answer_cut_by_max_output_tokens_is_incomplete() -> None:
    async with world("Four is the answer.") as w:
        body = {"input": "What is 2+2?", "max_output_tokens": 1}
        response = await respond(w, body)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == 1
        assert response["output"][0]["status"] == "incomplete"
        events = read_events((await w.post("/v1/responses", {**body, "stream": True})).text)
        assert types(events)[-1] == "incomplete"
        assert plain(fold(events)) == plain(response)


async def test_every_field_of_an_answer_and_of_its_stream() -> None:
    body = {
        "model": "toy",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "metadata": {"topic": "greeting"},
        "max_output_tokens": 20,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "text": {"format": {"type": "text"}},
        "truncation": "auto",
        "parallel_tool_calls": False,
    }
    async with world("Hello world", num_cached=4) as w:
        response = await respond(w, body)
        check_response(response)
        assert prompt_of(w) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        params = w.engine.seen[0].params
        assert (params.temperature, params.top_p, params.seed, w.engine.seen[0].max_tokens) == (
            0.5,
            0.9,
            3,
            20,
        )
        for name in ("temperature", "top_p", "metadata", "instructions", "top_logprobs", "truncation"):
            assert response[name] == body[name]
        assert response["parallel_tool_calls"] is False
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
        (part,) = response["output"][0]["content"]
        assert [entry["token"] for entry in part["logprobs"]] == ["Hello", " world"]
        assert len(part["logprobs"][0]["top_logprobs"]) == 2
        events = read_events((await w.post("/v1/responses", {**body, "stream": True})).text)
        assert plain(fold(events)) == plain(response)
        assert (
            types(events)
            == "created in_progress output_item.added content_part.added output_text.delta output_text.delta "
            "output_text.done content_part.done output_item.done completed".split()
        )


async def test_a_call_its_output_and_the_answer() -> None:
    def script(request: EngineRequest) -> list[int]:
        codec = ToyCodec()
        said = codec.decode(request.prompt, skip_special_tokens=False)
        is_told = said.endswith("3<|im_end|>\n<|im_start|>assistant\n")
        return codec.encode("It is 3." if is_told else CALL, False)

    async with world(script) as w:
        body: dict[str, Any] = {"input": [{"role": "user", "content": "1 + 2?"}], "tools": [ADD]}
        first = await respond(w, body)
        (call,) = first["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": 1, "b": 2}')
        check_response(first)
        events = read_events((await w.post("/v1/responses", {**body, "stream": True})).text)
        names = types(events)
        assert names[2] == "output_item.added"
        assert set(names[3:-3]) == {"function_call_arguments.delta"}
        assert names[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
        folded = fold(events)
        assert folded["output"][0]["arguments"] == call["arguments"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
        resent = [*body["input"], call, output]
        assert (await respond(w, {"input": resent, "tools": [ADD]}))["output"][0]["content"][0][
            "text"
        ] == "It is 3."
        by_hand = prompt_of(w)
        chained = await respond(w, {"previous_response_id": first["id"], "input": [output], "tools": [ADD]})
        assert chained["output"][0]["content"][0]["text"] == "It is 3."
        assert prompt_of(w) == by_hand
        assert chained["previous_response_id"] == first["id"]


async def test_bb_038_two_calls_in_a_stream_are_two_items() -> None:
    for group in (1, 50):
        async with world(CALL + CALL.replace("1", "7"), group=group) as w:
            answer = await w.post("/v1/responses", {"input": "x", "tools": [ADD], "stream": True})
            output = fold(read_events(answer.text))["output"]
            assert [item["arguments"] for item in output] == ['{"a": 1, "b": 2}', '{"a": 7, "b": 2}']
            assert output[0]["call_id"] != output[1]["call_id"]


async def test_thinking_is_an_item_of_its_own() -> None:
    body: dict[str, Any] = {
        "input": "x",
        "include": ["message.output_text.logprobs"],
        "reasoning": {"effort": "low"},
    }
    async with world("<think>ABC</think>ok", server={"reasoning_parser": "deepseek_r1"}) as w:
        response = await respond(w, body)
        thought, message = response["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "ABC"}]
        assert message["content"][0]["text"] == "ok"
        assert "".join(e["token"] for e in message["content"][0]["logprobs"]) == "ok"
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert response["reasoning"] == {"effort": "low", "summary": None}
        events = read_events((await w.post("/v1/responses", {**body, "stream": True})).text)
        assert "reasoning_text.delta" in types(events)
        assert plain(fold(events)) == plain(response)
        hidden = await respond(w, {**body, "include_reasoning": False})
        assert [item["type"] for item in hidden["output"]] == ["message"]
        again = [{"role": "user", "content": "x"}, thought, message, {"role": "user", "content": "y"}]
        await respond(w, {"input": again})


# ---- what is stored -------------------------------------------------------------------------------


async def test_a_conversation_by_previous_response_id() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": "one", "instructions": "A."})
        second = await respond(w, {"input": "two", "previous_response_id": first["id"], "instructions": "B."})
        third = await respond(w, {"input": "three", "previous_response_id": second["id"], "store": False})
        assert prompt_of(w, 1).count("<|im_start|>") == 5
        assert prompt_of(w) == (
            "<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n"
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
            "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
            "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
        )
        got = await w.http.get(f"/v1/responses/{second['id']}")
        assert got.json() == second
        assert (await w.http.get(f"/v1/responses/{third['id']}")).status_code == 404
        missing = await respond(w, {"input": "four", "previous_response_id": third["id"]}, 404)
        assert third["id"] in missing["error"]["message"]
        assert missing["error"]["param"] == "previous_response_id"
        assert missing["error"]["type"] == "NotFoundError"


async def test_a_streamed_answer_can_be_continued_at_once() -> None:
    async with world("ok") as w:
        events = read_events((await w.post("/v1/responses", {"input": "one", "stream": True})).text)
        response_id = events[-1]["response"]["id"]
        assert (await w.http.get(f"/v1/responses/{response_id}")).json() == events[-1]["response"]
        await respond(w, {"input": "two", "previous_response_id": response_id})


async def test_input_items_are_paged() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": "one"})
        second = await respond(
            w, {"input": [{"role": "user", "content": "two"}], "previous_response_id": first["id"]}
        )
        base = f"/v1/responses/{second['id']}/input_items"
        page = (await w.http.get(base)).json()
        texts = [item["content"][0]["text"] for item in page["data"]]
        assert texts == ["two", "ok", "one"]
        assert (page["object"], page["has_more"]) == ("list", False)
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][2]["id"])
        asc = (await w.http.get(base, params={"order": "asc", "limit": 2})).json()
        assert [item["content"][0]["text"] for item in asc["data"]] == ["one", "ok"]
        assert asc["has_more"] is True
        rest = (await w.http.get(base, params={"order": "asc", "after": asc["last_id"]})).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == ["two"]
        for bad in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "x"}, {"page": 2}):
            answer = await w.http.get(base, params=bad)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(bad)))


async def test_items_by_reference() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": [{"role": "user", "content": "one", "id": "mine"}]})
        references = [
            {"type": "item_reference", "id": "mine"},
            {"id": first["output"][0]["id"]},
            {"role": "user", "content": "two"},
        ]
        await respond(w, {"input": references})
        assert "one<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n<|im_start|>user\ntwo" in prompt_of(w)
        gone = await respond(w, {"input": [{"id": "not-there"}]}, 404)
        assert gone["error"]["param"] == "input[0].id"
        assert "not-there" in gone["error"]["message"]


async def test_what_is_deleted_is_gone_and_what_continues_it_is_not() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": "one"})
        second = await respond(w, {"input": "two", "previous_response_id": first["id"]})
        answer = await w.http.delete(f"/v1/responses/{first['id']}")
        assert answer.json() == {"id": first["id"], "object": "response", "deleted": True}
        assert (await w.http.get(f"/v1/responses/{first['id']}")).status_code == 404
        assert (await w.http.delete(f"/v1/responses/{first['id']}")).status_code == 404
        await respond(w, {"input": "three", "previous_response_id": second["id"]})
        assert "one" in prompt_of(w)


async def test_one_key_never_sees_what_belongs_to_another() -> None:
    async with world("ok", server={"api_keys": ("a", "b")}) as w:
        mine, other = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
        first = (
            await w.post("/v1/responses", {"input": [{"role": "user", "content": "s", "id": "it"}]}, **mine)
        ).json()
        path = f"/v1/responses/{first['id']}"
        assert (await w.http.get(path, headers=mine)).status_code == 200
        for answer in (
            await w.http.get(path, headers=other),
            await w.http.get(f"{path}/input_items", headers=other),
            await w.http.post(f"{path}/cancel", headers=other),
            await w.http.delete(path, headers=other),
            await w.post("/v1/responses", {"input": "x", "previous_response_id": first["id"]}, **other),
            await w.post("/v1/responses", {"input": [{"id": "it"}]}, **other),
            await w.http.get("/v1/responses/resp_never", headers=other),
        ):
            assert answer.status_code == 404
        assert (await w.http.get(path, headers=mine)).status_code == 200
        same_id = {"X-Request-Id": "shared"}
        assert (await w.post("/v1/responses", {"input": "x"}, **mine, **same_id)).status_code == 200
        assert (await w.post("/v1/responses", {"input": "x"}, **other, **same_id)).status_code == 200


async def test_an_id_of_the_client_is_used_once() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": "x", "request_id": "mine"})
        assert first["id"] == "resp_mine"
        again = await respond(w, {"input": "x", "request_id": "mine"}, 400)
        assert again["error"]["param"] == "request_id"
        by_header = await w.post("/v1/responses", {"input": "x"}, **{"X-Request-Id": "mine"})
        assert by_header.json()["id"] != "resp_mine"
        assert "X-Request-Id" in by_header.json()["warnings"][0]
        assert (await w.http.get("/v1/responses/resp_mine")).json() == first


async def test_several_api_processes_store_nothing() -> None:
    async with world("ok", server={"api_server_count": 2}) as w:
        assert (await respond(w, {"input": "one"}))["store"] is False
        for body in ({"store": True}, {"background": True}, {"previous_response_id": "resp_a"}):
            refused = await w.post("/v1/responses", {"input": "x", **body})
            assert refused.json()["error"]["param"] == next(iter(body))
            assert "--api-server-count" in refused.json()["error"]["message"]


async def test_kept_items_hold_no_logprobs_but_the_response_does() -> None:
    async with world("ok") as w:
        first = await respond(w, {"input": "x", "include": ["message.output_text.logprobs"]})
        second = await respond(w, {"input": "y", "previous_response_id": first["id"]})
        items = (
            await w.http.get(f"/v1/responses/{second['id']}/input_items", params={"order": "asc"})
        ).json()["data"]
        assert items[1]["content"][0]["logprobs"] == []
        kept = await w.http.get(
            f"/v1/responses/{first['id']}", params={"include": "message.output_text.logprobs"}
        )
        assert kept.json()["output"][0]["content"][0]["logprobs"]


async def test_the_switch_that_stores_nothing() -> None:
    async with world("ok", server={"response_store_size": 0}) as w:
        response = await respond(w, {"input": "one"})
        assert response["store"] is False
        assert (await w.http.get(f"/v1/responses/{response['id']}")).status_code == 404
        for body, param in (
            ({"store": True}, "store"),
            ({"background": True}, "background"),
            ({"previous_response_id": response["id"]}, "previous_response_id"),
        ):
            refused = await w.post("/v1/responses", {"input": "x", **body})
            assert refused.json()["error"]["param"] == param
            assert "--response-store-size" in refused.json()["error"]["message"]


# ---- truncation -----------------------------------------------------------------------------------


async def test_truncation_drops_the_oldest_items_and_says_so() -> None:
    async with world("ok") as w:
        items = [{"role": "system", "content": "Rules."}]
        items += [
            {"role": r, "content": f"{i} " + "x" * 300} for i in range(10) for r in ("user", "assistant")
        ]
        items.append({"role": "user", "content": "last"})
        refused = await respond(w, {"input": items}, 400)
        assert "2048" in refused["error"]["message"]
        assert refused["error"]["param"] == "input" or refused["error"]["param"] == "prompt"
        response = await respond(w, {"input": items, "truncation": "auto", "max_output_tokens": 100})
        (note,) = response["warnings"]
        assert "dropped" in note
        prompt = prompt_of(w)
        assert "Rules." in prompt
        assert "last" in prompt
        assert "9 xx" in prompt
        assert "0 xx" not in prompt
        assert len(w.engine.seen[-1].prompt) + 100 <= 2048
        assert len(w.engine.seen[-1].prompt) + 100 + 320 > 2048, "no more than needed"
        free = await respond(w, {"input": items, "truncation": "auto"})
        assert free["usage"]["input_tokens"] <= 2048 - 512
        hopeless = await respond(w, {"input": "x" * 3000, "truncation": "auto"}, 400)
        assert "2048" in hopeless["error"]["message"]
        untouched = await respond(w, {"input": items[-3:], "truncation": "auto"})
        assert "warnings" not in untouched


async def test_truncation_keeps_a_call_with_its_output() -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": "x" * 900}]
    for i in range(6):
        items += [
            {"type": "function_call", "call_id": f"c{i}", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{i}", "output": f"{i}" * 300},
        ]
    async with world("ok") as w:
        await respond(w, {"input": items, "truncation": "auto", "max_output_tokens": 10})
        prompt = prompt_of(w)
        assert "5" * 300 in prompt
        assert "x" * 900 not in prompt


async def test_input_tokens_are_those_of_the_answer() -> None:
    async with world("ok") as w:
        body = {"input": "How many?", "instructions": "Count."}
        counted = (await w.post("/v1/responses/input_tokens", body)).json()
        assert w.engine.seen == []
        response = await respond(w, body)
        assert counted == {
            "object": "response.input_tokens",
            "input_tokens": response["usage"]["input_tokens"],
        }


# ---- faults ---------------------------------------------------------------------------------------


async def test_a_fault_before_the_first_token_is_an_http_error() -> None:
    for stream in (False, True):
        async with world(lambda _: [0], fail_at=0) as w:
            answer = await w.post("/v1/responses", {"input": "x", "stream": stream})
            assert answer.status_code == 500
            assert "0x7f" not in answer.text
            assert answer.json()["error"]["type"] == "InternalServerError"


async def test_a_fault_in_a_stream_ends_it_with_failed() -> None:
    async with world("Hello world ok ok", fail_at=3) as w:
        events = read_events((await w.post("/v1/responses", {"input": "x", "stream": True})).text)
        response = fold(events)
        assert types(events)[-1] == "failed"
        assert response["status"] == "failed"
        assert response["error"]["code"] == "server_error"
        assert "0x7f0123" not in response["error"]["message"]
        assert "/srv" not in response["error"]["message"]
        kept = (await w.http.get(f"/v1/responses/{response['id']}")).json()
        assert kept["status"] == "failed"
        refused = await respond(w, {"input": "y", "previous_response_id": response["id"]}, 400)
        assert refused["error"]["param"] == "previous_response_id"


USER = {"role": "user", "content": "x"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": [1]}, "input[0]"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"content": "x"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "reasoning", "summary": [{"text": 1}]}]}, "input[0].summary[0]"),
    ({"input": [USER | {"id": 5}]}, "input[0].id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
    ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [ADD], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "sub"}]}},
     "tool_choice.tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "what"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "text.format"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"response_format": {"type": "text"}}, "response_format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 5000}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"truncation": "some"}, "truncation"),
    ({"request_id": "a/b"}, "request_id"),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
    ({"model": "gone"}, "model"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
async def test_what_cannot_act_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    if param != "input" or body:
        body = {"input": "x", **body}
    async with world() as w:
        answer = await w.post("/v1/responses", body)
        assert answer.status_code == (404 if param == "model" else 400), answer.text
        assert answer.json()["error"]["param"] == param
        assert w.engine.seen == []


async def test_an_unsupported_image_tells_no_address() -> None:
    """BB-124."""
    item = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}
    async with world() as w:
        error = (await respond(w, {"input": [item]}, 400))["error"]
        assert error["param"] == "input[0].content[0].type"
        assert "input_image" in error["message"]
        assert "0x" not in error["message"]


INERT: list[tuple[dict[str, Any], str]] = [
    ({"user": "u"}, "user"),
    ({"safety_identifier": "u"}, "safety_identifier"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"prompt_cache_key": "k"}, "prompt_cache_key"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"wibble": 1}, "wibble"),
]


@pytest.mark.parametrize(("body", "name"), INERT, ids=lambda v: v if isinstance(v, str) else "")
async def test_what_has_no_effect_is_said_in_the_answer_and_refused_when_strict(
    body: dict[str, Any], name: str
) -> None:
    async with world() as w:
        response = await respond(w, {"input": "x", **body})
        (warning,) = response["warnings"]
        assert name in warning
        assert response["service_tier"] == "default"
    async with world(strict=True) as w:
        refused = await respond(w, {"input": "x", **body}, 400)
        assert refused["error"]["param"] == name


async def test_neutral_values_say_nothing() -> None:
    body = {
        "input": "x", "service_tier": "auto", "text": {"verbosity": "medium"}, "n": 1, "tool_choice": "auto",
        "tools": [],
        "include": [], "conversation": None, "reasoning": {"effort": None, "context": "auto"}, "metadata": {},
        "background": False, "previous_response_id": None, "stream_options": None,
    }  # fmt: skip
    async with world(strict=True) as w:
        assert "warnings" not in await respond(w, body)


async def test_fields_of_sampling_reach_the_engine() -> None:
    body = {
        "input": "x", "top_k": 7, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "stop": ["zz"],
        "repetition_penalty": 1.5, "seed": 9, "logit_bias": {"20": 1.5}, "stop_token_ids": [30], "ignore_eos": True,
        "max_output_tokens": 3, "min_tokens": 1, "priority": 2, "cache_salt": "s",
    }  # fmt: skip
    async with world("Hello world", policy="priority") as w:
        response = await respond(w, body)
        params, request = w.engine.seen[0].params, w.engine.seen[0]
        assert (params.top_k, params.min_p, params.presence_penalty, params.frequency_penalty) == (
            7,
            0.1,
            0.5,
            0.25,
        )
        assert (params.repetition_penalty, params.seed, params.stop, params.stop_token_ids) == (
            1.5,
            9,
            ["zz"],
            [30],
        )
        assert (params.logit_bias, params.min_tokens, request.priority, request.salt) == (
            {20: 1.5},
            1,
            2,
            "salt:s",
        )
        assert request.eos_ids == []
        assert (response["presence_penalty"], response["frequency_penalty"]) == (0.5, 0.25)


async def test_allowed_tools_are_the_only_ones_offered() -> None:
    sub = ADD | {"name": "sub"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sub"}]}
    async with world("ok") as w:
        response = await respond(w, {"input": "x", "tools": [ADD, sub], "tool_choice": choice})
        assert '"sub"' in prompt_of(w)
        assert '"add"' not in prompt_of(w)
        assert [tool["name"] for tool in response["tools"]] == ["add", "sub"]
        assert response["tool_choice"] == choice
