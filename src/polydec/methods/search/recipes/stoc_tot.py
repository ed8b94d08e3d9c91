"""Stochastic tree of thought."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import AtLeast, InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset
from polydec.methods.search.recipes._options import StepTokens

CARD = Card(
    name="stoc-tot",
    title="Stochastic tree of thought",
    summary="Grows a tree of sub-questions, draws lots for those that the model itself finds valid, and answers in the words "
    "of the prompt.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Bi et al., STOC-TOT: Stochastic tree-of-thought with constrained decoding for complex reasoning in multi-hop "
    "question answering, 2024 (its prompts and widths are ours)",
    reduces_to="greedy decoding at depth 0, not grounded, without a cue",
    parent="self-consistency",
    home="questions over passages that take several steps; the prompt shows examples of such steps",
    aliases=("stochastic-tree-of-thought", "tree-of-thought", "tot"),
    arxiv="2407.03687",
)
PUBLISHED = PublishedPreset(refused="its prompts and widths could not be read")


def build(
    kit: Kit,
    *,
    steps: Annotated[int, InRange(1, 64), "next steps that are drawn behind a beginning"] = 3,
    keep: Annotated[int, InRange(1, 64), "beginnings that are kept of a level"] = 2,
    depth: Annotated[int, InRange(0, 64), "steps before the answer, at most"] = 3,
    most: Annotated[int, AtLeast(1), "tokens of the answer"] = 16,
    check: Annotated[
        str | None,
        ValueNote("\\n: a line break; empty: by how likely its tokens are"),
        "what a step is checked with, none: 'Is this step right and useful? Answer yes or no:' where it can be spelled",
    ] = None,
    cue: Annotated[
        str,
        ValueNote("\\n: a line break"),
        "what an answer is written behind, such as 'So the answer is'",
    ] = "",
    grounded: Annotated[bool, "the answer uses words of the prompt and of the steps only"] = True,
    alike: Annotated[
        float, InRange(0.0, 1.0), "words that two steps share before one of them goes"
    ] = 0.8,
    longest: StepTokens = 64,
    passages: Annotated[
        str,
        ValueNote("\\n: a line break"),
        "passages, one a line: those that fit a sub-question best are read behind it (empty: none)",
    ] = "",
    found: Annotated[int, InRange(1, 64), "passages that are read behind a sub-question"] = 2,
    own: Annotated[
        str,
        ValueNote("\\n: a line break"),
        "what a sub-question's own answer is written behind, such as 'Answer:' (empty: steps answer themselves)",
    ] = "",
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.plain_texts import undrafted_method
    from polydec.methods.search.loop.thought_tree import ThoughtTreeSearch, usual_check

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to search.
    method = undrafted_method(drop_greedy_rule(kit.target))
    check = usual_check(kit.target.vocab) if check is None else check
    asked, ask_text, answered, passage_lines = (
        text.replace("\\n", "\n") for text in (check, cue, own, passages)
    )
    # Empty lines are no passages.
    lines = tuple(line for line in passage_lines.splitlines() if line.strip())
    return ThoughtTreeSearch(
        method,
        steps,
        keep,
        depth,
        most,
        asked,
        ask_text,
        grounded,
        alike,
        longest,
        kit.language,
        lines,
        found,
        answered,
    )
