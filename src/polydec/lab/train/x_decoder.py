"""`polydec train x-decoder`: a query decoder for a small vision-language model, on scenes that are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.scene_masks import patch_mask
from polydec.lab.train.scenes import (
    COLOURS,
    THINGS,
    Scene,
    ScenePart,
    caption_of,
    draw_scene,
    draw_scene_pixels,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.x_decoder import HEADS, XDecoderSpec
from polydec.lab.train.stamp import (
    dice_loss,
    mask_overlaps,
    scene_model_sizes,
    scene_model_words,
)
from polydec.lab.train.vision import (
    ANSWER,
    END,
    PATCH,
    SIDE,
    TrainableLlava,
    normalised_pixels,
)
from polydec.models.learned.kinds import query_decoder
from polydec.models.learned.kinds.query_decoder import (
    QueryDecoder,
    padded_tokens,
    phrase_logits,
)
from polydec.models.nets.query_decoder import (
    FINER,
    ImageFeatures,
    QueryDecoderNetwork,
    QuerySizes,
)
from polydec.models.sessions import sources

CELL = PATCH // FINER
"""Pixels of a side of a cell of a mask."""
JUDGED = 128
"""Held-out scenes that are measured."""
UNNAMED = 0.1
"""What a query without a thing weighs in the loss of names, as most queries have none."""


@dataclass(frozen=True, eq=False)
class QueryExample:
    """A picture, and what is asked of it.

    Attributes:
        scene: What it shows.
        pixels: Red, green and blue, ``[SIDE, SIDE, 3]``, uint8.
        about: The thing whose region is captioned. None: the whole picture is.
        referred: Number of the thing that the phrase speaks of.
        phrase: The phrase.
    """

    scene: Scene
    pixels: np.ndarray
    about: ScenePart | None
    referred: int
    phrase: str

    @property
    def right_caption(self) -> str:
        """What is right."""
        return caption_of(self.scene) if self.about is None else self.about.full_description


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """Examples in numbers.

    Attributes:
        vector_BPH: Vectors of the pictures.
        caption_BT: Token ids of captions behind the mark before one; short ones are filled up.
        right_BT: The token that is right behind each; -1 behind the end.
        region_BF: Cells that captions are about.
        whole: Token ids of a caption of the whole picture of each.
        phrases: Token ids of the phrases.
        referred: Numbers of the things that they speak of.
        masks: Of each picture the cells of its things, ``[things, F]``, 0 or 1.
        names: Of each picture the numbers of its things' names.
    """

    vector_BPH: Tensor
    caption_BT: Tensor
    right_BT: Tensor
    region_BF: Tensor
    whole: tuple[tuple[int, ...], ...]
    phrases: tuple[tuple[int, ...], ...]
    referred: tuple[int, ...]
    masks: tuple[Tensor, ...]
    names: tuple[tuple[int, ...], ...]


def thing_names() -> tuple[str, ...]:
    """What things are called: a colour and a thing."""
    return tuple(f"{colour} {thing}" for colour in COLOURS for thing in THINGS)


def train_x_decoder(spec: XDecoderSpec) -> dict[str, Any]:
    """Train a query decoder on the vectors that the target has of images, and save it at spec.out.

    The target itself stays as it is. Scenes whose caption has a `hash_bucket` of 7 to 9 are held out and
    measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong, or the target is no model of `train vision`.
        FileError: The target cannot be read.

    Source: Zou et al., "Generalized decoding for pixel, image, and language" (2022), the losses; things
    are given to queries once, by the last layer, and the scenes are drawn here.
    """
    return run_training("x-decoder", spec, _course)


def _course(spec: XDecoderSpec) -> TrainingRun:
    source = sources.open_source(spec.target)
    words = scene_model_words(source, spec.target)
    vision_spec, shape = scene_model_sizes(source.config, spec.out, spec.seed, len(words))
    # Read as it lies there, and not trained.
    llava = TrainableLlava(vision_spec, shape)
    llava.read_published({name: source.weights[name] for name in source.weights})
    llava.requires_grad_(False)
    side = SIDE // PATCH
    sizes = QuerySizes(
        len(words),
        shape.width,
        side,
        side,
        spec.width,
        HEADS,
        spec.layers,
        spec.objects,
        spec.longest,
        spec.text_layers,
        spec.masked,
    )
    # The global generator is left as it was.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(spec.seed)
        network = QueryDecoderNetwork(sizes)
    ids = {word: at for at, word in enumerate(words)}

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 51, step])
        examples = [draw_query_example(rng, unseen=False) for _ in range(spec.rows)]
        return query_decoder_loss(network, pack_queries(examples, llava, ids), ids, spec), spec.rows

    def measure_result() -> Mapping[str, Any]:
        # Other draws than any step's.
        rng = np.random.default_rng([spec.seed, 52])
        unseen = [draw_query_example(rng, unseen=True) for _ in range(JUDGED)]
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            **measure_queries(network, pack_queries(unseen, llava, ids), ids),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the query decoder as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        vocab = TokenVocabulary(len(words), frozenset(), source.fingerprint)
        tensors = {name: t.detach() for name, t in network.state_dict().items()}
        # What `names=all` asks for.
        names = tuple(token_ids(name, ids) for name in thing_names())
        made = QueryDecoder(vocab, sizes, ids[ANSWER], ids[END], CELL, names, tensors)
        query_decoder.save(out, made, {"target": spec.target})

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec),
        save_result,
        measure_result,
        deep=network.layer_matrices if spec.muon else (),
    )


def token_ids(text: str, ids: Mapping[str, int]) -> tuple[int, ...]:
    """Token ids of a text, in words that a space parts.

    Args:
        text: The text.
        ids: Token ids by word.

    Returns:
        One id for each word.
    """
    return tuple(ids[word] for word in text.split())


def draw_query_example(rng: np.random.Generator, *, unseen: bool) -> QueryExample:
    """Draw a scene, and what is asked of it.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        The picture: half of them are captioned as a whole, of the others one thing.
    """
    scene = draw_scene(rng, unseen=unseen)
    pixels = draw_scene_pixels(scene, rng)
    about = scene[int(rng.integers(len(scene)))] if rng.random() < 0.5 else None
    referred = int(rng.integers(len(scene)))
    part = scene[referred]
    # Things and places are of one kind each in a scene, so all of these mean one thing.
    phrases = (
        part.full_description,
        f"the {part.colour} {part.thing}",
        f"the {part.thing}",
        f"what is at {part.place_words}",
    )
    return QueryExample(scene, pixels, about, referred, phrases[int(rng.integers(len(phrases)))])


def pack_queries(
    examples: Sequence[QueryExample], llava: TrainableLlava, ids: Mapping[str, int]
) -> QueryBatch:
    """Put examples into numbers.

    Args:
        examples: The examples.
        llava: The target, which reads their pictures.
        ids: Token ids by word.

    Returns:
        The batch.
    """
    with torch.no_grad():
        pixels_BCHW = normalised_pixels([x.pixels for x in examples])
        vector_BPH = llava.image_vectors(llava.tower(pixels_BCHW))
    # The mark before a caption tells its first word, and the last word its end.
    captions = [(ids[ANSWER], *token_ids(x.right_caption, ids), ids[END]) for x in examples]
    token_BT, there_BT = padded_tokens(captions)
    right_BT = token_BT.masked_fill(~there_BT, -1)[:, 1:]
    names = {name: at for at, name in enumerate(thing_names())}
    # A caption of the whole picture reads all of it.
    every = torch.ones((SIDE // CELL) ** 2, dtype=torch.bool)
    regions = [every if x.about is None else cells_of_part(x.about) > 0 for x in examples]
    return QueryBatch(
        vector_BPH,
        token_BT[:, :-1],
        right_BT,
        torch.stack(regions),
        tuple(token_ids(caption_of(x.scene), ids) for x in examples),
        tuple(token_ids(x.phrase, ids) for x in examples),
        tuple(x.referred for x in examples),
        tuple(torch.stack([cells_of_part(part) for part in x.scene]) for x in examples),
        tuple(tuple(names[f"{part.colour} {part.thing}"] for part in x.scene) for x in examples),
    )


def cells_of_part(part: ScenePart) -> Tensor:
    """The cells of a mask that a thing covers, row by row, 0 or 1, float32."""
    return torch.from_numpy(patch_mask((part,), CELL).astype(np.float32)).flatten()


def assign_objects(cost_QN: Tensor) -> list[int]:
    """Give each thing a query of its own, so that all together cost least.

    Args:
        cost_QN: What each query costs for each thing; there are at least as many queries.

    Returns:
        Of each thing its query.
    """
    # Few things and few queries: every way is tried, which is exact.
    queries, things = cost_QN.shape
    way_WN = torch.tensor(list(permutations(range(queries), things)))
    total_W = cost_QN[way_WN, torch.arange(things)].sum(1)
    return way_WN[int(total_W.argmin())].tolist()


@torch.no_grad()
def objects_of_things(
    logp_BQC: Tensor, logit_BQF: Tensor, batch: QueryBatch, spec: XDecoderSpec
) -> list[list[int]]:
    """Which query each thing of each picture is given to, by names and masks.

    Args:
        logp_BQC: Log-probabilities of names.
        logit_BQF: Masks.
        batch: The pictures.
        spec: Weights of the losses, which count as in the loss.

    Returns:
        Of each picture the queries of its things.
    """
    out = list[list[int]]()
    for logp_QC, logit_QF, name, mask_NF in zip(
        logp_BQC, logit_BQF, batch.names, batch.masks, strict=True
    ):
        # Both losses of masks, of each query with each thing.
        inside_QF = F.logsigmoid(logit_QF)
        outside_QF = F.logsigmoid(-logit_QF)
        cells = mask_NF.shape[1]
        entropy_QN = -(inside_QF @ mask_NF.T + outside_QF @ (1 - mask_NF).T) / cells
        chance_QF = logit_QF.sigmoid()
        both_QN = chance_QF @ mask_NF.T
        each_QN = chance_QF.sum(1, keepdim=True) + mask_NF.sum(1)
        dice_QN = 1 - (2 * both_QN + 1) / (each_QN + 1)
        # A chance, not its logarithm: it has the size of the others.
        named_QN = -logp_QC[:, list(name)].exp()
        cost_QN = spec.naming * named_QN + spec.cross_entropy * entropy_QN + spec.dice * dice_QN
        out.append(assign_objects(cost_QN))
    return out


def query_decoder_loss(
    network: QueryDecoderNetwork, batch: QueryBatch, ids: Mapping[str, int], spec: XDecoderSpec
) -> Tensor:
    """How badly a query decoder masks, names, captions and finds.

    Args:
        network: The network.
        batch: Pictures, and what is right.
        ids: Token ids by word.
        spec: Weights of the losses.

    Returns:
        Their weighted sum; those of masks and names are means over all layers.
    """
    features = network.image_features(batch.vector_BPH)
    rows = network.joint_rows(batch.caption_BT, batch.region_BF)
    states, _ = network.run_layers(rows, features)
    objects = network.sizes.objects
    name_CW = network.text_vectors(*padded_tokens([token_ids(x, ids) for x in thing_names()]))
    # What enters the first layer is the same for all pictures, and can be no thing's yet.
    last = [state_BNW[:, :objects] for state_BNW in states[1:]]
    logits = [network.name_logits(state_BQW, name_CW) for state_BQW in last]
    masks = [network.mask_logits(state_BQW, features) for state_BQW in last]
    given = objects_of_things(logits[-1].log_softmax(-1), masks[-1], batch, spec)
    loss = sum(
        (_object_loss(n, m, given, batch, spec) for n, m in zip(logits, masks, strict=True)),
        start=torch.zeros(()),
    ) / len(last)
    logit_BTV = network.word_logits(states[-1][:, objects + 1 :])
    words = F.cross_entropy(logit_BTV.flatten(0, 1), batch.right_BT.flatten(), ignore_index=-1)
    # Both ways: each picture among captions, each caption among pictures.
    image_BW = network.meaning_vectors(states[-1][:, objects])
    whole_BW = network.text_vectors(*padded_tokens(batch.whole))
    alike_BB = image_BW @ whole_BW.T * network.sharpness.exp()
    own_B = torch.arange(len(alike_BB))
    apart = (F.cross_entropy(alike_BB, own_B) + F.cross_entropy(alike_BB.T, own_B)) / 2
    refer = _phrase_loss(network, features, given, batch, spec)
    return loss + spec.caption * words + spec.contrast * apart + spec.refer * refer


def _object_loss(
    logit_BQC: Tensor,
    mask_BQF: Tensor,
    given: Sequence[Sequence[int]],
    batch: QueryBatch,
    spec: XDecoderSpec,
) -> Tensor:
    """The loss of names and masks behind one layer."""
    nothing = logit_BQC.shape[2] - 1
    right_BQ = torch.full(logit_BQC.shape[:2], nothing)
    for row_Q, queries, name in zip(right_BQ, given, batch.names, strict=True):
        row_Q[list(queries)] = torch.tensor(name)
    weight_C = torch.ones(nothing + 1)
    weight_C[nothing] = UNNAMED
    naming = F.cross_entropy(logit_BQC.flatten(0, 1), right_BQ.flatten(), weight_C)
    # Masks of queries without a thing are not asked for.
    mask_MF = torch.cat([m[list(q)] for m, q in zip(mask_BQF, given, strict=True)])
    return spec.naming * naming + _mask_loss(mask_MF, torch.cat(batch.masks), spec)


def _mask_loss(logit_MF: Tensor, right_MF: Tensor, spec: XDecoderSpec) -> Tensor:
    """Both losses of masks."""
    entropy = F.binary_cross_entropy_with_logits(logit_MF, right_MF)
    return spec.cross_entropy * entropy + spec.dice * dice_loss(logit_MF, right_MF)


def _phrase_loss(
    network: QueryDecoderNetwork,
    features: ImageFeatures,
    given: Sequence[Sequence[int]],
    batch: QueryBatch,
    spec: XDecoderSpec,
) -> Tensor:
    """The loss of finding what phrases speak of: the copy's query of that thing must be most like the phrase."""
    # The copy begins as the objects do, so the query that has the thing there is to have it here.
    phrase = padded_tokens(batch.phrases)
    copy_BQW = network.read_phrase(features, *phrase)
    right_B = torch.tensor([q[n] for q, n in zip(given, batch.referred, strict=True)])
    logit_BQ = phrase_logits(network, copy_BQW, network.text_vectors(*phrase))
    logit_BF = network.mask_logits(copy_BQW, features)[torch.arange(len(right_B)), right_B]
    right_BF = torch.stack([m[n] for m, n in zip(batch.masks, batch.referred, strict=True)])
    return F.cross_entropy(logit_BQ, right_B) + _mask_loss(logit_BF, right_BF, spec)


@torch.no_grad()
def measure_queries(
    network: QueryDecoderNetwork, batch: QueryBatch, ids: Mapping[str, int]
) -> dict[str, float]:
    """How much is right.

    Args:
        network: The network.
        batch: Pictures that it did not learn from.
        ids: Token ids by word.

    Returns:
        Shares of captions (of pictures, of regions) of which each word is the likeliest behind the right
        ones; the share of things that a query found by name, the mean overlap (intersection over union)
        of their masks, 0 where none did; and that of what phrases speak of.
    """
    features = network.image_features(batch.vector_BPH)
    states, _ = network.run_layers(network.joint_rows(batch.caption_BT, batch.region_BF), features)
    objects = network.sizes.objects
    best_BT = network.word_logits(states[-1][:, objects + 1 :]).argmax(-1)
    right_B = ((best_BT == batch.right_BT) | (batch.right_BT < 0)).all(1)
    whole_B = batch.region_BF.all(1)
    object_BQW = states[-1][:, :objects]
    name_CW = network.text_vectors(*padded_tokens([token_ids(x, ids) for x in thing_names()]))
    name_BQ = network.name_logits(object_BQW, name_CW).argmax(-1)
    mask_BQF = network.mask_logits(object_BQW, features) > 0
    overlaps = list[float]()
    for name_Q, mask_QF, names, right_NF in zip(
        name_BQ, mask_BQF, batch.names, batch.masks, strict=True
    ):
        for name, right_F in zip(names, right_NF, strict=True):
            # The best of the queries that have its name.
            found_MF = mask_QF[name_Q == name]
            shares = mask_overlaps(found_MF, (right_F > 0).expand_as(found_MF))
            # -1: no query has the name.
            overlaps.append(max(shares, default=-1.0))
    phrase = padded_tokens(batch.phrases)
    copy_BQW = network.read_phrase(features, *phrase)
    best_B = phrase_logits(network, copy_BQW, network.text_vectors(*phrase)).argmax(-1)
    chosen_BF = network.mask_logits(copy_BQW, features)[torch.arange(len(best_B)), best_B] > 0
    right_BF = torch.stack([m[n] for m, n in zip(batch.masks, batch.referred, strict=True)]) > 0
    return {
        "captions_right": _share_right(right_B[whole_B]),
        "regions_right": _share_right(right_B[~whole_B]),
        "names_right": float(np.mean([share >= 0 for share in overlaps])),
        "named_overlap": float(np.mean([max(share, 0.0) for share in overlaps])),
        "referred_overlap": float(np.mean(mask_overlaps(chosen_BF, right_BF))),
    }


def _share_right(right_B: Tensor) -> float:
    """The share of what is right; 0 where there is nothing."""
    return float(right_B.float().mean()) if len(right_B) else 0.0
