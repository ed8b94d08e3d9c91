"""An insertion language model: the lean transformer, bidirectional, over the tokens that exist.

Checkpoints of ours: `polydec_causal: false` and `polydec_insertion`, the id of the mark that stands
before every text. The row of a token says what comes right after it; the mark's own row says, by
the weights of EOS and of the mark, whether nothing is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.insertion_law import InsertionScores
from polydec.core.law import NEG_INF
from polydec.core.types import ScoreRequest, TokenVocabulary
from polydec.models.formats import edge, fields
from polydec.models.nets.kv_cache import total_cache_bytes
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, NeuralNetwork
from polydec.models.nets.scores import require_finite_logits
from polydec.models.sessions.live_references import LiveReferences

FRAME = 2
"""Positions that are neither prompt nor answer: the mark before them and the end behind them."""

_ROWS = ScoreRequest()


class BidirectionalInserter:
    """An `Inserter` over a bidirectional network.

    Args:
        network: The network.
        vocab: The ids that the model knows.
        mark: The id that stands before every text. It is never put into one, nor is EOS or any
            token that writes nothing.

    Raises:
        RequestError: The mark is not of the vocabulary, or there is no EOS other than the mark.
    """

    family: ClassVar[str] = "insertion"
    layers = 0  # none can run alone
    live: Sequence[Any] = ()  # slates cannot be put on hold

    def __init__(self, network: NeuralNetwork, vocab: TokenVocabulary, mark: int) -> None:
        if not 0 <= mark < vocab.size:
            raise RequestError(f"the mark is token {mark}: it must lie in 0 to {vocab.size - 1}")
        # Only EOS at a slot says that nothing goes there.
        if not vocab.eos - {mark}:
            raise RequestError(
                "there is no EOS beside the mark: the model could not say that nothing is missing"
            )
        self.network = network
        self.vocab = vocab
        self.mark = mark
        if vocab.words is None:
            pieces = ()
        else:
            pieces = vocab.words.pieces
        # What may not be inserted: the mark, ends, and tokens that spell nothing.
        self.barred = sorted(
            {mark, *vocab.eos, *(i for i, piece in enumerate(pieces) if piece is None)}
        )
        self._slates = LiveReferences[InsertionSlate]()

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer may take together."""
        return self.network.context - FRAME

    @property
    def nbytes(self) -> int:
        """Bytes of the caches of open slates."""
        return total_cache_bytes(s.cache for s in self._slates if s.cache is not None)

    def open_slate(self, length: int) -> InsertionSlate:
        """Open a text.

        Raises:
            RequestError: The text is longer than the model's context.
        """
        if length > self.context:
            raise RequestError(
                f"the text has {length} tokens: the model's context holds {self.context}"
            )
        slate = InsertionSlate(self)
        self._slates.add_object(slate)
        return slate


class InsertionSlate:
    """A text under an insertion model. It has a slot of the cache for each position, and writes all
    of them in every pass."""

    def __init__(self, model: BidirectionalInserter) -> None:
        self._model = model
        self.cache: Any = None

    async def score_slots(self, text: Sequence[int], slots: Sequence[int]) -> InsertionScores:
        """What the model would insert after some tokens.

        Args:
            text: Token ids of the text.
            slots: Positions of the tokens after which something may be inserted, ascending, at
                least one.

        Returns:
            Log-weights of every token at every slot, and the probability that nothing is missing.

        Raises:
            RequestError: A number is not finite.
        """
        model = self._model
        tokens = (self._model.mark, *text)
        if self.cache is None:
            self.cache = model.network.new_cache()
        if new := range(self.cache.length, len(tokens)):
            self.cache.stage_slots(range(-1, len(new) - 1))
            self.cache.commit_path(range(len(new)))
        # The mark stands before the text, so that the token at position s has slot s + 1. Row 0 is
        # the mark's.
        query = NetworkQuery(self.cache, 0, tokens, (0, *(s + 1 for s in slots)), _ROWS)
        answer: NetworkAnswer = await ForwardQuery(model.network, query, len(tokens))
        assert answer.logits_RV is not None
        logw_RV = answer.logits_RV.double().cpu()
        require_finite_logits(logw_RV.max(-1).values.tolist())
        # The mark's row: the logits of EOS and of the mark make a choice of two, whose softmax is a
        # sigmoid of the difference.
        whole = float(logw_RV[0, min(model.vocab.eos)])
        missing = float(logw_RV[0, model.mark])
        logw_RV[:, model.barred] = NEG_INF
        return InsertionScores(
            logw_RV[1:], float(torch.sigmoid(torch.tensor(whole - missing, dtype=torch.float64)))
        )

    def close(self) -> None:
        self.cache = None


def is_inserter(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an insertion model."""
    return config.get("polydec_insertion") is not None


def mark_of(config: Mapping[str, Any]) -> int:
    """The id of the mark.

    Raises:
        RequestError: The config is damaged.
    """
    return edge.validate_record(fields.InsertionFields, config, "config").polydec_insertion
