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
from polydec.laws.constraints.tool_calls import ToolCallForm
from polydec.models.text import tool_prompt
from polydec.models.text.tokenizer import Tokenizer
from polydec.request.tool_calls import OPEN, ToolCall, ToolCallReader, join_call_deltas, read_calls

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": [1, "}"]}}\n</tool_call>'
LOOK = ToolCall("look", '{"at": [1, "}"]}')
TEXTS = {
    "hi": ("hi", []),
    CALL: ("", [LOOK]),
    f"Well.\n{CALL}\n{CALL} \n": ("Well.", [LOOK, LOOK]),
    f"a < b <tool {CALL} then": ("a < b <toolthen", [LOOK]),
    '{"name": "look", "arguments": "{}"} ': ("", [ToolCall("look", "{}")]),
    '[{"name": "look"}, {"name": "go", "parameters": {"x": "é"}}]': (
        "",
        [ToolCall("look", "{}"), ToolCall("go", '{"x": "é"}')],
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
    # from the arguments on it is a call, whole or not
    f"{CALL[:-14]} so": ("so", [LOOK]),
    '<tool_call>{"name": "look", "arguments": {"at": "<tool_call>': (
        "",
        [ToolCall("look", '{"at": "<tool_call>')],
    ),
    '<tool_call>{"name": "look", "arguments": {at}}</tool_call>.': (
        ".",
        [ToolCall("look", "{at}")],
    ),
    '<tool_call>{"name": "go", "arguments": {"a\\"}": "</tool_call>"}}</tool_call>': (
        "",
        [ToolCall("go", '{"a\\"}": "</tool_call>"}')],
    ),
    '<tool_call>{"arguments": {}, "name": "go"}</tool_call>': ("", [ToolCall("go", "{}")]),
}
BROKEN = [
    '<tool_call>{"name": "look", "arguments": {"at": "<tool_call>',
    '<tool_call>{"name": "look", "arguments": {at}}</tool_call>.',
]
JSON_CALLS = '[{"name": "look", "arguments": {"at": 1}}, {"name": "go", "parameters": {"x": "é"}}]'
CUT = {
    f"Well. {CALL}": ("Well.", '{"name": "look", "arguments": '),
    CALL: ("", '{"name": "look", "arguments": '),
    CALL.replace("arguments", "parameters"): ("", '{"name": "look", "parameters": '),
    JSON_CALLS: ("", '[{"name": "look", "arguments": '),
    JSON_CALLS[1:40]: ("", '{"name": "look", "arguments": '),
}
"""Texts that call: what they say before, and what stands before the arguments of the first call."""
FORMS = (None, ToolCallForm(), ToolCallForm(tags=False), ToolCallForm(tags=False, key="parameters"))
PLAIN = (
    "a < b and <b>bold</b>",
    '{"answer": [1, 2], "name": "look"',
    '{"name": "loom", "arguments": {"a": 1',
    '[1, {"name": "look", "arguments": {',
    '<tool_call>{"name": "other", "arguments": {"a": 1',
    "<tool_call> is a tag",
    '{"names": ["look"]',
)
"""Texts that call nothing, wherever they are cut behind their first characters."""


@pytest.mark.parametrize("text", CUT, ids=lambda t: t[:30])
def test_a_call_that_is_cut_leaves_no_part_of_itself_in_the_text(text):
    known, (words, head) = frozenset({"look", "go"}), CUT[text]
    begun = text.index(head) + len(head)
    cuts = range(len(words) + 1, len(text))
    for form in FORMS:
        if form is not None and form.tags == ("<tool_call>" not in text):
            continue  # an answer that is bound to the other form
        if form is not None and not form.tags and words:
            continue
        calls = 0
        for stop in cuts:
            said, found, whole = read_calls(text[:stop], known, form, True)
            assert said.strip() == words, (text[:stop], form)
            assert all(call.name in known for call in found)
            assert bool(found) == (stop >= begun + 1), (text[:stop], form, found)
            calls += len(found)
            reader = ToolCallReader(known, form)
            parts = [reader.feed_text(x) for x in (text[: stop // 2], text[stop // 2 : stop])]
            parts.append(reader.end_text(True))
            assert "".join(x for x, _ in parts) == said
            assert join_call_deltas([p for _, more in parts for p in more]) == found
            assert reader.calls_complete == whole
        assert calls > 5


@pytest.mark.parametrize("text", PLAIN)
def test_a_text_that_calls_nothing_is_told_where_it_is_cut(text):
    known = frozenset({"look", "go"})
    assert read_calls(text, known, None, True) == (text, [], True)
    assert read_calls("a < b", known, None, True) == ("a < b", [], True)


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
    assert read_calls(text, known) == (*want, text not in BROKEN)
    for seed in range(40):
        assert in_pieces(text, ToolCallReader(known), seed) == (*want, text not in BROKEN)


def in_pieces(text, reader, seed):
    rng, said, parts, at = random.Random(seed), "", [], 0
    while at < len(text):
        size = rng.randrange(1, 9)
        more, found = reader.feed_text(text[at : at + size])
        said, parts, at = said + more, parts + found, at + size
    more, found = reader.end_text()
    return said + more, join_call_deltas(parts + found), reader.calls_complete


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


def streamed(found):
    """The calls of a stream's pieces: first an id and a name, then arguments."""
    out = []
    for part in found:
        if part.index == len(out):
            assert part.id and part.type == "function" and part.function.arguments == ""
            out.append((part.function.name, ""))
        else:
            assert part.index == len(out) - 1 and part.id is None and part.function.name is None
            out[-1] = (out[-1][0], out[-1][1] + part.function.arguments)
    return out


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
    said, calls, _ = read_calls(text, frozenset({"look"}))
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
    assert streamed(found) == [(c.name, c.arguments) for c in calls]
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
    assert [c.function.name for m in said for c in m.tool_calls or () if c.function.name] == [
        "look"
    ]
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
    text = model.checkpoint.text.render_chat(
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


# ---- calls that are bound ----

GO = {
    "type": "function",
    "function": {
        "name": "go",
        "parameters": {
            "type": "object",
            "properties": {"to": {"enum": ["<north>", "south"]}, "fast": {"$ref": "#/$defs/fast"}},
            "required": ["to", "fast"],
            "$defs": {"fast": {"type": "boolean"}},
        },
    },
}
STAY = {"type": "function", "function": {"name": "stay"}}
BOUND = [GO, STAY]


def strict(tool):
    return tool | {"function": tool["function"] | {"strict": True}}


def fits(call):
    """Whether a call is one that BOUND allows."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "stay":
        return arguments == {}
    return arguments["to"] in ("<north>", "south") and type(arguments["fast"]) is bool


def both_ways(client, body):
    """The choices of a response, and of the same request as a stream: text, calls by name and arguments, and the reason."""
    whole = client.chat.completions.create(**body)
    ChatCompletion.model_validate(whole.model_dump(), strict=True)
    parts = [["", [], None] for _ in whole.choices]
    for chunk in client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            part = parts[choice.index]
            part[0] += choice.delta.content or ""
            part[1] += choice.delta.tool_calls or []
            part[2] = choice.finish_reason or part[2]
    assert [(said, streamed(calls), reason) for said, calls, reason in parts] == [
        (
            c.message.content or "",
            [(x.function.name, x.function.arguments) for x in c.message.tool_calls or ()],
            c.finish_reason,
        )
        for c in whole.choices
    ]
    return whole.choices, parts


SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def bound(model, **more):
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Look."}],
        "tools": BOUND,
        "max_tokens": 120,
        "temperature": 1.5,
        "seed": 4,
        "n": 4,
        **more,
    }


@pytest.mark.parametrize("model", ["tools", "tiny"])
@pytest.mark.parametrize(
    "choice, names",
    [
        ("required", {"go", "stay"}),
        ({"type": "function", "function": {"name": "go"}}, {"go"}),
        ({"type": "function", "function": {"name": "stay"}}, {"stay"}),
    ],
    ids=["required", "go", "stay"],
)
def test_a_call_that_must_be_is_one(client, model, choice, names):
    for many in (True, False):
        if many and choice == "required":
            continue  # how many there are is the model's affair
        choices, parts = both_ways(
            client, bound(model, tool_choice=choice, parallel_tool_calls=many)
        )
        for c, (_, calls, _) in zip(choices, parts, strict=True):
            assert c.finish_reason == "tool_calls" and c.message.content is None
            assert len(c.message.tool_calls) == 1 and fits(c.message.tool_calls[0])
            assert c.message.tool_calls[0].function.name in names
            if c.message.tool_calls[0].function.name == "go":
                assert len(calls) > 3  # a name, and arguments in several pieces


@pytest.mark.parametrize("model", ["tools", "tiny"])
def test_an_answer_that_is_cut_has_no_reason_to_call(client, model):
    body = bound(model, tool_choice="required", tools=[GO], n=1, temperature=0)
    kinds = set()
    for most in range(1, 60, 4):
        (choice,), _ = both_ways(client, {**body, "max_tokens": most})
        if choice.finish_reason == "length":
            kinds.add(len(choice.message.tool_calls or ()) > 0)
    assert kinds == {False, True}
    (choice,), _ = both_ways(client, {**body, "stop": ['"fast']})
    assert choice.finish_reason == "stop" and not choice.message.tool_calls[
        0
    ].function.arguments.endswith("}")


def test_an_answer_that_is_cut_behind_a_call_is_cut(client):
    body = asked(CALL + "~" * 300) | {"max_tokens": len(CALL) + 5}  # no token has two of them
    (choice,), _ = both_ways(client, body)
    assert choice.message.tool_calls[0].function.name == "look"
    assert choice.finish_reason == "length"


def test_strict_functions_bind_calls_that_need_not_be(server, client):
    """The model is made to call by a bias for what a call begins with; it may stay a text."""
    for model, begins in (("tools", "{"), ("tiny", "<")):
        text = server.models.workers[model].model.checkpoint.text
        (first,) = text.encode(begins, special=False)
        called = 0
        for bias in (0, 100):
            body = bound(model, tools=[strict(GO), STAY], logit_bias={str(first): bias})
            choices, _ = both_ways(client, {**body, "max_tokens": 60})
            for c in choices:
                calls = c.message.tool_calls or ()
                called += len(calls)
                if c.finish_reason == "tool_calls":
                    assert all(fits(x) for x in calls if x.function.name == "go")
        assert called or model == "tiny"


def test_one_call_at_most(server, client):
    text = server.models.workers["tools"].model.checkpoint.text
    first = {str(text.encode(x, special=False)[0]): 100 for x in "{["}
    body = bound("tools", parallel_tool_calls=False, logit_bias=first, max_tokens=200)
    choices, _ = both_ways(client, body)
    assert all(len(c.message.tool_calls or ()) <= 1 for c in choices)
    assert any(c.message.tool_calls for c in choices)


def test_a_format_binds_what_is_not_a_call(client):
    choices, _ = both_ways(client, bound("tiny", response_format=FORM, n=6))
    for c in choices:
        if c.message.tool_calls:
            assert {x.function.name for x in c.message.tool_calls} <= {"go", "stay"}
        else:
            assert type(json.loads(c.message.content)["a"]) is bool


@pytest.mark.parametrize("model", ["tools", "tiny"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "go"}}])
@pytest.mark.parametrize("form", [{"type": "json_object"}, FORM], ids=["object", "schema"])
def test_a_tool_that_must_be_called_comes_before_a_format(client, model, choice, form):
    """A format is of the text, as OpenAI has it: an answer that must be a call has none."""
    body = bound(model, tool_choice=choice, max_tokens=200)
    plain, _ = both_ways(client, body)
    formed, _ = both_ways(client, {**body, "response_format": form})
    calls = [[call.function for call in c.message.tool_calls or ()] for c in formed]
    assert calls == [[call.function for call in c.message.tool_calls or ()] for c in plain]
    assert all(calls) and not any(c.message.content for c in formed)


@pytest.mark.parametrize("field", ["guided_choice", "guided_regex", "span_of"])
def test_any_other_constraint_beside_a_tool_that_must_be_called_is_refused_by_name(server, field):
    body = bound("tiny", tool_choice="required")
    with server.client() as http:
        given = {"guided_choice": ["a"]}.get(field, "a")
        answer = http.post("/v1/chat/completions", json={**body, field: given})
        wrong = {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}
        format_wrong = http.post("/v1/chat/completions", json={**body, "response_format": wrong})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "tool_choice"
    assert f"beside {field}" in error["message"]
    # A format that is wrong is refused, even though it would bind nothing.
    assert format_wrong.status_code == 400
    assert format_wrong.json()["error"]["param"] == "response_format"


def test_a_format_leaves_room_for_calls(server, client):
    """Where calls have tags, a format binds what is not a call, and calls stay possible."""
    text = server.models.workers["tiny"].model.checkpoint.text
    first = text.encode(OPEN, special=False)[0]
    body = bound("tiny", response_format=FORM, logit_bias={str(first): 100}, max_tokens=200)
    choices, _ = both_ways(client, body)
    assert any(c.message.tool_calls for c in choices)


# ---- the default prompt ----

PLAIN = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "Well.",
        "tool_calls": [{"function": {"name": "look", "arguments": {"at": 7}}}] * 2,
    },
    {"role": "tool", "tool_call_id": "c1", "content": "A fox."},
    {"role": "tool", "tool_call_id": "c2", "content": "A hen."},
]
RESULTS = "<tool_response>\nA fox.\n</tool_response>\n<tool_response>\nA hen.\n</tool_response>"
WRITTEN = '<tool_call>\n{"name": "look", "arguments": {"at": 7}}\n</tool_call>'


def text_of(template):
    return Tokenizer(micro_tokenizer(), template=template)


def micro_tokenizer():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())


def test_a_template_without_a_place_gets_the_default_prompt():
    told = tool_prompt.tool_prompt_text(TOOLS)
    assert '"description": "Looks."' in told and OPEN in told
    text = text_of(PLAIN)
    assert not text.shows_tools and text_of(SHOWN + PLAIN).shows_tools
    shown = tool_prompt.render_tool_chat(text, TURNS, TOOLS)
    assert shown == (
        f"<system>Be brief.\n\n{told}\n<user>Look.\n<assistant>Well.\n{WRITTEN}\n{WRITTEN}\n<user>{RESULTS}\n"
    )
    refuses = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}"
    drops = PLAIN.replace("<{{", "{% if m['role'] != 'system' %}<{{").replace(
        "\n{%", "\n{% endif %}{%"
    )
    for template in (refuses + PLAIN, drops):
        shown = tool_prompt.render_tool_chat(text_of(template), TURNS[1:2], TOOLS)
        assert shown == f"<user>{told}\n\nLook.\n"


def test_calls_are_texts_where_tools_are_not_shown(server, client):
    turns = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": 7}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "A fox."},
    ]
    lm = server.models.workers["tiny"].model
    said = [
        turns[0],
        {"role": "assistant", "content": WRITTEN},
        {"role": "user", "content": "<tool_response>\nA fox.\n</tool_response>"},
    ]
    for choice, shown in (
        ("none", lm.checkpoint.text.render_chat(said)),
        ("auto", tool_prompt.render_tool_chat(lm.checkpoint.text, said, TOOLS)),
    ):
        answer = client.chat.completions.create(
            model="tiny", messages=turns, tools=TOOLS, tool_choice=choice, max_tokens=4
        )
        assert answer.usage.prompt_tokens == len(lm.checkpoint.text.encode(shown, special=False))


def refused(schema):
    """A strict function whose arguments cannot be kept to a schema."""
    return [{"type": "function", "function": {"name": "go", "parameters": schema, "strict": True}}]


WRONG = [
    ({"tools": "look"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
    ({"parallel_tool_calls": 3}, "parallel_tool_calls"),
    (
        {"tool_choice": "any"},
        "tool_choice is 'any': it must be 'auto', 'none', 'required' or {'type'",
    ),
    ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
    ({"tool_choice": "required", "tools": None}, "tool_choice is 'required' without tools"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "go"}}},
        "tool_choice names 'go': tools has 'look'",
    ),
    ({"tools": [*TOOLS, *TOOLS]}, "tools has two functions of the name 'look'"),
    ({"tool_choice": "required", "guided_choice": ["x"]}, "tool_choice"),
    ({"tools": refused({"type": "object", "properties": {"a": {"type": "x"}}})}, "#/properties/a"),
    ({"tools": refused({"type": "string"})}, "function 'go' has parameters of type 'string'"),
    ({"tools": refused({"$ref": "#"})}, "function 'go'"),
    ({"tools": [{"type": "function", "function": {"name": "x", "strict": 1}}]}, "strict"),
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
]


@pytest.mark.parametrize("given, says", WRONG, ids=lambda x: str(x)[:50])
def test_what_cannot_be_honoured_is_a_400(server, given, says):
    body = {k: v for k, v in asked("x").items() if k != "extra_body"} | given
    with server.client() as http:
        answer = http.post(
            "/v1/chat/completions", json={k: v for k, v in body.items() if v is not None}
        )
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text
