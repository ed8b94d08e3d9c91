"""DSPy: its language model over chats and over responses, forms by its JSON adapter, tools by ReAct's parts."""

import asyncio
import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its list of prices is not fetched

import dspy
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
from dspy import lm15
from pydantic import BaseModel


class Planet(BaseModel):
    kind: Literal["rock", "gas"]
    rings: bool


class Sorting(dspy.Signature):
    """Say what kind of planet it is."""

    planet: str = dspy.InputField()
    form: Planet = dspy.OutputField()


def weight_of(planet: Literal["Mars", "Jupiter"]) -> str:
    """The weight of a planet in kg."""
    return "1.9e27"


def open_model(model=MODEL, **fields):
    usual = {"temperature": 0, "max_tokens": MAX_TOKENS, "cache": False, "num_retries": 0}
    return dspy.LM(f"openai/{model}", api_base=BASE_URL, api_key=API_KEY, **{**usual, **fields})


def text_of(answer):
    return answer["text"] if isinstance(answer, dict) else answer


def check_chat():
    require_equal(text_of(open_model()(QUESTION)[0]), greedy_text())
    text = open_model(model_type="text")("The old river")[0]
    body = {"prompt": "The old river", "temperature": 0, "max_tokens": MAX_TOKENS}
    # It sends the chat's texts as one prompt, with a mark of its own behind them.
    assert isinstance(text_of(text), str) and post_json("/completions", body)


def open_known_model():
    """What a server can do is known to this client by its name; of a new name it is told once."""
    access = lm15.AccessPolicy("polydec", base_url=BASE_URL)
    lm15.register_provider(
        lm15.ProviderDefinition.chat(access, compat=lm15.OpenAIChatCompat()),
        supports=lm15.ModelSupport(function_calling=True, response_schema=True),
    )
    usual = {"temperature": 0, "max_tokens": 128, "cache": False, "num_retries": 0}
    return dspy.LM(f"polydec/{MODEL}", api_key=API_KEY, **usual)


def check_stream():
    async def read_stream():
        with dspy.context(lm=open_known_model(), adapter=dspy.JSONAdapter()):
            program = dspy.streamify(dspy.Predict(Sorting))
            return [part async for part in program(planet="Jupiter")]

    parts = asyncio.run(read_stream())
    assert len(parts) > 3 and isinstance(parts[-1].form, Planet)


def check_schema():
    with dspy.context(lm=open_known_model(), adapter=dspy.JSONAdapter()):
        assert isinstance(dspy.Predict(Sorting)(planet="Jupiter").form, Planet)
    return (
        "by JSONAdapter, with a provider that `dspy.lm15.register_provider` says can take schemas; "
        "under `openai/NAME` it asks for none"
    )


def check_tools():
    model = open_model(max_tokens=64)
    tool = dspy.Tool(weight_of)
    shown = [tool.format_as_litellm_function_call()]
    answer = model(messages=CHAT, tools=shown, tool_choice="required")[0]
    call = answer["tool_calls"][0]
    assert '"planet"' in call.function.arguments
    turns = [
        *CHAT,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "1.9e27"},
    ]
    assert text_of(model(messages=turns, tools=shown, tool_choice="none")[0])


def check_logprobs():
    answer = open_model()(messages=CHAT, logprobs=True)[0]
    assert answer["logprobs"].content


def check_embeddings():
    embedder = dspy.Embedder(f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, caching=False)
    wanted = post_json("/embeddings", {"input": "a fox"})["data"][0]["embedding"]
    found = embedder("a fox")
    assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) < 1e-6


def check_errors():
    require_refusal(lambda: open_model("gpt-4o")(QUESTION), "gpt-4o")
    require_refusal(lambda: open_model()(QUESTION, temperature=-1), "temperature")
    bad = {"temprature": 1}
    require_refusal(lambda: open_model()(QUESTION, extra_body=bad), "temprature", "temperature")


def check_several():
    async def ask_all():
        return await asyncio.gather(*(open_model().acall(q) for q in OTHER_QUESTIONS))

    for question, answer in zip(OTHER_QUESTIONS, asyncio.run(ask_all()), strict=True):
        require_equal(text_of(answer[0]), greedy_text(question))


def check_state():
    model = open_model(model_type="responses", store=True)
    first = text_of(model(QUESTION)[0])
    require_equal(first, greedy_text())
    name = model.history[-1]["response"].id
    second = text_of(model(NEXT_QUESTION, previous_response_id=name)[0])
    turns = [*CHAT, {"role": "assistant", "content": first}]
    turns.append({"role": "user", "content": NEXT_QUESTION})
    body = {"messages": turns, "max_tokens": MAX_TOKENS, "temperature": 0}
    wanted = post_json("/chat/completions", body)["choices"][0]["message"]["content"]
    require_equal(second, wanted)


run_checks("dspy", globals())
