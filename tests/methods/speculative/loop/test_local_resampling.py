"""Blocks tested whole and drawn anew near what failed: islands, passes, and what each token is drawn behind."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from polydec import Regex
from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one, run_decoder
from polydec.core.law import float64_probabilities
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, Exactness, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.upsampled import UpsampledDrafter
from polydec.methods.speculative.loop.local_resampling import LocalResamplingDecoder
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.verifiers.neighbourhood import NeighbourhoodVerifier
from polydec.models.learned.kinds import upsampler
from polydec.models.nets.upsampling import RowCausalUpsampler, UpsamplingShape

PROMPT = (0, 1)
SIZE = 4
DRAFT = toy_law(91, SIZE, cost=0.1, eos=-1)
TARGET = toy_law(5, SIZE, eos=-1)


def lifting(height=6, width=5, ratio=2):
    shape = UpsamplingShape(height, width, ratio, SIZE, 6, 1)
    torch.manual_seed(0)
    example = upsampler.examples(TARGET.vocab, 4, 4)[0]
    return replace(example, shape=shape, tensors=RowCausalUpsampler(shape).state_dict())


LIFTING = lifting()
LENGTH = 30


def made_decoder(target=TARGET, radius=1, up=LIFTING, **test):
    drafter = UpsampledDrafter(DRAFT, up, True, False)
    return LocalResamplingDecoder(target, drafter, NeighbourhoodVerifier(up, **test), radius)


def written(decoder, seed=0, length=LENGTH, **fields):
    request = Request(PROMPT, length, ignore_eos=True, seed=seed, **fields)
    return run_coroutines([answer_one(decoder, request)])[0]


def plain_text(target, seed, length=LENGTH):
    return written(build("plain", target)[0], seed, length).token_ids


@pytest.mark.parametrize(
    "target",
    [TARGET, ShapedTarget(TARGET, TemperatureRule(0.7)), ShapedTarget(TARGET, GreedyRule())],
    ids=["bare", "shaped", "greedy"],
)
def test_a_test_that_refuses_everything_leaves_plain_decoding(target):
    for seed in range(4):
        made = written(made_decoder(target, radius=9, threshold=1.5), seed)
        assert made.token_ids == plain_text(target, seed)
        assert made.stats.passes == LENGTH and made.stats.accepted == 0


def test_a_test_that_refuses_nothing_leaves_the_draft():
    made = written(made_decoder(near=SIZE, threshold=0.0))
    assert made.stats.passes == 3 and made.stats.accepted == LENGTH


def flood(open_places, width):
    """Islands by a search from every place, written without the decoder."""
    left, out = set(open_places), []
    while left:
        stack, island = [min(left)], set()
        while stack:
            at = stack.pop()
            if at in left:
                left.discard(at)
                island.add(at)
                row, column = divmod(at, width)
                stack += [
                    (row + down) * width + column + right
                    for down in (-1, 0, 1)
                    for right in (-1, 0, 1)
                    if 0 <= column + right < width
                ]
        out.append(sorted(island))
    return out


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_islands_are_those_of_a_flood(radius):
    decoder, rng = made_decoder(radius=radius), random.Random(radius)
    seen = set()
    for _ in range(200):
        count = rng.choice([5, 10, 8])
        refused = [at for at in range(count) if rng.random() < 0.15]
        near = {
            at
            for at in range(count)
            for other in refused
            if abs(at // 5 - other // 5) <= radius and abs(at % 5 - other % 5) <= radius
        }
        islands = decoder.find_islands(refused, count)
        assert islands == flood(near, 5)
        seen.add(len(islands))
    assert seen >= ({0, 1, 2} if radius < 2 else {0, 1})


def test_a_place_at_the_right_edge_is_no_neighbour_of_the_next_row_s_first():
    assert made_decoder(radius=0).find_islands([4, 5], 10) == [[4], [5]]
    # A block that begins inside of a row.
    assert made_decoder(radius=0).find_islands([0, 1], 8, place=3) == [[0, 1]]
    assert made_decoder(radius=0).find_islands([1, 2], 8, place=3) == [[1], [2]]


@dataclass
class Reference:
    """The published loop over a law that depends on two tokens, written without sessions."""

    target: object
    decoder: LocalResamplingDecoder
    seed: int

    def row(self, text):
        session = self.target.open_session(text)
        return run_coroutines([session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())])[0]

    def text(self, length):
        rng = Rng.of_choice(self.seed)
        session = self.target.open_session(PROMPT)
        guess = self.decoder.drafter.open_guess(PROMPT, session)
        written, passes, islands_seen = [], 0, 0
        while len(written) < length:
            position = len(PROMPT) + len(written)
            root = (*PROMPT, *written)[-1]
            room = length - len(written)
            draft = run_coroutines(
                [guess.propose_draft(root, position, DraftBudget(room, room), rng)]
            )[0]
            block = list(draft.token[1:])
            before = [*PROMPT, *written]
            refused = [
                at
                for at, token in enumerate(block)
                if not self.decoder.test.accepts_token(self.row([*before, *block[:at]]), 0, token)
            ]
            islands = self.decoder.find_islands(refused, len(block))
            islands_seen = max(islands_seen, len(islands))
            passes += max(map(len, islands), default=1)
            for step in range(max(map(len, islands), default=0)):
                now = [island[step] for island in islands if step < len(island)]
                # All islands see the block as it stood before this pass.
                stood = list(block)
                for at in now:
                    p_V = float64_probabilities(self.row([*before, *stood[:at]]).logprob_row(0))
                    block[at] = rng.child_stream("token", position + at).draw_categorical(p_V)
            written += block
            session.commit_tokens((root, *block[:-1]))
            guess.follow_text(block)
        return tuple(written), passes, islands_seen


@pytest.mark.parametrize("radius", [0, 1])
def test_every_token_is_drawn_behind_the_block_as_it_stands(radius):
    most = 0
    for seed in range(6):
        decoder = made_decoder(radius=radius, near=1, threshold=0.25)
        want, passes, islands = Reference(TARGET, decoder, seed).text(LENGTH)
        made = written(decoder, seed)
        assert made.token_ids == want
        # A pass for each block, and for each token of its longest island behind the first.
        assert made.stats.passes == passes
        most = max(most, islands)
    assert radius or most > 1


def test_what_lies_outside_islands_stays_as_it_was_drafted():
    decoder = made_decoder(radius=0, near=1, threshold=0.25)
    made = written(decoder, 3)
    kept = made.stats.accepted
    assert 0 < kept < LENGTH
    refused = LENGTH - kept
    wide = written(replace(decoder, radius=2), 3)
    assert LENGTH - wide.stats.accepted > refused


def test_answers_of_one_request_are_those_of_their_streams():
    decoder = made_decoder(near=2, threshold=0.3)
    request = Request(PROMPT, LENGTH, ignore_eos=True, seed=1)

    async def both():
        return await run_decoder(decoder, replace(request, n=2))

    together = run_coroutines([both()])[0]
    alone = [
        run_coroutines([answer_one(decoder, replace(request, choice=choice))])[0].token_ids
        for choice in (0, 1)
    ]
    assert [r.token_ids for r in together] == alone and alone[0] != alone[1]


def test_log_probabilities_are_those_that_tokens_were_tested_or_drawn_by():
    made = written(made_decoder(radius=9, threshold=1.5), 2, logprobs=2)
    same = written(build("plain", TARGET)[0], 2, logprobs=2)
    assert made.logprobs == same.logprobs
    drafted = written(made_decoder(near=SIZE, threshold=0.0), 2, logprobs=1)
    assert [note.token for note in drafted.logprobs] == list(drafted.token_ids)


def test_behind_a_picture_tokens_are_the_target_s():
    decoder = made_decoder(up=lifting(2, 5), radius=9, threshold=1.5)
    assert written(decoder, 1, 16).token_ids == plain_text(TARGET, 1, 16)
    drafted = written(made_decoder(up=lifting(2, 5), near=SIZE, threshold=0.0), 1, 16)
    assert drafted.stats.passes == 1 + 6


def test_under_a_constraint_no_token_stands_behind_one_that_is_changed():
    """An answer would leave the language: so what follows a refused token is drafted again, and tested."""
    target = toy_law(5, SIZE)
    language = Regex("(ab|ba){4}").token_language(target.vocab, target.vocab.eos)
    bent = ShapedTarget(target, ConstraintRule(language))
    options = {"threshold": 0.01, "near": SIZE}
    parts = upsampler.examples(target.vocab, 4, 4)
    decoder, _ = build("mulo-sd", bent, toy_law(91, SIZE, cost=0.1), options, artefacts=parts)
    assert decoder.verifier.legal and decoder.law is Exactness.LAW
    free, _ = build("mulo-sd", target, toy_law(91, SIZE, cost=0.1), options, artefacts=parts)
    assert not free.test.legal
    for seed in range(8):
        text = written(decoder, seed, 8).token_ids
        state = language.start_state()
        for token in text:
            assert language.allows_token(state, token)
            state = language.next_state(state, token)


def test_a_negative_radius_is_refused():
    with pytest.raises(RequestError, match="radius is -1"):
        made_decoder(radius=-1)
