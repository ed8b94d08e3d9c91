"""The page in a browser: a chat of two turns, the draft tree of a step and the time line of passes, two methods side by side, a
phone. Set PICTURES to keep the screenshots."""

import json
import os
import re
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import browser
import house

import polydec

READY = (
    "document.querySelector('#state') && document.querySelector('#state').textContent === 'ready'"
)


def bare():
    """A model without a chat template."""
    model = polydec.load("zoo:tiny")
    model.checkpoint.text.template = None
    return model


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if browser.find() is None:
        pytest.skip("there is no Chromium here")
    directory = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        model = os.environ.get("PICTURES_MODEL", "zoo:tiny")
        loaders = {
            model: lambda: polydec.load(model),
            "bare": bare,
            "zoo:block-diffusion": lambda: polydec.load("zoo:block-diffusion"),
        }
        with house.served(loaders) as served:
            b = browser.Browser(directory / "profile")
            try:
                b.size(1200, 860)
                b.open(served.url + "/")
                b.until(READY)
                yield b
            finally:
                b.close()


@pytest.fixture
def picture(page, tmp_path):
    folder = Path(os.environ.get("PICTURES", tmp_path))
    return lambda name: page.picture(folder / f"{name}.png")


def field(page, name, value, box="#sampling"):
    page.ask(f"document.querySelector('{box} [data-name={name}]').value = {value!r}")


def test_a_chat_by_keyboard(page, picture):
    field(page, "max_tokens", "48")
    field(page, "seed", "3")
    for turn, said in enumerate(
        ("Once upon a time there was a fox. The fox", "And then the fox"), 1
    ):
        page.ask("document.querySelector('#said').focus()")
        page.type(said)
        page.press("Enter", 13)
        page.until(
            f"document.querySelectorAll('.reply').length === {turn} && !document.querySelector('#send').disabled"
        )
    assert page.ask("document.querySelectorAll('.turn.user').length") == 2
    assert page.ask(
        "[...document.querySelectorAll('.reply .turn')].every(t => t.textContent.length > 0)"
    )
    assert "tokens a pass" in page.ask("document.querySelector('.reply .figures').textContent")
    assert page.ask("messages.length") == 4
    picture("chat")
    page.size(1200, 860, dark=True)
    picture("chat-dark")
    page.size(390, 800)
    assert page.ask("document.documentElement.scrollWidth") <= 390, "the page is wider than a phone"
    picture("phone")
    page.size(1200, 860)
    assert page.log == []


def test_a_refused_field_is_told(page):
    field(page, "temperature", "-1")
    page.ask("document.querySelector('#said').focus()")
    page.type("hello")
    page.press("Enter", 13)
    page.until("document.querySelector('.bad')")
    assert "temperature" in page.ask("document.querySelector('.bad').textContent")
    page.log.clear()  # the browser notes a 400 as an error


def test_a_refused_message_can_be_sent_again(page):
    page.ask("document.querySelector('#clear').click()")
    field(page, "temperature", "-1")
    page.ask("document.querySelector('#said').value = ''")
    say(page, "hello")
    assert page.ask("document.querySelector('#said').value") == "hello"
    assert page.ask(
        "[messages.length, document.querySelectorAll('.turn.user.refused').length]"
    ) == [0, 1]
    field(page, "temperature", "")
    page.press("Enter", 13)
    page.until("messages.length === 2 && !document.querySelector('#send').disabled")
    assert page.ask("document.querySelector('#said').value") == ""
    assert page.ask("document.querySelectorAll('.refused, .bad').length") == 0
    assert page.ask("document.querySelectorAll('.turn.user').length") == 1
    page.log.clear()


def test_errors_are_told_in_words(page):
    page.ask("document.querySelector('#clear').click()")
    page.ask("document.querySelector('#said').value = ''")
    page.ask("window.fetched = window.fetch")
    broken = (
        ("() => Promise.reject(new TypeError('Failed to fetch'))", "The server is gone: nothing"),
        (
            "() => Promise.resolve(new Response('data: {\"choices\": []}\\n\\n'))",
            "The server is gone: its answer broke off",
        ),
        ("() => Promise.resolve(new Response('', {status: 401}))", "This server wants a key"),
        ("() => Promise.resolve(new Response('<p>', {status: 502}))", "answers 502"),
    )
    told = "[...document.querySelectorAll('.bad')].map(b => b.textContent)"
    try:
        for fetch, words in broken:
            page.ask(f"window.fetch = {fetch}, 0")
            page.ask("document.querySelector('#said').value = 'hello'")
            page.ask("document.querySelector('#ask').requestSubmit()")
            page.until("!document.querySelector('#send').disabled")
            (sentence,) = page.ask(told)
            assert words in sentence
        page.ask("window.fetch = () => Promise.resolve(new Response('', {status: 401})), 0")
        page.ask("document.querySelector('#key').value = 'mine'")
        page.ask("document.querySelector('#ask').requestSubmit()")
        page.until("!document.querySelector('#send').disabled")
        assert "The key is wrong" in page.ask(told)[0]
    finally:
        page.ask("window.fetch = window.fetched, 0")
        page.ask("document.querySelector('#key').value = ''")
        page.ask("document.querySelector('#key-row').hidden = true")
        page.ask("openSettings(false)")
        page.ask("document.querySelector('#said').value = ''")
        page.ask("document.querySelector('#clear').click()")
        page.log.clear()


def test_nothing_is_sent_before_a_model_is_there(page):
    page.ask("document.querySelector('#clear').click()")
    page.ask("document.querySelector('#verdict').textContent = ''")
    before = page.ask("fetch('/').then(r => r.text())")
    assert 'id="send" disabled' in before and 'id="go" disabled' in before
    page.ask("begun = false")
    try:
        page.ask("document.querySelector('#said').value = 'hello'")
        for form in ("ask", "race"):
            page.ask(f"document.querySelector('#{form}').requestSubmit()")
        assert page.ask("document.querySelectorAll('#log > *').length") == 0
        assert page.ask("document.querySelector('#said').value") == "hello"
        assert page.ask("document.querySelector('#verdict').textContent") == ""
    finally:
        page.ask("begun = true")
        page.ask("document.querySelector('#said').value = ''")
    assert page.ask("document.querySelector('#send').disabled") is False
    assert page.log == []


IN_SIGHT = (
    "['#send', '#stop'].every(s => { const r = document.querySelector(s).getBoundingClientRect();"
    " return r.top >= 0 && r.left >= 0 && r.bottom <= innerHeight && r.right <= innerWidth && r.height > 0; })"
)
AT_THE_END = (
    "(f => f.scrollHeight - f.scrollTop - f.clientHeight < 24)(document.querySelector('#flow'))"
)


def test_the_list_follows_and_the_buttons_stay_in_sight(page):
    long = "A long line of a story about foxes. ".join(str(n) + "\n" for n in range(120))
    turns = [
        {"role": "user", "content": "Tell me."},
        {"role": "assistant", "content": "So.", "runs": [[long, False]], "figures": "plain"},
    ]
    field(page, "max_tokens", "16")
    try:
        for width, height in ((1280, 800), (390, 844)):
            page.size(width, height)
            page.ask(f"again({json.dumps(turns)})")
            page.until(AT_THE_END)
            assert page.ask(IN_SIGHT)
            page.ask("document.querySelector('#flow').scrollTop = 0")
            page.until("!following")
            # what grows while it is written is not followed by who has scrolled up
            grow = "document.querySelector('#log').append(make('p', {textContent: 'more'}))"
            page.ask("under = {}")
            page.ask(f"{grow}, 0")
            page.ask("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
            assert page.ask("document.querySelector('#flow').scrollTop") == 0
            page.ask("document.querySelector('#flow').scrollTop = 1e6")
            page.until("following")
            page.ask(f"{grow}, 0")
            page.ask("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
            assert page.ask(AT_THE_END)
            page.ask("under = null")
            # a window of another size, as a phone that is turned, keeps the end in sight
            page.size(width - 60, height - 200)
            page.until(AT_THE_END)
            page.size(width, height)
            page.until(AT_THE_END)
            page.ask("document.querySelector('#flow').scrollTop = 0")
            say(page, "And then?")
            assert page.ask(AT_THE_END) and page.ask(IN_SIGHT)
        assert page.ask("getComputedStyle(document.querySelector('#side')).display") == "none"
        page.ask("document.querySelector('#settings').click()")
        assert page.ask("getComputedStyle(document.querySelector('#side')).display") == "block"
        assert page.ask(IN_SIGHT)
        page.ask("document.querySelector('#settings').click()")
    finally:
        page.ask("under = null")
        page.size(1200, 860)
        page.ask("document.querySelector('#clear').click()")
    assert page.log == []


def test_fields_that_end_limit_and_steer_an_answer(page):
    def put(where, value):
        page.ask(f"document.querySelector({where!r}).value = {json.dumps(value)}")

    asked = "request([{role: 'user', content: 'a'}], {}, true)[1]"
    assert not {"stop", "guided_json", "guided_choice", "steer", "finish"} & set(page.ask(asked))
    put("#stops", "END\n\\n\\n\n")
    put("#choices", "red\nsea green")
    put("#schema", '{"type": "string"}')
    page.ask("document.querySelector('#finish').checked = true")
    page.ask(
        "(s => { s.value = 'cfg'; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#steering select'))"
    )
    put("#steering textarea", "Be dull.")
    page.ask("document.querySelector('#steering [data-name=scale]').value = '2'")
    body = page.ask(asked)
    assert body["stop"] == ["END", "\n\n"] and body["guided_choice"] == ["red", "sea green"]
    assert body["guided_json"] == {"type": "string"} and body["finish"] is True
    assert body["steer"] == "cfg" and body["negative_prompt"] == "Be dull."
    assert body["steer_options"] == {"scale": 2}
    put("#schema", "{")
    page.ask("document.querySelector('#clear').click()")
    put("#said", "")
    say(page, "hello")
    assert "The JSON schema is no JSON" in page.ask("document.querySelector('.bad').textContent")
    put("#schema", "")
    page.press("Enter", 13)
    page.until("messages.length === 2 && !document.querySelector('#send').disabled")
    assert page.ask("messages[1].content") in ("red", "sea green")
    for where in ("#stops", "#choices"):
        put(where, "")
    page.ask("document.querySelector('#finish').checked = false")
    page.ask(
        "(s => { s.value = ''; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#steering select'))"
    )
    page.ask("document.querySelector('#clear').click()")
    assert "steer" not in page.ask(asked) and page.log == []


def test_an_answer_is_shorter_where_there_is_no_room_for_the_usual_one(page):
    field(page, "max_tokens", "")
    assert page.ask("request([{role: 'user', content: 'a'}], {}, true)[1]")["max_tokens"] == 512
    page.ask("document.querySelector('#clear').click()")
    say(page, "The grey fox and the old river. " * 80)
    assert page.ask("document.querySelectorAll('.bad').length") == 0
    assert page.ask("messages.length") == 2
    page.log.clear()  # the first try is refused
    field(page, "max_tokens", "48")


def luminance(colour):
    """Of a colour as a browser computes it, `rgb(r, g, b)`: the relative luminance of WCAG 2, 0 to 1."""
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_what_holds_where_a_field_is_empty_can_be_read(page):
    styles = (
        "(e => { const hint = getComputedStyle(e, '::placeholder');"
        " return [hint.color, getComputedStyle(e).backgroundColor, hint.opacity]; })"
        "(document.querySelector('#sampling [data-name=top_p]'))"
    )
    try:
        for dark in (False, True):
            page.size(1200, 860, dark=dark)
            *colours, opacity = page.ask(styles)
            low, high = sorted(luminance(colour) for colour in colours)
            assert opacity == "1" and (high + 0.05) / (low + 0.05) >= 4.5
    finally:
        page.size(1200, 860)


def test_side_by_side(page, picture):
    page.ask("document.querySelector('#tab-chat').focus()")
    page.press("ArrowRight", 39)
    page.until(
        "!document.querySelector('#compare').hidden && document.querySelector('#chat').hidden"
    )
    page.ask(
        "(s => { s.value = 'draft-model'; s.dispatchEvent(new Event('change')); })"
        "(document.querySelector('#right select.method'))"
    )
    assert page.ask("document.querySelectorAll('#right [data-name]').length") == len(
        polydec.methods.registry.registry.method_options("draft-model")
    )
    page.ask("document.querySelector('#race').requestSubmit()")
    page.until("/verdict|seen|times as fast/.test(document.querySelector('#verdict').textContent)")
    told = page.ask("document.querySelector('#verdict').textContent")
    assert "The texts are equal." in told and "6 turns" in told
    assert "the first (plain)" in told and "he second (draft-model)" in told
    assert page.ask("document.querySelectorAll('#left .draft').length") == 0
    assert page.ask("document.querySelectorAll('#right .draft').length") > 0, (
        "no draft was accepted: choose another prompt"
    )
    # the verdict stays where one looks, wherever the answers are scrolled to
    place = "document.querySelector('#verdict').getBoundingClientRect()"
    for width, height in ((1280, 700), (390, 844)):
        page.size(width, height)
        for top in (0, 10_000):
            page.ask(f"document.querySelector('#compare').scrollTop = {top}")
            assert page.ask(f"{place}.top >= 0 && {place}.bottom <= innerHeight / 2")
    page.size(1200, 860)
    picture("sides")
    assert page.log == []


def test_a_verdict_needs_turns_and_a_range(page):
    def told(*ratios):
        return page.ask(f"verdict({list(ratios)}, ['plain', 'auto'])")

    assert told(1.44) == "No verdict: it takes 6 turns (1.44 to 1.44 in 1 turn)."
    assert told() == "No verdict: it takes 6 turns (none ended)."
    assert (
        told(1.44, 0.98, 1.1, 1.2, 1.06, 1.3)
        == "No difference in speed was seen: the second (auto) is 0.98 to 1.44 times as fast as the first (plain) in 6 turns."
    )
    assert (
        told(1.2, 1.3, 1.4, 1.25, 1.35, 1.31)
        == "The second (auto) is 1.31 times as fast as the first (plain): 1.20 to 1.40 in 6 turns."
    )
    slower = told(0.5, 0.6, 0.7, 0.55, 0.65, 0.9)
    assert slower.startswith("The second (auto) is 0.63 times as fast as the first (plain)")


TREE = "[...document.querySelectorAll('#log .reply:last-child .tree g')].map(g => [g.getAttribute('class'), g.textContent])"
PLACES = "[...document.querySelectorAll('.tree rect')].map(r => r.getAttribute('y'))"


def send(page, text, method):
    page.ask("document.querySelector('#tab-chat').click()")
    page.ask("document.querySelector('#clear').click()")
    page.ask(
        f"(s => {{ s.value = {method!r}; s.dispatchEvent(new Event('change')); }})"
        "(document.querySelector('#method-box select.method'))"
    )
    page.ask("document.querySelector('#said').focus()")
    page.type(text)
    page.press("Enter", 13)
    page.until(
        "document.querySelector('.reply .figures') && !document.querySelector('#send').disabled"
    )
    page.until("document.querySelector('.reply .line svg')")


def test_a_step_shows_its_tree(page, picture):
    send(page, "Once upon a time there was a fox. The fox", "eagle-2-tree")
    count = page.ask("document.querySelectorAll('.reply .step').length")
    assert count > 3 and page.ask("document.querySelector('.reply .round').hidden")
    at = page.ask(
        "[...document.querySelectorAll('.reply .step')].findIndex(s => s.querySelector('.draft'))"
    )
    assert at >= 0, "no draft was accepted: choose another prompt"
    page.ask(f"document.querySelectorAll('.reply .step')[{at}].firstChild.click()")
    wrote = page.ask(f"document.querySelectorAll('.reply .step')[{at}].textContent")
    tree = page.ask(TREE)
    kinds = [kind for kind, _ in tree]
    assert kinds[0] == "root" and kinds.count("own") == 1 and kinds.count("yes") >= 1
    assert "no" in kinds and len(set(page.ask(PLACES))) > 1, "the tree has no branch"
    shown = "".join(text for kind, text in tree if kind in ("yes", "own")).replace("·", " ")
    assert shown == wrote
    assert f"Step {at + 1} of" in page.ask("document.querySelector('.round p').textContent")
    assert page.ask("document.querySelectorAll('.step.chosen').length") == 1
    # however long an answer is, the tree stands in sight beside the step
    page.size(1200, 480)
    page.ask(
        "document.querySelector('.reply .turn').append(make('p', {style: 'height: 60rem'})), 0"
    )
    page.ask(f"document.querySelectorAll('.reply .step')[{at}].scrollIntoView({{block: 'start'}})")
    bottoms = page.ask(
        "['.round', '#flow'].map(at => document.querySelector(at).getBoundingClientRect().bottom)"
    )
    assert bottoms[0] <= bottoms[1] + 1
    page.ask("document.querySelector('.reply .turn').lastChild.remove(), 0")
    page.size(1200, 860)
    picture("tree")
    page.size(1200, 860, dark=True)
    picture("tree-dark")
    page.size(390, 800)
    page.ask("document.querySelector('.round').scrollIntoView({block: 'end'})")
    assert page.ask("document.documentElement.scrollWidth") <= 390, "the page is wider than a phone"
    picture("tree-phone")
    page.size(1200, 860)
    assert page.log == []


def test_the_time_line_by_keyboard(page):
    send(page, "Once upon a time there was a fox. The fox", "draft-model")
    steps = page.ask("document.querySelectorAll('.reply .step').length")
    lanes = page.ask("[...document.querySelectorAll('.line svg > text')].map(t => t.textContent)")
    assert lanes[:2] == ["zoo:tiny", "zoo:tiny (draft)"]
    assert page.ask("document.querySelectorAll('.line rect.target').length") >= steps
    assert page.ask("document.querySelectorAll('.line rect.other').length") > 0
    assert "ms" in page.ask("document.querySelector('.line rect title').textContent")
    page.ask("document.querySelector('.line').focus()")
    for key, code, at in (
        ("End", 35, steps),
        ("ArrowLeft", 37, steps - 1),
        ("Home", 36, 1),
        ("ArrowRight", 39, 2),
    ):
        page.press(key, code)
        assert (
            page.ask("Number(document.querySelector('.line').getAttribute('aria-valuenow'))") == at
        )
        assert page.ask("Number(document.querySelector('.step.chosen').dataset.step)") == at - 1
    page.press("Escape", 27)
    assert page.ask("document.querySelector('.round').hidden")
    assert page.log == []


def test_a_method_without_drafts_has_steps(page):
    send(page, "Once upon a time", "plain")
    page.ask("document.querySelector('.reply .step').click()")
    assert [kind for kind, _ in page.ask(TREE)] == ["root", "own"]
    send(page, "Once upon a time", "beam")
    page.ask("document.querySelector('.reply .step').click()")
    assert "no draft" in page.ask("document.querySelector('.round').textContent")
    assert page.log == []


def choose(page, model):
    """Change to another model, with an empty chat."""
    page.ask("document.querySelector('#tab-chat').click()")
    page.ask("document.querySelector('#clear').click()")
    page.ask("document.querySelector('#state').textContent = ''")
    page.ask(
        f"(s => {{ s.value = {model!r}; s.dispatchEvent(new Event('change')); }})"
        "(document.querySelector('#model'))"
    )
    page.until("document.querySelector('#state').textContent === 'ready'")


@pytest.fixture
def first_again(page):
    yield
    choose(page, page.ask("document.querySelector('#model').options[0].value"))


def say(page, text):
    turns = page.ask("document.querySelectorAll('.reply').length")
    page.ask("document.querySelector('#said').focus()")
    page.type(text)
    page.press("Enter", 13)
    page.until(
        f"document.querySelectorAll('.reply').length === {turns + 1}"
        " && !document.querySelector('#send').disabled"
    )


def test_a_model_without_a_template_goes_on_from_a_text(page, first_again):
    choose(page, "bare")
    assert page.ask(
        "document.querySelector('#raw').checked && document.querySelector('#raw').disabled"
    )
    assert "no chat template" in page.ask("document.querySelector('#raw-why').textContent")
    field(page, "max_tokens", "8")
    say(page, "Once upon a time there was a ")
    assert page.ask("document.querySelectorAll('.bad').length") == 0
    path, body = page.ask("request([...messages, {role: 'user', content: ' And'}], {}, true)")
    assert path == "/v1/completions" and "messages" not in body and body["max_tokens"] == 8
    answer = page.ask("document.querySelector('.reply .turn').textContent")
    assert body["prompt"] == f"Once upon a time there was a {answer} And"
    assert page.log == []


def test_raw_completion_is_a_switch_where_there_is_a_template(page, first_again):
    choose(page, page.ask("document.querySelector('#model').options[0].value"))
    assert (
        page.ask("request([{role: 'user', content: 'a'}], {}, true)[0]") == "/v1/chat/completions"
    )
    page.ask("document.querySelector('#raw').click()")
    path, body = page.ask("request([{role: 'user', content: 'a'}], {}, true)")
    assert path == "/v1/completions" and body["prompt"] == "a" and body["max_tokens"] == 512


def test_a_model_starts_with_a_method_that_it_can_do(page, first_again):
    assert page.ask("document.querySelector('#canvas-legend').hidden")
    choose(page, "zoo:block-diffusion")
    assert not page.ask("document.querySelector('#canvas-legend').hidden")
    assert page.ask("document.querySelector('#draft-legend').hidden")
    for box in ("#method-box", "#left", "#right"):
        assert page.ask(
            f"!document.querySelector('{box} select.method').selectedOptions[0].disabled"
        )
    field(page, "max_tokens", "8")
    say(page, "2+3=")
    assert page.ask("document.querySelectorAll('.bad').length") == 0


def again(page):
    """The page after a reload."""
    page.ask("document.querySelector('#state').textContent = 'before'")
    page.call("Page.reload")
    page.until(READY)


def test_a_system_prompt_comes_first(page, first_again):
    choose(page, page.ask("document.querySelector('#model').options[0].value"))
    page.ask("document.querySelector('#system').value = ' Be short. '")
    asked = "request([{role: 'user', content: 'a', runs: []}], {}, true)[1]"
    told, user = {"role": "system", "content": "Be short."}, {"role": "user", "content": "a"}
    assert page.ask(asked)["messages"] == [told, user]
    page.ask("document.querySelector('#raw').click()")
    assert page.ask("document.querySelector('#system-row').hidden")
    assert page.ask(asked)["prompt"] == "a"
    page.ask("document.querySelector('#raw').click()")
    page.ask("document.querySelector('#system').value = ''")
    assert page.ask(asked)["messages"] == [user]


def test_a_chat_survives_a_reload(page):
    page.ask("document.querySelector('#clear').click()")
    field(page, "max_tokens", "24")
    field(page, "seed", "3")
    say(page, "Once upon a time there was a fox. The fox")
    page.ask("document.querySelector('#system').value = 'Be short.'")
    page.ask("document.querySelector('#system').dispatchEvent(new Event('change'))")
    turns = "[...document.querySelectorAll('#log .turn')].map(t => t.textContent)"
    drafted = "[...document.querySelectorAll('#log .draft')].map(t => t.textContent).join('')"
    figures = "document.querySelector('#log .figures').textContent"
    before = page.ask(f"[{turns}, {drafted}, {figures}, messages]")
    again(page)
    assert page.ask(f"[{turns}, {drafted}, {figures}, messages]") == before
    assert page.ask("document.querySelector('#system').value") == "Be short."
    say(page, "And then the fox")
    assert page.ask("messages.length") == 4
    page.ask("document.querySelector('#clear').click()")
    again(page)
    assert page.ask("messages.length") == 0 and page.ask(f"{turns}.length") == 0
    page.ask("document.querySelector('#system').value = ''")
    assert page.log == []


def test_what_is_kept_has_a_bound_and_is_checked(page):
    page.ask(
        "messages = Array.from({length: 500}, (_, i) => i % 2"
        " ? {role: 'assistant', content: 'b', runs: [['b', true]], figures: ''}"
        " : {role: 'user', content: 'a'.repeat(20000)})"
    )
    page.ask("keep()")
    size, first, count = page.ask(
        "[sessionStorage.getItem(KEPT).length, kept().turns[0].role, kept().turns.length]"
    )
    assert size <= 400_000 and first == "user" and 2 <= count <= 200
    for wrong in (
        "not JSON",
        "null",
        "{}",
        '{"model": "m", "system": "", "turns": [{"role": "system", "content": "x"}]}',
        '{"model": "m", "system": "", "turns": [{"role": "assistant", "content": "x", "figures": "", "runs": [[1, true]]}]}',
    ):
        page.ask(f"sessionStorage.setItem(KEPT, {wrong!r})")
        assert page.ask("kept()") is None
    page.ask("document.querySelector('#clear').click()")


def test_methods_are_found_by_words_and_family(page):
    page.ask("document.querySelector('#tab-chat').click()")

    def look(box, value, event):
        page.ask(
            f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event({event!r})); }})"
            f"(document.querySelector('#method-box .{box}'))"
        )

    listed = "[...document.querySelectorAll('#method-box select.method option')].map(o => o.value)"
    found = "document.querySelector('#method-box .found').textContent"
    chosen = "chatHow().method"
    everything = page.ask(listed)
    assert len(everything) == len(polydec.methods.registry.registry.recipe_modules())
    usable = page.ask(
        "[...document.querySelectorAll('#method-box select.method option')].map(o => !o.disabled)"
    )
    assert usable == sorted(usable, reverse=True), "what the model can do comes first"
    promises = {
        "beam": "Beam search. Changes the text.",
        "auto": "Chooses for you (goodput). Same distribution as plain.",
    }
    for name, words in promises.items():
        page.ask(
            f"(s => {{ s.value = {name!r}; s.dispatchEvent(new Event('change')); }})"
            "(document.querySelector('#method-box select.method'))"
        )
        told = "document.querySelector('#method-box .found + .legend').textContent"
        assert page.ask(told) == words
    before = page.ask(chosen)
    look("words", "EAGLE tree", "input")
    some = page.ask(listed)
    assert "eagle-2-tree" in some and before in some and len(some) < 12
    assert page.ask(chosen) == before, "looking chose something"
    assert page.ask(found).startswith(f"{len(some) - 1} methods")
    look("words", "", "input")
    look("family", "diffusion", "change")
    families = {
        name: polydec.methods.registry.registry.describe_method(name)["family"]
        for name in polydec.methods.registry.registry.recipe_modules()
    }
    assert set(page.ask(listed)) - {before} == {n for n, f in families.items() if f == "diffusion"}
    look("words", "no such method", "input")
    assert page.ask(listed) == [before] and page.ask(found) == "0 methods, 0 for this model"
    look("words", "", "input")
    look("family", "", "change")
    assert page.ask(listed) == everything
    page.ask("document.querySelector('#method-box .words').focus()")
    page.press("Enter", 13)
    assert page.log == []


def test_the_time_axis_is_whole_on_a_phone(page, picture):
    send(page, "Once upon a time there was a fox. The fox", "draft-model")
    page.ask(  # an answer of 700 steps, in the place of this one
        "(old => { const text = document.createElement('div'), story = new Story(text);"
        " old.replaceChildren(text, story.line, story.round);"
        " story.add(Array.from({length: 700}, (_, i) => ({seconds: (i + 1) / 60, wrote: 1})),"
        " Array.from({length: 1400}, (_, i) => ({model: i % 2 ? 'zoo:a-long-name-of-a-drafter' : 'zoo:a-model',"
        " target: i % 2 === 0, start: i / 120, seconds: 1 / 130, positions: 1, of: 1, queries: 1})));"
        " story.end(); })(document.querySelector('.reply'))"
    )
    try:
        for width in (390, 1200):
            page.size(width, 860)
            page.until("document.querySelector('.line svg').clientWidth <= innerWidth")
            assert page.ask("document.querySelectorAll('.line rect.target').length") == 700
            # labels, bars and the axis lie within the line, and no two labels of the axis touch
            inside = (
                "(line => [...line.querySelectorAll('text, rect, line.axis')].every(e => {"
                " const r = e.getBoundingClientRect(), l = line.getBoundingClientRect();"
                " return r.left >= l.left - 1 && r.right <= l.right + 1; }))(document.querySelector('.line'))"
            )
            page.until(inside, 5)
            apart = (
                "(texts => texts.every((t, i) => !i ||"
                " texts[i - 1].getBoundingClientRect().right < t.getBoundingClientRect().left))"
                "([...document.querySelectorAll('.line text')].filter(t => /^[0-9.]+ m?s$/.test(t.textContent)))"
            )
            assert page.ask(apart)
        page.size(390, 800)
        page.ask("document.querySelector('.line').scrollIntoView({block: 'end'})")
        picture("axis-phone")
    finally:
        page.size(1200, 860)
    assert page.log == []


def test_markdown_is_text_in_elements(page):
    def html(text):
        return page.ask(f"markdown({json.dumps(text)}).innerHTML")

    assert html("One *two* **three _four_**\nand `a*b*`.\n\nNext") == (
        "<p>One <em>two</em> <strong>three <em>four</em></strong>\nand <code>a*b*</code>.</p><p>Next</p>"
    )
    assert html("# Title #\ntext\n---") == "<h1>Title</h1><p>text</p><hr>"
    assert html("```python\nif a < b:\n    **x**\n```\nafter") == (
        '<pre tabindex="0"><code>if a &lt; b:\n    **x**</code></pre><p>after</p>'
    )
    assert html("~~~\nopen") == '<pre tabindex="0"><code>open</code></pre>'
    assert html("- a\n  more\n  1. b\n  2. c\n- d\n\n3. e") == (
        '<ul><li>a\nmore<ol start="1"><li>b</li><li>c</li></ol></li><li>d</li></ul>'
        '<ol start="3"><li>e</li></ol>'
    )
    assert html("> said\n> - x") == "<blockquote><p>said</p><ul><li>x</li></ul></blockquote>"
    assert html("[a](https://example.org/b?c=1)") == (
        '<p><a href="https://example.org/b?c=1" title="https://example.org/b?c=1" target="_blank"'
        ' rel="noopener noreferrer">a</a></p>'
    )
    assert html("snake_case_name, 2 * 3 * 4 and \\*so\\*") == (
        "<p>snake_case_name, 2 * 3 * 4 and *so*</p>"
    )


def test_markdown_runs_nothing(page):
    wrong = (
        "<img src=x onerror=alert(1)> <script>alert(1)</script>",
        "[a](javascript:alert(1)) [b](data:text/html,x) [c](/metrics) [d](JaVaScRiPt:x) [e](file:///x)",
        "`<b>` **<i>x</i>**",
        "# <img src=x>\n- <a href=x>\n> <svg>\n```<u>\n<s>\n```",
    )
    for text in wrong:
        found = page.ask(
            f"[...markdown({json.dumps(text)}).querySelectorAll('img, script, a, b, i, svg, u, s')].length"
        )
        assert found == 0, text
    source = files("polydec.serve").joinpath("page.html").read_text("utf-8")
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
    ):
        assert name not in source


def test_markdown_comes_to_an_end_with_any_text(page):
    for part in (
        "*",
        "**a",
        "_a ",
        "[",
        "[a](",
        "`",
        "> ",
        "- ",
        "  - ",
        "#",
        "\\",
        "```\n",
        "1. \n",
        "((",
    ):
        for text in (
            part * 3000,
            "\n".join([part * 20] * 300),
            "".join(" " * i + part + "\n" for i in range(200)),
        ):
            assert page.ask(f"markdown({json.dumps(text)}).querySelectorAll('*').length < 20000")
    assert page.log == []


def test_markdown_is_behind_a_switch(page, picture):
    page.ask("document.querySelector('#tab-chat').click()")
    page.ask("document.querySelector('#clear').click()")
    runs = [
        ["# Rivers\n\n", False],
        ["- the **Elbe**\n- the `Rhine`\n", True],
        ["\n```\na = 1\n```", False],
    ]
    text = "".join(part for part, _ in runs)
    page.ask(
        f"again([{{role: 'user', content: 'Two rivers?'}}, {{role: 'assistant', content: {json.dumps(text)},"
        f" runs: {json.dumps(runs)}, figures: 'plain'}}])"
    )

    def seen(what):
        return page.ask(f"document.querySelector('.reply {what}').getClientRects().length > 0")

    assert seen(".draft") and not seen(".markdown")
    page.ask("document.querySelector('#marked').click()")
    assert seen(".markdown h1") and seen(".markdown pre") and not seen(".draft")
    picture("markdown")
    page.ask("keep()")
    again(page)
    assert seen(".markdown h1")
    say(page, "Once upon a time")
    assert page.ask(
        "[...document.querySelectorAll('.reply')].at(-1).querySelector('.markdown').textContent.length > 0"
    )
    page.ask("document.querySelector('#marked').click()")
    assert seen(".draft") and not seen(".markdown")
    page.ask("document.querySelector('#clear').click()")
    assert page.log == []
