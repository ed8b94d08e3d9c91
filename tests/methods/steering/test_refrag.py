"""REFRAG: passages as a vector a chunk, a policy, vectors that are kept by content; how it is trained."""

import itertools
import json
import math
import signal
from dataclasses import replace
from fractions import Fraction
from math import floor
from types import SimpleNamespace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, load
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.train import facts, page_reader
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts import refrag
from polydec.lab.train.data import held_out
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.specs.context import ContextSpec
from polydec.laws.targets.passage_chunks import (
    SELECTORS,
    ChunkSelectorInput,
    chunk_prompt_passages,
    foretold_token_nats,
    shortened_prompt_length,
)
from polydec.methods.registry import steer
from polydec.methods.steering.refrag import CHOOSERS
from polydec.models.learned.kinds import chunk_encoder
from polydec.models.learned.kinds.chunk_encoder import examples
from polydec.models.learned.passages import PassageMarks, split_passages
from polydec.models.sessions.soft import make_soft_tokens, state_of
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling", "suffix-automaton")
PROMPT = (5, 1, *range(20, 30), 2, 7, 1, *range(40, 45), 2, 9)
"""Two passages of ten and five tokens between marks 1 and 2: chunks of 4, 4, 2, 4 and 1."""


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("refrag"), examples=examples)


async def no_rows(checker):
    """A beginning of the prompt may end inside of a passage: it is another text."""


def test_what_chooses_is_told_as_it_is():
    assert tuple(SELECTORS) == CHOOSERS


def read(lm, share, by="policy", prompt=PROMPT, made=None):
    return chunk_prompt_passages(
        lm.checkpoint.lm, prompt, made or lm.artefacts[0], share, SELECTORS[by]
    )


def ask(**fields):
    asked = {"steer": "refrag", "steer_options": {"expand": 0.0}, "max_tokens": 12}
    return Ask(PROMPT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    engine = Engine(lm, **limits)
    return micro.completed_ids(engine, asks), engine


@pytest.mark.parametrize(
    "ids, passages",
    [
        ((5, 1, 6, 7, 2, 8), [(6, 7)]),
        ((1, 6, 2, 1, 7, 2, 8), [(6,), (7,)]),
        ((1, 2, 8), []),
        ((5, 1, 6, 7), []),
        ((1, 6, 1, 7, 2, 8), [(7,)]),
        ((2, 6, 1, 8), []),
        ((8,), []),
    ],
)
def test_passages_stand_between_marks(ids, passages):
    parts = list(split_passages(ids, PassageMarks(1, 2)))
    assert [tuple(ids[i] for i in span) for span, inside in parts if inside] == passages
    assert [i for span, _ in parts for i in span] == list(range(len(ids)))


def test_lengths_are_the_card_s_and_chunks_end_with_their_passage(lm):
    made, shown = lm.artefacts[0], read(lm, 0.0)
    words = len(PROMPT) - 15
    assert len(shown.instead) == words + 5 and shown.prompt == PROMPT
    want = [(20, 21, 22, 23), (24, 25, 26, 27), (28, 29), (40, 41, 42, 43), (44,)]
    vectors = [state_of(x) for x in shown.instead if state_of(x) is not None]
    for chunk, vector in zip(want, vectors, strict=True):
        assert torch.equal(made.decoder_vector(made.chunk_state(chunk)), vector)
    for share, count in ((0.2, 1), (0.39, 1), (0.4, 2), (0.999, 4), (1.0, 5)):
        order = (
            made.chunk_scores([made.chunk_state(c) for c in want]).argsort(descending=True).tolist()
        )
        opened = read(lm, share)
        closed = [i for i in range(5) if i not in order[:count]]
        assert len(opened.instead) == len(PROMPT) - sum(len(want[i]) - 1 for i in closed)
    assert read(lm, 1.0).instead == PROMPT == read(lm, 0.0, prompt=PROMPT[:5]).prompt + PROMPT[5:]
    assert read(lm, 0.0, prompt=(5, 1, 6, 7)).instead == (5, 1, 6, 7)


def test_a_law_behind_chunks_is_a_target_and_rows_are_those_of_what_stands_there(lm, monkeypatch):
    shown = read(lm, 0.4)
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(shown, prompt=PROMPT, tolerance=1e-4)
    law = lm.checkpoint.lm
    rows = ScoreRequest(prompt=True)
    inner, outer = law.open_session(shown.instead), shown.open_session(PROMPT)
    want, got = (
        run_coroutines([inner.prefill_prompt(rows)])[0],
        run_coroutines([outer.prefill_prompt(rows)])[0],
    )
    for at, row in enumerate(shown.rows):
        assert shown.instead[row] == PROMPT[at] or state_of(shown.instead[row]) is not None
        torch.testing.assert_close(got.logprob_row(at), want.logprob_row(row), atol=1e-4, rtol=0.0)


def test_all_expanded_is_the_plain_prompt_to_the_bit(lm):
    plain = texts(lm, [ask(steer=None, steer_options={}, n=2, sampling=Sampling(temperature=1.0))])[
        0
    ]
    options = {"expand": 1.0}
    assert (
        texts(lm, [ask(steer_options=options, n=2, sampling=Sampling(temperature=1.0))])[0] == plain
    )
    assert texts(lm, [ask(n=2, sampling=Sampling(temperature=1.0))])[0] != plain


def test_vectors_depend_on_their_tokens_alone_and_are_kept(lm, monkeypatch):
    made = lm.artefacts[0]
    chunks = [tuple(range(i, i + 4)) for i in range(20, 60)]
    first = [made.chunk_state(c) for c in chunks]
    fresh = replace(made)
    assert all(torch.equal(fresh.chunk_state(c), x) for c, x in zip(chunks[::-1], first[::-1]))
    swapped = (*PROMPT[:2], *PROMPT[6:10], *PROMPT[2:6], *PROMPT[10:])
    a, b = read(lm, 0.0).instead, read(lm, 0.0, prompt=swapped).instead
    assert b == (*a[:2], a[3], a[2], *a[4:])
    asked = []
    whole = chunk_encoder.encode_chunks
    monkeypatch.setattr(chunk_encoder, "encode_chunks", lambda *x: asked.append(1) or whole(*x))
    assert read(lm, 0.4, made=fresh).instead == read(lm, 0.4, made=made).instead
    before = len(asked)
    assert before and read(lm, 0.4, made=fresh).instead == read(lm, 0.4).instead
    assert len(asked) == before, "what was encoded is not encoded again"
    monkeypatch.setattr(chunk_encoder, "KEPT", 2)
    small = replace(made)
    assert read(lm, 0.4, made=small).instead == read(lm, 0.4).instead and len(small.kept) <= 2


def test_what_fills_a_short_chunk_up_is_not_read(lm):
    made = lm.artefacts[0]
    table = made.tensors["table"].clone()
    table[made.sizes.vocab] = 9.0
    other = replace(made, tensors={**made.tensors, "table": table})
    assert torch.equal(other.chunk_state((20, 21)), made.chunk_state((20, 21)))


def test_other_ways_to_choose(lm):
    prompt = (5, 1, *range(20, 28), *range(40, 44), 2, 41, 42, 9)
    by_words = read(lm, 0.34, "words", prompt)
    assert by_words.instead[4:8] == (40, 41, 42, 43) and len(by_words.instead) == 2 + 2 + 4 + 4
    made, rest = lm.artefacts[0], (20, 21, 22, 23)
    near = read(lm, 0.34, "likeness", (1, *range(30, 34), *range(40, 44), *range(20, 24), 2, *rest))
    assert made.sizes.size == 4 and len(near.instead) == 1 + 2 + 4 + 1 + 4
    one, again = read(lm, 0.4, "chance"), read(lm, 0.4, "chance")
    assert one.instead == again.instead
    firsts = {
        tuple(state_of(x) is None for x in read(lm, 0.2, "chance", (*PROMPT[:-1], i)).instead)
        for i in range(10, 40)
    }
    assert len(firsts) > 2, "another prompt, another choice"


class OneByOne:
    """Chunks of one token, whose score is the token itself."""

    marks, sizes = PassageMarks(1, 2), SimpleNamespace(size=1)

    def chunk_state(self, chunk):
        return torch.full((4,), float(chunk[0]))

    def decoder_vector(self, state_W):
        return state_W

    def chunk_scores(self, states):
        return torch.tensor([float(s[0]) for s in states])


@pytest.mark.parametrize("count", [1, 3, 10, 49, 100])
def test_a_share_opens_so_many_chunks_and_the_ones_that_score_highest(count):
    """A share that means a whole number of chunks opens that many, though its product is a little less; else the lower."""
    target = SimpleNamespace(vocab=SimpleNamespace(size=1000))
    ids = [3 + 7 * i % count if count % 7 else 3 + i for i in range(count)]
    prompt, short = (1, *ids, 2), 0
    for k in {*range(0, count + 1, 1 + count // 8), 1, *(29, 57, 58, 99, 100)} & {
        *range(count + 1)
    }:
        for share in (k / count, float(f"{k / count:.2f}"), k / count + 0.4 / count):
            opened = floor(Fraction(share).limit_denominator(10**6) * count)
            short += int(share * count) < opened
            got = chunk_prompt_passages(
                target, prompt, OneByOne(), min(share, 1.0), SELECTORS["policy"]
            )
            words = [x for x in got.instead[1:-1] if state_of(x) is None]
            assert len(words) == min(opened, count), (k, share)
            assert sorted(words) == sorted(ids)[count - len(words) :]
    assert short or count < 49, "a product is less than its number of chunks somewhere"


def test_what_selectors_score():
    """By hand: words that few chunks hold, once a chunk; the nearest part of the text around, not the mean; any order by all of
    the prompt."""
    words = ChunkSelectorInput(OneByOne(), [(1, 2), (2, 3, 3), (2, 4)], [], (1, 3, 2, 1), None)
    assert SELECTORS["words"](words).tolist() == pytest.approx([4 / 3, 4 / 3, 1 / 3])
    near = OneByOne()
    near.sizes = SimpleNamespace(size=2)
    near.chunk_state = lambda chunk: torch.tensor([float(sum(chunk)), float(len(chunk))])
    chunks = [(1, 0), (3, 4), (9, -9)]
    asked = [torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0]), torch.tensor([7.0, 1.0])]
    seen = ChunkSelectorInput(
        near, chunks, [near.chunk_state(c) for c in chunks], (1, 0, 2, -2, 7), None
    )
    want = [max(float(s @ a / s.norm() / a.norm()) for a in asked) for s in seen.states]
    assert SELECTORS["likeness"](seen).tolist() == pytest.approx(want)
    many = [ChunkSelectorInput(near, [(i, 5), (6, 7)], [], (8,), None) for i in range(300)]
    many += [ChunkSelectorInput(near, [(1, 5), (6, 7)], [], (8, i), None) for i in range(300)]
    drawn = [tuple(SELECTORS["chance"](seen).tolist()) for seen in many]
    assert len(set(drawn)) == 600 and drawn == [
        tuple(SELECTORS["chance"](s).tolist()) for s in many
    ]


def test_of_equal_scores_the_first_chunks_are_opened():
    equal = OneByOne()
    equal.chunk_scores = lambda states: torch.zeros(len(states))
    target = SimpleNamespace(vocab=SimpleNamespace(size=1000))
    got = chunk_prompt_passages(target, (1, *range(10, 50), 2, 9), equal, 0.5, SELECTORS["policy"])
    assert [x for x in got.instead[1:-2] if state_of(x) is None] == list(range(10, 30))


def plain_nats(law, ids):
    """Of every token but the first, behind all before it."""
    session = law.open_session((*ids, ids[-1]))
    scores = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])[0]
    return [-float(scores.logprob_row(i)[x]) for i, x in enumerate(ids[1:])]


def test_what_the_model_does_not_foretell_is_read_as_it_is(lm):
    """By hand: each token behind the opening mark and its passage; the chunk of the highest mean is a chunk of tokens."""
    law = lm.checkpoint.lm
    first, second = plain_nats(law, (1, *range(20, 30))), plain_nats(law, (1, *range(40, 45)))
    chunks = [first[:4], first[4:8], first[8:], second[:4], second[4:]]
    want = [sum(nats) / len(nats) for nats in chunks]
    spans = [range(2, 6), range(6, 10), range(10, 12), range(15, 19), range(19, 20)]
    got = foretold_token_nats(law, PROMPT, spans, 256)
    assert got.tolist() == pytest.approx(first + second, abs=1e-4)
    for share, count in ((0.2, 1), (0.6, 3)):
        shown = read(lm, share, "perplexity")
        opened = sorted(range(5), key=lambda i: -want[i])[:count]
        tokens = [PROMPT[at] for i in sorted(opened) for at in spans[i]]
        inside = [x for x in shown.instead if state_of(x) is None and x in range(20, 45)]
        assert inside == tokens
    assert texts(lm, [ask(steer_options={"by": "perplexity", "expand": 0.4})])[0][0]


@pytest.mark.parametrize("context", [4, 5, 8, 11, 12])
def test_a_long_passage_is_read_in_windows_that_overlap(lm, context):
    law, ids = lm.checkpoint.lm, (1, *range(20, 30))
    read_ids, most = [], context - 1
    real = type(law).open_session

    def noted(self, prompt):
        read_ids.append(tuple(prompt))
        return real(self, prompt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(law), "open_session", noted)
        got = foretold_token_nats(law, (9, *ids, 2), [range(2, 12)], context).tolist()
    assert all(2 <= len(window) <= most for window in read_ids) and len(got) == 10
    # Every token once, behind half a window at least or its whole beginning.
    want, at = [], 1
    for window in read_ids:
        begin = ids.index(window[0]) if window[0] != 1 else 0
        assert begin == 0 or at - begin >= most // 2 >= 1
        want += plain_nats(law, window)[at - begin - 1 :]
        at = begin + len(window)
    assert at == 11 and got == pytest.approx(want, abs=1e-4)


LONG = (5, 1, *(20 + i % 200 for i in range(500)), 2, 9)
"""A prompt of twice the context: 125 chunks of its passage are as many positions."""


def test_a_prompt_may_be_longer_than_the_context(lm):
    """Each closed chunk takes one position; what is open takes its own."""
    law = lm.checkpoint.lm
    assert len(LONG) > law.context > 4 + 125 + 20
    long = {"prompt": LONG, "max_tokens": 20}
    shown = read(lm, 0.0, prompt=LONG)
    assert len(shown.instead) == 4 + 125 == shortened_prompt_length(LONG, lm.artefacts[0], 0.0)
    got, _ = texts(lm, [replace(ask(method=m), **long) for m in ("plain", "prompt-lookup")])
    session = law.open_session(shown.instead)
    root, want = LONG[-1], []
    for _ in range(20):
        scores = run_coroutines([session.score_draft(Draft.chain_draft(root), ScoreRequest())])[0]
        session.commit_tokens((root,))
        root = scores.likeliest_token(0)
        want.append(root)
    assert got == [want, want] or got == [[tuple(want)], [tuple(want)]] or got[0] == got[1]
    for fields, sentence in (
        ({"steer": None, "steer_options": {}}, "prompt has 504 tokens: the context of"),
        ({"steer_options": {"expand": 1.0}}, "prompt has 504 tokens: the context of"),
        (
            {"steer_options": {"expand": 0.5}},
            "prompt has 504 tokens, which are read in 315 positions",
        ),
        ({"max_tokens": 128}, "so it can be at most 127"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            plan_request(lm, replace(ask(), **{**long, **fields}))
        assert sentence in str(error.value)
    # A draft model reads the words, and has no room for them.
    with pytest.raises(ValueError, match="prompt has 504 tokens: the context of"):
        plan_request(lm, replace(ask(method="draft-model"), **long))


def test_positions_are_counted_as_they_are_read(lm):
    for share in (0.0, 0.2, 0.4, 0.999, 1.0):
        most = shortened_prompt_length(PROMPT, lm.artefacts[0], share)
        lengths = [len(read(lm, share, by).instead) for by in CHOOSERS]
        assert max(lengths) <= most <= len(PROMPT)
    assert shortened_prompt_length(PROMPT, lm.artefacts[0], 0.2) == 7 + 4 + 4


def test_every_method_writes_the_same_behind_chunks(lm):
    for share in (0.0, 0.4):
        options = {"expand": share}
        got, _ = texts(lm, [ask(method=m, steer_options=options) for m in METHODS])
        assert got == got[:1] * len(METHODS)
    for more in (
        {"sampling": Sampling(temperature=0.8), "n": 2, "seed": 4},
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.4)},
        {"cache": "quantised", "cache_options": {"block": 16}},
    ):
        (alone, copied), _ = texts(lm, [ask(method=m, **more) for m in ("plain", "prompt-lookup")])
        assert alone == copied
    asks = [ask(seed=i, steer_options={"expand": i / 4}, n=1 + i % 2) for i in range(5)]
    alone = [texts(lm, [a])[0][0] for a in asks]
    for limits in ({"max_cache_bytes": 1}, {"max_positions": 7}):
        assert texts(lm, asks, **limits)[0] == alone


def test_what_cannot_be_is_refused(lm):
    for fields, sentence in (
        ({"steer_options": {"expand": 1.1}}, "expand is 1.1"),
        ({"steer_options": {"by": "taste"}}, "by is 'taste'"),
        ({"negative_prompt": "x"}, "reads no second prompt"),
    ):
        with pytest.raises(ValueError, match=sentence) as error:
            plan_request(lm, ask(**fields))
        assert len(str(error.value)) <= 300
    with pytest.raises(ValueError, match="steering refrag needs an encoder of chunks"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft), ask())
    made = lm.artefacts[0]
    with pytest.raises(ValueError, match="chunk vectors were trained for states of width 32"):
        replace(made, sizes=replace(made.sizes, target=32)).check_fit(lm.checkpoint.lm, None)
    for name in ("refrag", "2509.01092", "chunk vectors"):
        assert steer.find_steering(name) == "refrag"


# training


def small(seed=0, width=32):
    shape = LlamaShape(page_reader.VOCAB, width, 1, 2, 2, 64, page_reader.CONTEXT)
    return refrag.RefragModel(TrainableLlama(shape, seed=seed), 16, seed)


def test_pages_hold_what_is_asked():
    for i in range(30):
        page = facts.draw_fact_page(f"{i}", 12, 4, 3, bool(i % 2))
        assert held_out(page.text) == bool(i % 2) and {len(x) for x in page.lines} == {facts.LINE}
        told = {page.lines[at][0]: page.lines[at][1:-1] for at in page.records}
        assert len(told) == 4 and len(page.asked) == 3
        assert all(told[key] == number for key, number in page.asked)
        assert all(
            x.islower() or x == ";"
            for at, line in enumerate(page.lines)
            if at not in page.records
            for x in line
        )


def test_open_chunks_are_words_and_all_open_is_the_plain_decoder():
    net, pages = small(), page_reader.draw_pages(0, 0, 3)
    line, token = page_reader.encode_page_lines(pages), page_reader.encode_page_questions(pages)
    c = net.encode_lines(line)
    whole = page_reader.page_continuation_logits(
        net.decoder, net.lay_out_page(line, c, torch.ones(3, 8, dtype=torch.bool)), token
    )
    ids = [page_reader.IDS[x] for x in ("<|begin|>", page_reader.OPENING)]
    text = torch.cat(
        [
            torch.tensor([ids] * 3),
            line.flatten(1),
            torch.full((3, 1), page_reader.IDS[page_reader.CLOSING]),
            token,
        ],
        dim=1,
    )
    torch.testing.assert_close(whole, net.decoder(text)[:, -token.shape[1] :], atol=1e-4, rtol=0.0)
    at = torch.tensor([[0, 5], [7, 3], [6, 1]])
    page = net.lay_out_page(line, c, refrag.open_chunk_mask(at, 8))
    assert page.shape[1] == 2 * 6 + 6
    words = net.decoder.model.embed_tokens(line)
    vector = chunk_encoder.project_chunks(net.t, c.flatten(0, 1)).view(3, 8, -1)
    for row, picks in enumerate(at.tolist()):
        want = [words[row, i] if i in picks else vector[row, i : i + 1] for i in range(8)]
        assert torch.equal(page[row], torch.cat(want))


def test_only_digits_of_answers_count():
    pages = page_reader.draw_pages(0, 1, 2)
    token = page_reader.encode_page_questions(pages)
    logits = torch.zeros(*token.shape, page_reader.VOCAB)
    names = {i: x for x, i in page_reader.IDS.items()}
    assert "".join(names[x] for x in token[0].tolist()).startswith("?" + "".join(pages[0].asked[0]))
    for row in range(2):
        for at in range(token.shape[1] - 1):
            if names[int(token[row, at + 1])].isdigit():
                logits[row, at, token[row, at + 1]] = 50.0
    nats, right = page_reader.page_answer_nats(logits, token)
    assert nats.shape == (2, 3, 4) and nats.max() < 1e-6 and bool(right.all())
    nats, right = page_reader.page_answer_nats(logits.roll(1, 1), token)
    assert nats.min() > 1 or not bool(right.all())


def test_the_curriculum_rises_and_can_be_left_out():
    spec = ContextSpec("x", kind="refrag", steps=50)
    got = [refrag.rewriting_curriculum_stage(spec, at) for at in range(50)]
    assert got == sorted(got) and set(got) == {1, 2, 4} and got.count(4) == 25
    assert {
        refrag.rewriting_curriculum_stage(replace(spec, at_once=True), at) for at in range(50)
    } == {4}


def test_picks_are_drawn_one_after_another():
    """The chances of all ordered picks sum to 1, draws have them, and the likeliest is the order of
    scores."""
    score = torch.tensor([0.3, -1.0, 1.2, 0.0, 0.9])
    for lines, count in ((5, 3), (4, 2), (3, 3), (5, 1)):
        ways = list(itertools.permutations(range(lines), count))
        rows = score[:lines].expand(len(ways), lines)
        chance = refrag.chance_of(rows, torch.tensor(ways)).exp()
        assert chance.sum().item() == pytest.approx(1.0, abs=1e-5)
        best = tuple(score[:lines].argsort(descending=True)[:count].tolist())
        assert ways[int(chance.argmax())] == best
        if lines == 4:
            dice = torch.Generator().manual_seed(3)
            drawn = refrag.sample_open_chunks(score[:4].expand(20000, 4), 2, dice).tolist()
            for way, p in zip(ways, chance.tolist()):
                share = drawn.count(list(way)) / 20000
                assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / 20000)


def test_grpo_prefers_what_was_better_and_is_bounded():
    reward = torch.tensor([[-1.0, -2.0, -3.0, -4.0], [-5.0, -5.0, -5.0, -5.0]])
    now = torch.zeros(8, requires_grad=True)
    refrag.grpo_loss(now, torch.zeros(8), reward).backward()
    g = now.grad
    assert g[0] < g[1] < 0 < g[2] < g[3] and bool((g[4:] == 0).all())
    assert g[:4].sum().abs() < 1e-6
    for far, moves in ((0.5, False), (-0.5, True)):
        now = torch.full((8,), far).requires_grad_()
        refrag.grpo_loss(now, torch.zeros(8), reward).backward()
        assert bool((now.grad[0] != 0) == moves), "a good one that is likelier already stays"
        assert bool((now.grad[3] != 0) != moves)


def test_the_stages_train_their_parts_and_the_engine_reads_as_in_training(tmp_path):
    spec = ContextSpec(str(tmp_path / "r"), kind="refrag", steps=20, rows=4, width=32, layers=2)
    result = train_context(spec)
    assert set(result["right"]) == {"none open", "by the policy", "by chance", "all open"}
    assert result["rewritten"].keys() == {1, 2, 4}
    out = tmp_path / "r"
    kept = [
        refrag.load_refrag_model(out / a, spec, out / b if b else None)
        for a, b in (
            ("words", None),
            ("rewriting", "rewriting"),
            ("continued", "continued"),
            ("words", None),
        )
    ]
    kept[3] = refrag.load_refrag_model(out, spec, out)
    for at, moved in ((1, {"encoder"}), (2, {"encoder", "decoder"}), (3, {"policy"})):
        changed = set()
        for (name, a), b in zip(kept[at - 1].state_dict().items(), kept[at].state_dict().values()):
            part = (
                "decoder"
                if name.startswith("decoder")
                else "policy"
                if "policy" in name
                else "encoder"
            )
            if not torch.equal(a, b):
                changed.add(part)
        assert changed == moved
    lm = load(spec.out, draft=None, trained=[f"{spec.out}/chunks"])
    net, pages = kept[3], [facts.draw_fact_page(f"{i}", 8, 3, 3, True) for i in range(6)]
    line, token = page_reader.encode_page_lines(pages), page_reader.encode_page_questions(pages)
    c = net.encode_lines(line)
    for count in (0, 2, 8):
        best = chunk_encoder.score_chunks(net.sizes, net.t, c).argsort(-1, descending=True)[
            :, :count
        ]
        with torch.no_grad():
            want = page_reader.page_continuation_logits(
                net.decoder, net.lay_out_page(line, c, refrag.open_chunk_mask(best, 8)), token
            )[:, 1].log_softmax(-1)
        for row, page in enumerate(pages):
            prompt = f"{page_reader.OPENING}{page.text}{page_reader.CLOSING}?{page.asked[0][0]}"
            ids = lm.encode_prompt(prompt, raw=True)
            law = read(lm, count / 8, prompt=ids).open_session(ids)
            got = run_coroutines([law.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])[
                0
            ].logprob_row(0)
            torch.testing.assert_close(got.float(), want[row], atol=2e-3, rtol=0.0)
    told = json.loads((out / "training.json").read_text())
    assert told["right"] == result["right"]


def test_a_policy_that_stopped_between_two_steps_on_one_group_goes_on_to_the_bit(
    tmp_path, monkeypatch
):
    """The weights have moved since the group was drawn: it cannot be drawn again, so the checkpoint holds it."""
    spec = ContextSpec(str(tmp_path), kind="refrag", steps=20, rows=4, width=32, layers=2)
    train_context(spec)
    state = tmp_path / "state.pt"
    whole = torch.load(state, weights_only=True)
    state.unlink()
    true, seen = refrag.grpo_loss, []

    def stops(*asked):
        seen.append(asked)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)
        return true(*asked)

    monkeypatch.setattr(refrag, "grpo_loss", stops)
    with pytest.raises(KeyboardInterrupt, match="stopped after 3 of 4 steps"):
        train_context(spec)
    train_context(spec)
    again = torch.load(state, weights_only=True)
    assert len(seen) == 4 and again["curve"] == whole["curve"]
    assert again["network"].keys() == whole["network"].keys()
    assert all(torch.equal(t, whole["network"][name]) for name, t in again["network"].items())


def test_entering_vectors_are_ids_behind_the_vocabulary(lm):
    shown = read(lm, 0.0)
    size = lm.checkpoint.lm.vocab.size
    assert all((x >= size) == (state_of(x) is not None) for x in shown.instead)
    assert shown.instead[2] == make_soft_tokens(state_of(shown.instead[2])[None], size, 64, "x")[0]


def test_the_last_stage_goes_on_from_what_was_rewritten_with_any_number_of_open_chunks(
    tmp_path, monkeypatch
):
    begun, opened = [], []
    real = refrag.RefragModel.lay_out_page

    def noted_begin(at, spec, encoder):
        begun.append(encoder)
        return small()

    def noted_page(self, line_BLK, c_BLW, open_BL):
        opened.append(open_BL)
        return real(self, line_BLK, c_BLW, open_BL)

    monkeypatch.setattr(refrag, "load_refrag_model", noted_begin)
    monkeypatch.setattr(refrag.RefragModel, "lay_out_page", noted_page)
    spec = ContextSpec(
        str(tmp_path / "continued"), kind="refrag", steps=20, rows=2, width=32, layers=2
    )
    course = refrag._continued(spec)
    with torch.no_grad():
        for step in range(12):
            course.loss(step)
    assert begun == [tmp_path / "rewriting"]
    counts = {int(open_BL[0].sum()) for open_BL in opened}
    assert all(len(set(open_BL.sum(-1).tolist())) == 1 for open_BL in opened)
    assert len(counts) > 3 and min(counts) < 3 and max(counts) > 5
