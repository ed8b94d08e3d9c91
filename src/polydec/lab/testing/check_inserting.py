"""The contract of decoders of the insertion family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from polydec.core.decoder import Decoder, answer_one, run_decoder
from polydec.core.insertion_law import Inserter, InsertionScores
from polydec.core.law import NEG_INF
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.trace import EditedEvent, TraceEvent, from_json, replay, to_json
from polydec.core.types import Exactness, TextEdit
from polydec.lab.testing.check_neighbours import BatchCounts, check_neighbours
from polydec.lab.testing.enumerate import Law, law_of, text_law_distance
from polydec.lab.testing.exercised_counts import (
    ContractCounts,
    require_exercised,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy_insertion import (
    Asked,
    LastSlotNetwork,
    PosteriorNetwork,
    ToyInserter,
    left_open,
)

Make = Callable[[Inserter], Decoder]
"""inserter -> the decoder to check."""
SHORT = [text for n in range(4) for text in product(range(2), repeat=n)]
"""All texts of up to three of two tokens."""


@dataclass(frozen=True)
class InsertionCounts(ContractCounts):
    """What a check saw a decoder of the insertion family do.

    Attributes:
        answers: Answers whose traces were read. 0 or more, like all of these.
        inserted: Tokens that were put before one that stood.
    """

    answers: int = 0
    inserted: int = 0


def check_inserting(make: Make, *, unexercised: Mapping[str, str] | None = None) -> InsertionCounts:
    """Check everything that a decoder of the insertion family promises.

    Answers end where they should, what is given stays, edits replay to the answer, draws have names
    of their own, a request says in a batch what it says alone, choices differ, and slates are
    closed however a run ends; and, where the law is promised, texts are drawn from the law that the
    model was made of. Tokens put before others must have been seen.

    Args:
        make: Makes the decoder of an insertion model.
        unexercised: By the name of a count (InsertionCounts), one sentence that says why it is 0.
            None: none is.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or no token was put before another.
    """
    check_ends(make)
    check_given(make)
    counts = check_replay(make)
    check_batch(make)
    check_closed(make)
    # Any model will do here: what a decoder promises does not depend on it.
    if make(posterior_inserter(0)).exactness is Exactness.LAW:
        check_law(make)
    require_exercised(counts, "a check of insertion", ("inserted",), unexercised)
    return counts


def some_law(seed: int) -> Law:
    """A law over SHORT."""
    g = torch.Generator().manual_seed(seed)
    # One probability for each text of SHORT.
    p_N = torch.softmax(2 * torch.randn(len(SHORT), generator=g, dtype=torch.float64), 0)
    return dict(zip(SHORT, p_N.tolist(), strict=True))


def posterior_inserter(seed: int, *, even: bool = True) -> ToyInserter:
    """Make a toy of what perfect training makes of a law over short texts.

    Args:
        seed: Seed of the law (`some_law`).
        even: Whether the number of hidden tokens is drawn evenly for each text, as in training; see
            `PosteriorNetwork`.

    Returns:
        The model, over two tokens and EOS.
    """
    return ToyInserter(PosteriorNetwork(some_law(seed), 2, even=even))


def last_slot_inserter(seed: int, size: int = 3, sharp: float = 1.0) -> ToyInserter:
    """Make a toy that only ever puts a token last.

    Args:
        seed: Seed of its law.
        size: Tokens, EOS not counted. Default 3.
        sharp: How far logits are spread. Default 1.

    Returns:
        The model.
    """
    return ToyInserter(LastSlotNetwork(random_step_law(seed, size, sharp)))


def random_step_law(seed: int, size: int, sharp: float) -> Tensor:
    """Draw the law of a token, or of the end, by the token before it.

    Args:
        seed: Seed of the draws.
        size: Tokens, EOS not counted.
        sharp: How far logits are spread.

    Returns:
        Probabilities, shape ``[size + 1, size + 1]``: a row for each token before, the last column
        EOS.
    """
    g = torch.Generator().manual_seed(seed)
    return torch.softmax(
        sharp * torch.randn(size + 1, size + 1, generator=g, dtype=torch.float64), -1
    )


class AnyTokenNetwork(LastSlotNetwork):
    """Puts any token into any slot, and finds something missing nine times of ten."""

    def forward(self, queries: Sequence[Asked]) -> list[InsertionScores]:
        offers = super().forward(queries)
        even = [
            # Equal weight for every token in every slot; EOS is never put in by a slot.
            torch.zeros_like(o.logw_SV).index_fill(-1, torch.tensor([self.size]), NEG_INF)
            for o in offers
        ]
        return [InsertionScores(logw_SV, 0.1) for logw_SV in even]


def law_with_ends(law: Law, end: int = 2) -> Law:
    """Put the end behind each text of a law.

    Args:
        law: Probabilities of texts without their end.
        end: Id of the end. Default 2, the end of a toy of two tokens.

    Returns:
        The same probabilities of the longer texts.
    """
    return {(*text, end): p for text, p in law.items()}


def check_law(make: Make, *, laws: int = 2, tolerance: float = 1e-12) -> None:
    """Require that the enumerated output law is that of which the model knows the posteriors.

    Args:
        make: Makes the decoder of an insertion model.
        laws: Random laws, at least 1. Default 2.
        tolerance: Total variation that rounding may leave.

    Raises:
        AssertionError: The law is another one.
    """
    for seed in range(laws):
        decoder, request = make(posterior_inserter(seed)), Request((0,), max_tokens=5)
        got = law_of(lambda rng, d=decoder, r=request: answer_one(d, r, rng))
        off = text_law_distance(got, law_with_ends(some_law(seed)))
        assert off < tolerance, f"the output law is off by {off:.2e} (seed {seed})"


def check_ends(make: Make) -> None:
    """An answer ends with EOS, or at max_tokens, or at a stop id, which it holds. With ignore_eos
    only the last two.
    """
    for seed in range(20):
        model = last_slot_inserter(seed, 4, 2.0)
        # One in five has a stop id besides EOS.
        stop = frozenset[int]({0} if seed % 5 == 4 else ())
        for ignore in (False, True):
            request = Request((1,), 1 + seed % 9, stop, ignore, seed)
            out = run_coroutines([answer_one(make(model), request)])[0]
            ends = stop | (frozenset[int]() if ignore else frozenset({4}))
            assert not ends & set(out.token_ids[:-1]), f"{out.token_ids} goes on after an end"
            stopped = out.token_ids[-1] in ends
            assert out.finish_reason == ("stop" if stopped else "length"), (
                f"{out.token_ids} ended by {out.finish_reason}"
            )
            assert stopped or len(out.token_ids) == request.max_tokens, (
                f"{len(out.token_ids)} tokens, no end among them"
            )
            assert out.stats.passes <= request.max_tokens, (
                f"{out.stats.passes} passes for {request.max_tokens} tokens"
            )


def check_given(make: Make) -> None:
    """Require that given tokens stay.

    They stay in their order and without anything between them; a gap takes no more than stands for
    it; an end that is given is the last token.

    Args:
        make: Makes the decoder of an insertion model.

    Raises:
        AssertionError: An answer does not fit what was given.
    """
    # Three gaps, of two, one and three positions, around given tokens; the end is given as well.
    given = (None, None, 3, None, 2, 2, None, None, None, 4)
    model = ToyInserter(AnyTokenNetwork(random_step_law(3, 4, 1.0)))
    for seed in range(20):
        out = run_coroutines(
            [answer_one(make(model), Request((1,), len(given), given=given, seed=seed))]
        )[0].token_ids
        assert out[-1] == 4 and 4 not in out[:-1], f"{out} does not end with its end"
        # Gaps may take less than stands for them: some a, b, c in reach must put the given tokens
        # where they are.
        fits = any(
            len(out) == a + b + c + 4 and out[a] == 3 and out[a + b + 1 : a + b + 3] == (2, 2)
            for a, b, c in product(range(3), range(2), range(4))
        )
        assert fits, f"{out} does not keep {given}"
    request = Request((1,), 5, given=(None, 1, None, None, 0), ignore_eos=True)
    out = run_coroutines([answer_one(make(model), request)])[0].token_ids
    assert len(out) == 5 and out[1] == 1 and out[4] == 0, f"{out} does not fill {request.given}"


def check_replay(make: Make) -> InsertionCounts:
    """Require that the edits of the trace, read back from JSON, add up to the answer.

    Watching changes nothing, and log-probabilities are those of the answer's tokens.

    Args:
        make: Makes the decoder of an insertion model.

    Returns:
        How many answers there were, and how many tokens were put before others.

    Raises:
        AssertionError: The trace and the answer differ.
    """
    answers = 0
    inserted = 0
    for seed in range(6):
        events = list[TraceEvent]()
        decoder = make(posterior_inserter(seed))
        request = Request((0,), max_tokens=5, seed=seed, logprobs=2)
        out = run_coroutines(
            [answer_one(decoder, request, StrictRng.of_choice(seed), events.append)]
        )[0]
        read = [from_json(json.loads(json.dumps(to_json(e)))) for e in events]
        # A trace is read by other programs, so it must survive JSON.
        assert read == events, "an event is not what its JSON says"
        got = tuple(replay((0,), [e.edit for e in read if isinstance(e, EditedEvent)]))
        assert got == out.token_ids, f"the trace replays to {got}, the answer is {out.token_ids}"
        # Once more without anybody watching.
        plain = run_coroutines([answer_one(decoder, Request((0,), max_tokens=5, seed=seed))])[
            0
        ].token_ids
        assert plain == got, "the answer changed when it was watched"
        notes = out.logprobs or ()
        assert tuple(n.token for n in notes) == got and all(n.model_logp <= 0 for n in notes), (
            f"notes: {notes}"
        )
        answers += 1
        inserted += _inserted(
            [e.edit for e in read if isinstance(e, EditedEvent)], decoder.vocab.eos
        )
    return InsertionCounts(answers, inserted)


def _inserted(edits: Sequence[TextEdit], ends: frozenset[int]) -> int:
    """How many tokens were put before one that is no end, behind a prompt of one token."""
    text = [0]
    count = 0
    for edit in edits:
        # From the back, so that positions before stay what the edit means by them.
        for at in sorted(edit.erase, reverse=True):
            del text[at]
        for at, token in edit.insert:
            # A token before nothing but an end is an ordinary continuation, and does not count.
            count += not ends.issuperset(text[at:])
            text.insert(at, token)
        for at, token in sorted(edit.write):
            text[at : at + 1] = [token]
    return count


def check_batch(make: Make) -> BatchCounts:
    """Require of many requests at once that each one's answer is what it is alone.

    The requests have unequal lengths, seeds and choices. Passes that requests shared and answers
    that differ must have been seen, unless a class attribute `unexercised` of the decoder says, by
    the name of a count (BatchCounts), why that is 0.

    Args:
        make: Makes the decoder of an insertion model.

    Returns:
        The counts.

    Raises:
        AssertionError: An answer depends on its neighbours, or nothing was shared.
    """
    network = LastSlotNetwork(random_step_law(7, 6, 0.7))
    decoder = make(ToyInserter(network))
    requests = [Request((i % 3,), 2 + 5 * (i % 4), seed=i // 2, choice=i % 2) for i in range(9)]
    return check_neighbours(decoder, requests, network)


def check_closed(make: Make) -> None:
    """Choices come in order, each drawn for itself; a run that is cancelled leaves no slate open."""
    decoder = make(last_slot_inserter(7, 6, 0.7))
    request = Request((0,), 12, n=6, ignore_eos=True)
    # The count of open slates begins anew here: other checks may have left some.
    left_open()
    several = run_coroutines([run_decoder(decoder, request)])[0]
    assert [r.choice for r in several] == list(range(6)) and len(
        {r.token_ids for r in several}
    ) > 4, "choices are alike"
    single = [
        run_coroutines([answer_one(decoder, Request((0,), 12, choice=c, ignore_eos=True))])[
            0
        ].token_ids
        for c in range(6)
    ]
    assert [r.token_ids for r in several] == single, "a choice among others is not the choice alone"
    assert not left_open(), "a slate stayed open after the answers"
    scheduler = Scheduler()
    task = scheduler.submit_coroutine(run_decoder(decoder, request))
    # One step is enough for slates to be open when the run is cancelled.
    scheduler.step()
    scheduler.cancel(task)
    assert not left_open(), "a slate stayed open after a cancelled run"
