"""Tool calls: parted from the text in whatever pieces it comes, shown by the template, told in OpenAI's form."""

import json
import random

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house
import openai
from openai.types.chat import ChatCompletion

import micro
import polydec
from polydec.serve.tools import Call, Reader, read_calls

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": [1, "}"]}}\n</tool_call>'
LOOK = Call("look", '{"at": [1, "}"]}')
TEXTS = {
    "hi": ("hi", []),
    CALL: ("", [LOOK]),
    f"Well.\n{CALL}\n{CALL} \n": ("Well.", [LOOK, LOOK]),
    f"a < b <tool {CALL} then": ("a < b <toolthen", [LOOK]),
    '{"name": "look", "arguments": "{}"} ': ("", [Call("look", "{}")]),
    '[{"name": "look"}, {"name": "go", "parameters": {"x": "é"}}]': (
        "",
        [Call("look", "{}"), Call("go", '{"x": "é"}')],
    ),
    '{"name": "other", "arguments": {}}': ('{"name": "other", "arguments": {}}', []),
    '<tool_call>{"name": "other"}</tool_call> x': (
        '<tool_call>{"name": "other"}</tool_call> x',
        [],
    ),
    '<tool_call>{"name": "look"': ('<tool_call>{"name": "look"', []),
    f"[1] see {CALL}": ("[1] see", [LOOK]),
    '{"name": ["look"]}': ('{"name": ["look"]}', []),
    '[{"name": "look"}, 3]': ('[{"name": "look"}, 3]', []),
    " \n": (" \n", []),
    '{"name": "look", "arguments": [1]}': ('{"name": "look", "arguments": [1]}', []),
    "": ("", []),
    "[]": ("[]", []),
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
    }
]
SHOWN = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments['at'] }}){% endfor %}"


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: t[:30])
def test_pieces_make_no_difference(text):
    known, want = frozenset({"look", "go"}), TEXTS[text]
    assert read_calls(text, known) == want
    for seed in range(40):
        rng, reader, said, calls, at = random.Random(seed), Reader(known), "", [], 0
        while at < len(text):
            size = rng.randrange(1, 9)
            more, found = reader.feed(text[at : at + size])
            said, calls, at = said + more, calls + found, at + size
        more, found = reader.end()
        assert (said + more, calls + found) == want


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = micro.write(tmp_path_factory.mktemp("tools"), context=2048)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        file = path / name
        if file.exists() and "im_start" in file.read_text():
            template = SHOWN + micro.TEMPLATE.replace(
                "{{ m['content'] }}", "{{ m['content'] }}" + CALLS
            )
            config = (
                json.loads(file.read_text()) | {"chat_template": template}
                if name.endswith("json")
                else None
            )
            file.write_text(template if config is None else json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polydec.bench.profile.QUICK", 0.05)
        with house.served(
            {
                "tools": lambda: polydec.load(str(path)),
                "tiny": lambda: polydec.load("zoo:tiny", draft=None),
            },
            method="plain",
        ) as served:
            yield served


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


def asked(text, **more):
    """A request whose answer is bound to be `text`."""
    return {
        "model": "tools",
        "messages": [{"role": "user", "content": "Look."}],
        "tools": TOOLS,
        "max_tokens": 200,
        "extra_body": {"guided_choice": [text]},
        **more,
    }


@pytest.mark.parametrize(
    "text", [f"Well.\n{CALL}\n{CALL}", '{"name": "look", "arguments": {"at": 2}}', "No call."]
)
def test_calls_are_told_whole_and_in_streams(client, text):
    said, calls = read_calls(text, frozenset({"look"}))
    whole = client.chat.completions.create(**asked(text))
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    message = whole.choices[0].message
    assert message.content == (said or (None if calls else "")) and whole.choices[
        0
    ].finish_reason == ("tool_calls" if calls else "stop")
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls or ()] == [
        (c.name, c.arguments) for c in calls
    ]
    assert len({c.id for c in message.tool_calls or ()}) == len(calls)
    content, found, reasons = "", [], []
    for chunk in client.chat.completions.create(**asked(text, stream=True)):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            found += choice.delta.tool_calls or []
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert content == said and reasons == [whole.choices[0].finish_reason]
    assert [c.index for c in found] == list(range(len(calls)))
    assert [(c.function.name, c.function.arguments) for c in found] == [
        (c.name, c.arguments) for c in calls
    ]
    none = client.chat.completions.create(**asked(text, tool_choice="none"))
    assert none.choices[0].message.content == text and none.choices[0].message.tool_calls is None


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_behind_its_calls_says_so(client, stream):
    """Whether the model would have gone on is not told by what it had called before the last token that was asked for."""
    cut = asked(CALL + " ?" * 400, max_tokens=len(CALL) + 9, stream=stream)
    cut["extra_body"]["finish"] = False
    answer = client.chat.completions.create(**cut)
    choices = [c for part in (answer if stream else [answer]) for c in part.choices]
    said = [c.delta if stream else c.message for c in choices]
    assert [c.function.name for m in said for c in m.tool_calls or ()] == ["look"]
    assert [c.finish_reason for c in choices if c.finish_reason] == ["length"]


def test_the_template_shows_tools_and_what_they_gave(server, client):
    model = server.models.workers["tools"].model
    turns = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": 7}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "A fox."},
    ]
    answer = client.chat.completions.create(**asked("Yes.") | {"messages": turns})
    text = model.checkpoint.text.render(
        [
            {**turns[0]},
            {
                **turns[1],
                "content": "",
                "tool_calls": [{"function": {"name": "look", "arguments": {"at": 7}}}],
            },
            turns[2],
        ],
        tools=TOOLS,
    )
    assert '"description": "Looks."' in text and "look(7)" in text and "tool\nA fox." in text
    assert answer.usage.prompt_tokens == len(model.checkpoint.text.encode(text, special=False))


WRONG = [
    ({"tools": "look"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"parallel_tool_calls": False}, "parallel"),
    ({"tools": [{"type": "function", "function": {"name": "x", "strict": True}}]}, "tools"),
    ({"model": "tiny"}, "tools"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id"),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "look", "arguments": "{"}}],
                }
            ]
        },
        "arguments",
    ),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}], "tools": None}, "tool"),
]


@pytest.mark.parametrize("given, says", WRONG, ids=lambda x: str(x)[:50])
def test_what_cannot_be_honoured_is_a_400(server, given, says):
    body = {k: v for k, v in asked("x").items() if k != "extra_body"} | given
    with server.client() as http:
        answer = http.post(
            "/v1/chat/completions", json={k: v for k, v in body.items() if v is not None}
        )
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
