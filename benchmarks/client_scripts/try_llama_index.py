"""llama-index by llms-openai-like and embeddings-openai-like, and its responses by llms-openai."""

import asyncio
import os
from typing import Literal

os.environ.setdefault("OPENAI_API_KEY", "unused")

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
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Planet(BaseModel):
    """A planet."""

    kind: Literal["rock", "gas"]
    rings: bool


def weight_of(planet: Literal["Mars", "Jupiter"]) -> str:
    """The weight of a planet in kg."""
    return "1.9e27"


WEIGHT = FunctionTool.from_defaults(weight_of)


def open_model(**fields):
    usual = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS, "max_retries": 0}
    kinds = {"is_chat_model": True, "is_function_calling_model": True}
    return OpenAILike(api_base=BASE_URL, api_key=API_KEY, **{**usual, **kinds, **fields})


def messages(*texts):
    return [ChatMessage(role="user", content=text) for text in texts]


def check_chat():
    require_equal(open_model().chat(messages(QUESTION)).message.content, greedy_text())
    text = open_model(is_chat_model=False).complete("The old river").text
    body = {"prompt": "The old river", "temperature": 0, "max_tokens": MAX_TOKENS}
    require_equal(text, post_json("/completions", body)["choices"][0]["text"])


def check_stream():
    parts = [part.delta or "" for part in open_model().stream_chat(messages(QUESTION))]
    require_equal("".join(parts), greedy_text())


def check_schema():
    for by_format in (True, False):
        model = open_model(max_tokens=64, should_use_structured_outputs=by_format)
        form = model.as_structured_llm(Planet).chat(messages(QUESTION)).raw
        assert isinstance(form, Planet), by_format


def check_tools():
    model = open_model(max_tokens=64)
    answer = model.chat_with_tools([WEIGHT], QUESTION, tool_required=True)
    call = model.get_tool_calls_from_response(answer)[0]
    assert call.tool_kwargs["planet"] in ("Mars", "Jupiter")
    result = ChatMessage(
        role="tool",
        content=str(WEIGHT(**call.tool_kwargs)),
        additional_kwargs={"tool_call_id": call.tool_id},
    )
    history = [*messages(QUESTION), answer.message, result]
    last = open_model().chat_with_tools([WEIGHT], chat_history=history)
    assert last.message.content


def check_logprobs():
    answer = open_model(logprobs=True, top_logprobs=2).chat(messages(QUESTION))
    assert answer.logprobs and len(answer.logprobs[0]) == 2


def check_embeddings():
    model = OpenAILikeEmbedding(model_name=MODEL, api_base=BASE_URL, api_key=API_KEY)
    wanted = post_json("/embeddings", {"input": "a fox"})["data"][0]["embedding"]
    found = model.get_text_embedding("a fox")
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-6


def check_errors():
    require_refusal(lambda: open_model(model="gpt-4o").chat(messages(QUESTION)), "gpt-4o", "404")
    cold = {"additional_kwargs": {"temperature": -1}}
    require_refusal(lambda: open_model(**cold).chat(messages(QUESTION)), "temperature")
    bad = {"additional_kwargs": {"extra_body": {"temprature": 1}}}
    require_refusal(lambda: open_model(**bad).chat(messages(QUESTION)), "temprature")


def check_several():
    async def ask_all():
        model = open_model()
        return await asyncio.gather(*(model.achat(messages(q)) for q in OTHER_QUESTIONS))

    for question, answer in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        require_equal(answer.message.content, greedy_text(question))


def check_state():
    usual = {"model": MODEL, "temperature": 0, "max_output_tokens": MAX_TOKENS}
    # The context's length is looked up by the model's name, which this class does not know.
    model = OpenAIResponses(
        api_base=BASE_URL,
        api_key=API_KEY,
        track_previous_responses=True,
        context_window=2048,
        **usual,
    )
    first = model.chat(messages(QUESTION)).message.content
    second = model.chat(messages(NEXT_QUESTION)).message.content
    turns = [*CHAT, {"role": "assistant", "content": first}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    body = {"messages": turns, "max_tokens": MAX_TOKENS, "temperature": 0}
    wanted = post_json("/chat/completions", body)["choices"][0]["message"]["content"]
    require_equal(second, wanted)
    return "by OpenAIResponses of llama-index-llms-openai"


run_checks("llama-index-llms-openai-like", globals())
