"""`polydec train draft-tree`: which places of a drafted tree a target accepts, counted on prompts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import TraceEvent, ignore_event
from polydec.core.types import Draft
from polydec.lab.train.data import training_data
from polydec.lab.train.envelope import write_down
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.selfplay import draw_prompts, user_prompt_ids
from polydec.lab.train.specs.draft_tree import DraftTreeSpec
from polydec.lab.train.target import load_autoregressive_model
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters._tree_shapes import (
    IndexPath,
    low_rank_paths,
    most_accepted_paths,
    template_child_counts,
)
from polydec.methods.speculative.drafters.ngram_rows import NgramRowsDrafter, NgramRowStore
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.learned.kinds.draft_tree import DraftTreeCounts, save
from polydec.models.sessions.checkpoint import ModelBundle


@dataclass(frozen=True)
class AcceptedPlaceCounter:
    """Counts, of every draft of a request, which places were accepted.

    Attributes:
        accepted: By the ranks of a node and of those above it, top down, how often.
        draft: The draft that was proposed last, alone in the list.
    """

    accepted: Counter[IndexPath] = field(default_factory=Counter[IndexPath])
    draft: list[Draft] = field(default_factory=list[Draft])

    def watch_event(self, event: TraceEvent) -> None:
        """Take notice of an event of a request; drafts and verdicts alone are looked at."""
        if isinstance(event, ProposedEvent):
            # A draft is kept until its verdict comes: one request runs at a time. Only who stands
            # below whom is needed of it, so tokens count as certain.
            self.draft[:] = [Draft.certain_tree(event.token, event.parent)]
        elif isinstance(event, VerifiedEvent):
            place: IndexPath = ()
            # A node counts with all nodes above it, as none is accepted without them.
            for node in event.path:
                siblings = self.draft[0].children[self.draft[0].parent[node]]
                place = (*place, siblings.index(node))
                self.accepted[place] += 1


def count_draft_tree(spec: DraftTreeSpec) -> dict[str, Any]:
    """Let the target answer prompts with a large tree, count what it accepts, and save the counts.

    What was measured on held-out prompts (a third as many) is returned, and kept in
    out/training.json: tokens a pass with as many of the most accepted places as asked for, and with
    the same number of places by low ranks alone.

    Raises:
        RequestError: An option is wrong, data is missing, or no prompt fits into the context.

    Source: STAND, "Accelerated test-time scaling with model-free speculative sampling" (2025): the
    places of a tree of 625 nodes are counted on 30 problems, and the best 80 kept.
    """
    began = time.perf_counter()
    point = load_autoregressive_model(spec.target)
    counter = AcceptedPlaceCounter()
    # Nobody knows yet what is accepted, so the tree to count in is simply wide and deep.
    start = low_rank_paths(spec.places)
    tokens, passes = answer_with_shape(point, spec, start, counter)
    # A place that was never accepted is kept with 0: it is known to be worthless.
    counts = {place: counter.accepted[place] for place in start}
    tree = DraftTreeCounts(counts, point.lm.vocab)
    best = most_accepted_paths(counts, spec.nodes)
    result: dict[str, Any] = {
        "tokens": tokens,
        "tokens_a_pass": round(tokens / passes, 4),
        "accepted": sum(counts.values()),
        "shape": list(template_child_counts(best)),
        "held_out": {
            name: measure_held_out_shape(point, spec, paths)
            # Held-out prompts say whether counting was worth it, against a shape that needs none.
            for name, paths in (("counted", best), ("by_rank", low_rank_paths(spec.nodes)))
        },
        "seconds": round(time.perf_counter() - began, 1),
    }
    out = Path(spec.out)
    save(out, tree, {"target": spec.target, "temperature": spec.temperature, "tokens": tokens})
    write_down(out, result)
    return result


def measure_held_out_shape(
    point: ModelBundle, spec: DraftTreeSpec, paths: Sequence[IndexPath]
) -> float:
    """Measure a tree of fixed shape.

    Args:
        point: The target and its tokenizer.
        spec: Options.
        paths: Places of the tree.

    Returns:
        Tokens a pass on held-out prompts.
    """
    tokens, passes = answer_with_shape(point, spec, paths, None)
    return round(tokens / passes, 4)


def answer_with_shape(
    point: ModelBundle,
    spec: DraftTreeSpec,
    paths: Sequence[IndexPath],
    counter: AcceptedPlaceCounter | None,
) -> tuple[int, int]:
    """Answer prompts with a tree of fixed shape.

    The answers to one prompt are drawn one behind the other, over the same rows.

    Args:
        point: The target and its tokenizer.
        spec: Options.
        paths: Places of the tree.
        counter: Hears of drafts and verdicts. None: held-out prompts are answered, a third as many.

    Returns:
        Tokens and passes in all.

    Raises:
        RequestError: No prompt fits into the target's context.
    """
    shape = template_child_counts(paths)
    unseen = counter is None
    each = max(1, spec.each // 3) if unseen else spec.each
    tokens = 0
    passes = 0
    asked = draw_prompts(training_data(spec.data), each, unseen=unseen, seed=spec.seed)
    sampling = Sampling(temperature=spec.temperature)
    target = ShapedTarget(point.lm, *build_shapers(sampling, eos=point.lm.vocab.eos))
    with show_count_progress("trying the tree" if unseen else "counting places") as watch:
        for n, (_, user) in enumerate(asked):
            ids = user_prompt_ids(point.text, user)
            room = point.lm.network.context - len(ids)
            # A store for each prompt: what one question taught must not help the next.
            drafter = NgramRowsDrafter(shape, shortest=spec.shortest, store=NgramRowStore())
            # A policy with room for every node: the shape alone decides what is drafted.
            decoder = SpeculativeDecoder(target, drafter, ExactVerifier(), FixedPolicy(64, 1024))
            # A prompt that fills the context is passed over.
            for choice in range(spec.answers if room > 1 else 0):
                request = Request(
                    ids, max_tokens=min(spec.max_tokens, room), seed=spec.seed + n, choice=choice
                )
                # Events are only made for who listens, so measuring is not slowed by counting.
                hear = ignore_event if counter is None else counter.watch_event
                answer = run_coroutines([answer_one(decoder, request, on=hear)])[0]
                tokens += len(answer.token_ids)
                passes += answer.stats.passes
            watch(n + 1, len(asked))
    if not passes:
        raise RequestError(
            f"target is {spec.target!r} with a context of {point.lm.network.context} tokens: no prompt fits, so "
            "give shorter ones (--data)"
        )
    return tokens, passes
