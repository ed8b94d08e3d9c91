"""Answers of triplets: the automaton allows what parses to its plan, and nothing else."""

import random

import pytest

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.toy import ToyWords
from polydec.laws.constraints.constraint_kinds import constraint_of
from polydec.laws.constraints.in_time import in_time
from polydec.laws.constraints.triplets import (
    MOST,
    NO_UNITS,
    PlannedTriplet,
    TripletGrammar,
    plan_text,
    read_triplets,
    reference_places,
)

WORDS = (
    *(
        "<Task>",
        "\nUnit decode (False).",
        "\nUnit decode (True). Class name, target unit and number:",
    ),
    *("\n- Name:", " Unit: ", "<Unit>box</Unit>", "<Unit>mask</Unit>", " Num:", "\n</Task>"),
    *("<Phrase>", "</Phrase>", "(", ")", "[0]", "[1]", "[2]", "<REF>"),
    *(" 1", " 2", " 3", " 4", " red", " cat", " <Phrase>", "é"),
)
END = len(WORDS)
VOCAB = TokenVocabulary(END + 1, frozenset({END}), words=ToyWords((*WORDS, "$"), frozenset({END})))
CATS = PlannedTriplet("red cat", "box", 2)
CAT = PlannedTriplet("cat", "mask", 1)


def language(*units):
    return TripletGrammar(units or ("box", "mask")).token_language(VOCAB, VOCAB.eos)


def state_behind(grammar, *words):
    state = grammar.start_state()
    for word in words:
        token = WORDS.index(word)
        assert grammar.allows_token(state, token), word
        state = grammar.next_state(state, token)
    return state


def allowed(grammar, state):
    """Words that may follow; "" is the end."""
    return {(*WORDS, "")[x] for x in grammar.token_mask(state).nonzero()[:, 0].tolist()}


PLANNED = (
    *("<Task>", "\nUnit decode (True). Class name, target unit and number:"),
    *("\n- Name:", " red", " cat", " Unit: ", "<Unit>box</Unit>", " Num:", " 2"),
    *("\n- Name:", " cat", " Unit: ", "<Unit>mask</Unit>", " Num:", " 1", "\n</Task>"),
)


def test_an_answer_is_held_to_its_plan_word_by_word():
    grammar = language()
    text = list(PLANNED)
    # Free text, or the group of the first concept; neither the end nor another mark.
    free = {word for word in WORDS if "<" not in word}
    assert allowed(grammar, state_behind(grammar, *text)) == {*free, "<Phrase>", " <Phrase>"}
    text += [" red", " <Phrase>"]
    for word in (" red", " cat", "</Phrase>", "(", "<Unit>box</Unit>", "[0]", "<REF>", "[1]"):
        # The name of the plan, its unit, and indices that count up: one word each.
        assert allowed(grammar, state_behind(grammar, *text)) == {word}, text[-1]
        text.append(word)
    assert allowed(grammar, state_behind(grammar, *text)) == {"<REF>"}
    text.append("<REF>")
    # As many references as were planned, and no more.
    assert allowed(grammar, state_behind(grammar, *text)) == {")"}
    text += [")", "<Phrase>"]
    for word in (" cat", "</Phrase>", "(", "<Unit>mask</Unit>", "[0]", "<REF>", ")"):
        assert allowed(grammar, state_behind(grammar, *text)) == {word}
        text.append(word)
    after = state_behind(grammar, *text)
    # All that was planned has stood: no group follows, and the text may end.
    assert "" in allowed(grammar, after) and not any("<" in x for x in allowed(grammar, after))
    assert read_triplets("".join(text)) == (CATS, CAT)
    assert reference_places(grammar.groups.pieces, [WORDS.index(x) for x in text]) == (24, 26, 34)


def test_a_plan_that_nothing_is_decoded_is_followed_by_text_alone():
    grammar = language()
    state = state_behind(grammar, "<Task>", "\nUnit decode (False).", "\n</Task>")
    assert "" in allowed(grammar, state) and not any("<" in x for x in allowed(grammar, state))
    assert read_triplets(f"{NO_UNITS} a cat") == ()


def test_only_what_the_vocabulary_spells_is_planned():
    """There is no [3] among the words: no concept has four references."""
    grammar = language()
    state = state_behind(grammar, *PLANNED[:8])
    assert allowed(grammar, state) == {" 1", " 2", " 3"}
    # Units that were not asked for are not planned either.
    only = language("mask")
    assert {x for x in allowed(only, state_behind(only, *PLANNED[:6])) if "<Unit>" in x} == {
        "<Unit>mask</Unit>"
    }
    with pytest.raises(RequestError, match="no tokens of this model spell '<Phrase>1<"):
        language("depth")


@pytest.mark.parametrize("seed", range(3))
def test_random_texts_parse_to_their_plans_and_end_in_time(seed):
    """Uniform draws among what is allowed: masks and looks agree, and each text reads as what it planned."""
    rng = random.Random(seed)
    grammar = language()
    kinds = set()
    for _ in range(12):
        held = in_time(grammar, 80, grammar.groups.pieces, (END,))
        state, tokens = held.start_state(), []
        while True:
            mask = held.token_mask(state).tolist()
            assert mask == [held.allows_token(state, x) for x in range(END + 1)]
            token = rng.choice([x for x, may in enumerate(mask) if may])
            if token == END:
                break
            tokens.append(token)
            state = held.next_state(state, token)
        assert len(tokens) < 80
        planned = read_triplets("".join(WORDS[x] for x in tokens))
        kinds |= {one.unit for one in planned} or {"nothing"}
        places = reference_places(grammar.groups.pieces, tokens)
        assert len(places) == sum(one.count for one in planned)
        assert all(WORDS[tokens[at]] == "<REF>" for at in places)
    assert kinds == {"box", "mask", "nothing"}


def test_texts_of_plans_are_read_as_these_plans():
    """And what differs from its plan in one thing is none."""
    rng = random.Random(5)
    names = ("a cat", "cat", "Unit: x", "7 (left)")
    for _ in range(50):
        planned = tuple(
            PlannedTriplet(rng.choice(names), rng.choice(("box", "depth")), rng.randint(1, MOST))
            for _ in range(rng.randint(0, 3))
        )
        text = f"{plan_text(planned)} It has {' and '.join(x.answer_group for x in planned)}."
        assert read_triplets(text) == planned
        assert read_triplets(text.replace("<Phrase>", "<Phrase> ")) == planned
        for wrong in (
            text.replace("[0]", "[1]", 1),
            text.replace("</Phrase>(<Unit>box", "</Phrase>(<Unit>mask", 1),
            text.replace("<REF>)", ")", 1),
            text.replace("<Phrase>a cat", "<Phrase>a dog", 1),
            text.replace(" Num: ", " Num: 0", 1),
            f"{text}<REF>",
            f" {text}",
            text.removesuffix(planned[-1].answer_group + ".")
            if planned
            else text[:-9].partition("</T")[0],
        ):
            if wrong != text:
                with pytest.raises(RequestError):
                    read_triplets(wrong)
    with pytest.raises(RequestError, match="begin with a plan"):
        read_triplets("a cat")
    with pytest.raises(RequestError):
        read_triplets(plan_text([CAT] * (MOST + 1)) + CAT.answer_group * (MOST + 1))


def test_a_token_may_hold_several_references_or_a_part_of_one():
    pieces = (b"<REF><R", b"EF>", b"x", None)
    assert reference_places(pieces, (2, 0, 1, 3, 2, 0, 0, 1)) == (1, 2, 5, 6, 7)


def test_values_of_requests():
    assert constraint_of({"triplets": "box, mask"}) == TripletGrammar(("box", "mask"))
    assert constraint_of({"triplets": ["depth"]}) == TripletGrammar(("depth",))
    for value, says in (
        ("boxes", "triplets names the unit 'boxes': did you mean box"),
        ("", "triplets names the unit '': the units are box, mask, keypoint, depth, point"),
        ([], "triplets names no unit: give some of box"),
        (3, "triplets is 3: it must be a list of units"),
        ([3], "triplets names the unit 3: the units are"),
    ):
        with pytest.raises(RequestError) as error:
            constraint_of({"triplets": value})
        assert says in str(error.value)
