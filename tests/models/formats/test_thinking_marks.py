"""Thinking parted from the answer, by the marks of every family, in whatever pieces the text comes."""

import random

import pytest

from polydec.models.formats.thinking_marks import (
    FAMILIES,
    ThinkingReader,
    ThinkingSegmentKind,
    marks_of,
)

BY_NAME = {marks.name: marks for marks in FAMILIES}
THINK = BY_NAME["think"]
HARMONY = "<|channel|>analysis<|message|>{0}<|end|><|start|>assistant<|channel|>final<|message|>{1}"

# (family, opened by the prompt, text, thought, answered)
WHOLE = [
    *(
        (marks.name, False, f"{opens}\n a\n b \n{closes}\n\n c \n", "a\n b", "c \n")
        for marks in FAMILIES
        for opens in marks.opens
        for closes in marks.closes
    ),
    *(
        (marks.name, True, f"a\n b{closes}c", "a\n b", "c")
        for marks in FAMILIES
        for closes in marks.closes
    ),
    ("think", False, " plain < text", "", " plain < text"),
    ("think", False, "  \n", "", "  \n"),
    ("think", False, "", "", ""),
    ("think", False, "<think></think>x", "", "x"),
    ("think", False, "<think></think>", "", ""),
    ("think", True, "</think>", "", ""),
    ("think", True, " <think>", "", ""),
    ("think", False, " \n<think>a</think>", "a", ""),
    ("think", False, "x <think>a</think>b", "", "x <think>a</think>b"),
    ("think", False, "a</think>b", "", "a</think>b"),
    ("think", False, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
    ("think", True, "<think>\na</think>b", "a", "b"),
    ("think", True, "a </thin </think> b", "a </thin", "b"),
    ("think", True, "a < b", "a < b", ""),
    ("gpt-oss", False, HARMONY.format("a\nb", "c "), "a\nb", "c "),
    ("gpt-oss", False, "<|channel|>final<|message|>c", "", "c"),
    (
        "gpt-oss",
        False,
        "<|channel|>commentary<|message|>c <|end|><|start|>assistant" + HARMONY.format("a", "d"),
        "a",
        "cd",
    ),
    (
        "command-a",
        False,
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b <|END_RESPONSE|>",
        "a",
        "b",
    ),
    ("hunyuan-a13b", False, "<think>\na\n</think>\n<answer>\nb\n</answer>", "a", "b"),
    ("kimi-vl", False, "◁think▷é◁/think▷ü", "é", "ü"),
]
# what stops where it would have gone on
CUT = [
    ("think", False, "<think>a\n", "a", ""),
    ("think", False, "<think>a</th", "a", ""),
    ("think", False, " <thi", "", ""),
    ("think", False, "<think>a</think>\n", "a", ""),
    ("think", True, "", "", ""),
    ("gpt-oss", False, "<|channel|>analysis<|message|>a<|end|><|start|>ass", "a", ""),
    ("command-a", False, "<|START_THINKING|>a<|END_THINKING|>b<|END_", "a", "b"),
]


def in_pieces(reader, text, cut, seed):
    rng, state, segments, at = random.Random(seed), reader.start_state(), [], 0
    while at < len(text):
        size = rng.randrange(1, 6)
        state, more = reader.read_piece(state, text[at : at + size])
        segments, at = segments + more, at + size
    return segments + reader.end_text(state, cut)


@pytest.mark.parametrize(
    "case, cut", [(c, False) for c in WHOLE] + [(c, True) for c in CUT], ids=str
)
def test_pieces_make_no_difference(case, cut):
    name, opened, text, thought, answered = case
    reader = ThinkingReader(BY_NAME[name], opened)
    assert reader.separate_text(text, cut) == (thought, answered)
    for seed in range(30):
        segments = in_pieces(reader, text, cut, seed)
        assert "".join(part for _, part in segments) == text
        told = {kind: "".join(p for k, p in segments if k is kind) for kind in ThinkingSegmentKind}
        assert (told[ThinkingSegmentKind.THINKING], told[ThinkingSegmentKind.ANSWER]) == (
            thought,
            answered,
        ), segments


def test_random_texts_lose_nothing():
    """Of bits of marks in any order: nothing is lost, and where the pieces are cut makes no difference."""
    rng, thought_of = random.Random(0), 0
    for marks in FAMILIES:
        bits = [*marks.texts, "<", "a", " ", "\n", "</", "think>", marks.closes[0][:-1]]
        for _ in range(60):
            text = "".join(rng.choice(bits) for _ in range(rng.randrange(8)))
            for opened in (False, True):
                for cut in (False, True):
                    reader = ThinkingReader(marks, opened)
                    want = reader.separate_text(text, cut)
                    segments = in_pieces(reader, text, cut, rng.random())
                    assert "".join(part for _, part in segments) == text
                    got = tuple(
                        "".join(p for k, p in segments if k is kind)
                        for kind in (ThinkingSegmentKind.THINKING, ThinkingSegmentKind.ANSWER)
                    )
                    assert got == want, (marks.name, opened, cut, text)
                    thought_of += bool(want[0])
    assert thought_of > 200


@pytest.mark.parametrize("marks", FAMILIES, ids=lambda m: m.name)
def test_a_model_is_known_by_its_template(marks):
    source = "{{ " + repr(" ".join(marks.known_by or marks.texts)) + " }}"
    assert marks_of(source, ()) is marks


def test_a_model_is_known_by_its_tokens():
    assert marks_of("", ("<think>", "</think>")) is THINK
    assert marks_of("", ("[THINK]", "[/THINK]", "<s>")) is BY_NAME["magistral"]
    assert marks_of("{{ m }}", ("<think>",)) is None
    assert marks_of("", ()) is None


def test_what_a_prompt_opens():
    assert THINK.opened_by("<|im_start|>assistant\n<think>\n")
    assert not THINK.opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.opened_by("a <think> b")
    assert BY_NAME["gemma-4"].opened_by("<|channel>thought\n")
    assert THINK.left_open("<think>a") and not THINK.left_open("<think>a</think>b")
