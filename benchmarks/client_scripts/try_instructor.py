"""instructor: forms by tools and by JSON schema, whole, in part and as lists."""

import asyncio
import json
from typing import Literal

import instructor
import openai
from client_checks import (
    API_KEY,
    BASE_URL,
    CHAT,
    MODEL,
    NEXT_QUESTION,
    OTHER_QUESTIONS,
    AbsentFeature,
    require_equal,
    require_refusal,
    run_checks,
)
from pydantic import BaseModel


class Planet(BaseModel):
    """A planet."""

    kind: Literal["rock", "gas"]
    rings: bool


GIVEN = {"model": MODEL, "temperature": 0, "max_tokens": 64, "max_retries": 0}
plain = openai.OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
client = instructor.from_openai(plain)


def ask_for(shape, chat=CHAT, **fields):
    return client.chat.completions.create(
        response_model=shape, messages=chat, **{**GIVEN, **fields}
    )


def check_chat():
    text = ask_for(None).choices[0].message.content
    assert text


def check_stream():
    parts = list(
        client.chat.completions.create_partial(response_model=Planet, messages=CHAT, **GIVEN)
    )
    assert len(parts) > 1
    require_equal(parts[-1].model_dump(), ask_for(Planet).model_dump())


def check_schema():
    modes = instructor.Mode
    for mode in (modes.TOOLS, modes.TOOLS_STRICT, modes.JSON_SCHEMA):
        with_mode = instructor.from_openai(plain, mode=mode)
        form = with_mode.chat.completions.create(response_model=Planet, messages=CHAT, **GIVEN)
        assert isinstance(form, Planet), (mode, form)
    return "its modes JSON and MD_JSON ask for no form, so that it depends on the model whether one comes"


def check_tools():
    form, answer = client.chat.completions.create_with_completion(
        response_model=Planet, messages=CHAT, **GIVEN
    )
    call = answer.choices[0].message.tool_calls[0]
    require_equal(json.loads(call.function.arguments), form.model_dump())
    return "the form is one call; it runs no loop of calls itself"


def check_logprobs():
    _, answer = client.chat.completions.create_with_completion(
        response_model=Planet,
        messages=CHAT,
        **GIVEN,
        logprobs=True,
        top_logprobs=2,
    )
    assert answer.choices[0].logprobs.content


def check_embeddings():
    raise AbsentFeature("it has none")


def check_errors():
    require_refusal(lambda: ask_for(Planet, model="gpt-4o"), "gpt-4o", "404")
    require_refusal(lambda: ask_for(Planet, temperature=-1), "temperature")
    bad = {"temprature": 1}
    require_refusal(lambda: ask_for(Planet, extra_body=bad), "temprature", "temperature")


def check_several():
    async def ask_all():
        many = instructor.from_openai(
            openai.AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
        )
        asked = [
            many.chat.completions.create(
                response_model=Planet, messages=[{"role": "user", "content": q}], **GIVEN
            )
            for q in OTHER_QUESTIONS
        ]
        return await asyncio.gather(*asked)

    for question, form in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        alone = ask_for(Planet, [{"role": "user", "content": question}])
        require_equal(form.model_dump(), alone.model_dump())


def check_state():
    by_responses = instructor.from_openai(plain, mode=instructor.Mode.RESPONSES_TOOLS)
    given = {"model": MODEL, "max_output_tokens": 64, "max_retries": 0, "store": True}
    first, answer = by_responses.responses.create_with_completion(
        input=CHAT[0]["content"], response_model=Planet, **given
    )
    assert isinstance(first, Planet) and plain.responses.retrieve(answer.id).store
    second = by_responses.responses.create(
        input=NEXT_QUESTION,
        response_model=Planet,
        previous_response_id=answer.id,
        **given,
    )
    assert isinstance(second, Planet)


run_checks("instructor", globals())
