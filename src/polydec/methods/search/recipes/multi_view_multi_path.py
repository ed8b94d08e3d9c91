"""Multi-view multi-path reasoning."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange, ValueNote
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import Kit
from polydec.methods.registry.published_presets import PublishedPreset, PublishedValue

CARD = Card(
    name="multi-view-multi-path",
    title="Multi-view multi-path reasoning",
    summary="Describes the prompt in several ways, follows several first tokens behind each, and lets all paths vote on a few "
    "answers.",
    kind="rollouts",
    family="ar",
    guarantee=Exactness.APPROXIMATE,
    source="Qu et al., Look, compare, decide: alleviating hallucination in large vision-language models via multi-view "
    "multi-path reasoning, 2024 (here over views of a text)",
    reduces_to="greedy decoding of a line without views at width 1, where paths are not drawn",
    parent="self-consistency",
    home="questions with a few possible answers about an image, a text or a table",
    aliases=("mvp", "multi-view-multi-path-reasoning"),
    arxiv="2408.17150",
)
PUBLISHED = PublishedPreset(
    {
        "apart": PublishedValue(True, "its views are of an image, and each is asked for by itself"),
        "caption": PublishedValue(
            512, "a view of an image has up to 512 tokens; ours of a text 64"
        ),
        "views": PublishedValue(
            "Describe the colours, the shapes and the objects of the image one by one.|"
            "Describe the scene of the image as a whole, and what its objects have to do with one another.|"
            "Describe the image in detail.",
            "from the bottom up, from the top down, and regular, in words of ours; here a prompt is not viewed unless asked",
        ),
    },
    unknown="its temperature of 0.7 (views with top-p 0.95) is the request's, and how its prompts are worded",
)


def build(
    kit: Kit,
    *,
    answers: Annotated[str, "all possible answers, parted by |"] = "yes|no",
    views: Annotated[
        str,
        ValueNote("none: the prompt as it is; \\n: a line break"),
        "what the model is asked to write first, parted by |",
    ] = "",
    cue: Annotated[str, ValueNote("\\n: a line break"), "what stands before an answer"] = "",
    caption: Annotated[
        int,
        InRange(0, 65536),
        ValueNote("0: what is asked is the view itself"),
        "tokens of a view at most",
    ] = 64,
    width: Annotated[int, InRange(1, 64), "first tokens that are followed behind each view"] = 3,
    least: Annotated[float, InRange(0, 1), "probability of a first token that is followed"] = 0.001,
    most: Annotated[int, InRange(1, 65536), "tokens of a path"] = 50,
    drawn: Annotated[bool, "paths are drawn behind their first token; false: greedy"] = True,
    shared: Annotated[bool, "a path without an answer counts for all alike, else for none"] = False,
    apart: Annotated[
        bool,
        "each view is asked for by itself behind the prompt's images, and stands before the question; false: it is written "
        "behind the question",
    ] = False,
) -> Decoder:
    from polydec.laws.targets.search_target import drop_greedy_rule
    from polydec.methods.search.loop.multi_view import MultiViewSearch, prompts_apart
    from polydec.methods.search.loop.plain_texts import undrafted_method

    # Options come as one line each: an escaped n stands for a line break.
    def text_parts(text: str) -> tuple[str, ...]:
        return tuple(x.replace("\\n", "\n") for x in text.split("|") if x)

    # Texts are drawn without drafts, one token a pass. The greedy rule is dropped: at temperature 0
    # it leaves one text, and there is nothing to vote on.
    method = undrafted_method(drop_greedy_rule(kit.target))
    asked = cue.replace("\\n", "\n")
    return MultiViewSearch(
        method,
        text_parts(answers),
        text_parts(views),
        asked,
        caption,
        width,
        least,
        most,
        drawn,
        shared,
        prompts_apart(kit, bool(views)) if apart else None,
        kit.context,
    )
