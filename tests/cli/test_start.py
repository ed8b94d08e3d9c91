"""What a command loads before it has to: a list of names must not wait for libraries that compute."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "llguidance", "numpy")
ASK = "import sys; {}; print([m for m in {!r} if m in sys.modules])"


def loaded(code: str) -> str:
    """Which of the heavy libraries are there after this code, in a process of its own."""
    out = subprocess.run(
        [sys.executable, "-c", ASK.format(code, HEAVY)], capture_output=True, text=True, check=True
    )
    return out.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "from polydec import registry; [registry.describe(n) for n in registry.recipes()]",
        "from polydec import steer; [steer.describe(n) for n in steer.steerings()]",
        "from polydec import registry; registry.chosen('auto', {'depth': 3})",
    ],
)
def test_what_is_known_of_methods_needs_nothing_that_computes(code):
    assert loaded(code) == "[]"
