"""A head that says whether a drafted token will be accepted (SpecDec++).

Every eighth text is set aside, and the weights that are best on these are saved: the head, which
begins as the best constant, has more of them than a small run has positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.train import selfplay
from polydec.lab.train.own_text import SampledTextSpec, gather_target_text
from polydec.lab.train.probe import ProbeExamples, ProbeTraining, TrainableProbe
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.probe.stop_head import StopHeadSpec
from polydec.lab.train.target import load_target_and_draft
from polydec.models.learned.kinds import stop_head
from polydec.models.learned.kinds.stop_head import StopHead
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.sessions.lm import CausalLaw


def trainable_stop_head(start: StopHead, tied: bool) -> TrainableProbe[StopHead]:
    """Take the weights of a head to train.

    Args:
        start: The head that training begins with.
        tied: All blocks are the first one, which is trained once.

    Returns:
        Its tensors: those of the blocks, then those of the output.
    """
    depth = len(start.blocks)
    own = start.blocks[:1] if tied else start.blocks

    def build(*t: Tensor) -> StopHead:
        pairs = tuple((t[i], t[i + 1]) for i in range(0, len(t) - 2, 2))
        return StopHead(pairs * depth if tied else pairs, (t[-2], t[-1]))

    return TrainableProbe(build, blocks=[t for block in own for t in block], out=start.out)


def split_target_text(
    spec: SampledTextSpec, point: ModelBundle
) -> tuple[list[TrainingSample], tuple[list[TrainingSample], ...]]:
    """Gather the target's answers, and split them.

    Args:
        spec: Which text is wanted.
        point: The target, which writes what is not there.

    Returns:
        All texts to learn from; and these but for every eighth one, every eighth one, and those of
        held-out prompts.
    """
    samples = gather_target_text(spec, point.lm, point.text, False)
    unseen = gather_target_text(spec, point.lm, point.text, True)
    lessons = [s for i, s in enumerate(samples) if i % 8] or samples
    return samples, (lessons, samples[::8], unseen)


def prepare_probe(spec: StopHeadSpec) -> ProbeTraining[ProbeExamples]:
    """Label tokens that the draft draws after the target's own text."""
    point, small, name = load_target_and_draft(spec.target, spec.draft)
    samples, parts = split_target_text(spec, point)
    lessons, aside, unseen = (
        label_drafted_tokens(point.lm, small.lm, part, spec, number)
        for number, part in enumerate(parts)
    )
    start = stop_head.new_stop_head(lessons.input_NX.shape[1], spec.depth, spec.tied, spec.seed)
    # Untrained weights count too: what is saved is no worse than the constant on what is aside.
    constant = best_constant_logits(lessons.label_N, spec.weight)
    head = trainable_stop_head(StopHead(start.blocks, (start.out[0], constant)), spec.tied)

    def part_loss(part: ProbeExamples) -> Tensor:
        return weighted_bce(
            head.current_probe().stop_logits(part.input_NX), part.label_N, spec.weight
        )

    about = {
        "target": spec.target,
        "draft": name,
        "temperature": spec.temperature,
        "mixing": spec.mixing,
        "weight": spec.weight,
    }
    return ProbeTraining(
        head,
        lessons,
        part_loss,
        lambda: {
            "positions": len(lessons),
            "loss_aside": float(part_loss(aside)),
            "held_out": measure_stop_head(head.current_probe(), unseen, spec.weight),
        },
        lambda out, result: stop_head.save(out, head.current_probe(), about),
        lambda: part_loss(aside),
        {
            "draft": name,
            "positions": len(lessons),
            "samples": selfplay.samples_fingerprint(samples),
        },
    )


def label_drafted_tokens(
    target: CausalLaw,
    draft: CausalLaw,
    samples: Sequence[TrainingSample],
    spec: StopHeadSpec,
    part: int,
) -> ProbeExamples:
    """Let the draft draw tokens after the target's own text, and label them.

    Args:
        target: Its laws decide how likely a token is accepted.
        draft: Draws tokens; its states are read.
        samples: The target's answers.
        spec: Names temperature, draws of each text, and the share of the target's tokens that the
            draft reads.
        part: Number of this part of the samples, which names its draws.

    Returns:
        The draft's states after its own tokens, and the chance with which each is accepted.
    """
    g = generator_for(spec.seed, part, "drafts")
    hidden = list[Tensor]()
    accepted = list[Tensor]()
    for s in samples:
        p_TV, q_TV = (teacher_forced_laws(lm, s, spec.temperature) for lm in (target, draft))
        for _ in range(spec.rounds if spec.temperature else 1):
            # A token drawn from q is accepted with chance min(1, p/q): a label without noise.
            token_T = q_TV.multinomial(1, generator=g)[:, 0]
            p_T, q_T = (t.gather(1, token_T[:, None])[:, 0] for t in (p_TV, q_TV))
            # At some places the draft reads the target's token, and there is no label.
            own_T = torch.rand(len(token_T), generator=g) >= spec.mixing
            read = torch.where(own_T, token_T, torch.tensor(s.output_ids))
            hidden.append(teacher_forced_states(draft, s.prompt_ids, read.tolist())[own_T])
            accepted.append((p_T / q_T).clamp(max=1.0)[own_T])
    return ProbeExamples(torch.cat(hidden), torch.cat(accepted).float())


def teacher_forced_laws(lm: CausalLaw, sample: TrainingSample, temperature: float) -> Tensor:
    """Ask a model for its law at every token of an answer.

    Args:
        lm: The model.
        sample: A prompt and its answer.
        temperature: Of the laws; 0: all weight on the likeliest token.

    Returns:
        The law of each output token after the true text before it, ``[T, V]``, float64.
    """

    async def score_once() -> Tensor:
        session = lm.open_session(sample.prompt_ids)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        scores = await session.score_draft(
            Draft.chain_draft(sample.prompt_ids[-1], sample.output_ids[:-1]), ScoreRequest()
        )
        return torch.stack([scores.log_weights(i) for i in range(len(sample.output_ids))]).double()

    logits_TV = run_coroutines([score_once()])[0]
    if temperature == 0.0:
        return torch.nn.functional.one_hot(logits_TV.argmax(-1), logits_TV.shape[-1]).double()
    return (logits_TV / temperature).softmax(-1)


def teacher_forced_states(lm: CausalLaw, prompt: tuple[int, ...], read: Sequence[int]) -> Tensor:
    """Read tokens behind a prompt.

    Args:
        lm: The model that reads.
        prompt: Token ids before them.
        read: Token ids.

    Returns:
        Its state after each of these tokens, ``[T, H]``.

    Raises:
        RequestError: It shows no states.
    """

    async def score_once() -> Tensor:
        session = lm.open_session(prompt)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        hidden_NH = (
            await session.score_draft(
                Draft.chain_draft(prompt[-1], read),
                ScoreRequest(law=RowDetail.NOTHING, hidden=True),
            )
        ).hidden_NH
        if hidden_NH is None:
            raise RequestError("draft shows no hidden states: the head cannot be trained on it")
        return hidden_NH[1:].float()

    return run_coroutines([score_once()])[0]


def weighted_bce(logits_N2: Tensor, accepted_N: Tensor, weight: float) -> Tensor:
    """Cross-entropy of soft labels, per unit of label weight.

    Args:
        logits_N2: Of rejection and acceptance, not normalised.
        accepted_N: The chance with which each token is accepted.
        weight: How much more a rejection counts than an acceptance.

    Returns:
        The loss in nats, a scalar.
    """
    no_N, yes_N = logits_N2.log_softmax(-1).unbind(-1)
    rejected_N = 1.0 - accepted_N
    return -(weight * rejected_N * no_N + accepted_N * yes_N).sum() / (
        weight * rejected_N.sum() + accepted_N.sum()
    )


def best_constant_logits(accepted_N: Tensor, weight: float) -> Tensor:
    """Find the two log chances that have the least loss where every token gets the same.

    Args:
        accepted_N: The chance with which each token is accepted.
        weight: How much more a rejection counts than an acceptance.

    Returns:
        Of rejection and acceptance, ``[2]``.
    """
    accepted = accepted_N.sum()
    rejected = weight * (1.0 - accepted_N).sum()
    return (torch.stack([rejected, accepted]) / (accepted + rejected)).clamp(min=1e-6).log()


@torch.no_grad()
def measure_stop_head(head: StopHead, lessons: ProbeExamples, weight: float) -> Mapping[str, float]:
    """Say how a head does on tokens that it was not trained on.

    Args:
        head: The head.
        lessons: States of the draft, and the chance with which each token is accepted.
        weight: Of rejections, as in training.

    Returns:
        loss: as in training; loss_of_constant: of the best constant; acceptance: mean label;
        ranked: how often, of two tokens of which one is likelier to be accepted, the head says
        which (0.5 is chance).
    """
    y = lessons.label_N
    logits = head.stop_logits(lessons.input_NX)
    same = best_constant_logits(y, weight).expand(len(y), 2)
    g = torch.Generator().manual_seed(0)
    # Pairs are drawn: all of them would be the square of the positions.
    a, b = torch.randint(len(y), (2, 20000), generator=g)
    score = logits[:, 1] - logits[:, 0]
    apart = (y[a] - y[b]).abs() > 0.2
    right = ((score[a] - score[b]) * (y[a] - y[b]) > 0)[apart]
    return {
        "loss": float(weighted_bce(logits, y, weight)),
        "loss_of_constant": float(weighted_bce(same, y, weight)),
        "acceptance": float(y.mean()),
        "ranked": float(right.float().mean()),
    }
