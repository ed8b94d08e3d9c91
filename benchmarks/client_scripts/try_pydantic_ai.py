"""pydantic-ai: agents over chats and over responses, with tools, forms and state."""

import asyncio
from typing import Literal

from client_checks import (
    API_KEY,
    BASE_URL,
    CHAT,
    MAX_TOKENS,
    MODEL,
    NEXT_QUESTION,
    OTHER_QUESTIONS,
    QUESTION,
    greedy_text,
    post_json,
    require_equal,
    require_refusal,
    run_checks,
)
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    Embedder,
    ModelRequest,
    NativeOutput,
    Tool,
    ToolOutput,
    ToolReturnPart,
)
from pydantic_ai.direct import model_request_sync
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

MODELS = (OpenAIChatModel, OpenAIResponsesModel)


class Planet(BaseModel):
    """A planet."""

    kind: Literal["rock", "gas"]
    rings: bool


def open_agent(kind=OpenAIChatModel, name=MODEL, settings=None, **fields):
    provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
    usual = {"temperature": 0, "max_tokens": MAX_TOKENS}
    return Agent(
        kind(name, provider=provider), model_settings={**usual, **(settings or {})}, **fields
    )


def check_chat():
    for kind in MODELS:
        require_equal(open_agent(kind).run_sync(QUESTION).output, greedy_text())


def check_stream():
    async def read_stream(kind):
        async with open_agent(kind).run_stream(QUESTION) as run:
            return [part async for part in run.stream_text(delta=True, debounce_by=None)]

    for kind in MODELS:
        parts = asyncio.run(read_stream(kind))
        assert len(parts) > 3
        require_equal("".join(parts), greedy_text())


def check_schema():
    for kind in MODELS:
        for output in (Planet, ToolOutput(Planet), NativeOutput(Planet)):
            agent = open_agent(kind, settings={"max_tokens": 64}, output_type=output)
            assert isinstance(agent.run_sync(QUESTION).output, Planet), (kind, output)


def call_tools(kind):
    asked_of = []

    def weight_of(planet: Literal["Mars", "Jupiter"]) -> str:
        """The weight of a planet in kg."""
        asked_of.append(planet)
        return "1.9e27"

    # With a form beside it each turn is a call: of the function, or of the form that ends the run.
    agent = open_agent(kind, settings={"max_tokens": 64}, output_type=Planet, tools=[weight_of])
    assert isinstance(agent.run_sync(QUESTION).output, Planet)
    # The function alone, in a call that is no loop: it must be called, and what it gave is taken.
    tools = ModelRequestParameters(function_tools=[Tool(weight_of).tool_def])
    turns = [ModelRequest.user_text_prompt(QUESTION)]
    settings = {"temperature": 0, "max_tokens": 64}
    answer = model_request_sync(
        agent.model,
        turns,
        model_settings={**settings, "tool_choice": "required"},
        model_request_parameters=tools,
    )
    call = answer.tool_calls[0]
    weight_of(**call.args_as_dict())
    assert asked_of[-1] in ("Mars", "Jupiter")
    result = ToolReturnPart(call.tool_name, "1.9e27", tool_call_id=call.tool_call_id)
    turns += [answer, ModelRequest(parts=[result])]
    last = model_request_sync(
        agent.model, turns, model_settings=settings, model_request_parameters=tools
    )
    assert last.text


def check_tools():
    for kind in MODELS:
        call_tools(kind)


def check_logprobs():
    settings = {"openai_logprobs": True, "openai_top_logprobs": 2}
    answer = open_agent(settings=settings).run_sync(QUESTION).all_messages()[-1]
    assert answer.provider_details["logprobs"]


def check_embeddings():
    provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
    found = Embedder(OpenAIEmbeddingModel(MODEL, provider=provider)).embed_query_sync("a fox")
    wanted = post_json("/embeddings", {"input": "a fox"})["data"][0]["embedding"]
    pairs = zip(found.embeddings[0], wanted, strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-6


def refuse_faults(kind):
    require_refusal(lambda: open_agent(kind, "gpt-4o").run_sync(QUESTION), "gpt-4o", "404")
    cold = {"temperature": -1}
    require_refusal(lambda: open_agent(kind, settings=cold).run_sync(QUESTION), "temperature")
    bad = {"extra_body": {"temprature": 1}}
    require_refusal(lambda: open_agent(kind, settings=bad).run_sync(QUESTION), "temprature")


def check_errors():
    for kind in MODELS:
        refuse_faults(kind)


def check_several():
    async def ask_all(kind):
        return await asyncio.gather(*(open_agent(kind).run(q) for q in OTHER_QUESTIONS))

    for kind in MODELS:
        for question, run in zip(OTHER_QUESTIONS, asyncio.run(ask_all(kind)), strict=True):
            require_equal(run.output, greedy_text(question))


def check_state():
    settings = {"openai_store": True, "openai_previous_response_id": "auto"}
    agent = open_agent(OpenAIResponsesModel, settings=settings)
    first = agent.run_sync(QUESTION)
    second = agent.run_sync(NEXT_QUESTION, message_history=first.all_messages())
    turns = [*CHAT, {"role": "assistant", "content": first.output}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    body = {"messages": turns, "max_tokens": MAX_TOKENS, "temperature": 0}
    wanted = post_json("/chat/completions", body)["choices"][0]["message"]["content"]
    require_equal(second.output, wanted)


run_checks("pydantic-ai-slim", globals())
