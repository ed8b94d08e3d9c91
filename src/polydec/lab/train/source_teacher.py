"""A model without an encoder that teaches one with an encoder, on texts that the latter draws.

Source: Return of the Encoder (2025), on-policy distillation: the student draws a text at temperature
0.9 of its 128 likeliest tokens, and learns the teacher's law of each of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import kl_div

from polydec.base.errors import RequestError
from polydec.lab.train.data import ASSISTANT, BEGIN, END, USER
from polydec.lab.train.loop import bf16_autocast
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.t5 import TrainableT5, pad_id_rows
from polydec.lab.train.tokens import mark_id
from polydec.models.sessions import sources

TextIds = Sequence[int]


@torch.no_grad()
def draw_targets(
    network: TrainableT5,
    chosen: Sequence[TextIds],
    marks: tuple[int, int],
    longest: int,
    heat: float,
    top: int,
    dice: torch.Generator,
) -> list[tuple[int, ...]]:
    """Draw a text for each of some sources.

    Args:
        network: The student.
        chosen: Token ids of the sources.
        marks: Id before every text in the decoder, and id of an end.
        longest: Tokens of a text at most, its end counted.
        heat: Temperature, above 0.
        top: Likeliest tokens that are drawn from.
        dice: Decides; it is advanced.

    Returns:
        Token ids of the texts; those that did not end have no end.
    """
    begin, end = marks
    # Sources are read once; the decoder reads its whole text anew for each token, as texts are short.
    source_BS, there_BS = pad_id_rows(chosen)
    read_BSW = network.encode_source(source_BS, there_BS)
    text_BT = torch.full((len(chosen), 1), begin)
    over_B = torch.zeros(len(chosen), dtype=torch.bool)
    while text_BT.shape[1] <= longest and not bool(over_B.all()):
        here_BT = torch.ones_like(text_BT, dtype=torch.bool)
        state_BTW = network.decoder(network.shared(text_BT), here_BT, read_BSW, there_BS)
        logits_BV = network.token_logits(state_BTW[:, -1]).float() / heat
        # Of the likeliest tokens alone, by their own shares.
        value_BK, token_BK = logits_BV.topk(min(top, logits_BV.shape[1]))
        drawn_B1 = torch.multinomial(value_BK.softmax(-1), 1, generator=dice)
        # Rows that have ended go on with the others; what stands behind an end is cut below.
        text_BT = torch.cat([text_BT, token_BK.gather(1, drawn_B1)], 1)
        over_B |= text_BT[:, -1] == end
    return [_up_to_end(row, end) for row in text_BT[:, 1:].tolist()]


def _up_to_end(row: Sequence[int], end: int) -> tuple[int, ...]:
    if end in row:
        return tuple(row[: row.index(end) + 1])
    return tuple(row)


@dataclass(frozen=True, eq=False)
class SourceTeacher:
    """A model that continues texts, and reads a source as `train lm --pairs` writes a question.

    Attributes:
        network: Its network, which stays.
        before: Token ids before a source.
        behind: Token ids between a source and its text.
        fast: Whether products are made in bf16.
    """

    network: TrainableLlama
    before: tuple[int, ...]
    behind: tuple[int, ...]
    fast: bool

    @staticmethod
    def of_name(name: str, tokenizer: Tokenizer, fast: bool) -> SourceTeacher:
        """Open a teacher.

        Args:
            name: As --model takes it.
            tokenizer: The student's.
            fast: Whether products are made in bf16.

        Returns:
            The teacher.

        Raises:
            RequestError: It has other tokens, or is of another kind.
        """
        source = sources.open_source(name)
        size = tokenizer.get_vocab_size()
        # Equal sizes do not make equal tokens: a sentence shows it.
        probe = "The quick brown fox, 12 of them; äöü."
        same = tuple(tokenizer.encode(probe, add_special_tokens=False).ids)
        if source.config.get("vocab_size") != size or source.text.encode(probe, False) != same:
            raise RequestError(
                f"teacher is {name!r}: its tokens are not those of this model; give --tokenizer {name} to both"
            )
        network = from_weights(source.config, source.weights)
        # A question stands between the marks of the chat template.
        marks = {mark: mark_id(tokenizer, mark) for mark in (BEGIN, USER, END, ASSISTANT)}
        return SourceTeacher(
            network, (marks[BEGIN], marks[USER]), (marks[END], marks[ASSISTANT]), fast
        )

    @torch.no_grad()
    def target_logprobs(self, chosen: Sequence[tuple[TextIds, TextIds]]) -> Tensor:
        """The teacher's laws of the tokens of some texts behind their sources.

        Args:
            chosen: Token ids of sources, each with its end, and of texts.

        Returns:
            Log-probabilities, one text after another, shape ``[N, V]``.

        Raises:
            RequestError: A source and its text are longer than the teacher's context.
        """
        # A source of the encoder has an end; a question has the one that stands before the answer.
        asked = [(*self.before, *source[:-1], *self.behind) for source, _ in chosen]
        # The last token of a text foretells nothing that is known.
        rows = [(*a, *target[:-1]) for a, (_, target) in zip(asked, chosen, strict=True)]
        longest = max(map(len, rows))
        if longest > self.network.s.context:
            raise RequestError(
                f"longest is too much for the teacher: a pair has {longest} tokens with its marks, and the teacher "
                f"reads {self.network.s.context}"
            )
        # Filled up behind the texts, where a causal model does not look.
        id_BT, _ = pad_id_rows(rows)
        with bf16_autocast(self.fast):
            state_BTH = self.network.model(id_BT)
        # The last token of the question foretells the first one of the text.
        taken = [
            state_BTH[i, len(a) - 1 : len(a) - 1 + len(target)]
            for i, (a, (_, target)) in enumerate(zip(asked, chosen, strict=True))
        ]
        return self.network.token_logits(torch.cat(taken)).float().log_softmax(-1)


def taught_loss(logits_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    """How far a student's laws are from its teacher's, by Kullback and Leibler.

    Args:
        logits_NV: Of the student.
        teacher_NV: Log-probabilities of the teacher.

    Returns:
        Nats a token, the teacher's law first.
    """
    # The first argument is the law that is moved.
    logp: Any = logits_NV.log_softmax(-1)
    return kl_div(logp, teacher_NV, reduction="batchmean", log_target=True)
