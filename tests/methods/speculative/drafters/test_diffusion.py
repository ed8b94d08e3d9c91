"""A masked-diffusion model that drafts: the path that it proposes, what it is refused for, and texts that stay as they are."""

from collections import Counter
from itertools import product
from math import log

import pytest
import torch

import micro
from polydec import Engine, load
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.methods.speculative.drafters.diffusion import DiffusionDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.policies.average import MovingAveragePolicy


def proposed(config, text, depth):
    guess = config.open_guess(text, None)

    async def go():
        return await guess.propose_draft(
            text[-1], len(text), DraftBudget(depth, depth), Rng.of_choice(0)
        )

    return run_coroutines([go()])[0].token[1:]


def test_without_the_text_it_is_the_likeliest_token_of_each_gap():
    for seed in range(8):
        chain = MarkovChainNetwork(seed, 5)
        text = (0, 3, 1)
        canvas = (*text, *(None,) * 4)
        want = tuple(int(chain.position_law(canvas, i).argmax()) for i in range(3, 7))
        assert proposed(DiffusionDrafter(ToyDenoiser(chain), 1.0, top=1, beam=1), text, 4) == want


def best_path(seed, eos):
    """(what is proposed, the best of all paths), which end with the first end."""
    text = (0, 1, 2, 0, 1, 4, 0, 1)
    config = DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(seed, 5), eos), 0.5, 1.0, 5, 1000)
    laws = torch.stack(
        [MarkovChainNetwork(seed, 5).position_law((*text, *(None,) * 4), i) for i in range(8, 12)]
    ).log_softmax(-1)
    seen = Counter(tuple(text[i - n : i]) for i in range(1, 9) for n in range(4) if n <= i)

    def score(path):
        out = 0.0
        for i, x in enumerate(path):
            context = (*text, *path[:i])[-2:]
            out += 0.5 * float(laws[i, x]) + 0.5 * float(
                torch.tensor(share(x, context), dtype=torch.float64).log()
            )
        return out / len(path)

    def share(x, context):
        for scale, n in ((1.0, 2), (0.4, 1)):
            if seen[(*context[2 - n :], x)]:
                return scale * seen[(*context[2 - n :], x)] / seen[context[2 - n :]]
        return 0.16 * (seen[(x,)] + 1) / (len(text) + config.denoiser.vocab.size)

    whole = [
        p
        for n in range(1, 5)
        for p in product(range(5), repeat=n)
        if eos not in p[:-1] and (n == 4 or p[-1] == eos)
    ]
    return proposed(config, text, 4), max(whole, key=score)


@pytest.mark.parametrize("eos", [-1, 0, 2, 4])
def test_a_wide_beam_finds_the_best_path(eos):
    early = 0
    for seed in range(3, 6):
        got, best = best_path(seed, eos)
        assert got == best
        early += len(best) < 4
    assert bool(early) == (eos >= 0)


class Table:
    """Of a corpus what follows three contexts."""

    rows = {(1,): [(0.6, 3), (0.4, 2)], (0, 1): [(1.0, 3)], (3,): [(0.5, 0), (0.2, 4)]}  # noqa: RUF012

    def followers_by_level(self, tokens):
        out = []
        for n in (1, 2):
            if len(tokens) < n or tuple(tokens[-n:]) not in self.rows:
                break
            out.append(self.rows[tuple(tokens[-n:])])
        return out

    def share(self, x, context, size):
        for scale, n in ((1.0, 2), (0.4, 1)):
            known = n == 1 or context[1:] in self.rows
            for chance, follower in self.rows.get(context[2 - n :], ()) if known else ():
                if follower == x:
                    return scale * chance
        return 0.16 / size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [0.3, 1.0])
def test_a_corpus_is_read_beside_the_text(known, seed):
    """The best of all paths by the formula, with a table of three contexts; at 1 the text so far decides nothing."""
    text, seen, model = (
        (0, 1, 2, 0, 1, 4, 0, 1),
        Counter(),
        ToyDenoiser(MarkovChainNetwork(seed, 5)),
    )
    for i in range(1, 9):
        seen.update(tuple(text[i - n : i]) for n in range(4) if n <= i)
    laws = torch.stack(
        [MarkovChainNetwork(seed, 5).position_law((*text, *(None,) * 3), i) for i in range(8, 11)]
    )
    logp = laws.log_softmax(-1)
    config = DiffusionDrafter(model, 0.5, 1.0, 5, 1000, Table(), known)
    plain = DiffusionDrafter(model, 0.5, 1.0, 5, 1000)

    def score(path):
        total = 0.0
        for i, x in enumerate(path):
            context = (*text, *path[:i])[-2:]
            q = (1 - known) * plain._share(x, context, seen)
            q += known * Table().share(x, context, model.vocab.size)
            total += 0.5 * float(logp[i, x]) + 0.5 * log(q)
        return total

    assert proposed(config, text, 3) == max(product(range(5), repeat=3), key=score)
    assert proposed(config, text, 3) != proposed(plain, text, 3) or known < 1 or seed


def test_a_draft_says_where_its_likeliest_tokens_end():
    """Whatever path is taken: the policy's averages go by that, as published."""
    said = 0
    for seed in range(12):
        chain, text = MarkovChainNetwork(seed, 4, 2.0), (0, 1, 2)
        raw = [int(chain.position_law((*text, *(None,) * 6), i).argmax()) for i in range(3, 9)]
        want = raw.index(3) if 3 in raw else 6
        config = DiffusionDrafter(ToyDenoiser(chain, 3), 0.2, ends=True)
        guess = config.open_guess(text, None)
        draft = run_coroutines([guess.propose_draft(2, 3, DraftBudget(6, 6), Rng.of_choice(0))])[0]
        assert draft.natural == want
        said += want != len(draft) - 1
        state = MovingAveragePolicy(1, 8, 3, 0.5).observe_round(
            (6, 4.0, 2.0), draft, Verdict((), 2)
        )
        assert state[1:] == (2.0 + 0.5 * want, 1.0)
        bare = run_coroutines(
            [
                DiffusionDrafter(ToyDenoiser(chain, 3))
                .open_guess(text, None)
                .propose_draft(2, 3, DraftBudget(6, 6), Rng.of_choice(0))
            ]
        )[0]
        assert bare.natural is None
    assert said


def test_a_long_text_and_blocks_bound_the_draft():
    text = tuple(i % 3 for i in range(30))
    assert (
        len(proposed(DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(1, context=12))), text, 6))
        == 6
    )
    assert (
        len(proposed(DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(1, context=4))), text, 6)) == 3
    )
    assert (
        len(proposed(DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(1), block=8)), text, 6)) == 2
    )  # positions 30 and 31
    assert proposed(DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(1))), text, 0) == ()


def test_the_length_follows_what_was_accepted():
    policy, state = MovingAveragePolicy(2, 10, 3, 0.5), (10, 0.0, 0.0)
    for drafted, accepted, want in (
        (10, 10, (8, 5.0, 5.0)),
        (8, 2, (6, 6.5, 3.5)),
        (6, 6, (6, 6.25, 4.75)),
        (2, 2, (4, 4.125, 3.375)),
    ):
        state = policy.observe_round(
            state, Draft.chain_draft(0, (1,) * drafted), Verdict(tuple(range(1, accepted + 1)), 2)
        )
        assert state == want and policy.draft_budget(state).depth == want[0]
    assert policy.observe_round(state, Draft.chain_draft(0), Verdict((), 2)) == state


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """An autoregressive model, and a masked-diffusion one of its tokenizer."""
    target, other = (
        micro.write(tmp_path_factory.mktemp(name), seed=seed)
        for name, seed in (("target", 0), ("other", 1))
    )
    return str(target), micro.masked(tmp_path_factory.mktemp("draft") / "masked", str(other))


def test_texts_stay_as_they_are(pair):
    lm = load(pair[0], draft=pair[1], dtype="float32")
    engine = Engine(lm)
    for prompt in ("the fox", "one two"):
        plain, drafted = engine.run(
            [engine.submit(prompt, method=m, max_tokens=30) for m in ("plain", "diffuspec")]
        )
        assert plain.token_ids == drafted.token_ids and len(drafted.metrics["models"]) == 2
    with pytest.raises(
        ValueError, match="method draft-model needs a draft model that continues texts"
    ):
        engine.submit("the fox", method="draft-model")
    assert engine.run([engine.submit("the fox", method="prompt-lookup", max_tokens=4)])[0].token_ids


def test_it_needs_a_masked_diffusion_draft(pair):
    for draft in (None, pair[0]):
        with pytest.raises(
            ValueError, match="method diffuspec needs a masked-diffusion draft model: name one"
        ):
            Engine(load(pair[0], draft=draft)).submit("the fox", method="diffuspec")


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"weight": 1.5}, "weight is 1.5: it must lie in 0 to 1"),
        ({"mass": -0.1}, "mass is -0.1: it must lie in 0 to 1"),
        ({"top": 0}, "top is 0: it must be at least 1"),
        ({"beam": 0}, "beam is 0: it must be at least 1"),
    ],
)
def test_bad_values(fields, message):
    with pytest.raises(ValueError, match=message):
        DiffusionDrafter(ToyDenoiser(MarkovChainNetwork(1)), **fields)
