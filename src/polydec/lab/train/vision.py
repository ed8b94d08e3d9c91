"""`polydec train vision`: a small vision-language model of the LLaVA layout, on scenes that are drawn
here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base import files
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.scenes import (
    SIDE,
    SceneQuestion,
    draw_question,
    draw_scene,
    draw_scene_pixels,
    scene_words,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.vision import VisionSpec

PATCH = 8
"""Pixels of a side of a patch."""
PATCHES = (SIDE // PATCH) ** 2
HEAD = 32
"""Size of an attention head."""
CONTEXT = 512
"""Positions of the language model: an image takes PATCHES of them."""
JUDGED = 512
"""Held-out scenes that are measured."""
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
    """A picture, and something that is asked of it.

    Attributes:
        pixels: Red, green and blue, ``[SIDE, SIDE, 3]``, uint8.
        question: What is asked, and what is right.
    """

    pixels: np.ndarray
    question: SceneQuestion


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

    def __init__(self, spec: VisionSpec, shape: LlamaShape) -> None:
        super().__init__()
        # The global generator is left as it was.
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(spec.seed)
            self.tower = TrainableTower(spec.tower_width, spec.tower_layers)
            self.linear_1 = nn.Linear(spec.tower_width, spec.width)
            self.linear_2 = nn.Linear(spec.width, spec.width)
        self.language = TrainableLlama(shape, seed=spec.seed)

    @property
    def layer_matrices(self) -> list[nn.Parameter]:
        """The matrices of all layers."""
        named = self.named_parameters()
        return [p for name, p in named if ".layers." in name and p.ndim == 2]

    def forward(self, pixels_BCHW: Tensor, token_BT: Tensor) -> Tensor:
        """Logits behind each token of texts that stand behind an image.

        Args:
            pixels_BCHW: Numbers of pixels, ``[B, 3, SIDE, SIDE]``.
            token_BT: Token ids, ``[B, T]``.

        Returns:
            Shape ``[B, T, V]``.
        """
        # The image stands before the text, as the template has it.
        vectors = self.linear_2(F.gelu(self.linear_1(self.tower(pixels_BCHW))))
        model = self.language.model
        x = torch.cat([vectors, model.embed_tokens(token_BT)], 1)
        cos_TD = model.cos[: x.shape[1]]
        sin_TD = model.sin[: x.shape[1]]
        for layer in model.layers:
            x = layer(x, cos_TD, sin_TD)
        # Nothing is asked behind a patch.
        return self.language.token_logits(model.norm(x[:, PATCHES:]))

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

    def step_loss(step: int) -> tuple[Tensor, int]:
        # All of it is drawn from the step's number, so that a resumed run draws the same.
        rng = np.random.default_rng([spec.seed, 11, step])
        examples = [draw_example(rng, unseen=False) for _ in range(spec.rows)]
        return answer_loss(network, examples, ids), spec.rows

    def measure_result() -> Mapping[str, Any]:
        rng = np.random.default_rng([spec.seed, 12])
        unseen = [draw_example(rng, unseen=True) for _ in range(JUDGED)]
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "held_out_right": measure_answers(network, unseen, ids),
            "out": spec.out,
        }

    def save_checkpoint_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write weights, tokenizer and configs.

        Args:
            at: Directory to write.
            result: What was measured; it is not used.
        """
        tensors = {
            name: tensor.detach().float().contiguous()
            for name, tensor in network.published_tensors().items()
        }
        files.replace_file_atomically(
            at / "model.safetensors", lambda to: save_file(tensors, to, {"format": "pt"})
        )
        for name, content in published_files(spec, shape, words).items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            # Each file appears complete or not at all.
            files.replace_file_atomically(
                at / name, lambda to, text=text: Path(to).write_text(text, "utf-8")
            )

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec),
        save_checkpoint_at,
        measure_result,
        deep=network.layer_matrices if spec.muon else (),
    )


def draw_example(rng: np.random.Generator, *, unseen: bool) -> SceneExample:
    """Draw a scene, and ask something of it.

    Args:
        rng: Decides; it is advanced.
        unseen: Whether the scene is one of those that are held out.

    Returns:
        The picture and the question.
    """
    scene = draw_scene(rng, unseen=unseen)
    return SceneExample(draw_scene_pixels(scene, rng), draw_question(scene, rng))


def example_pixels(examples: Sequence[SceneExample]) -> Tensor:
    """Numbers of pixels, as the saved model's image processor makes them: ``[B, 3, SIDE, SIDE]``."""
    # Times 1/255, less 0.5, over 0.5: what preprocessor_config.json says.
    pixels_BHWC = torch.from_numpy(np.stack([x.pixels for x in examples])).float()
    return ((pixels_BHWC / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)


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


def answer_logits(
    network: TrainableLlava, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Score the answers of some examples, each word behind the right ones before it.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        Of each the logits at the tokens of its answer, ``[A, V]``, and the right tokens, ``[A]``.
    """
    pairs = [question_ids(x.question, ids) for x in examples]
    longest = max(len(asked) + len(answer) for asked, answer in pairs)
    # Shorter rows are filled up behind their answers, where nothing is read.
    rows = [
        [*asked, *answer, *[0] * (longest - len(asked) - len(answer))] for asked, answer in pairs
    ]
    logits_BTV = network(example_pixels(examples), torch.tensor(rows))
    # Answers have lengths of their own: no rows are padded here.
    logits = list[Tensor]()
    right = list[Tensor]()
    for row_TV, (asked, answer) in zip(logits_BTV, pairs, strict=True):
        # The mark before the answer tells its first word.
        first = len(asked) - 1
        logits.append(row_TV[first : first + len(answer)])
        right.append(torch.tensor(answer))
    return logits, right


def answer_loss(
    network: TrainableLlava, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> Tensor:
    """The loss of a model on the answers of some examples.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        Nats a token.
    """
    logits, right = answer_logits(network, examples, ids)
    return F.cross_entropy(torch.cat(logits), torch.cat(right))


@torch.no_grad()
def measure_answers(
    network: TrainableLlava, examples: Sequence[SceneExample], ids: Mapping[str, int]
) -> dict[str, float]:
    """By kind of question the share of answers of which every word, and the end, is the likeliest
    behind the right ones: those that greedy decoding gives.

    Args:
        network: The model.
        examples: Pictures with questions.
        ids: Token ids by word.

    Returns:
        The shares.
    """
    # In parts, so that memory does not grow with the number of examples.
    counts = dict[str, list[bool]]()
    for at in range(0, len(examples), 64):
        chosen = examples[at : at + 64]
        for x, row_AV, right_A in zip(chosen, *answer_logits(network, chosen, ids), strict=True):
            same = bool((row_AV.argmax(-1) == right_A).all())
            counts.setdefault(x.question.kind, []).append(same)
    return {kind: sum(same) / len(same) for kind, same in sorted(counts.items())}


def scene_tokenizer(words: Sequence[str]) -> Tokenizer:
    """A tokenizer of which every word is a token, the marks first.

    Args:
        words: The marks, then all words, each once.

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
    return tokenizer


def published_files(
    spec: VisionSpec, shape: LlamaShape, words: Sequence[str]
) -> Mapping[str, Mapping[str, Any]]:
    """What a directory of the LLaVA layout holds beside its weights.

    Args:
        spec: The sizes of the tower.
        shape: Those of the language model.
        words: All words, in the order of their tokens.

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
        "tokenizer.json": json.loads(scene_tokenizer(words).to_str()),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "chat_template": TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
        "generation_config.json": {"eos_token_id": words.index(END)},
    }
