"""Top-W, annealing, CyclicReflex, momentum and the watermark: hand-computed values, brute force, limits, and the detector."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, normalizers
from torch import Tensor

from polydec.core.decoder import answer_one
from polydec.core.law import NEG_INF, normalise_log_weights
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import ToyWords, toy_law
from polydec.laws.shapers.annealed import AnnealedTemperatureRule
from polydec.laws.shapers.cyclic_reflex import (
    WORDS,
    CyclicReflexRule,
    reflection_word_ids,
    thinking_end_ids,
)
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.momentum import MomentumRule
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_w import TopWRule
from polydec.laws.shapers.watermark import WatermarkRule, green_token_mask
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.sessions.geometry import EmbeddingGeometry
from polydec.models.text.tokenizer import Tokenizer
from polydec.request.detect import detect_watermark

SIZE = 7


def row(seed: int, size: int = SIZE) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def places(seed: int = 5, size: int = SIZE) -> EmbeddingGeometry:
    table = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed))
    return EmbeddingGeometry(lambda tokens: table[list(tokens)], size)


def kept(shaper: Any, row_V: Tensor) -> list[int]:
    return (shaper.shape_law(shaper.start_state((0,)), row_V) > NEG_INF).nonzero()[:, 0].tolist()


# Top-W


def test_directions_are_standardised() -> None:
    table = torch.tensor([[1.0, 5.0, 2.0], [3.0, 5.0, 0.0], [9.0, 9.0, 9.0]])
    got = EmbeddingGeometry(lambda tokens: table[list(tokens)], 2).unit_vectors(
        (0, 1)
    )  # id 2 is padding, the second column constant
    assert torch.allclose(
        got, torch.tensor([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    )


@pytest.mark.parametrize("seed", range(8))
def test_top_w_is_the_best_of_all_sets(seed: int) -> None:
    """Where it has settled, no other set does better under the potential of the set that it found: by trying all of them."""
    geometry, logp_V = places(seed), normalise_log_weights(row(seed))
    shaper = TopWRule(2.8, 2.2, 0.6, SIZE, geometry)
    mine = kept(shaper, logp_V)
    near = geometry.unit_vectors(range(SIZE)) @ geometry.unit_vectors(range(SIZE)).T
    far = [0.0 if i in mine else 1.0 - max(float(near[i, j]) for j in mine) for i in range(SIZE)]

    def worth(some: Any) -> float:
        p = [math.exp(float(logp_V[i])) for i in some]
        inner = sum(x * (-0.6 * far[i] + 2.2 * float(logp_V[i])) for x, i in zip(p, some))
        return inner / sum(p) + (2.8 - 2.2) * math.log(sum(p))

    best = max(worth(some) for n in range(1, SIZE + 1) for some in combinations(range(SIZE), n))
    assert worth(mine) == pytest.approx(best, abs=1e-9)


def test_top_w_limits() -> None:
    for seed in range(6):
        row_V = row(seed)
        ranked = row_V.sort(descending=True).indices.tolist()
        flat = kept(TopWRule(2.8, 2.2, 0.0, SIZE, places(seed)), row_V)
        assert sorted(ranked[: len(flat)]) == flat, (
            "without geometry it is a prefix of the likeliest"
        )
        assert kept(TopWRule(2.0, 2.0, 0.6, SIZE, places(seed)), row_V) == ranked[:1]
        assert kept(TopWRule(1.0, 2.0, 0.0, SIZE, places(seed)), row_V) == ranked[:1]
        assert kept(TopWRule(2.8, 2.2, 0.6, SIZE, places(seed)), row_V + 3.0) == kept(
            TopWRule(2.8, 2.2, 0.6, 7, places(seed)), row_V
        )
        counts = [
            len(kept(TopWRule(beta, 2.2, 0.6, SIZE, places(seed)), row_V))
            for beta in (2.3, 2.8, 4.0, 9.0, 50.0)
        ]
        assert counts == sorted(counts), "a larger beta keeps more"
        assert set(kept(TopWRule(50.0, 2.2, 0.6, 3, places(seed)), row_V)) <= set(ranked[:3])


def test_top_w_needs_a_table() -> None:
    with pytest.raises(ValueError, match="top_w needs the target's table of embeddings"):
        build_shapers(Sampling(top_w=2.8))
    assert [type(s) for s in build_shapers(Sampling(top_w=2.8), geometry=toy_law(1).geometry)] == [
        TopWRule
    ]


# annealing


def test_the_temperature_falls_along_the_answer() -> None:
    rule = AnnealedTemperatureRule(1.2, 0.1, 500.0, 10)
    assert [rule.temperature_at(t) for t in (0, 9)] == [1.0, 1.0]
    after = [rule.temperature_at(t) for t in range(10, 2000)]
    assert (
        after == sorted(after, reverse=True)
        and min(after) == 0.1
        and after[0] == pytest.approx(2.2 - math.exp(0.02))
    )
    assert rule.temperature_at(round(500 * math.log(1.2))) == pytest.approx(1.0, abs=2e-3)
    floor = 500 * math.log(1 + 1.2 - 0.1)
    assert rule.temperature_at(math.ceil(floor)) == 0.1 < rule.temperature_at(math.floor(floor) - 1)
    assert rule.temperature_at(10**9) == 0.1


def test_annealing_at_its_limits() -> None:
    for n in (0, 1, 50):
        text = (0,) * n
        row_V = row(n)
        for warm in (0.5, 1.0, 1.7):
            rule = AnnealedTemperatureRule(warm, warm, 20.0, 0)
            state = rule.start_state((3, 4))
            for x in text:
                state = rule.next_state(state, x)
            assert torch.allclose(
                normalise_log_weights(rule.shape_law(state, row_V)),
                normalise_log_weights(TemperatureRule(warm).shape_law(None, row_V)),
            )


# CyclicReflex


def test_the_wave() -> None:
    rule = CyclicReflexRule(5.0, (1,), 1200)
    assert [rule.token_bias(n) for n in (0, 300, 600, 900, 1200)] == pytest.approx(
        [0.0, 5.0, 0.0, -5.0, 0.0]
    )
    assert [rule.token_bias(n) for n in (150, 450, 1050)] == pytest.approx([2.5, 2.5, -2.5])
    assert sum(rule.token_bias(n) for n in range(1200)) == pytest.approx(0.0, abs=1e-9)
    assert CyclicReflexRule(5.0, (1,), 1200, 0.25).token_bias(0) == pytest.approx(5.0)
    rising = [CyclicReflexRule(5.0, (1,), 10**6).token_bias(n) for n in range(0, 8192, 512)]
    assert rising == sorted(rising) and rising[1] > 0.0


def test_the_wave_moves_its_tokens_only_and_only_while_the_model_thinks() -> None:
    rule, row_V = CyclicReflexRule(8.0, (1, 4), 8, until=6, ends=(2,)), row(3)

    def change(text: tuple[int, ...]) -> list[float]:
        state = rule.start_state((2, 2))  # an end in the prompt ends nothing
        for x in text:
            state = rule.next_state(state, x)
        return (rule.shape_law(state, row_V) - row_V).tolist()

    assert change((0, 0)) == pytest.approx([0, 8.0, 0, 0, 8.0, 0, 0])
    assert change((0, 2)) == [0.0] * 7 and change((0,) * 6) == [0.0] * 7
    assert change((0,) * 5) == pytest.approx([0, -4.0, 0, 0, -4.0, 0, 0])


def test_the_words_are_found() -> None:
    words = ToyWords(("w", "wait", " wait", "But", "</think>", " ", "a", "i", "t", "B", "u"))
    assert reflection_word_ids(words, WORDS) == (1, 2, 3) and thinking_end_ids(words) == (4,)
    assert reflection_word_ids(None, WORDS) == () == thinking_end_ids(ToyWords(("a",)))
    rule = build_shapers(Sampling(reflex_amplitude=5.0), words=words)[0]
    assert isinstance(rule, CyclicReflexRule) and rule.tokens == (1, 2, 3) and rule.ends == (4,)
    with pytest.raises(ValueError, match="reflex_token_ids is none"):
        build_shapers(Sampling(reflex_amplitude=5.0))


@pytest.mark.parametrize(
    "text, over",
    [
        ((0, 1), True),
        ((3,), True),
        ((2, 0, 1, 2), True),
        ((4, 5), True),
        ((0, 2, 1), False),
        ((1, 0), False),
        ((0, 0), False),
    ],
    ids=["two tokens", "one", "in a text", "with more around", "parted", "turned", "begun twice"],
)
def test_the_thinking_ends_where_its_mark_is_spelled(text: tuple[int, ...], over: bool) -> None:
    """By one token or by several, which may write more than the mark."""
    words = ToyWords(("</thi", "nk>", "a", "</think>", "a</", "think>a", "wait"))
    rule = build_shapers(Sampling(reflex_amplitude=5.0, reflex_shift=0.25), words=words)[0]
    state = rule.start_state(())
    for token in text:
        state = rule.next_state(state, token)
    row_V = row(3)
    assert (rule.shape_law(state, row_V)[6] == row_V[6]) == over
    # Ids that are given end it alone.
    named = build_shapers(
        Sampling(reflex_amplitude=5.0, reflex_shift=0.25, reflex_end_ids=(2,)), words=words
    )[0]
    state = named.start_state(())
    for token in text:
        state = named.next_state(state, token)
    assert (named.shape_law(state, row_V)[6] == row_V[6]) == (2 in text)


def sentencepiece() -> Tokenizer:
    """Every text begins with a space; `wait` alone is a token inside of a line's words only."""
    pieces = [
        "<unk>",
        "▁",
        "▁wait",
        "wait",
        "▁But",
        "w",
        "ait",
        *(f"<0x{b:02X}>" for b in range(256)),
    ]
    ids = {p: i for i, p in enumerate(pieces)} | {x: len(pieces) + i for i, x in enumerate("aitBu")}
    merges = [
        ("a", "i"),
        ("ai", "t"),
        ("w", "ait"),
        ("▁", "wait"),
        ("B", "u"),
        ("Bu", "t"),
        ("▁", "But"),
    ]
    ids |= {x: len(ids) + i for i, x in enumerate(("ai", "Bu", "t_", "But"))}
    t = HFTokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return Tokenizer(t)


def test_the_words_are_found_where_every_text_begins_with_a_space() -> None:
    words = sentencepiece()
    assert [words.pieces[x] for x in reflection_word_ids(words, WORDS)] == [
        b" wait",
        b"wait",
        b" But",
        b"But",
    ]
    assert build_shapers(Sampling(reflex_amplitude=5.0), words=words)


# momentum


def naive(text: tuple[int, ...], token: int, longest: int) -> int:
    """The published words: the largest i such that the last i - 1 tokens and this one stand in the text."""
    if token not in text:
        return 0
    depth = 1
    for i in range(2, longest + 1):
        run_ = (*text[len(text) - i + 1 :], token)
        if i - 1 <= len(text) and any(text[j : j + i] == run_ for j in range(len(text) - i + 1)):
            depth = i
    return depth


def test_resistance() -> None:
    a, b, c, d = range(4)
    rule = MomentumRule()
    assert (
        rule.repetition_length(rule.start_state((a, b, c, d, a, b)), c) == 3
        and rule.repetition_length(rule.start_state((a, b, c)), d) == 0
    )
    dice = torch.Generator().manual_seed(2)
    for _ in range(200):
        text = tuple(
            torch.randint(
                3, (int(torch.randint(1, 14, (1,), generator=dice)),), generator=dice
            ).tolist()
        )
        for token in range(4):
            assert MomentumRule(longest=4).repetition_length(
                MomentumRule().start_state(text), token
            ) == naive(text, token, 4), (text, token)


def test_momentum_takes_what_was_published() -> None:
    for seed in range(20):
        text, row_V = tuple(row(seed, 12).abs().long().clamp(max=6).tolist()), row(seed + 100)
        score = {
            v: float(row_V.softmax(0)[v]) - 0.2 * naive(text, v, 5)
            for v in row_V.topk(5).indices.tolist()
        }
        out_V = MomentumRule().shape_law(MomentumRule().start_state(text), row_V)
        assert int(out_V.argmax()) == max(score, key=score.__getitem__)


def test_momentum_leaves_a_loop_and_is_greedy_without_alpha() -> None:
    loop = torch.tensor([0.0, 3.0, 1.0, 0.5, 0.4, 0.3, 0.2])
    assert (
        int(MomentumRule().shape_law(MomentumRule().start_state((0, 1, 0, 1, 0)), loop).argmax())
        != 1
    )
    assert int(MomentumRule().shape_law(MomentumRule().start_state((5, 6)), loop).argmax()) == 1
    target = toy_law(3, 8, sharp=3.0)
    plain, still = (
        run_coroutines(
            [
                answer_one(
                    build("plain", ShapedTarget(target, *s))[0],
                    Request((0, 1), 30, ignore_eos=True),
                )
            ]
        )[0].token_ids
        for s in ((GreedyRule(),), (MomentumRule(0.0), GreedyRule()))
    )
    assert plain == still
    assert [type(s) for s in build_shapers(Sampling(momentum_alpha=0.2, temperature=0))] == [
        MomentumRule,
        GreedyRule,
    ]


# watermark


def test_green_lists() -> None:
    lists = [green_token_mask(1, before, 0.25, 400) for before in range(30)]
    assert all(int(x.sum()) == 100 for x in lists)
    shared = sum(int((a & b).sum()) for a, b in combinations(lists, 2)) / len(
        list(combinations(lists, 2))
    )
    assert 20 < shared < 30, "lists behind different tokens are independent: 25 in common"
    assert not torch.equal(green_token_mask(2, 0, 0.25, 400), lists[0]) and torch.equal(
        green_token_mask(1, 0, 0.25, 400), lists[0]
    )


@pytest.mark.parametrize("method", ["plain", "prompt-lookup"])
def test_the_detector_finds_the_mark_and_only_the_mark(method: str) -> None:
    target, request = toy_law(5, 200, sharp=1.0), Request((1, 2), 200, ignore_eos=True)

    def text(*shapers: Any) -> tuple[int, ...]:
        return run_coroutines(
            [answer_one(build(method, ShapedTarget(target, *shapers))[0], request)]
        )[0].token_ids

    marked, bare = text(WatermarkRule(3.0, 0.25, 9)), text()
    assert (
        detect_watermark(marked, 200, key=9).z > 6.0
        and detect_watermark(marked, 200, key=9).p < 1e-8
    )
    assert (
        abs(detect_watermark(marked, 200, key=8).z) < 4.0
        and abs(detect_watermark(bare, 200, key=9).z) < 4.0
    )


def test_z_counts_green_tokens() -> None:
    lists = {before: green_token_mask(0, before, 0.25, 40) for before in range(40)}
    text = [0]
    while len(text) < 9:  # four green ones, then four that are not
        text.append(
            next(
                x
                for x in range(40)
                if bool(lists[text[-1]][x]) == (len(text) < 5) and x not in text
            )
        )
    found = detect_watermark(text, 40)
    assert (found.scored, found.green) == (8, 4) and found.z == pytest.approx(
        (4 - 2) / math.sqrt(8 * 0.25 * 0.75)
    )
    twice = [0, 1] * 6
    assert (
        detect_watermark(twice, 40).scored == 2
        and detect_watermark(twice, 40, repeats=True).scored == 11
    )
    assert detect_watermark(text, 40).p == pytest.approx(0.5 * math.erfc(found.z / math.sqrt(2)))


@pytest.mark.parametrize(
    ("tokens", "size", "how", "message"),
    [
        ((1,), 9, {}, "text has 1 tokens"),
        ((1, 9), 9, {}, "text has token 9: ids must lie in 0 to 8"),
        ((0, 0), 1, {}, "size is 1"),
        ((1, 2), 9, {"share": 1.0}, "watermark_share is 1.0"),
        ((1, 2), 9, {"key": -1}, "watermark_key"),
    ],
)
def test_what_cannot_be_looked_at(
    tokens: Any, size: int, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        detect_watermark(tokens, size, **how)
