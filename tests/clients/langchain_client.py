"""langchain-openai against a server: `URL` -> one JSON object of what it saw, for tests/api/test_other_clients.py."""

from __future__ import annotations

import asyncio
import json
import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: rain"


class City(BaseModel):
    name: str
    people: int


async def main(url: str) -> None:
    model = ChatOpenAI(model="toy", base_url=f"{url}/v1", api_key="secret", max_retries=0)
    whole = await model.ainvoke("Say it.")
    pieces = [chunk.content async for chunk in model.astream("Say it.")]
    bound = model.bind_tools([get_weather])
    ask = HumanMessage("Tell me the weather in Oslo.")
    called = await bound.ainvoke([ask])
    (call,) = called.tool_calls
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    last = await bound.ainvoke([ask, called, result])
    merged = None
    async for chunk in bound.astream([ask]):
        merged = chunk if merged is None else merged + chunk
    found = {
        "text": whole.content,
        "tokens": whole.usage_metadata["output_tokens"],
        "streamed": "".join(pieces),
        "call": [call["name"], call["args"]],
        "last": last.content,
        "streamed_call": [merged.tool_calls[0]["name"], merged.tool_calls[0]["args"]],
    }
    for method in ("json_schema", "function_calling", "json_mode"):
        shaped = model.with_structured_output(City, method=method)
        found[method] = (await shaped.ainvoke("The city as JSON.")).model_dump()
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
