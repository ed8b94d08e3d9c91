"""A head that says of each token that may come next whether the finished text will be as wanted.

It learns from every beginning of texts that the target wrote: all of them have the label of the
text that they became. Every eighth text is set aside, and the weights that are best there are
saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base.errors import RequestError
from polydec.lab.train import selfplay
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.probes.stop_head import split_target_text, teacher_forced_states
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.probe.outcome import OutcomeSpec
from polydec.models.learned.kinds import outcome_head
from polydec.models.learned.kinds.outcome_head import OutcomeHead, WantedOutcome
from polydec.models.sessions.checkpoint import ModelBundle, load_bundle


@dataclass(frozen=True, eq=False)
class OutcomeExamples(ProbeExamples):
    """States before tokens, and whether the text became as wanted.

    Attributes:
        token_N: The token behind each state.
    """

    token_N: Tensor


def label_beginnings(
    point: ModelBundle, samples: Sequence[TrainingSample], wanted: WantedOutcome
) -> OutcomeExamples:
    """Label every token of some texts with what became of its text.

    Args:
        point: The target, whose states are read.
        samples: Texts that it wrote.
        wanted: What is wanted of a finished text.

    Returns:
        The state before each token, the token, and 1 or 0; nothing of the first token behind a
        prompt of one token.
    """
    states = list[Tensor]()
    tokens = list[int]()
    labels = list[float]()
    for s in samples:
        # The state before the first token is that of the prompt's last one, which is read behind
        # the rest of the prompt: without a rest nothing can be read.
        behind = s.prompt_ids[:-1] or s.prompt_ids
        read = (*s.prompt_ids, *s.output_ids)[len(behind) : -1]
        states.append(teacher_forced_states(point.lm, behind, read))
        met = wanted.is_met(point.text.decode(s.output_ids), len(s.output_ids))
        # Each state has the token behind it, so both lists are as long.
        tokens += s.output_ids[len(s.output_ids) - len(read) :]
        labels += [float(met)] * len(read)
    return OutcomeExamples(torch.cat(states), torch.tensor(labels), torch.tensor(tokens))


def prepare_probe(spec: OutcomeSpec) -> ProbeTraining[OutcomeExamples]:
    """Label the beginnings of the target's own texts."""
    point = load_bundle(spec.target)
    wanted = WantedOutcome(spec.holds, spec.least, spec.most)
    samples, parts = split_target_text(spec, point)
    lessons, aside, unseen = (label_beginnings(point, part, wanted) for part in parts)
    share = float(lessons.label_N.mean())
    if share in (0.0, 1.0):
        raise RequestError(
            f"{'all' if share else 'none'} of the target's texts are as wanted: there is nothing to tell apart, so give other "
            "prompts (data), more of them (each), or other wishes (holds, least, most)"
        )
    start = outcome_head.new_outcome_head(
        lessons.input_NX.shape[1], spec.inner, wanted, point.lm.vocab, spec.seed
    )

    def build(*t: Tensor) -> OutcomeHead:
        return OutcomeHead((t[0], t[1]), t[2], (t[3], t[4]), wanted, point.lm.vocab)

    head = TrainableProbe(build, inner=start.inner, token=(start.token_VI,), out=start.out)

    def part_loss(part: OutcomeExamples) -> Tensor:
        logits = head.current_probe().outcome_logits(part.input_NX, part.token_N[:, None])[:, 0]
        return binary_cross_entropy_with_logits(logits, part.label_N)

    def measure_head() -> dict[str, float | None]:
        """What it says of texts that it was not trained on."""
        logits = head.current_probe().outcome_logits(unseen.input_NX, unseen.token_N[:, None])[:, 0]
        return {
            "positions": len(lessons),
            "met": share,
            "loss_aside": float(part_loss(aside)),
            "held_out_loss": float(part_loss(unseen)),
            "held_out_auc": roc_auc(logits, unseen.label_N > 0),
        }

    about = {"target": spec.target, "temperature": spec.temperature}
    return ProbeTraining(
        head,
        lessons,
        part_loss,
        measure_head,
        lambda out, result: outcome_head.save(out, head.current_probe(), about),
        lambda: part_loss(aside),
        {"samples": selfplay.samples_fingerprint(samples)},
    )
