"""Steered requests: what is checked before anything runs, and that every method decodes them, in any company."""

import json
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, generate, load
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Exactness
from polydec.lab.testing.examples import example_decoder
from polydec.lab.testing.toy import toy_law
from polydec.laws.contrasts.difference import DifferenceContrast
from polydec.laws.contrasts.gated import GatedContrast
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.contrast import ContrastTarget
from polydec.laws.targets.layered import LayerContrastTarget
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry, steer
from polydec.methods.registry.kit import LAYERS, PATCHES
from polydec.methods.steering._examples import without_examples
from polydec.request.ask import plan_request

PROMPT, SECOND = "The grey fox and the river and the grey fox and the", "nobody asked the river"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("steer")
    lm = load(
        str(micro.write(at / "a", hidden=64)), draft=str(micro.write(at / "b", seed=1, hidden=64))
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def ask(**fields):
    return Ask(
        PROMPT,
        **{"raw": True, "max_tokens": 16, "steer": "cfg", "negative_prompt": SECOND, **fields},
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"steer": "cgf"}, "steer is 'cgf': did you mean cfg?"),
        ({"steer": "zzz"}, "steer is 'zzz': it must be one of adacad, "),
        ({"steer": 3}, "steer is 3: it must be a word, or none"),
        ({"negative_prompt": None}, "steering cfg needs a second prompt"),
        ({"steer": "dola"}, "negative_prompt is given: steering dola reads no second prompt"),
        (
            {"steer_options": {"scal": 2}},
            "option 'scal' of steering cfg is unknown: did you mean scale?",
        ),
        ({"steer_options": {"scale": -1}}, "scale is -1.0: it must be a number, in 0 to 100"),
        ({"steer_options": 3}, "steer_options is 3: it must be values by name"),
        (
            {"steer": None, "negative_prompt": None, "steer_options": {"scale": 2}},
            "steer_options is given without steer",
        ),
        ({"negative_prompt": 3}, "negative_prompt is a int: give text, token ids or chat messages"),
        ({"negative_prompt": (99999,)}, "negative_prompt has token 99999: ids lie in 0 to"),
        ({"negative_prompt": [{"role": "user"}]}, "message 0 has no content that is text"),
        ({"negative_prompt": (3,) * 5000}, "negative_prompt has 5000 tokens: the context of"),
        (
            {"steer": "uscd", "negative_prompt": None},
            "prompt has no examples to leave out for steering uscd",
        ),
        ({"method": "layerskip"}, "method layerskip and steering cfg do not go together: "),
    ],
)
def test_what_is_said_before_anything_runs(lm, fields, message):
    with pytest.raises(ValueError) as error:
        plan_request(lm, ask(**fields))
    assert (
        message in str(error.value)
        and len(str(error.value)) <= 300
        and "\n" not in str(error.value)
    )


def test_a_second_model_is_asked_for(lm):
    with pytest.raises(ValueError, match="steering mixture needs a draft model"):
        plan_request(replace(lm, draft=None), ask(steer="mixture", negative_prompt=None))


def test_a_plan_says_how_it_is_steered(lm):
    made = plan_request(lm, ask(steer=None, steer_options={"scale": 3}))
    assert made.method["steering"] == {"name": "cfg", "options": {"scale": 3.0, "head": 0.0}}
    assert "steering" not in plan_request(lm, Ask(PROMPT)).method
    assert plan_request(lm, ask(negative_prompt="")).steering.second == (
        lm.encoder.encode_empty(raw=True) or lm.encode_prompt(PROMPT, raw=True)[-1:]
    )
    assert (
        plan_request(lm, ask(negative_prompt="", raw=False)).steering.second
        == lm.encoder.encode_empty()
        != lm.encoder.encode_empty(raw=True)
    )
    assert plan_request(lm, ask(negative_prompt=(5, 6))).steering.second == (5, 6)


def test_a_long_second_prompt_leaves_less_room(lm):
    context = lm.network.context
    made = plan_request(lm, ask(negative_prompt=(3,) * (context - 5), max_tokens=None))
    assert made.request.max_tokens == 5
    with pytest.raises(ValueError, match="so it can be at most 5"):
        plan_request(lm, ask(negative_prompt=(3,) * (context - 5), max_tokens=6))


def test_scale_1_is_plain_and_2_is_not(lm):
    plain = generate(lm, Ask(PROMPT, raw=True, max_tokens=16, ignore_eos=True)).token_ids
    texts = [
        generate(lm, ask(steer_options={"scale": s}, ignore_eos=True)).token_ids for s in (1, 3)
    ]
    assert texts[0] == plain != texts[1]


WAYS = {
    "cfg": {},
    "adacad": {},
    "uscd": {},
    "contrastive-decoding": {"negative_prompt": None},
    "lm-guidance": {},
    "dola": {"negative_prompt": None},
    "mixture": {"negative_prompt": None},
    "switch": {"negative_prompt": None},
}


@pytest.mark.parametrize("limits", [{}, {"max_positions": 7}, {"max_cache_bytes": 1}], ids=str)
def test_every_way_in_the_company_of_others(lm, limits):
    """Different ways, methods and temperatures in one batch: each says what it says alone, whatever the limits."""
    methods = ("plain", "prompt-lookup", "draft-model", "beam", "token-recycling", "pearl")
    asks = [
        ask(
            steer=way,
            method=methods[i % 6],
            seed=i,
            n=1 + i % 2,
            sampling=lm.sampling_with(temperature=0.7 * (i % 2)),
            **fields,
        )
        for i, (way, fields) in enumerate(WAYS.items())
    ]
    alone = [[c.token_ids for c in generate(lm, a).choices] for a in asks]
    engine = Engine(lm, **limits)
    together = [
        [c.token_ids for c in done.choices] for done in engine.run([engine.submit(a) for a in asks])
    ]
    assert together == alone
    assert engine.preempted > 3 or "max_cache_bytes" not in limits


LAWS = {
    "two prompts": lambda t: ContrastTarget(
        t, (SecondPromptTarget(t, (0, 1, 0), (2, 2)),), DifferenceContrast(2.0, 1.0)
    ),
    "gated": lambda t: ContrastTarget(
        t,
        (toy_law(77, t.vocab.size, cost=0.5),),
        GatedContrast(DifferenceContrast(1.5, 0.5, 0.1), 0.6),
    ),
    "layers": lambda t: LayerContrastTarget(t, (1, 2), DifferenceContrast(1.0, 1.0, 0.1)),
}
METHODS = [
    n
    for n in registry.of_family("ar")
    if registry.get_recipe_module(n).CARD.guarantee is not Exactness.APPROXIMATE
    # Patches that are vectors have no tokens to steer: that is refused.
    and PATCHES not in registry.get_recipe_module(n).CARD.needs
]


@pytest.mark.parametrize(
    "law",
    ["two prompts", *(pytest.param(law, marks=pytest.mark.slow) for law in ("gated", "layers"))],
)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_writes_the_steered_greedy_text(name, law):
    if LAYERS in registry.get_recipe_module(name).CARD.needs and law != "layers":
        pytest.skip("it needs layers that run alone")
    target, draft = (
        ShapedTarget(LAWS[law](toy_law(1, 6, sharp=2.0)), GreedyRule()),
        ShapedTarget(toy_law(31, 6, sharp=2.0, cost=0.1), GreedyRule()),
    )
    request = Request((0, 1, 0), 20, ignore_eos=True)
    want = run_coroutines([answer_one(example_decoder("plain", target), request)])[0].token_ids
    assert (
        run_coroutines([answer_one(example_decoder(name, target, draft), request)])[0].token_ids
        == want
    )


def test_examples_are_left_out():
    code = (
        'def f(x):\n    """Add one.\n    >>> f(1)\n    2\n    >>> f(\n    ... 2)\n    3\n    """\n'
    )
    assert without_examples(code) == 'def f(x):\n    """Add one.\n    """\n'
    assert without_examples("Write f.\nassert f(1) == 2\nassert f(2) == 3\n") == "Write f.\n"
    assert without_examples("Well ...\n... and so on") == "Well ...\n... and so on"


def test_the_command_lists_them(polydec_command):
    code, out, _ = polydec_command("steerings", "--json")
    assert code == 0 and {r["name"] for r in json.loads(out)} == set(steer.steering_modules())
    code, out, _ = polydec_command("steerings", "2409.07394")
    assert code == 0 and "--steer-set floor=0.0" in out and out.startswith("adacad:")
    code, _, err = polydec_command("steerings", "zzz")
    assert code == 2 and err.startswith("polydec: steer is 'zzz'") and err.count("\n") == 1
