"""The OpenAI Agents SDK (openai-agents): its loop over chats and over responses, with state."""

import asyncio
from typing import Literal

import agents
import openai
from client_checks import (
    API_KEY,
    BASE_URL,
    CHAT,
    MODEL,
    NEXT_QUESTION,
    OTHER_QUESTIONS,
    QUESTION,
    AbsentFeature,
    greedy_text,
    post_json,
    require_equal,
    require_refusal,
    run_checks,
)
from pydantic import BaseModel

agents.set_tracing_disabled(True)
MODELS = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)


class Planet(BaseModel):
    kind: Literal["rock", "gas"]
    rings: bool


# This client takes a response that max_tokens cut for an error, so that answers end at a stop here.
UNCUT = {"max_tokens": 256, "extra_body": {"stop": ["."]}}
asked_of = []


def uncut_text(question=QUESTION):
    """What the server itself answers up to the first full stop."""
    return greedy_text(question, stop=["."], max_tokens=256)


@agents.function_tool
def weight_of(planet: Literal["Mars", "Jupiter"]) -> str:
    """The weight of a planet in kg."""
    asked_of.append(planet)
    return "1.9e27"


def open_agent(kind, model=MODEL, settings=None, **fields):
    client = openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    usual = {"temperature": 0, **UNCUT}
    return agents.Agent(
        name="Astronomer",
        model=kind(model=model, openai_client=client),
        model_settings=agents.ModelSettings(**{**usual, **(settings or {})}),
        **fields,
    )


def run_agent(agent, question=QUESTION, **fields):
    return asyncio.run(agents.Runner.run(agent, question, max_turns=3, **fields))


def check_chat():
    for kind in MODELS:
        require_equal(run_agent(open_agent(kind)).final_output, uncut_text())


def check_stream():
    async def read_stream(kind):
        run = agents.Runner.run_streamed(open_agent(kind), QUESTION)
        kinds = [event.type async for event in run.stream_events()]
        assert kinds.count("raw_response_event") > 3
        return run.final_output

    for kind in MODELS:
        found = asyncio.run(read_stream(kind))
        require_equal(found, uncut_text())
    return "over responses an answer that `max_tokens` cut is an error to it"


def check_schema():
    for kind in MODELS:
        agent = open_agent(kind, output_type=Planet, settings={"max_tokens": 64, "extra_body": {}})
        assert isinstance(run_agent(agent).final_output, Planet)


def check_tools():
    for kind in MODELS:
        asked_of.clear()
        settings = {"tool_choice": "required", "parallel_tool_calls": False}
        run = run_agent(open_agent(kind, tools=[weight_of], settings=settings))
        assert len(asked_of) == 1 and asked_of[0] in ("Mars", "Jupiter")
        kinds = [item.type for item in run.new_items]
        require_equal(kinds, ["tool_call_item", "tool_call_output_item", "message_output_item"])


def check_logprobs():
    settings = {"top_logprobs": 2}
    run = run_agent(open_agent(agents.OpenAIResponsesModel, settings=settings))
    part = run.raw_responses[0].output[-1].content[0]
    assert part.logprobs and len(part.logprobs[0].top_logprobs) == 2
    return "over responses; over chats it hands none on"


def check_embeddings():
    raise AbsentFeature("it has none")


def refuse_faults(kind):
    require_refusal(lambda: run_agent(open_agent(kind, "gpt-4o")), "gpt-4o", "404")
    cold = {"temperature": -1}
    require_refusal(lambda: run_agent(open_agent(kind, settings=cold)), "temperature")
    bad = {"extra_body": {"temprature": 1}}
    require_refusal(lambda: run_agent(open_agent(kind, settings=bad)), "temprature")


def check_errors():
    for kind in MODELS:
        refuse_faults(kind)


def check_several():
    async def ask_all(kind):
        asked = [agents.Runner.run(open_agent(kind), question) for question in OTHER_QUESTIONS]
        return await asyncio.gather(*asked)

    for kind in MODELS:
        for question, run in zip(OTHER_QUESTIONS, asyncio.run(ask_all(kind)), strict=True):
            require_equal(run.final_output, uncut_text(question))


def check_state():
    # One loop for both turns: the client's connections belong to it.
    async def run_turns():
        agent = open_agent(agents.OpenAIResponsesModel, settings={"store": True})
        first = await agents.Runner.run(agent, QUESTION)
        second = await agents.Runner.run(
            agent, NEXT_QUESTION, previous_response_id=first.last_response_id
        )
        return first, second

    first, second = asyncio.run(run_turns())
    turns = [*CHAT, {"role": "assistant", "content": first.final_output}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    body = {"messages": turns, "max_tokens": 256, "temperature": 0, "stop": ["."]}
    wanted = post_json("/chat/completions", body)["choices"][0]["message"]["content"]
    require_equal(second.final_output, wanted)
    asked_of.clear()
    settings = {"tool_choice": "required", "parallel_tool_calls": False, "store": True}
    with_tool = open_agent(agents.OpenAIResponsesModel, tools=[weight_of], settings=settings)
    # The whole loop of call and result by the server's state alone.
    run_agent(with_tool, auto_previous_response_id=True)
    require_equal(len(asked_of), 1)


run_checks("openai-agents", globals())
