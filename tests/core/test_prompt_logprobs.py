"""Log-probabilities of a prompt, beside the answer to it."""

import pytest

from polydec.core.decoder import request_streams
from polydec.core.prompt_logprobs import PromptLogprobs
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.toy import toy_law
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier

PROMPT = (1, 3, 0, 2, 2, 3, 1, 0, 4, 2, 1)


def law_behind(target, text):
    """The law of the token behind a text, from a session of its own."""
    session = target.open_session(text)
    (scores,) = run_coroutines(
        [session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest(law=RowDetail.ROW))]
    )
    session.close()
    return scores.logprob_row(0)


@pytest.mark.parametrize("part", [1, 3, 10, 64])
@pytest.mark.parametrize("top", [0, 2])
def test_each_token_has_the_law_that_it_has_alone(part, top):
    target = toy_law(4, 5)
    noted = PromptLogprobs(
        SpeculativeDecoder(target, LookupDrafter(), ExactVerifier(), FixedPolicy(3)),
        target,
        top,
        part,
    )
    request = Request(PROMPT, max_tokens=6, seed=1)
    into = Transcript(request)
    (result,) = run_coroutines([noted.write_choices(request, request_streams(request), into)])[0]
    assert [n.token for n in into.prompt] == list(PROMPT)
    assert (
        into.prompt[0].model_logp is None
        and into.prompt[0].rank is None
        and into.prompt[0].top == ()
    )
    for at, note in enumerate(into.prompt[1:], 1):
        row_V = law_behind(target, PROMPT[:at])
        assert note.model_logp == pytest.approx(float(row_V[note.token]), abs=1e-6)
        order = sorted(range(5), key=lambda x: -row_V[x])
        assert note.rank == order.index(note.token) + 1 and [x for x, _ in note.top] == order[:top]
    (plain,) = run_coroutines(
        [noted.decoder.write_choices(request, request_streams(request), Transcript(request))]
    )[0]
    assert result.token_ids == plain.token_ids
    assert noted.exactness is noted.decoder.exactness and noted.vocab is noted.decoder.vocab
    assert not target.live, "a session was not closed"


def test_a_prompt_of_one_token():
    target = toy_law(4, 5)
    request = Request((2,), max_tokens=3)
    into = Transcript(request)
    run_coroutines(
        [
            PromptLogprobs(
                SpeculativeDecoder(target, LookupDrafter(), ExactVerifier(), FixedPolicy(3)),
                target,
                1,
            ).write_choices(request, request_streams(request), into)
        ]
    )
    assert [n.token for n in into.prompt] == [2] and into.prompt[0].model_logp is None
