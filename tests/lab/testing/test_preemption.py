"""Every method, steering and press where memory is short: what gives its cache back on the way says what it says alone."""

import pytest

import micro
from polydec import Ask, Engine, Regex, Sampling, SpanOf, generate
from polydec.core.decoder import request_streams
from polydec.core.transcript import Transcript
from polydec.lab.testing.check_preemption import check_preemption, run_on_hold
from polydec.lab.testing.examples import example_decoder
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.kit import IMAGE, MASKED_DRAFT, PROMPT_IMAGE, SECOND_PROMPT
from polydec.request.ask import plan_request

PROMPT, BESIDE = "The grey fox and the river and the grey fox and the", "nobody asked the river why"
BOUND = {
    "exact-extract": {
        "constraint": SpanOf("the quiet baker followed the train"),
        "ignore_eos": False,
    },
    "exact-mode": {"constraint": Regex("(the|fox)( the| fox)?"), "ignore_eos": False},
}
"""Methods that answer with the texts of a constraint."""
METHODS = sorted(registry.of_family("ar"))
READINGS = [n for n in METHODS if registry.get_recipe_module(n).CARD.kind == "reading"]
"""Methods that take no cache: a network of theirs reads an image at once."""
ELSEWHERE = (MASKED_DRAFT, IMAGE, PROMPT_IMAGE)
"""What the small model of this file is not given."""
ONE_MODEL = [
    n
    for n in METHODS
    if not any(need in ELSEWHERE for need in registry.get_recipe_module(n).CARD.needs)
]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("preemption"))


def held(lm, asked):
    """Beside another request, where there is memory for one of both, and where memory is taken away again and again, the
    answer is that of the request alone. How often it was put on hold."""
    want, other = texts(generate(lm, asked)), Ask(BESIDE, raw=True, max_tokens=24, ignore_eos=True)
    engine = Engine(lm, max_cache_bytes=1)
    first, second = engine.submit(other), engine.submit(asked)
    assert texts(engine.run([first, second])[1]) == want, "another text where memory is short"
    coros = [coroutine(lm, each) for each in (asked, other)]
    results, holds = run_on_hold(coros, (lm.checkpoint.lm, lm.draft.lm))
    assert [r.token_ids for r in results[0]] == want, f"another text after {holds[0]} holds"
    return min(second.gave_back, holds[0])


def texts(answer):
    return [choice.token_ids for choice in answer.choices]


def coroutine(lm, asked):
    made = plan_request(lm, asked, measure=PassCosts)
    return made.decoder.write_choices(
        made.request,
        request_streams(made.request),
        Transcript(made.request, made.decoder.vocab.eos),
    )


def ask(**fields):
    return Ask(
        PROMPT,
        raw=True,
        seed=3,
        **{"max_tokens": 10, "sampling": Sampling(temperature=0.7), "ignore_eos": True, **fields},
    )


@pytest.mark.parametrize("name", [n for n in METHODS if n not in BOUND and n not in READINGS])
def test_a_method_on_hold_at_every_pause(record_counts, name):
    record_counts(check_preemption(lambda target, draft: example_decoder(name, target, draft)))


@pytest.mark.parametrize("name", ONE_MODEL)
def test_a_method_beside_another_request(lm, name):
    assert held(lm, ask(method=name, **BOUND.get(name, {}))), "it was never put on hold"


@pytest.mark.parametrize("name", sorted(steer.steering_modules()))
def test_a_steering_beside_another_request(lm, name):
    needs = steer.steering_modules()[name].CARD.needs
    second = {"negative_prompt": BESIDE} if SECOND_PROMPT in needs else {}
    assert held(lm, ask(steer=name, **second)), "it was never put on hold"


@pytest.mark.parametrize("name", press.block_press_names())
def test_a_press_beside_another_request(lm, name):
    asked = ask(cache=name, cache_options={"block": 16}, max_tokens=30)
    assert held(lm, asked), "it was never put on hold"
