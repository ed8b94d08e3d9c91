"""Five tasks of writing, of word lists and templates of ours, in the place of ParallelBench's.

Source: ParallelBench (Kang et al., 2025) has words to a sentence, paraphrases and summaries there,
of published texts, judged by a language model and a grammar checker. Here sentences and
conversations are made of slots whose synonyms are known, so that it can be counted what of a
meaning is kept. So the tasks have names of their own: their scores are not the paper's.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from math import exp, log

from polydec.lab.bench.problem import BenchProblem

THEMES = {
    "kitchen": ("oven", "spoon", "bread", "butter", "kettle", "plate", "recipe", "sugar"),
    "sea": ("sailor", "harbour", "wave", "island", "anchor", "whale", "storm", "beach"),
    "school": ("teacher", "pupil", "lesson", "pencil", "library", "exam", "chalk", "desk"),
    "garden": ("flower", "spade", "tree", "seed", "fence", "gardener", "rose", "bench"),
    "city": ("tram", "street", "museum", "bridge", "crowd", "tower", "market", "taxi"),
    "winter": ("snow", "scarf", "ice", "sledge", "fireplace", "glove", "frost", "skate"),
}
"""Words that often stand together."""

MIXED = {"easy": (4,), "medium": (2, 2), "hard": (1, 1, 1, 1)}
"""Of how many themes a set of words is, and how many words of each."""

SLOTS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("old", "elderly", "aged"), ("young", "youthful"), ("tired", "weary", "exhausted")),
    (("doctor", "physician"), ("teacher", "instructor", "tutor"), ("child", "kid", "youngster")),
    (("bought", "purchased", "acquired"), ("repaired", "fixed", "mended"), ("hid", "concealed")),
    (("big", "large", "huge"), ("small", "little", "tiny"), ("beautiful", "pretty", "lovely")),
    (("car", "automobile", "vehicle"), ("house", "home"), ("picture", "painting", "image")),
    (("quickly", "fast", "rapidly"), ("yesterday", "a day ago"), ("secretly", "in secret")),
)
"""What stands in each place of a sentence: one of several meanings, each of several words."""

NAMES = ("Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
THINGS = ("cake", "guitar", "camera", "tent", "ladder", "bicycle")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday", "Saturday", "Sunday")
PLACES = ("station", "park", "library", "harbour", "museum", "school")


def given_words_problem(level: str, seed: int, number: int) -> BenchProblem:
    """Make a problem: one sentence that holds four given words. Whether it is grammatical is not
    judged.

    Args:
        level: A key of `MIXED`: "easy" for words of one theme, "medium" of two, "hard" of four.
        seed: Names the randomness.
        number: Number of the problem under this seed.

    Returns:
        The problem, right where every word stands in the answer.
    """
    r = random.Random(f"parallelbench words {level} {seed} {number}")
    counts = MIXED[level]
    # The more themes, the less the words suggest each other.
    words = [
        w
        for theme, count in zip(r.sample(sorted(THEMES), len(counts)), counts, strict=True)
        for w in r.sample(THEMES[theme], count)
    ]
    r.shuffle(words)

    def is_right(answer: str) -> bool:
        words_used = lower_case_words(answer)
        return all(w in words_used for w in words)

    return BenchProblem(
        f"given_words_{level}",
        f"Write one sentence with these words: {', '.join(words)}.",
        is_right,
        # As asked: the answer ends like a sentence.
        lambda answer: is_right(answer) and answer.strip().endswith("."),
    )


def synonyms_problem(seed: int, number: int) -> BenchProblem:
    """Make a problem: say a sentence in other words.

    An answer scores the share of the six meanings that it still has, times one less its BLEU
    against the sentence: nothing for a copy, nothing for a sentence about something else.

    Args:
        seed: Names the randomness.
        number: Number of the problem under this seed.

    Returns:
        The problem.
    """
    r = random.Random(f"parallelbench paraphrase {seed} {number}")
    meanings = [r.choice(place) for place in SLOTS]
    a, b, c, d, e, f = (words[0] for words in meanings)
    source = f"The {a} {b} {c} the {d} {e} {f}."

    def is_right(answer: str) -> float:
        # Spaces on both sides, so that a meaning of several words matches at word boundaries only.
        spaced = f" {' '.join(lower_case_words(answer))} "
        # A meaning counts once, by any of its words.
        kept = sum(any(f" {w} " in spaced for w in words) for words in meanings)
        return (
            kept
            / len(meanings)
            * (1 - bleu_score(lower_case_words(answer), lower_case_words(source)))
        )

    return BenchProblem(
        "template_synonyms",
        f"Say this in other words. Answer with one sentence alone.\n{source}",
        is_right,
        lambda answer: is_right(answer) if answer.strip().count(".") == 1 else 0.0,
    )


def agreement_problem(seed: int, number: int) -> BenchProblem:
    """Make a problem: sum up a conversation in one sentence.

    An answer scores its ROUGE-L against a sentence that holds all facts.

    Args:
        seed: Names the randomness.
        number: Number of the problem under this seed.

    Returns:
        The problem.
    """
    r = random.Random(f"parallelbench summary {seed} {number}")
    (a, b), thing, day, place = (
        r.sample(NAMES, 2),
        r.choice(THINGS),
        r.choice(DAYS),
        r.choice(PLACES),
    )
    talk = (
        f"{a}: Hi {b}, may I borrow your {thing}?\n{b}: Sure. When do you need it?\n{a}: On {day}.\n"
        f"{b}: Fine, let us meet at the {place} then."
    )
    told = f"{b} will lend {a} a {thing} at the {place} on {day}."

    # The overlap with the one sentence that says it all.
    def is_right(answer: str) -> float:
        return rouge_l(lower_case_words(answer), lower_case_words(told))

    return BenchProblem(
        "template_agreement",
        f"Tell in one sentence what these two agree on. Answer with the sentence alone.\n\n{talk}",
        is_right,
        lambda answer: is_right(answer) if answer.strip().count(".") == 1 else 0.0,
    )


def lower_case_words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", text.lower())


def bleu_score(written: Sequence[str], meant: Sequence[str], most: int = 4) -> float:
    """BLEU of one sentence against another.

    The geometric mean of the n-gram precisions, times the brevity penalty. From n = 2 on one is
    added to both counts of a precision, so that a single sentence without four matching words in a
    row does not score 0.

    Args:
        written: Words of the sentence that is judged.
        meant: Words of the reference.
        most: The longest n-gram; shorter sentences use as many words as they have. Default 4.

    Returns:
        The score, 0 to 1.
    """
    total = 0.0
    longest = min(most, len(written))
    if not longest:
        return 0.0
    for n in range(1, longest + 1):
        mine, theirs = (
            Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            for words in (written, meant)
        )
        more = int(n > 1)
        hits = sum((mine & theirs).values()) + more
        if not hits:
            return 0.0
        # The weighted log precision; `&` above clips each n-gram's count to the reference's.
        total += log(hits / (sum(mine.values()) + more)) / longest
    return min(1.0, exp(1 - len(meant) / len(written))) * exp(total)


def rouge_l(written: Sequence[str], meant: Sequence[str]) -> float:
    """ROUGE-L of one sentence against another.

    The harmonic mean of precision and recall of their longest common subsequence.

    Args:
        written: Words of the sentence that is judged.
        meant: Words of the reference.

    Returns:
        The score, 0 to 1.
    """
    # row[j]: length of the longest common subsequence of the words so far and of meant[:j].
    row = [0] * (len(meant) + 1)
    for x in written:
        before = row[:]
        for j, y in enumerate(meant, 1):
            if x == y:
                # The usual recurrence, one row at a time.
                row[j] = before[j - 1] + 1
            else:
                row[j] = max(row[j - 1], before[j])
    if row[-1]:
        # 2PR / (P + R) with P = L / |written| and R = L / |meant|.
        return 2 * row[-1] / (len(written) + len(meant))
    return 0.0
