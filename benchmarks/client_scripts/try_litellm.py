"""LiteLLM: chats, texts, responses and embeddings by `openai/NAME`."""

import asyncio
import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its list of prices is not fetched

import litellm
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


class Planet(BaseModel):
    kind: Literal["rock", "gas"]
    rings: bool


TO = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY, "max_retries": 0}
GREEDY = {**TO, "temperature": 0, "max_tokens": MAX_TOKENS}
WEIGHT = {
    "type": "function",
    "function": {
        "name": "weight_of",
        "parameters": {
            "type": "object",
            "properties": {"planet": {"type": "string", "enum": ["Mars", "Jupiter"]}},
            "required": ["planet"],
        },
    },
}


def check_chat():
    answer = litellm.completion(messages=CHAT, **GREEDY)
    require_equal(answer.choices[0].message.content, greedy_text())
    text = litellm.text_completion(
        **{**GREEDY, "model": f"text-completion-openai/{MODEL}"}, prompt="The old river"
    )
    body = {"prompt": "The old river", "temperature": 0, "max_tokens": MAX_TOKENS}
    require_equal(text.choices[0].text, post_json("/completions", body)["choices"][0]["text"])


def check_stream():
    chunks = list(litellm.completion(messages=CHAT, stream=True, **GREEDY))
    require_equal("".join(c.choices[0].delta.content or "" for c in chunks), greedy_text())


def check_schema():
    form = litellm.completion(messages=CHAT, response_format=Planet, **GREEDY)
    Planet.model_validate_json(form.choices[0].message.content)


def check_tools():
    given = {**GREEDY, "max_tokens": 64, "tools": [WEIGHT], "tool_choice": "required"}
    message = litellm.completion(messages=CHAT, **given).choices[0].message
    call = message.tool_calls[0]
    chunks = list(litellm.completion(messages=CHAT, stream=True, **given))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    require_equal(built.arguments, call.function.arguments)
    turns = [*CHAT, message, {"role": "tool", "tool_call_id": call.id, "content": "1.9e27"}]
    last = litellm.completion(messages=turns, tools=[WEIGHT], **GREEDY)
    assert last.choices[0].message.content


def check_logprobs():
    answer = litellm.completion(messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY)
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


def check_embeddings():
    found = litellm.embedding(input=["a fox"], **TO).data[0]["embedding"]
    wanted = post_json("/embeddings", {"input": "a fox"})["data"][0]["embedding"]
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-6


def check_errors():
    wrong = {**GREEDY, "model": "openai/gpt-4o"}
    require_refusal(lambda: litellm.completion(messages=CHAT, **wrong), "gpt-4o", "NotFound")
    cold = {**GREEDY, "temperature": -1}
    require_refusal(lambda: litellm.completion(messages=CHAT, **cold), "temperature")
    bad = {"extra_body": {"temprature": 1}}
    require_refusal(
        lambda: litellm.completion(messages=CHAT, **GREEDY, **bad), "temprature", "temperature"
    )


def check_several():
    async def ask_all():
        asked = [
            litellm.acompletion(messages=[{"role": "user", "content": q}], **GREEDY)
            for q in OTHER_QUESTIONS
        ]
        return await asyncio.gather(*asked)

    for question, answer in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        require_equal(answer.choices[0].message.content, greedy_text(question))


def check_state():
    given = {**TO, "temperature": 0, "max_output_tokens": MAX_TOKENS, "store": True}
    first = litellm.responses(input=QUESTION, **given)
    second = litellm.responses(input=NEXT_QUESTION, previous_response_id=first.id, **given)
    text = first.output[-1].content[0].text
    turns = [*CHAT, {"role": "assistant", "content": text}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    wanted = litellm.completion(messages=turns, **GREEDY).choices[0].message.content
    require_equal(second.output[-1].content[0].text, wanted)


run_checks("litellm", globals())
