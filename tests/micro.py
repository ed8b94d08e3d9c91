"""A Llama of a few thousand weights with a tokenizer of its own, as a directory: for tests of everything around a model."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from polydec import Ask, Engine, load
from polydec.api import LoadedModel
from polydec.core.protocols import Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.economics.costs import PassCosts
from polydec.models.sessions import sources

TEXT = [
    f"The {a} {b} {c} the {d} by the old river, and nobody asked why."
    for a in ("grey", "tall", "quiet", "young")
    for b in ("fox", "baker", "teacher")
    for c in ("watched", "followed", "painted")
    for d in ("boat", "bridge", "train")
]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(
    path: Path,
    *,
    seed: int = 0,
    vocab: int = 320,
    context: int = 256,
    hidden: int = 32,
    layers: int = 2,
    more: tuple[str, ...] = (),
    template: str = TEMPLATE,
) -> Path:
    """The directory of a random model; the same seed gives the same weights. more: further control tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tok.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=["<|im_start|>", "<|im_end|>", *more],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|im_end|>")
    fast.chat_template = template
    fast.save_pretrained(path)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tok.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    for p in model.parameters():  # sharper than the usual start, so that greedy text is no tie
        p.data = torch.randn_like(p) * (0.25 if p.ndim > 1 else 0.1) + (1.0 if p.ndim == 1 else 0.0)
    model.save_pretrained(path)
    return path


def masked(path: Path, name: str) -> str:
    """A model's weights and tokenizer as a masked-diffusion one: it sees both ways, and its last token is the mask."""
    source = sources.open_source(name)
    config = {
        **source.config,
        "polydec_causal": False,
        "polydec_mask": source.config["vocab_size"] - 1,
    }
    config.pop("polydec_base", None)
    sources.save_checkpoint(
        path, config, dict(source.weights.items()), source.text, source.generation
    )
    return str(path)


def trained(folder: Path, draft_seed: int = 1, examples=None) -> LoadedModel:
    """A model with a draft and one of everything that can be trained for it, on the torch path with one thread. draft_seed: 0
    for a draft that is the model itself; examples: of one kind of artefact, where no other is wanted."""
    torch.set_num_threads(1)
    lm = load(
        str(write(folder / "a", hidden=64)),
        draft=str(write(folder / "b", seed=draft_seed, hidden=64)),
        dtype="float32",
    )
    width = lm.draft.lm.network.config.width
    vocab = lm.checkpoint.lm.vocab
    artefacts = (
        example_artefacts(vocab, width) if examples is None else examples(vocab, width, width)
    )
    lm = type(lm)(lm.checkpoint, lm.draft, artefacts)
    vars(lm)["costs"] = PassCosts()  # instead of measuring
    return lm


def completed_ids(engine: Engine, asks: Iterable[Ask]) -> list[list[tuple[int, ...]]]:
    """The token ids of all choices of requests that are decoded together."""
    tickets = [engine.submit(each) for each in asks]
    while engine.step():
        pass
    return [[choice.token_ids for choice in t.completion().choices] for t in tickets]


def law_at_end(target: Target, prompt: Sequence[int]) -> Tensor:
    """The law of the token behind a prompt, as log-probabilities."""
    session = target.open_session(prompt)
    asked = session.score_draft(Draft.chain_draft(prompt[-1]), ScoreRequest())
    return run_coroutines([asked])[0].logprob_row(0)
