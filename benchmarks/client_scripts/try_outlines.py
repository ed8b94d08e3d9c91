"""outlines by from_openai and from_vllm: texts, forms, choices, regular expressions."""

import asyncio
from typing import Literal

import openai
import outlines
from client_checks import (
    API_KEY,
    BASE_URL,
    MAX_TOKENS,
    MODEL,
    OTHER_QUESTIONS,
    QUESTION,
    AbsentFeature,
    greedy_text,
    require_equal,
    require_refusal,
    run_checks,
)
from pydantic import BaseModel

plain = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
MAKERS = (outlines.from_openai, outlines.from_vllm)
GREEDY = {"temperature": 0, "max_tokens": MAX_TOKENS}


class Planet(BaseModel):
    kind: Literal["rock", "gas"]
    rings: bool


def check_chat():
    for make in MAKERS:
        require_equal(make(plain, MODEL)(QUESTION, **GREEDY), greedy_text())


def check_stream():
    for make in MAKERS:
        require_equal("".join(make(plain, MODEL).stream(QUESTION, **GREEDY)), greedy_text())


def check_schema():
    for make in MAKERS:
        Planet.model_validate_json(make(plain, MODEL)(QUESTION, Planet, max_tokens=64))
    model = outlines.from_vllm(plain, MODEL)
    assert model("Is it?", Literal["yes", "no"], max_tokens=16) in ("yes", "no")
    assert model("How many?", outlines.regex("[0-9]{3}"), max_tokens=16).isdigit()
    return "choices and regular expressions by `from_vllm`"


def check_tools():
    raise AbsentFeature("it has none")


def check_logprobs():
    raise AbsentFeature("it gives texts only")


def check_embeddings():
    raise AbsentFeature("it has none")


def refuse_faults(make):
    require_refusal(lambda: make(plain, "gpt-4o")(QUESTION), "gpt-4o", "404")
    model = make(plain, MODEL)
    require_refusal(lambda: model(QUESTION, temperature=-1), "temperature")
    bad = {"temprature": 1}
    require_refusal(lambda: model(QUESTION, extra_body=bad), "temprature", "temperature")


def check_errors():
    for make in MAKERS:
        refuse_faults(make)


def check_several():
    async def ask_all(make):
        many = openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
        model = make(many, MODEL)
        return await asyncio.gather(*(model(q, **GREEDY) for q in OTHER_QUESTIONS))

    for make in MAKERS:
        for question, text in zip(OTHER_QUESTIONS, asyncio.run(ask_all(make)), strict=True):
            require_equal(text, greedy_text(question))


def check_state():
    raise AbsentFeature("it speaks chats only")


run_checks("outlines", globals())
