"""Every unmasker, refresh rule and diffusion recipe that the registry finds keeps its contract."""

from dataclasses import replace

import pytest

from polydec.methods import registry
from polydec.methods.kit import BLOCKS, Kit
from polydec.testing.check_unmasker import (
    check_batch,
    check_canvas_decoder,
    check_ends,
    check_joint,
    check_refresh,
    check_rules,
    check_unmasker,
)
from polydec.testing.examples import artefacts, example
from polydec.testing.kits import build
from polydec.testing.toy import toy


@pytest.mark.parametrize("name", registry.mechanisms("unmaskers"))
def test_unmasker(name):
    check_unmasker(example(registry.mechanisms("unmaskers")[name]))


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", ["confidence", "margin", "entropy", "at_random", "left_to_right"])
def test_fixed_steps(name, steps):
    check_unmasker(registry.mechanisms("unmaskers")[name](steps))


@pytest.mark.parametrize("name", registry.mechanisms("refreshes"))
def test_refresh(name):
    check_refresh(example(registry.mechanisms("refreshes")[name]))


def made(name, denoiser, own=0, shapers=(), **options):
    """A recipe over a toy denoiser, with the blocks, the draft and the artefacts that it needs."""
    card = registry.get(name).CARD
    if BLOCKS in card.needs or own:
        denoiser = replace(denoiser, block=own or 4)
    size = denoiser.vocab.size
    draft = (
        toy(3, size, eos=denoiser.eos if denoiser.eos >= 0 else None) if card.needs_draft else None
    )
    kit = Kit(denoiser, draft, artefacts(denoiser.vocab), shapers=shapers)
    return registry.build(name, kit, options)[0]


AGAIN = {"remdm": 8}
"""How many tokens of a toy's answer a recipe may write a second time."""


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe(name):
    check_canvas_decoder(lambda denoiser: made(name, denoiser), AGAIN.get(name, 0))


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe_under_the_rules_of_a_request(name):
    check_rules(lambda denoiser, shapers: made(name, denoiser, shapers=shapers))


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe_on_a_block_causal_model(name):
    check_ends(lambda denoiser: made(name, denoiser, 5), AGAIN.get(name, 0))
    check_batch(lambda denoiser: made(name, denoiser, 5))


@pytest.mark.parametrize("name", ["mdlm", "left-to-right"])
def test_recipes_that_promise_the_law(name):
    check_joint(lambda denoiser: build(name, denoiser)[0], laws=4)
