"""/v1/responses: what OpenAI's client reads, whole and as a stream."""

import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house
import openai
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

import polydec

TEXT = "Tell me of a fox."


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:tiny", draft=None, ngrams=None)


@pytest.fixture(scope="module")
def server(lm):
    with house.served({"tiny": lambda: lm}, method="plain") as served:
        yield served


def test_texts_equal_those_of_the_library(lm, server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
    chat = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": TEXT}]
    mine = polydec.generate(
        lm,
        chat,
        sampling=lm.sampling_with(temperature=0.0),
        max_tokens=9,
        logprobs=2,
        ignore_eos=True,
    )
    asked = {
        "model": "tiny",
        "input": TEXT,
        "instructions": "You tell stories.",
        "temperature": 0,
        "max_output_tokens": 9,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.responses.create(**asked)
    Response.model_validate(whole.model_dump(), strict=True)
    assert whole.output_text == mine.text and whole.status == "incomplete"
    assert (
        whole.incomplete_details.reason == "max_output_tokens"
        and whole.instructions == "You tell stories."
    )
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (mine.usage["prompt_tokens"], 9)
    marks = whole.output[0].content[0].logprobs
    assert [m.logprob for m in marks] == pytest.approx(
        [n.model_logp for n in mine.choices[0].logprobs]
    )
    events = list(client.responses.create(**asked, stream=True))
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type.removeprefix("response.") for e in events]
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * len(deltas),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    last = events[-1].response.model_dump()
    new = {"id", "created_at", "output"}
    assert {k: v for k, v in last.items() if k not in new} == {
        k: v for k, v in whole.model_dump().items() if k not in new
    }
    assert "".join(e.delta for e in deltas) == mine.text == events[-1].response.output_text
    # messages, and what a response gave, are an input
    again = client.responses.create(
        model="tiny",
        temperature=0,
        max_output_tokens=4,
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": TEXT}]},
            {
                "type": "message",
                **whole.output[0].model_dump(include={"id", "role", "status"}),
                "content": [{"type": "output_text", "text": "A fox."}],
            },
            {"role": "user", "content": "More."},
        ],
    )
    turns = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": "A fox."},
        {"role": "user", "content": "More."},
    ]
    assert (
        again.output_text
        == polydec.generate(
            lm, turns, sampling=lm.sampling_with(temperature=0.0), max_tokens=4
        ).text
    )
    form = client.responses.create(
        model="tiny",
        input=TEXT,
        max_output_tokens=30,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "boolean"}}},
    )
    assert form.output_text in ("true", "false") and form.status == "completed"


TOOLS = [
    {
        "type": "function",
        "name": name,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"kind": {"enum": kinds}},
            "required": ["kind"],
        },
    }
    for name, kinds in (("age", ["fox", "hen"]), ("legs", ["<bird>", "beast"]))
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "legs"}])
def test_calls_are_items_whole_and_in_streams(lm, server, choice):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
    asked = {
        "model": "tiny",
        "input": TEXT,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_output_tokens": 80,
        "temperature": 1,
        "extra_body": {"seed": 3},
    }
    whole = client.responses.create(**asked)
    Response.model_validate(whole.model_dump(), strict=True)
    (call,) = whole.output
    assert call.type == "function_call" and call.status == whole.status == "completed"
    assert call.name in (["age", "legs"] if choice == "required" else ["legs"])
    kinds = {"age": ["fox", "hen"], "legs": ["<bird>", "beast"]}
    assert json.loads(call.arguments)["kind"] in kinds[call.name]
    assert whole.parallel_tool_calls is False and [t.name for t in whole.tools] == ["age", "legs"]
    events = list(client.responses.create(**asked, stream=True))
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.model_dump())
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert [e.type.removeprefix("response.") for e in events] == [
        "created",
        "in_progress",
        "output_item.added",
        *["function_call_arguments.delta"] * len(deltas),
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added, (last,) = events[2].item, events[-1].response.output
    assert len(deltas) > 2 and "".join(deltas) == call.arguments == last.arguments
    assert (added.name, added.arguments, added.id) == (call.name, "", last.id)
    assert last.call_id == added.call_id != call.call_id
    # the call, and what it gave, are an input; a cut call is not complete
    again = client.responses.create(
        **{
            **asked,
            "tool_choice": "none",
            "max_output_tokens": 4,
            "input": [
                {"role": "user", "content": TEXT},
                call.model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
            ],
        }
    )
    written = f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
    chat = [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": written},
        {"role": "user", "content": "<tool_response>\n3\n</tool_response>"},
    ]
    assert again.usage.input_tokens == len(lm.encode_prompt(chat))
    used = whole.usage.output_tokens
    cut = client.responses.create(**asked | {"max_output_tokens": used - 12})
    assert cut.status == "incomplete" and cut.output[-1].status == "incomplete"


def test_a_text_beside_tools_is_a_message(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
    asked = {
        "model": "tiny",
        "input": TEXT,
        "tools": TOOLS,
        "max_output_tokens": 6,
        "temperature": 0,
    }
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert (
        [x.type for x in whole.output]
        == ["message"]
        == [x.type for x in events[-1].response.output]
    )
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


WRONG = [
    ({"input": "x", "tools": [TOOLS[0], TOOLS[0]]}, "tools"),
    (
        {"input": "x", "tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}},
        "tool_choice",
    ),
    ({"input": "x", "tool_choice": "required"}, "tool_choice"),
    ({"input": "x", "tools": TOOLS, "include": ["message.output_text.logprobs"]}, "include"),
    ({"input": [{"type": "function_call_output", "output": 3}], "tools": TOOLS}, "input"),
    ({"input": [{"type": "function_call", "name": 3}], "tools": TOOLS}, "input"),
    ({"input": [{"type": "function_call", "name": "a", "x": 3}], "tools": TOOLS}, "input"),
    ({"input": ""}, "input"),
    ({}, "input"),
    ({"input": [{"type": "function_call"}]}, "input"),
    ({"input": [3]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ({"input": "x", "n": 2}, "n"),
    ({"input": "x", "previous_response_id": 1}, "previous_response_id"),
    ({"input": "x", "store": 1}, "store"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
    ({"input": "x", "include": ["all"]}, "include"),
    ({"input": "x", "top_logprobs": 2}, "top_logprobs"),
    ({"input": "x", "max_tokens": 2}, "max_tokens"),
    ({"input": "x", "max_output_tokens": 10**6}, "max_output_tokens"),
    ({"input": "x", "text": {"a": 1}}, "text"),
    ({"input": "a b " * 2000}, "input"),
    ({"input": "x", "instructions": 3}, "instructions"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "stream": 1}, "stream"),
]


@pytest.mark.parametrize("body, param", WRONG, ids=lambda x: str(x)[:50])
def test_what_cannot_be_honoured_is_a_400(server, body, param):
    with server.client() as http:
        answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_an_error_under_way_is_an_event(server, monkeypatch):
    monkeypatch.setattr(
        server.worker.engine, "step", lambda: (_ for _ in ()).throw(RuntimeError("a bug"))
    )
    with (
        server.client() as http,
        http.stream("POST", "/v1/responses", json={"input": "x", "stream": True}) as answer,
    ):
        lines = [x for x in answer.iter_lines() if x]
    assert (
        lines[-2] == "event: error"
        and '"code":"internal"' in lines[-1]
        and "a bug" not in lines[-1]
    )
