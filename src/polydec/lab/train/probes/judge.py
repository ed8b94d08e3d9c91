"""A judge: which tokens are right though the target would have put others.

Labels are a checker's, of solutions that both models drew, or, where nothing can check, the
target's own: from a right token it comes to the same result (AutoJudge). Every eighth answer or
problem is set aside, and the weights that are best on these are saved.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.train import auc as ranking
from polydec.lab.train import selfplay
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.probes.stop_head import (
    split_target_text,
    teacher_forced_laws,
    teacher_forced_states,
)
from polydec.lab.train.problems import right_until
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.solutions import LabelledSolution, draw_solutions
from polydec.lab.train.specs.probe.judge import JudgeSpec
from polydec.lab.train.target import load_target_and_draft
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.learned.kinds import judge as trained
from polydec.models.learned.kinds.judge import JudgeProbe
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.sessions.lm import CausalLaw
from polydec.models.text.tokenizer import Tokenizer

CLOCK = time.process_time
"""Its seconds are this process's own."""
TEMPERATURE = 0.6
"""At which both models solve problems that a checker labels."""
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)
"""Chances at which held-out tokens are counted."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def prepare_probe(spec: JudgeSpec) -> ProbeTraining[ProbeExamples]:
    """Label tokens by a checker where the spec names problems, else by the target's results."""
    point, small, name = load_target_and_draft(spec.target, spec.draft)
    # Two ways to label: by problems with a checker, or by comparing what both models write.
    if spec.kinds:
        labelled = _checked
    else:
        labelled = _compared
    (lessons, aside, unseen), known_by = labelled(spec, point, small)
    # Zeros: the judge begins without an opinion.
    judge = TrainableProbe(
        lambda weight_H, bias: JudgeProbe(weight_H, bias, point.lm.vocab),
        weight=torch.zeros(lessons.input_NX.shape[1]),
        bias=torch.zeros(()),
    )

    def part_loss(part: ProbeExamples) -> Tensor:
        # A wrong token that is kept may cost the answer, a right one that is dropped only a pass.
        weight_N = torch.where(part.label_N > 0, 1.0, spec.weight)
        logit_N = judge.current_probe().judge_logits(part.input_NX)
        return F.binary_cross_entropy_with_logits(logit_N, part.label_N, weight_N)

    return ProbeTraining(
        judge,
        lessons,
        part_loss,
        lambda: {
            "tokens": len(lessons),
            "right": float(lessons.label_N.mean()),
            "held_out": {
                "tokens": len(unseen),
                "right": float(unseen.label_N.mean()),
                "auc": token_judge_auc(judge.current_probe(), unseen),
                "kept": judge_pass_rates(judge.current_probe(), unseen),
            },
        },
        lambda out, result: trained.save(
            out, judge.current_probe(), {"target": spec.target, "draft": name}
        ),
        lambda: part_loss(aside),
        {"draft": name, "samples": known_by},
    )


Parts = tuple[Sequence[ProbeExamples], str]
"""What is learned from, what is set aside and what is held out; and what identifies these texts."""


def _compared(spec: JudgeSpec, point: ModelBundle, small: ModelBundle) -> Parts:
    """Labels by the target's own results."""
    samples, parts = split_target_text(spec, point)
    lessons = [label_by_continuation(point.lm, small.lm, point.text, part, spec) for part in parts]
    return lessons, selfplay.samples_fingerprint(samples)


def _checked(spec: JudgeSpec, point: ModelBundle, small: ModelBundle) -> Parts:
    """Labels by a checker, of a solution of each model."""

    def checked_solutions(unseen: bool) -> list[LabelledSolution]:
        if unseen:
            each = max(1, spec.each // 3)
        else:
            each = spec.each
        # Both models' solutions: the draft's show the errors that the judge will meet.
        return [
            drawn
            for who, solver in (("target", point), ("draft", small))
            for drawn in draw_solutions(
                Path(spec.out) / f"{'held-' * unseen}{who}.jsonl",
                solver,
                spec.kinds,
                each,
                temperature=TEMPERATURE,
                seed=spec.seed + 1,
                unseen=unseen,
            )
        ]

    seen = checked_solutions(False)
    unseen = checked_solutions(True)
    # Of a problem both solutions are set aside or none is: they are much alike.
    questions = set(sorted({d.problem.question for d in seen})[::8])
    parts = (
        [d for d in seen if d.problem.question not in questions],
        [d for d in seen if d.problem.question in questions],
        unseen,
    )
    samples = [TrainingSample(d.prompt_ids, d.output_ids) for d in seen]
    lessons = [
        label_checked_tokens(point.lm, part)
        if spec.replies
        else label_differing_tokens(point, small.lm, part)
        for part in parts
    ]
    return lessons, selfplay.samples_fingerprint(samples)


def label_checked_tokens(target: CausalLaw, drawn: Sequence[LabelledSolution]) -> ProbeExamples:
    """Label every token up to the first wrong one, which counts as wrong.

    Those behind it are left out: nothing says whether they would be right elsewhere. So is the end
    of a text, which no judge lets stand.

    Args:
        target: Its states are read.
        drawn: Solutions whose tokens a checker labelled.

    Returns:
        The states behind these tokens, and whether each is right.

    Raises:
        RequestError: No solution has such a token.
    """
    state = list[Tensor]()
    right = list[bool]()
    for d in drawn:
        count = min(sum(d.right) + 1, len(d.output_ids) - (d.output_ids[-1] in target.vocab.eos))
        if count > 0:
            state.append(teacher_forced_states(target, d.prompt_ids, d.output_ids[:count]))
            right += d.right[:count]
    if not state:
        raise RequestError(
            "kinds: the models wrote no solution: there is nothing to judge, so give more problems (--each)"
        )
    return ProbeExamples(torch.cat(state), torch.tensor(right).float())


def label_differing_tokens(
    point: ModelBundle, draft: CausalLaw, drawn: Sequence[LabelledSolution]
) -> ProbeExamples:
    """Label the draft's tokens where it would put others than the target, both greedily.

    Of such tokens a judge is asked. Only places behind a right beginning count; an end of the text
    is left out.

    Args:
        point: The target, whose states are read.
        draft: The draft model.
        drawn: Solutions whose tokens a checker labelled.

    Returns:
        The target's states behind the draft's tokens, and whether the checker lets the text go on
        so.

    Raises:
        RequestError: The draft would put the target's token everywhere.
    """
    state = list[Tensor]()
    right = list[bool]()
    for d in drawn:
        text = TrainingSample(d.prompt_ids, d.output_ids)
        guesses, own = (
            teacher_forced_laws(lm, text, 0.0).argmax(-1).tolist() for lm in (draft, point.lm)
        )
        # Up to the first wrong token: that place still has a right beginning before it.
        for i, guess in enumerate(guesses[: sum(d.right) + 1]):
            if guess == own[i] or guess in point.lm.vocab.eos:
                continue
            begun = (*d.output_ids[:i], guess)
            # Right is what may begin a right solution up to its last character.
            written = point.text.decode(begun)
            state.append(teacher_forced_states(point.lm, d.prompt_ids, begun)[-1])
            right.append(right_until(d.problem, written) >= len(written))
    if not state:
        raise RequestError(
            "kinds: the draft would put the target's token everywhere: there is nothing to judge, so give "
            "more problems (--each) or a smaller --draft"
        )
    return ProbeExamples(torch.stack(state), torch.tensor(right).float())


def label_by_continuation(
    target: CausalLaw,
    draft: CausalLaw,
    text: Tokenizer,
    samples: Sequence[TrainingSample],
    spec: JudgeSpec,
) -> ProbeExamples:
    """Label the draft's tokens by what the target's answer comes to behind them.

    Where the draft would have written another token, the target goes on from that token: it is
    right if the whole answer comes to the same result. As many of the target's own tokens are right
    as they stand.

    Args:
        target: Goes on, greedily; its states are read.
        draft: The draft model.
        text: Turns tokens into text, whose results are compared.
        samples: The target's own answers.
        spec: Says how many places of an answer are tried, and how long it may be.

    Returns:
        The states behind both kinds of tokens, and whether each is right.

    Raises:
        RequestError: The draft would have written the target's token everywhere.
    """
    state = list[Tensor]()
    right = list[float]()
    for s in samples:
        own = list(s.output_ids)
        guesses = teacher_forced_laws(draft, s, 0.0).argmax(-1).tolist()
        differ = [
            i
            for i, token in enumerate(guesses)
            if token != own[i] and token not in target.vocab.eos
        ]
        # Places are spread over the whole answer; each costs a continuation of the target's.
        for i in differ[:: max(1, len(differ) // spec.tries)][: spec.tries]:
            begun = (*own[:i], guesses[i])
            whole = (
                # The draft's token, and then what the target makes of it.
                *begun,
                *greedy_continuation(target, (*s.prompt_ids, *begun), spec.max_tokens - len(begun)),
            )
            state.append(teacher_forced_states(target, s.prompt_ids, begun)[-1])
            right.append(float(is_same_result(text.decode(own), text.decode(whole))))
            # The target's own token at the same place is a right one by definition.
            state.append(teacher_forced_states(target, s.prompt_ids, own[: i + 1])[-1])
            right.append(1.0)
    if not state:
        raise RequestError(
            "text has no place where the draft would have written another token: there is nothing to judge, so "
            "give more prompts (--each) or a smaller --draft"
        )
    return ProbeExamples(torch.stack(state), torch.tensor(right))


def greedy_continuation(lm: CausalLaw, prompt: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Let a model write on, greedily.

    Args:
        lm: The model.
        prompt: Token ids to go on from.
        most: Tokens at most; nothing is written where it is below 1.

    Returns:
        The new token ids.
    """
    if most < 1:
        return ()
    decoder = SpeculativeDecoder(
        ShapedTarget(lm, GreedyRule()), NothingDrafter(), MatchVerifier(), FixedPolicy(0)
    )
    return run_coroutines([answer_one(decoder, Request(prompt, max_tokens=most))])[0].token_ids


def is_same_result(answer: str, other: str) -> bool:
    """Say whether two answers come to the same result: their last number, or their last line.

    Args:
        answer: Where it has no number, last lines are compared.
        other: The other one.

    Returns:
        Whether they agree.
    """
    numbers = [NUMBER.findall(t) for t in (answer, other)]
    if numbers[0]:
        return bool(numbers[1]) and numbers[0][-1] == numbers[1][-1]
    ends = [t.strip().splitlines()[-1:] for t in (answer, other)]
    return ends[0] == ends[1]


@torch.no_grad()
def token_judge_auc(judge: JudgeProbe, lessons: ProbeExamples) -> float:
    """Measure how often, of a right token and a wrong one, the right one is found likelier.

    Args:
        judge: The judge.
        lessons: States behind tokens, and whether these are right.

    Returns:
        0 to 1; ties count half; 0.5 where all are right or all are wrong.
    """
    share = ranking.roc_auc(judge.judge_logits(lessons.input_NX), lessons.label_N > 0)
    if share is None:
        return 0.5
    return share


@torch.no_grad()
def judge_pass_rates(judge: JudgeProbe, lessons: ProbeExamples) -> dict[str, tuple[float, float]]:
    """Count what a judge would let stand.

    Args:
        judge: The judge.
        lessons: States behind tokens, and whether these are right.

    Returns:
        By threshold, the share of right tokens and of wrong ones that stand (0 where there are
        none).
    """
    chance_N = judge.judge_logits(lessons.input_NX).sigmoid()
    right_N = lessons.label_N > 0

    def judge_share(which_N: Tensor, threshold: float) -> float:
        """Share of some tokens whose chance lies above a threshold.

        Args:
            which_N: Which tokens, shape ``[N]``, bool.
            threshold: The threshold, 0 to 1.

        Returns:
            The share, 0 where there is no such token.
        """
        if which_N.any():
            return round(float((chance_N[which_N] > threshold).float().mean()), 4)
        return 0.0

    return {str(x): (judge_share(right_N, x), judge_share(~right_N, x)) for x in THRESHOLDS}
