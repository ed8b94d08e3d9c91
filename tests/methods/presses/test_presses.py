"""Requests over pressed caches: what is checked before anything runs, and that every way says what it is."""

import json
from types import SimpleNamespace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, generate, load
from polydec.lab.bench import certify
from polydec.lab.bench.certify import compare_greedy_texts
from polydec.lab.testing.check_press import check_pressing
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press
from polydec.models.native.library import native_step_availability
from polydec.request.ask import plan_request
from polydec.request.explain import explain_request, request_alternatives

PROMPT = "The grey fox watched the boat by the old river and the grey fox watched the boat"
SMALL = {"block": 16}
FEW_TOKENS = dict.fromkeys(range(40, 43), 100.0)
"""The text repeats itself, so that copies are accepted."""
METHODS = ("plain", "prompt-lookup", "draft-model", "token-recycling", "lookahead", "layerskip")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("presses"), draft_seed=0)


def ask(**more):
    return Ask(PROMPT, raw=True, max_tokens=40, ignore_eos=True, **more)


@pytest.mark.parametrize("name", press.block_press_names())
def test_lossless_methods_keep_the_text_of_the_pressed_law(record_counts, lm, name, monkeypatch):
    monkeypatch.setitem(vars(lm), "costs", PassCosts((1.0, 1.0), 0.0))  # drafts pay in company too
    few = {"block": 16, "kept": 4}
    options = {o.name: few[o.name] for o in press.press_options(name) if o.name in few}
    record_counts(check_pressing(lm.checkpoint.lm, press.build(name, options)[0]))
    # A repeat of the text passes all layers, and is told so before anything runs.
    methods = tuple(m for m in METHODS if (name, m) != ("kvzip", "layerskip"))
    engine = Engine(lm)
    greedy = {
        "sampling": Sampling(temperature=0.0, logit_bias=FEW_TOKENS),
        "cache": name,
        "cache_options": options,
    }
    tickets = [engine.submit(ask(method=m, **greedy)) for m in methods]
    exact = engine.submit(ask())
    while engine.step():
        pass
    texts = [t.completion().choices[0].token_ids for t in tickets]
    assert all(text == texts[0] for text in texts), dict(zip(methods, texts, strict=True))
    lengths = [t.completion().metrics["mean_acceptance_length"] for t in tickets]
    idle = {m for m, n in zip(methods, lengths, strict=True) if n <= 1.0}
    # what is recycled is what the model holds likely before the bias
    assert idle <= {"plain", "token-recycling"}, "drafts are accepted"
    alone = generate(lm, PROMPT, raw=True, max_tokens=40, ignore_eos=True)
    assert exact.completion().choices[0].token_ids == alone.token_ids
    assert not lm.checkpoint.lm.live


@pytest.mark.skipif(not native_step_availability()[0], reason=native_step_availability()[1])
def test_the_compiled_step_packs_by_request(tmp_path):
    """Texts of lossless methods are plain's under the same press; requests with other presses and without one share passes
    with them; what it does not pack is refused."""
    torch.set_num_threads(1)
    both = [str(micro.write(tmp_path / x, seed=s, hidden=64)) for s, x in enumerate("ab")]
    compiled = load(both[0], draft=both[1], threads=1)
    assert compiled.network.kernel.startswith("native")
    vars(compiled)["costs"] = PassCosts()
    engine = Engine(compiled)
    ways = (
        ("kivi", {}),
        ("kivi", {"bits": 4, "group": 0}),
        ("kivi", {"bits": 2}),
        ("hadamard", {"bits": 2}),
    )
    tickets = {
        (at, m): engine.submit(ask(method=m, cache=name, cache_options={**SMALL, **way}))
        for at, (name, way) in enumerate(ways)
        for m in ("plain", "prompt-lookup", "draft-model", "token-recycling", "auto")
    }
    exact = engine.submit(ask())
    while engine.step():
        pass
    texts = {key: t.completion().choices[0].token_ids for key, t in tickets.items()}
    assert all(text == texts[at, "plain"] for (at, _), text in texts.items())
    alone = generate(compiled, PROMPT, raw=True, max_tokens=40, ignore_eos=True)
    assert exact.completion().choices[0].token_ids == alone.token_ids
    for name in set(press.block_press_names()) - {"quantised", "hadamard"}:
        with pytest.raises(ValueError, match="by rounding alone") as error:
            plan_request(compiled, ask(cache=name))
        assert "--dtype torch" in str(error.value) and len(str(error.value)) <= 300


def test_a_result_says_that_its_law_is_the_pressed_one(lm):
    made = plan_request(lm, ask(cache="kivi", cache_options={"bits": "4"}))
    assert made.method["cache"] == {
        "name": "quantised",
        "options": {"bits": 4, "group": 32, "block": 64},
    }
    assert "cache" not in plan_request(lm, ask()).method
    parts = {p.role: p for p in explain_request(lm, ask(cache="h2o"))}
    assert parts["cache"].name == "h2o" and parts["cache"].options["kept"] == "128"


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"cache": "gaer"}, "cache is 'gaer': did you mean gear"),
        ({"cache": 3}, "cache is 3"),
        ({"cache_options": SMALL}, "cache_options is given without cache"),
        ({"cache": "gear", "cache_options": {"bits": 3}}, "bits is 3: it must be one of 2, 4, 8"),
        ({"cache": "gear", "cache_options": {"block": 8}}, "block is 8"),
        ({"cache": "gear", "cache_options": {"blok": 64}}, "option 'blok' of press gear"),
        ({"cache": "window", "method": "longspec"}, "longspec"),
        ({"cache": "kvzip", "method": "layerskip"}, "layer"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(lm, fields, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        plan_request(lm, ask(**fields))
    assert sentence in str(error.value) and len(str(error.value)) <= 300


def test_what_would_run_instead(lm):
    assert "with the cache as it is" in request_alternatives(
        lm, ask(cache="window", method="longspec")
    )


def test_a_network_that_reads_caches_as_they_are_says_so(lm, monkeypatch):
    monkeypatch.setattr(type(lm.network), "presses", False)
    with pytest.raises(ValueError, match="--dtype torch"):
        plan_request(lm, ask(cache="gear"))


def test_the_command_line_lists_and_takes_them(lm, polydec_command):
    code, out, _ = polydec_command("presses", "--json")
    assert not code and {r["name"] for r in json.loads(out)} == set(press.press_modules())
    asked = ["--model", lm.name, "--draft", "none", "--dtype", "float32", "--method", "plain"]
    small = ["--cache", "window", "--cache-set", "block=16"]
    code, out, _ = polydec_command("generate", *asked, *small, "--json", PROMPT)
    told = json.loads(out)["method"]["cache"]
    assert not code and told == {"name": "window", "options": {"sinks": 4, "block": 16}}
    code, _, err = polydec_command("generate", *asked, "--cache", "gaer", PROMPT)
    assert code == 2 and "did you mean gear" in err and "Traceback" not in err


def test_requests_over_http_take_them(lm):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    from polydec.serve.body import RequestBody
    from polydec.serve.endpoints import ENDPOINTS
    from polydec.serve.limits import RequestLimits

    for path, prompt in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        body = RequestBody(
            {**prompt, "cache": "h2o", "cache_options": {"kept": 9}}, RequestLimits()
        )
        (read,) = ENDPOINTS[path].reads().read_request(body, lm, "plain", 0).asks
        assert plan_request(lm, read).press_settings.options == {"kept": 9, "block": 64}


def test_certificates_compare_with_plain_under_the_same_press(lm, monkeypatch, polydec_command):
    given = {"max_tokens": 40, "sampling": Sampling(temperature=0.0), "raw": True}
    more = {"ignore_eos": True, "cache": "window", "cache_options": SMALL}
    assert compare_greedy_texts(lm, PROMPT, "prompt-lookup", {}, **given, **more).equal
    written = {"plain": (5, 6, 7), "other": (5, 6, 8)}
    with monkeypatch.context() as patch:  # two texts part: how far, is said by the pressed law
        patch.setattr(
            certify, "generate", lambda *_, method, **__: SimpleNamespace(token_ids=written[method])
        )
        gaps = {
            cache: compare_greedy_texts(
                lm, PROMPT * 3, "other", {}, **given, cache=cache, cache_options=options
            ).gap
            for cache, options in ((None, {}), ("window", SMALL))
        }
    assert gaps[None] > 0 and abs(gaps[None] - gaps["window"]) > 1e-3
    asked = ["--model", lm.name, "--draft", "none", "--dtype", "float32", "--json"]
    small = ["--method", "prompt-lookup", "--cache", "h2o", "--cache-set", "block=16"]
    code, out, _ = polydec_command("verify", *asked, *small, "--limit", "1")
    assert not code and json.loads(out)


def test_few_presses_keep_texts(lm):
    law = lm.checkpoint.lm
    for block in range(16, 40):
        law.pressed_law(press.build("window", {"block": block})[0])
    assert len(law._pressed) <= 4
