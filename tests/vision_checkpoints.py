"""Tiny random vision-language models as transformers writes them, and images for them: for tests."""

import io
import json
import shutil
from pathlib import Path

import torch
from PIL import Image as Pictures
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import micro

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It shows contents as lists of parts alone, images first, as LLaVA's does."""
TEXT_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def write_tokenizer(path, marks=("<image>",), template=TEMPLATE):
    """A byte-level tokenizer of which these are control tokens; transformers' form of it."""
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        micro.TEXT,
        trainers.BpeTrainer(
            vocab_size=329 + len(marks),
            special_tokens=["<|im_start|>", "<|im_end|>", *marks],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(path)
    return fast


def sharpen_weights(model, seed):
    """Give a model random weights of which greedy texts are no ties, and images tell texts apart."""
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        spread = 0.25 if p.ndim > 1 else 0.1
        if "position" in name or "class" in name or "patch" in name:
            spread = 0.5
        p.data = torch.randn_like(p) * spread
        if "norm" in name and name.endswith("weight"):
            p.data += 1.0
    return model.eval()


def write_llava(path, *, seed=0, vision=None, processor=None, text=None, **config):
    """A directory of the LLaVA layout; the model and the processor of transformers.

    vision: fields of its tower that are otherwise; processor, text: the same of the image processor and of the
    language model; config: of the whole."""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    path = Path(path)
    fast = write_tokenizer(path)
    tower = CLIPVisionConfig(
        **{
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "image_size": 20,
            "patch_size": 4,
            **(vision or {}),
        }
    )
    language = LlamaConfig(
        vocab_size=len(fast), max_position_embeddings=256, **{**TEXT_SIZES, **(text or {})}
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=tower,
            text_config=language,
            image_token_index=fast.convert_tokens_to_ids("<image>"),
            **config,
        )
    )
    sharpen_weights(model, seed).save_pretrained(path)
    images = CLIPImageProcessorPil(
        **{
            "size": {"shortest_edge": 20},
            "crop_size": {"height": 20, "width": 20},
            **(processor or {}),
        }
    )
    images.save_pretrained(path)
    strategy = config.get("vision_feature_select_strategy", "default")
    both = LlavaProcessor(
        images,
        fast,
        patch_size=tower.patch_size,
        vision_feature_select_strategy=strategy,
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    return model, both


def write_idefics3(path, *, seed=0, vision=None, processor=None, **config):
    """A directory of the layout of Idefics3 and SmolVLM; the model and the processor of transformers. Arguments are
    those of `write_llava`."""
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
        LlamaConfig,
    )
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    path = Path(path)
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    marks = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles)
    fast = write_tokenizer(path, marks)
    tower = Idefics3VisionConfig(
        **{
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "image_size": 16,
            "patch_size": 4,
            **(vision or {}),
        }
    )
    text = LlamaConfig(vocab_size=len(fast), max_position_embeddings=512, **TEXT_SIZES)
    model = Idefics3ForConditionalGeneration(
        Idefics3Config(
            vision_config=tower,
            text_config=text,
            image_token_id=fast.convert_tokens_to_ids("<image>"),
            **config,
        )
    )
    sharpen_weights(model, seed).save_pretrained(path)
    images = Idefics3ImageProcessorPil(
        **{
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 16},
            **(processor or {}),
        }
    )
    images.save_pretrained(path)
    return model, Idefics3Processor(images, fast, image_seq_len=4, chat_template=TEMPLATE)


def picture(width=37, height=26, seed=1, mode="RGB"):
    """An image of coloured patches."""
    g = torch.Generator().manual_seed(seed)
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    small = torch.randint(0, 256, (5, 7, channels), generator=g, dtype=torch.uint8)
    made = Pictures.fromarray(small.squeeze(-1).numpy() if channels == 1 else small.numpy(), mode)
    return made.resize((width, height), Pictures.Resampling.NEAREST)


def file_of(image, kind="PNG", **more):
    """The bytes of its file."""
    to = io.BytesIO()
    image.save(to, kind, **more)
    return to.getvalue()


def write_qwen2_vl(path, *, seed=0, vision=None, processor=None, text=None, **config):
    """A directory of the layout of Qwen2-VL; the model and the image processor of transformers. Arguments are those of
    `write_llava`."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    path = Path(path)
    marks = ("<image>", "<|vision_start|>", "<|vision_end|>", "<video>")
    fast = write_tokenizer(
        path, marks, TEMPLATE.replace("<image>\n", "<|vision_start|><image><|vision_end|>")
    )
    language = {
        **TEXT_SIZES,
        "vocab_size": len(fast),
        "max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 2, 1],
        },
        **(text or {}),
    }
    model = Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            vision_config={
                "embed_dim": 24,
                "depth": 2,
                "num_heads": 3,
                "hidden_size": 32,
                "mlp_ratio": 2,
                "patch_size": 4,
                **(vision or {}),
            },
            text_config=language,
            image_token_id=fast.convert_tokens_to_ids("<image>"),
            video_token_id=fast.convert_tokens_to_ids("<video>"),
            vision_start_token_id=fast.convert_tokens_to_ids("<|vision_start|>"),
            vision_end_token_id=fast.convert_tokens_to_ids("<|vision_end|>"),
            **config,
        )
    )
    sharpen_weights(model, seed).save_pretrained(path)
    images = Qwen2VLImageProcessorPil(
        **{"patch_size": 4, "min_pixels": 512, "max_pixels": 2048, **(processor or {})}
    )
    images.save_pretrained(path)
    return model, images


def changed_copy(folder, config=lambda c: None, processor=None, tensors=lambda t: None):
    """A copy of folder / "m" with something changed: its config.json, the settings of its image processor, its
    tensors; the path as a text."""
    path = folder / "changed"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder / "m", path)
    content = json.loads((path / "config.json").read_text())
    config(content)
    (path / "config.json").write_text(json.dumps(content))
    if processor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
    stored = load_file(path / "model.safetensors")
    tensors(stored)
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    return str(path)
