"""Every option of every method at the ends of the range that its CARD states, and just outside."""
import re

import pytest

from polydec import api, registry
from polydec.bench import profile
from polydec.models import stop_head

CASES = [(name, o.name) for name in sorted(registry.of_family("ar")) for o in registry.options(name)
         if o.kind in (int, float, tuple)]
RANGE = re.compile(r"(above )?(\d+) to (\d+)")
OPEN = re.compile(r"\d to |and more|at least \d|above \d|negative|bits|least to most")
PROMPT = "The old river ran past the mill, and the old river"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(profile, "QUICK", 0.2)
        lm = api.load("zoo:tiny", threads=1)
        with pytest.warns(UserWarning, match="no profile"):
            assert lm.costs
        yield lm


@pytest.fixture(scope="module")
def head(lm, tmp_path_factory):
    path = tmp_path_factory.mktemp("head")
    stop_head.save(path, stop_head.fresh(lm.draft.lm.network.config.width, 1, False, 0), {})
    return str(path)


def said(lm, head, method, option, value, **more):
    """What an engine says to a value: its sentence, or None where it decodes."""
    given = {"head": head} if method == "specdec-plus-plus" else {}
    engine = api.Engine(lm)
    try:
        ticket = engine.submit(PROMPT, method=method, options={**given, option: str(value), **more}, max_tokens=2, raw=True)
    except ValueError as error:
        return str(error)
    assert len(engine.run([ticket])[0].token_ids) <= 2
    return None


@pytest.mark.parametrize(("method", "option"), CASES)
def test_range_is_stated_and_true(lm, head, method, option):
    if set(registry.get(method).CARD.needs) - {"draft", "layers", "draft's layers", "head"}:
        pytest.skip("it needs a file that was trained")
    text = registry.get(method).CARD.options[option]
    assert OPEN.search(text), f"{text!r} states no range"
    names = tuple(f"{o.name} is" for o in registry.options(method))       # of bounds that hold each other, either may be named
    outside = ["nan"] if next(o for o in registry.options(method) if o.name == option).kind is float else []
    if (found := RANGE.search(text)) and next(o for o in registry.options(method) if o.name == option).kind is not tuple:
        low, high = int(found[2]), int(found[3])
        above = found[1] is not None
        for end in (low + 1e-6 if above else low, high):
            wrong = said(lm, head, method, option, end)
            assert wrong is None or (wrong.startswith(names) and not wrong.startswith(f"{option} is")), wrong
        outside += [low if above else low - 1, high + 1]
    for value in (*outside, -10 ** 9, 10 ** 9):
        wrong = said(lm, head, method, option, value)
        assert wrong is None or (wrong.startswith(names) and len(wrong) < 200), wrong
        assert wrong is not None or value not in outside, f"{option}={value} was taken"


@pytest.mark.parametrize(("method", "given", "says"), [
    ("layerskip", {"exit": "6"}, "exit is 6: it must lie in 1 to 5, the model's layers"),
    ("layerskip", {"exit": "0"}, "exit is 0: it must lie in 1 to 5, the model's layers"),
    ("layerskip", {"exit": "1000000000"}, "exit is 1000000000: it must lie in 1 to 5, the model's layers"),
    ("draft-and-verify", {"skip": "5"}, "skip is '5': it must name layers 0 to 4"),
    ("draft-and-verify", {"threshold": "2"}, "threshold is 2.0: it must lie in 0 to 1"),
    ("calm", {"every": "0"}, "every is 0: it must be at least 1"),
    ("calm", {"every": "-2"}, "every is -2: it must be at least 1"),
    ("specmquant", {"inner_nodes": "257"}, "inner_nodes is 257: it must lie in 0 to 256"),
    ("s2d", {"tau_2": "-1"}, "tau_2 is -1.0: it must be at least 0"),
    ("aggressive-decoding", {"start": "5", "stop": "3"}, "stop is 3: it must lie behind start, which is 5"),
    ("aggressive-decoding", {"start": "-3", "stop": "-5"}, "stop is -5: it must lie behind start, which is -3"),
    ("aggressive-decoding", {"stop": "0"}, "stop is 0: it must lie behind start, which is 0"),
    ("specdec-plus-plus", {"least": "9"}, "least is 9: it must lie in 1 to depth, which is 8"),
])
def test_refusals(lm, head, method, given, says):
    (option, value), *more = given.items()
    assert (said(lm, head, method, option, value, **dict(more)) or "taken").startswith(says)


def test_what_contradicts_nothing_is_taken(lm, head):
    assert said(lm, head, "aggressive-decoding", "start", "-9", stop="-2") is None
    assert said(lm, head, "aggressive-decoding", "start", "2", stop="-2") is None
    assert said(lm, head, "specdec-plus-plus", "depth", "0") is None


@pytest.mark.parametrize(("prompt", "given", "says"), [
    (PROMPT, {"max_tokens": 1.5}, "max_tokens is 1.5: it must be a whole number"),
    (PROMPT, {"n": 2.0}, "n is 2.0: it must be a whole number"),
    (PROMPT, {"seed": "a"}, "seed is 'a': it must be a whole number"),
    (PROMPT, {"stop_token_ids": (5, -1)}, "stop_token_ids has token -1: ids lie in 0 to 4095"),
    ((5, -1), {}, "prompt has token -1: ids lie in 0 to 4095"),
    ((5, 4096), {}, "prompt has token 4096: ids lie in 0 to 4095"),
])
def test_requests_that_are_refused(lm, prompt, given, says):
    with pytest.raises(ValueError, match=says):
        api.Engine(lm).submit(prompt, **given)


def test_one_stop_text_is_one(lm):
    one, same = (api.generate(lm, PROMPT, raw=True, stop=s, max_tokens=24) for s in ("lder, a", ["lder, a"]))
    assert one.text == same.text and one.finish_reason == "stop"


@pytest.mark.parametrize(("file", "content"), [("config.json", b"{"), ("config.json", b"{}"), ("config.json", b"[]"),
                                               ("head.safetensors", b"half"), ("head.safetensors", b"")])
def test_a_damaged_head(lm, tmp_path, file, content):
    stop_head.save(tmp_path, stop_head.fresh(lm.draft.lm.network.config.width, 1, False, 0), {})
    (tmp_path / file).write_bytes(content)
    wrong = said(lm, None, "specdec-plus-plus", "head", tmp_path) or "taken"
    assert wrong.startswith(f"head is {str(tmp_path)!r}: it is damaged")
