"""Fields that clients send: template names, efforts, names, grammars; what is not known; other sites; the description."""

import html
import json
import re
import sys

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

import polydec
from polydec.cli import serve
from polydec.cli.main import main
from polydec.models.text.chat_template import ChatTemplate
from polydec.serve.application import IGNORED
from polydec.serve.body import IDLE, KEPT, ONLY, RequestBody
from polydec.serve.described import openapi_page_html, request_body_fields
from polydec.serve.endpoints import ENDPOINTS
from polydec.serve.errors import RefusalError
from polydec.serve.images import IMAGES
from polydec.serve.settings import RequestLimits

TEMPLATE = """{%- if enable_thinking is not defined or enable_thinking %}think {% endif -%}
{%- for m in messages %}{{ m.name or m.role }}: {{ m.content }} {{ m.thinking }}
{% endfor %}{{ tone }}"""


@pytest.fixture
def template(lm, monkeypatch):
    monkeypatch.setattr(lm.checkpoint.text, "template", ChatTemplate(TEMPLATE))


def read(lm, body, path="/v1/chat/completions"):
    given = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {}
    return (
        ENDPOINTS[path]
        .reads()
        .read_request(RequestBody({**given, **body}, RequestLimits()), lm, "plain", 0)
        .asks[0]
    )


def shown(lm, ask):
    return lm.checkpoint.text.decode(lm.encode_prompt(ask.prompt, template=ask.template))


def test_names_for_the_template(lm, template):
    ask = read(lm, {"chat_template_kwargs": {"tone": "kindly", "enable_thinking": False}})
    assert shown(lm, ask).split() == ["user:", "x", "kindly"]
    for values, says in (
        ({"tome": 1}, "does not speak of that name"),
        ({"thinking": True}, "does not speak of that name"),  # of a message, not a name
        ({"content": 1}, "does not speak of that name"),
        ({"messages": []}, "not for requests"),
        ({"tone": "x" * 20_000}, "it may have 16384"),
        ({f"k{i}": 1 for i in range(5000)}, "at least 35000 characters: it may have 16384"),
        ([], "by name"),
    ):
        with pytest.raises(Exception, match=says):
            read(lm, {"chat_template_kwargs": values})
    assert read(lm, {"chat_template_kwargs": {}}).template == {}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_control_tokens_may_be_text(lm, path):
    given = {"/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"}}.get(path, {})
    assert read(lm, {"sanitize_control_tokens": True, **given}, path).sanitize_control_tokens
    assert not read(lm, given, path).sanitize_control_tokens
    with pytest.raises(Exception, match="sanitize_control_tokens is 1: it must be true or false"):
        read(lm, {"sanitize_control_tokens": 1, **given}, path)


def test_parts_of_a_content_stay_parts(lm):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask = read(lm, {"messages": [{"role": "user", "content": parts}]})
    assert ask.prompt[0]["content"] == parts
    assert lm.encode_prompt(ask.prompt) == lm.encode_prompt([{"role": "user", "content": "ab"}])


def test_efforts(lm, template):
    for effort, thinks in (("none", False), ("minimal", True), ("high", True)):
        for body in ({"reasoning_effort": effort}, {"reasoning": {"effort": effort}}):
            ask = read(lm, body)
            assert ask.template == {"enable_thinking": thinks}
            assert shown(lm, ask).startswith("think") == thinks
    ask = read(
        lm, {"input": "x", "reasoning": {"effort": "none", "summary": None}}, "/v1/responses"
    )
    assert ask.template == {"enable_thinking": False}
    for body, says in (
        ({"reasoning_effort": "huge"}, "must be none, minimal"),
        ({"reasoning": {"summary": "auto"}}, "an effort and max_tokens only"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "two names"),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            "give one of them",
        ),
    ):
        with pytest.raises(Exception, match=says):
            read(lm, body)


def test_efforts_where_nobody_thinks(lm):
    assert read(lm, {"reasoning_effort": "none"}).template == {}
    with pytest.raises(Exception, match="knows nothing of thinking"):
        read(lm, {"reasoning_effort": "low"})
    for name, value in (("reasoning_effort", "low"), ("chat_template_kwargs", {"a": 1})):
        with pytest.raises(Exception, match="for chats"):
            read(lm, {"prompt": "x", name: value}, "/v1/completions")


def test_an_effort_that_the_template_writes_itself(lm, monkeypatch):
    monkeypatch.setattr(
        lm.checkpoint.text,
        "template",
        ChatTemplate("{{ messages[0].content }} {{ reasoning_effort }}"),
    )
    assert shown(lm, read(lm, {"reasoning_effort": "low"})) == "x low"


def test_names_of_who_speaks(lm, http, template):
    ask = read(lm, {"messages": [{"role": "user", "content": "x", "name": "ann"}]})
    assert "ann: x" in shown(lm, ask)
    for name in ("", 5, "x" * 65):
        body = {"messages": [{"role": "user", "content": "x", "name": name}], "max_tokens": 1}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and "messages[0].name" in answer.text


GRAMMARS = [
    'root ::= "yes" | "no"',
    'root ::= item (", " item)*\nitem ::= [a-c]+  # letters',
    'root ::= "a"{2,3} "\\n"? [^a-z]',
]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_grammars_of_llama_cpp(http, grammar):
    pytest.importorskip("llguidance")
    right = {
        GRAMMARS[0]: r"yes|no",
        GRAMMARS[1]: r"[a-c]+(, [a-c]+)*",
        GRAMMARS[2]: r"a{2,3}\n?[^a-z]",
    }[grammar]
    body = {"prompt": "x", "grammar": grammar, "max_tokens": 40, "n": 4, "temperature": 1.5}
    answer = http.post("/v1/completions", json={**body, "finish": True, "seed": 1})
    assert answer.status_code == 200, answer.text
    for c in answer.json()["choices"]:
        assert re.fullmatch(right, c["text"]), c


@pytest.mark.parametrize(
    "grammar, says",
    [
        ('start: "yes"', "Lark's form goes into"),
        ("root ::= (", "grammar"),
        ('root ::= "a', "grammar"),
        ("root ::= [a", "grammar"),
        ("root ::= other", "grammar"),
        ("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "grammar"),
        ("root ::= " + "a" * 70_000, "65536"),
        ("::=", "grammar"),
        (5, "GBNF"),
    ],
)
def test_what_is_no_grammar_of_llama_cpp(http, grammar, says):
    pytest.importorskip("llguidance")
    answer = http.post("/v1/completions", json={"prompt": "x", "grammar": grammar})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "grammar" and says in error["message"]


def test_any_object_is_compact_and_holds_something(http):
    pytest.importorskip("llguidance")
    for form in (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ):
        body = {
            "prompt": "x",
            "max_tokens": 60,
            "n": 6,
            "temperature": 1.0,
            "finish": True,
            "seed": 2,
        }
        answer = http.post("/v1/completions", json={**body, **form})
        assert answer.status_code == 200, answer.text
        for c in answer.json()["choices"]:
            value = json.loads(c["text"])
            assert value and isinstance(value, dict)
            outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", c["text"])
            assert not re.search(r"\s", outside), "it is not compact"


def test_unknown_fields_are_ignored_where_that_is_wished(lm, http):
    body = {"prompt": "The fox", "max_tokens": 2, "made_up": 1, "wörd,": {}, "temprature": 1}
    assert http.post("/v1/completions", json=body).status_code == 400
    with house.served({"tiny": lambda: lm}, lenient=True) as served, served.client() as client:
        for stream in (False, True):
            answer = client.post("/v1/completions", json={**body, "stream": stream})
            assert answer.status_code == 200
            assert answer.headers[IGNORED] == "made_up, w%C3%B6rd%2C, temprature"
        many = {f"f{i}": 1 for i in range(40)}
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, **many})
        assert answer.headers[IGNORED].endswith("f31, and 8 more")
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert IGNORED not in answer.headers
        # a value that cannot be honoured is refused as ever
        assert client.post("/v1/completions", json={**body, "top_p": 7}).status_code == 400


CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SAID = {"role": "user", "content": "x"}
FORM = {"type": "json_schema", "json_schema": {"schema": {}}}
CHATS = "/v1/chat/completions"


@pytest.mark.parametrize(
    "path, body, says",
    [
        (CHATS, {"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        (CHATS, {"response_format": {"type": "json_object", "shema": {}}}, "mean schema"),
        (CHATS, {"response_format": {**FORM, "strict": True}}, "response_format.strict"),
        (
            CHATS,
            {"response_format": {**FORM, "json_schema": {"schema": {}, "strct": True}}},
            "response_format.json_schema.strct is unknown: did you mean strict",
        ),
        (CHATS, {"tools": [{**TOOL, "functon": 1}]}, "tools[0].functon"),
        (
            CHATS,
            {"tools": [{**TOOL, "function": {**TOOL["function"], "strct": True}}]},
            "tools[0].function.strct is unknown: did you mean strict",
        ),
        (
            CHATS,
            {"tools": [TOOL], "tool_choice": {**TOOL, "function": {"name": "f", "nme": 1}}},
            "tool_choice.function.nme is unknown: did you mean name",
        ),
        (CHATS, {"messages": [{**SAID, "contents": "y"}]}, "messages[0].contents"),
        (
            CHATS,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "txt": 1}]}]},
            "messages[0].content[0].txt is unknown: did you mean text",
        ),
        (
            CHATS,
            {
                "tools": [TOOL],
                "messages": [SAID, {"role": "assistant", "tool_calls": [{**CALLED, "nam": 1}]}],
            },
            "messages[1].tool_calls[0].nam",
        ),
        (
            CHATS,
            {"stream": True, "stream_options": {"include_usag": True}},
            "stream_options.include_usag is unknown: did you mean include_usage",
        ),
        ("/v1/completions", {"structured_outputs": {"jsn": {}}}, "mean json"),
        ("/v1/responses", {"text": {"formt": {}}}, "text.formt is unknown: did you mean format"),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "schema": {}, "strct": True}}},
            "field text.format.strct is unknown: did you mean strict",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "text", "schema": {}}}},
            "field text.format.schema is unknown",
        ),
        ("/v1/responses", {"input": [{**SAID, "contnt": 1}]}, "input[0].contnt"),
        (
            "/v1/responses",
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "x", "txt": 1}]}
                ]
            },
            "input[0].content[0].txt",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_members_that_nobody_knows_are_refused_or_ignored(lm, path, body, says):
    """None of them is dropped in silence, at no depth."""
    usual = {
        CHATS: {"messages": [SAID]},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
    }
    body = {**usual[path], **body}
    with pytest.raises(RefusalError, match=re.escape(says)) as refused:
        ENDPOINTS[path].reads().read_request(RequestBody(body, RequestLimits()), lm, "plain", 0)
    assert refused.value.code == "unknown_field" and refused.value.param in body
    lenient = RequestBody(body, RequestLimits(), lenient=True)
    ENDPOINTS[path].reads().read_request(lenient, lm, "plain", 0)
    assert len(lenient.ignored) == 1
    assert "response_format" in body or "response_format" not in lenient.ignored[0]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "json_schema", "schema": {"type": "strng"}}, "text.format: "),
        ({"type": "json_schema", "name": "x"}, "text.format has no schema"),
        ({"type": "object"}, "text.format.type is 'object'"),
        ({"type": "json_object", "schema": 5}, "text.format has no schema"),
        ("json", "text.format is 'json': it must be an object"),
    ],
)
def test_what_is_wrong_with_a_format_of_texts_is_said_by_its_name(lm, form, says):
    """The client never wrote `response_format`, under which the form is read elsewhere."""
    body = RequestBody({"input": "x", "text": {"format": form}}, RequestLimits())
    with pytest.raises(RefusalError, match=re.escape(says)) as refused:
        ENDPOINTS["/v1/responses"].reads().read_request(body, lm, "plain", 0)
    assert refused.value.param == "text" and "response_format" not in str(refused.value)


def test_an_object_with_a_schema_is_kept_to_the_schema(lm):
    """llama.cpp's form of response_format."""
    schema = {"type": "object", "properties": {"a": {"const": 3}}, "required": ["a"]}
    for path, given in (
        (CHATS, {"messages": [SAID], "response_format": {"type": "json_object", "schema": schema}}),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_object", "schema": schema}}},
        ),
    ):
        (ask,) = (
            ENDPOINTS[path]
            .reads()
            .read_request(RequestBody(given, RequestLimits()), lm, "plain", 0)
            .asks
        )
        language = ask.constraint.token_language(lm.checkpoint.lm.vocab, lm.checkpoint.lm.vocab.eos)
        assert language.forced_bytes(language.start_state()).startswith(b"{")
        assert json.loads(ask.constraint.constraint.text) == schema
    for wrong in (True, [], "x"):
        given = {"prompt": "x", "response_format": {"type": "json_object", "schema": wrong}}
        with pytest.raises(RefusalError, match="must hold a JSON schema"):
            ENDPOINTS["/v1/completions"].reads().read_request(
                RequestBody(given, RequestLimits()), lm, "plain", 0
            )


def test_pages_of_other_origins(lm, http):
    ask = {"origin": "https://example.org", "access-control-request-method": "POST"}
    asked = {**ask, "access-control-request-headers": "authorization, content-type"}
    assert http.options("/v1/completions", headers=asked).status_code == 405
    key = "0123456789abcdef"
    with (
        house.served({"tiny": lambda: lm}, keys=(key,), origins=("https://example.org",)) as served,
        served.client() as client,
    ):
        answer = client.options("/v1/completions", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        told = {"origin": "https://example.org", "authorization": f"Bearer {key}"}
        answer = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers=told)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        other = client.get("/v1/models", headers={**told, "origin": "https://example.com"})
        assert "access-control-allow-origin" not in other.headers


def test_the_description(http):
    told = http.get("/openapi.json").json()
    assert told["info"]["version"] == polydec.__version__
    assert {*ENDPOINTS, "/tokenize", "/detokenize", "/methods", "/health"} <= told["paths"].keys()
    page = http.get("/docs")
    assert (
        page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    )
    assert "repetition_penalty" in page.text and "<script" not in page.text
    assert "http" not in page.text.replace("/openapi.json", ""), "it needs something from elsewhere"


def test_the_description_is_for_those_who_have_a_key(lm):
    key = "a-key-of-some-length"
    with house.served({"tiny": lambda: lm}, keys=(key,)) as served, served.client() as client:
        for path in ("/docs", "/openapi.json", "/metrics", "/methods", "/v1/models"):
            assert client.get(path).status_code == 401, path
            right = client.get(path, headers={"authorization": f"Bearer {key}"})
            assert right.status_code == 200, path
        assert client.get("/").status_code == client.get("/health").status_code == 200


def test_what_a_description_says_stays_text():
    evil = "<script>\"'</script>"
    field = {"type": "string", "description": evil}
    schema = {"required": [], "properties": {evil: field, "choice": {"enum": [evil]}}}
    body = {"content": {"application/json": {"schema": schema}}}
    paths = {f"/{evil}": {"get": {"summary": evil}, "post": {"requestBody": body}}}
    page = openapi_page_html({"info": {"title": evil, "version": "1"}, "paths": paths})
    assert "<script" not in page and html.unescape(page).count(evil) == 8


# A model of texts answers all but the last: tests/serve/test_images.py has one of pictures.
@pytest.mark.parametrize("path", [path for path in ENDPOINTS if path != IMAGES])
def test_every_field_is_described(lm, path):
    prompt = {"/v1/completions": {"prompt": "x"}, "/v1/responses": {"input": "x"}}
    body = RequestBody(
        prompt.get(path, {"messages": [{"role": "user", "content": "x"}]}), RequestLimits()
    )
    ENDPOINTS[path].reads().read_request(body, lm, "plain", 0)
    known = body._known - set(IDLE) - set(ONLY) | {"model"}
    if path != "/v1/chat/completions":
        known -= {"add_generation_prompt", "continue_final_message"}
    if path == "/v1/completions":  # refused there
        known -= {"chat_template_kwargs", "reasoning_effort", "reasoning", "reasoning_format"}
        known |= {"best_of"}  # read by this path alone
    if path == "/v1/responses":
        known -= {"stream_options"}
        known |= set(KEPT) - {"best_of"}  # where there is a store
    assert request_body_fields(path).keys() - {"response_format"} == known - {"response_format"}


def run(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["polydec", *args])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_the_version(monkeypatch, capfd):
    assert run(monkeypatch, "--version") == 0
    assert capfd.readouterr().out == f"polydec {polydec.__version__}\n"


@pytest.mark.parametrize(
    "args, says",
    [
        (("--cors", "example.org"), "it must be an origin"),
        (("--cors", "https://example.org/path"), "it must be an origin"),
        (("--unknown-fields", "drop"), "one of refuse, ignore"),
    ],
)
def test_flags_of_the_server(monkeypatch, capfd, args, says):
    assert run(monkeypatch, "serve", *args) == 2
    assert says in capfd.readouterr().err


@pytest.mark.parametrize("flag", ["--model", "--with", "--draft", "--ngrams"])
@pytest.mark.parametrize("name", ["x" * 5000, "a=" + "x" * 5000, "./" + "x" * 5000])
def test_a_name_that_is_too_long_for_a_file(monkeypatch, capfd, flag, name):
    more = () if flag == "--model" else ("--model", "zoo:tiny")
    run(monkeypatch, "generate", "hello", "--max-tokens", "1", *more, flag, name)
    err = capfd.readouterr().err
    assert "Errno" not in err and "Traceback" not in err and len(err) < 700


def test_a_directory_is_served_by_its_last_name(tmp_path):
    (tmp_path / "big").mkdir()
    assert serve._named([str(tmp_path / "big")]) == {"big": str(tmp_path / "big")}
    assert serve._named(["a=zoo:tiny", "zoo:tiny"]) == {"a": "zoo:tiny", "zoo:tiny": "zoo:tiny"}
    assert serve._named(["x" * 5000]) == {"x" * 5000: "x" * 5000}
