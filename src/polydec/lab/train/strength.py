"""How far SVDecode should go on the way from a model before tuning to the tuned one: as far as right answers get likelier."""

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
    """strength: the best of those tried; closed: what the closed form says; before, after: -log p of the answers' tokens, in
    nats a token, under the tuned model and under the steered one; tokens: how many these are."""

    strength: float
    closed: float
    before: float
    after: float
    tokens: int


def find_strength(spec: StrengthSpec) -> dict[str, float]:
    """What `strength` finds for the models and the file of a spec, by name. Raises RequestError as `strength` and `read_pairs`
    do."""
    pairs = read_pairs(Path(spec.data))
    lm = load(spec.target, draft=spec.draft, ngrams=None)
    return vars(best_steering_strength(lm, pairs, head=spec.head, raw=spec.raw))


def best_steering_strength(
    lm: LoadedModel, pairs: Sequence[tuple[str, str]], *, head: float = 0.1, raw: bool = False
) -> SteeringStrength:
    """The strength for `--steer svdecode` under which answers are likeliest, EOS included.

    lm: the tuned model, whose draft is the model before tuning; pairs: prompts and right answers that neither was tuned on,
    some 100 of them; head: of the steering, 0 to 1; raw: no chat template. Raises RequestError for a head out of range, and
    where there is no draft, no pair, or an answer is empty. Source: "Distribution-aligned decoding for efficient LLM task
    adaptation" (SVDecode), 2025, which picks it on a small labelled set; the closed form and the factors tried around it are
    our choice.
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
    closed = calibrate_steering_strength(_every(laws, texts), head)
    lost = dict.fromkeys((min(closed * f, MOST) for f in FACTORS), 0.0)
    count = 0
    for tuned_V, before_V, token in _every(
        laws, texts
    ):  # once more: rows of all texts together are too large to keep
        count += 1
        for mu in lost:
            lost[mu] -= float(
                normalise_log_weights(replace(rule, strength=mu).mix(tuned_V, [before_V]))[token]
            )
    best = min(lost, key=lambda mu: lost[mu])
    return SteeringStrength(best, closed, lost[0.0] / count, lost[best] / count, count)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Prompts and answers of a file of JSON lines, in any of the forms of text_rows.py that have
    both. Raises RequestError with one sentence that names the wrong line."""
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
    return lm.ids(prompt, raw=raw, who=f"pairs[{at}]"), answer_ids


def _every(
    laws: Sequence[Target], texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Iterator[Rows]:
    ends = sorted(laws[0].vocab.eos)
    for prompt, answer in texts:
        yield from run_coroutines([_rows(laws, prompt, answer, ends)])[0]


async def _rows(
    laws: Sequence[Target], prompt: tuple[int, ...], answer: tuple[int, ...], ends: Sequence[int]
) -> list[Rows]:
    """At each token of an answer the rows of both laws before it, and the token; then of its end: of several EOS ids the one
    that the tuned model was taught, so that which it finds likeliest."""
    sessions = [law.open(prompt) for law in laws]
    try:
        draft = Draft.chain(prompt[-1], answer)
        tuned, before = await gather_coroutines(*(s.score(draft, ScoreRequest()) for s in sessions))
        end_V = tuned.row(len(answer))
        tokens = (*answer, max(ends, key=lambda x: float(end_V[x])))
        return [(tuned.row(i), before.row(i), token) for i, token in enumerate(tokens)]
    finally:
        for session in sessions:
            session.close()
