"""smolagents by OpenAIModel: texts, calls, forms, and an agent that calls tools."""

from concurrent.futures import ThreadPoolExecutor

from client_checks import (
    API_KEY,
    BASE_URL,
    CHAT,
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
from smolagents import ChatMessage, OpenAIModel, ToolCallingAgent, tool

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["rock", "gas"]},
        "rings": {"type": "boolean"},
    },
    "required": ["kind", "rings"],
    "additionalProperties": False,
}


@tool
def weight_of(planet: str) -> str:
    """The weight of a planet in kg.

    Args:
        planet: Name of the planet.
    """
    return "1.9e27"


def open_model(model=MODEL, **fields):
    usual = {"temperature": 0, "max_tokens": MAX_TOKENS, "client_kwargs": {"max_retries": 0}}
    return OpenAIModel(model, api_base=BASE_URL, api_key=API_KEY, **{**usual, **fields})


def check_chat():
    require_equal(open_model().generate(CHAT).content, greedy_text())


def check_stream():
    parts = list(open_model().generate_stream(CHAT))
    require_equal("".join(part.content or "" for part in parts), greedy_text())
    assert parts[-1].token_usage.output_tokens > 0


def check_schema():
    form = {"type": "json_schema", "json_schema": {"name": "Planet", "schema": SCHEMA}}
    text = open_model(max_tokens=64).generate(CHAT, response_format=form).content
    assert '"kind"' in text and text.endswith("}")


def check_tools():
    model = open_model(max_tokens=64)
    answer = model.generate(CHAT, tools_to_call_from=[weight_of])
    call = answer.tool_calls[0]
    require_equal(call.function.name, "weight_of")
    # Its own loop, one call a step: the model may ask for more, and a final answer beside another
    # call is an error to it.
    model = open_model(max_tokens=128, parallel_tool_calls=False)
    agent = ToolCallingAgent([weight_of], model, max_steps=2, verbosity_level=0)
    agent.run(QUESTION)
    steps = [step for step in agent.memory.steps if getattr(step, "step_number", 3) <= 2]
    assert steps
    for step in steps:
        assert step.tool_calls and step.error is None, step
    return "its agent wants `parallel_tool_calls=False`"


def check_logprobs():
    answer = open_model(logprobs=True, top_logprobs=2).generate(CHAT)
    assert answer.raw.choices[0].logprobs.content
    return "in `raw`"


def check_embeddings():
    raise AbsentFeature("it has none")


def check_errors():
    require_refusal(lambda: open_model("gpt-4o").generate(CHAT), "gpt-4o", "404")
    require_refusal(lambda: open_model(temperature=-1).generate(CHAT), "temperature")
    bad = {"extra_body": {"temprature": 1}}
    require_refusal(lambda: open_model(**bad).generate(CHAT), "temprature", "temperature")


def check_several():
    def ask_once(question):
        return open_model().generate([ChatMessage("user", question)]).content

    with ThreadPoolExecutor(len(OTHER_QUESTIONS)) as pool:
        for question, text in zip(OTHER_QUESTIONS, pool.map(ask_once, OTHER_QUESTIONS)):
            require_equal(text, greedy_text(question))


def check_state():
    raise AbsentFeature("it speaks chats only")


run_checks("smolagents", globals())
