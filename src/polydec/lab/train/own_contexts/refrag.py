"""REFRAG for a model of one's own, on running text.

The first half of each text is a passage between two marks, and the second half follows it. Three
trainings: the encoder alone learns that the frozen model can write chunks once more from its vectors,
one chunk first and then more (curriculum); encoder and model learn to foretell what follows a
passage, with chunks read as tokens at random; and the policy learns which chunks to read as tokens
(`choosing_course` of `lab/train/contexts/refrag.py`), by how likely they make what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.contexts.refrag import (
    GROUP,
    SHARE,
    TWICE,
    RefragModel,
    SelectionReward,
    at_random,
    choosing_course,
    closed_chunk_mask,
    open_chunk_mask,
    rewriting_curriculum_stage,
)
from polydec.lab.train.data import BEGIN
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.own_model import OwnContextModel, own_model_schedule
from polydec.lab.train.page_reader import CLOSING, OPENING, page_reader_schedule
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.models.learned.kinds import chunk_encoder
from polydec.models.learned.kinds.chunk_encoder import ChunkEncoder, score_chunks
from polydec.models.learned.passages import PassageMarks


@dataclass(frozen=True, eq=False)
class OwnPassages:
    """Texts of one length, whose first half is a passage.

    Attributes:
        model: The model with its tokenizer.
        learned_NT: Token ids to learn from, shape ``[N, T]``.
        unseen_NT: Held-out ones, likewise.
        chunk: Tokens of a chunk, K.
    """

    model: OwnContextModel
    learned_NT: Tensor
    unseen_NT: Tensor
    chunk: int

    @staticmethod
    def of_spec(spec: ContextSpec) -> OwnPassages:
        """Read the model and the texts of a spec.

        Raises:
            RequestError: They cannot be taken, or a text is too short for a chunk or too long.
        """
        if spec.length < 2 * spec.chunk:
            raise RequestError(
                f"length is {spec.length}: half of a text is the passage, so with chunks of {spec.chunk} it must be at least "
                f"{2 * spec.chunk}"
            )
        model = OwnContextModel.load_own(spec, (OPENING, CLOSING), (OPENING, CLOSING))
        # BEGIN and the two marks stand beside a text.
        if spec.length + 3 > model.network.s.context:
            raise RequestError(
                f"length is {spec.length}: {spec.target} has a context of {model.network.s.context}, three marks included"
            )
        learned, unseen = texts_of_length(spec, spec.length, model.tokenizer)
        return OwnPassages(model, torch.tensor(learned), torch.tensor(unseen), spec.chunk)

    @property
    def text_digest(self) -> str:
        """A digest that tells these texts from others."""
        return tensor_digest(self.learned_NT, self.unseen_NT)

    def split_texts(self, token_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The chunks of each passage, shape ``[B, L, K]``, and what follows it, ``[B, U]``."""
        # Whole chunks alone: what is left of the first half follows the passage.
        lines = token_BT.shape[1] // 2 // self.chunk
        at = lines * self.chunk
        return token_BT[:, :at].unflatten(1, (lines, self.chunk)), token_BT[:, at:]

    def draw_texts(self, seed: int, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """The texts of a step, split.

        Args:
            seed: Seed of the run.
            step: Step of the training.
            rows: Texts, drawn without repetition.

        Returns:
            As `split_texts` gives them.
        """
        order_N = torch.randperm(len(self.learned_NT), generator=generator_for(seed, step, "rows"))
        return self.split_texts(self.learned_NT[order_N[:rows]])

    def followed_nats(
        self, decoder: TrainableLlama, page_BTH: Tensor, told_BU: Tensor
    ) -> tuple[Tensor, Tensor]:
        """How well tokens are foretold behind passages, each given those before it.

        Args:
            decoder: The decoder.
            page_BTH: Input vectors of the passages, shape ``[B, T, H]``.
            told_BU: Token ids behind them, shape ``[B, U]``.

        Returns:
            Nats of each token, and whether it is the likeliest one, both of shape ``[B, U]``.
        """
        trunk = decoder.model
        mark = self.model.mark_token
        before, behind = (
            trunk.embed_tokens(torch.tensor([mark(x) for x in names])).expand(
                len(told_BU), len(names), -1
            )
            for names in ((BEGIN, OPENING), (CLOSING,))
        )
        # The closing mark foretells the first token.
        x = torch.cat([before, page_BTH, behind, trunk.embed_tokens(told_BU[:, :-1])], dim=1)
        state = forward_with_past(trunk, x)[0][:, -told_BU.shape[1] :]
        logits = decoder.token_logits(trunk.norm(state))
        nats = F.cross_entropy(logits.flatten(0, 1), told_BU.flatten(), reduction="none")
        return nats.view(told_BU.shape), logits.argmax(-1) == told_BU

    def chunk_nats(self, decoder: TrainableLlama, line_BLK: Tensor) -> Tensor:
        """Mean nats a token of each chunk, behind the opening mark and the chunks before it.

        Args:
            decoder: The decoder.
            line_BLK: Token ids of the chunks, shape ``[B, L, K]``.

        Returns:
            Shape ``[B, L]``.
        """
        before = torch.tensor([self.model.mark_token(x) for x in (BEGIN, OPENING)])
        token_BT = torch.cat([before.expand(len(line_BLK), -1), line_BLK.flatten(1)], dim=1)
        # The opening mark foretells the first token.
        # What the model as a reader of words finds hard, whatever vectors say of it.
        logits = decoder(token_BT)[:, 1:-1]
        nats = F.cross_entropy(logits.flatten(0, 1), token_BT[:, 2:].flatten(), reduction="none")
        return nats.view(line_BLK.shape).mean(-1)

    def save_refrag(self, network: RefragModel) -> Callable[[Path, Any], None]:
        """What writes the model, and encoder and policy into a folder below it."""

        def save_result(out: Path, result: Any) -> None:
            """Write them.

            Args:
                out: Directory to write.
                result: What was measured; it is not used.
            """
            self.model.save_own(out, network.decoder)
            # The file names the vocabulary's size and does not hold it.
            vocab = TokenVocabulary(network.sizes.vocab, frozenset(), "")
            marks = PassageMarks(self.model.mark_token(OPENING), self.model.mark_token(CLOSING))
            tensors = {name: p.detach() for name, p in network.t.items()}
            made = ChunkEncoder(vocab, network.sizes, marks, tensors)
            chunk_encoder.save(out / "chunks", made, {})

        return save_result

    def load_refrag(self, spec: ContextSpec, at: Path | None) -> RefragModel:
        """The model with its encoder.

        Args:
            spec: Options; width and seed of a new encoder.
            at: Directory of an earlier training; None: the model as it is, and a new encoder.

        Returns:
            The model.
        """
        if at is None:
            return RefragModel(self.model.network, spec.encoder, spec.seed, self.chunk)
        # Model and encoder of an earlier training lie in one directory.
        network = RefragModel(load_directory(str(at)), spec.encoder, spec.seed, self.chunk)
        network.kept = nn.ParameterDict(dict(chunk_encoder.load(at / "chunks").tensors))
        return network


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs; the trainings before the last one write directories of their own.

    Raises:
        RequestError: The model or the data cannot be taken.
    """
    out = Path(spec.out)
    read = replace(spec, out=str(out / "rewriting"), steps=max(1, spec.steps * 4 // 10))
    told = run_training("context refrag, rewriting", read, own_rewriting_course)
    follow = replace(spec, out=str(out / "continued"))
    run_training("context refrag, continued", follow, own_continued_course)
    # The policy is trained last, and over a model that stays as it is.
    last = replace(spec, steps=max(TWICE, spec.steps * 2 // 10))
    texts = OwnPassages.of_spec(spec)
    network = texts.load_refrag(spec, out / "continued")

    def followed_likelihoods(step: int, groups: int) -> SelectionReward:
        """Draw texts, and say what gives the likelihood of their second halves.

        Args:
            step: Step of the training.
            groups: Texts.

        Returns:
            The chunks, and what gives the mean log-likelihood of what follows them.
        """
        # Each text stands GROUP times, once for each selection.
        line_BLK, told_BU = texts.draw_texts(spec.seed, step, groups)
        each_BU = told_BU.repeat_interleave(GROUP, 0)
        return line_BLK.repeat_interleave(
            GROUP, 0
        ), lambda page_BTH: -texts.followed_nats(network.decoder, page_BTH, each_BU)[0].mean(1)

    return choosing_course(
        last,
        network,
        followed_likelihoods,
        texts.save_refrag(network),
        lambda: {"rewritten": told["rewritten"], **measure_followed(texts, network, spec.seed)},
        rows_read=texts.text_digest,
    )


def own_rewriting_course(spec: ContextSpec) -> TrainingRun:
    """The training of the encoder: the frozen model must write chunks once more from its vectors."""
    texts = OwnPassages.of_spec(spec)
    network = texts.load_refrag(spec, None)
    # The model is frozen, so that vectors must say what it can read.
    network.train_only_parts(network.encoding)

    def step_loss(step: int) -> tuple[Tensor, int]:
        line_BLK, _ = texts.draw_texts(spec.seed, step, spec.rows)
        most = rewriting_curriculum_stage(spec, step)
        dice = generator_for(spec.seed, step, "chunks")
        few = int(torch.randint(1, most + 1, (), generator=dice))
        # Every other step has the most chunks of its stage, so that half of the steps are as hard.
        some = line_BLK[:, : most if step % 2 == 0 else few]
        return rewritten_tokens(texts, network, some)[0].mean(), some.numel()

    @torch.no_grad()
    def measure_result() -> Mapping[str, Any]:
        line_BLK, _ = texts.split_texts(texts.unseen_NT)
        # Of one chunk, which is what the first stage learns.
        right = rewritten_tokens(texts, network, line_BLK[:, :1])[1]
        return {"rewritten": float(right.float().mean())}

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec, rows_read=texts.text_digest),
        texts.save_refrag(network),
        measure_result,
        deep=network.inner_matrices() if spec.muon else (),
    )


def rewritten_tokens(
    texts: OwnPassages, network: RefragModel, line_BLK: Tensor
) -> tuple[Tensor, Tensor]:
    """How well chunks are written once more behind their own vectors.

    Args:
        texts: The texts.
        network: The model.
        line_BLK: Token ids of the chunks, shape ``[B, L, K]``.

    Returns:
        Nats of each token, and whether it is the likeliest one, both of shape ``[B, L K]``.
    """
    page = network.lay_out_page(
        line_BLK, network.encode_lines(line_BLK), closed_chunk_mask(line_BLK)
    )
    return texts.followed_nats(network.decoder, page, line_BLK.flatten(1))


def own_continued_course(spec: ContextSpec) -> TrainingRun:
    """The training of model and encoder together: what follows a passage is foretold."""
    texts = OwnPassages.of_spec(spec)
    network = texts.load_refrag(spec, Path(spec.out).parent / "rewriting")
    # The model learns to read vectors, and the encoder to say what it reads best.
    network.train_only_parts(network.encoding, [*network.decoder.parameters()])

    def step_loss(step: int) -> tuple[Tensor, int]:
        line_BLK, told_BU = texts.draw_texts(spec.seed, step, spec.rows)
        lines = line_BLK.shape[1]
        chance = generator_for(spec.seed, step, "open")
        # One number of open chunks for all rows keeps them equally long.
        count = int(torch.randint(0, lines + 1, (), generator=chance))
        open_BL = at_random(len(line_BLK), lines, count, chance)
        page = network.lay_out_page(line_BLK, network.encode_lines(line_BLK), open_BL)
        return texts.followed_nats(network.decoder, page, told_BU)[0].mean(), told_BU.numel()

    return TrainingRun(
        network,
        step_loss,
        own_model_schedule(spec),
        run_identity(spec, rows_read=texts.text_digest),
        texts.save_refrag(network),
    )


@torch.no_grad()
def measure_followed(texts: OwnPassages, network: RefragModel, seed: int) -> Mapping[str, Any]:
    """Measure what held-out texts cost behind their passages, by what is read as tokens.

    Args:
        texts: The texts.
        network: The trained model.
        seed: Seed of the control that opens chunks by chance.

    Returns:
        `nats` a token with no chunk read as tokens, with a fourth of them by the policy, by the
        model's perplexity or by chance, and with all; without the passage; and of the model as it was, with the passage as
        tokens. `parameters`.
    """
    line_NLK, told_NU = texts.split_texts(texts.unseen_NT)
    rows, lines = line_NLK.shape[:2]
    c_NLW = network.encode_lines(line_NLK)
    count = max(1, round(SHARE * lines))
    # The policy's best chunks, without randomness.
    best = score_chunks(network.sizes, network.t, c_NLW).argsort(-1, descending=True)[:, :count]
    ways = {
        "none open": closed_chunk_mask(line_NLK),
        "by the policy": open_chunk_mask(best, lines),
        "by perplexity": open_chunk_mask(
            texts.chunk_nats(network.decoder, line_NLK).argsort(-1, descending=True)[:, :count],
            lines,
        ),
        "by chance": at_random(rows, lines, count, generator_for(seed, 0, "measured")),
        "all open": ~closed_chunk_mask(line_NLK),
    }
    nats = dict[str, float]()
    for name, open_NL in ways.items():
        page = network.lay_out_page(line_NLK, c_NLW, open_NL)
        nats[name] = float(texts.followed_nats(network.decoder, page, told_NU)[0].mean())
    # What the passage is worth at all: the marks alone, with nothing between them.
    empty = torch.zeros(rows, 0, network.decoder.s.width)
    nats["no passage"] = float(texts.followed_nats(network.decoder, empty, told_NU)[0].mean())
    # The model as it was reads plain text, without marks.
    begin_N1 = torch.full((rows, 1), texts.model.mark_token(BEGIN))
    before = texts.model.network
    logits = before(torch.cat([begin_N1, texts.unseen_NT[:, :-1]], dim=1))
    told = logits[:, -told_NU.shape[1] :]
    nats["before"] = float(F.cross_entropy(told.flatten(0, 1), told_NU.flatten()))
    return {"parameters": sum(p.numel() for p in network.parameters()), "nats": nats}
