"""Nothing ends an answer before min_tokens: no stop text, no stop id, no EOS, whatever writes it."""

from __future__ import annotations

import pytest

import polydec
from polydec.laws.constraints.regex import Regex

MODELS = {"ar": "zoo:tiny", "diffusion": "zoo:diffusion"}
METHODS = {
    "ar": ("plain", "prompt-lookup", "beam", "best-of-n"),
    "diffusion": ("auto", "left-to-right"),
}
CASES = [(family, method) for family, methods in METHODS.items() for method in methods]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: " ".join(case))
def asked(request):
    family, method = request.param
    lm = polydec.load(MODELS[family], draft=None)
    return lm, {"method": method, "max_tokens": 12, "sampling": lm.sampling_with(temperature=0.0)}


def test_a_stop_text_counts_behind_min_tokens(asked):
    lm, fields = asked
    prompt = "The grey fox "
    free = polydec.generate(lm, prompt, ignore_eos=True, **fields).choices[0]
    stop = next(c for c in free.text if c.strip())
    early = polydec.generate(lm, prompt, ignore_eos=True, stop=stop, **fields).choices[0]
    if fields["method"] != "beam":  # which may prefer a text without it
        assert len(early.token_ids) < 12 and early.finish_reason == "stop"
    bound = lm.sampling_with(temperature=0.0, min_tokens=12)
    late = polydec.generate(
        lm, prompt, ignore_eos=True, stop=stop, **fields | {"sampling": bound}
    ).choices[0]
    assert late.token_ids == free.token_ids and late.text == free.text
    assert late.finish_reason == "length"


def test_a_stop_id_counts_behind_min_tokens(asked):
    lm, fields = asked
    prompt = "The grey fox "
    free = polydec.generate(lm, prompt, ignore_eos=True, **fields).choices[0]
    first = free.token_ids[0]
    bound = lm.sampling_with(temperature=0.0, min_tokens=6)
    late = polydec.generate(
        lm, prompt, ignore_eos=True, stop_token_ids=[first], **fields | {"sampling": bound}
    ).choices[0]
    assert len(late.token_ids) >= 6 and first not in late.token_ids[:5]


def test_a_constraint_with_a_stop_text():
    lm = polydec.load("zoo:tiny", draft=None)
    bound = lm.sampling_with(temperature=0.0, min_tokens=8)
    fields = {"constraint": Regex("(ab )+"), "max_tokens": 16, "raw": True}
    early = polydec.generate(lm, "a", stop=" ", **fields).choices[0]
    late = polydec.generate(lm, "a", stop=" ", sampling=bound, **fields).choices[0]
    assert early.text == "ab" and len(late.token_ids) > 8 and late.text.startswith("ab ab")
