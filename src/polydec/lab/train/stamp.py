"""`polydec train stamp`: a small vision-language model that asks for masks, and the head that reads each in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.scene_masks import (
    ASKS,
    MARK,
    MaskQuestion,
    draw_mask_questions,
    mask_words,
    patch_mask,
)
from polydec.lab.train.scenes import SIDE, Scene, SceneQuestion, draw_scene, draw_scene_pixels
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.stamp import StampSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.vision import (
    CONTEXT,
    HEAD,
    MARKS,
    PATCH,
    PATCHES,
    TrainableLlava,
    normalised_pixels,
    published_files,
    question_ids,
    save_llava,
)
from polydec.models.learned.kinds import mask_head
from polydec.models.learned.kinds.mask_head import MaskHead
from polydec.models.sessions import sources
from polydec.models.sessions.sources import CheckpointFiles

JUDGED = 128
"""Held-out scenes that are measured."""
EMBEDDINGS = "language_model.model.embed_tokens.weight"


@dataclass(frozen=True, eq=False)
class MaskExample:
    """A picture, and what is asked of it.

    Attributes:
        scene: What it shows.
        pixels: Red, green and blue, ``[SIDE, SIDE, 3]``, uint8.
        questions: What is asked, and which masks are right.
    """

    scene: Scene
    pixels: np.ndarray
    questions: tuple[MaskQuestion, ...]


@dataclass(frozen=True, eq=False)
class MaskRows:
    """The questions of some pictures with their answers and masks, a row a picture. Each question stands
    right behind the image and sees the image and itself alone; the tokens of a mask stand behind the
    one that asks for it, see the text up to it and one another, and no text sees them.

    Attributes:
        token_BT: Token ids; short rows are filled up with 0.
        position_BT: Positions of the tokens.
        question_BT: Numbers of the questions that tokens belong to, -1 behind the last.
        mask_BT: Numbers of the masks that tokens belong to, in the order of `right_MN`; -1: to a text.
        cell_BT: The patches that tokens of masks stand for; 0 elsewhere.
        until_BT: The place in the row of the last token of the text that a token sees: its own, or of a
            mask that of the token that asks.
        right_BT: The token that is right behind each token of an answer; -1 behind others.
        right_MN: Of each mask, whether patches belong to it.
        causal: Whether tokens of a mask see none behind them.
    """

    token_BT: Tensor
    position_BT: Tensor
    question_BT: Tensor
    mask_BT: Tensor
    cell_BT: Tensor
    until_BT: Tensor
    right_BT: Tensor
    right_MN: Tensor
    causal: bool

    @property
    def seen_BTT(self) -> Tensor:
        """Whether the token of a row sees that of a column, the vectors of the image before them
        included: shape ``[B, PATCHES + T, PATCHES + T]``."""
        B, T = self.token_BT.shape
        # By their places in the row, which rise within a question.
        at_T = torch.arange(T)
        of_text_BT = self.mask_BT < 0
        same_question_BTT = self.question_BT[:, :, None] == self.question_BT[:, None]
        text_BTT = same_question_BTT & of_text_BT[:, None] & (at_T <= self.until_BT[:, :, None])
        # The tokens of a mask are a group of their own, which no other token sees into.
        same_mask_BTT = (self.mask_BT[:, :, None] == self.mask_BT[:, None]) & ~of_text_BT[:, None]
        if self.causal:
            same_mask_BTT = same_mask_BTT & (at_T <= at_T[:, None])
        whole = torch.zeros(B, PATCHES + T, PATCHES + T, dtype=torch.bool)
        # An image is read as a text is, patch after patch, and seen by all behind it.
        whole[:, :PATCHES, :PATCHES] = torch.ones(PATCHES, PATCHES, dtype=torch.bool).tril()
        whole[:, PATCHES:, :PATCHES] = True
        whole[:, PATCHES:, PATCHES:] = text_BTT | same_mask_BTT
        return whole


class MaskingLlava(nn.Module):
    """A vision-language model, and the map that says of a state whether its patch belongs to a mask."""

    def __init__(self, llava: TrainableLlava, width: int, seed: int) -> None:
        super().__init__()
        self.llava = llava
        # The global generator is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.head = nn.Linear(width, 1)
        # Most patches belong to no mask.
        nn.init.constant_(self.head.bias, -1.0)

    def forward(self, pixels_BCHW: Tensor, rows: MaskRows) -> Tensor:
        """States behind each token of questions, answers and masks.

        Args:
            pixels_BCHW: The pictures.
            rows: What stands behind them.

        Returns:
            States that are ready for the head of the language model, ``[B, T, width]``.
        """
        llava = self.llava
        image_BPH = llava.image_vectors(llava.tower(pixels_BCHW))
        entered_BTH = llava.language.model.embed_tokens(rows.token_BT)
        # The vector of its patch lies on top of what stands for a patch.
        row_B1 = torch.arange(len(image_BPH))[:, None]
        own_BTH = image_BPH[row_B1, rows.cell_BT] * (rows.mask_BT >= 0)[..., None]
        return llava.states_behind(
            image_BPH, entered_BTH + own_BTH, rows.position_BT, rows.seen_BTT
        )

    def mask_logits(self, state_BTH: Tensor, rows: MaskRows) -> Tensor:
        """Say of each patch of each mask whether it belongs to it.

        Args:
            state_BTH: States of the rows.
            rows: The rows.

        Returns:
            Logits in the order of `right_MN`, ``[M, N]``.
        """
        # Masks follow one another in the rows, and patches in a mask.
        return self.head(state_BTH[rows.mask_BT >= 0])[:, 0].view(-1, PATCHES)


def train_stamp(spec: StampSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads, with the head in a folder of it.

    Scenes whose caption has a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, or the target is no model of `train vision`.
        FileError: The target cannot be read.

    Source: "Better, stronger, faster: tackling the trilemma in MLLM-based segmentation with simultaneous
    textual mask prediction" (STAMP, 2025); all weights are trained here, on scenes that are drawn.
    """
    return run_training("stamp", spec, _course)


def _course(spec: StampSpec) -> TrainingRun:
    # Read as it lies there: nothing of the target itself is written.
    source = sources.open_source(spec.target)
    own = scene_model_words(source, spec.target)
    if ASKS in own:
        raise RequestError(
            f"target is {spec.target!r}: it asks for masks already, so begin with another"
        )
    words = (*own, *mask_words())
    sizes, shape = scene_model_sizes(source.config, spec.out, spec.seed, len(words))
    network = MaskingLlava(TrainableLlava(sizes, shape), shape.width, spec.seed)
    network.llava.read_published(grown_tensors(source, len(words), spec.seed))
    # A word is a token, so its number is its id.
    ids = {word: at for at, word in enumerate(words)}

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 31, step])
        examples = [draw_mask_example(rng, unseen=False) for _ in range(spec.rows)]
        rows = pack_masks(examples, ids, causal=spec.causal, written=spec.written)
        return mask_training_loss(network, examples, rows, spec), spec.rows

    def measure_result() -> Mapping[str, Any]:
        # Other draws than any step's, so that no scene is met twice by design.
        rng = np.random.default_rng([spec.seed, 32])
        unseen = [draw_mask_example(rng, unseen=True) for _ in range(JUDGED)]
        right, overlap = measure_masks(network, unseen, ids, spec)
        return {
            "parameters": sum(t.numel() for t in network.llava.published_tensors().values()),
            "held_out_right": right,
            "held_out_overlap": overlap,
            "out": spec.out,
        }

    def save_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write the model, and the head in a folder of it.

        Args:
            at: Directory to write.
            result: What was measured; the overlap goes into the head's files.
        """
        save_llava(at, network.llava, published_files(sizes, shape, words, (ASKS, MARK)))
        # A mask that is written in words needs no head.
        if spec.written:
            return
        # The head belongs to the model as it was written, tokenizer and all.
        vocab = TokenVocabulary(len(words), frozenset(), sources.open_source(str(at)).fingerprint)
        side = SIDE // PATCH
        weight_H = network.head.weight[0].detach()
        head = MaskHead(
            vocab, ids[ASKS], ids[MARK], side, side, PATCH, weight_H, network.head.bias.item()
        )
        mask_head.save(at / "head", head, {"held_out_overlap": result["held_out_overlap"]})

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec),
        save_at,
        measure_result,
        deep=network.llava.layer_matrices if spec.muon else (),
    )


def scene_model_words(source: CheckpointFiles, name: str) -> tuple[str, ...]:
    """The words of a model of `train vision`, in the order of their tokens.

    Args:
        source: Files of the model.
        name: What messages call it.

    Returns:
        The words.

    Raises:
        RequestError: It is no such model.
    """
    # Pictures of scenes have one size, and a mask one grid.
    tower = source.config.get("vision_config")
    sizes = (SIDE, PATCH)
    if (
        source.config.get("model_type") != "llava"
        or not isinstance(tower, Mapping)
        or (tower.get("image_size"), tower.get("patch_size")) != sizes
    ):
        raise RequestError(
            f"target is {name!r}: this is trained for models of `polydec train vision`, which read images of {SIDE} pixels "
            f"in patches of {PATCH}"
        )
    # In the order of their ids, as the table has its rows.
    vocab = source.text.tokenizer.get_vocab()
    own = sorted(vocab, key=lambda word: vocab[word])
    if own[: len(MARKS)] != list(MARKS):
        raise RequestError(
            f"target is {name!r}: this is trained for models of `polydec train vision`, whose first words are its marks"
        )
    return tuple(own)


def scene_model_sizes(
    config: Mapping[str, Any], out: str, seed: int, vocab: int
) -> tuple[VisionSpec, LlamaShape]:
    """The sizes of a model of `train vision` with a vocabulary of this size.

    Args:
        config: Its config.
        out: Where what is trained goes.
        seed: Of the training.
        vocab: Tokens that it shall have.

    Returns:
        Those of its parts, and those of the language model.
    """
    tower = config["vision_config"]
    text = config["text_config"]
    sizes = VisionSpec(
        out,
        width=text["hidden_size"],
        layers=text["num_hidden_layers"],
        tower_width=tower["hidden_size"],
        tower_layers=tower["num_hidden_layers"],
        seed=seed,
    )
    heads = sizes.width // HEAD
    return sizes, LlamaShape(
        vocab, sizes.width, sizes.layers, heads, heads, 3 * sizes.width, CONTEXT
    )


def grown_tensors(source: CheckpointFiles, vocab: int, seed: int) -> Mapping[str, Tensor]:
    """The tensors of a model whose table has rows for new words.

    Args:
        source: Files of the model.
        vocab: Rows that the table shall have.
        seed: Of the new rows: the mean of the others, moved a little.

    Returns:
        The tensors by name.
    """
    own_VH = source.weights[EMBEDDINGS].float()
    # Equal rows would be told apart by nothing, and learn alike.
    generator = torch.Generator().manual_seed(seed)
    moved = 0.1 * torch.randn(vocab - len(own_VH), own_VH.shape[1], generator=generator)
    new = own_VH.mean(0) + moved * own_VH.std()
    return {**source.weights, EMBEDDINGS: torch.cat([own_VH, new])}


def draw_mask_example(rng: np.random.Generator, *, unseen: bool) -> MaskExample:
    """Draw a scene, and ask for masks of it in all ways.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        The picture and the questions.
    """
    # The paper and the questions are drawn behind the scene, from the same stream.
    scene = draw_scene(rng, unseen=unseen)
    return MaskExample(scene, draw_scene_pixels(scene, rng), draw_mask_questions(scene, rng))


def pack_masks(
    examples: Sequence[MaskExample], ids: Mapping[str, int], *, causal: bool, written: bool
) -> MaskRows:
    """Lay the questions of some pictures side by side, with the tokens of their masks.

    Args:
        examples: Pictures with questions.
        ids: Token ids by word.
        causal: Whether tokens of a mask see none behind them.
        written: Whether masks are words of the answers, in place of tokens of their own.

    Returns:
        The rows, one a picture.
    """
    # In this order: token, position, question, mask, patch, last place that is seen, right token.
    lists = list[Tensor]()
    rights = list[np.ndarray]()
    for example in examples:
        columns: list[list[int]] = [[] for _ in range(7)]
        for number, question in enumerate(example.questions):
            answer = question.written_answer(PATCH) if written else question.answer
            asked, said = question_ids(SceneQuestion(question.asked, answer, question.kind), ids)
            text = [*asked, *said]
            first = len(columns[0])
            # The mark before an answer tells its first word; behind its end nothing is asked.
            right = [*[-1] * (len(asked) - 1), *said, -1]
            for at, token in enumerate(text):
                _append(columns, token, PATCHES + at, number, -1, 0, first + at, right[at])
            if written:
                continue
            # As many masks as tokens that ask for one.
            places = [at for at, token in enumerate(text) if token == ids[ASKS]]
            # Behind each token that asks, at the places that would follow it.
            for at, things in zip(places, question.masks, strict=True):
                for cell in range(PATCHES):
                    where = PATCHES + at + 1 + cell
                    _append(columns, ids[MARK], where, number, len(rights), cell, first + at, -1)
                rights.append(patch_mask(things, PATCH).flatten())
        lists.append(torch.tensor(columns).T)
    # What fills rows up belongs to no question, and sees what fills rows up.
    whole_BTC = pad_sequence(lists, batch_first=True, padding_value=-1)
    token, position, question, mask, cell, until, right = whole_BTC.unbind(-1)
    places_T = torch.arange(token.shape[1]).expand_as(token)
    return MaskRows(
        token.clamp_min(0),
        position.clamp_min(0),
        question,
        mask,
        cell.clamp_min(0),
        torch.where(question < 0, places_T, until),
        right,
        torch.from_numpy(np.array(rights, dtype=np.float32).reshape(-1, PATCHES)),
        causal,
    )


def _append(columns: list[list[int]], *values: int) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def mask_training_loss(
    network: MaskingLlava, examples: Sequence[MaskExample], rows: MaskRows, spec: StampSpec
) -> Tensor:
    """How badly a model tells answers and masks.

    Args:
        network: The model.
        examples: Pictures with questions.
        rows: Their questions, answers and masks.
        spec: Options; the weights of the losses are read.

    Returns:
        Nats a token of an answer, and of each mask the weighted losses of its patches.
    """
    state_BTH = network(normalised_pixels([x.pixels for x in examples]), rows)
    asked_BT = rows.right_BT >= 0
    logits_NV = network.llava.language.token_logits(state_BTH[asked_BT])
    loss = F.cross_entropy(logits_NV, rows.right_BT[asked_BT])
    # Masks that are written are learned as words.
    if not len(rows.right_MN):
        return loss
    logit_MN = network.mask_logits(state_BTH, rows)
    each = F.binary_cross_entropy_with_logits(logit_MN, rows.right_MN)
    return loss + spec.cross_entropy * each + spec.dice * dice_loss(logit_MN, rows.right_MN)


def dice_loss(logit_MN: Tensor, right_MN: Tensor) -> Tensor:
    """How little masks overlap those that are right.

    Args:
        logit_MN: A logit of each patch of each mask.
        right_MN: 1 where a patch belongs to it, else 0.

    Returns:
        The mean over masks of 1 less twice what both cover, over what each covers, with 1 added to both.

    Source: Milletari et al., "V-Net" (2016), the loss.
    """
    # Soft counts, so that every patch pulls.
    chance_MN = logit_MN.sigmoid()
    both_M = (chance_MN * right_MN).sum(1)
    each_M = chance_MN.sum(1) + right_MN.sum(1)
    return (1 - (2 * both_M + 1) / (each_M + 1)).mean()


@torch.no_grad()
def measure_masks(
    network: MaskingLlava, examples: Sequence[MaskExample], ids: Mapping[str, int], spec: StampSpec
) -> tuple[dict[str, float], dict[str, float]]:
    """By kind of question how much is right, behind the right words.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.
        spec: Options; causal and written are read.

    Returns:
        The share of answers of which every word, and the end, is the likeliest; and the mean overlap of
        masks (intersection over union), of which there are none where masks are written.
    """
    right = dict[str, list[bool]]()
    overlap = dict[str, list[float]]()
    # In parts, so that memory does not grow with the number of examples.
    for at in range(0, len(examples), 32):
        chosen = examples[at : at + 32]
        rows = pack_masks(chosen, ids, causal=spec.causal, written=spec.written)
        state_BTH = network(normalised_pixels([x.pixels for x in chosen]), rows)
        # Behind the right words each, as greedy decoding writes them where all are right.
        best_BT = network.llava.language.token_logits(state_BTH).argmax(-1)
        good_BT = (best_BT == rows.right_BT) | (rows.right_BT < 0)
        kinds = list[str]()
        for b, example in enumerate(chosen):
            for k, question in enumerate(example.questions):
                whole = bool(good_BT[b][rows.question_BT[b] == k].all())
                right.setdefault(question.kind, []).append(whole)
                kinds += [question.kind] * len(question.masks)
        # What is written in words is measured as text alone here.
        if spec.written:
            continue
        made_MN = network.mask_logits(state_BTH, rows) > 0
        for kind, share in zip(kinds, mask_overlaps(made_MN, rows.right_MN > 0), strict=True):
            overlap.setdefault(kind, []).append(share)
    return tuple(  # pyright: ignore[reportReturnType]
        {kind: float(np.mean(found)) for kind, found in sorted(each.items())}
        for each in (right, overlap)
    )


def mask_overlaps(made_MN: Tensor, right_MN: Tensor) -> list[float]:
    """Intersection over union of masks.

    Args:
        made_MN: Masks, bool.
        right_MN: Those that are right, bool, none of them empty.

    Returns:
        A share a mask, 0 to 1.
    """
    # No right mask is empty, so nothing is divided by 0.
    both_M = (made_MN & right_MN).sum(1)
    any_M = (made_MN | right_MN).sum(1)
    return (both_M / any_M).tolist()
