"""The law of bytes that a law of tokens makes: against sums over all sequences of tokens, under drafters, in its corners."""

import itertools
import math

import pytest
import torch

from polydec.base.errors import PolydecError
from polydec.core.decoder import answer_one
from polydec.core.law import float64_probabilities
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords
from polydec.laws.contrasts.mixture import MixtureContrast
from polydec.laws.contrasts.product import ProductContrast
from polydec.laws.targets.by_bytes import ByBytesTarget
from polydec.laws.targets.contrast import ContrastTarget
from polydec.laws.targets.spelling import VocabularySpelling
from polydec.methods.speculative.drafters.jacobi import JacobiDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

ALL = 10**6
"""A width that is no limit here."""

PIECES = ("a", "b", "ab", "ba", "abb", "bb", "aa", "baab")
END = 256


class ByteWords:
    """Bytes, and one mark that ends a text."""

    pieces = (*(bytes([b]) for b in range(256)), None)

    def encode(self, text, special=True):
        return tuple(text.encode())

    def decode(self, ids):
        return bytes(i for i in ids if i < 256).decode(errors="replace")


WORDS = ByteWords()


def tokens(seed, pieces=PIECES, sharp=1.2):
    """A law over these pieces and an end."""
    n = len(pieces)
    words = ToyWords((*pieces, "$"), frozenset({n}))
    return CausalLaw(
        OrderTwoNetwork(seed, n + 1, sharp),
        TokenVocabulary(n + 1, frozenset({n}), words=words),
        chunk=2,
    )


def by_bytes(lm, width=ALL, **fields):
    end = min(lm.vocab.eos)
    given = {"ends": frozenset({0}), "start": (0,), "breaks": b"", **fields}
    return ByBytesTarget(lm, ((end,),), WORDS, width=width, **given)


class Brute:
    """Sums over all sequences of tokens."""

    def __init__(self, lm, start=(0,)):
        self.lm, self.start, self.known = lm, start, {}

    async def _row(self, text):
        if text not in self.known:
            session = self.lm.open_session(text)
            scores = await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
            self.known[text] = float64_probabilities(scores.logprob_row(0)).tolist()
            session.close()
        return self.known[text]

    def of(self, text, end=False, before=None):
        """The probability of all texts that begin with these bytes; end: of the one that ends there."""
        before = self.start if before is None else before
        pieces, p = self.lm.vocab.words.pieces, run_coroutines([self._row(before)])[0]
        if not text:
            return p[-1] if end else 1.0
        total = 0.0
        for i, piece in enumerate(pieces[:-1]):
            if piece.startswith(text) and len(piece) > len(text):
                total += 0.0 if end else p[i]
            elif text.startswith(piece):
                total += p[i] * self.of(text[len(piece) :], end, (*before, i))
        return total

    def row(self, text):
        whole = self.of(text)
        return [self.of(text + c) / whole for c in (b"a", b"b")] + [self.of(text, True) / whole]


def row_of(law, prompt):
    async def ask():
        session = law.open_session(prompt)
        scores = await session.score_draft(Draft.chain_draft(prompt[-1]), ScoreRequest())
        session.close()
        return scores

    return run_coroutines([ask()])[0]


def texts(most):
    return [bytes(t) for n in range(1, most + 1) for t in itertools.product(b"ab", repeat=n)]


@pytest.mark.parametrize("seed", range(3))
def test_without_a_limit_rows_are_sums_over_all_sequences(seed):
    lm = tokens(seed)
    law, brute = by_bytes(lm), Brute(lm)
    for text in texts(5):
        row_V = row_of(law, tuple(text)).logprob_row(0).exp()
        got = [float(row_V[x]) for x in (97, 98, END)]
        far = sum(abs(x - y) for x, y in zip(got, brute.row(text))) / 2
        assert far < 1e-12, text
        assert abs(float(row_V.sum()) - 1.0) < 1e-12


def test_weights_are_the_probability_of_the_text_so_far():
    lm = tokens(4)
    law, brute = by_bytes(lm), Brute(lm)
    for text in texts(4):
        weights_V = row_of(law, tuple(text)).log_weights(0)
        for symbol in (97, 98):
            want = math.log(brute.of(text + bytes([symbol])))
            assert float(weights_V[symbol]) == pytest.approx(want, abs=1e-9)


def test_a_width_leaves_the_tokenizers_own_spelling_and_errs_less_the_wider_it_is():
    far = dict.fromkeys((1, 2, 4, 8), 0.0)
    for seed in range(2):
        lm = tokens(seed)
        brute = Brute(lm)
        for text, width in itertools.product(texts(4), far):
            row_V = row_of(by_bytes(lm, width), tuple(text)).logprob_row(0).exp()
            got = [float(row_V[x]) for x in (97, 98, END)]
            far[width] += sum(abs(x - y) for x, y in zip(got, brute.row(text)))
    assert far[1] > far[2] > far[4] > far[8]


def canonical_row(lm, text, start):
    """The law of the next byte, summed over the sequences that the tokenizer writes: their bytes, encoded, give them back."""
    words, brute = lm.vocab.words, Brute(lm)

    def written(sequence):
        behind = sequence[len(start) :]
        return words.encode("".join(words.of[i] for i in behind)) == behind

    def of(text, end, before):
        p = run_coroutines([brute._row(before)])[0]
        if not text:
            return p[-1] if end else sum(p[i] for i in range(len(p) - 1) if written((*before, i)))
        total = 0.0
        for i, piece in enumerate(words.pieces[:-1]):
            if not written((*before, i)):
                continue
            if piece.startswith(text) and len(piece) > len(text):
                total += 0.0 if end else p[i]
            elif piece == text and not end:
                total += p[i]
            elif text.startswith(piece):
                total += p[i] * of(text[len(piece) :], end, (*before, i))
        return total

    mass = [of(text + c, False, start) for c in (b"a", b"b")] + [of(text, True, start)]
    return [x / sum(mass) for x in mass]


@pytest.mark.parametrize("seed", range(3))
def test_width_0_is_the_canonical_law(seed):
    """The published law: other sequences than the tokenizer's own are left out, of half-written tokens as well."""
    lm = tokens(seed)
    start = (min(lm.vocab.eos),)
    law, fast = by_bytes(lm, 0, start=start), by_bytes(lm, 1, start=start)
    apart = 0.0
    for text in texts(5):
        got, quick = (
            [float(row_of(each, tuple(text)).logprob_row(0).exp()[x]) for x in (97, 98, END)]
            for each in (law, fast)
        )
        want = canonical_row(lm, text, start)
        assert sum(abs(x - y) for x, y in zip(got, want)) / 2 < 1e-12, text
        apart = max(apart, sum(abs(x - y) for x, y in zip(quick, want)) / 2)
    assert apart > 0.05  # the fast mode is another law


def test_bytes_inside_of_a_character_are_canonical_until_it_is_complete():
    spelling = VocabularySpelling(_Characters((b"\xc3", b"\xa9", b"\xc3\xa9", b"a", None)), 5)
    assert spelling.is_canonical((3, 0)) and spelling.is_canonical((3, 2))
    assert not spelling.is_canonical((3, 0, 1))
    assert spelling.is_canonical((0, 1, 4, 3))  # a mark begins a text of its own


class _Characters:
    """A tokenizer that writes the longest pieces, one of which is half a character."""

    def __init__(self, pieces):
        self.pieces = pieces

    def encode(self, text, special=True):
        out, left = [], text.encode()
        while left:
            fit = [i for i, p in enumerate(self.pieces) if p is not None and left.startswith(p)]
            if not fit:
                raise PolydecError("no piece begins it")
            out.append(max(fit, key=lambda i: len(self.pieces[i])))
            left = left[len(self.pieces[out[-1]]) :]
        return tuple(out)


MANY = (
    *(chr(i) for i in range(50)),
    *(chr(i) + chr(i + 1) for i in range(0, 40, 4)),
    *("\0\0", "\x001", "\x001\0"),
)


@pytest.mark.parametrize("width", [ALL, 3, 1, 0])
def test_sessions_keep_the_contract(width):
    check_target(by_bytes(tokens(3, MANY), width, start=(5,)), prompt=(0, 1))


async def no_rows(checker):
    """The beginning of a prompt that stands for another is a text of its own."""


@pytest.mark.parametrize("width", [ALL, 2])
def test_sessions_whose_root_is_read_as_it_stands_keep_the_contract(width, monkeypatch):
    """A prompt that ends with a mark, and one that stands for another: nothing is added for the root, which is kept, forked,
    rewound and read anew all the same."""
    lm = tokens(3, MANY)
    marked = by_bytes(lm, width, start=(5,))
    assert marked.prompt_beginning((0, END))[2] and not marked.prompt_beginning((0, END, 1))[2]
    check_target(marked, prompt=(0, END))
    head = marked.fixed_beginning((7, 8))
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(by_bytes(lm, width, start=(5,), instead=((0, 1), head)), prompt=(0, 1))


async def row_behind(session, root):
    return (await session.score_draft(Draft.chain_draft(root), ScoreRequest())).logprob_row(0)


@pytest.mark.parametrize("prompt", [tuple(b"ab"), (97, END), (END,)])
def test_twins_that_commit_before_anything_is_scored(prompt):
    """Each reads what it was given itself, whoever is asked first."""
    law = by_bytes(tokens(3), 2)

    async def ask():
        first = law.open_session(prompt)
        twins = [first, first.fork(), first.fork()]
        for twin, text in zip(twins, (b"ab", b"", b"bba"), strict=True):
            twin.commit_tokens((prompt[-1], *text))
        twins.append(twins[2].fork())
        twins[2].commit_tokens(tuple(b"b"))
        rows = [await row_behind(twin, ord("a")) for twin in twins]
        for twin in twins:
            twin.close()
        return rows

    for row_V, text in zip(run_coroutines([ask()])[0], (b"ab", b"", b"bbab", b"bba"), strict=True):
        want = row_of(law, (*prompt, *text, ord("a"))).logprob_row(0)
        assert torch.allclose(row_V, want, atol=1e-9), text


@pytest.mark.parametrize("prompt", [tuple(b"ab"), (97, END), (END,)])
def test_what_is_kept_below_a_new_root_and_then_left(prompt):
    """The text goes on behind it as if the rest had never been: with the root scored anew, kept again, or unscored."""
    law, root = by_bytes(tokens(3), 2), prompt[-1]
    bush = Draft.certain_tree((root, 97, 98, 98, 97), (-1, 0, 0, 2, 3))

    def behind(text):
        return row_of(law, (*prompt, *text)).logprob_row(0)

    async def ask(new, text, again):
        session = law.open_session(prompt)
        await session.score_draft(bush, ScoreRequest())
        left = session.keep_nodes(sorted({new, *bush.path_to(4)} - {0} | {0}), new)
        if again:
            left = session.keep_nodes(range(len(left)), 0)
        twin = session.fork()
        rows = [
            (await row_behind(session, left.token[0]), text),
            (await row_behind(session, 98), (*text[:-1], 98)),
        ]
        twin.commit_tokens((left.token[0], 97))
        rows.append((await row_behind(twin, 98), (*text, 97, 98)))
        twin.rewind_tokens(1)
        rows.append((await row_behind(twin, 97), (*text, 97)))
        session.close()
        twin.close()
        return rows

    for new, again in itertools.product((2, 3, 4), (False, True)):
        text = tuple(bush.token[i] for i in bush.path_to(new))
        for row_V, want in run_coroutines([ask(new, text, again)])[0]:
            assert torch.allclose(row_V, behind(want), atol=1e-9), (new, again, want)


def test_a_prompt_is_cut_before_the_white_space_behind_its_last_word():
    """Behind a mark, or before a break that follows a word; never between two of white space, nor at the very beginning."""
    pieces = (*"ab \n\t\r.", "a ", " b", "\n\n", "  ")
    law = by_bytes(tokens(3, pieces), 2, breaks=b" \n")
    for text, cut in (
        (b"ab a", 2),
        (b"ab  a", 2),
        (b"ab \n\na", 2),
        (b"ab\n a", 2),
        (b"a b ", 3),
        (b"a b a b", 5),
        (b" ab", 0),
        (b"  ab", 0),
        (b"a\tb", 0),
        (b"a\t b", 0),
        (b"a\r\nb", 0),
        (b"ab", 0),
        (b".a .", 2),
    ):
        assert law._boundary(tuple(text)) == cut, text
        tokens_, left = (
            law.fixed_beginning(tuple(text)).tokens,
            law.fixed_beginning(tuple(text)).left,
        )
        assert left == tuple(text[cut:]), text
        own = b"".join(pieces[x].encode() for x in tokens_)
        assert own == text[:cut] if cut else tokens_ == law.start
    marked = (97, 32, 98, END, 97, 98)
    assert law.fixed_beginning(marked).left == (97, 98)
    assert law.fixed_beginning((*marked, 32, 97)).left == (32, 97)
    assert law.fixed_beginning((*marked[:4], 32, 97)).left == (32, 97)
    led = by_bytes(tokens(3, pieces), 2, breaks=b" \n", lead=b" ")
    for text, lead in (
        (marked, b" "),  # a text begins behind a mark, and where nothing is read before it
        ((97, END), b""),
        (tuple(b"ab a"), b""),
        (tuple(b"ab"), b" "),
    ):
        assert led.fixed_beginning(text).lead == lead
        assert led.tokens_of(text) == len(
            led.fixed_beginning(text).tokens + led.fixed_beginning(text).left
        ) + len(lead)
    bare = by_bytes(tokens(3), 2, start=())  # nothing is read first: the longest first token is
    for text, token in ((b"abba", "abb"), (b"a", "a"), (b"bab", "ba"), (b"ab", "ab")):
        head = bare.fixed_beginning(tuple(text))
        assert (head.tokens, head.left) == ((PIECES.index(token),), tuple(text[len(token) :]))
    other = by_bytes(tokens(3, pieces), 2, breaks=b".")
    assert other.fixed_beginning(tuple(b"a b.a b")).left == tuple(b".a b")
    assert by_bytes(tokens(3, pieces), 2, breaks=b"").fixed_beginning(
        tuple(b"a b.a")
    ).left == tuple(b"a b.a")


def test_a_mixture_and_a_product_of_two_tokenizers_keep_the_contract():
    one, other = (
        by_bytes(tokens(3, MANY), 2, start=(5,)),
        by_bytes(tokens(4, MANY[:55]), 2, start=(5,)),
    )
    for rule in (MixtureContrast(0.4), ProductContrast(0.4)):
        check_target(ContrastTarget(one, (other,), rule), prompt=(0, 1))


DRAFTERS = {
    "lookup": lambda other: (LookupDrafter(2), MatchVerifier(), FixedPolicy(2)),
    "suffix": lambda other: (SuffixDrafter(), MatchVerifier(), FixedPolicy(2)),
    "recycling": lambda other: (RecyclingDrafter(), MatchVerifier(), FixedPolicy(2, 4)),
    "jacobi": lambda other: (JacobiDrafter(2), MatchVerifier(), FixedPolicy(2)),
    "another tokenizer": lambda other: (
        ModelDrafter(other, ChainTree()),
        ExactVerifier(),
        FixedPolicy(2),
    ),
    "another tokenizer's tree": lambda other: (
        ModelDrafter(other, StaticTree((2, 1))),
        ExactVerifier(),
        FixedPolicy(2, 4),
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafters_leave_the_law_of_bytes_as_it_is(name):
    law = by_bytes(tokens(1, ("a", "b", "ab", "ba", "abb")))
    other = by_bytes(tokens(2, ("a", "b", "bb", "aba")), start=(1,))
    drafter, verifier, policy = DRAFTERS[name](other)
    prompt = tuple(b"ab")
    method = SpeculativeDecoder(law, drafter, verifier, policy)
    got = law_of(lambda rng: answer_one(method, Request(prompt, 3), rng))
    assert text_law_distance(got, target_law(law, prompt, 3)) < 1e-12


def test_a_whole_draft_of_bytes_is_one_pass():
    law, scheduler = by_bytes(tokens(3), 2), Scheduler()

    async def ask():
        session = law.open_session(tuple(b"ab"))
        await session.score_draft(Draft.chain_draft(ord("b"), tuple(b"abbaabba")), ScoreRequest())
        session.close()

    task = scheduler.submit_coroutine(ask())
    while scheduler.step():
        pass
    assert [use.passes for use in task.usage.values()] == [1]


def test_a_prompt_is_fixed_up_to_its_last_word_and_may_end_inside_one():
    lm = tokens(3, ("a", "b", " ", " a", "ab", " ab", "abb"))
    law = by_bytes(lm, 2, breaks=b" \n", start=())
    head = law.fixed_beginning(tuple(b"ab ab"))
    assert (head.tokens, head.left) == ((4,), tuple(b" ab"))
    assert law.tokens_of(tuple(b"ab ab")) == 4
    row_V = row_of(law, tuple(b"ab ab")).logprob_row(0).exp()
    assert float(row_V[ord("b")]) > 0.0  # the token "abb" begins inside of the prompt


def test_what_is_no_text_is_followed_byte_by_byte():
    pieces = ("a", " ", "é")
    law = by_bytes(tokens(3, pieces), 2, breaks=b" ")
    head = law.fixed_beginning(tuple(b"a a\xc3 a"))
    assert (head.tokens, head.left) == ((0,), tuple(b" a\xc3 a"))
    law = by_bytes(tokens(3, (*pieces, "é a")), 2, breaks=b" ")
    assert law.fixed_beginning((0xC3, END, 0xC3)).left == (0xC3, END, 0xC3)
    row_V = row_of(law, (0xC3, 0xA9, 32)).logprob_row(0)
    assert abs(float(row_V.exp().sum()) - 1.0) < 1e-9
    with pytest.raises(PolydecError, match="prompt begins with bytes that no token"):
        by_bytes(tokens(3, pieces), 2, start=()).fixed_beginning((0xC3, END, 0xC3))


def test_what_is_no_text_behind_a_mark_is_found_where_it_stands():
    prompt = (97, 32, 97, END, 97, 32, 97, 0xC3, 32, 97)
    law = by_bytes(tokens(3, ("a", " ", "é", "é a")), 2, breaks=b" ")
    assert law.fixed_beginning(prompt).left == prompt[5:]
    for bad in (257, -1):
        with pytest.raises(PolydecError, match="ids must lie in 0 to 256"):
            law.fixed_beginning((97, bad))


def test_what_is_written_before_every_text_is_read_before_its_first_byte():
    lm = tokens(3)
    for text in (b"b", b"ba", b"abb"):
        got = row_of(by_bytes(lm, 2, lead=b"ab"), tuple(text)).logprob_row(0)
        assert torch.equal(got, row_of(by_bytes(lm, 2), tuple(b"ab" + text)).logprob_row(0))


def test_a_mark_that_a_second_model_has_not_is_written_out():
    lm = tokens(3, ("a", "<", "x", ">"))
    law = ByBytesTarget(
        lm, ((4,), ()), WORDS, frozenset({0}), 2, start=(0,), names=("$", "<x>"), breaks=b""
    )
    assert law.fixed_beginning((257, ord("a"))).left == tuple(b"<x>a")
    row_V = row_of(law, (ord("a"),)).logprob_row(0).exp()
    assert float(row_V[257]) == 0.0
    assert float(row_V[256]) > 0.0


def test_a_second_model_may_read_a_prompt_of_its_own():
    lm = tokens(3)
    own = by_bytes(lm, 2).fixed_beginning(tuple(b"bb"))
    law = ByBytesTarget(
        lm,
        ((8,),),
        WORDS,
        frozenset({0}),
        2,
        start=(0,),
        breaks=b"",
        instead=(tuple(b"aab"), own),
    )
    plain = by_bytes(lm, 2)
    for rest in (b"", b"a", b"ab"):
        got = row_of(law, tuple(b"aab" + rest)).logprob_row(0)
        assert torch.equal(got, row_of(plain, tuple(b"bb" + rest)).logprob_row(0))

    async def cut():
        session = law.open_session(tuple(b"aab"))
        await session.score_draft(Draft.chain_draft(ord("b"), tuple(b"ab")), ScoreRequest())
        session.commit_tokens(tuple(b"bab"))
        session.rewind_tokens(2)
        row_V = (
            await session.score_draft(Draft.chain_draft(ord("a")), ScoreRequest())
        ).logprob_row(0)
        session.rewind_tokens(2)
        session.commit_tokens(tuple(b"ab"))
        return row_V, (
            await session.score_draft(Draft.chain_draft(ord("a")), ScoreRequest())
        ).logprob_row(0)

    want = row_of(plain, tuple(b"bba")).logprob_row(0)
    for row_V in run_coroutines([cut()])[0]:
        assert torch.allclose(row_V, want)


def test_bytes_that_nothing_spells_are_refused_in_a_prompt_and_worth_nothing_in_a_draft():
    law = by_bytes(tokens(3), 2)
    with pytest.raises(
        PolydecError, match=r"prompt holds byte 122 \(b'z'\): no token of this model"
    ):
        law.open_session(tuple(b"az"))

    async def ask():
        session = law.open_session(tuple(b"a"))
        scores = await session.score_draft(
            Draft.chain_draft(ord("a"), tuple(b"zb")), ScoreRequest()
        )
        session.close()
        return [scores.logprob_row(i) for i in range(3)]

    rows = run_coroutines([ask()])[0]
    assert float(rows[0].exp()[ord("z")]) == 0.0
    assert all(abs(float(row_V.exp().sum()) - 1.0) < 1e-9 for row_V in rows)


def test_a_spelling_finds_tokens_by_their_beginnings():
    spelling = VocabularySpelling(ToyWords(PIECES), len(PIECES))
    assert spelling.bytes == sorted(p.encode() for p in PIECES)
    run_ = spelling.run(0, len(spelling), 0)
    assert {b: hi - lo for b, (lo, _, hi) in run_.ends.items()} == {97: 4, 98: 4}
    lo, whole, hi = run_.ends[97]
    assert spelling.bytes[lo:whole] == [b"a"]
    assert spelling.bytes[whole:hi] == [b"aa", b"ab", b"abb"]
    assert spelling.run(whole, hi, 1).next_R.tolist() == [97, 98, 98]
    assert spelling.token_of_piece(b"ab") == PIECES.index("ab")
    assert spelling.token_of_piece(b"abba") is None
    assert spelling.usual(PIECES.index("a"), PIECES.index("a")) is False
    assert spelling.usual(PIECES.index("ab"), PIECES.index("a")) is True
