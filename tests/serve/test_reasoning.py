"""Thinking apart from the answer, in chats and responses, whole and in streams."""

import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house
import openai

import micro
import polydec

OPENS, CLOSES = "<think>", "</think>"
SPOKEN = "{# " + OPENS + CLOSES + " #}" + micro.TEMPLATE
OPENED = SPOKEN.replace("assistant\n{% endif", "assistant\n" + OPENS + "\n{% endif")
MODELS = {
    "text": {"template": SPOKEN},  # the marks are ordinary text
    "token": {"template": micro.TEMPLATE, "more": (OPENS, CLOSES)},  # control tokens
    "opened": {"template": OPENED, "more": (OPENS, CLOSES)},  # the prompt opens the thinking
    "plain": {"template": micro.TEMPLATE},
}
ASKED = {"messages": [{"role": "user", "content": "Look."}], "seed": 3}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["fox", "boat"]}},
            "required": ["at"],
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinking")
    paths = {
        name: micro.write(folder / name, context=1024, **more) for name, more in MODELS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polydec.request.profile.QUICK", 0.05)
        loaders = {
            name: lambda path=path: polydec.load(str(path), draft=None)
            for name, path in paths.items()
        }
        with house.served(loaders, method="plain") as served:
            yield served


@pytest.fixture(scope="module")
def http(server):
    with server.client() as client:
        yield client


def post(http, body, path="/v1/chat/completions"):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http, body):
    """Of each choice what was thought, what was said, calls and the reason, from a stream; and the chunks."""
    out, chunks = {}, []
    with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line[6:]))
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            entry = out.setdefault(choice["index"], ["", "", [], None])
            entry[0] += choice["delta"].get("reasoning_content", "")
            entry[1] += choice["delta"].get("content") or ""
            entry[2] += choice["delta"].get("tool_calls", [])
            entry[3] = choice["finish_reason"] or entry[3]
    return out, chunks


def both(http, body):
    """The message of each choice; a stream of the same request says the same."""
    whole = post(http, body)
    parts, _ = streamed(http, body)
    for choice in whole["choices"]:
        message, told = choice["message"], parts[choice["index"]]
        assert told[0] == message.get("reasoning_content", "")
        assert told[1] == (message["content"] or "")
        assert told[3] == choice["finish_reason"]
        calls = message.get("tool_calls", [])
        assert "".join(c["function"].get("name", "") for c in told[2]) == "".join(
            c["function"]["name"] for c in calls
        )
    return whole


def written(model, text, **more):
    """A request whose raw text is bound to be this."""
    return {**ASKED, "model": model, "guided_choice": [text], "max_tokens": 200, **more}


@pytest.mark.parametrize(
    "text, thought, said",
    [
        ("<think>\nA fox.\n</think>\n\nA boat.", "A fox.", "A boat."),
        ("<think></think>A boat.", None, "A boat."),
        ("A <think>boat</think>.", None, "A <think>boat</think>."),
        ("A boat.", None, "A boat."),
        ("<think>A fox.", "A fox.", ""),
    ],
)
def test_marks_that_are_text(http, text, thought, said):
    for n in (1, 2):
        whole = both(http, written("text", text, n=n))
        for choice in whole["choices"]:
            assert choice["message"].get("reasoning_content") == thought
            assert choice["message"]["content"] == said
    raw = both(http, written("text", text, reasoning_format="none"))["choices"][0]["message"]
    assert raw["content"] == text and "reasoning_content" not in raw
    plain = both(http, written("plain", text))["choices"][0]["message"]
    assert plain["content"] == text and "reasoning_content" not in plain
    quiet = both(http, written("text", text, include_reasoning=False))["choices"][0]["message"]
    assert quiet["content"] == said and "reasoning_content" not in quiet
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 2 * bool(thought)


def test_thinking_that_is_cut(http):
    """Wherever max_tokens cuts it, no part of a mark is told."""
    text, seen = "<think>A fox.</think>A boat.", set()
    for most in range(1, 40):
        body = written("text", text, max_tokens=most)
        choice = both(http, body)["choices"][0]
        thought = choice["message"].get("reasoning_content", "")
        said = choice["message"]["content"]
        assert "A fox.".startswith(thought) and "A boat.".startswith(said), choice
        assert not said or thought == "A fox."
        seen.add((thought, said, choice["finish_reason"]))
    assert ("A fox.", "", "length") in seen and ("A fox.", "A boat.", "stop") in seen
    assert ("", "", "length") in seen


def test_stop_texts_end_the_answer_alone(http):
    text = "<think>A fox. No.</think>A boat. No."
    choice = both(http, written("text", text, stop=["fox", " No"]))["choices"][0]
    assert choice["message"]["reasoning_content"] == "A fox. No."
    assert choice["message"]["content"] == "A boat." and choice["finish_reason"] == "stop"
    raw = both(http, written("text", text, stop=["fox"], reasoning_format="none"))["choices"][0]
    assert raw["message"]["content"] == "<think>A "


def test_calls_behind_thinking(http):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "fox"}}\n</tool_call>'
    text = f"<think>{call} or not.</think>{call}"
    choice = both(http, written("text", text, tools=[TOOL]))["choices"][0]
    assert choice["message"]["reasoning_content"] == f"{call} or not."
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["look"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None


# ---- control tokens ----

BUDGETS = [
    {"reasoning_budget": 5},
    {"thinking_token_budget": 5},
    {"thinking_budget_tokens": 5},
    {"reasoning_budget_tokens": 5},
    {"reasoning": {"max_tokens": 5}},
]


def thinks(server, model, **more):
    """A request whose answer begins with an opening mark, where the prompt does not hold it, and ends nothing by itself."""
    text = server.models.workers[model].model.checkpoint.text
    ids = {mark: text.tokenizer.token_to_id(mark) for mark in (OPENS, CLOSES)}
    return {
        **ASKED,
        "model": model,
        "max_tokens": 40,
        "temperature": 1.0,
        "ignore_eos": True,
        "bad_token_ids": [ids[CLOSES], 0],
        **more,
    }, ids


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_budget_ends_the_thinking(server, http, budget):
    body, _ = thinks(server, "opened", **budget)
    del body["bad_token_ids"]
    body["logit_bias"] = {}
    whole = both(http, {**body, "n": 3})
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] <= 15
    ended = 0
    for choice in whole["choices"]:
        ended += bool(choice["message"]["content"])
    assert ended == 3
    free = post(http, {**body, **{name: -1 for name in budget if name != "reasoning"}, "n": 3})
    assert free["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 0


def test_a_budget_is_kept_to_the_token_and_changes_nothing_else(server):
    """Up to the budget the text is that of a request without one; then comes the mark."""
    model = server.models.workers["opened"].model
    close = model.checkpoint.text.tokenizer.token_to_id(CLOSES)
    never = polydec.Sampling(temperature=1.0, bad_token_ids=(0,), logit_bias={close: -50.0})
    fields = {"sampling": never, "max_tokens": 24, "ignore_eos": True, "seed": 5}
    ask = [{"role": "user", "content": "Look."}]
    free = polydec.generate(model, ask, reasoning_format="auto", **fields)
    assert close not in free.token_ids and free.text == "" and free.reasoning
    assert free.usage["reasoning_tokens"] == 24
    for budget in (0, 1, 7):
        for method in ("plain", "prompt-lookup"):
            bound = polydec.generate(
                model,
                ask,
                reasoning_format="auto",
                reasoning_budget=budget,
                method=method,
                **fields,
            )
            assert bound.token_ids[: budget + 1] == (*free.token_ids[:budget], close)
            assert bound.usage["reasoning_tokens"] == budget and bound.text


def test_a_soft_end_pushes_the_mark_before_the_budget_is_spent(server, http):
    """In the last tenth of the budget alone, and by so much a token: the texts agree until it begins."""
    model = server.models.workers["opened"].model
    close = model.checkpoint.text.tokenizer.token_to_id(CLOSES)
    never = polydec.Sampling(temperature=1.0, bad_token_ids=(0,), logit_bias={close: -50.0})
    fields = {"sampling": never, "max_tokens": 30, "ignore_eos": True, "seed": 5}
    ask = [{"role": "user", "content": "Look."}]
    fields |= {"reasoning_format": "auto", "reasoning_budget": 20}
    hard = polydec.generate(model, ask, **fields)
    ends = {}
    for push in (0.5, 100.0):
        for method in ("plain", "prompt-lookup"):
            soft = polydec.generate(model, ask, reasoning_push=push, method=method, **fields)
            ends[push, method] = soft.token_ids.index(close)
            at = ends[push, method]
            assert soft.token_ids[:at] == hard.token_ids[:at]
    # A push of 100 is strong enough behind token 19, the first beyond nine tenths of 20; one of a half never is.
    assert hard.token_ids.index(close) == 20 and set(ends.values()) == {19, 20}
    assert [ends[100.0, m] for m in ("plain", "prompt-lookup")] == [19, 19]
    body = {**ASKED, "model": "opened", "reasoning": {"max_tokens": 20}, "ignore_eos": True}
    body |= {"logit_bias": {str(close): -50}, "max_tokens": 30, "temperature": 1.0}
    for push, thought in ((0, 20), (100, 19)):
        usage = post(http, {**body, "reasoning_push": push})["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == thought
    with pytest.raises(ValueError, match="reasoning_push is 2: it softens the end of a budget"):
        polydec.generate(model, ask, **{**fields, "reasoning_budget": None}, reasoning_push=2.0)


def test_budgets_that_cannot_be_kept(http):
    for body, says in (
        ({"model": "plain", "reasoning_budget": 5}, "says how it thinks"),
        ({"model": "opened", "reasoning_budget": -2}, "reasoning_budget is -2"),
        ({"model": "opened", "thinking_token_budget": "5"}, "thinking_token_budget is '5'"),
        ({"model": "opened", "reasoning_budget": True}, "reasoning_budget is True"),
        ({"model": "opened", "reasoning": {"max_tokens": 1.5}}, "reasoning.max_tokens is 1.5"),
        (
            {"model": "opened", "reasoning_budget": 5, "thinking_budget_tokens": 6},
            "are both given and differ",
        ),
        ({"model": "opened", "reasoning_format": "deepseek-legacy"}, "reasoning_format is"),
        ({"model": "opened", "include_reasoning": 1}, "include_reasoning is 1"),
    ):
        answer = http.post("/v1/chat/completions", json={**ASKED, **body, "max_tokens": 2})
        assert answer.status_code == 400 and says in answer.text, (body, answer.text)


SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": ["fox", "boat"]}},
    "required": ["at"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("model", ["opened", "token", "text"])
def test_a_constraint_binds_the_answer_alone(server, http, model):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {
        **ASKED,
        "model": model,
        "response_format": form,
        "temperature": 1.5,
        "reasoning_budget": 6,
        "max_tokens": 120,
        "n": 4,
        "finish": True,
    }
    whole, thought = both(http, body), 0
    for choice in whole["choices"]:
        assert json.loads(choice["message"]["content"])["at"] in ("fox", "boat"), choice
        assert choice["finish_reason"] == "stop"
        thought += bool(choice["message"].get("reasoning_content"))
    assert thought or model != "opened"
    raw = both(
        http,
        {k: v for k, v in body.items() if k != "reasoning_budget"} | {"reasoning_format": "none"},
    )
    for choice in raw["choices"]:
        assert json.loads(choice["message"]["content"])["at"] in ("fox", "boat")


def test_a_call_that_is_required_comes_behind_the_thinking(http):
    pytest.importorskip("llguidance")
    body = {
        **ASKED,
        "model": "opened",
        "tools": [TOOL],
        "tool_choice": "required",
        "reasoning_budget": 4,
        "temperature": 1.0,
        "max_tokens": 200,
    }
    choice = both(http, body)["choices"][0]
    assert choice["message"]["reasoning_content"] and choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"][:1]
    assert json.loads(call["function"]["arguments"])["at"] in ("fox", "boat")


def test_a_model_may_think_before_a_constraint(server, http):
    """Where the prompt opens no thinking and the request asks for some, the opening mark may come, and the constraint begins
    behind it; without that it begins at once."""
    text = server.models.workers["token"].model.checkpoint.text
    opens, closes = map(text.tokenizer.token_to_id, (OPENS, CLOSES))
    body = {
        **ASKED,
        "model": "token",
        "guided_regex": "(fox|boat)",
        "logit_bias": {str(opens): 60, str(closes): -50},
        "temperature": 1.0,
        "reasoning_budget": 3,
        "max_tokens": 40,
    }
    body["logit_bias"][str(opens)] = 0
    apart = [both(http, {**body, "seed": seed})["choices"][0]["message"] for seed in range(6)]
    assert all(message["content"] in ("fox", "boat") for message in apart)
    body["logit_bias"][str(opens)] = 60
    apart += [both(http, body | {"seed": 9})["choices"][0]["message"]]
    assert any(message.get("reasoning_content") for message in apart)
    del body["reasoning_budget"]
    message = both(http, body)["choices"][0]["message"]
    assert message["content"] in ("fox", "boat") and "reasoning_content" not in message


# ---- responses ----


def test_responses(server, http):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
    more = {"extra_body": {"guided_choice": ["<think>A fox.</think>A boat."], "seed": 3}}
    asked = {"model": "text", "input": "Look.", "max_output_tokens": 60}
    whole = client.responses.create(**asked, **more)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.output[0].content[0].text == "A fox." and whole.output_text == "A boat."
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    thought, said, items, last = "", "", [], None
    for event in client.responses.create(**asked, **more, stream=True):
        if event.type == "response.reasoning_text.delta":
            thought += event.delta
        if event.type == "response.output_text.delta":
            said += event.delta
        if event.type == "response.output_item.done":
            items.append(event.item.type)
        last = event
    assert (thought, said, items) == ("A fox.", "A boat.", ["reasoning", "message"])
    assert last.type == "response.completed" and [i.type for i in last.response.output] == items
    again = [{"role": "user", "content": "Look."}, *(i.model_dump() for i in whole.output)]
    again.append({"role": "user", "content": "And?"})
    assert client.responses.create(**asked | {"input": again}).output
    cut = client.responses.create(**asked | {"max_output_tokens": 9}, **more)
    assert cut.status == "incomplete" and cut.output[0].type == "reasoning"


def test_earlier_thinking_is_taken_back(server, http):
    """Clients send what they got: the template is told of it, whether it shows it or not."""
    message = {"role": "assistant", "content": "A boat.", "reasoning_content": "A fox."}
    for given in (
        message,
        {**message, "reasoning": "A fox."},
        {"role": "assistant", "content": "A boat.", "reasoning": "A fox."},
    ):
        body = {**ASKED, "model": "text", "max_tokens": 2}
        body["messages"] = [*ASKED["messages"], given, *ASKED["messages"]]
        assert post(http, body)["choices"]
    bad = {**body, "messages": [*ASKED["messages"], {**message, "reasoning_content": 5}]}
    answer = http.post("/v1/chat/completions", json=bad)
    assert answer.status_code == 400 and "messages[1].reasoning_content" in answer.text
