"""Every option of every method at the ends of the range that its CARD states, and just outside."""

from dataclasses import replace

import pytest

import micro
from polydec import api
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import IMAGE, MASKED_DRAFT
from polydec.models.learned.kinds import stop_head

CASES = [
    (name, o.name)
    for name in sorted(registry.of_family("ar"))
    for o in registry.method_options(name)
    if o.kind in (int, float, tuple)
]
FREE = {
    ("aggressive-decoding", "start"),
    ("aggressive-decoding", "stop"),
    ("entropy-adaptive", "tau"),
    ("entropy-adaptive", "tau_down"),
    ("draft-model-additive", "first"),
}
"""Options whose range is another one's value, or open at both ends."""
AS_IT_RUNS = {"exact-mode"}
"""What follows from the request or the search is refused there; all others refuse before anything runs."""
PROMPT = "The old river ran past the mill, and the old river"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        lm = api.load("zoo:tiny", threads=1)
        assert lm.costs
        yield lm


@pytest.fixture(scope="module")
def whole(lm):
    """With one of each kind of artefact."""
    return replace(
        lm,
        artefacts=example_artefacts(
            lm.checkpoint.lm.vocab, lm.network.config.width, lm.draft.lm.network.config.width
        ),
    )


@pytest.fixture(scope="module")
def filling(lm, tmp_path_factory):
    """With a draft model that fills canvases."""
    draft = micro.masked(tmp_path_factory.mktemp("draft") / "masked", "zoo:tiny-draft")
    return api.load("zoo:tiny", threads=1, draft=draft)


def said(lm, method, option, value, **more):
    """What an engine says to a value: its sentence, or None where it decodes."""
    engine = api.Engine(lm)
    try:
        ticket = engine.submit(
            PROMPT, method=method, options={option: str(value), **more}, max_tokens=2, raw=True
        )
    except ValueError as error:
        return str(error)
    try:
        assert len(engine.run([ticket])[0].token_ids) <= 2
    except ValueError as error:
        if method not in AS_IT_RUNS:
            raise
        return str(error)
    return None


@pytest.mark.parametrize(("method", "option"), CASES)
def test_range_is_stated_and_true(request, whole, method, option):
    """Each end of the range that an option declares is taken (unless another option forbids it), and what lies outside is
    refused with a sentence that names it."""
    o = next(o for o in registry.method_options(method) if o.name == option)
    if MASKED_DRAFT in registry.get_recipe_module(method).CARD.needs:
        whole = request.getfixturevalue("filling")
    reads_image = IMAGE in registry.get_recipe_module(method).CARD.needs
    assert o.limits or (method, option) in FREE, "it declares no range"
    names = tuple(
        f"{o.name} is" for o in registry.method_options(method)
    )  # of bounds that hold each other, either may be named
    outside = ["nan"] if o.kind is float else []
    schema = {k: v for x in o.limits if not x.of_all for k, v in x.json_schema().items()}
    if o.kind is not tuple:
        step = 1 if o.kind is int else 0.001
        low, high = schema.get("minimum"), schema.get("maximum")
        for end in (low, high):
            wrong = None if end is None else said(whole, method, option, end)
            assert (
                wrong is None
                or (wrong.startswith(names) and not wrong.startswith(f"{option} is"))
                # No image is given here: that is said behind whatever is wrong with an option.
                or (reads_image and wrong.startswith(f"method {method} reads a word in an image"))
                or (
                    "model" in o.help
                    or "divides" in o.help
                    or "at most" in o.help
                    or "of them" in o.legal
                )
            ), wrong
        outside += [] if low is None else [low - step]
        outside += [] if high is None else [high + step]
        outside += [schema["exclusiveMinimum"]] if "exclusiveMinimum" in schema else []
    for value in (*outside, -(10**9), 10**9):
        wrong = said(whole, method, option, value)
        assert wrong is None or (wrong.startswith(names) and len(wrong) <= 300), wrong
        assert wrong is not None or value not in outside, f"{option}={value} was taken"


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("layerskip", {"exit": "6"}, "exit is 6: it must lie in 1 to 5, the model's layers"),
        ("layerskip", {"exit": "0"}, "exit is 0: it must be at least 1"),
        (
            "layerskip",
            {"exit": "1000000000"},
            "exit is 1000000000: it must lie in 1 to 5, the model's layers",
        ),
        ("draft-and-verify", {"skip": "5"}, "skip is '5': it must name layers 0 to 4"),
        ("draft-and-verify", {"threshold": "2"}, "threshold is 2.0: it must lie in 0 to 1"),
        ("calm", {"every": "0"}, "every is 0: it must be at least 1"),
        ("calm", {"every": "-2"}, "every is -2: it must be at least 1"),
        ("specmquant", {"inner_nodes": "257"}, "inner_nodes is 257: it must lie in 0 to 256"),
        ("s2d", {"tau_2": "-1"}, "tau_2 is -1.0: it must be at least 0"),
        (
            "aggressive-decoding",
            {"start": "5", "stop": "3"},
            "stop is 3: it must lie behind start, which is 5",
        ),
        (
            "aggressive-decoding",
            {"start": "-3", "stop": "-5"},
            "stop is -5: it must lie behind start, which is -3",
        ),
        ("aggressive-decoding", {"stop": "0"}, "stop is 0: it must lie behind start, which is 0"),
        ("specdec-plus-plus", {"least": "9"}, "least is 9: it must lie in 1 to depth, which is 8"),
    ],
)
def test_refusals(whole, method, given, says):
    (option, value), *more = given.items()
    assert (said(whole, method, option, value, **dict(more)) or "taken").startswith(says)


def test_what_contradicts_nothing_is_taken(whole):
    assert said(whole, "aggressive-decoding", "start", "-9", stop="-2") is None
    assert said(whole, "aggressive-decoding", "start", "2", stop="-2") is None
    assert said(whole, "specdec-plus-plus", "depth", "0") is None


@pytest.mark.parametrize(
    ("prompt", "given", "says"),
    [
        (PROMPT, {"max_tokens": 1.5}, "max_tokens is 1.5: it must be a whole number"),
        (PROMPT, {"n": 2.5}, "n is 2.5: it must be a whole number"),
        (PROMPT, {"n": True}, "n is True: it must be a whole number"),
        (PROMPT, {"seed": "a"}, "seed is 'a': it must be a whole number"),
        (PROMPT, {"stop_token_ids": (5, -1)}, "stop_token_ids has token -1: ids lie in 0 to 4095"),
        ((5, -1), {}, "prompt has token -1: ids lie in 0 to 4095"),
        ((5, 4096), {}, "prompt has token 4096: ids lie in 0 to 4095"),
    ],
)
def test_requests_that_are_refused(lm, prompt, given, says):
    with pytest.raises(ValueError, match=says):
        api.Engine(lm).submit(prompt, **given)


def test_one_stop_text_is_one(lm):
    one, same = (
        api.generate(lm, PROMPT, raw=True, stop=s, max_tokens=24) for s in ("lder, a", ["lder, a"])
    )
    assert one.text == same.text and one.finish_reason == "stop"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"{}"),
        ("config.json", b"[]"),
        ("head.safetensors", b"half"),
        ("head.safetensors", b""),
    ],
)
def test_a_damaged_head(lm, tmp_path, file, content):
    stop_head.save(
        tmp_path, stop_head.new_stop_head(lm.draft.lm.network.config.width, 1, False, 0), {}
    )
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError) as wrong:
        api.load("zoo:tiny", threads=1, trained=[str(tmp_path)])
    assert len(str(wrong.value)) <= 300 and str(tmp_path) in str(wrong.value)
