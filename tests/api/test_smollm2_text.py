"""The text cases on the real vocabulary and template of SmolLM2: tokens that end inside characters, real specials."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes.api_world import USER, fold_chat, sse, world

from octavo.api.text.tokenizer import Tokenizer, load_tokenizer
from octavo.weights.load import open_model
from octavo.wire.messages import EngineRequest

TEXTS = ["😀 中文 ďábel 👩‍🚀", " 中文 ok", "ABC DEFGHIJ KLM", "🌶 ’ “ done\n\n\tx = 1"]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: str) -> tuple[Tokenizer, str]:
    source = open_model(smollm2_path)
    assert source.chat_template is not None
    return load_tokenizer(source), source.chat_template


def replay(tokenizer: Tokenizer, text: str) -> Callable[[EngineRequest], list[int]]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return lambda _: [*ids, min(tokenizer.eos_ids)]


@pytest.mark.parametrize("text", TEXTS)
async def test_bb_012_bb_016_bb_018_text_and_bytes_are_exact(
    smollm2: tuple[Tokenizer, str], text: str
) -> None:
    tokenizer, template = smollm2
    async with world(replay(tokenizer, text), codec=tokenizer, template=template) as w:
        body = (await w.chat(logprobs=True, top_logprobs=3)).json()
        chunks, done = sse((await w.chat(stream=True)).text)
    choice = body["choices"][0]
    content = choice["logprobs"]["content"]
    assert done
    assert choice["message"]["content"] == fold_chat(chunks)[0]["text"] == text
    assert "".join(t["token"] for t in content) == text
    assert bytes(b for t in content for b in t["bytes"]) == text.encode()
    assert len(content) == body["usage"]["completion_tokens"]
    assert not any("\ufffd" in (c["choices"][0]["delta"].get("content") or "") for c in chunks)


async def test_bb_001_bb_005_stops_over_real_tokens(smollm2: tuple[Tokenizer, str]) -> None:
    tokenizer, template = smollm2
    async with world(replay(tokenizer, "ABC DEFGHIJ KLM"), codec=tokenizer, template=template) as w:
        first = (await w.chat(stop=["DEFGHIJ"])).json()["choices"][0]
        second = (await w.chat(stop=["GHI", "EF"])).json()["choices"][0]
    assert (first["message"]["content"], first["stop_reason"]) == ("ABC ", "DEFGHIJ")
    assert (second["message"]["content"], second["stop_reason"]) == ("ABC D", "EF")


async def test_bb_139_chat_ids_equal_those_of_transformers_rendering(smollm2: tuple[Tokenizer, str]) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer, template = smollm2
    messages = [
        *USER,
        {"role": "assistant", "content": "It."},
        {"role": "user", "content": "Again 中 <|im_end|>"},
    ]
    (rendered,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
    async with world("", codec=tokenizer, template=template) as w:
        await w.chat(messages=messages)
        tokenized = (await w.post("/tokenize", {"messages": messages})).json()["tokens"]
        assert w.engine.seen[0].prompt == tokenized == tokenizer.encode(rendered, add_special_tokens=False)
        assert set(w.engine.seen[0].eos_ids) == set(tokenizer.eos_ids)


async def test_bb_022_twenty_alternatives_on_the_real_vocabulary(smollm2: tuple[Tokenizer, str]) -> None:
    tokenizer, template = smollm2
    async with world(replay(tokenizer, "😀"), codec=tokenizer, template=template) as w:
        answer = await w.complete(prompt="🌶 ’ “", logprobs=20, max_tokens=1)
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]) == 20
