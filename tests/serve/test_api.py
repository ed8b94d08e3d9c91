"""The server's answers: equal to the library's, whole or as a stream, in the forms that OpenAI documents."""

import json
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house
import httpx
import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import polydec
from polydec.laws.shapers.sampling import all_sampling_fields
from polydec.methods.registry import registry, steer
from polydec.serve.body import IDLE, ONLY
from polydec.serve.settings import RequestLimits
from project_paths import PROJECT_ROOT

CHAT = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me of a fox."},
]
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}


def post(http, body, path="/v1/completions"):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(http, body, path="/v1/completions"):
    """The events of a stream, without [DONE], which must be the last."""
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith(
            "text/event-stream"
        )
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def idle(server, seconds=20.0):
    """Nothing is under way, soon."""
    end = time.monotonic() + seconds
    while (
        server.worker.live or server.worker.answers or server.worker._jobs
    ) and time.monotonic() < end:
        time.sleep(0.01)
    return not server.worker.live and not server.worker.answers and not server.worker._jobs


ASKED = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3, "n": 3},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 1},
    {"method": "draft-model", "options": {"depth": 3}},
    {"method": "prompt-lookup", "repetition_penalty": 1.3},
    {"stop": [" the", "."], "include_stop_str_in_output": True},
    {"logit_bias": {"279": -100}, "min_tokens": 4},
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: "-".join(a))
def test_texts_equal_those_of_the_library(lm, http, asked):
    sampling = {k: v for k, v in asked.items() if k in all_sampling_fields()}
    rest = {k: v for k, v in asked.items() if k not in all_sampling_fields()}
    given = {"include_stop" if k == "include_stop_str_in_output" else k: v for k, v in rest.items()}
    given = {
        "method": "auto",
        "seed": 0,
        **given,
        "sampling": lm.sampling_with(**sampling),
        "max_tokens": 24,
    }
    body = {"seed": 0, **asked, "max_tokens": 24}
    for path, prompt, mine in (
        (
            "/v1/completions",
            {"prompt": "The old river"},
            polydec.generate(lm, "The old river", raw=True, **given),
        ),
        ("/v1/chat/completions", {"messages": CHAT}, polydec.generate(lm, CHAT, **given)),
    ):
        theirs = post(http, {**body, **prompt}, path)
        texts = [c["text"] if "text" in c else c["message"]["content"] for c in theirs["choices"]]
        assert texts == [c.text for c in mine.choices]
        assert [c["finish_reason"] for c in theirs["choices"]] == [
            c.finish_reason for c in mine.choices
        ]
        assert theirs["usage"]["completion_tokens"] == mine.usage["completion_tokens"]
        assert theirs["usage"]["prompt_tokens"] == mine.usage["prompt_tokens"]
        parts = [""] * len(texts)
        for event in stream(http, {**body, **prompt}, path):
            for c in event["choices"]:
                parts[c["index"]] += c["text"] if "text" in c else c["delta"].get("content", "")
        assert parts == texts


def test_several_prompts_are_answered_in_order(lm, http):
    prompts = ["The fox", "A boat", "Two rivers and"]
    out = post(http, {"prompt": prompts, "n": 2, "temperature": 0.7, "seed": 5, "max_tokens": 8})
    assert [c["index"] for c in out["choices"]] == list(range(6))
    want = [
        c.text
        for p in prompts
        for c in polydec.generate(
            lm, p, raw=True, n=2, seed=5, sampling=lm.sampling_with(temperature=0.7), max_tokens=8
        ).choices
    ]
    assert [c["text"] for c in out["choices"]] == want
    ids = [list(lm.encode_prompt(p, raw=True)) for p in prompts]
    again = post(http, {"prompt": ids, "n": 2, "temperature": 0.7, "seed": 5, "max_tokens": 8})
    assert [c["text"] for c in again["choices"]] == want
    echoed = post(http, {"prompt": prompts, "echo": True, "temperature": 0, "max_tokens": 4})
    assert all(c["text"].startswith(p) for c, p in zip(echoed["choices"], prompts))


def test_log_probabilities(lm, http):
    mine = polydec.generate(
        lm, CHAT, logprobs=3, max_tokens=10, sampling=lm.sampling_with(temperature=0.0)
    )
    body = {
        "messages": CHAT,
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 10,
        "temperature": 0,
    }
    whole = post(http, body, "/v1/chat/completions")["choices"][0]["logprobs"]["content"]
    assert [t["logprob"] for t in whole] == pytest.approx(
        [t.model_logp for t in mine.choices[0].logprobs]
    )
    assert all(
        len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["logprob"] >= t["logprob"]
        for t in whole
    )
    assert b"".join(bytes(t["bytes"] or ()) for t in whole).decode() == mine.text
    parts = [
        t
        for e in stream(http, body, "/v1/chat/completions")
        for c in e["choices"]
        if c["logprobs"]
        for t in c["logprobs"]["content"]
    ]
    assert parts == whole
    old = post(http, {"prompt": "The", "logprobs": 2, "max_tokens": 6})["choices"][0]
    marks = old["logprobs"]
    assert {len(v) for v in marks.values()} == {6}
    assert all(
        old["text"][at:].startswith(t)
        for at, t in zip(marks["text_offset"], marks["tokens"])
        if t[:1] != "<"
    )


def scored(lm, prompt):
    """Of each token of a prompt behind the first its log-probability and its rank, a token at a time."""
    ids, out = lm.encode_prompt(prompt, raw=True), []
    for at in range(1, len(ids)):
        first = (
            polydec.generate(
                lm,
                ids[:at],
                max_tokens=1,
                logprobs=64,
                sampling=lm.sampling_with(temperature=0.0, allowed_token_ids=[ids[at]]),
            )
            .choices[0]
            .logprobs[0]
        )
        likelier = sum(logp > first.model_logp for _, logp in first.top)
        out.append((first.model_logp, likelier + 1 if likelier < 64 else None))
    return ids, out


def test_log_probabilities_of_prompts(lm, http):
    prompts = ["The old river ran é to", "A", "Two rivers and a boat " * 20]
    body = {"echo": True, "logprobs": 2, "temperature": 0, "max_tokens": 3}
    together = post(http, {**body, "prompt": prompts})["choices"]
    for prompt, choice in zip(prompts, together, strict=True):
        marks, (ids, want) = choice["logprobs"], scored(lm, prompt)
        assert {len(v) for v in marks.values()} == {len(ids) + 3}
        assert marks["token_logprobs"][0] is None and marks["top_logprobs"][0] is None
        assert marks["token_logprobs"][1 : len(ids)] == pytest.approx(
            [logp for logp, _ in want], abs=1e-4
        )
        assert choice["text"].startswith(prompt)
        for at, token in zip(marks["text_offset"], marks["tokens"]):
            assert choice["text"].startswith(token, at) or token[:2] == "<|" or "\ufffd" in token
        assert marks["text_offset"][len(ids)] == len(prompt)
        for token, logp, top in zip(
            marks["tokens"][1:], marks["token_logprobs"][1:], marks["top_logprobs"][1:]
        ):
            assert "\ufffd" in token or (2 <= len(top) <= 3 and top[token] == logp)
        alone = post(http, {**body, "prompt": list(ids), "max_tokens": 0})["choices"][0]
        assert alone["finish_reason"] == "length" and alone["text"] == prompt
        assert alone["logprobs"]["tokens"] == marks["tokens"][: len(ids)]
        assert alone["logprobs"]["token_logprobs"][1:] == pytest.approx(
            marks["token_logprobs"][1 : len(ids)], abs=1e-4
        )
        merged = {name: [] for name in marks}
        events = stream(http, {**body, "prompt": prompt})
        for part in (c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]):
            merged = {name: merged[name] + part[name] for name in merged}
        assert "".join(c["text"] for e in events for c in e["choices"]) == choice["text"]
        assert merged["tokens"] == marks["tokens"] and merged["text_offset"] == marks["text_offset"]
        listed = post(http, {"prompt": prompt, "prompt_logprobs": 1, "n": 2, "max_tokens": 1})[
            "choices"
        ]
        assert listed[0]["prompt_logprobs"] == listed[1]["prompt_logprobs"]
        for at, (logp, rank) in enumerate(want, 1):
            own = listed[0]["prompt_logprobs"][at][str(ids[at])]
            assert own["logprob"] == pytest.approx(logp, abs=1e-4) and (
                rank is None or own["rank"] == rank
            )
            assert sorted(e["rank"] for e in listed[0]["prompt_logprobs"][at].values())[0] == 1
    silent = post(http, {**body, "prompt": prompts, "max_tokens": 0, "polydec": True})
    assert silent["usage"]["completion_tokens"] == 0 and silent["polydec"]["pieces"] == [[], [], []]
    chat = post(
        http, {"messages": CHAT, "prompt_logprobs": 0, "max_tokens": 1}, "/v1/chat/completions"
    )
    assert (
        len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
        and chat["prompt_logprobs"][0] is None
    )


def streamed_marks(http, body, count=1):
    """The log-probabilities of each choice of a stream, put together; and how many chunks had some."""
    chunks, got = 0, [{} for _ in range(count)]
    for event in stream(http, body):
        for choice in event["choices"]:
            for name, some in (choice["logprobs"] or {}).items():
                got[choice["index"]].setdefault(name, []).extend(some)
            chunks += choice["logprobs"] is not None
    return got, chunks


def test_offsets_of_a_stream_count_text_that_is_held_back(http):
    body = {"prompt": "The fox and the", "method": "plain", "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": 12, "logprobs": 0}
    whole = post(http, body)["choices"][0]
    # each of these beginnings may become the stop string, until the last character tells that it does not
    body["stop"] = [whole["text"][:9] + "\x07", whole["text"][12:20] + "\x07"]
    (marks,), chunks = streamed_marks(http, body)
    assert chunks > 9 and marks["text_offset"] == whole["logprobs"]["text_offset"]


def test_the_best_of_several_are_those_of_the_highest_mean_log_probability(http, lm):
    prompts = ["Once upon a time", "The old river"]
    body = {"max_tokens": 6, "temperature": 1.5, "seed": 7, "method": "plain", "ignore_eos": True}
    drawn = post(http, {**body, "prompt": prompts, "n": 5, "logprobs": 0})["choices"]
    best = post(http, {**body, "prompt": prompts, "n": 2, "best_of": 5, "polydec": True})
    means = [sum(c["logprobs"]["token_logprobs"]) / 6 for c in drawn]
    assert len(set(means)) == 10
    for at in range(2):
        ranked = sorted(range(5 * at, 5 * at + 5), key=lambda i: -means[i])[:2]
        told = best["choices"][2 * at : 2 * at + 2]
        assert [c["text"] for c in told] == [drawn[i]["text"] for i in ranked]
        assert [c["index"] for c in told] == [2 * at, 2 * at + 1]
    assert ranked != sorted(ranked) or means[0] < max(means[:5]), "the first ones were the best"
    assert best["usage"]["completion_tokens"] == 60 and best["choices"][0]["logprobs"] is None
    for pieces, choice in zip(best["polydec"]["pieces"], best["choices"], strict=True):
        assert "".join(p["text"] for p in pieces) == choice["text"]
    asked = {**body, "prompt": prompts[0], "n": 2, "best_of": 5, "echo": True, "logprobs": 1}
    echoed = post(http, asked)["choices"]
    for with_echo, without in zip(echoed, best["choices"][:2], strict=True):
        assert with_echo["text"] == prompts[0] + without["text"]
        assert len(with_echo["logprobs"]["tokens"]) == 6 + len(lm.encode(prompts[0]))
    # As many as are drawn are no choice, and may be streamed.
    streamed = {**body, "prompt": prompts[0], "n": 2, "best_of": 2, "stream": True}
    with http.stream("POST", "/v1/completions", json=streamed) as answer:
        assert answer.status_code == 200 and answer.read().endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_of_a_stream_go_on_from_chunk_to_chunk(http, echo):
    """Each choice counts its own characters, over all chunks, behind the prompt where that is echoed."""
    body = {"prompt": "The fox and the", "method": "plain", "n": 2, "seed": 3, "ignore_eos": True}
    body |= {"max_tokens": 12, "logprobs": 0, "echo": echo}
    whole = post(http, body)["choices"]
    got, chunks = streamed_marks(http, body, len(whole))
    assert chunks > 12, "a chunk holds a token or two, not all of them"
    for choice, marks in zip(whole, got):
        assert marks["text_offset"] == choice["logprobs"]["text_offset"]
        assert marks["tokens"] == choice["logprobs"]["tokens"]
        assert marks["text_offset"][-1] > 9 + len(body["prompt"]) * echo


def test_a_stream_can_end_with_its_usage(http):
    body = {"messages": CHAT, "max_tokens": 5, "ignore_eos": True}
    assert all("usage" not in e for e in stream(http, body, "/v1/chat/completions"))
    events = stream(
        http, {**body, "stream_options": {"include_usage": True}}, "/v1/chat/completions"
    )
    assert [e["usage"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 5
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({e["id"] for e in events}) == 1


def test_the_field_polydec_tells_what_was_drafted(lm, http):
    body = {
        "prompt": "The fox and the fox and the",
        "max_tokens": 20,
        "method": "draft-model",
        "polydec": True,
        "temperature": 0,
    }
    whole = post(http, body)
    pieces = whole["polydec"]["pieces"][0]
    assert "".join(p["text"] for p in pieces) == whole["choices"][0]["text"]
    assert len(pieces) == whole["usage"]["completion_tokens"] and any(p["drafted"] for p in pieces)
    about = whole["polydec"]["requests"][0]
    assert about["method"]["name"] == "draft-model" and about["metrics"]["target_passes"] > 0
    parts = [p for e in stream(http, body) for p in e.get("polydec", {}).get("pieces", ())]
    assert parts == pieces
    assert "polydec" not in post(http, {k: v for k, v in body.items() if k != "polydec"})


@pytest.mark.parametrize("method", ["eagle-2-tree", "plain", "beam"])
def test_the_field_polydec_tells_of_steps(lm, http, method):
    body = {
        "prompt": "The fox and the fox and the",
        "max_tokens": 20,
        "method": method,
        "polydec": "steps",
        "temperature": 0,
        "n": 2,
    }
    whole = post(http, body)
    texts = [c["text"] for c in whole["choices"]]
    assert texts == [
        c["text"] for c in post(http, {k: v for k, v in body.items() if k != "polydec"})["choices"]
    ]
    found = whole["polydec"]["choices"]
    for choice, pieces in zip(found, whole["polydec"]["pieces"], strict=True):
        assert sum(s["wrote"] for s in choice["steps"]) == len(pieces)
        at = 0
        for step in choice["steps"]:
            new = [p["token"] for p in pieces[at : at + step["wrote"]]]
            at += step["wrote"]
            if method == "beam":
                assert "token" not in step
                continue
            assert len(step["token"]) == len(step["parent"]) == len(step["text"])
            assert [*(step["token"][i] for i in step["accepted"]), step["bonus"]["token"]][
                : len(new)
            ] == new
    ran = [p for c in found for p in c["passes"]]
    assert {p["model"] for p in ran} <= {"tiny", "tiny (draft)"} and all(
        p["positions"] <= p["of"] for p in ran
    )
    assert all(p["target"] == (p["model"] == "tiny") for p in ran)
    parts = [{"steps": [], "passes": []} for _ in texts]
    for event in stream(http, body):
        for name, some in (event.get("polydec", {}) if event["choices"] else {}).items():
            if name != "pieces":
                parts[event["choices"][0]["index"]][name] += some
    for part, choice in zip(parts, found, strict=True):
        assert [{**s, "seconds": 0} for s in part["steps"]] == [
            {**s, "seconds": 0} for s in choice["steps"]
        ]


def test_a_steered_text_is_the_librarys(lm, http):
    how = {
        "steer": "cfg",
        "steer_options": {"scale": 3},
        "negative_prompt": "Nobody",
        "max_tokens": 16,
    }
    answer = post(
        http,
        {
            "prompt": "The fox and the",
            "temperature": 0,
            "method": "prompt-lookup",
            "polydec": True,
            **how,
        },
    )
    want = polydec.generate(
        lm, "The fox and the", raw=True, sampling=lm.sampling_with(temperature=0.0), **how
    )
    assert answer["choices"][0]["text"] == want.text
    assert answer["polydec"]["requests"][0]["method"]["steering"] == {
        "name": "cfg",
        "options": {"scale": 3.0, "head": 0.0},
    }


def test_shapes_are_openais(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
    chat = client.chat.completions.create(
        model="tiny", messages=CHAT, max_completion_tokens=6, n=2, logprobs=True, user="me"
    )
    ChatCompletion.model_validate(chat.model_dump(), strict=True)
    assert len(chat.choices) == 2 and chat.model == "tiny"
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    assert (
        chunks[-1].usage.total_tokens
        == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    )
    old = client.completions.create(
        model="tiny", prompt="A", max_tokens=3, logprobs=1, extra_body={"min_p": 0.1}
    )
    Completion.model_validate(old.model_dump(), strict=True)
    models = list(client.models.list())
    assert [m.id for m in models] == ["tiny"] and isinstance(client.models.retrieve("tiny"), Model)
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=CHAT, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as gone:
        client.chat.completions.create(model="gpt-5", messages=CHAT)
    assert gone.value.code == "model_not_found" and "it must be one of tiny" in str(gone.value)
    # what a client sends back is what it got, null fields included
    again = client.chat.completions.create(
        model="tiny",
        max_tokens=3,
        messages=[
            *CHAT,
            chat.choices[0].message,
            {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
        ],
    )
    assert again.choices[0].finish_reason in ("stop", "length")


WRONG = [
    ({"prompt": "x", "temprature": 1}, "temprature", "temperature"),
    ({"prompt": "x", "temperature": 1e9}, "temperature", "1000000"),
    ({"prompt": ""}, "prompt", "empty"),
    ({}, "prompt", "missing"),
    ({"prompt": [1, "x"]}, "prompt", "token ids"),
    ({"prompt": [10**9]}, "prompt", "ids lie in"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"prompt": "x", "max_tokens": 1023}, "max_tokens", "at most"),
    ({"prompt": "x", "max_tokens": 99999}, "max_tokens", "4096"),
    ({"prompt": "x", "n": 0}, "n", "1 to 1024"),
    ({"prompt": "x", "n": True}, "n", "whole number"),
    ({"prompt": "x", "method": "nope"}, "method", "unknown"),
    ({"prompt": "x", "method": 3}, "method", "word"),
    ({"prompt": "x", "method": "draft-model", "options": {"depth": 10**6}}, None, "depth"),
    ({"prompt": "x", "options": {"zzz": 1}}, "options", "zzz"),
    ({"prompt": "x", "options": 3}, "options", "by name"),
    ({"prompt": "x", "stop": ["", "a"]}, "stop", "1 to 4096"),
    ({"prompt": "x", "logprobs": 99}, "logprobs", "64"),
    ({"prompt": "x", "max_tokens": 0, "logprobs": 1}, "max_tokens", "0 only with echo"),
    ({"prompt": "x", "prompt_logprobs": 65}, "prompt_logprobs", "0 to 64"),
    ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream is false"),
    ({"prompt": "x", "polydec": "all"}, "polydec", "true, false or"),
    ({"prompt": [10**9], "echo": True}, "prompt", "ids lie in"),
    ({"prompt": "x", "best_of": 2, "n": 3}, "best_of", "at least n, which is 3"),
    ({"prompt": "x", "best_of": 4, "stream": True}, "best_of", "known when all have ended"),
    ({"prompt": "x", "best_of": 4, "polydec": "steps"}, "best_of", 'polydec "steps"'),
    ({"prompt": "x", "best_of": True}, "best_of", "whole number"),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"prompt": "x", "response_format": {"type": "xml"}}, "response_format", "json_object"),
    (
        {
            "prompt": "x",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "strin"}},
            },
        },
        "response_format",
        "at #: Invalid type: strin",
    ),
    ({"prompt": "x", "guided_regex": "ab(c"}, "guided_regex", "unclosed group at character 2"),
    (
        {"prompt": "x", "structured_outputs": {"jsn": {}}},
        "structured_outputs",
        "structured_outputs.jsn is unknown: did you mean json",
    ),
    ({"prompt": "x", "finish": True}, None, "finish is true: it brings constrained answers"),
    ({"prompt": "x", "finish": 1, "guided_regex": "a"}, "finish", "true or false"),
    (
        {"prompt": "x", "finish": True, "guided_regex": "[a-z]{300}", "max_tokens": 4},
        None,
        "max_tokens is 4: no text",
    ),
    (
        {"prompt": "x", "guided_choice": ["a"], "guided_regex": "a"},
        "guided_regex",
        "one constraint",
    ),
    ({"prompt": "x", "skip_special_tokens": False}, "skip_special_tokens", "True"),
    ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", "token id"),
    ({"prompt": "x", "seed": "a"}, "seed", "whole number"),
    ({"prompt": "x", "allowed_token_ids": [5], "bad_token_ids": [5]}, "bad_token_ids", "left"),
    ({"prompt": "x", "order": "random"}, "order", "vllm"),
    ({"prompt": "\ud800"}, "prompt", "half a character"),
    ({"prompt": "x", "steer": "zzz"}, "steer", "one of"),
    ({"prompt": "x", "steer": "cad"}, None, "second prompt"),
    ({"prompt": "x", "negative_prompt": "\ud800"}, "negative_prompt", "half a character"),
    ({"prompt": "x", "negative_prompt": 3}, "negative_prompt", "token ids"),
    (
        {"prompt": "x", "negative_prompt": "y", "steer_options": {"scale": -1}},
        None,
        "scale is -1.0",
    ),
]


@pytest.mark.parametrize(
    "body, param, says", WRONG, ids=lambda x: json.dumps(x)[:60] if isinstance(x, dict) else ""
)
def test_what_cannot_be_honoured_is_a_400(server, http, body, param, says):
    answer = http.post(
        "/v1/completions", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    error = answer.json()["error"]
    assert answer.status_code == 400 and set(error) == {
        "message",
        "type",
        "param",
        "code",
        "request_id",
    }, answer.text
    assert (
        error["type"] == "invalid_request_error"
        and says in error["message"]
        and len(error["message"]) <= 300
    )
    assert param is None or error["param"] == param
    assert idle(server)


def test_a_constrained_answer_ends_in_time(http):
    body = {
        "prompt": "Once upon a time",
        "guided_regex": "[a-z ]{3,}!",
        "max_tokens": 12,
        "polydec": True,
    }
    cut, whole = (
        http.post("/v1/completions", json={**body, "finish": finish}).json()
        for finish in (False, True)
    )
    assert (
        cut["choices"][0]["finish_reason"] == "length"
        and whole["choices"][0]["finish_reason"] == "stop"
    )
    assert whole["choices"][0]["text"].endswith("!") and "steered_tokens" in json.dumps(
        whole["polydec"]
    )


WRONG_CHAT = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [{"role": "tool", "content": "x"}]},
    {"messages": [3]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    {"messages": CHAT, "tools": [{"type": "function"}]},
    {"messages": CHAT, "top_logprobs": 2},
    {"messages": CHAT, "max_tokens": 3, "max_completion_tokens": 4},
    {"messages": CHAT, "stream": "yes"},
    {"messages": CHAT, "echo": True},
    {"messages": CHAT, "chat_template_kwargs": {"a": 1}},
]


@pytest.mark.parametrize("body", WRONG_CHAT, ids=lambda b: json.dumps(b)[:70])
def test_chats_that_cannot_be_honoured(http, body):
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] in {
        *body,
        "max_completion_tokens",
    }, answer.text


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"3", b"\xff", b'{"a":' * 3000, b"null", b'{"prompt": NaN}'),
        *(b'{"prompt": "x", "temperature": -Infinity}', b'{"prompt": "x", "temperature": 1e999}'),
    ],
)
def test_bodies_that_are_no_object(http, content):
    answer = http.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400 and answer.json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_what_is_told_back_is_json(http, number):
    """A tool's schema comes back in the answer, which can hold no such number."""
    tool = f'{{"type": "function", "name": "f", "parameters": {{"minimum": {number}}}}}'
    body = f'{{"input": "x", "stream": true, "max_output_tokens": 2, "tools": [{tool}]}}'
    answer = http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and number in answer.json()["error"]["message"]


def test_a_field_that_is_given_twice(http):
    body = b'{"prompt": "x", "seed": 1, "seed": 2}'
    answer = http.post(
        "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "seed"


def test_other_refusals(http):
    for answer, status in (
        (http.get("/nope"), 404),
        (http.get("/v1/completions"), 405),
        (http.get("/v1/models/nope"), 404),
        (http.post("/v1/completions", content="{}"), 415),
        (http.get("/health", headers={"host": "evil.example"}), 403),
    ):
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_tokens_and_back(lm, http):
    tokens = post(http, {"prompt": "The old river"}, "/tokenize")
    assert tokens["tokens"] == list(lm.encode_prompt("The old river", raw=True)) and tokens[
        "count"
    ] == len(tokens["tokens"])
    assert post(http, {"tokens": tokens["tokens"]}, "/detokenize")["prompt"] == "The old river"
    assert post(http, {"messages": CHAT}, "/tokenize")["tokens"] == list(lm.encode_prompt(CHAT))
    assert http.post("/detokenize", json={"tokens": [10**9]}).json()["error"]["param"] == "tokens"
    about = http.get("/tokenizer_info").json()
    assert about["eos_token"] == "<|end|>" and "<|assistant|>" in about["chat_template"]


def test_methods_are_told_with_a_schema(http):
    listed = {m["name"]: m for m in http.get("/methods").json()["data"]}
    assert set(listed) == set(registry.recipe_modules())
    for name, about in listed.items():
        assert set(about["schema"]["properties"]) == {o.name for o in registry.method_options(name)}
    assert (
        listed["plain"]["unavailable"] is None
        and "stop" in listed["specdec-plus-plus"]["unavailable"]
    )
    assert set(http.get("/sampling").json()["properties"]) == set(all_sampling_fields())


def test_ways_to_steer_are_told_with_a_schema(http):
    listed = {w["name"]: w for w in http.get("/steerings").json()["data"]}
    assert set(listed) == set(steer.steering_modules())
    for name, about in listed.items():
        assert set(about["schema"]["properties"]) == {o.name for o in steer.steering_options(name)}
    # a second prompt comes with a request, and what was trained does not
    assert listed["cfg"]["unavailable"] is None and listed["cfg"]["reads_negative_prompt"]
    assert not listed["dola"]["reads_negative_prompt"]
    assert "thought" in listed["hidden-cot"]["unavailable"]


def test_metrics_count(http):
    def value(name):
        lines = [
            x
            for x in http.get("/metrics").text.splitlines()
            if x.startswith(name) and 'model_name="tiny"' in x
        ]
        return sum(float(x.split()[-1]) for x in lines)

    names = (
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:time_to_first_token_seconds_count",
        "polydec:target_passes_total",
    )
    before = {n: value(n) for n in names}
    post(http, {"prompt": "The", "max_tokens": 12, "ignore_eos": True, "method": "draft-model"})
    after = {n: value(n) - before[n] for n in names}
    assert after["vllm:generation_tokens_total"] == 12 and after["vllm:request_success_total"] == 1
    assert (
        after["vllm:spec_decode_num_draft_tokens_total"] > 0
        and after["vllm:time_to_first_token_seconds_count"] == 1
    )
    assert 0 < after["polydec:target_passes_total"] <= 12
    assert value("vllm:num_requests_running") == 0


def test_many_at_once_get_the_texts_that_they_get_alone(server, http):
    bodies = [
        {
            "prompt": f"The {w} and the",
            "max_tokens": 16,
            "temperature": 0.8,
            "seed": i,
            "n": 1 + i % 2,
            "method": ("plain", "draft-model", "prompt-lookup", "auto")[i % 4],
        }
        for i, w in enumerate(("fox", "boat", "river", "baker", "train", "house", "king", "tree"))
    ]
    alone = [[c["text"] for c in post(http, body)["choices"]] for body in bodies]

    def client(at):
        with server.client() as mine:
            out = []
            for turn in range(3):
                i = (at + turn) % len(bodies)
                parts = [""] * bodies[i]["n"]
                for event in stream(mine, bodies[i]):
                    for c in event["choices"]:
                        parts[c["index"]] += c["text"]
                out.append((i, parts))
            return out

    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(client, range(8)):
            for i, parts in got:
                assert parts == alone[i]
    assert idle(server)


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_ends_its_request(server, streams):
    """Of 32 long answers, however busy the machine is: it leaves when they are being written."""
    body = json.dumps({**LONG, "stream": streams, "n": 32}).encode()
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(head.encode() + body)
        end = time.monotonic() + 20
        while not server.worker.live and time.monotonic() < end:
            time.sleep(0.001)
        assert server.worker.live
    assert idle(server, 10)


def test_limits(lm):
    limits = RequestLimits(running=2, waiting=1, body=2048, prompt=64, output=1000, seconds=30.0)
    with house.served({"tiny": lambda: lm}, limits=limits) as served, served.client() as client:
        for body, status, param in (
            ({"prompt": "a" * 3000}, 413, None),
            ({"prompt": "a b " * 64}, 400, "prompt"),
            ({"prompt": "x", "max_tokens": 1001}, 400, "max_tokens"),
            ({"prompt": "x", "n": 4}, 400, "n"),
        ):
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == status and answer.json()["error"]["param"] == param, (
                answer.text
            )
        with ThreadPoolExecutor(8) as pool:
            codes = list(
                pool.map(
                    lambda _: client.post("/v1/completions", json={**LONG, "max_tokens": 300}),
                    range(8),
                )
            )
        assert {c.status_code for c in codes} == {200, 429} and sum(
            c.status_code == 200 for c in codes
        ) >= 3
        late = next(c for c in codes if c.status_code == 429)
        assert (
            int(late.headers["retry-after"]) >= 1
            and late.json()["error"]["type"] == "rate_limit_error"
        )
        assert idle(served)


def test_a_request_that_takes_too_long_is_ended(lm):
    with (
        house.served({"tiny": lambda: lm}, limits=RequestLimits(seconds=0.05)) as served,
        served.client() as client,
    ):
        answer = client.post("/v1/completions", json=LONG)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as streamed:
            last = [x for x in streamed.iter_lines() if x][-1]
        assert json.loads(last[6:])["error"]["code"] == "timeout"
        assert idle(served)


def test_a_request_whose_turn_does_not_come_is_refused(lm):
    with (
        house.served(
            {"tiny": lambda: lm}, limits=RequestLimits(running=1, wait=0.05, cache=1e-6)
        ) as served,
        served.client() as client,
    ):
        with ThreadPoolExecutor(3) as pool:
            slow = pool.submit(
                client.post,
                "/v1/completions",
                json={**LONG, "max_tokens": 300, "n": 4, "method": "plain"},
            )
            while not served.worker._jobs:
                time.sleep(0.01)
            late = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
            assert slow.result().status_code == 200
        assert (
            late.status_code == 503
            and late.json()["error"]["code"] == "queue_timeout"
            and "retry-after" in late.headers
        )
        assert idle(served)
        measured = client.get("/metrics").text
        assert (
            'reason="waited"} 1.0' in measured
            and 'vllm:kv_cache_usage_perc{model_name="tiny"}' in measured
        )
        most, given = lm.costs.pass_budget, served.worker.engine._scheduler._positions
        assert [given(n) for n in (0, 1, 99)] == [4 * most(1), most(1), most(99)]


def test_keys(lm):
    with (
        house.served({"tiny": lambda: lm}, keys=("first-key-1", "second-key-2")) as served,
        served.client() as client,
    ):
        for path in ("/v1/models", "/metrics", "/methods"):
            assert client.get(path).status_code == 401
            assert (
                client.get(path, headers={"authorization": "Bearer first-key-"}).status_code == 401
            )
            assert (
                client.get(path, headers={"authorization": "Basic first-key-1"}).status_code == 401
            )
            for key in ("first-key-1", "second-key-2"):
                assert (
                    client.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
                )
        assert (
            client.post("/v1/completions", json={"prompt": "x"}).json()["error"]["code"]
            == "invalid_api_key"
        )
        assert client.get("/health").status_code == 200 and client.get("/").status_code == 200


def test_the_event_loop_does_not_wait_for_a_pass(lm, monkeypatch):
    with house.served({"tiny": lambda: lm}) as served, served.client() as client:
        go, step = threading.Event(), served.worker.engine.step
        monkeypatch.setattr(served.worker.engine, "step", lambda: (go.wait(30), step())[1])
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(post, client, {"prompt": "x", "max_tokens": 4})
            while not served.worker._jobs:
                time.sleep(0.01)
            with served.client() as other:
                assert other.get("/health", timeout=5).status_code == 200
                assert other.post("/tokenize", json={"prompt": "x"}, timeout=5).status_code == 200
            assert not slow.done()
            go.set()
            slow.result()


def test_a_tick_that_fails_ends_its_requests_and_not_the_server(lm, monkeypatch):
    with house.served({"tiny": lambda: lm}) as served, served.client() as client:

        def broken():
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(served.worker.engine, "step", broken)
            answer = client.post("/v1/completions", json={"prompt": "x"})
            assert answer.status_code == 500 and "a bug" not in answer.text
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        assert idle(served)


def test_draining_finishes_what_it_can_and_cuts_the_rest(lm, capfd):
    with (
        house.served({"tiny": lambda: lm}, drain=1.5) as served,
        served.client() as client,
        ThreadPoolExecutor(2) as pool,
    ):
        slow = pool.submit(client.post, "/v1/completions", json={**LONG, "n": 32})
        while not served.worker._jobs:
            time.sleep(0.01)
        short = pool.submit(client.post, "/v1/completions", json={"prompt": "x", "max_tokens": 2})
        while served.worker.answers < 33 and not short.done():
            time.sleep(0.01)
        served.server.should_exit = True
        assert short.result().status_code == 200
        cut = slow.result()
        assert cut.status_code == 503 and cut.json()["error"]["code"] == "stopping"
    assert "1 were cut" in capfd.readouterr().err


def test_who_comes_while_answers_end_is_told_so(lm, monkeypatch):
    """Connections that are made then are answered and not reset, until the last answer is written."""
    go = threading.Event()
    with (
        house.served({"tiny": lambda: lm}, drain=60) as served,
        served.client() as client,
        served.client() as late,
        ThreadPoolExecutor(1) as pool,
    ):
        step = served.worker.engine.step

        def wait_and_step(*given, **more):
            assert go.wait(60)
            return step(*given, **more)

        monkeypatch.setattr(served.worker.engine, "step", wait_and_step)
        try:
            going = pool.submit(
                client.post, "/v1/completions", json={"prompt": "x", "max_tokens": 4}
            )
            while not served.worker.answers:
                assert not going.done()
                time.sleep(0.01)
            served.server.should_exit = True
            while not served.models.draining:
                time.sleep(0.01)
            health = late.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "stopping")
            asked = late.post("/v1/completions", json={"prompt": "x"})
            assert asked.status_code == 503 and asked.json()["error"]["code"] == "stopping"
            assert int(asked.headers["retry-after"]) >= 1
        finally:
            go.set()
        assert going.result().status_code == 200


def test_loading_is_told(lm):
    ready = threading.Event()

    def slow():
        assert ready.wait(30)
        return lm

    with ThreadPoolExecutor(1) as pool:

        def look():
            for _ in range(500):
                try:
                    with httpx.Client(base_url=url.result(30), timeout=10) as client:
                        return client.get("/health"), client.post(
                            "/v1/completions", json={"prompt": "x"}
                        )
                except httpx.ConnectError:
                    time.sleep(0.01)

        url, original = Future(), house.open_listening_socket

        def told(host, port):
            sock = original(host, port)
            url.set_result(f"http://127.0.0.1:{sock.getsockname()[1]}")
            return sock

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(house, "open_listening_socket", told)
            seen = pool.submit(look)
            seen.add_done_callback(lambda _: ready.set())
            with house.served({"tiny": slow}) as served, served.client() as client:
                health, asked = seen.result()
                assert health.status_code == 503 and health.json() == {
                    "status": "loading",
                    "models": {"tiny": "loading"},
                }
                assert asked.status_code == 503 and asked.json()["error"]["code"] == "loading"
                assert "retry-after" in asked.headers
                assert client.get("/health").json()["status"] == "ready"


@pytest.mark.parametrize("path", ["/v1/responses/", "/docs/", "/health/", "/v1/chat/completions/"])
def test_a_slash_too_many_is_no_redirection(http, path):
    """It would name a proxy's scheme and host, and lead a client's key there."""
    answer = http.post(path, json={}, follow_redirects=False)
    assert answer.status_code == 404 and path in answer.json()["error"]["message"]
    assert "location" not in answer.headers


def test_fields_that_do_nothing_are_listed_in_the_docs(http):
    page = PROJECT_ROOT / "docs" / "server-fields.md"
    if not page.exists():
        pytest.skip("the docs are not here")
    text = page.read_text("utf-8")
    assert [name for name in (*IDLE, *ONLY) if f"`{name}`" not in text] == []
    idle_fields = dict.fromkeys(IDLE, "anything") | {
        name: legal[0] for name, legal in ONLY.items() if legal
    }
    assert post(http, {"prompt": "x", "max_tokens": 1, **idle_fields})["choices"]
