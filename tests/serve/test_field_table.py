"""Each field that other servers take is really sent: what happens to it is what the docs' table says."""

import json

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
from polydec.serve import field_table
from polydec.serve.body import IDLE, ONLY
from polydec.serve.known_fields import (
    CHAT,
    EMBEDDINGS,
    ENGINES,
    PATHS,
    REASONS,
    RESPONSES,
    TEXT,
    fields_of,
)
from project_paths import PROJECT_ROOT

NEEDED = {
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "seed": 1},
    TEXT: {"prompt": "x", "max_tokens": 1, "seed": 1},
    RESPONSES: {"input": "x", "max_output_tokens": 1, "seed": 1},
    EMBEDDINGS: {"input": "x"},
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
LEGAL = {
    **dict.fromkeys(("temperature", "top_p", "typical_p", "repetition_penalty", "dry_base"), 1.0),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "dry_multiplier"), 0.5),
    **dict.fromkeys(("top_n_sigma", "xtc_probability", "xtc_threshold"), 0.5),
    **dict.fromkeys(("n", "seed", "top_k", "max_tokens", "max_completion_tokens"), 1),
    "best_of": 2,
    **dict.fromkeys(("dry_allowed_length", "max_output_tokens", "dimensions"), 1),
    **dict.fromkeys(("min_tokens", "prompt_logprobs", "dry_penalty_last_n"), 1),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "stream", "echo"), False),
    **dict.fromkeys(("include_reasoning", "add_generation_prompt", "parallel_tool_calls"), True),
    **dict.fromkeys(("thinking_token_budget", "thinking_budget_tokens"), -1),
    **dict.fromkeys(("reasoning_budget", "reasoning_budget_tokens"), -1),
    "continue_final_message": False,
    "dry_sequence_breakers": None,
    "model": "tiny",
    "stop": ["never"],
    "stop_token_ids": [3],
    "allowed_token_ids": [5, 6],
    "logit_bias": {"5": 1},
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
    "structured_outputs": {"choice": ["a"]},
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_grammar": 'start: "a"',
    "guided_choice": ["a"],
    "grammar": 'root ::= "a"',
    "cache_salt": "salt",
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "none",
    "chat_template_kwargs": {},
    "reasoning_effort": "none",
    "reasoning": {"effort": "none"},
    "reasoning_format": "none",
    "instructions": "x",
    "include": [],
    "text": {"format": {"type": "text"}},
    "encoding_format": "base64",
    "store": True,
    "previous_response_id": None,
}
BESIDE = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}
NONSENSE = {"nonsense": [True]}
"""A value that hardly any field can be."""
ODD = {"guided_json": 5}  # a schema may be any object


def legal(path, name):
    """A body with a legal value of a field."""
    body = {**NEEDED[path], **BESIDE.get(name, {})}
    if name == "logprobs":
        return {**body, name: True if path == CHAT else 1}
    if name == "top_logprobs":
        more = {"include": ["message.output_text.logprobs"]} if path == RESPONSES else {}
        return {
            k: v for k, v in {**body, **more, name: 1}.items() if path == CHAT or k != "logprobs"
        }
    if path == RESPONSES and name == "tools":
        return {**body, name: [{"type": "function", **FUNCTION}]}
    return body if name in body else {**body, name: LEGAL[name]}


def every():
    for path in PATHS:
        for name in sorted({n for engine in ENGINES for n in fields_of(engine, path)}):
            yield path, name


def blamed(answer, name):
    """Whether an answer refuses a field by its name."""
    if answer.status_code != 400:
        return False
    error = answer.json()["error"]
    return name in (error["param"] or "") or name in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_each_field_does_what_the_table_says(http, path):
    counts = {}
    for name in (n for p, n in every() if p == path):
        told = field_table.field_outcome(path, name)
        counts[told[:4]] = counts.get(told[:4], 0) + 1
        odd = http.post(path, json={**NEEDED[path], name: ODD.get(name, NONSENSE)})
        if told == field_table.APPLIED:
            body = legal(path, name)
            if name == "previous_response_id":
                body[name] = http.post(path, json={**NEEDED[path], "store": True}).json()["id"]
            good = http.post(path, json=body)
            assert good.status_code == 200, (name, good.text)
            missing = name == "model" and odd.status_code == 404
            assert blamed(odd, name) or missing, (name, odd.text)
        elif told == field_table.IDLE_HERE:
            plain = http.post(path, json=NEEDED[path]).json()
            assert odd.status_code == 200 and odd.json().keys() == plain.keys(), (name, odd.text)
        else:
            assert blamed(odd, name), (name, odd.text)
            assert (
                name not in REASONS
                or name in ONLY
                or REASONS[name] in odd.json()["error"]["message"]
            )
            for value in (*ONLY.get(name, ()), None):
                if value is None or told.startswith("only"):
                    answer = http.post(path, json={**NEEDED[path], name: value})
                    assert answer.status_code == 200, (name, value, answer.text)
    assert min(counts.get(kind, 0) for kind in ("appl", "no e")) > 0 and len(counts) >= 3, counts


def test_the_lists_hold_what_the_package_has():
    """OpenAI's package says which fields its API takes."""
    openai = pytest.importorskip("openai")
    from openai.types import completion_create_params, embedding_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params

    for path, known in (
        (CHAT, chat_create_params.CompletionCreateParamsBase),
        (TEXT, completion_create_params.CompletionCreateParamsBase),
        (RESPONSES, response_create_params.ResponseCreateParamsBase),
        (EMBEDDINGS, embedding_create_params.EmbeddingCreateParams),
    ):
        missing = set(known.__annotations__) - fields_of("OpenAI", path)
        assert not missing, (openai.__version__, path, missing)


def test_the_table_is_of_use():
    rows = field_table.field_table_rows()
    assert len(rows) > 150 and len({row[0] for row in rows}) == len(rows)
    assert all(len(row) == 3 + len(PATHS) for row in rows)
    named = {row[0] for row in rows}
    assert REASONS.keys() <= named, REASONS.keys() - named
    assert not set(IDLE) & REASONS.keys()
    page = (PROJECT_ROOT / "docs" / "server-fields.md").read_text("utf-8")
    assert field_table.field_table_markdown() in page, (
        "the table is old: run `python docs/tables.py`"
    )
    json.dumps(rows)
