"""`polydec train vision`: a small vision-language model of the LLaVA layout, on scenes that are drawn
here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base import files
from polydec.base.errors import RequestError
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.scenes import (
    COLOURS,
    SIDE,
    THINGS,
    Scene,
    SceneQuestion,
    behind_captions,
    draw_questions,
    draw_scene,
    draw_scene_pixels,
    scene_words,
    view_questions,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.vision import VisionSpec
from polydec.models.formats.fields import require_shapes
from polydec.models.formats.vision import PixelScale
from polydec.models.sessions import sources

PATCH = 8
"""Pixels of a side of a patch."""
PATCHES = (SIDE // PATCH) ** 2
HEAD = 32
"""Size of an attention head."""
CONTEXT = 512
"""Positions of the language model: an image takes PATCHES of them."""
JUDGED = 512
"""Held-out scenes that are measured."""
SCALED = PixelScale(1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""How pixels become numbers."""
IMAGE = "<image>"
ANSWER = "<answer>"
END = "<end>"
UNKNOWN = "<unknown>"
MARKS = (IMAGE, ANSWER, END, UNKNOWN)
"""Stand for an image, before an answer, behind it, and for words that no scene has."""
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}<answer> {{ part['text'] }} <end> {% endfor %}"
    "{% else %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image> {% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }} {% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}"
)


@dataclass(frozen=True, eq=False)
class SceneExample:
    """A picture, and what is asked of it.

    Attributes:
        scene: What it shows.
        pixels: Red, green and blue, ``[SIDE, SIDE, 3]``, uint8.
        questions: What is asked, and what is right.
        dropped: Whether its image is left out, and each question begins the text. Default False.
    """

    scene: Scene
    pixels: np.ndarray
    questions: tuple[SceneQuestion, ...]
    dropped: bool = False


@dataclass(frozen=True, eq=False)
class QuestionRows:
    """The questions of some pictures with their answers, a row a picture: each question stands right
    behind the image, and sees the image and itself alone; where that is left out, itself alone.

    Attributes:
        token_BT: Token ids; short rows are filled up with 0.
        position_BT: Positions of the tokens.
        question_BT: Numbers of the questions that tokens belong to, -1 behind the last.
        right_BT: The token that is right behind each token of an answer; -1 behind others.
        dropped_B: Whether the image of a row is left out.
        images: Vectors of the image before them.
    """

    token_BT: Tensor
    position_BT: Tensor
    question_BT: Tensor
    right_BT: Tensor
    dropped_B: Tensor
    images: int = PATCHES

    @property
    def seen_BTT(self) -> Tensor:
        """Whether the token of a row sees that of a column, the vectors of the image before them
        included: shape ``[B, images + T, images + T]``."""
        # The image counts as what every question sees.
        # Number -2 is of no question: -1 stands for what fills rows up.
        image_BP = torch.full((len(self.token_BT), self.images), -2)
        of_BT = torch.cat([image_BP, self.question_BT], 1)
        same_BTT = of_BT[:, :, None] == of_BT[:, None]
        # An image that is left out stays in its row, where nobody looks.
        image_B1T = (of_BT[:, None] == -2) & ~self.dropped_B[:, None, None]
        return (same_BTT | image_B1T).tril()


class SceneReader(Protocol):
    """A network that answers questions about scenes.

    Attributes:
        language: Its language model.
        image_count: Vectors of an image.
    """

    language: TrainableLlama
    image_count: int

    def read_pictures(self, pixels_BCHW: Tensor) -> Any:
        """What its tower makes of pictures."""
        ...

    def __call__(self, seen: Any, rows: QuestionRows) -> Tensor:
        """States behind each token of questions, which are ready for the head.

        Args:
            seen: What the tower made of the pictures.
            rows: The questions.

        Returns:
            Shape ``[B, T, width]``.
        """
        ...


class TrainableVitLayer(nn.Module):
    """A layer of the tower, under CLIP's names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(width)
        self.self_attn = nn.ModuleDict(
            {f"{part}_proj": nn.Linear(width, width) for part in ("q", "k", "v", "out")}
        )
        self.layer_norm2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)}
        )

    def forward(self, x_BPW: Tensor) -> Tensor:
        """The states behind the layer."""
        # Each half adds to what went in, and reads it normed.
        y = self.layer_norm1(x_BPW)
        heads = [
            self.self_attn[f"{part}_proj"](y).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for part in ("q", "k", "v")
        ]
        seen = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x_BPW = x_BPW + self.self_attn["out_proj"](seen)
        inner = F.gelu(self.mlp["fc1"](self.layer_norm2(x_BPW)))
        return x_BPW + self.mlp["fc2"](inner)


class TrainableTower(nn.Module):
    """A CLIP tower, whose class token nobody reads."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.randn(width) * 0.02)
        self.patch_embedding = nn.Conv2d(3, width, PATCH, PATCH, bias=False)
        self.position_embedding = nn.Embedding(PATCHES + 1, width)
        nn.init.normal_(self.position_embedding.weight, std=0.02)
        self.pre_layrnorm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(TrainableVitLayer(width) for _ in range(layers))

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        """The states of patches, row by row, ``[B, PATCHES, W]``."""
        patches = self.patch_embedding(pixels_BCHW).flatten(2).transpose(1, 2)
        # It has a place in the layout, and is left out behind the tower.
        first = self.class_embedding.expand(len(patches), 1, -1)
        x = torch.cat([first, patches], 1) + self.position_embedding.weight
        x = self.pre_layrnorm(x)
        for layer in self.layers:
            x = layer(x)
        return x[:, 1:]


class TrainableLlava(nn.Module):
    """Tower, projector and language model."""

    image_count = PATCHES

    def __init__(self, spec: VisionSpec, shape: LlamaShape) -> None:
        super().__init__()
        # The global generator is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(spec.seed)
            self.tower = TrainableTower(spec.tower_width, spec.tower_layers)
            self.linear_1 = nn.Linear(spec.tower_width, spec.width)
            self.linear_2 = nn.Linear(spec.width, spec.width)
            # It is not saved: only training asks the tower itself.
            self.cells = nn.Linear(spec.tower_width, len(THINGS) + len(COLOURS) + 2)
        self.language = TrainableLlama(shape, seed=spec.seed)

    @property
    def layer_matrices(self) -> list[nn.Parameter]:
        """The matrices of all layers."""
        named = self.named_parameters()
        return [p for name, p in named if ".layers." in name and p.ndim == 2]

    def read_pictures(self, pixels_BCHW: Tensor) -> Tensor:
        """What its tower makes of pictures."""
        return self.tower(pixels_BCHW)

    def forward(self, patch_BPW: Tensor, rows: QuestionRows) -> Tensor:
        """States behind each token of questions that stand behind an image.

        Args:
            patch_BPW: What the tower made of the images, ``[B, PATCHES, tower width]``.
            rows: The questions.

        Returns:
            States that are ready for the head, ``[B, T, width]``.
        """
        entered_BTH = self.language.model.embed_tokens(rows.token_BT)
        return self.states_behind(
            self.image_vectors(patch_BPW), entered_BTH, rows.position_BT, rows.seen_BTT
        )

    def image_vectors(self, patch_BPW: Tensor) -> Tensor:
        """What stands for images in a text, ``[B, PATCHES, width]``."""
        # The projector of the layout: two maps with a GELU between.
        return self.linear_2(F.gelu(self.linear_1(patch_BPW)))

    def states_behind(
        self, image_BPH: Tensor, entered_BTH: Tensor, position_BT: Tensor, seen_BTT: Tensor
    ) -> Tensor:
        """States of rows that stand behind an image.

        Args:
            image_BPH: What stands for the images.
            entered_BTH: What enters the first layer behind them.
            position_BT: Positions of that.
            seen_BTT: Whether a row sees a column, the image's before the others.

        Returns:
            States that are ready for the head, ``[B, T, width]``.
        """
        return states_behind_images(self.language, image_BPH, entered_BTH, position_BT, seen_BTT)

    def cell_loss(self, patch_BPW: Tensor, scenes: Sequence[Scene]) -> Tensor:
        """How badly a linear map reads each place of a picture from its patches.

        Args:
            patch_BPW: What the tower made of the pictures, ``[B, PATCHES, tower width]``.
            scenes: What these show.

        Returns:
            Nats a place, thing and colour together.
        """
        side = SIDE // PATCH
        # Four patches make a place, rows first.
        grid = patch_BPW.unflatten(1, (side, side)).unflatten(2, (3, -1)).unflatten(1, (3, -1))
        logits_BRCX = self.cells(grid.mean((2, 4)))
        things, colours = logits_BRCX.split([len(THINGS) + 1, len(COLOURS) + 1], -1)
        # The last of both is nothing.
        thing_BRC = torch.full(things.shape[:3], len(THINGS))
        colour_BRC = torch.full(things.shape[:3], len(COLOURS))
        names = list(COLOURS)
        # Every other place keeps the number of nothing.
        for b, scene in enumerate(scenes):
            for part in scene:
                thing_BRC[b, part.row, part.column] = THINGS.index(part.thing)
                colour_BRC[b, part.row, part.column] = names.index(part.colour)
        return F.cross_entropy(things.flatten(0, 2), thing_BRC.flatten()) + F.cross_entropy(
            colours.flatten(0, 2), colour_BRC.flatten()
        )

    def read_published(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a file of the LLaVA layout; all of them must be there."""
        # Those of the network itself, under their published names.
        own = self.published_tensors()
        require_shapes(tensors, {name: tuple(tensor.shape) for name, tensor in own.items()})
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name].float())

    def published_tensors(self) -> dict[str, Tensor]:
        """The tensors as a file of the LLaVA layout holds them."""
        # Layers stand under `encoder`, embeddings under their own name.
        tower = {
            name.replace("layers.", "encoder.layers.", 1)
            if name.startswith("layers.")
            else name
            if name.startswith("pre_layrnorm.")
            else f"embeddings.{name}": tensor
            for name, tensor in self.tower.state_dict().items()
        }
        projector = {
            f"multi_modal_projector.{part}.{name}": tensor
            for part in ("linear_1", "linear_2")
            for name, tensor in getattr(self, part).state_dict().items()
        }
        return {
            **{f"vision_tower.vision_model.{name}": tensor for name, tensor in tower.items()},
            # transformers asks for the norm of the class token, too.
            "vision_tower.vision_model.post_layernorm.weight": torch.ones(
                len(self.tower.class_embedding)
            ),
            "vision_tower.vision_model.post_layernorm.bias": torch.zeros(
                len(self.tower.class_embedding)
            ),
            **projector,
            **{
                f"language_model.{name}": tensor
                for name, tensor in self.language.state_dict().items()
            },
        }


def states_behind_images(
    language: TrainableLlama,
    image_BPH: Tensor,
    entered_BTH: Tensor,
    position_BT: Tensor,
    seen_BTT: Tensor,
) -> Tensor:
    """States of rows that stand behind an image.

    Args:
        language: The language model that reads them.
        image_BPH: What stands for the images.
        entered_BTH: What enters the first layer behind them.
        position_BT: Positions of that.
        seen_BTT: Whether a row sees a column, the image's before the others.

    Returns:
        States that are ready for the head, ``[B, T, width]``.
    """
    # The image stands before the text, as the template has it.
    model = language.model
    images = image_BPH.shape[1]
    x = torch.cat([image_BPH, entered_BTH], 1)
    # Every question begins right behind the image, wherever it stands in its row.
    image_BP = torch.arange(images).expand(len(x), -1)
    whole_BT = torch.cat([image_BP, position_BT], 1)
    cos_B1TD = model.cos[whole_BT][:, None]
    sin_B1TD = model.sin[whole_BT][:, None]
    for layer in model.layers:
        x = layer(x, cos_B1TD, sin_B1TD, seen_BTT[:, None])
    # Nothing is asked behind a patch.
    return model.norm(x[:, images:])


def train_vision(spec: VisionSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` and transformers read.

    Scenes whose caption has a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.

    Source: LLaVA (Liu et al. 2023), the layout; the scenes are drawn here.
    """
    return run_training("vision", spec, _course)


def _course(spec: VisionSpec) -> TrainingRun:
    words = (*MARKS, *scene_words())
    ids = {word: at for at, word in enumerate(words)}
    shape = LlamaShape(
        len(words),
        spec.width,
        spec.layers,
        spec.width // HEAD,
        spec.width // HEAD,
        3 * spec.width,
        CONTEXT,
    )
    network = TrainableLlava(spec, shape)
    if spec.start is not None:
        take_published_tensors(network, spec.start, ids)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 11, step])
        examples = [draw_example(rng, unseen=False) for _ in range(spec.rows)]
        # Draws of their own: the scenes of a step are the same with and without.
        rng = np.random.default_rng([spec.seed, 13, step])
        examples = [vary_example(example, spec, rng) for example in examples]
        return answer_loss(network, examples, ids, spec.tower_loss), spec.rows

    def measure_result() -> Mapping[str, Any]:
        rng = np.random.default_rng([spec.seed, 12])
        unseen = [draw_example(rng, unseen=True) for _ in range(JUDGED)]
        # Each question beside the picture of another scene: what is right without looking.
        # Pictures change places with their neighbours; questions and answers stay.
        blind = [
            replace(x, pixels=other.pixels)
            for x, other in zip(unseen, unseen[1:] + unseen[:1], strict=True)
        ]
        return {
            "parameters": sum(t.numel() for t in network.published_tensors().values()),
            "held_out_right": measure_answers(network, unseen, ids)[0],
            "right_with_another_picture": measure_answers(network, blind, ids)[0],
            "out": spec.out,
        }

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec),
        lambda at, _: save_llava(at, network, published_files(spec, shape, words)),
        measure_result,
        deep=network.layer_matrices if spec.muon else (),
    )


def save_llava(at: Path, network: TrainableLlava, content: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a directory of the LLaVA layout.

    Args:
        at: Directory to write.
        network: Gives the weights.
        content: What stands in each file beside them, by its name.
    """
    tensors = {
        name: tensor.detach().half().contiguous()
        for name, tensor in network.published_tensors().items()
    }
    files.replace_file_atomically(
        at / "model.safetensors", lambda to: save_file(tensors, to, {"format": "pt"})
    )
    for name, values in content.items():
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        # Each file appears complete or not at all.
        files.replace_file_atomically(
            at / name, lambda to, text=text: Path(to).write_text(text, "utf-8")
        )


def draw_example(rng: np.random.Generator, *, unseen: bool) -> SceneExample:
    """Draw a scene, and ask something of each kind of it.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        The picture and the questions.
    """
    # The picture has draws of its own (its paper), so a scene may be drawn again.
    scene = draw_scene(rng, unseen=unseen)
    return SceneExample(scene, draw_scene_pixels(scene, rng), draw_questions(scene, rng))


def vary_example(example: SceneExample, spec: VisionSpec, rng: np.random.Generator) -> SceneExample:
    """Put questions behind captions, ask for more captions, or leave the image out, as a training
    asks for it.

    Args:
        example: A picture with its questions.
        spec: The training; drop and told are read.
        rng: Decides; it is advanced.

    Returns:
        The same picture; the same questions where the training asks for neither.
    """
    # Nothing is drawn where nothing is asked for: the run is then the one that it was before.
    if spec.told:
        if rng.random() < spec.told:
            questions = behind_captions(example.scene, example.questions, rng)
        else:
            questions = (*example.questions, *view_questions(example.scene))
        example = replace(example, questions=questions)
    return replace(example, dropped=bool(rng.random() < spec.drop))


@torch.no_grad()
def take_published_tensors(network: TrainableLlava, start: str, ids: Mapping[str, int]) -> None:
    """Begin with a model that was trained before.

    Args:
        network: Takes its numbers.
        start: Name of the model.
        ids: Token ids by word.

    Raises:
        RequestError: It is no model of this command, or has other sizes or words.
    """
    source = sources.open_source(start)
    if source.text.tokenizer.get_vocab() != ids:
        raise RequestError(f"start is {start!r}: its words are not those of `polydec train vision`")
    # Names and shapes say that sizes are the same; the config need not be read.
    for name, tensor in network.published_tensors().items():
        if name not in source.weights:
            raise RequestError(f"start is {start!r}: it has no tensor {name}, so sizes differ")
        held = source.weights[name]
        if held.shape != tensor.shape:
            raise RequestError(
                f"start is {start!r}: its {name} has the shape {tuple(held.shape)} and that of these sizes "
                f"{tuple(tensor.shape)}"
            )
    network.read_published(source.weights)


def normalised_pixels(pictures: Sequence[np.ndarray]) -> Tensor:
    """Numbers of pixels, as the saved model's image processor makes them: ``[B, 3, SIDE, SIDE]``."""
    # Times 1/255, less 0.5, over 0.5: what preprocessor_config.json says.
    pixels_BHWC = torch.from_numpy(np.stack(pictures)).float()
    return ((pixels_BHWC / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)


def example_pixels(examples: Sequence[SceneExample]) -> Tensor:
    """The same of the pictures of examples."""
    return normalised_pixels([x.pixels for x in examples])


def question_ids(question: SceneQuestion, ids: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The tokens of a question behind its image, the mark before the answer included, and those of
    the answer with its end.

    Args:
        question: The question.
        ids: Token ids by word.

    Returns:
        Both.
    """
    # Both are words that a space parts, each a token.
    asked = [ids[word] for word in (*question.asked.split(), ANSWER)]
    return asked, [ids[word] for word in (*question.answer.split(), END)]


def pack_questions(
    examples: Sequence[SceneExample], ids: Mapping[str, int], images: int = PATCHES
) -> QuestionRows:
    """Lay the questions of some pictures side by side.

    Args:
        examples: Pictures with questions.
        ids: Token ids by word.
        images: Vectors of an image. Default: one a patch.

    Returns:
        The rows, one a picture.
    """
    tokens = list[Tensor]()
    positions = list[Tensor]()
    numbers = list[Tensor]()
    rights = list[Tensor]()
    # The questions of a picture have different lengths, and so have its rows.
    for example in examples:
        pairs = [question_ids(question, ids) for question in example.questions]
        texts = [[*asked, *answer] for asked, answer in pairs]
        tokens.append(torch.tensor([x for text in texts for x in text]))
        # Without an image a question begins the text.
        first = 0 if example.dropped else images
        positions.append(torch.cat([first + torch.arange(len(text)) for text in texts]))
        numbers.append(torch.cat([torch.full((len(text),), k) for k, text in enumerate(texts)]))
        # The mark before an answer tells its first word; behind its end nothing is asked.
        right = [[*[-1] * (len(asked) - 1), *answer, -1] for asked, answer in pairs]
        rights.append(torch.tensor([x for row in right for x in row]))
    return QuestionRows(
        pad_sequence(tokens, batch_first=True),
        pad_sequence(positions, batch_first=True),
        pad_sequence(numbers, batch_first=True, padding_value=-1),
        pad_sequence(rights, batch_first=True, padding_value=-1),
        torch.tensor([example.dropped for example in examples]),
        images,
    )


def answer_logits(
    network: SceneReader, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> tuple[Tensor, QuestionRows]:
    """Score the answers to all questions of some examples, each word behind the right ones before it.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        The logits behind all tokens, ``[B, T, V]``, and the tokens.
    """
    rows = pack_questions(examples, ids, network.image_count)
    patches = network.read_pictures(example_pixels(examples))
    return network.language.token_logits(network(patches, rows)), rows


def answer_loss(
    network: TrainableLlava,
    examples: Sequence[SceneExample],
    ids: Mapping[str, int],
    tower_loss: float = 0.0,
) -> Tensor:
    """The loss of a model on the answers of some examples.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.
        tower_loss: Weight of what the tower itself must tell of each place, 0 or more. Default 0.

    Returns:
        Nats a token of an answer, and the tower's loss times its weight.
    """
    loss, patches = asked_answer_loss(network, examples, ids)
    if not tower_loss:
        return loss
    return loss + tower_loss * network.cell_loss(patches, [x.scene for x in examples])


def asked_answer_loss(
    network: SceneReader, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> tuple[Tensor, Any]:
    """The loss of a model on the answers of some examples.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        Nats a token of an answer, and what the tower made of the pictures.
    """
    rows = pack_questions(examples, ids, network.image_count)
    seen = network.read_pictures(example_pixels(examples))
    # Questions are given: nothing is learned of how they go on.
    asked_BT = rows.right_BT >= 0
    logits_NV = network.language.token_logits(network(seen, rows)[asked_BT])
    return F.cross_entropy(logits_NV, rows.right_BT[asked_BT]), seen


@torch.no_grad()
def measure_answers(
    network: SceneReader, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> tuple[dict[str, float], float]:
    """How many answers are right, and how unlikely the right ones are.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        By kind of question the share of answers of which every word, and the end, is the likeliest
        behind the right ones: those that greedy decoding gives. And nats a token of right answers,
        their ends included.
    """
    nats = 0.0
    asked = 0
    # In parts, so that memory does not grow with the number of examples.
    counts = dict[str, list[bool]]()
    for at in range(0, len(examples), 64):
        chosen = examples[at : at + 64]
        logits_BTV, rows = answer_logits(network, chosen, ids)
        good_BT = (logits_BTV.argmax(-1) == rows.right_BT) | (rows.right_BT < 0)
        asked_BT = rows.right_BT >= 0
        # Questions are given: only answers are judged.
        right_N = rows.right_BT[asked_BT]
        nats += float(F.cross_entropy(logits_BTV[asked_BT], right_N, reduction="sum"))
        asked += len(right_N)
        for b, example in enumerate(chosen):
            # An answer is right where no word of it, nor its end, is wrong.
            for k, question in enumerate(example.questions):
                whole = bool(good_BT[b][rows.question_BT[b] == k].all())
                counts.setdefault(question.kind, []).append(whole)
    return {kind: sum(same) / len(same) for kind, same in sorted(counts.items())}, nats / asked


def scene_tokenizer(words: Sequence[str], shown: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of which every word is a token, the marks first.

    Args:
        words: The marks, then all words, each once.
        shown: Further marks among the words, which a text shows. Default: none.

    Returns:
        The tokenizer. Punctuation is no token, and capitals are small letters.
    """
    vocab = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    # Marks are found before a text is normalised.
    plain = normalizers.Replace(Regex("[^a-z0-9]+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), plain])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in MARKS]
    )
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in shown])
    return tokenizer


def published_files(
    spec: VisionSpec, shape: LlamaShape, words: Sequence[str], shown: Sequence[str] = ()
) -> Mapping[str, Mapping[str, Any]]:
    """What a directory of the LLaVA layout holds beside its weights.

    Args:
        spec: The sizes of the tower.
        shape: Those of the language model.
        words: All words, in the order of their tokens.
        shown: Marks among them that a text shows. Default: none.

    Returns:
        The content of each file by its name.
    """
    # What a whole model says and a part of one does not.
    text = {
        key: value
        for key, value in shape.config_content(tied=True).items()
        if key not in ("architectures",)
    }
    tower = {
        "model_type": "clip_vision_model",
        "hidden_size": spec.tower_width,
        "intermediate_size": 4 * spec.tower_width,
        "num_hidden_layers": spec.tower_layers,
        "num_attention_heads": spec.tower_width // HEAD,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "projection_dim": spec.tower_width,
    }
    # An answer ends with its mark alone.
    ends = {"bos_token_id": None, "eos_token_id": words.index(END), "pad_token_id": None}
    return {
        "config.json": {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "text_config": {**text, **ends},
            "vision_config": tower,
            "image_token_index": words.index(IMAGE),
            "projector_hidden_act": "gelu",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "tie_word_embeddings": True,
        },
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": SIDE},
            "crop_size": {"height": SIDE, "width": SIDE},
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "resample": 3,
        },
        "tokenizer.json": json.loads(scene_tokenizer(words, shown).to_str()),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": words.index(END)},
    }
