"""litellm against a server: `URL` -> one JSON object of what it saw. Run by tests/api/test_other_clients.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a table of prices at import

import litellm

litellm.suppress_debug_info = True
ASK = [{"role": "user", "content": "Say it."}]
TOOLS_ASK = [{"role": "user", "content": "Tell me the weather in Oslo."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


async def seen_by(model: str, base: str) -> dict[str, Any]:
    common = {"model": model, "api_base": base, "api_key": "secret", "max_tokens": 300}
    whole = await litellm.acompletion(**common, messages=ASK)
    stream = await litellm.acompletion(**common, messages=ASK, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    called = await litellm.acompletion(**common, messages=TOOLS_ASK, tools=TOOLS)
    (call,) = called.choices[0].message.tool_calls
    stream = await litellm.acompletion(**common, messages=TOOLS_ASK, tools=TOOLS, stream=True)
    chunks = [chunk async for chunk in stream]
    rebuilt = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    try:
        await litellm.acompletion(**common | {"model": f"{model.partition('/')[0]}/gone"}, messages=ASK)
        error = ""
    except litellm.exceptions.NotFoundError as gone:
        error = type(gone).__name__
    return {
        "text": whole.choices[0].message.content,
        "finish": whole.choices[0].finish_reason,
        "tokens": whole.usage.completion_tokens,
        "streamed": "".join(pieces),
        "call": [call.function.name, json.loads(call.function.arguments), called.choices[0].finish_reason],
        "streamed_call": [rebuilt.function.name, json.loads(rebuilt.function.arguments)],
        "error": error,
    }


async def main(url: str) -> None:
    found = {
        "openai": await seen_by("openai/toy", f"{url}/v1"),
        "anthropic": await seen_by("anthropic/toy", url),
    }
    print(json.dumps(found))


asyncio.run(main(sys.argv[1]))
