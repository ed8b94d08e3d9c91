"""Sampling parameters under the names that people know, and the shapers that they mean."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from polydec.core.protocols import Shaper
from polydec.core.rng import Rng
from polydec.shapers.allowed import Allowed
from polydec.shapers.banned import Banned
from polydec.shapers.dry import Dry
from polydec.shapers.epsilon import Epsilon
from polydec.shapers.eta import Eta
from polydec.shapers.frequency import Frequency
from polydec.shapers.greedy import Greedy
from polydec.shapers.logit_bias import LogitBias
from polydec.shapers.min_p import MinP
from polydec.shapers.min_tokens import MinTokens
from polydec.shapers.no_repeat_ngram import NoRepeatNgram
from polydec.shapers.presence import Presence
from polydec.shapers.repetition import Repetition
from polydec.shapers.temperature import Temperature
from polydec.shapers.top_k import TopK
from polydec.shapers.top_n_sigma import TopNSigma
from polydec.shapers.top_p import TopP
from polydec.shapers.typical import Typical
from polydec.shapers.xtc import Xtc

GREEDY_BELOW = 1e-5

_EDITS = ("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty", "no_repeat_ngram_size", "dry")
_MASKS = ("bad_token_ids", "min_tokens", "allowed_token_ids")
_REST = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "xtc")

# The order of each engine. Rules that an engine lacks stand behind their own kind.
ORDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "transformers": ("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty", "dry", "no_repeat_ngram_size",
                     *_MASKS, "temperature", "top_k", "top_p", "min_p", *_REST),
    "vllm": ("allowed_token_ids", "bad_token_ids", "min_tokens", *_EDITS, "temperature", "min_p", "top_k", "top_p", *_REST),
    "llamacpp": (*_MASKS, *_EDITS, "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "epsilon_cutoff", "eta_cutoff",
                 "xtc", "temperature"),
})


@dataclass(frozen=True)
class Sampling:
    """How to sample; every default is neutral. Names are vLLM's, then transformers', then llama.cpp's.

    temperature: 0 or more, below 1e-5 greedy; top_k: 0 or -1 off; top_p and typical_p: above 0, at most 1 (off); min_p:
    0 (off) to 1; epsilon_cutoff and eta_cutoff: 0 (off) to 1, 1 left out; top_n_sigma: 0 or less off;
    repetition_penalty: above 0, 1 off; presence_penalty and frequency_penalty: -2 to 2, 0 off; no_repeat_ngram_size:
    0 off; dry_multiplier: 0 off, dry_base at least 1, dry_allowed_length at least 1, dry_penalty_last_n: tokens looked
    at, -1 all, dry_sequence_breakers: token ids; xtc_probability: 0 (off) to 1, xtc_threshold: 0 to 1 (above 0.5 off);
    logit_bias: {token id: -100 to 100}; allowed_token_ids: None (all) or at least one; bad_token_ids: never written;
    min_tokens: no EOS or stop id before so many.

    Raises ValueError naming the field, its value and the legal range.
    """
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[int, ...] = ()
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        for name, legal, range_ in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}: it must be a number, {range_}")
            if not legal(value) or (name in _WHOLE and value != int(value)):
                raise ValueError(f"{name} is {value}: it must be {'a whole number, ' if name in _WHOLE else ''}{range_}")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids is empty: at least one token must be allowed (None allows all)")
        left = set(self.allowed_token_ids or ()) - set(self.bad_token_ids)
        if self.allowed_token_ids is not None and not left:
            raise ValueError("bad_token_ids bans every one of allowed_token_ids: at least one token must be left")
        for token, b in (self.logit_bias or {}).items():
            if not -100.0 <= b <= 100.0:
                raise ValueError(f"logit_bias of token {token} is {b}: it must lie in -100 to 100 (bad_token_ids bans a token)")
        for name, tokens in self._ids():
            low = min(tokens, default=0)
            if low < 0:
                raise ValueError(f"{name} has token {low}: ids are at least 0")

    def _ids(self) -> Iterable[tuple[str, Iterable[int]]]:
        yield "logit_bias", tuple(self.logit_bias or ())
        yield "allowed_token_ids", self.allowed_token_ids or ()
        yield "bad_token_ids", self.bad_token_ids
        yield "dry_sequence_breakers", self.dry_sequence_breakers

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def anywhere(self) -> Sampling:
        """The same without the fields that name token ids or count tokens: what can be asked of another tokenizer."""
        return replace(self, logit_bias=None, allowed_token_ids=None, bad_token_ids=(), dry_sequence_breakers=(), min_tokens=0)

    def check(self, size: int) -> None:
        """Raise ValueError where an id lies outside a vocabulary of `size` tokens, or no token is left of it."""
        for name, tokens in self._ids():
            high = max(tokens, default=0)
            if high >= size:
                raise ValueError(f"{name} has token {high}: the vocabulary ends at {size - 1}")
        if len(set(self.bad_token_ids)) == size:
            raise ValueError(f"bad_token_ids bans all {size} tokens of the vocabulary: at least one must be left")


_WHOLE = ("top_k", "no_repeat_ngram_size", "dry_allowed_length", "dry_penalty_last_n", "min_tokens")
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda x: 0.0 <= x < math.inf, "at least 0 and finite (0 is greedy)"),
    ("top_k", lambda x: x >= -1, "at least 1, or 0 or -1 to keep every token"),
    ("top_p", lambda x: 0.0 < x <= 1.0, "above 0 and at most 1 (1 keeps every token)"),
    ("min_p", lambda x: 0.0 <= x <= 1.0, "in 0 to 1 (0 keeps every token)"),
    ("typical_p", lambda x: 0.0 < x <= 1.0, "above 0 and at most 1 (1 keeps every token)"),
    ("epsilon_cutoff", lambda x: 0.0 <= x < 1.0, "at least 0 and below 1 (0 keeps every token)"),
    ("eta_cutoff", lambda x: 0.0 <= x < 1.0, "at least 0 and below 1 (0 keeps every token)"),
    ("top_n_sigma", lambda x: not math.isnan(x), "above 0, or at most 0 to keep every token"),
    ("repetition_penalty", lambda x: 0.0 < x < math.inf, "above 0 and finite (1 changes nothing)"),
    ("presence_penalty", lambda x: -2.0 <= x <= 2.0, "in -2 to 2 (0 changes nothing)"),
    ("frequency_penalty", lambda x: -2.0 <= x <= 2.0, "in -2 to 2 (0 changes nothing)"),
    ("no_repeat_ngram_size", lambda x: x >= 0, "at least 1, or 0 to allow every n-gram"),
    ("dry_multiplier", lambda x: 0.0 <= x < math.inf, "at least 0 and finite (0 changes nothing)"),
    ("dry_base", lambda x: 1.0 <= x < math.inf, "at least 1 and finite"),
    ("dry_allowed_length", lambda x: x >= 1, "at least 1"),
    ("dry_penalty_last_n", lambda x: x >= -1, "at least 0, or -1 for the whole text"),
    ("xtc_probability", lambda x: 0.0 <= x <= 1.0, "in 0 to 1 (0 changes nothing)"),
    ("xtc_threshold", lambda x: 0.0 <= x <= 1.0, "in 0 to 1"),
    ("min_tokens", lambda x: x >= 0, "at least 0"),
)


@dataclass(frozen=True)
class _Ends:
    eos: tuple[int, ...]
    ends: tuple[int, ...]
    rng: Rng


# Of each rule its shaper, or None where it is neutral.
_BUILD: Mapping[str, Callable[[Sampling, _Ends], Shaper[Any] | None]] = MappingProxyType({
    "temperature": lambda s, e: Greedy() if s.greedy else Temperature(s.temperature) if s.temperature != 1.0 else None,
    "top_k": lambda s, e: TopK(int(s.top_k)) if s.top_k > 0 else None,
    "top_p": lambda s, e: TopP(s.top_p) if s.top_p < 1.0 else None,
    "min_p": lambda s, e: MinP(s.min_p) if s.min_p else None,
    "typical_p": lambda s, e: Typical(s.typical_p) if s.typical_p < 1.0 else None,
    "epsilon_cutoff": lambda s, e: Epsilon(s.epsilon_cutoff) if s.epsilon_cutoff else None,
    "eta_cutoff": lambda s, e: Eta(s.eta_cutoff) if s.eta_cutoff else None,
    "top_n_sigma": lambda s, e: TopNSigma(s.top_n_sigma) if 0.0 < s.top_n_sigma < math.inf else None,
    "xtc": lambda s, e: (Xtc(s.xtc_probability, s.xtc_threshold, e.rng)
                         if s.xtc_probability and s.xtc_threshold <= 0.5 else None),
    "repetition_penalty": lambda s, e: Repetition(s.repetition_penalty) if s.repetition_penalty != 1.0 else None,
    "presence_penalty": lambda s, e: Presence(s.presence_penalty) if s.presence_penalty else None,
    "frequency_penalty": lambda s, e: Frequency(s.frequency_penalty) if s.frequency_penalty else None,
    "no_repeat_ngram_size": lambda s, e: NoRepeatNgram(int(s.no_repeat_ngram_size), e.eos) if s.no_repeat_ngram_size else None,
    "dry": lambda s, e: Dry(s.dry_multiplier, s.dry_base, int(s.dry_allowed_length),
                            None if s.dry_penalty_last_n < 0 else int(s.dry_penalty_last_n),
                            tuple(s.dry_sequence_breakers)) if s.dry_multiplier else None,
    "logit_bias": lambda s, e: LogitBias(s.logit_bias) if s.logit_bias else None,
    "allowed_token_ids": lambda s, e: None if s.allowed_token_ids is None else Allowed(tuple(s.allowed_token_ids), e.eos),
    "bad_token_ids": lambda s, e: Banned(tuple(s.bad_token_ids), e.eos) if s.bad_token_ids else None,
    "min_tokens": lambda s, e: MinTokens(int(s.min_tokens), e.ends) if s.min_tokens and e.ends else None,
})


def build_shapers(sampling: Sampling, *, order: str | Sequence[str] = "vllm", eos: Iterable[int] = (),
                  stop_ids: Iterable[int] = (), seed: int = 0, choice: int = 0) -> tuple[Shaper[Any], ...]:
    """The shapers of `sampling` in the order of an engine ("transformers", "vllm", "llamacpp"), or in an order written out
    (the rules of ORDERS, each once, those that are off may be left out). Neutral rules are left out.

    Greedy (temperature below 1e-5) is the limit of the temperature where it stands: what comes after it, and what cannot
    move the argmax, is dropped, but penalties, bias and masks always act; Greedy is the last. So a typical or XTC rule
    acts on a greedy text in llama.cpp's order only, where the temperature comes last.

    `eos` and `stop_ids` are what min_tokens holds back; `seed` and `choice` give XTC its coins.
    Only the order is the engine's: penalties look at the whole text also where llama.cpp looks at 64 tokens.
    Raises ValueError for an order that is unknown or lacks a rule that is on.
    """
    if isinstance(order, str):
        if order not in ORDERS:
            near = get_close_matches(order, ORDERS, 1, 0.0)[0]
            raise ValueError(f"order is {order!r}: it must be one of {', '.join(ORDERS)} (nearest: {near})")
        order = ORDERS[order]
    bad = next((x for x in order if x not in _BUILD), None)
    if bad is not None or len(set(order)) != len(order):
        raise ValueError(f"order has {bad!r}: its rules are {', '.join(_BUILD)}" if bad is not None
                         else f"order is {', '.join(order)}: each rule may stand in it once")
    eos = tuple(sorted(eos))
    context = _Ends(eos, tuple(sorted({*eos, *stop_ids})), Rng.of(seed, choice))
    made = {name: make(sampling, context) for name, make in _BUILD.items()}
    lost = next((name for name, s in made.items() if s is not None and name not in order), None)
    if lost is not None:
        raise ValueError(f"order lacks {lost}, which is on: add it where it belongs")
    if not sampling.greedy:
        return tuple(s for name in order if (s := made[name]) is not None)
    at = order.index("temperature")
    acts = [name for i, name in enumerate(order) if name in _EDITS or name in _MASKS or i < at]
    return (*(s for name in acts if (s := made[name]) is not None and not s.keeps_argmax), Greedy())
