"""The examples of docs/tools.md are run as they stand."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel
from tests.fakes.api_world import on_socket, world

TEXT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
CALL = '<tool_call>\n{{"name": "{}", "arguments": {{"city":"Paris"}}}}\n</tool_call>'


async def test_the_request() -> None:
    found = re.search(r"-d '(\{.*?\})'", TEXT, re.DOTALL)
    assert found is not None
    body = json.loads(found.group(1))
    async with world(CALL.format("get_weather"), server={"served_names": ("m",)}) as w:
        answer = await w.post("/v1/chat/completions", body)
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


class Weather(BaseModel):
    city: str


async def test_the_python(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    code = compile(found.group(1), "docs/tools.md", "exec")
    async with (
        world(CALL.format("Weather"), server={"served_names": ("m",)}) as w,
        on_socket(w.app) as url,
    ):
        with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            messages = [{"role": "user", "content": "The weather in Paris?"}]
            names: dict[str, Any] = {
                "openai": openai,
                "client": client,
                "messages": messages,
                "Weather": Weather,
            }
            await asyncio.to_thread(exec, code, names)
    assert capsys.readouterr().out == 'Weather {"city":"Paris"}\n'
