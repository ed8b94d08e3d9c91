"""Every unmasker, refresh rule and diffusion recipe that the registry finds keeps its contract."""
import pytest

from polydec import registry
from polydec.testing.check_unmasker import check_canvas_decoder, check_joint, check_refresh, check_unmasker
from polydec.testing.examples import example
from polydec.testing.kits import build


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


@pytest.mark.parametrize("name", registry.of_family("diffusion"))
def test_recipe(name):
    check_canvas_decoder(lambda denoiser: build(name, denoiser)[0])


@pytest.mark.parametrize("name", ["mdlm", "left-to-right"])
def test_recipes_that_promise_the_law(name):
    check_joint(lambda denoiser: build(name, denoiser)[0], laws=4)
