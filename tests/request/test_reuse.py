"""Requests that take an earlier text's cache: what is refused before anything runs; company never changes an answer."""

from dataclasses import replace

import pytest

import micro
from polydec import Ask, Engine, Sampling, generate, load
from polydec.base.errors import PolydecError, RequestError
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.request.ask import plan_request
from polydec.request.explain import explain_request, request_alternatives
from polydec.serve.body import RequestBody, read_ask_fields
from polydec.serve.errors import RefusalError

WORDS = "The grey fox watched the boat by the old river and nobody asked why . "
FIRST = WORDS + "The tall baker followed the train by the old river. " + WORDS * 2
SECOND = WORDS + "The young teacher painted the tall quiet bridge. " + WORDS * 2
LONG = {"raw": True, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("reuse"))


def ask(prompt, key, reuse="edited", **more):
    return Ask(prompt, reuse=reuse, reuse_key=key, **{**LONG, **more})


@pytest.fixture
def primed(lm):
    """Gives a key whose last text is FIRST."""
    keys = list[str]()

    def key(name):
        lm.forget_text(name)
        keys.append(name)
        generate(lm, ask(FIRST, name, method="plain", max_tokens=1))
        return name

    yield key
    for name in keys:
        lm.forget_text(name)


def test_an_answer_says_what_was_taken_and_that_it_is_approximate(lm, primed):
    ids = lm.encode_prompt(SECOND, raw=True)
    answer = generate(lm, ask(SECOND, primed("a"), method="plain"))
    told = answer.method["reuse"]
    assert told["approximate"] and told["name"] == "edited" and told["turned"] >= 16
    assert answer.metrics["positions_fed"] == len(ids) - told["positions"] + LONG["max_tokens"] - 1
    assert answer.to_json()["method"]["reuse"] == told
    exact = generate(lm, ask(SECOND, primed("a"), "prefix", method="plain")).method["reuse"]
    assert 0 < exact["positions"] < told["positions"] and not exact["approximate"]
    first = generate(lm, ask(SECOND, "new", method="plain")).method["reuse"]
    lm.forget_text("new")
    assert first["positions"] == 0 and not first["approximate"]


def test_the_published_rule_feeds_nothing_behind_the_edit(lm, primed):
    """It reaches the request, and a report names it."""
    positions = [
        generate(lm, ask(SECOND, primed(f"a{again}"), method="plain", reuse_again=again)).method[
            "reuse"
        ]["positions"]
        for again in (0, 1, 16)
    ]
    assert [positions[0] - n for n in positions] == [0, 1, 16]
    parts = {p.role: p for p in explain_request(lm, ask(SECOND, primed("a"), reuse_again=0))}
    assert parts["reuse"].options["reuse_again"] == "0"
    for reuse in (None, "prefix"):
        with pytest.raises(RequestError, match="reuse_again is 1, and reuse is"):
            plan_request(lm, replace(ask(SECOND, ""), reuse=reuse, reuse_again=1))


def test_a_prefix_gives_the_text_of_a_request_without(lm, primed):
    plain = generate(lm, replace(ask(SECOND, ""), reuse=None))
    assert generate(lm, ask(SECOND, primed("a"), "prefix")).token_ids == plain.token_ids
    again = generate(lm, ask(SECOND + plain.text + " fox", "a", "edited"))
    assert not again.method["reuse"]["approximate"]  # nothing stands behind what is new


def test_every_method_keeps_the_text_of_the_edited_law_or_is_refused(lm, primed):
    """Of lossless ones; the others run. Nobody reads the whole prompt in silence."""
    plain = generate(lm, ask(SECOND, primed("a"), method="plain"))
    refused = dict[str, str]()
    for method in sorted(registry.of_family("ar")):
        try:
            made = plan_request(lm, ask(SECOND, primed("a"), method=method), measure=PassCosts)
        except PolydecError as why:
            refused[method] = str(why)
            assert len(str(why)) < 300, (method, why)
            continue
        if made.card.name in WITHOUT_A_TEXT:
            continue
        answer = generate(lm, ask(SECOND, "a", method=method))
        told = answer.method["reuse"]
        assert told == plain.method["reuse"], method
        if answer.method["guarantee"] == "lossless" and method not in REORDERED:
            assert answer.token_ids == plain.token_ids, method
    assert not lm.checkpoint.lm.live
    assert {"plain", "auto", "prompt-lookup", "draft-model"}.isdisjoint(refused), refused
    for method in ("contrastive-search", "del", "eagle-3", "hydra-plus-plus"):
        assert f"method {method} reads rows of the whole prompt" in refused[method]


@pytest.mark.parametrize(
    "method, off, on",
    [
        ("token-recycling", {"recycle_prefill": False}, {"recycle_prefill": True}),
        ("eagle", {"prompt": False}, {}),
        ("del", {"prompt": 0}, {}),
    ],
)
def test_rows_of_the_whole_prompt_are_refused_where_options_ask_for_them(
    lm, primed, method, off, on
):
    with pytest.raises(
        RequestError, match=f"'edited': method {method} reads rows of the whole"
    ) as why:
        plan_request(lm, ask(SECOND, primed("a"), method=method, options=on), measure=PassCosts)
    assert "set " in str(why.value)
    assert plan_request(
        lm, ask(SECOND, "a", "prefix", method=method, options=on), measure=PassCosts
    )
    plain = generate(lm, ask(SECOND, primed("a"), method="plain"))
    answer = generate(lm, ask(SECOND, primed("a"), method=method, options=off))
    assert answer.token_ids == plain.token_ids and answer.method["reuse"]["turned"]


WITHOUT_A_TEXT = {"exact-extract", "exact-mode"}
"""Answers that 12 tokens do not hold."""
REORDERED = set(registry.of_family("ar")) & {"beam-search"}


def test_company_and_short_memory_change_no_answer(lm, primed):
    alone = generate(lm, ask(SECOND, primed("a"), method="plain"))
    others = [Ask(WORDS * 3 + str(i), method="plain", **LONG) for i in range(6)]
    for most in (None, 400_000, 1):
        primed("a")
        primed("b")
        engine = Engine(lm, max_cache_bytes=most)
        tickets = [engine.submit(one) for one in others[:3]]
        mine = engine.submit(ask(SECOND, "a", method="plain"))
        twin = engine.submit(ask(SECOND, "b", method="plain"))
        tickets += [engine.submit(one) for one in others[3:]]
        engine.run([*tickets, mine, twin])
        assert mine.completion().token_ids == alone.token_ids
        assert twin.completion().token_ids == alone.token_ids
        assert mine.method == twin.method == alone.method
        assert not mine.gave_back and not twin.gave_back


def test_requests_of_one_key_follow_one_another(lm, primed):
    key = primed("a")
    engine = Engine(lm)
    first, second = (engine.submit(ask(SECOND, key, method="plain")) for _ in range(2))
    while engine.step():
        pass
    assert first.completion()
    with pytest.raises(RequestError, match="reuse_key is 'a': another request of this key"):
        second.completion()


def test_many_answers_leave_one_text(lm, primed):
    answer = generate(lm, ask(SECOND, primed("a"), n=3, sampling=Sampling(temperature=1.0)))
    assert len(answer.choices) == 3 and answer.method["reuse"]["approximate"]
    assert len(lm.checkpoint.lm.texts.caches) == 1


REFUSED = {
    "cache": ({"cache": "quantised"}, "cache is quantised.*packed keys are not turned"),
    "bytes": ({"units": "bytes"}, "units is bytes"),
    "second": ({"negative_prompt": "The fox"}, "a second prompt is read"),
    "logprobs": ({"prompt_logprobs": 0}, "prompt_logprobs is given"),
    "kind": ({"reuse": "all"}, "reuse is 'all': it must be"),
    "key": ({"reuse": None}, "reuse_key is 'a', and reuse is none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_with_it_is_refused_before_a_pass(lm, name):
    fields, sentence = REFUSED[name]
    with pytest.raises(RequestError, match=sentence):
        plan_request(lm, replace(ask(SECOND, "a"), **fields), measure=PassCosts)
    if name not in ("kind", "key"):
        assert "without an earlier text's cache" in request_alternatives(
            lm, replace(ask(SECOND, "a"), **fields)
        )


def test_the_compiled_step_refuses_rounded_caches(lm, tmp_path):
    where = str(micro.write(tmp_path / "a", hidden=64))
    small = load(where, draft=None, cache_dtype="float16")
    if "native" not in small.checkpoint.kernel:
        pytest.skip("there is no compiled step here")
    with pytest.raises(RequestError, match="cache_dtype is 'float16'"):
        plan_request(small, ask(SECOND, "a"), measure=PassCosts)
    assert plan_request(small, ask(SECOND, "a", "prefix"), measure=PassCosts)
    whole = load(where, draft=None)
    generate(whole, ask(FIRST, "", method="plain"))
    assert generate(whole, ask(SECOND, "", method="plain")).method["reuse"]["turned"] >= 16


def test_an_explanation_names_it(lm):
    assert "edited" in {part.name for part in explain_request(lm, ask(SECOND, "a"))}


def test_over_http_a_text_has_a_name(lm):
    body = {"reuse": "edited"}
    with pytest.raises(RefusalError, match="name the text"):
        read_ask_fields(RequestBody(body), lm, "plain", 0)
    given = read_ask_fields(RequestBody({**body, "reuse_key": "mine"}), lm, "plain", 0)
    assert given["reuse"] == "edited" and given["reuse_key"] == "mine"
