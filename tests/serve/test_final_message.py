"""How a chat ends: the final message continued, no turn opened; and calls in the history of requests without tools."""

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

import micro
import polydec

SAID = {"role": "user", "content": "Look."}
BEGUN = {"role": "assistant", "content": "The grey fox "}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 7}'}}
CALLS = [
    SAID,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "A fox."},
]
OPENED = (
    micro.TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{#</think>#}"
)
TEMPLATES = {
    "usual": micro.TEMPLATE,
    "trims": micro.TEMPLATE.replace("m['content'] }}", "m['content'] | trim }}"),
    "strict": "{% for m in messages %}{% if m.role == 'tool' or m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
    "{% endfor %}" + micro.TEMPLATE,
    "shows": micro.TEMPLATE.replace(
        "m['content'] }}",
        "m['content'] }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}",
    )
    + "{{ tools | tojson if tools }}",
    "thinks": OPENED,
    "last": "{{ messages[0].content }}",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polydec.request.profile.QUICK", 0.05)
        paths = {n: micro.write(folder / n, context=1024, template=t) for n, t in TEMPLATES.items()}
        loaders = {n: lambda p=p: polydec.load(str(p), draft=None) for n, p in paths.items()}
        with house.served(loaders, method="plain") as served:
            yield served


@pytest.fixture(scope="module")
def http(server):
    with server.client() as client:
        yield client


def told(http, model, messages, **more):
    """The text of a chat as the model reads it."""
    body = {"model": model, "messages": messages, **more}
    answer = http.post("/tokenize", json=body)
    assert answer.status_code == 200, answer.text
    tokens = answer.json()["tokens"]
    text = http.post("/detokenize", json={"model": model, "tokens": tokens}).json()["prompt"]
    counted = http.post("/v1/chat/completions", json={**body, "max_tokens": 2}).json()
    assert counted["usage"]["prompt_tokens"] == len(tokens)
    return text


@pytest.mark.parametrize("model", ["usual", "trims", "strict", "shows"])
def test_a_final_message_is_continued(http, model):
    more = {"continue_final_message": True}
    for also in ({}, {"add_generation_prompt": False}):
        text = told(http, model, [SAID, BEGUN], **more, **also)
        assert text.endswith("assistant\nThe grey fox ")
    parts = [{"type": "text", "text": "The grey "}, {"type": "text", "text": "fox "}]
    assert told(http, model, [SAID, {**BEGUN, "content": parts}], **more) == text
    assert told(http, model, [SAID, {**BEGUN, "content": ""}], **more).endswith("assistant\n")
    twice = [SAID, BEGUN, SAID, {**BEGUN, "content": "The"}]
    assert told(http, model, twice, **more).endswith("assistant\nThe")


def test_without_it_a_final_message_is_whole(http):
    """As in vLLM, and in llama.cpp with --no-prefill-assistant."""
    assert told(http, "usual", [SAID, BEGUN]).endswith("The grey fox \nassistant\n")
    plain = told(http, "usual", [SAID], add_generation_prompt=False)
    assert plain.endswith("user\nLook.\n")


def test_what_is_continued_is_the_text_itself(http):
    """The answer is what a completion of the same text writes."""
    body = {"model": "usual", "messages": [SAID, BEGUN], "max_tokens": 8, "ignore_eos": True}
    chat = http.post("/v1/chat/completions", json={**body, "continue_final_message": True}).json()
    ids = http.post(
        "/tokenize",
        json={"model": "usual", "messages": [SAID, BEGUN], "continue_final_message": True},
    ).json()["tokens"]
    text = {"model": "usual", "prompt": ids, "max_tokens": 8, "ignore_eos": True}
    raw = http.post("/v1/completions", json=text).json()
    assert chat["choices"][0]["message"]["content"] == raw["choices"][0]["text"]


def test_thinking_that_is_continued(http):
    for content, thought in (("<think>\nA fox", True), ("<think>A</think>The", False)):
        body = {
            "model": "thinks",
            "messages": [SAID, {**BEGUN, "content": content}],
            "continue_final_message": True,
            "max_tokens": 6,
            "ignore_eos": True,
        }
        message = http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert bool(message.get("reasoning_content")) == thought, message
        assert bool(message["content"]) != thought


def test_what_cannot_be_continued(http):
    both = {"continue_final_message": True, "add_generation_prompt": True}
    for model, messages, more, says in (
        ("usual", [SAID, BEGUN], both, "are both true"),
        ("usual", [SAID], {"continue_final_message": True}, "of role 'user'"),
        ("usual", CALLS[:2], {"continue_final_message": True}, "has tool_calls"),
        ("last", [SAID, BEGUN], {"continue_final_message": True}, "does not show the final"),
        ("usual", [SAID], {"continue_final_message": 1}, "continue_final_message is 1"),
    ):
        body = {"model": model, "messages": messages, "max_tokens": 1, **more}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and says in answer.text, answer.text
        assert answer.json()["error"]["param"] == "continue_final_message"
    for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"})):
        answer = http.post(path, json={**body, "continue_final_message": True})
        assert answer.status_code == 400 and "continue_final_message" in answer.text


@pytest.mark.parametrize("model", ["usual", "trims", "strict", "shows"])
def test_calls_in_the_history_of_a_request_without_tools(http, model):
    text = told(http, model, [*CALLS, SAID])
    assert "look" in text and "A fox." in text
    inputs = [
        SAID,
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 7}'},
        {"type": "function_call_output", "call_id": "c1", "output": "A fox."},
    ]
    answer = http.post(
        "/v1/responses", json={"model": model, "input": inputs, "max_output_tokens": 2}
    )
    assert answer.status_code == 200, answer.text
    for bad, says in (
        ([{"role": "tool", "content": "x"}], "tool_call_id"),
        ([SAID, {"role": "assistant", "tool_calls": [{"id": "c"}]}], "tool_calls[0]"),
    ):
        body = {"model": model, "messages": bad, "max_tokens": 1}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and says in answer.text
