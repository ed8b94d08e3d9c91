"""Every unmasker, refresh rule and diffusion recipe that the registry finds keeps its contract."""

from dataclasses import replace

import pytest

from polydec.lab.testing.check_unmasker import (
    check_allowed,
    check_batch,
    check_canvas_decoder,
    check_ends,
    check_joint,
    check_refresh,
    check_rules,
    check_unmasker,
)
from polydec.lab.testing.examples import example_artefacts, example_mechanism
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.methods.diffusion.loop.allowed_answers import AllowedAnswersDenoiser
from polydec.methods.diffusion.unmaskers.in_order import InOrderUnmasker
from polydec.methods.registry import registry
from polydec.methods.registry.kit import BLOCKS, Kit
from reasoned import Reasoned

STEPPED = ["confidence", "margin", "entropy", "at_random", "left_to_right"]


@pytest.mark.parametrize("name", registry.mechanism_classes("unmaskers"))
def test_unmasker(record_counts, name):
    unmasker = example_mechanism(registry.mechanism_classes("unmaskers")[name])
    if name == "agreement":  # blocks of a contract are too short for its warm-up
        unmasker = replace(unmasker, warmup=0)
    # Twelve passes are more than such a block has gaps.
    if name == "annealed":
        unmasker = replace(unmasker, steps=2)
    if name == "grouped":
        unmasker = replace(unmasker, schedule=replace(unmasker.schedule, steps=2))
    record_counts(check_unmasker(unmasker))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", STEPPED)
def test_fixed_steps(record_counts, name, steps):
    record_counts(check_unmasker(registry.mechanism_classes("unmaskers")[name](steps)))


@pytest.mark.parametrize("name", STEPPED)
def test_as_many_steps_as_gaps(record_counts, name):
    unmasker = registry.mechanism_classes("unmaskers")[name](3)
    reasons = {"parallel": "a block of the contract holds three gaps"}
    record_counts(check_unmasker(Reasoned(unmasker, reasons)))


def test_two_in_an_order(record_counts):
    record_counts(check_unmasker(InOrderUnmasker(2)))


@pytest.mark.parametrize("name", registry.mechanism_classes("refreshes"))
def test_refresh(record_counts, name):
    record_counts(check_refresh(example_mechanism(registry.mechanism_classes("refreshes")[name])))


def made(name, denoiser, own=0, shapers=(), language=None, **options):
    """A recipe over a toy denoiser, with the blocks, the draft and the artefacts that it needs."""
    card = registry.get_recipe_module(name).CARD
    if BLOCKS in card.needs or own:
        denoiser = replace(denoiser, block=own or 4)
    size = denoiser.vocab.size
    draft = (
        toy_law(3, size, eos=denoiser.eos if denoiser.eos >= 0 else None)
        if card.needs_draft
        else None
    )
    if language is not None:
        denoiser = AllowedAnswersDenoiser(denoiser, language)
    kit = Kit(denoiser, draft, example_artefacts(denoiser.vocab), shapers=shapers)
    return registry.build(name, kit, options)[0]


AGAIN = {"remdm": 8, "rum-sundae": 1000}
"""How many tokens of a toy's answer a recipe may write a second time."""


STEPS = (
    "dream",
    "left-to-right",
    "llada",
    "mdlm",
    "remdm",
    "svdd",
    "svdd-mc",
    "svdd-reward",
    "top-k-margin",
)
SEVERAL = {
    **{name: {"steps": 2} for name in STEPS},
    "dkv-cache": {"threshold": 0.7},
    "dkv-cache-greedy": {"count": 2},
    "maskgit": {"steps": 2},
    "recap": {"steps": 2, "before": 0},
    "freecache": {"threshold": 0.7},
}
"""Options with which recipes fill several gaps a pass that fill one by default."""


UNDER_A_LANGUAGE = {
    "freedave": {"threshold": 0.7},
    "prophet": {"early": 3.0},
    "dkv-cache-greedy": {"count": 2, "shuffled": True, "block": 6, "width": 1, "every": 3},
    "learn2pd": {"sure": 0.0},
}
"""Options with which recipes do under a language what they do seldom by default."""


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe(record_counts, name):
    counts = check_canvas_decoder(
        lambda denoiser: made(name, denoiser),
        AGAIN.get(name, 0),
    )
    record_counts(counts)


@pytest.mark.parametrize("name", SEVERAL)
def test_recipe_that_fills_several_gaps(record_counts, name):
    options = SEVERAL[name]
    record_counts(check_canvas_decoder(lambda d: made(name, d, **options), AGAIN.get(name, 0)))


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe_under_the_rules_of_a_request(record_counts, name):
    record_counts(check_rules(lambda denoiser, shapers: made(name, denoiser, shapers=shapers)))


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe_under_a_language(record_counts, name):
    options = UNDER_A_LANGUAGE.get(name, SEVERAL.get(name, {}))
    record_counts(check_allowed(lambda d, language: made(name, d, language=language, **options)))


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe_on_a_block_causal_model(record_counts, name):
    record_counts(check_ends(lambda denoiser: made(name, denoiser, 5), AGAIN.get(name, 0)))
    record_counts(check_batch(lambda denoiser: made(name, denoiser, 5)))


@pytest.mark.parametrize("name", ["mdlm", "left-to-right"])
def test_recipes_that_promise_the_law(record_counts, name):
    record_counts(check_joint(lambda denoiser: build(name, denoiser)[0], laws=4))
