"""Text that a target reads rather than writes: exchanges in its chat template, and running text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from polydec.lab.train.data import held_out, is_collection_folder, read_rows, split_documents
from polydec.lab.train.selfplay import SOURCES, TrainingSample
from polydec.models.formats import text_rows
from polydec.models.text.tokenizer import Tokenizer

LONGEST = 512
"""Tokens of a text that are read, at most: attention makes longer ones dearer."""

Part = Callable[[Mapping[str, Any]], str]
EXCHANGES: Mapping[str, tuple[str, Part, Part]] = {
    "mathematics": ("gsm8k/train.jsonl.gz", lambda r: r["question"], lambda r: r["answer"]),
    "code": ("mbpp/prompt_val_train.jsonl", lambda r: r["text"], lambda r: r["code"]),
    "summary": (
        "summ_scitldr/train_dev.jsonl.gz",
        lambda r: "Summarize: " + " ".join(r["source"]),
        lambda r: r["target"][0],
    ),
    "commands": (
        "text_tldr/pages_en.jsonl.gz",
        lambda r: f"Explain the command {r['id'].split('/')[-1]}.",
        lambda r: r["text"],
    ),
    "question": (
        "qa_xquad/en.jsonl.gz",
        lambda r: f"{r['context']}\n\n{r['question']}",
        lambda r: r["answers"][0]["text"],
    ),
    "translation": (
        "translation_tatoeba/en_fr.jsonl.gz",
        lambda r: f"Translate to French: {r['en']}",
        lambda r: r["fr"],
    ),
}
"""Of each kind the file, what a user asks, and what is answered."""


def read_exchanges(
    root: Path, kind: str, text: Tokenizer, rng: random.Random
) -> Iterator[tuple[int, ...]]:
    """The exchanges of a kind, in a random order; none where the file is absent.

    Left out are rows of which any prompt is held out, this one's or one that selfplay.py makes of
    the same row.

    Args:
        root: The collection's folder.
        kind: Name of a kind of `EXCHANGES`.
        text: Tokenizer with a chat template.
        rng: Source of the order; it is advanced.

    Yields:
        Token ids of a question and its answer.
    """
    file, ask, answer = EXCHANGES[kind]
    # A row may serve several kinds of prompts.
    asks = [ask, *(prompt for other, prompt in SOURCES.values() if other == file)]
    if (root / file).exists():
        there = list(read_rows(root / file))
    else:
        there = []
    for row in rng.sample(there, len(there)):
        if not any(held_out(each(row)) for each in asks):
            yield text.chat_prompt([{"role": "user", "content": ask(row)}]) + text.encode(
                answer(row), special=False
            )


def own_exchanges(root: Path, text: Tokenizer, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """The exchanges in one's own data whose question is not held out, in a random order.

    Args:
        root: The data.
        text: Tokenizer with a chat template.
        rng: Source of the order; it is advanced.

    Yields:
        Token ids of a question and its answer.
    """
    there = [item.exchange for item in text_rows.read_text_rows(root)]
    # The question decides on which side of the split an exchange lies.
    open_ = [pair for pair in there if pair is not None and not held_out(pair[0])]
    for ask, answer in rng.sample(open_, len(open_)):
        yield text.chat_prompt([{"role": "user", "content": ask}]) + text.encode(
            answer, special=False
        )


def read_running_text(
    root: Path, kind: str, text: Tokenizer, tokens: int, seed: int
) -> Iterator[tuple[int, ...]]:
    """Pieces of documents of a kind, from their beginnings on.

    Of one's own text the paragraphs are left out that are held out as prompts.

    Args:
        root: The collection's folder, or one's own data.
        kind: "prose", "code" or "dialogue".
        text: Tokenizer.
        tokens: Tokens that are wanted, about.
        seed: Seed of the order of documents.

    Yields:
        Token ids of a piece, LONGEST at most.
    """
    own = not is_collection_folder(root)
    # Six bytes a token are more than enough.
    for document in split_documents(root, kind, 6 * tokens, 0, seed).train:
        if own:
            document = "\n\n".join(
                p for p, ask in text_rows.paragraph_prompts(document) if not held_out(ask)
            )
        # Only the beginning of a document is read, so that many documents take part.
        ids = text.encode(document[: 8 * LONGEST])
        for at in range(0, len(ids) - 1, LONGEST):
            yield tuple(ids[at : at + LONGEST])


def read_text_samples(
    root: Path, text: Tokenizer, tokens: int, seed: int = 0
) -> list[TrainingSample]:
    """Texts of all kinds in turn, as samples.

    All but the first token count as written by the target: its laws are learned at all of them.

    Args:
        root: The collection's folder, or one's own data.
        text: Tokenizer.
        tokens: Tokens of all texts together, about.
        seed: Seed of the order of texts. Default 0.

    Returns:
        The samples.
    """
    rng = random.Random(seed)
    out = list[TrainingSample]()
    count = 0
    sources = list[Iterator[tuple[int, ...]]]()
    # Exchanges need a chat template.
    if text.has_chat and is_collection_folder(root):
        sources += [read_exchanges(root, kind, text, rng) for kind in EXCHANGES]
    elif text.has_chat:
        sources += [own_exchanges(root, text, rng)]
    sources += [
        read_running_text(root, kind, text, tokens // 2, seed) for kind in ("prose", "code")
    ]
    for ids in (
        ids[:LONGEST]
        # One text of each source in turn, until the sources or the wanted tokens are used up.
        for turn in zip_longest(*sources)
        for ids in turn
        if ids is not None and len(ids) > 1
    ):
        # A prompt of one token: all that follows counts as an answer.
        out.append(TrainingSample(ids[:1], ids[1:], kind="read"))
        count += len(ids)
        if count >= tokens:
            break
    return out
