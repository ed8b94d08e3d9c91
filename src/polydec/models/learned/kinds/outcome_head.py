"""A head on a model's states: of every token that may come next, how likely is it that the finished text will be as wanted?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, logsigmoid, silu

from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import OutcomeHeadFields

KIND = artefact.ArtefactKind(
    "outcome-head", "head", "outcome.safetensors", "probe --recipe outcome"
)


@dataclass(frozen=True)
class WantedOutcome:
    """What is wanted of a finished text; all of it must hold.

    Attributes:
        holds: A piece of text that stands in it; "": any text will do.
        least: Tokens that it has at least, its end counted.
        most: Tokens that it has at most; 0: any number.
    """

    holds: str = ""
    least: int = 0
    most: int = 0

    def is_met(self, text: str, tokens: int) -> bool:
        """Whether a finished text is as wanted.

        Args:
            text: The text, without marks.
            tokens: How many tokens it has, its end counted.
        """
        return (
            self.holds in text and self.least <= tokens and (not self.most or tokens <= self.most)
        )


@dataclass(frozen=True, eq=False)
class OutcomeHead:
    """sigmoid(out silu(inner x + token)), x: the state before a token, divided by its root mean square. inner: weight [I, H],
    bias [I]; token_VI: a row for each next token; out: weight [1, I], bias [1]; wanted: what it foretells; vocab: the target's.
    Arithmetic is fp32.

    One product serves all next tokens of a beginning: none of them is fed to be judged.
    """

    called: ClassVar[str] = "an outcome head"
    kind: ClassVar[str] = "outcome-head"
    made_by: ClassVar[str] = KIND.training_command

    inner: tuple[Tensor, Tensor]
    token_VI: Tensor
    out: tuple[Tensor, Tensor]
    wanted: WantedOutcome
    vocab: TokenVocabulary

    @property
    def state_width(self) -> int:
        """Width of the states that it reads."""
        return self.inner[0].shape[1]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states have another width.
        """
        target.vocab.require_same(self.vocab, "the target of the outcome head")
        artefact.require_width(target, self.state_width, "outcome heads")

    def outcome_logits(self, hidden_NH: Tensor, token_NC: Tensor) -> Tensor:
        """Say of tokens how likely the wanted outcome is behind them.

        Args:
            hidden_NH: States before the final norm, as sessions give them.
            token_NC: Of each state tokens that may come next.

        Returns:
            Logits, ``[N, C]``.
        """
        x = hidden_NH.float()
        x = x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        inner_NCI = linear(x, *self.inner)[:, None] + embedding(token_NC, self.token_VI)
        return linear(silu(inner_NCI), *self.out)[..., 0]

    def log_chances(self, hidden_H: Tensor | None, tokens: Sequence[int]) -> list[float]:
        """Of each token that may come next the log-probability of the wanted outcome behind it.

        Args:
            hidden_H: State after the text so far.
            tokens: Tokens that may follow.

        Returns:
            Numbers of at most 0.
        """
        assert hidden_H is not None, "the recipe asks for a target that shows its states"
        token_1C = torch.tensor([list(tokens)], device=self.token_VI.device)
        return logsigmoid(self.outcome_logits(hidden_H[None], token_1C))[0].tolist()

    def is_met(self, text: str, tokens: int) -> bool:
        """Whether a finished text is as wanted; see `WantedOutcome`.

        Args:
            text: The text, without marks.
            tokens: How many tokens it has, its end counted.
        """
        return self.wanted.is_met(text, tokens)


def new_outcome_head(
    width: int, inner: int, wanted: WantedOutcome, vocab: TokenVocabulary, seed: int
) -> OutcomeHead:
    """Make one to train, which says 1/2 of everything.

    Args:
        width: Width H of the target's states.
        inner: Number I of inner units.
        wanted: What it is to foretell.
        vocab: The target's vocabulary.
        seed: Seed of the inner weights; tokens and the outer ones begin as zeros.

    Returns:
        The head.
    """
    g = torch.Generator().manual_seed(seed)
    return OutcomeHead(
        (torch.randn(inner, width, generator=g) / width**0.5, torch.zeros(inner)),
        torch.zeros(vocab.size, inner),
        (torch.zeros(1, inner), torch.zeros(1)),
        wanted,
        vocab,
    )


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[OutcomeHead, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One head of eight inner units, which wants two tokens or more.
    """
    g = torch.Generator().manual_seed(11)
    head = new_outcome_head(width, 8, WantedOutcome(least=2), vocab, 11)
    return (
        OutcomeHead(
            head.inner,
            torch.randn(vocab.size, 8, generator=g),
            (torch.randn(1, 8, generator=g), head.out[1]),
            head.wanted,
            vocab,
        ),
    )


def save(path: str | Path, head: OutcomeHead, about: Mapping[str, Any]) -> None:
    """Write outcome.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        head: The head.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {"token": head.token_VI}
    for name, (weight, bias) in (("inner", head.inner), ("out", head.out)):
        tensors |= {f"{name}.weight": weight, f"{name}.bias": bias}
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float() for name, t in tensors.items()},
        {
            **about,
            **asdict(head.wanted),
            "width": head.state_width,
            "inner": len(head.inner[1]),
            "vocab_size": head.vocab.size,
            "tokenizer": head.vocab.tokenizer,
        },
    )


def load(path: str | Path) -> OutcomeHead:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, t = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(OutcomeHeadFields, config, artefact.CONFIG)
        return OutcomeHead(
            artefact.read_float_layer(t, KIND, "inner", c.inner, c.width),
            artefact.read_float_tensor(t, KIND, "token", c.vocab_size, c.inner),
            artefact.read_float_layer(t, KIND, "out", 1, c.inner),
            WantedOutcome(c.holds, c.least, c.most),
            TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer),
        )
