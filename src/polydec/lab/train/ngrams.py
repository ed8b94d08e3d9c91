"""`polydec train ngrams`: count what a target writes, as a draft that costs no pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polydec.base import edge
from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train import selfplay
from polydec.lab.train.envelope import write_down
from polydec.lab.train.own_text import write_text
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.ngrams import NGramSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.models.learned.kinds import ngram_counts
from polydec.models.learned.kinds.ngram_counts import NgramCounts
from polydec.models.learned.kinds.ngrams import LAST, MIX, NGrams, save
from polydec.models.text.tokenizer import Tokenizer


def train_ngrams(spec: NGramSpec) -> dict[str, Any]:
    """Let the target write (unless there is a text), count what it writes, and save the table.

    What was measured on held-out prompts (out/held.jsonl, a tenth as many) is returned, and kept in
    out/training.json.

    Raises:
        RequestError: An option is wrong, data is missing, or the vocabulary has more than 65,535
            tokens and the counts are not kept as they are.
    """
    out = Path(spec.out)
    began = time.perf_counter()
    if spec.text:
        path = Path(spec.text)
    else:
        path = out / "text.jsonl"
    unseen_file = out / "held.jsonl"
    point = load_autoregressive_model(spec.target)
    # Discounted tables keep tokens in two bytes, counts in four.
    if point.lm.vocab.size > LAST and not spec.as_counted:
        raise RequestError(
            f"target is {spec.target!r} with {point.lm.vocab.size} tokens: a table holds at most {LAST}, unless as_counted "
            "keeps its counts"
        )
    # A corpus is counted as it is: the target writes nothing.
    if spec.corpus is not None:
        return _keep(
            spec, point.lm.vocab, read_paragraph_samples(Path(spec.corpus), point.text), None, began
        )
    if spec.text is None:
        write_text(point, path, spec.data, spec.each, max_tokens=spec.max_tokens, seed=spec.seed)
    # A prompt without an answer has nothing to count.
    samples = [s for s in selfplay.read_samples(path, point.lm.vocab.size) if s.output_ids]
    if not samples:
        raise RequestError(
            f"text is {str(path)!r}: it holds no answer, so give another --text, or delete it and "
            "give other prompts (--data)"
        )
    # There are held-out answers only where the target wrote the text here.
    if unseen_file.exists():
        held_out = selfplay.read_samples(unseen_file, point.lm.vocab.size)
    else:
        held_out = None
    return _keep(spec, point.lm.vocab, samples, held_out, began)


def _keep(
    spec: NGramSpec,
    vocab: TokenVocabulary,
    samples: Sequence[TrainingSample],
    unseen: Sequence[TrainingSample] | None,
    began: float,
) -> dict[str, Any]:
    """Count and save; returns what was measured."""
    out = Path(spec.out)
    # Counting takes seconds, so there is no state to resume from.
    if spec.as_counted:
        table = count_every_continuation(samples, spec.order, vocab)
        # A file without a context could not be read back.
        if not len(table.key_M):
            raise RequestError(
                f"the text is {len(samples)} samples in which no token follows another: it must have one of 2 tokens or more"
            )
    else:
        table = count_ngrams(samples, spec, vocab)
    result: dict[str, Any] = {
        "samples": len(samples),
        "tokens": sum(len(s.output_ids) for s in samples),
        "contexts": len(table.key_M),
        "seconds": round(time.perf_counter() - began, 1),
    }
    # Raw counts are not measured: they have no probability that a drafter would trust.
    if unseen is not None and isinstance(table, NGrams):
        result["held_out"] = measure_ngram_guesses(table, unseen)
    about = {
        "target": spec.target,
        "least": spec.least,
        "discount": spec.discount,
        "samples": len(samples),
        "tokens": result["tokens"],
    }
    if isinstance(table, NGrams):
        save(out, table, about)
    else:
        ngram_counts.save(out, table, {"target": spec.target, "tokens": result["tokens"]})
    write_down(out, result)
    return result


def read_paragraph_samples(path: Path, text: Tokenizer) -> list[TrainingSample]:
    """The paragraphs of a plain text, which blank lines end, as answers to nothing.

    Args:
        path: File of UTF-8, up to 1 GiB.
        text: Tokenizer of the target.

    Returns:
        One sample for each paragraph that has tokens.

    Raises:
        RequestError: The file cannot be read, is no UTF-8, or holds no text.
    """
    try:
        # The file is read at once: a paragraph is a sample, and counting needs them all together.
        lines = edge.read_bytes(path, most=1 << 30).decode().splitlines()
    except UnicodeDecodeError:
        raise RequestError(
            edge.error_sentence(f"corpus is {str(path)!r}: it is no UTF-8")
        ) from None
    parts = list[str]()
    part = list[str]()
    # The empty line at the end closes the last paragraph.
    for line in (*lines, ""):
        if line.strip():
            part.append(line)
        elif part:
            parts.append("\n".join(part))
            part = []
    samples = [
        TrainingSample((), ids) for part in parts if (ids := text.encode(part, special=False))
    ]
    if not samples:
        raise RequestError(edge.error_sentence(f"corpus is {str(path)!r}: no text in it"))
    return samples


def count_ngrams(
    samples: Sequence[TrainingSample], spec: NGramSpec, vocab: TokenVocabulary
) -> NGrams:
    """Count contexts, and estimate the probability of what follows each.

    Counted is in how many answers a token follows, by interpolated absolute discounting (Ney, Essen
    and Kneser, 1994). Repetitions within one answer count once, as do answers that are there twice,
    so that loops do not.

    Args:
        samples: The target's answers.
        spec: Options; `order`, `discount`, `top` and `least` are read.
        vocab: The target's vocabulary.

    Returns:
        The table.
    """
    # The same answer to the same prompt counts once.
    unique = list({(s.prompt_ids, s.output_ids): s for s in samples}.values())
    next_N, answer_N, context_NO = _positions(unique, spec.order)
    lower = _ContextCountLevel.of_empty_context(next_N, answer_N)
    kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    key_N = np.zeros(len(next_N), np.uint64)
    known_N = np.ones(len(next_N), bool)
    for n in range(spec.order):
        # A position counts where its answer (with the prompt) has so many tokens before it.
        known_N &= context_NO[:, n] >= 0
        before_N = key_N
        key_N = _longer(key_N, context_NO[:, n])
        lower = _ContextCountLevel.of_counts(
            key_N[known_N],
            before_N[known_N],
            next_N[known_N],
            answer_N[known_N],
            lower,
            spec.discount,
        )
        # Every order up to `order` goes into the table: the longest known context decides later.
        kept.append(lower.likeliest_tokens(spec.top, spec.least))
    key_M, follower_MK, chance_MK = (np.concatenate(parts) for parts in zip(*kept))
    # The table is searched by key.
    order_M = key_M.argsort()
    return NGrams(spec.order, vocab, key_M[order_M], follower_MK[order_M], chance_MK[order_M])


def count_every_continuation(
    samples: Sequence[TrainingSample], order: int, vocab: TokenVocabulary
) -> NgramCounts:
    """Count each token behind each context of 1 to `order` tokens, as often as it stands there.

    Args:
        samples: Texts as answers; prompts are contexts, too.
        order: Tokens of the longest context.
        vocab: The target's vocabulary.

    Returns:
        All counts.
    """
    next_N, _, context_NO = _positions(samples, order)
    keys: list[np.ndarray] = []
    tokens: list[np.ndarray] = []
    key_N = np.zeros(len(next_N), np.uint64)
    known_N = np.ones(len(next_N), bool)
    for n in range(order):
        known_N &= context_NO[:, n] >= 0
        key_N = _longer(key_N, context_NO[:, n])
        keys.append(key_N[known_N])
        tokens.append(next_N[known_N])
    # Keys of all lengths stand in one table: a hash of 64 bits hardly ever meets another.
    key_Q = np.concatenate(keys)
    token_Q = np.concatenate(tokens)
    order_Q = np.lexsort((token_Q, key_Q))
    key_Q = key_Q[order_Q]
    token_Q = token_Q[order_Q]
    # Equal pairs stand together: where one begins, and how long it is.
    first_Q = np.ones(len(key_Q), bool)
    first_Q[1:] = (key_Q[1:] != key_Q[:-1]) | (token_Q[1:] != token_Q[:-1])
    at_P = np.flatnonzero(first_Q)
    count_P = np.diff(np.append(at_P, len(key_Q)))
    key_P = key_Q[at_P]
    token_P = token_Q[at_P]
    # Within a context the most frequent first, then by token id.
    order_P = np.lexsort((token_P, -count_P, key_P))
    key_M, start_M = np.unique(key_P[order_P], return_index=True)
    return NgramCounts(order, vocab, key_M, start_M, token_P[order_P], count_P[order_P])


def _positions(
    samples: Sequence[TrainingSample], order: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each token of an answer: the token, the answer's number, and the tokens before it.

    These are `order` tokens, nearest first; -1: none.
    """
    tokens = list[np.ndarray]()
    answers = list[np.ndarray]()
    contexts = list[np.ndarray]()
    for i, s in enumerate(samples):
        # -1 stands before the text, where there is no token.
        ids = np.array([*[-1] * order, *s.prompt_ids[-order:], *s.output_ids])
        at = np.arange(len(ids) - len(s.output_ids), len(ids))
        tokens.append(ids[at])
        answers.append(np.full(len(at), i))
        # [n, order]: the tokens before each, nearest first.
        contexts.append(ids[at[:, None] - np.arange(1, order + 1)])
    return np.concatenate(tokens), np.concatenate(answers), np.concatenate(contexts)


def _longer(key_N: np.ndarray, token_N: np.ndarray) -> np.ndarray:
    """The key of a context with one more token before it, for many at once.

    The hash is that of models/learned/kinds/ngrams.py.
    """
    # One more than the token, so that token 0 changes the key, too; products wrap at 64 bits.
    mixed = (key_N ^ (token_N + 1).astype(np.uint64)) * np.uint64(MIX)
    return mixed ^ mixed >> np.uint64(29)


@dataclass(frozen=True)
class _ContextCountLevel:
    """The counts of contexts of one length.

    Attributes:
        pair_P: Keys of pairs (context, next token), ascending.
        key_P: Key of each pair's context.
        token_P: The next token of each pair.
        chance_P: Its probability after that context.
        key_M: Keys of the contexts, ascending.
        answers_M: Number of answers that each context stands in.
    """

    pair_P: np.ndarray
    key_P: np.ndarray
    token_P: np.ndarray
    chance_P: np.ndarray
    key_M: np.ndarray
    answers_M: np.ndarray

    @staticmethod
    def of_empty_context(next_N: np.ndarray, answer_N: np.ndarray) -> _ContextCountLevel:
        """The level of the empty context.

        Args:
            next_N: Tokens of all answers.
            answer_N: The answer of each.

        Returns:
            Relative frequencies, counted once an answer.
        """
        nothing = np.zeros(len(next_N), np.uint64)
        # Nothing is below the empty context: no mass is taken from it, and none is passed down.
        uniform = _ContextCountLevel(*[np.zeros(0, np.uint64)] * 6)
        return _ContextCountLevel.of_counts(nothing, nothing, next_N, answer_N, uniform, 0.0)

    @staticmethod
    def of_counts(
        key_N: np.ndarray,
        before_N: np.ndarray,
        next_N: np.ndarray,
        answer_N: np.ndarray,
        lower: _ContextCountLevel,
        discount: float,
    ) -> _ContextCountLevel:
        """Count one length of contexts, and mix it with the shorter one.

        Args:
            key_N: Key of the context at each position.
            before_N: Key of the context without its farthest token.
            next_N: The token at each position.
            answer_N: The answer of each position.
            lower: The level of contexts that are one token shorter.
            discount: Mass taken from each pair's count, 0 to 1.

        Returns:
            The level.
        """
        # A context may stand many times in one answer: each answer counts once, or a loop would
        # rule the table.
        once_N = np.unique(
            np.stack([_longer(key_N, next_N), answer_N.astype(np.uint64)]),
            axis=1,
            return_index=True,
        )[1]
        # So often the pair was seen, once for each answer.
        pair_P, first_P, count_P = np.unique(
            _longer(key_N, next_N)[once_N], return_index=True, return_counts=True
        )
        first_P = once_N[first_P]
        key_P = key_N[first_P]
        token_P = next_N[first_P]
        # Pairs of one context stand together: their sum and their number of kinds are what the
        # discount needs.
        key_M, of_P = np.unique(key_P, return_inverse=True)
        total_M = np.bincount(of_P, count_P)
        kinds_M = np.bincount(of_P)
        # (count - D) / total, and D x kinds / total goes to the shorter context.
        chance_P = (count_P - discount) / total_M[of_P]
        if len(lower.pair_P):
            # Each pair is there with the shorter context, too, as that stood at the same place.
            below_P = np.searchsorted(lower.pair_P, _longer(before_N[first_P], token_P))
            chance_P += discount * kinds_M[of_P] / total_M[of_P] * lower.chance_P[below_P]
        # One entry for each (context, answer).
        at_Q = np.unique(np.stack([key_N, answer_N.astype(np.uint64)]), axis=1)[0]
        return _ContextCountLevel(
            pair_P,
            key_P,
            token_P,
            chance_P,
            key_M,
            np.bincount(np.searchsorted(key_M, at_Q), minlength=len(key_M)),
        )

    def likeliest_tokens(self, top: int, least: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The likeliest next tokens of contexts that stand in enough answers.

        Args:
            top: Next tokens of a context, K.
            least: Least number of answers.

        Returns:
            Keys, next tokens (LAST where there are fewer than K), and their probabilities in
            255ths.
        """
        at_P = np.searchsorted(self.key_M, self.key_P)
        # By context, then by falling probability, then by token id, so that ties do not depend on
        # the input's order.
        order_P = np.lexsort((self.token_P, -self.chance_P, at_P))
        at_P = at_P[order_P]
        # The rank of a pair within its context: its place minus that of the first of the context.
        rank_P = np.arange(len(at_P)) - np.searchsorted(at_P, at_P)
        some_P = rank_P < top
        follower_MK = np.full((len(self.key_M), top), LAST, np.uint16)
        chance_MK = np.zeros((len(self.key_M), top), np.uint8)
        follower_MK[at_P[some_P], rank_P[some_P]] = self.token_P[order_P][some_P]
        chance_MK[at_P[some_P], rank_P[some_P]] = np.rint(255 * self.chance_P[order_P][some_P])
        # Rare contexts are dropped last, since longer ones were mixed with their chances.
        enough_M = self.answers_M >= least
        return self.key_M[enough_M], follower_MK[enough_M], chance_MK[enough_M]


def measure_ngram_guesses(table: NGrams, samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Measure how often the table's likeliest token is right, on greedy answers without a penalty.

    Args:
        table: The table.
        samples: Held-out prompts with the target's answers.

    Returns:
        `tokens`: tokens that were looked at; `right`: share where the first choice was right;
        `sure`: share where it had a probability of a half or more; `sure_and_right`: share of these
        that were right.
    """
    guesses = list[tuple[float, bool]]()
    for s in samples:
        # Only greedy answers say which token was the right one.
        if s.temperature == 0.0 and s.penalty == 1.0:
            text = [*s.prompt_ids, *s.output_ids]
            for i in range(len(s.prompt_ids), len(text)):
                best = table.followers_of(text[max(0, i - table.order) : i])
                guesses.append((best[0][0], best[0][1] == text[i]) if best else (0.0, False))
    # Guesses that are at least as likely as not are what a drafter would use.
    sure = [right for p, right in guesses if p >= 0.5]
    return {
        "tokens": len(guesses),
        "right": round(sum(r for _, r in guesses) / max(len(guesses), 1), 4),
        "sure": round(len(sure) / max(len(guesses), 1), 4),
        "sure_and_right": round(sum(sure) / max(len(sure), 1), 4),
    }
