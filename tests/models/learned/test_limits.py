"""Limiting cases of drafters on states: what a drafter is where a part of it says nothing, or knows everything."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.own_text import TargetTextStates
from polydec.lab.train.states import StatesSpec, level_divergence
from polydec.methods.speculative.verifiers.judged import JudgeVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.head import new_draft_heads
from polydec.models.learned.kinds import chimera, clover, eagle3
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.kinds.judge import JudgeProbe
from polydec.models.learned.state_layer import DraftVocabularyHead, rms_normalised
from polydec.models.nets.query import NetworkQuery

H, VOCAB = 8, TokenVocabulary(7, frozenset())


def rows(n, *more):
    return torch.randn(n, *more, H, generator=torch.Generator().manual_seed(n))


def guessed(one, state_NH, embed_NKH):
    """The states that a drafter of heads makes level by level, along one path a row."""
    carry, out = one.start_levels(state_NH), []
    for k in range(one.depth):
        carry, made = one.guess_level(k, carry, embed_NKH[:, k])
        out.append(made)
    return out


def passing(reads):
    return DraftHeads(new_draft_heads(H, 3, reads, 0, 0.0), reads, VOCAB, ((1.0,),) * 3)


def still():
    """Clover whose tokens are worth nothing."""
    out = new_draft_heads(H, 1, False, 0, 0.0)[0], new_draft_heads(H, 1, True, 0, 0.0)[0]
    return replace(
        clover.examples(VOCAB, H, H)[0],
        out=out,
        attend=(torch.randn(H, H), torch.randn(H, H), torch.zeros(H, H)),
    )


@pytest.mark.parametrize(
    "one", [passing(False), passing(True), still()], ids=["medusa", "hydra", "clover"]
)
def test_what_moves_nothing_passes_the_state_on(one):
    """So the target's head makes its own law of it at every level; Clover's tokens move the state by their values alone."""
    state_NH = rows(4)
    for made in guessed(one, state_NH, rows(4, 3)):
        assert made.allclose(rms_normalised(state_NH), atol=1e-5)


def test_clover_s_paths_together_are_paths_alone():
    one, state_NH, embed_NKH = clover.examples(VOCAB, H, H)[0], rows(5), rows(5, 3)
    together = guessed(one, state_NH, embed_NKH)
    for i in range(5):
        for made, alone in zip(
            together, guessed(one, state_NH[i : i + 1], embed_NKH[i : i + 1]), strict=True
        ):
            assert made[i].allclose(alone[0], atol=1e-5)


def test_chimera_that_reads_the_true_state_alone_says_what_the_target_says():
    one = chimera.examples(VOCAB, H, H)[0]
    shown = replace(one, heads=[torch.cat([torch.eye(H), torch.zeros(H, H)], 1)] * 3)
    true_H, out_NH = rows(1)[0], rows(4)
    for k in range(3):
        assert shown.read_states(k, true_H, out_NH)[1].allclose(
            rms_normalised(true_H[None]).expand(4, H), atol=1e-6
        )


def test_chimera_s_codes_see_no_later_token():
    one = chimera.examples(VOCAB, H, H)[0]
    state_NH, embed_NWH = rows(6), rows(6, 3)

    def left(embed_NWH):
        cache, entering = one.network.new_cache(), one.layer_inputs(embed_NWH, state_NH)
        first = cache.stage_slots(range(-1, len(entering) - 1))
        cache.commit_path(range(len(entering)))
        query = NetworkQuery(
            cache, first, (), range(len(entering)), ScoreRequest(hidden=True), entering
        )
        return one.network.forward([query])[0].hidden_RH

    other = embed_NWH.clone()
    other[-1, -1] += 1.0  # the token behind the last state
    before, now = left(embed_NWH), left(other)
    assert before[:-1].equal(now[:-1]) and not before[-1].allclose(now[-1], atol=1e-2)


def test_a_head_of_some_tokens_is_one_of_all_with_the_others_left_out():
    one = eagle3.examples(VOCAB, H, H)[0]
    table_VH, rows_NS = rows(VOCAB.size), torch.cat([rows(5), rows(6)[:5]], -1)

    def laws(tokens):
        token_C = torch.tensor(tokens)
        network = one.layer.layer_network(
            VOCAB.size, DraftVocabularyHead(token_C, table_VH[token_C], torch.ones(H))
        )
        cache = network.new_cache()
        first = cache.stage_slots(range(-1, 4))
        return network.forward([NetworkQuery(cache, first, (), range(5), ScoreRequest(), rows_NS)])[
            0
        ].logits_RV

    whole, part = laws(range(VOCAB.size)), laws([1, 2, 5])
    assert whole.isfinite().all() and part[:, [1, 2, 5]].allclose(whole[:, [1, 2, 5]], atol=1e-5)
    assert (part[:, [0, 3, 4, 6]] == -torch.inf).all()


def test_what_a_lexical_unit_is_learned_from():
    """By hand: the target is sure of what follows tokens 1, 2 and 3. Level k learns where it is sure of all k + 1 tokens behind
    the first one."""
    text, sure = [0, 1, 2, 3, 4, 1, 0, 2, 3, 1, 0, 0], (1, 2, 3)
    said = torch.tensor([0, *text[:-1]])  # the token before each, as a state
    levels, length = 2, 6
    given = TargetTextStates(
        said[:-1, None].float(),
        said[:-1, None].float(),
        torch.tensor(text[:-1])[:, None],
        torch.ones(len(text) - 1, dtype=torch.bool),
        torch.zeros(len(text) - 1),
        torch.full((len(text) - 1,), 99),
    )
    leaf = [torch.zeros(1, length, 5, requires_grad=True) for _ in range(levels)]

    class Student:
        some, shown = (
            None,
            SimpleNamespace(
                levels=levels,
                state_logits=lambda state, _: torch.where(
                    torch.isin(state, torch.tensor(sure)),
                    torch.nn.functional.one_hot(given.token_N[: state.shape[1]], 5)[None] * 50.0,
                    torch.zeros(5),
                ),
            ),
        )

        columns = None

        def __call__(self, entry, window, every):
            return ((logits, logits, torch.arange(length)) for logits in leaf)

        def knows_tokens(self, token):
            return torch.ones_like(token, dtype=torch.bool)

        def extra_loss(self, made, truth):
            return torch.zeros(())

    kind = SimpleNamespace(sure=0.9, features=0.0)
    level_divergence(
        Student(), given, torch.tensor([0]), StatesSpec("", "lud", length=length), kind
    )[0].backward()
    learned = [sorted(t.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()) for t in leaf]
    is_sure = [before in sure for before in said.tolist()]
    assert learned == [
        [t for t in range(length) if all(is_sure[t + 1 : t + 2 + k])] for k in range(levels)
    ]
    assert learned == [[1, 2, 3, 5], [1, 2]]


def test_a_level_with_nothing_to_learn_has_its_figure():
    """The head does not know the token of the first level: the figures of the others stay where they belong."""
    token_N = torch.tensor([0, 3, 1, 2])
    states = torch.zeros(4, 5)
    lessons = SimpleNamespace(
        state_NH=states,
        entry_ND=states,
        window_NW=token_N[:, None],
        answer_N=torch.ones(4, dtype=torch.bool),
    )
    says = torch.nn.functional.one_hot(torch.tensor([4, 1, 4]), 5).float()

    class Student:
        shown = SimpleNamespace(levels=3, state_logits=lambda state, columns: state)
        columns = None

        def __call__(self, entry, window, every):
            return ((row[None, None], row[None, None], torch.arange(1)) for row in says)

        def knows_tokens(self, token):
            return token != 3

        def token_ids(self, column):
            return column

        def extra_loss(self, made, truth):
            return torch.zeros(())

    with torch.no_grad():
        kind = SimpleNamespace(sure=0.0, features=0.0)
        spec = StatesSpec("", "hydra", length=1)
        _, right = level_divergence(Student(), lessons, torch.tensor([0]), spec, kind)
    assert right == [0.0, 1.0, 0.0]


def test_a_judge_adds_to_what_matches():
    """Below every chance all is let through; in between never less than what matches; at 1 that alone."""
    g, law = torch.Generator().manual_seed(2), toy_law(3, 6, eos=-1)
    judge = JudgeProbe(torch.randn(4, generator=g), torch.zeros(()), law.vocab)
    for seed in range(30):
        draft = Draft.chain_draft(1, torch.randint(6, (5,), generator=g).tolist())
        scores = run_coroutines(
            [law.open_session((0, 1)).score_draft(draft, ScoreRequest(hidden=True))]
        )[0]
        path = {
            t: JudgeVerifier(judge, t).verify_draft(draft, scores, Rng.of_choice(seed), 2).path
            for t in (0.0, 0.5, 1.0)
        }
        match = MatchVerifier().verify_draft(draft, scores, Rng.of_choice(seed), 2).path
        assert path[1.0] == match and len(match) <= len(path[0.5]) <= len(path[0.0]) == 5
