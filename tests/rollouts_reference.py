"""What searches that draw texts find, by their descriptions: fresh sessions, no forks, no cache."""

import math
from collections import defaultdict
from dataclasses import replace

import torch

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.word_bank import word_bank
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

PROMPT = (0, 1, 0)
DATES = ("3 May 1961", "4 May 1961", "7 June 1961", "May 1961", "1961", "I don't know", "blue", "")


def plain(target):
    return SpeculativeDecoder(target, NothingDrafter(), MatchVerifier(), FixedPolicy(0))


def scored(target, text):
    """The law and the states behind a text."""

    async def scores():
        return await target.open_session(text).score_draft(
            Draft.chain_draft(text[-1]), ScoreRequest(hidden=True)
        )

    return run_coroutines([scores()])[0]


def law(target, text):
    return scored(target, (*PROMPT, *text)).logprob_row(0).double()


def valued(target, reward, text):
    """What a reward says of an answer."""
    return reward.success_chance(scored(target, (*PROMPT, *text)).hidden_NH[0])


def drawn(target, text, stream):
    """The token that a stream draws behind a text."""
    return stream.child_stream("token", len(PROMPT) + len(text)).draw_categorical(
        law(target, text).exp()
    )


def step_beam(target, reward, length, keep, width, longest, rng):
    """The text that a beam of steps answers with."""

    def extend(text, stream):
        most = longest
        while not over(text) and most:
            text, most = (*text, drawn(target, text, stream)), most - 1
        return text

    def over(text):
        return len(text) == length or (text and text[-1] in target.vocab.eos)

    beam, count = [(1.0, (), rng)], keep * width
    while not all(over(text) for _, text, _ in beam):
        found = [b for b in beam if over(b[1])]
        for _, text, stream in [b for b in beam if not over(b[1])]:
            seen = []
            for i in range(count):
                mine = stream if i == 0 else stream.child_stream("step", len(text), i)
                longer = extend(text, mine)
                if longer in seen:
                    continue
                seen.append(longer)
                cut = len(longer) == length and longer[-1] not in target.vocab.eos
                found.append((0.0 if cut else valued(target, reward, longer), longer, mine))
        beam, count = sorted(found, key=lambda b: -b[0])[:keep], width
    return beam[0][1]


def thought_tree(target, length, steps, keep, depth, longest, most, rng):
    """The text that a tree of thoughts answers with, kept to the words of its evidence, and its weight. A toy's tokens are
    letters without line breaks, so a step is `longest` of them, all of one word: two are alike where they are the same."""
    ends, words = target.vocab.eos, target.vocab.words

    def step(text, stream):
        begun = len(text)
        while length - len(text) > 1:
            if (token := drawn(target, text, stream)) in ends:
                return text, True
            text = (*text, token)
            if len(text) - begun == longest:
                return text, False
        return text, True

    def mean(text, begun):
        return math.exp(
            sum(float(law(target, text[:i])[text[i]]) for i in range(begun, len(text)))
            / (len(text) - begun)
        )

    def grown(text, stream, chance):
        out = []
        for i in range(steps):
            mine = stream.child_stream("step", len(text), i)
            longer, ready = step(text, mine)
            if not any(longer == known[0] for known in out):
                out.append(
                    (longer, mine, chance * mean(longer, len(text)), ready)
                    if longer != text
                    else (text, stream, chance, True)
                )
        return out

    def answered(text):
        begun = len(text)
        bank_V = word_bank(target.vocab, ends, (*PROMPT, *text))
        while len(text) < length and not (len(text) > begun and text[-1] in ends):
            law_V = law(target, text)
            if len(text) - begun >= most:
                token = max(ends, key=lambda x: float(law_V[x]))
            else:
                token = int(torch.where(bank_V, law_V, -math.inf).argmax())
            text = (*text, token)
        return text

    live, ready = [((), rng, 1.0, False)], []
    for level in range(depth):
        found = [t for text, stream, chance, _ in live for t in grown(text, stream, chance)]
        ready += [t for t in found if t[3]]
        live = [t for t in found if not t[3]]
        if len(live) > keep:
            p_N = torch.tensor([t[2] for t in live], dtype=torch.float64)
            live = [
                live[i]
                for i in rng.child_stream("keep", level).without_replacement(p_N / p_N.sum(), keep)
            ]
    leaves, votes = [], defaultdict(float)
    for text, _, chance, _ in (*ready, *live):
        whole = answered(text)
        leaves.append((whole, words.decode(whole[len(text) :]), chance * mean(whole, len(text))))
    pool = [leaf for leaf in leaves if leaf[0][-1] in ends] or leaves
    for _, said, weight in pool:
        votes[said] += weight
    most_said = max(votes, key=lambda said: votes[said])
    return max((leaf for leaf in pool if leaf[1] == most_said), key=lambda leaf: leaf[2])[0], votes[
        most_said
    ]


def speaking(seed, sharp=0.4):
    """A toy each of whose tokens is a whole answer, behind which it likes to end."""
    target = toy_law(seed, len(DATES), sharp=sharp)
    words = ToyWords(DATES, target.vocab.eos)
    end = len(DATES) - 1
    return ShapedTarget(
        CausalLaw(target.network, replace(target.vocab, words=words), chunk=2),
        LogitBiasRule({end: 2.0}),
    )


def tries(target, seed, count=3, length=2):
    """Texts, each drawn alone."""
    streams = [
        Rng.of_choice(seed),
        *(Rng.of_choice(seed).child_stream("try", i) for i in range(1, count)),
    ]
    return [
        run_coroutines([answer_one(plain(target), Request(PROMPT, length), stream)])[0]
        for stream in streams
    ]
