"""The openai package: chats, responses with state, embeddings."""

import asyncio
import json
from typing import Literal

import openai
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

client = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS}
FORMS = {**GREEDY, "max_tokens": 96}


class Planet(BaseModel):
    kind: Literal["rock", "gas"]
    rings: bool


WEIGHT = {
    "type": "function",
    "function": {
        "name": "weight_of",
        "description": "The weight of a planet in kg.",
        "parameters": {
            "type": "object",
            "properties": {"planet": {"type": "string", "enum": ["Mars", "Jupiter"]}},
            "required": ["planet"],
            "additionalProperties": False,
        },
    },
}


def check_chat():
    answer = client.chat.completions.create(messages=CHAT, **GREEDY)
    require_equal(answer.choices[0].message.content, greedy_text())
    text = client.completions.create(prompt="The old river", **GREEDY).choices[0].text
    wanted = post_json("/completions", {**GREEDY, "prompt": "The old river"})
    require_equal(text, wanted["choices"][0]["text"])


def check_stream():
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(messages=CHAT, stream=True, stream_options=options, **GREEDY)
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    require_equal(text, greedy_text())
    assert chunks[-1].usage.completion_tokens > 0


def check_schema():
    form = client.chat.completions.parse(messages=CHAT, response_format=Planet, **FORMS)
    assert isinstance(form.choices[0].message.parsed, Planet)
    given = {"model": MODEL, "input": QUESTION, "max_output_tokens": 96}
    assert isinstance(client.responses.parse(text_format=Planet, **given).output_parsed, Planet)


def check_tools():
    called = client.chat.completions.create(
        messages=CHAT, tools=[WEIGHT], tool_choice="required", **FORMS
    )
    message = called.choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments)["planet"] in ("Mars", "Jupiter")
    result = {"role": "tool", "tool_call_id": call.id, "content": "1.9e27"}
    turns = [*CHAT, message, result]
    last = client.chat.completions.create(messages=turns, tools=[WEIGHT], **GREEDY)
    assert last.choices[0].message.content


def check_logprobs():
    answer = client.chat.completions.create(messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(t.logprob <= 0 and len(t.top_logprobs) == 2 for t in content)


def check_embeddings():
    answer = client.embeddings.create(model=MODEL, input=["a fox", "a hen"])
    wanted = post_json("/embeddings", {"input": ["a fox", "a hen"]})
    for mine, theirs in zip(answer.data, wanted["data"], strict=True):
        assert max(abs(a - b) for a, b in zip(mine.embedding, theirs["embedding"])) < 1e-6


def check_errors():
    create = client.chat.completions.create
    require_refusal(lambda: create(messages=CHAT, model="gpt-4o"), "gpt-4o", "404")
    require_refusal(lambda: create(messages=CHAT, model=MODEL, temperature=-1), "temperature")
    bad = {"extra_body": {"temprature": 1}}
    require_refusal(lambda: create(messages=CHAT, model=MODEL, **bad), "temprature", "temperature")
    other = client.with_options(api_key="not-the-key")
    require_refusal(lambda: other.models.list(), "401")


def check_several():
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0) as many:
            asked = [
                many.chat.completions.create(messages=[{"role": "user", "content": q}], **GREEDY)
                for q in OTHER_QUESTIONS
            ]
            return await asyncio.gather(*asked)

    for question, answer in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        require_equal(answer.choices[0].message.content, greedy_text(question))


def check_state():
    given = {"model": MODEL, "temperature": 0, "max_output_tokens": MAX_TOKENS}
    first = client.responses.create(input=QUESTION, store=True, **given)
    second = client.responses.create(
        input=NEXT_QUESTION, previous_response_id=first.id, store=True, **given
    )
    turns = [*CHAT, {"role": "assistant", "content": first.output_text}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    wanted = client.chat.completions.create(messages=turns, **GREEDY)
    require_equal(second.output_text, wanted.choices[0].message.content)
    require_equal(client.responses.retrieve(first.id).output_text, first.output_text)
    streamed = client.responses.create(
        input="Why?", previous_response_id=second.id, stream=True, store=True, **given
    )
    last = list(streamed)[-1]
    assert client.responses.retrieve(last.response.id).previous_response_id == second.id
    client.responses.delete(first.id)
    require_refusal(lambda: client.responses.retrieve(first.id), "404")
    require_refusal(
        lambda: client.responses.create(input="x", previous_response_id=first.id, **given),
        "previous_response_id",
    )


run_checks("openai", globals())
