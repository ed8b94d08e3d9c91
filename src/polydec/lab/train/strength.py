"""How far SVDecode should go from a model before tuning to the tuned one.

As far as right answers get likelier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from polydec.base.edge import error_sentence
from polydec.base.errors import RequestError
from polydec.core.effects import gather_coroutines
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train.specs.strength import StrengthSpec
from polydec.lab.train.target import require_family
from polydec.laws.contrasts.steered import SteeringVectorContrast, calibrate_steering_strength
from polydec.methods.registry.family import AUTOREGRESSIVE, family_of
from polydec.models.formats import text_rows
from polydec.request.loaded import LoadedModel
from polydec.request.loading import load

Rows = tuple[Tensor, Tensor, int]

FACTORS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Of the closed form, which is right to second order only: what is tried around it."""

MOST = 1000.0
"""The largest strength that the steering takes."""


@dataclass(frozen=True)
class SteeringStrength:
    """A strength of steering, and what it does to the likelihood of right answers.

    Attributes:
        strength: The best strength of those tried.
        closed: What the closed form says.
        before: Nats a token of the answers under the tuned model.
        after: Nats a token of the answers under the steered one.
        tokens: Number of these tokens, ends included.
    """

    strength: float
    closed: float
    before: float
    after: float
    tokens: int


def find_strength(spec: StrengthSpec) -> dict[str, float]:
    """Run `best_steering_strength` on the models and the file of a spec; its fields by name.

    Raises:
        RequestError: See `best_steering_strength` and `read_pairs`.
    """
    pairs = read_pairs(Path(spec.data))
    lm = load(spec.target, draft=spec.draft, ngrams=None)
    return vars(best_steering_strength(lm, pairs, head=spec.head, raw=spec.raw))


def best_steering_strength(
    lm: LoadedModel, pairs: Sequence[tuple[str, str]], *, head: float = 0.1, raw: bool = False
) -> SteeringStrength:
    """Find the strength for `--steer svdecode` under which answers are likeliest, EOS included.

    Source: "Distribution-aligned decoding for efficient LLM task adaptation" (SVDecode), 2025,
    which picks it on a small labelled set; the closed form and the factors tried around it are our
    choice.

    Args:
        lm: The tuned model, whose draft is the model before tuning.
        pairs: Prompts and right answers that neither was tuned on, some 100 of them.
        head: Of the steering, 0 to 1: tokens below this share of the largest probability are left
            out. Default 0.1.
        raw: Whether prompts go without a chat template. Default False.

    Returns:
        The strength, and what it gains.

    Raises:
        RequestError: `head` is out of range, there is no draft or no pair, or an answer is empty.
    """
    rule = SteeringVectorContrast(0.0, head)  # says so where the head is out of range
    if lm.draft is None:
        raise RequestError("there is no model before tuning: name it as the draft (--draft)")
    for field, point in (("target", lm.checkpoint), ("draft", lm.draft)):
        require_family(AUTOREGRESSIVE, family_of(point.lm), point.name, field)
    if not pairs:
        raise RequestError("pairs is empty: give at least one prompt with its answer")
    laws = (lm.checkpoint.lm, lm.draft.lm)
    texts = [_ids(lm, i, *pair, raw) for i, pair in enumerate(pairs)]
    # The closed form maximises a second-order approximation; then a few factors around it are tried
    # exactly.
    closed = calibrate_steering_strength(_every(laws, texts), head)
    lost = dict.fromkeys((min(closed * f, MOST) for f in FACTORS), 0.0)
    count = 0
    for tuned_V, before_V, token in _every(
        laws, texts
    ):  # once more: rows of all texts together are too large to keep
        count += 1
        # One pass of the models serves all strengths: only the mixture differs.
        for mu in lost:
            lost[mu] -= float(
                normalise_log_weights(replace(rule, strength=mu).mix_laws(tuned_V, [before_V]))[
                    token
                ]
            )
    best = min(lost, key=lambda mu: lost[mu])
    return SteeringStrength(best, closed, lost[0.0] / count, lost[best] / count, count)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read prompts and answers from a file of JSON lines.

    Any form of text_rows.py will do that has both.

    Raises:
        RequestError: A line has not both; one sentence names it.
    """
    out = list[tuple[str, str]]()
    for what, fields in text_rows.read_json_lines(path):
        pair = text_rows.parse_text_row(fields, what, "").exchange
        if pair is None:
            raise RequestError(error_sentence(f"{what} must have a prompt and an answer"))
        out.append(pair)
    return out


def _ids(
    lm: LoadedModel, at: int, prompt: str, answer: str, raw: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not answer.strip():
        raise RequestError(f"pairs[{at}] has no answer: give a text of at least one character")
    answer_ids = lm.checkpoint.text.encode(answer, special=False)
    return lm.encode_prompt(prompt, raw=raw, who=f"pairs[{at}]"), answer_ids


def _every(
    laws: Sequence[Target], texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Iterator[Rows]:
    """The rows of all answers, text after text, so that only one text's rows are in memory."""
    ends = sorted(laws[0].vocab.eos)
    for prompt, answer in texts:
        yield from run_coroutines([_rows(laws, prompt, answer, ends)])[0]


async def _rows(
    laws: Sequence[Target], prompt: tuple[int, ...], answer: tuple[int, ...], ends: Sequence[int]
) -> list[Rows]:
    """Both models' rows before each token of an answer, and the token; then those before its end.

    Of several EOS ids the end is the one that the tuned model was taught, so the one that it finds
    likeliest.
    """
    sessions = [law.open_session(prompt) for law in laws]
    try:
        # The answer is scored as a chain of draft tokens: one pass of each model.
        draft = Draft.chain_draft(prompt[-1], answer)
        tuned, before = await gather_coroutines(
            *(s.score_draft(draft, ScoreRequest()) for s in sessions)
        )
        end_V = tuned.logprob_row(len(answer))
        tokens = (*answer, max(ends, key=lambda x: float(end_V[x])))
        return [
            (tuned.logprob_row(i), before.logprob_row(i), token) for i, token in enumerate(tokens)
        ]
    finally:
        for session in sessions:
            session.close()
