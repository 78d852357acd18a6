"""openai-agents, unmodified, on its default API: a loop of two tools, whole and streamed."""

from __future__ import annotations

import agents
import openai
import pytest
from tests.fakes.api_world import on_socket, world
from tests.fakes.toy_codec import ToyCodec

from octavo.wire.messages import EngineRequest


@agents.function_tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@agents.function_tool
def shout(text: str) -> str:
    """Makes text loud."""
    return text.upper() + "!"


def script(request: EngineRequest) -> list[int]:
    """Calls add, then shout with the sum, then says what came back."""
    codec = ToyCodec()
    said = codec.decode(request.prompt, skip_special_tokens=False)
    call = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
    if "<|im_start|>tool\n" not in said:
        text = call.format("add", '{"a":2,"b":3}')
    elif "!" not in said.rpartition("<|im_start|>tool\n")[2]:
        text = call.format("shout", '{"text":"five"}')
    else:
        text = "FIVE! it is"
    return codec.encode(text, False)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_loop_of_two_tools(streamed: bool) -> None:
    agents.set_tracing_disabled(True)
    async with (
        world(script) as w,
        on_socket(w.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
    ):
        agent = agents.Agent(
            name="adder",
            instructions="Add and shout.",
            tools=[add, shout],
            model=agents.OpenAIResponsesModel(model="toy", openai_client=client),
        )
        if streamed:
            run = agents.Runner.run_streamed(agent, "2 and 3, loudly")
            async for _ in run.stream_events():
                pass
            output = run.final_output
        else:
            output = (await agents.Runner.run(agent, "2 and 3, loudly")).final_output
        assert output == "FIVE! it is"
        assert len(w.engine.seen) == 3
