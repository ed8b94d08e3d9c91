"""`polydec train diffusion`: a small masked-diffusion language model from scratch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import FileError, RequestError
from polydec.lab.train.data import ASSISTANT, BEGIN, END, USER
from polydec.lab.train.diffusion_pairs import DiffusionPairRows, read_learned_pairs
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.lora import add_lora_adapters, save_lora_adapters
from polydec.lab.train.network import (
    LlamaShape,
    TrainableLlama,
    from_weights,
    make_bidirectional,
    save_directory,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.diffusion import DiffusionSpec
from polydec.lab.train.tasks import LONG, draw_task, task_variety
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer
from polydec.models.formats import edge, fields, rows8, zoo

LEAST = 1e-3
"""The smallest chance of a mask."""

TRIES = 50
"""Tasks of a kind that are looked at for a row, until one fits into it."""

APART = 10_000_000
"""How far the numbers of these tasks lie from one another: further than a training has tasks."""


@dataclass(frozen=True)
class DiffusionStudent:
    """A network to train, with its tokenizer.

    Attributes:
        network: The network; it sees both ways unless the spec says `causal`.
        tokenizer: Its tokenizer, which has no mask.
        mask: Id of a gap, the last of the vocabulary.
    """

    network: TrainableLlama
    tokenizer: Tokenizer
    mask: int


def train_diffusion(spec: DiffusionSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
    """
    return run_training("diffusion", spec, _course)


def _course(spec: DiffusionSpec) -> TrainingRun:
    student = start_diffusion_student(spec)
    network = student.network
    rows, same = rows_of_spec(spec, student.tokenizer)
    bf16 = is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        token_BT, answer_BT = rows.batch_rows(step)
        # Masks are drawn from the step's number, so that a resumed run draws the same ones.
        rng = torch.Generator().manual_seed(spec.seed * 1_000_003 + step)
        with bf16_autocast(bf16):
            return _loss(spec, student, step, token_BT, answer_BT, rng), token_BT.numel()

    schedule = TrainingSchedule(
        spec.steps,
        spec.rate,
        # Muon makes updates orthogonal: it is meant for whole matrices, not for thin adapters.
        muon=0.0 if spec.lora else spec.muon,
        log_every=min(20, spec.steps),
    )
    if spec.causal:
        kind = {}
    else:
        # These fields tell the engine how the model is read.
        kind = {
            "polydec_causal": False,
            "polydec_mask": student.mask,
            "polydec_shifted": spec.shifted,
            "polydec_block": spec.block,
        }
    require_same_kind(spec, kind)
    # Matrices in 8 bits take half the space of float16.
    if spec.int8:
        dtype = torch.int8
    else:
        dtype = torch.float16
    return TrainingRun(
        network,
        step_loss,
        schedule,
        {**same, "bf16": bf16},
        lambda out, result: save_tuned_student(out, student, spec, kind, dtype),
        lambda: {"parameters": sum(p.numel() for p in network.parameters())},
    )


def rows_of_spec(
    spec: DiffusionSpec, tokenizer: Tokenizer
) -> tuple[DiffusionTaskRows | DiffusionPairRows, dict[str, Any]]:
    """What a step reads, and what tells the run from others.

    Args:
        spec: Options.
        tokenizer: Encodes tasks or pairs.

    Returns:
        The rows of one's own pairs where they are given, else those of tasks; and the identity, in
        which options that are off have no part.
    """
    # The pairs' digest stands for their path, so that a moved file is the same run.
    free = ["pairs"] + ["unroll"] * (not spec.unroll)
    free += ["vocab"] * (spec.vocab == DiffusionSpec.vocab) + ["lora"] * (not spec.lora)
    if spec.pairs is None:
        return DiffusionTaskRows(tokenizer, spec), run_identity(spec, *free)
    rows = DiffusionPairRows(tokenizer, spec)
    return rows, run_identity(spec, *free, pairs=rows.pairs_digest)


def start_diffusion_student(spec: DiffusionSpec) -> DiffusionStudent:
    """A network to train: a new one, or the one at spec.start.

    Raises:
        RequestError: There is no network of the Llama skeleton at spec.start.
    """
    if spec.start is None:
        if spec.pairs is not None:
            texts = [t for p in read_learned_pairs(spec.pairs) for t in (p.source, p.target)]
        else:
            # Merges are learned from the first 2,000 tasks.
            texts = [text for i in range(2000) for text in _texts(spec, i)]
        tokenizer = train_tokenizer(texts, spec.vocab)
        size = tokenizer.get_vocab_size()
        shape = LlamaShape(
            # One token more than the tokenizer has: the mask.
            size + 1,
            spec.width,
            spec.layers,
            # Heads of 32, each with keys and values of its own.
            spec.width // 32,
            spec.width // 32,
            3 * spec.width,
            spec.most,
        )
        network = TrainableLlama(shape, seed=spec.seed)
    else:
        path = start_directory(spec.start)
        # Whatever is wrong in somebody else's files becomes one sentence about `start`.
        with edge.report_read_errors(f"start is {str(path)!r}: it cannot be read"):
            config = edge.read_json(path / "config.json")
            # Embedded models have matrices in 8 bits.
            weights = dict(rows8.dequantise_rows(load_file(str(path / "model.safetensors"))))
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
            # A masked-diffusion model has a mask already; an autoregressive one gets it behind its
            # tokens.
            if config.get("polydec_mask") is not None:
                size = edge.validate_record(fields.MaskedFields, config, "config").polydec_mask
                # It has a row already: one far behind the table would fill memory with new ones.
                if size >= config["vocab_size"]:
                    raise FileError(
                        f"polydec_mask is {size}: it must lie below vocab_size, {config['vocab_size']}"
                    )
            else:
                size = tokenizer.get_vocab_size()
            network = (
                from_weights(*_with_mask(config, weights, size), spec.most)
                .requires_grad_(True)
                .train()
            )
    if spec.lora:
        add_lora_adapters(network, spec.lora, spec.seed)
    return DiffusionStudent(
        network if spec.causal else make_bidirectional(network), tokenizer, size
    )


def require_same_kind(spec: DiffusionSpec, kind: Mapping[str, Any]) -> None:
    """Raise RequestError where an adapter of spec.start would not be of the model that is trained.

    Args:
        spec: Options; start and lora are read.
        kind: Fields of config.json that say how the trained model is read.
    """
    if not spec.lora or spec.start is None:
        return
    config = edge.read_json(start_directory(spec.start) / "config.json")
    # What a config leaves out.
    usual = {"polydec_causal": True, "polydec_shifted": False, "polydec_block": 0}
    names = (*usual, "polydec_mask", "polydec_insertion")
    own, theirs = (
        {n: usual.get(n) if fields.get(n) is None else fields[n] for n in names}
        for fields in (kind, config)
    )
    if own != theirs:
        differ = [n.removeprefix("polydec_") for n in names if own[n] != theirs[n]]
        raise RequestError(
            f"lora is {spec.lora}: {spec.start} is another kind of model than what is trained ({', '.join(differ)}), and an "
            "adapter changes none of that: leave it out"
        )


def start_directory(name: str) -> Path:
    """The directory of a model to begin with, by its path or zoo:NAME."""
    return edge.at_home(zoo.zoo_model_path(name) if name.startswith("zoo:") else name)


def _with_mask(
    config: dict[str, Any], weights: dict[str, Tensor], mask: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Add rows up to the mask's; new ones begin as the mean of the others."""
    # Tables are often longer than their tokenizer: then the mask takes a row that is there.
    new = mask + 1 - config["vocab_size"]
    for name in ("model.embed_tokens.weight", "lm_head.weight") if new > 0 else ():
        if name in weights:
            weights[name] = torch.cat(
                [weights[name], weights[name].mean(0, keepdim=True).expand(new, -1)]
            )
    return {**config, "vocab_size": max(mask + 1, config["vocab_size"])}, weights


def save_tuned_student(
    out: Path,
    student: DiffusionStudent,
    spec: DiffusionSpec,
    kind: dict[str, Any],
    dtype: torch.dtype = torch.float16,
) -> None:
    """Save a student: an adapter of --start where adapters were trained, else a model.

    Args:
        out: Directory to write.
        student: Network and tokenizer.
        spec: Options; start and lora are read.
        kind: See `save_diffusion_student`.
        dtype: See `save_diffusion_student`.
    """
    if spec.lora:
        # Options were checked: adapters are only trained of a model that is there.
        assert spec.start is not None
        save_lora_adapters(out, student.network, spec.start)
        return
    save_diffusion_student(out, student, kind, dtype)


def save_diffusion_student(
    out: Path, student: DiffusionStudent, kind: dict[str, Any], dtype: torch.dtype = torch.float16
) -> None:
    """Save a student as a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        student: Network and tokenizer.
        kind: Fields of config.json besides those of the Llama skeleton.
        dtype: Type of the weights in the file; int8 is quantised by rows. Default float16.
    """
    network = student.network
    tokenizer = student.tokenizer
    end = tokenizer.token_to_id(END)
    begin = tokenizer.token_to_id(BEGIN)
    config = {**network.s.config_content(bos=begin, eos=end, tied=network.lm_head is None), **kind}
    save_directory(
        out, network, config, files=tokenizer_files(tokenizer, network.s.context), dtype=dtype
    )


def _loss(
    spec: DiffusionSpec,
    student: DiffusionStudent,
    step: int,
    token_BT: Tensor,
    answer_BT: Tensor,
    rng: torch.Generator,
) -> Tensor:
    if spec.causal:
        return next_token_loss(
            student.network, token_BT, answer_BT, mark_id(student.tokenizer, END)
        )
    if spec.drop:
        # Some prompt tokens are masked too, so that the model learns to do without them.
        token_BT = apply_prompt_dropout(token_BT, answer_BT, student.mask, spec.drop, rng)
    if spec.block:
        return block_loss(
            student.network,
            token_BT,
            answer_BT,
            student.mask,
            rng,
            spec.block,
            shifted=spec.shifted,
        )
    if spec.unroll:
        return unrolled_loss(
            student.network,
            token_BT,
            answer_BT,
            student.mask,
            rng,
            spec.unroll,
            shifted=spec.shifted,
        )
    # A causal network learns to see both ways little by little: a growing share of the later
    # positions opens.
    see_TT = None
    if step < spec.anneal:
        T = token_BT.shape[1]
        see_TT = torch.ones(T, T).tril().bool() | (
            torch.rand(T, T, generator=rng) < step / spec.anneal
        )
    return masked_loss(
        student.network, token_BT, answer_BT, student.mask, rng, shifted=spec.shifted, see_TT=see_TT
    )


def apply_prompt_dropout(
    token_BT: Tensor, answer_BT: Tensor, mask: int, share: float, rng: torch.Generator
) -> Tensor:
    """Mask all that stands before the answer in some of the rows.

    Args:
        token_BT: Token ids, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        mask: Id of a gap.
        share: Probability that a row loses its prompt, 0 to 1.
        rng: Source of randomness; it is advanced.

    Returns:
        Token ids, shape ``[B, T]``.
    """
    out_B1 = torch.rand(len(token_BT), 1, generator=rng) < share
    return token_BT.masked_fill(out_B1 & ~answer_BT, mask)


def _texts(spec: DiffusionSpec, i: int) -> list[str]:
    task = draw_task(spec.tasks[i % len(spec.tasks)], spec.seed, i, of=task_variety(spec.varied))
    return [task.question, task.answer]


class DiffusionTaskRows:
    """Batches of tasks as the chat template writes them.

    The answer and the EOS after it fill the row.
    """

    def __init__(self, tokenizer: Tokenizer, spec: DiffusionSpec) -> None:
        self._tokenizer = tokenizer
        self._spec = spec

    def batch_rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw the rows of a step, a function of the step alone.

        Returns token ids and which of them belong to the answer, both of shape ``[rows, length]``.
        """
        spec = self._spec
        # Drawn from the step alone, so that a resumed run reads the same rows.
        r = random.Random(f"{self._spec.seed} {step}")
        # Long tasks take every other step, at a length drawn uniformly in its logarithm.
        going_on = bool(spec.long) and step % 2 == 1
        tasks = [name for name in spec.tasks if not spec.long or (name in LONG) == going_on]
        length = r.randint(spec.shortest, spec.length)
        count = spec.rows
        if going_on:  # as many positions as the longest of the others take
            length = int(spec.length * (spec.long / spec.length) ** r.random())
            count = max(1, spec.rows * spec.length // length)
        rows = [
            self._row(tasks[i % len(tasks)], i, length)
            for i in range(step * spec.rows, step * spec.rows + count)
        ]
        return torch.tensor([t for t, _ in rows]), torch.tensor(
            [[i >= n for i in range(length)] for _, n in rows]
        )

    def _row(self, name: str, i: int, length: int) -> tuple[Sequence[int], int]:
        """A row of this length, and how many of its tokens come before the answer.

        A task that is too long gives way to another one of its kind. Raises RequestError where none
        of TRIES fits.
        """
        # Numbers far apart, so that no row of the training looks at the task of another.
        for attempt in range(TRIES):
            asked, answer = self._parts(name, i + attempt * APART, self._left_out(i))
            left = length - len(asked) - len(answer)
            # Long tasks may be cut: their answers go on anyhow.
            if left >= 0 or name in LONG:
                row = [*asked, *answer, *[mark_id(self._tokenizer, END)] * left]
                # Behind the answer stands its end, again and again: so a canvas is filled up.
                return row[:length], len(asked)
        raise RequestError(
            f"shortest is {self._spec.shortest}: none of {TRIES} tasks of {name!r} fits into {length} "
            "positions with its answer"
        )

    def _parts(self, name: str, i: int, left_out: bool) -> tuple[list[int], list[int]]:
        """The tokens up to the answer, and those of the answer with its end."""
        task = draw_task(name, self._spec.seed, i, of=task_variety(self._spec.varied))
        question = "" if left_out else task.question
        asked = self._ids(BEGIN + USER + question + END + ASSISTANT)
        return asked, self._ids(task.answer + END)

    def _left_out(self, i: int) -> bool:
        """Whether a causal model sees no question in this row.

        Other models see gaps, see `apply_prompt_dropout`.
        """
        spec = self._spec
        return (
            spec.causal
            and spec.drop > 0
            and random.Random(f"drop {spec.seed} {i}").random() < spec.drop
        )

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def masked_loss(
    network: TrainableLlama,
    token_BT: Tensor,
    answer_BT: Tensor,
    mask: int,
    rng: torch.Generator,
    *,
    shifted: bool = False,
    see_TT: Tensor | None = None,
) -> Tensor:
    """The bound on an answer's negative log-likelihood, for a masked-diffusion network.

    Of each row a share t of the answer is masked, t uniform and spread evenly over the batch. The
    cross-entropy at the masked positions is weighted by 1 / t.

    Args:
        network: The network in training.
        token_BT: Token ids, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        mask: Id of a gap.
        rng: Source of the masks; it is advanced.
        shifted: Whether the law of a position stands one before it. Default False.
        see_TT: True where a row position sees a column position, shape ``[T, T]``; None: all see
            all.

    Returns:
        Nats a token of the answer.
    """
    B = len(token_BT)
    # One draw for the batch, and equal distances between the rows: t has less variance than B
    # draws.
    spread_B = (torch.rand((), generator=rng) / B + torch.arange(B) / B) % 1
    # No t is below LEAST, which bounds the weight 1 / t.
    t_B1 = ((1 - LEAST) * spread_B + LEAST)[:, None]
    # Only tokens of the answer are masked.
    hidden_BT = (torch.rand(token_BT.shape, generator=rng) < t_B1) & answer_BT
    logits = network(token_BT.masked_fill(hidden_BT, mask), None, see_TT)
    # Few masks teach little at a high weight, and many a lot at a low one: the bound.
    loss_BT = cross_entropy(logits, token_BT, mask, shifted=shifted) * hidden_BT / t_B1
    return (loss_BT.sum(1) / answer_BT.sum(1)).mean()


def unrolled_loss(
    network: TrainableLlama,
    token_BT: Tensor,
    answer_BT: Tensor,
    mask: int,
    rng: torch.Generator,
    count: int,
    *,
    shifted: bool = False,
) -> Tensor:
    """The loss of step-unrolled denoising: random tokens are mended, and then what the network wrote.

    Of each row a share of the answer, uniform in 0 to 1, becomes tokens that are drawn evenly. Each
    step foretells all of the answer, and the next one reads what is drawn from its laws, without a
    gradient through the draw.

    Args:
        network: The network in training.
        token_BT: Token ids, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        mask: Id of a gap, which is never written.
        rng: Source of the noise and of the draws; it is advanced.
        count: Steps, 1 or more.
        shifted: Whether the law of a position stands one before it. Default False.

    Returns:
        Cross-entropy in nats a token of the answer, a mean over the steps.

    Source: Savinov et al., "Step-unrolled denoising autoencoders for text generation" (2022), two
    steps.
    """
    B, T = token_BT.shape
    share_B1 = ((torch.rand((), generator=rng) + torch.randperm(B, generator=rng)) / B)[:, None]
    # Any token but the mask: ids from the mask on are those after it.
    noise_BT = torch.randint(network.s.vocab - 1, (B, T), generator=rng)
    noise_BT = noise_BT + (noise_BT >= mask)
    wrong_BT = (torch.rand(B, T, generator=rng) < share_B1) & answer_BT
    read_BT = torch.where(wrong_BT, noise_BT, token_BT)
    total = torch.zeros(())
    for _ in range(count):
        logits_BTV = network(read_BT)
        loss_BT = cross_entropy(logits_BTV, token_BT, mask, shifted=shifted) * answer_BT
        total = total + (loss_BT.sum(1) / answer_BT.sum(1)).mean()
        law_BTV = logits_BTV.detach().float()
        law_BTV = law_BTV.index_fill(-1, torch.tensor([mask]), float("-inf")).softmax(-1)
        drawn_BT = torch.multinomial(law_BTV.flatten(0, 1), 1, generator=rng).view(B, T)
        # The law of a position stands one before it there.
        if shifted:
            drawn_BT = F.pad(drawn_BT[:, :-1], (1, 0))
        read_BT = torch.where(answer_BT, drawn_BT, token_BT)
    return total / count


def block_loss(
    network: TrainableLlama,
    token_BT: Tensor,
    answer_BT: Tensor,
    mask: int,
    rng: torch.Generator,
    block: int,
    *,
    shifted: bool = False,
) -> Tensor:
    """The loss of a block-causal network, with complementary masks.

    Every block of a row has a share of its own of its answer masked, uniform in 0 to 1. A second
    copy masks just the other tokens, so that each token is asked for once, with no weight. Each
    copy stands before the clean row in one sequence, and may look back at the clean blocks before
    its own.

    Args:
        network: The network in training.
        token_BT: Token ids, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        mask: Id of a gap.
        rng: Source of the masks; it is advanced.
        block: Tokens of a block.
        shifted: Whether the law of a position stands one before it. Default False.

    Returns:
        Cross-entropy in nats a token of the answers.

    Source: Arriola et al., block diffusion (2025); Wu et al., Fast-dLLM v2 (2025).
    """
    # The last block may be short.
    (B, T), n = token_BT.shape, -(-token_BT.shape[1] // block)
    # [B, T]: one share for each block, repeated over its positions.
    t_BT = torch.rand(B, n, generator=rng).repeat_interleave(block, 1)[:, :T]
    first_BT = (torch.rand(B, T, generator=rng) < t_BT) & answer_BT
    # Shape [2 B, T]: the two complementary masks.
    hidden = torch.cat([first_BT, answer_BT & ~first_BT])
    clean = token_BT.repeat(2, 1)
    # Sequences of 2 T: the noisy row, then the clean one, at the same positions.
    logits = network(
        torch.cat([clean.masked_fill(hidden, mask), clean], 1),
        torch.arange(T).repeat(2),
        block_sight(T, block),
    )
    # The clean half is only looked at: nothing is asked of it.
    loss = cross_entropy(logits[:, :T], clean, mask, shifted=shifted) * hidden
    return loss.sum() / hidden.sum()


def block_sight(length: int, block: int) -> Tensor:
    """Which position sees which, of a noisy row and the clean one after it.

    The noisy row sees its own block, and the earlier blocks of the clean row. The clean row sees
    itself up to the end of the block.

    Args:
        length: Tokens of a row, T.
        block: Tokens of a block.

    Returns:
        True where a row position sees a column position, shape ``[2 T, 2 T]``.
    """
    # The number of the block of each position.
    at = torch.arange(length) // block
    same = at[:, None] == at
    before = at[:, None] > at
    return torch.cat(
        [torch.cat([same, before], 1), torch.cat([torch.zeros_like(same), same | before], 1)]
    )


def next_token_loss(
    network: TrainableLlama, token_BT: Tensor, answer_BT: Tensor, end: int
) -> Tensor:
    """The loss of a causal network on the answers.

    Args:
        network: The network in training.
        token_BT: Token ids, shape ``[B, T]``.
        answer_BT: Which positions belong to the answer, shape ``[B, T]``.
        end: Id of the end token, which fills rows.

    Returns:
        Cross-entropy in nats a token; an `end` after the first one does not count.
    """
    # Positions of the answer up to and with its first end.
    last_BT = answer_BT & ((token_BT == end) & answer_BT).cumsum(1).le(1)
    loss_BT = F.cross_entropy(
        # Each position foretells the token behind it, so the last one is not read.
        network(token_BT[:, :-1]).float().transpose(1, 2),
        token_BT[:, 1:],
        reduction="none",
    )
    return (loss_BT * last_BT[:, 1:]).sum() / last_BT[:, 1:].sum()


def cross_entropy(
    logits_BTV: Tensor, token_BT: Tensor, mask: int, *, shifted: bool = False
) -> Tensor:
    """The cross-entropy of each position; a mask is never predicted.

    Args:
        logits_BTV: Logits, shape ``[B, T, V]``.
        token_BT: The right tokens, shape ``[B, T]``.
        mask: Id of a gap, whose logit is left out.
        shifted: Whether the law of a position stands one before it; the first position then has
            none, and 0 there. Default False.

    Returns:
        Nats, shape ``[B, T]``.
    """
    # A clean text has no gaps: no chance is lost on them.
    logits_BTV = logits_BTV.float().index_fill(-1, torch.tensor([mask]), float("-inf"))
    if not shifted:
        return F.cross_entropy(logits_BTV.transpose(1, 2), token_BT, reduction="none")
    loss_BT = F.cross_entropy(logits_BTV[:, :-1].transpose(1, 2), token_BT[:, 1:], reduction="none")
    # A zero where nothing was foretold, so that shapes agree with the masks.
    return F.pad(loss_BT, (1, 0))
