"""LangChain by langchain-openai: chats over both endpoints, tools, forms, embeddings."""

import asyncio
from typing import Literal

from client_checks import (
    API_KEY,
    BASE_URL,
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
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class Planet(BaseModel):
    """A planet."""

    kind: Literal["rock", "gas"]
    rings: bool


@tool
def weight_of(planet: Literal["Mars", "Jupiter"]) -> str:
    """The weight of a planet in kg."""
    return "1.9e27"


def open_chat(**fields):
    """A chat model at the server, greedy unless a field says otherwise."""
    usual = {"model": MODEL, "temperature": 0, "max_tokens": MAX_TOKENS}
    return ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0, **{**usual, **fields})


def check_chat():
    answer = open_chat().invoke(QUESTION)
    require_equal(answer.content, greedy_text())
    assert answer.usage_metadata["output_tokens"] > 0


def check_stream():
    require_equal("".join(part.content for part in open_chat().stream(QUESTION)), greedy_text())


def check_schema():
    for method in ("json_schema", "function_calling"):
        form = (
            open_chat(max_tokens=64).with_structured_output(Planet, method=method).invoke(QUESTION)
        )
        assert isinstance(form, Planet), (method, form)


def check_tools():
    turns = [HumanMessage(QUESTION)]
    chat = open_chat(max_tokens=64)
    answer = chat.bind_tools([weight_of], tool_choice="any").invoke(turns)
    call = answer.tool_calls[0]
    turns += [answer, weight_of.invoke(call)]
    require_equal(turns[-1].content, "1.9e27")
    assert open_chat().bind_tools([weight_of]).invoke(turns).content
    whole = None
    for part in chat.bind_tools([weight_of], tool_choice="any").stream(turns[:1]):
        whole = part if whole is None else whole + part
    require_equal(whole.tool_calls[0]["args"], call["args"])


def check_logprobs():
    answer = open_chat(logprobs=True, top_logprobs=2).invoke(QUESTION)
    content = answer.response_metadata["logprobs"]["content"]
    assert content and all(len(t["top_logprobs"]) == 2 for t in content)


def check_embeddings():
    def open_embeddings(**fields):
        return OpenAIEmbeddings(model=MODEL, base_url=BASE_URL, api_key=API_KEY, **fields)

    wanted = post_json("/embeddings", {"input": "a fox"})["data"][0]["embedding"]
    found = open_embeddings(check_embedding_ctx_length=False).embed_query("a fox")
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-6
    return "with `check_embedding_ctx_length=False`: else it sends OpenAI's token ids"


def check_errors():
    require_refusal(lambda: open_chat(model="gpt-4o").invoke(QUESTION), "gpt-4o", "404")
    require_refusal(lambda: open_chat(temperature=-1).invoke(QUESTION), "temperature")
    bad = {"temprature": 1}
    require_refusal(lambda: open_chat(extra_body=bad).invoke(QUESTION), "temprature", "temperature")


def check_several():
    async def ask_all():
        return await open_chat().abatch(list(OTHER_QUESTIONS))

    for question, answer in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        require_equal(answer.content, greedy_text(question))


def check_state():
    chat = open_chat(use_responses_api=True, use_previous_response_id=True, store=True)
    turns = [HumanMessage(QUESTION)]
    turns.append(chat.invoke(turns))
    turns.append(HumanMessage(NEXT_QUESTION))
    second = chat.invoke(turns)
    whole = [("human", QUESTION), ("ai", turns[1].text), ("human", NEXT_QUESTION)]
    require_equal(second.text, open_chat().invoke(whole).content)


run_checks("langchain-openai", globals())
