"""The fields of sampling, as the rules of this folder declare them. Made by `python docs/keywords.py`; do not edit.

An editor reads them here, and so does whoever must not load what computes, as a list of flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

from polydec.base.options import (
    AtLeast,
    AtMost,
    EntryCount,
    GreaterThan,
    InRange,
    LessThan,
    ValueNote,
)


@dataclass(frozen=True, kw_only=True)
class SamplingFields:
    """The attributes of `Sampling`: type, range, default and help."""

    allowed_token_ids: Annotated[
        tuple[int, ...] | None,
        AtLeast(0),
        EntryCount(1, 1000000),
        ValueNote("none allows all"),
        "no other tokens than these",
    ] = None
    bad_token_ids: Annotated[tuple[int, ...], AtLeast(0), "never any of these tokens"] = ()
    min_tokens: Annotated[int, AtLeast(0), "no EOS, stop id or stop text before so many tokens"] = 0
    logit_bias: Annotated[
        Mapping[int, float] | None,
        InRange(-100, 100),
        ValueNote("bad_token_ids bans a token"),
        "added to the logits of tokens",
    ] = None
    reflex_amplitude: Annotated[
        float,
        InRange(-100, 100),
        ValueNote("0 changes nothing, 5 is published"),
        "CyclicReflex: what is added at most to the logits of words of reflection",
    ] = 0.0
    reflex_period: Annotated[int, AtLeast(1), "CyclicReflex: tokens of a period"] = 1200
    reflex_shift: Annotated[
        float, InRange(0, 1), "CyclicReflex: where in the period an answer begins"
    ] = 0.0
    reflex_until: Annotated[
        int, AtLeast(0), "CyclicReflex: tokens of the answer behind which nothing is added"
    ] = 8192
    reflex_token_ids: Annotated[
        tuple[int, ...] | None,
        AtLeast(0),
        ValueNote("none: wait, but and alternatively, as the tokenizer spells them"),
        "CyclicReflex: the words of reflection",
    ] = None
    reflex_end_ids: Annotated[
        tuple[int, ...] | None,
        AtLeast(0),
        ValueNote("none: whatever spells </think>, one token or several"),
        "CyclicReflex: tokens behind which the model no longer thinks",
    ] = None
    repetition_penalty: Annotated[
        float,
        InRange(0.001, 1000),
        ValueNote("1 changes nothing"),
        "positive logits of tokens in the text are divided by it, others multiplied",
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        InRange(-2, 2),
        ValueNote("0 changes nothing"),
        "taken off the logit of a token for each time that it stands in the answer so far",
    ] = 0.0
    presence_penalty: Annotated[
        float,
        InRange(-2, 2),
        ValueNote("0 changes nothing"),
        "taken off the logit of every token of the answer so far",
    ] = 0.0
    no_repeat_ngram_size: Annotated[
        int,
        AtLeast(0),
        ValueNote("0 allows every n-gram"),
        "no n-gram of this length twice, prompt included",
    ] = 0
    dry_multiplier: Annotated[
        float,
        AtLeast(0),
        ValueNote("0 changes nothing"),
        "DRY: taken off the logit of a token that goes on with the shortest repetition that counts",
    ] = 0.0
    dry_base: Annotated[
        float, AtLeast(1), "DRY: factor of the penalty for each token that the repetition is longer"
    ] = 1.75
    dry_allowed_length: Annotated[
        int, AtLeast(1), "DRY: length of the shortest repetition that counts"
    ] = 2
    dry_penalty_last_n: Annotated[
        int, AtLeast(-1), ValueNote("-1 looks at the whole text"), "DRY: last tokens looked at"
    ] = -1
    dry_sequence_breakers: Annotated[
        tuple[int, ...], AtLeast(0), "DRY: a repetition does not reach across these tokens"
    ] = ()
    temperature: Annotated[
        float,
        InRange(0, 1000000),
        ValueNote("0 is greedy"),
        "below 1 sharper, above flatter; greedy below 0.00001",
    ] = 1.0
    anneal_start: Annotated[
        float,
        InRange(0, 1000),
        ValueNote("0 changes nothing, 1.2 is published"),
        "annealing: the temperature with which an answer begins",
    ] = 0.0
    anneal_end: Annotated[
        float, InRange(1e-05, 1000), "annealing: the temperature below which it never falls"
    ] = 0.1
    anneal_scale: Annotated[
        float,
        GreaterThan(0),
        ValueNote("it falls by e - 1 in that time"),
        "annealing: tokens that the fall takes",
    ] = 500.0
    anneal_warmup: Annotated[
        int, AtLeast(0), "annealing: first tokens, which have temperature 1"
    ] = 10
    momentum_alpha: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 changes nothing, 0.2 is published"),
        "momentum: probability that each token of a repeated run costs",
    ] = 0.0
    momentum_top_k: Annotated[
        int, AtLeast(1), "momentum: how many of the likeliest tokens are looked at"
    ] = 5
    momentum_longest: Annotated[
        int, InRange(1, 64), "momentum: longest repeated run that is told from longer ones"
    ] = 5
    min_p: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 keeps every token"),
        "keep tokens at least this fraction as likely as the likeliest",
    ] = 0.0
    top_k: Annotated[
        int,
        AtLeast(-1),
        ValueNote("0 or -1 keeps every token"),
        "keep so many of the likeliest tokens",
    ] = 0
    top_p: Annotated[
        float,
        GreaterThan(0),
        AtMost(1),
        ValueNote("1 keeps every token"),
        "keep the fewest likeliest tokens that have this mass together",
    ] = 1.0
    top_w: Annotated[
        float,
        InRange(0, 100),
        ValueNote("0 keeps every token, 2.8 is published"),
        "Top-W: what the logarithm of the kept mass is worth",
    ] = 0.0
    top_w_entropy: Annotated[
        float, InRange(0, 100), "Top-W: what the entropy of the kept tokens costs"
    ] = 2.2
    top_w_scale: Annotated[
        float,
        InRange(0, 100),
        ValueNote("0 looks at probabilities only"),
        "Top-W: what the way from a token to the nearest kept one costs",
    ] = 0.6
    top_w_pool: Annotated[int, AtLeast(1), "Top-W: how many of the likeliest tokens may stay"] = (
        1200
    )
    typical_p: Annotated[
        float,
        GreaterThan(0),
        AtMost(1),
        ValueNote("1 keeps every token"),
        "keep tokens of about the expected surprise until they have this mass together",
    ] = 1.0
    epsilon_cutoff: Annotated[
        float,
        AtLeast(0),
        LessThan(1),
        ValueNote("0 keeps every token"),
        "keep tokens of at least this probability",
    ] = 0.0
    eta_cutoff: Annotated[
        float,
        AtLeast(0),
        LessThan(1),
        ValueNote("0 keeps every token"),
        "keep tokens of at least this probability, or less where the law is flat",
    ] = 0.0
    top_n_sigma: Annotated[
        float,
        ValueNote("0 or less keeps every token"),
        "keep logits within so many standard deviations of the largest",
    ] = 0.0
    xtc_probability: Annotated[
        float,
        InRange(0, 1),
        ValueNote("0 changes nothing"),
        "chance at each position that the likely tokens go, but the least likely of them",
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        InRange(0, 1),
        ValueNote("above 0.5 nothing can go"),
        "from this probability on XTC takes a token for likely",
    ] = 0.1
    watermark_bias: Annotated[
        float,
        InRange(0, 100),
        ValueNote("0 changes nothing, 2 is usual"),
        "watermark: added to the logits of green tokens",
    ] = 0.0
    watermark_share: Annotated[
        float, GreaterThan(0), LessThan(1), "watermark: how much of the vocabulary is green"
    ] = 0.25
    watermark_key: Annotated[
        int, AtLeast(0), "watermark: the secret that says which tokens are green"
    ] = 0


class SamplingKeywords(TypedDict, total=False):
    """What `Sampling` takes by name."""

    allowed_token_ids: Sequence[int] | None
    bad_token_ids: Sequence[int]
    min_tokens: int
    logit_bias: Mapping[int, float] | None
    reflex_amplitude: float
    reflex_period: int
    reflex_shift: float
    reflex_until: int
    reflex_token_ids: Sequence[int] | None
    reflex_end_ids: Sequence[int] | None
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    no_repeat_ngram_size: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[int]
    temperature: float
    anneal_start: float
    anneal_end: float
    anneal_scale: float
    anneal_warmup: int
    momentum_alpha: float
    momentum_top_k: int
    momentum_longest: int
    min_p: float
    top_k: int
    top_p: float
    top_w: float
    top_w_entropy: float
    top_w_scale: float
    top_w_pool: int
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    watermark_bias: float
    watermark_share: float
    watermark_key: int
