"""Requests over bytes: the same text by every lossless method, two tokenizers together, prompts cut inside a word, and what
counts are of."""

import json
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, generate, load
from polydec.base.errors import PolydecError
from polydec.laws.constraints.regex import Regex
from polydec.methods.economics.costs import PassCosts
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.text.byte_text import byte_text, marks_of
from polydec.request.ask import plan_request
from polydec.request.explain import describe_unused_settings, explain_request
from polydec.request.units import over_bytes

PROMPT = "The grey fox and the river and the grey fox and the ri"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A model, and a draft of another tokenizer."""
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("units")
    lm = load(
        str(micro.write(at / "a", hidden=64, vocab=340)),
        draft=str(micro.write(at / "b", seed=1, vocab=290)),
    )
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def asked(lm, prompt=PROMPT, **fields):
    given = {"units": "bytes", "raw": True, "max_tokens": 24, **fields}
    return generate(lm, prompt, **given)


METHODS = {
    "auto": {},
    "prompt-lookup": {"cost_aware": False},
    "suffix-automaton": {},
    "token-recycling": {},
    "jacobi": {},
    "lookahead": {},
    "draft-model": {},
    "draft-model-coupled": {},
    "specinfer": {},
    "pearl": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_lossless_methods_write_the_plain_text_of_bytes(lm, method):
    want = asked(lm, sampling=Sampling(temperature=0.0))
    got = asked(lm, method=method, options=METHODS[method], sampling=Sampling(temperature=0.0))
    assert got.token_ids == want.token_ids
    assert got.unit == "byte"


@pytest.mark.parametrize("fields", [{"method": "beam"}, {"n": 3}, {"method": "best-of-n"}], ids=str)
def test_searches_and_several_answers_run(lm, fields):
    done = asked(lm, max_tokens=8, seed=3, sampling=Sampling(temperature=1.0), **fields)
    assert all(c.token_ids for c in done.choices)


def test_bytes_are_those_of_the_text(lm):
    done = asked(lm, sampling=Sampling(temperature=1.0), seed=5, ignore_eos=True)
    assert bytes(x for x in done.token_ids if x < 256).decode(errors="replace") == done.text
    assert done.usage["prompt_tokens"] == len(PROMPT.encode())


def test_a_constraint_holds_over_bytes(lm):
    done = asked(
        lm,
        constraint=Regex("[0-9]{4}-é"),
        finish=True,
        sampling=Sampling(temperature=1.0),
        method="prompt-lookup",
    )
    assert done.text[:4].isdigit() and done.text[4:] == "-é"


@pytest.mark.parametrize("steer", ["mixture", "product"])
def test_models_of_two_tokenizers_write_together(lm, steer):
    def law(share):
        return asked(
            lm,
            steer=steer,
            steer_options={"share": share},
            max_tokens=12,
            sampling=Sampling(temperature=0.0),
        ).token_ids

    alone = asked(lm, max_tokens=12, sampling=Sampling(temperature=0.0)).token_ids
    second = asked(
        replace(lm, checkpoint=lm.draft, draft=None),
        max_tokens=12,
        sampling=Sampling(temperature=0.0),
    ).token_ids
    assert law(0.0) == alone
    assert law(1.0) == second


def test_each_member_reads_the_prompt_by_its_own_template(lm):
    text = replace_template(lm.draft.text, "Q: {{ messages[0]['content'] }} A:")
    other = replace(lm, draft=replace(lm.draft, text=text))
    made = plan_request(other, Ask("grey fox", units="bytes", steer="mixture"), measure=PassCosts)
    contrast = made.decoder.target
    while not hasattr(contrast, "others"):
        contrast = contrast.target
    ids, head = contrast.others[0].instead
    assert ids == made.request.prompt
    assert head.tokens == lm.draft.text.encode("Q: grey fox")
    assert bytes(head.left) == b" A:"


def replace_template(text, template):
    from copy import copy

    from polydec.models.text.chat_template import ChatTemplate

    twin = copy(text)
    twin.template = ChatTemplate(template)
    return twin


def test_without_bytes_another_tokenizer_is_refused(lm):
    with pytest.raises(PolydecError, match="the draft has a vocabulary of"):
        asked(lm, units="tokens", steer="mixture")


def test_a_prompt_may_end_inside_a_word(lm):
    """A token's text is no word's beginning unless the prompt's last token ends where the word's own does."""
    whole = lm.checkpoint.text.encode("The grey fox and the river", special=False)
    assert lm.checkpoint.text.encode(PROMPT, special=False)[-1] not in whole
    law = over_bytes(lm.checkpoint, 4).lm
    head = law.fixed_beginning(tuple(PROMPT.encode()))
    assert bytes(head.left) == b" ri"
    assert head.tokens == lm.checkpoint.text.encode(PROMPT[:-3], special=False)


def test_the_width_is_asked_for(lm):
    made = plan_request(lm, Ask(PROMPT, units="bytes", covers=7, raw=True), measure=PassCosts)
    law = made.decoder.target
    while not hasattr(law, "width"):
        law = law.target
    assert law.width == 7


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"units": "letters"}, "units is 'letters': it must be one of tokens, bytes"),
        ({"covers": -1}, "covers is -1: it must be a whole number, in 0 to 64"),
        ({"max_tokens": 5000}, "the prompt has 54 bytes, which are "),
        ({"method": "layerskip"}, "layerskip needs a model whose layers can run alone"),
        ({"prompt": (300,)}, "prompt has token 300: ids lie in 0 to 257"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_before_a_pass(lm, fields, message):
    with pytest.raises(PolydecError) as error:
        asked(lm, **fields)
    assert message in str(error.value)


def test_other_families_have_no_law_of_bytes():
    with pytest.raises(PolydecError, match="units is bytes: zoo:diffusion is a masked-diffusion"):
        generate(load("zoo:diffusion"), "a", units="bytes")


def test_marks_are_told_by_name_and_ends_by_what_they_do(lm):
    mine, theirs = marks_of(lm.checkpoint.text), marks_of(lm.draft.text)
    assert mine.of_tokenizer(theirs) == theirs.own
    other = replace(theirs, names=("<s>", "</s>"))
    assert mine.of_tokenizer(other) == ((), (1,))  # the end of a text ends it under any name


def test_the_checkpoints_own_rules_for_tokens_stay_behind(lm):
    point: ModelBundle = replace(
        lm.checkpoint, generation={"temperature": 0.6, "repetition_penalty": 1.3, "top_k": 5}
    )
    sampling = replace(lm, checkpoint=point).in_units("bytes").sampling_with()
    assert (sampling.temperature, sampling.repetition_penalty, sampling.top_k) == (0.6, 1.0, 0)


def test_text_over_bytes_spells_marks_and_what_stands_before_a_text(lm):
    twin = byte_text(lm.checkpoint.text)
    assert twin.encode("é<|im_end|>") == (0xC3, 0xA9, 257)
    assert twin.decode((0xC3, 0xA9, 257)) == "é"
    assert twin.eos == frozenset({257})


def test_company_and_memory(lm):
    """Requests over bytes run beside those over tokens, and give everything back."""
    engine = Engine(lm)
    tickets = [
        engine.submit(PROMPT, raw=True, units=u, max_tokens=8, method=m)
        for u in ("tokens", "bytes")
        for m in ("plain", "prompt-lookup")
    ]
    done = engine.run(tickets)
    assert [c.unit for c in done] == ["token", "token", "byte", "byte"]
    assert done[2].token_ids == done[3].token_ids
    assert not list(lm.checkpoint.lm.live)


def test_log_probabilities_count_bytes(lm):
    done = asked(lm, logprobs=2, prompt_logprobs=1, max_tokens=4, sampling=Sampling())
    notes = done.choices[0].logprobs
    assert len(notes) == len(done.token_ids) and all(len(n.top) == 2 for n in notes)
    assert [n.token for n in done.prompt_logprobs] == list(PROMPT.encode())
    assert all(n.model_logp <= 1e-9 for n in done.prompt_logprobs[1:])
    assert done.to_json()["unit"] == "byte"


def test_explain_tells_the_units(lm):
    ask = Ask(PROMPT, units="bytes", raw=True)
    parts = {p.role: p for p in explain_request(lm, ask)}
    assert parts["units"].name == "bytes" and "bytes of prompt" in parts["length"].says
    ask = Ask(PROMPT, covers=9, raw=True)
    assert "covers is 9 and does nothing here: units is tokens" in describe_unused_settings(
        lm, plan_request(lm, ask)
    )


def test_from_the_command_line(lm, polydec_command):
    args = [PROMPT, "--model", lm.name, "--draft", "none", "--units", "bytes", "--raw"]
    done = polydec_command("generate", *args, "--max-tokens", 5, "--json")
    out = json.loads(done.out)
    assert done.code == 0 and out["unit"] == "byte"
    assert out["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 5}


def test_a_search_among_drawn_texts_says_what_greedy_means_to_it(lm):
    def told(method, temperature=0.0):
        sampling = {"temperature": temperature}
        plan = plan_request(lm, Ask(PROMPT, method=method, raw=True, sampling=sampling))
        return [line for line in describe_unused_settings(lm, plan) if "temperature" in line]

    (line,) = told("self-consistency")
    assert line.startswith("temperature is 0.0, which is one text: self-consistency draws its")
    # a draw that was asked for, and methods that draw nothing
    assert told("self-consistency", 0.7) == told("beam") == told("plain") == []
