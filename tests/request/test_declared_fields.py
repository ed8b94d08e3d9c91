"""Each field of a request and of loading stands once: every entry has it, with its type, range, default and help."""

import dataclasses
import re
import runpy
import sys
from typing import get_type_hints

import pytest

from polydec import Ask, Sampling
from polydec.cli.declared_flags import flags_of
from polydec.cli.flags import RequestFlags, SteeringFlags
from polydec.laws.shapers.sampling import all_sampling_fields as sampling_fields
from polydec.models.native.weights import QUANTISED
from polydec.models.sessions.soft import Soft
from polydec.request import fields, loading
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
NO_FLAG = {
    "prompt_ending": "a command is given one text, or keeps the chat itself",
    "best_of": "a command prints while it decodes; method best-of-n chooses among texts",
    "echo": "whoever gives a command the prompt has it",
    "logits_processor": "a function: for programs",
    "stop_when": "a function: for programs",
    "constraint": "five flags say it: --regex, --json-schema, --grammar, --choice, --span-of",
    "tools": "structured: for programs and over HTTP",
    "template": "structured: for programs and over HTTP",
}
NOT_OVER_HTTP = {
    "logits_processor": "a function of the client's program cannot run in the server",
    "stop_when": "a function of the client's program cannot run in the server",
    "raw": "/v1/completions is raw, a chat is not",
    "constraint": "the fields of serve/constrained.py say it",
}
ELSEWHERE = {
    "include_stop": "include_stop_str_in_output",
    "template": "chat_template_kwargs",
    "prompt_ending": "continue_final_message",
}


def test_every_field_of_a_request_is_annotated():
    plain = {f.name for f in dataclasses.fields(Ask)} - {"prompt", "sampling"}
    assert fields.ask_options().keys() == plain
    names = {"Sampling": Sampling, "Soft": Soft}
    own = get_type_hints(Ask, localns=names)
    own.pop("prompt")
    assert get_type_hints(fields.AskFields, localns=names) == own


def test_every_field_is_a_flag():
    flags = {**flags_of(RequestFlags), **flags_of(SteeringFlags)}
    known = {one.option.name: (name, one) for name, one in flags.items()}
    wanted = {**fields.ask_options(), **loading.loading_options()}
    assert wanted.keys() - known.keys() == NO_FLAG.keys()
    defaults = {
        f.name: f.default
        for kind in (RequestFlags, SteeringFlags)
        for f in dataclasses.fields(kind)
    }
    hints = get_type_hints(RequestFlags) | get_type_hints(SteeringFlags)
    for name, option in {**sampling_fields(), **wanted}.items():
        if name not in known:
            continue
        at, one = known[name]
        assert one.option == option and one.help.startswith(option.help), name
        assert option.range in one.help, name
        assert hints[at] == one.type, name
        if option.default and name not in fields.OWN:
            assert defaults[at] == option.default, name


def test_every_setting_of_a_server_is_a_flag():
    from polydec.cli.serve import ServeFlags
    from polydec.serve.settings import request_limit_options, server_setting_options

    flags = flags_of(ServeFlags)
    own = {f.name: f.default for f in dataclasses.fields(ServeFlags)}
    wanted = {
        "loading": dict(loading.loading_options()),
        "settings": dict(server_setting_options()),
        "limits": dict(request_limit_options()),
    }
    del wanted["loading"]["name"]  # models may have names of their own there: --model NAME=MODEL
    for group, options in wanted.items():
        known = {one.option.name: name for name, one in flags.items() if one.group == group}
        assert known.keys() == options.keys(), group
        for name, option in options.items():
            one = flags[known[name]]
            assert one.option is option and one.help.startswith(option.help), name
            assert option.range in one.help, name
            assert own[known[name]] in (option.default, "auto", None), name
    assert flags.keys() | {"model", "api_key_file", "cors", "trace", "request_log"} == own.keys()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_every_field_is_taken_and_described_over_http(path):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    from polydec.serve.body import ASKED
    from polydec.serve.described import request_body_fields as described

    told = described(path)
    for name, field in ASKED.items():
        option = fields.ask_options()[field]
        assert told[name]["description"].startswith(option.help), name
        for key, value in option.json_schema().items():
            if key in ("minimum", "maximum", "enum", "items", "maxItems"):
                assert told[name][key] == value, name
    for name, option in sampling_fields().items():
        assert told[name]["description"] == option.json_schema()["description"], name
    beside = {"max_tokens", "logprobs", "prompt_logprobs", "tools", "template", "best_of", "echo"}
    beside |= {"infill"}  # of /v1/completions alone
    beside |= {"reasoning_format", "reasoning_budget", "prompt_ending"}  # by other engines' names
    assert set(ASKED.values()) | beside | NOT_OVER_HTTP.keys() == fields.ask_options().keys()


def test_every_field_of_sampling_stands_in_its_list(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keywords.py", "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "docs" / "keywords.py"), run_name="__main__")
    assert stop.value.code == 0, "declared.py is old: run `python docs/keywords.py`"


def test_the_page_of_the_server_names_every_field():
    text = (ROOT / "docs" / "serve.md").read_text("utf-8")
    words = set(re.findall(r"[a-z_]+", text))
    missing = fields.ask_options().keys() - NOT_OVER_HTTP.keys() - words
    assert {x for x in missing if ELSEWHERE.get(x) not in words} == set()


def test_what_quantises_is_what_loading_takes():
    limit = loading.loading_options()["quantize"].limits[0]
    assert set(limit.choices) == set(QUANTISED)
