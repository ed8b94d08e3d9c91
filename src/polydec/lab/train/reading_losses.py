"""What readers that read a word at once learn: counts and order (CPPD), a walk from letter to letter
(LISTER), masks and wrong letters (MDiff4STR)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from polydec.models.nets.masked_head import MaskedHead
from polydec.models.nets.neighbour_head import NeighbourHead, NeighbourMaps
from polydec.models.nets.reading_heads import CountingHead

SMOOTH = 0.1
"""Share of a label that all letters get alike (CPPD, as published)."""
STOPPED = 0.01
"""What the walk's end weighs beside its letters (LISTER, as published)."""
SPREAD = 0.001
"""What the walk's spread weighs beside its letters (LISTER, as published)."""
READS = 2.1
"""Nats a letter of the first walk, below which those over refined images are learned (LISTER, as
published)."""
FLOOR = 1e-30
"""Added to the mass that has reached the end, so that its logarithm stays finite."""
IGNORED = -100

Words = Sequence[tuple[int, ...]]
"""The tokens of words, their ends included."""

MaskPattern = Callable[[int, np.random.Generator], np.ndarray]
"""Of the length of a word with its end and a generator: which places are masked."""

WordLoss = Callable[[Any, Tensor, Tensor, Words, np.random.Generator], Tensor]
"""Of a head, the states of images, which of them are of an image, their words and a generator: the
loss."""


def counting_loss(
    head: CountingHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
    *,
    auxiliary: float = 1.0,
    absent: int = 0,
) -> Tensor:
    """The loss of a counting head: letters, how often each occurs, and which places are taken.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Decides which absent letters are counted; it is advanced.
        auxiliary: What counts and places weigh beside letters; 0 leaves both out. Default 1, as
            published.
        absent: See `counted_classes`. Default 0: all letters are counted, as published for Latin
            ones.

    Returns:
        The loss.
    """
    class_BC = counted_classes(words, len(head.classes), absent, rng)
    read = head(states_BSW, there_BS, class_BC)
    assert read.counts_BCN is not None, "letters are counted in training"
    right_BT = torch.full((len(words), read.letters_BTV.shape[1]), IGNORED)
    counts_BV = torch.zeros(len(words), len(head.classes), dtype=torch.long)
    for i, word in enumerate(words):
        right_BT[i, : len(word)] = torch.tensor(word)
        counts_BV[i] = torch.tensor(word).bincount(minlength=counts_BV.shape[1])
    # More than can be told count as the most that can.
    counts_BC = counts_BV.gather(1, class_BC).clamp(max=read.counts_BCN.shape[2] - 1)
    taken_BT = (right_BT != IGNORED).float()
    letters = cross_entropy(
        read.letters_BTV.flatten(0, 1), right_BT.flatten(), label_smoothing=SMOOTH
    )
    counts = cross_entropy(read.counts_BCN.flatten(0, 1), counts_BC.flatten())
    places = binary_cross_entropy_with_logits(read.occupied_BT, taken_BT)
    return letters + auxiliary * (counts + places)


def counted_classes(words: Words, vocab: int, absent: int, rng: np.random.Generator) -> Tensor:
    """Which tokens are counted in each word.

    Args:
        words: B words.
        vocab: Tokens, marks included.
        absent: Tokens drawn that a word does not have; of a word with fewer of its own than another
            some more, as all count equally many. 0: all tokens are counted.
        rng: Draws; it is advanced.

    Returns:
        Ids, ``[B, C]``.
    """
    if not absent:
        return torch.arange(vocab).expand(len(words), -1)
    size = min(vocab, absent + max(len(set(word)) for word in words))
    rows = list[list[int]]()
    for word in words:
        # Its own letters come first, so that cutting the row off leaves them in.
        own = sorted(set(word))
        others = [token for token in rng.permutation(vocab).tolist() if token not in own]
        rows.append([*own, *others][:size])
    return torch.tensor(rows)


def neighbour_loss(
    head: NeighbourHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
    *,
    ending: float = STOPPED,
) -> Tensor:
    """The loss of walks: their letters, that they end behind the last one, and how far they spread.

    Where a head refines images, walks over refined ones weigh as much as the first, once that reads
    some letters.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Not used.
        ending: What the walk's end weighs beside its letters. Default 0.01, as published.

    Returns:
        The loss.
    """
    # All words walk as long as the longest one; each is judged up to its own end.
    steps = max(map(len, words))
    letters_B1 = torch.tensor([len(word) - 1 for word in words])[:, None]
    # The step at which a word ends has found no letter.
    found_BT = torch.arange(steps) < letters_B1
    maps = head(states_BSW, there_BS)
    walk_BTM = head.walk_steps(maps, steps)
    whole, said = _walk_loss(head, maps, walk_BTM, words, ending)
    losses = [whole]
    for _ in range(head.rounds if float(said.detach()) < READS else 0):
        maps = head(head.refined_states(maps, walk_BTM, found_BT), there_BS)
        walk_BTM = head.walk_steps(maps, steps)
        losses.append(_walk_loss(head, maps, walk_BTM, words, ending)[0])
    return torch.stack(losses).mean()


def _walk_loss(
    head: NeighbourHead, maps: NeighbourMaps, walk_BTM: Tensor, words: Words, ending: float
) -> tuple[Tensor, Tensor]:
    """The loss of one walk over each image, and the nats of a letter in it."""
    logp_BTV = head.letters(walk_BTM @ maps.rows_BMW).log_softmax(-1)
    # All words at once: a loop over them took as long as the network itself.
    size_B = torch.tensor([len(word) for word in words])
    at_BT = torch.arange(walk_BTM.shape[1])[None].expand(len(words), -1)
    right_BT = torch.nn.utils.rnn.pad_sequence([torch.tensor(w) for w in words], batch_first=True)
    # Letters are read at every step but the last one of a word, which stands on the end.
    letter_BT = at_BT < size_B[:, None] - 1
    nats_BT = -logp_BTV.gather(2, right_BT[..., None])[..., 0] * letter_BT
    said_B = nats_BT.sum(1) / letter_BT.sum(1)
    # The floor is far below what a walk loses on its way, so also one that never ends is pulled.
    ended_B = -(walk_BTM[torch.arange(len(words)), size_B - 1, -1] + FLOOR).log()
    # Over the positions that there are, so that a wide image may spread as much as a narrow one.
    most_B = (maps.there_BS.sum(1) + 1.0).log()
    spread_BT = -(walk_BTM * walk_BTM.clamp(min=1e-9).log()).sum(-1) * (at_BT < size_B[:, None])
    spread_B = spread_BT.sum(1) / size_B / most_B
    said = said_B.mean()
    return said + ending * ended_B.mean() + SPREAD * spread_B.mean(), said


def masked_loss(
    head: MaskedHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    words: Words,
    rng: np.random.Generator,
    *,
    patterns: Sequence[MaskPattern] = (),
    replaced: float = 1.0,
    copies: int = 1,
) -> Tensor:
    """The loss of a masked head: letters behind masks of six patterns, and all letters of words in
    which some stand wrongly.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        words: Their words.
        rng: Decides what is masked and what stands wrongly; it is advanced.
        patterns: Which are drawn from. Default (): all six.
        replaced: What wrong letters weigh beside masks; 0 leaves them out. Default 1, as published.
        copies: Canvases of each word, masked and spoilt apart, that share its image's states. Default
            1; 3 in the public code.

    Returns:
        The loss.
    """
    size = head.longest + 1
    # The canvases of an image stand side by side.
    copied = [word for word in words for _ in range(copies)]
    right_CN = torch.full((len(copied), size), head.mask)
    masked_CN = torch.zeros(len(copied), size, dtype=torch.bool)
    for i, word in enumerate(copied):
        right_CN[i, : len(word)] = torch.tensor(word)
        masked_CN[i, : len(word)] = torch.from_numpy(
            draw_masked_places(len(word), rng, patterns or PATTERNS)
        )
    canvas_CN = right_CN.masked_fill(masked_CN, head.mask)
    masks = denoising_loss(
        head(canvas_CN, states_BSW, there_BS), right_CN, masked_CN, [len(w) for w in copied]
    )
    # A second run of the head is saved where it would weigh nothing.
    if not replaced:
        return masks
    return masks + replaced * replacement_loss(head, states_BSW, there_BS, right_CN, rng)


def denoising_loss(
    logits_CNV: Tensor, right_CN: Tensor, masked_CN: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Cross-entropy of masked places, of each word over the share that is masked and its length and one.

    Args:
        logits_CNV: Of all places.
        right_CN: Tokens that belong there.
        masked_CN: Which were masked.
        lengths: Tokens of each word, its end included.

    Returns:
        The mean over words.
    """
    # Few masks weigh as much as many: each word counts alike.
    long_C = torch.tensor(lengths, dtype=torch.float32)
    logp_CNV = logits_CNV.log_softmax(-1)
    # Places that are not masked hold tokens that the head may have no logit of.
    right_CN = right_CN.masked_fill(~masked_CN, 0)
    nats_CN = -logp_CNV.gather(2, right_CN[..., None])[..., 0] * masked_CN
    share_C = masked_CN.sum(1) / long_C
    return (nats_CN.sum(1) / (share_C * (long_C + 1))).mean()


def replacement_loss(
    head: MaskedHead,
    states_BSW: Tensor,
    there_BS: Tensor,
    right_CN: Tensor,
    rng: np.random.Generator,
) -> Tensor:
    """Cross-entropy of all letters of words of which a share stands wrongly, so that a head learns to
    doubt what it reads on its canvas.

    Args:
        head: The head.
        states_BSW: States of B images.
        there_BS: Which of them are of an image.
        right_CN: Tokens of the words, masks behind them; as many copies of each word as of others.
        rng: Decides which letters are replaced, and by what; it is advanced.

    Returns:
        The mean over all letters.
    """
    # Nothing is replaced behind a word, where all is mask in reading, too.
    word_CN = right_CN != head.mask
    share_C1 = torch.from_numpy(rng.uniform(0.001, 1, (len(right_CN), 1))).float()
    dice_CN = torch.from_numpy(rng.random(right_CN.shape)).float()
    other_CN = torch.from_numpy(rng.integers(0, head.mask + 1, right_CN.shape))
    noisy_CN = torch.where(word_CN & (dice_CN < share_C1), other_CN, right_CN)
    logits_CNV = head(noisy_CN, states_BSW, there_BS)
    return cross_entropy(logits_CNV[word_CN], right_CN[word_CN])


def draw_masked_places(
    length: int, rng: np.random.Generator, patterns: Sequence[MaskPattern]
) -> np.ndarray:
    """Which places of a word are masked, by one of the patterns that reading will show: all, behind a
    beginning, before an end, behind some blocks, one, or any.

    Args:
        length: Tokens of the word, its end included.
        rng: Decides; it is advanced.
        patterns: Of `PATTERNS`, by which each is drawn alike.

    Returns:
        Whether each is masked, at least one.
    """
    pattern = patterns[int(rng.integers(len(patterns)))]
    # A short word has no inner place to cut at.
    if length <= 2 and pattern in INNER:
        pattern = _any_masked
    return pattern(length, rng)


def _all_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.ones(length, dtype=bool)


def _behind_beginning(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) >= rng.integers(1, length)


def _before_end(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) < rng.integers(1, length)


def _behind_blocks(length: int, rng: np.random.Generator) -> np.ndarray:
    block = -(-length // int(rng.integers(2, 7)))
    # At least one whole block is known, and something is masked.
    known = block * int(rng.integers(1, max(2, -(-length // block))))
    return np.arange(length) >= min(known, length - 1)


def _one_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    return np.arange(length) == rng.integers(length)


def _any_masked(length: int, rng: np.random.Generator) -> np.ndarray:
    masked = rng.random(length) < rng.random()
    masked[int(rng.integers(length))] = True
    return masked


INNER = (_behind_beginning, _before_end, _behind_blocks, _one_masked)
"""Patterns that need a word of at least three tokens."""
PATTERNS: tuple[MaskPattern, ...] = (_all_masked, *INNER, _any_masked)
"""The six patterns, as published."""
