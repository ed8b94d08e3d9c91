"""Chat templates are programs of strangers: whatever they do, this process stays well, and one sentence says what was wrong."""

from __future__ import annotations

import os
import re
import signal
import threading

import pytest

from polydec.models.text import chat_template
from polydec.models.text.chat_template import ChatTemplate

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
GOOD = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
BAD = {
    "gigabytes of spaces": ("{{ messages | tojson(indent=10**9) }}", "memory"),
    "a long text": ("{{ 'a' * 10**10 }}", "memory"),
    "a wide number": ("{{ '%1000000000d' % 1 }}", "memory"),
    "a long output": ("{{ 'a' * 10**7 * 2 }}", "more than 16777216 characters"),
    "doubled often": (
        "{% set n = namespace(t='a') %}{% for i in range(60) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        "memory",
    ),
    "nested loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "2 seconds",
    ),
    "a power": ("{{ 9**(9**9) }}", "seconds|memory|limit"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "brackets": ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "too deeply"),
    "signs": ("{{" + "-" * 100_000 + "1}}", "too deeply"),
    "lists": (
        "{{" + "[" * 150 + "]" * 150 + "}}",
        "too deeply|brings its process down|too many nested|memory",
    ),
    "a break alone": ("{% break %}", "'break' outside loop"),
    "an escape": (
        "{{ raise_exception('\x1b[2J\x1b]0;x\x07' + 'no') }}",
        r"\\x1b\[2J\\x1b\]0;x\\x07no",
    ),
    "a long refusal": ("{{ raise_exception('no ' * 100000) }}", "no no no"),
    "a file": ("{% include '/etc/passwd' %}", "no loader"),
    "an insider": ("{{ ''.__class__.__mro__ }}", "undefined|unsafe"),
    "a wrong call": ("{{ range('x') }}", "interpreted as an integer"),
    "nothing there": ("{{ messages[9].role }}", "has no element 9"),
    "a dead worker": ("{{ 1 // 0 }}", "by zero"),
}


@pytest.mark.parametrize("name", BAD)
def test_templates_that_go_too_far(name):
    source, match = BAD[name]
    try:
        shown = ChatTemplate(source).render(CHAT)
    except ValueError as e:
        assert (
            str(e).startswith("the chat template refuses these messages: ")
            and len(str(e)) <= 300
            and str(e).isprintable()
        )
        assert re.search(match, str(e))
    else:
        assert name == "lists" and len(shown) <= 1000, "it should have been refused"
    assert GOOD.render(CHAT) == "user: hi"


def test_a_worker_that_was_killed_starts_again():
    assert GOOD.render(CHAT) == "user: hi"
    first = chat_template._WORKER._process
    os.kill(first.pid, signal.SIGTERM)
    first.wait()
    assert GOOD.render(CHAT) == "user: hi" and chat_template._WORKER._process.pid != first.pid


def test_one_worker_serves_all_threads():
    got = {}

    def ask(i):
        for _ in range(20):
            got.setdefault(i, []).append(ChatTemplate("{{ x }}" * (i + 1)).render({"x": str(i)}))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == {i: [str(i) * (i + 1)] * 20 for i in range(6)}


def test_messages_are_what_json_holds():
    deep = []
    for _ in range(5000):
        deep = [deep]
    for values, match in (
        ({"x": object()}, "must be what JSON can hold"),
        ({"x": deep}, "JSON can hold"),
        ({"x": "a" * chat_template.MOST}, "bytes with its template"),
    ):
        with pytest.raises(ValueError, match=match):
            GOOD.render(values)
    odd = "\ud800 \x1b[0m \u2028 é世"
    assert ChatTemplate("{{ x }}").render({"x": odd}) == odd


def test_the_time_of_the_template_is_given():
    from datetime import datetime

    assert ChatTemplate("{{ strftime_now('%Y') }}").render({}) in {
        str(datetime.now().year + d) for d in (-1, 0, 1)
    }
