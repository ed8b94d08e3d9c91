"""REFRAG: a passage is read as one vector for each six tokens, except where a policy opens chunks.

Open chunks are read as they are (Lin et al., 2025). Four trainings follow one another, on pages of
records and remarks (`lab/train/facts.py`). The decoder learns to answer questions about pages that
it reads as words, and to write lines once more. Then it is frozen, and the encoder learns that its
vectors say what a decoder needs to write their lines (reconstruction), first of one chunk, then of
two and of four (curriculum). Then both learn to answer, with some chunks read as words at random
(continual training). At last both are frozen, and the policy learns which chunks to expand: a group
of selections is drawn for each page, and those after which the answers are likelier than after the
others of the group become likelier (GRPO).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polydec.core.types import TokenVocabulary
from polydec.lab.train import page_reader
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.facts import LINE
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.page_reader import (
    CONTEXT,
    LINES,
    MARKS,
    MOST,
    VOCAB,
    draw_pages,
    encode_page_lines,
    encode_page_questions,
    page_answer_nats,
    page_reader_schedule,
    page_rewriting_nats,
)
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.models.learned.kinds import chunk_encoder
from polydec.models.learned.kinds.chunk_encoder import (
    ChunkEncoder,
    ChunkEncoderSizes,
    encode_chunks,
    project_chunks,
    score_chunks,
)
from polydec.models.learned.reader import BidirectionalEncoder

SHARE = 0.25
"""Of the chunks that the policy expands."""

POLICY = 32
"""Its width."""

GROUP = 8
CLIP = 0.2
TWICE = 2
"""Selections of a page, bound of the ratio, steps on the same selections."""

STAGES = (1, 2, MOST)
"""Chunks that are written once more, at most, by stage of the curriculum."""

UNSEEN = 200
"""Pages that the trained model is asked about."""


class RefragModel(nn.Module):
    """A decoder, the encoder that makes its vectors, and the policy that chooses chunks."""

    def __init__(self, decoder: TrainableLlama, width: int, seed: int, chunk: int = LINE) -> None:
        super().__init__()
        self.decoder = decoder
        encoder = BidirectionalEncoder(width, 2, width // 8, chunk + 1)
        policy = BidirectionalEncoder(POLICY, 2, POLICY // 8, 64)
        self.sizes = ChunkEncoderSizes(decoder.s.vocab, chunk, encoder, policy, decoder.s.width)
        # Projected vectors begin as large as the decoder's embeddings are.
        spread = float(decoder.model.embed_tokens.weight.detach().std())
        self.kept = nn.ParameterDict(
            chunk_encoder.new_chunk_encoder_tensors(self.sizes, seed, spread)
        )

    @property
    def t(self) -> dict[str, nn.Parameter]:
        """The tensors of encoder, projection and policy, by name."""
        return dict(self.kept.items())

    @property
    def encoding(self) -> list[nn.Parameter]:
        """The weights of encoder and projection."""
        return [p for name, p in self.t.items() if not name.startswith("policy")]

    @property
    def selector_parameters(self) -> list[nn.Parameter]:
        """The weights of the policy."""
        return [p for name, p in self.t.items() if name.startswith("policy")]

    def train_only_parts(self, *parts: Sequence[nn.Parameter]) -> RefragModel:
        """Train nothing but these parts; all other weights are frozen. Returns the model itself."""
        self.requires_grad_(False)
        for p in (p for part in parts for p in part):
            p.requires_grad_(True)
        return self

    def inner_matrices(self) -> list[nn.Parameter]:
        """The matrices inside layers that are trained, for the optimiser of matrices."""
        named = [
            (f".layers.{n}", p)
            for n, p in self.t.items()
            if n[-2:] in ("_q", "_k", "_v", "_o", "up", "wn")
        ]
        named += [(n, p) for n, p in self.decoder.named_parameters() if ".layers." in n]
        return [p for _, p in named if p.ndim == 2 and p.requires_grad]

    def encode_lines(self, line_BLK: Tensor) -> Tensor:
        """The encoder's vectors of the lines of pages, shape ``[B, L, W]``."""
        B, L, _ = line_BLK.shape
        # Lines are encoded independently, as B L chunks.
        return encode_chunks(self.sizes, self.t, line_BLK.flatten(0, 1)).view(B, L, -1)

    def lay_out_page(self, line_BLK: Tensor, c_BLW: Tensor, open_BL: Tensor) -> Tensor:
        """Lay out what the decoder reads of pages.

        An open chunk is read as its words, a closed one as one vector.

        Args:
            line_BLK: Token ids of the lines, shape ``[B, L, K]``.
            c_BLW: The encoder's vectors of the lines, shape ``[B, L, W]``.
            open_BL: Which chunks are read as words, equally many on each page, shape ``[B, L]``.

        Returns:
            Input vectors of the decoder, shape ``[B, T, H]``.
        """
        B, L, K = line_BLK.shape
        words = self.decoder.model.embed_tokens(line_BLK)
        # Each line has K words and its vector, S = K + 1 places, of which either are read.
        both_BLSH = torch.cat(
            [words, project_chunks(self.t, c_BLW.flatten(0, 1)).view(B, L, 1, -1)], 2
        )
        read_BLS = torch.cat([open_BL[..., None].expand(B, L, K), ~open_BL[..., None]], 2)
        # Equally many open chunks make all pages equally long, so that the selection is a
        # rectangle.
        return both_BLSH[read_BLS].view(B, -1, both_BLSH.shape[-1])


def open_chunk_mask(at_BT: Tensor, lines: int) -> Tensor:
    """Turn numbers of chunks into a mask.

    Args:
        at_BT: Numbers of the open chunks of each page, shape ``[B, T]``.
        lines: Chunks of a page, L.

    Returns:
        True where a chunk is open, shape ``[B, L]``.
    """
    return torch.zeros(len(at_BT), lines, dtype=torch.bool).scatter_(1, at_BT, True)


def at_random(rows: int, lines: int, count: int, generator: torch.Generator) -> Tensor:
    """Open some chunks of each page at random.

    Args:
        rows: Pages, B.
        lines: Chunks of a page, L.
        count: Chunks that are open, 0 to L.
        generator: Source of randomness; it is advanced.

    Returns:
        True where a chunk is open, shape ``[B, L]``.
    """
    return open_chunk_mask(
        torch.rand(rows, lines, generator=generator).argsort(-1)[:, :count], lines
    )


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs; the trainings before the last one write directories of their own."""
    out = Path(spec.out)
    # Four trainings, one after another: decoder, rewriting, answering, and the policy, which is
    # returned.
    at = str(page_reader.ensure_page_reader(spec, spec.steps))
    read = replace(spec, target=at, out=str(out / "rewriting"), steps=max(1, spec.steps * 4 // 10))
    told = run_training("context refrag, rewriting", read, rewriting_course)
    answer = replace(spec, target=at, out=str(out / "continued"), steps=2 * spec.steps)
    run_training("context refrag, continued", answer, _continued)
    last = replace(spec, steps=max(TWICE, spec.steps * 2 // 10))
    return _choosing(last, {k: told[k] for k in ("rewritten", "rewritten_nats")})


def _saved(network: RefragModel) -> Any:
    def save_result(out: Path, result: Any) -> None:
        """Write the decoder, and encoder and policy into a folder below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        page_reader.save_page_reader(out, network.decoder)
        tensors = {name: p.detach() for name, p in network.t.items()}
        vocab = TokenVocabulary(VOCAB, frozenset(), "")
        made = ChunkEncoder(vocab, network.sizes, MARKS, tensors)
        chunk_encoder.save(out / "chunks", made, {})

    return save_result


def load_refrag_model(at: Path, spec: ContextSpec, encoder: Path | None) -> RefragModel:
    """Load the decoder of one directory and the encoder of another.

    Args:
        at: Directory of the decoder.
        spec: Options; width and seed of a new encoder.
        encoder: Directory whose encoder and policy are taken; None: new ones.

    Returns:
        The model.
    """
    network = RefragModel(page_reader.load_page_reader(at), spec.encoder, spec.seed)
    if encoder is not None:
        made = chunk_encoder.load(encoder / "chunks")
        network.kept = nn.ParameterDict(dict(made.tensors))
    return network


def rewriting_curriculum_stage(spec: ContextSpec, step: int) -> int:
    """The most chunks that are rewritten at a step.

    Args:
        spec: Options; with `at_once` there is no curriculum.
        step: Step of the training, from 0.

    Returns:
        A number of `STAGES`; the last one lasts twice as long as each other.
    """
    if spec.at_once:
        return STAGES[-1]
    return STAGES[min(len(STAGES) - 1, (len(STAGES) + 1) * step // spec.steps)]


def rewriting_course(spec: ContextSpec) -> TrainingRun:
    """The training of the encoder: a frozen decoder must write lines once more from its vectors."""
    network = load_refrag_model(Path(spec.target or ""), spec, None)
    network.train_only_parts(network.encoding)

    def step_loss(step: int) -> tuple[Tensor, int]:
        most = rewriting_curriculum_stage(spec, step)
        # Every other step takes a smaller number of chunks, so that what was learned first stays.
        few = int(
            torch.randint(1, most + 1, (), generator=generator_for(spec.seed, step, "chunks"))
        )
        # Every other step has all chunks, the longest task; the others any number, so that short
        # ones stay learned.
        count = most if step % 2 == 0 else few
        line_BLK = encode_page_lines(draw_pages(spec.seed, step, spec.rows))[:, :count]
        page = network.lay_out_page(
            line_BLK, network.encode_lines(line_BLK), closed_chunk_mask(line_BLK)
        )
        return page_rewriting_nats(network.decoder, page, line_BLK)[0].mean(), spec.rows * CONTEXT

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec),
        _saved(network),
        lambda: measure_page_rewriting(network),
        deep=network.inner_matrices() if spec.muon else (),
    )


def closed_chunk_mask(line_BLK: Tensor) -> Tensor:
    """A mask with no chunk open, shape ``[B, L]``."""
    return torch.zeros(line_BLK.shape[:2], dtype=torch.bool)


@torch.no_grad()
def measure_page_rewriting(network: RefragModel) -> dict[str, Any]:
    """Measure rewriting on held-out pages, by the number of chunks.

    `rewritten` is the share of tokens that are the likeliest after the vectors, `rewritten_nats`
    nats a token.
    """
    line_BLK = encode_page_lines(draw_pages(0, 0, UNSEEN, True))
    right = dict[int, float]()
    nats = dict[int, float]()
    for count in STAGES:
        some = line_BLK[:, :count]
        told, found = page_rewriting_nats(
            network.decoder,
            network.lay_out_page(some, network.encode_lines(some), closed_chunk_mask(some)),
            some,
        )
        right[count], nats[count] = float(found.float().mean()), float(told.mean())
    return {"rewritten": right, "rewritten_nats": nats}


def _continued(spec: ContextSpec) -> TrainingRun:
    network = load_refrag_model(Path(spec.target or ""), spec, Path(spec.out).parent / "rewriting")
    # Encoder and decoder learn together from here on; the policy does not.
    network.train_only_parts(network.encoding, [*network.decoder.parameters()])

    def step_loss(step: int) -> tuple[Tensor, int]:
        pages = draw_pages(spec.seed, step, spec.rows)
        chance = generator_for(spec.seed, step, "open")
        line_BLK = encode_page_lines(pages)
        token_BU = encode_page_questions(pages)
        # One number of open chunks for the batch keeps all rows equally long.
        count = int(torch.randint(0, LINES + 1, (), generator=chance))
        open_BL = at_random(len(pages), LINES, count, chance)
        # The decoder sees open lines as tokens and the others as vectors.
        page = network.lay_out_page(line_BLK, network.encode_lines(line_BLK), open_BL)
        nats, _ = page_answer_nats(
            page_reader.page_continuation_logits(network.decoder, page, token_BU), token_BU
        )
        return nats.mean(), spec.rows * CONTEXT

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec),
        _saved(network),
        deep=network.inner_matrices() if spec.muon else (),
    )


def sample_open_chunks(score_BL: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw chunks one after another, each from the softmax of the scores of those that are left.

    Args:
        score_BL: The policy's scores, shape ``[B, L]``.
        count: Chunks to draw, 1 to L.
        generator: Source of randomness; it is advanced.

    Returns:
        Numbers of chunks in the order of the draws, shape ``[B, count]``.
    """
    # Scores with Gumbel noise, sorted, are a sample without replacement (the Gumbel-top-k trick).
    noise = -torch.empty_like(score_BL).exponential_(generator=generator).log()
    return (score_BL + noise).argsort(-1, descending=True)[:, :count]


def chance_of(score_BL: Tensor, pick_BT: Tensor) -> Tensor:
    """The log-probability of draws without replacement, in their order.

    Args:
        score_BL: The policy's scores, shape ``[B, L]``; gradients go through them.
        pick_BT: Numbers of the drawn chunks, shape ``[B, T]``.

    Returns:
        Shape ``[B]``.
    """
    out = torch.zeros(len(score_BL))
    left_BL = score_BL
    for at in range(pick_BT.shape[1]):
        pick_B1 = pick_BT[:, at : at + 1]
        out = out + left_BL.log_softmax(-1).gather(1, pick_B1)[:, 0]
        # A drawn chunk leaves the softmax of the draws after it.
        left_BL = left_BL.scatter(1, pick_B1, float("-inf"))
    return out


def grpo_loss(now_B: Tensor, before_B: Tensor, reward_GB: Tensor) -> Tensor:
    """The clipped loss of GRPO, whose baseline is the mean reward of a group.

    Args:
        now_B: Log-probability of each selection under the policy in training, shape ``[B]``; groups
            of GROUP rows follow one another.
        before_B: The same under the policy that drew them, without gradients, shape ``[B]``.
        reward_GB: Reward of each selection, one row for each group, shape ``[B / GROUP, GROUP]``.

    Returns:
        The loss.
    """
    shape = reward_GB.shape
    # Selections are compared within a page; the small number guards a group of equal rewards.
    advantage = (reward_GB - reward_GB.mean(1, keepdim=True)) / (
        reward_GB.std(1, keepdim=True) + 1e-6
    )
    ratio = (now_B - before_B).exp().view(shape)
    bound = ratio.clamp(1 - CLIP, 1 + CLIP)
    # The smaller of both bounds what a step can gain from a ratio far from 1, as in PPO.
    return -torch.minimum(ratio * advantage, bound * advantage).mean()


def _choosing(spec: ContextSpec, told: Mapping[str, Any]) -> TrainingRun:
    out = Path(spec.out)
    network = load_refrag_model(out / "continued", spec, out / "continued")

    def page_likelihoods(step: int, groups: int) -> SelectionReward:
        """Draw pages, and say what gives the likelihood of their answers.

        Args:
            step: Step of the training.
            groups: Pages.

        Returns:
            The lines, and what gives the mean log-likelihood of the right digits.
        """
        # Each page stands GROUP times, once for each selection.
        pages = [p for p in draw_pages(spec.seed, step, groups) for _ in range(GROUP)]
        token_BU = encode_page_questions(pages)

        def answer_likelihoods(page_BTH: Tensor) -> Tensor:
            logits = page_reader.page_continuation_logits(network.decoder, page_BTH, token_BU)
            return -page_answer_nats(logits, token_BU)[0].mean((1, 2))

        return encode_page_lines(pages), answer_likelihoods

    return choosing_course(
        spec,
        network,
        page_likelihoods,
        _saved(network),
        lambda: {**told, **measure_page_answers(network, spec.seed)},
    )


SelectionReward = tuple[Tensor, Callable[[Tensor], Tensor]]
"""Chunks of texts, and what gives the mean log-likelihood of what follows what the decoder reads of
them."""


def choosing_course(
    spec: ContextSpec,
    network: RefragModel,
    draw_texts: Callable[[int, int], SelectionReward],
    save: Callable[[Path, Mapping[str, Any]], None],
    measure: Callable[[], Mapping[str, Any]],
    **identity: Any,
) -> TrainingRun:
    """What trains the policy, by GRPO.

    Args:
        spec: Options of this training.
        network: The model; nothing but its policy is trained.
        draw_texts: Draws so many texts at a step, each GROUP times.
        save: Writes what was trained.
        measure: What is reported of it.
        **identity: What else tells the run from others.

    Returns:
        The training.
    """
    network.train_only_parts(network.selector_parameters)
    # A group of GROUP selections takes the memory of as many rows.
    groups = max(1, spec.rows // 4)

    @torch.no_grad()
    def draw_sample(step: int) -> dict[str, Tensor]:
        line_BLK, likelihoods = draw_texts(step, groups)
        lines = line_BLK.shape[1]
        c_BLW = network.encode_lines(line_BLK)
        score_BL = score_chunks(network.sizes, network.t, c_BLW)
        count = max(1, round(SHARE * lines))
        pick_BT = sample_open_chunks(score_BL, count, generator_for(spec.seed, step, "picks"))
        page = network.lay_out_page(line_BLK, c_BLW, open_chunk_mask(pick_BT, lines))
        # The reward of a selection is the mean log-likelihood of what follows.
        return {
            "c": c_BLW,
            "pick": pick_BT,
            "before": chance_of(score_BL, pick_BT),
            "reward": likelihoods(page).view(groups, GROUP),
        }

    # What was drawn last, for TWICE steps. As buffers of the network they lie in its checkpoint: a
    # run that goes on between these steps could not draw them again, as the weights have moved.
    drawn = nn.Module()
    for name, value in draw_sample(0).items():
        drawn.register_buffer(name, value)
    # A module of buffers, so that what was drawn is saved with the network and a run can go on.
    network.add_module("drawn", drawn)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # A sample serves for TWICE steps: to draw one costs many passes.
        if step % TWICE == 0:
            drawn.load_state_dict(draw_sample(step))
        last = drawn.state_dict()
        now = chance_of(score_chunks(network.sizes, network.t, last["c"]), last["pick"])
        return grpo_loss(now, last["before"], last["reward"]), groups * GROUP * CONTEXT

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec, **identity),
        save,
        measure,
        deep=network.inner_matrices() if spec.muon else (),
    )


@torch.no_grad()
def measure_page_answers(network: RefragModel, seed: int) -> dict[str, Any]:
    """Measure how many questions about held-out pages are answered right in all digits.

    Args:
        network: The trained model.
        seed: Seed of the control that opens chunks by chance.

    Returns:
        `right`: share with no chunk open, with some by the policy or by chance, and with all;
        `picked_records`: share of the policy's chunks that are records; `parameters`.
    """
    pages = draw_pages(0, 0, UNSEEN, True)
    line_BLK = encode_page_lines(pages)
    token_BU = encode_page_questions(pages)
    c_BLW = network.encode_lines(line_BLK)
    count = round(SHARE * LINES)
    # The policy's best chunks, without randomness.
    best = score_chunks(network.sizes, network.t, c_BLW).argsort(-1, descending=True)[:, :count]
    ways = {
        # Both ends and chance besides the policy: only between them its choice says something.
        "none open": closed_chunk_mask(line_BLK),
        "by the policy": open_chunk_mask(best, LINES),
        "by chance": at_random(len(pages), LINES, count, generator_for(seed, 0, "measured")),
        "all open": ~closed_chunk_mask(line_BLK),
    }
    right = dict[str, float]()
    for name, open_BL in ways.items():
        _, found = page_answer_nats(
            page_reader.page_continuation_logits(
                network.decoder, network.lay_out_page(line_BLK, c_BLW, open_BL), token_BU
            ),
            token_BU,
        )
        right[name] = float(found.all(-1).float().mean())
    # The lines that hold the answer's records: how many of them did the policy open?
    records = open_chunk_mask(torch.tensor([p.records for p in pages]), LINES)
    return {
        "parameters": sum(p.numel() for p in network.parameters()),
        "right": right,
        "picked_records": float(records.gather(1, best).float().mean()),
    }
