"""Chat templates get what they show: contents as texts or parts, arguments as objects or texts, tools, named templates."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.models import WordLevel

from polydec.base.errors import RequestError
from polydec.models.text import message_forms, tokenizer_files, tool_prompt
from polydec.models.text.tokenizer import Tokenizer

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
    }
]
USER = {"role": "user", "content": "Where is it?"}
SYSTEM = {"role": "system", "content": "Be brief."}
DOCUMENTS = [{"title": "A", "text": "b"}]


def text_of(template):
    return Tokenizer(HFTokenizer(WordLevel({"a": 0})), template=template, names=NAMES)


def loop(inner, after=""):
    return "{% for m in messages %}<{{ m.role }}>" + inner + "{% endfor %}" + after


def expected(template, messages, tools=None, **values):
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=template,
        **{"add_generation_prompt": True} | NAMES | values,
    )
    return rendered[0]


def in_parts(message):
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


PART_TEMPLATES = {
    "loop": loop(
        "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
    ),
    "subscripts": loop("{% for c in m['content'] %}{{ c['text'] }}{% endfor %}"),
    "first": loop("{{ m.content[0].text }}"),
    "filters": loop(
        "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}"
    ),
    "alias": loop(
        "{% set content = m.content %}{% for c in content if c.type == 'text' %}{{ c.text | trim }}{% endfor %}"
    ),
    "macro": "{% macro show(c) %}{% for x in c %}{{ x.text }}{% endfor %}{% endmacro %}"
    + loop("{{ show(m.content) }}"),
    "refuses texts": loop(
        "{% if m.content is string %}{{ raise_exception('no') }}{% endif %}{% for c in m.content %}{{ c.text }};{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", PART_TEMPLATES)
def test_a_template_that_walks_over_parts_gets_parts(name):
    template = PART_TEMPLATES[name]
    text = text_of(template)
    turns = [SYSTEM, USER, {"role": "assistant", "content": "Here."}, USER]
    shown = text.render_chat(turns)
    assert (
        shown == expected(template, [in_parts(m) for m in turns])
        and shown.count("Where is it?") == 2
    )
    two = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert text.render_chat([two]) == expected(template, [two])


TEXT_TEMPLATES = {
    "plain": loop("{{ m.content }}", "{% if add_generation_prompt %}<assistant>{% endif %}"),
    "both": loop(
        "{% if m.content is string %}{{ m.content | upper }}{% else %}{% for c in m.content %}{{ c }}{% endfor %}{% endif %}"
    ),
    "letters": loop("{% for c in m.content %}{{ c }}{% endfor %}"),
    "marks": "{{ bos_token }}" + loop("{{ m.content + eos_token }}"),
    "generation": loop("{% generation %}{% set x = m.content %}{{ x }}{% endgeneration %}{{ x }}"),
    "documents": loop(
        "{{ m.content }}", "{% for d in documents or [] %}{{ d.title }}{{ d.text }}{% endfor %}"
    ),
    "tools is none": loop("{{ m.content }}", "{{ tools is none }}{{ documents is none }}"),
    "names": "{% set ns = namespace(n=0) %}"
    + loop("{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}{{ dict(a=1) }}"),
    "json": loop("{{ m | tojson }}{{ m | tojson(indent=2) }}"),
}


@pytest.mark.parametrize("name", TEXT_TEMPLATES)
def test_a_template_that_shows_texts_gets_texts(name):
    template, turns = (
        TEXT_TEMPLATES[name],
        [SYSTEM, USER, {"role": "assistant", "content": "<é> & it"}],
    )
    text = text_of(template)
    assert text.render_chat(turns) == expected(template, turns)
    assert text.render_chat(turns, reply=False) == expected(
        template, turns, add_generation_prompt=False
    )
    assert text.render_chat(turns, documents=DOCUMENTS) == expected(
        template, turns, documents=DOCUMENTS
    )
    assert text.render_chat([in_parts(m) for m in turns]) == expected(template, turns)


def test_one_role_may_be_shown_in_parts_and_another_as_a_text():
    parts = "{% for c in m.content %}{{ c.text }}{% endfor %}"
    template = loop("{% if m.role == 'user' %}" + parts + "{% else %}{{ m.content }}{% endif %}")
    turns = [SYSTEM, USER, {"role": "assistant", "content": "Here."}]
    assert (
        text_of(template).render_chat(turns)
        == "<system>Be brief.<user>Where is it?<assistant>Here."
    )


NEEDS_TOOLS = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}" + loop("{{ m.content }}")
PARTS_AND_TOOLS = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}" + PART_TEMPLATES["loop"]


@pytest.mark.parametrize("template", [NEEDS_TOOLS, PARTS_AND_TOOLS])
def test_a_template_that_needs_tools_shows_them(template):
    text = text_of(template)
    assert text.shows_tools
    assert text.render_chat([USER], tools=TOOLS) == "[look]<user>Where is it?"
    with pytest.raises(
        RequestError, match="refuses these messages: 'NoneType' object is not iterable"
    ):
        text.render_chat([USER])


def test_a_template_without_a_place_for_tools_that_walks_over_parts():
    text = text_of(PART_TEMPLATES["loop"])
    assert not text.shows_tools
    told = tool_prompt.tool_prompt_text(TOOLS)
    for turns in ([USER], [in_parts(USER)]):
        assert (
            tool_prompt.render_tool_chat(text, turns, TOOLS) == f"<system>{told}<user>Where is it?"
        )


ARGUMENTS = {
    "as JSON": ("{{ c.function.arguments | tojson }}", '{"at": "é"}'),
    "by name": (
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
        "at=é",
    ),
    "joined": ("{{ '>' + c.function.arguments }}", '>{"at": "é"}'),
    "printed": ("{{ c.function.arguments }}", '{"at": "é"}'),
    "either": (
        "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}",
        '{"at": "é"}',
    ),
    "with tools alone": (
        "{% for t in tools %}{% endfor %}{{ '>' + c.function.arguments }}",
        '>{"at": "é"}',
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_objects_or_texts(name):
    shown, want = ARGUMENTS[name]
    template = loop("{{ m.content }}{% for c in m.tool_calls or [] %}" + shown + "{% endfor %}")
    call = {"id": "x", "type": "function", "function": {"name": "look", "arguments": {"at": "é"}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert (
        text_of(template).render_chat([USER, calling], tools=TOOLS).endswith("<assistant>" + want)
    )
    assert call["function"]["arguments"] == {"at": "é"}
    texts = {
        **calling,
        "tool_calls": [{**call, "function": {"name": "look", "arguments": '{"at": "é"}'}}],
    }
    if name in ("joined", "printed", "either"):
        assert text_of(template).render_chat([USER, texts], tools=TOOLS) == expected(
            template, [USER, texts], TOOLS
        )


def test_several_templates_are_known_by_name(tmp_path):
    usual, tooled = loop("{{ m.content }}"), loop("{{ tools[0].function.name }}:{{ m.content }}")
    for named in (
        {"default": usual, "tool_use": tooled, "rag": "r"},
        {"tool_use": tooled, "rag": "r"},
    ):
        text = text_of(named)
        assert text.has_chat and text.shows_tools
        assert text.render_chat([USER], tools=TOOLS) == "<user>look:Where is it?"
        if "default" in named:
            assert text.render_chat([USER]) == "<user>Where is it?"
        else:
            with pytest.raises(
                RequestError, match="'tool_use', 'rag' and none of the name 'default'"
            ):
                text.render_chat([USER])
    listed = [{"name": n, "template": t} for n, t in (("default", usual), ("tool_use", tooled))]
    config = json.dumps({"chat_template": listed})
    (tmp_path / "tokenizer_config.json").write_text(config)
    # Those of the config are read with the tokenizer.
    assert tokenizer_files.read_chat_templates(tmp_path) is None
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text(tooled)
    (tmp_path / "chat_template.jinja").write_text(usual)
    assert tokenizer_files.read_chat_templates(tmp_path) == {"default": usual, "tool_use": tooled}


def test_forms_are_tried_once():
    message_forms.takes_parts.cache_clear()
    text = text_of(PART_TEMPLATES["loop"])
    for _ in range(3):
        text.render_chat([USER])
    assert message_forms.takes_parts.cache_info().misses == 1
