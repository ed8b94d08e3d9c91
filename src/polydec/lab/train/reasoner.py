"""`polydec train reasoner`: a small model that solves problems in steps, and judges its steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.core.types import TokenVocabulary
from polydec.lab.train import problems
from polydec.lab.train.data import ASSISTANT, BEGIN, END, SPECIAL, USER
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.grow import grow_network
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import (
    LlamaBackbone,
    LlamaShape,
    TrainableLlama,
    load_balance_loss,
    save_directory,
)
from polydec.lab.train.problems import LARGEST, ReasoningProblem
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.solutions import LabelledSolution, draw_solutions
from polydec.lab.train.specs.reasoner import CONTEXT, ReasonerSpec
from polydec.lab.train.tokens import tokenizer_files, train_tokenizer
from polydec.models.learned.kinds import step_reward
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.sessions import checkpoint

NUMBERS = tuple(map(str, range(10, LARGEST + 1)))
VOCAB = 256 + len(SPECIAL) + len(NUMBERS)
"""Bytes, the special tokens, and a token for each number of two digits that problems hold."""

"""Positions that the model can be asked for; the longest problem and its solution take about 90."""

EVEN = 0.01
"""Weight of what keeps the experts of a mixture in use (the published one of Switch transformers).
"""

NOT_LEARNED = -100
"""Stands for a token that is read and not learned to write."""


class ReasonerModel(nn.Module):
    """A network, and a small judge that is trained with it.

    The judge says whether all is right that was read of a solution.
    """

    def __init__(self, network: TrainableLlama, seed: int) -> None:
        super().__init__()
        self.network = network
        # The global generator is left as it was.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            out = nn.Linear(64, 1)
            nn.init.zeros_(out.weight)  # what it does not know yet moves no state
            self.judge = nn.Sequential(nn.Linear(network.s.width, 64), nn.SiLU(), out)

    def process_reward(self, vocab: TokenVocabulary) -> StepReward:
        """The judge as a process reward model, for decoding with the network.

        `vocab` is the network's vocabulary.
        """
        (a, b), (c, d) = (
            (m.weight.detach(), m.bias.detach()) for m in self.judge if isinstance(m, nn.Linear)
        )
        return StepReward((a, b), (c, d), vocab)

    def writing_loss(
        self, token_BT: Tensor, next_BT: Tensor, right_BT: Tensor, judging: float
    ) -> Tensor:
        """The loss of writing and of judging.

        Args:
            token_BT: Token ids, shape ``[B, T]``.
            next_BT: The token that each should be followed by, or NOT_LEARNED, shape ``[B, T]``.
            right_BT: Whether all up to each token may begin a right solution, 1 or 0, or
                NOT_LEARNED, shape ``[B, T]``.
            judging: Weight of the judge's loss, 0 or more.

        Returns:
            Nats a learned token, plus `judging` times nats a judged token, plus the balance of
            experts. A batch without learned or judged tokens adds 0 for these.
        """
        state_BTH = last_layer_states(self.network.model, token_BT)
        logits = self.network.token_logits(self.network.model.norm(state_BTH))
        wrote = F.cross_entropy(
            logits.flatten(0, 1), next_BT.flatten(), ignore_index=NOT_LEARNED, reduction="sum"
        ) / (next_BT != NOT_LEARNED).sum().clamp(min=1)
        judged_BT = right_BT != NOT_LEARNED
        # The judge reads normed states: gradients of it train the network too.
        seen = self.judge(F.rms_norm(state_BTH[judged_BT], state_BTH.shape[-1:]))[:, 0]
        judged = F.binary_cross_entropy_with_logits(
            seen, right_BT[judged_BT].float(), reduction="sum"
        ) / judged_BT.sum().clamp(min=1)
        # The balance is 1 at its least, so a network without experts adds nothing.
        return wrote + judging * judged + EVEN * (load_balance_loss(self.network) - 1.0)


def last_layer_states(trunk: LlamaBackbone, token_BT: Tensor) -> Tensor:
    """The states after the last layer, before the final norm: what a decoder sees as hidden states.

    Args:
        trunk: The network without its head.
        token_BT: Token ids, shape ``[B, T]``.

    Returns:
        Shape ``[B, T, H]``.
    """
    x = trunk.embed_tokens(token_BT)
    T = token_BT.shape[1]
    cos_TD = trunk.get_buffer("cos")[:T]
    sin_TD = trunk.get_buffer("sin")[:T]
    for layer in trunk.layers:
        x = layer(x, cos_TD, sin_TD)
    return x


def train_reasoner(spec: ReasonerSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    Its judge is saved as a process reward model at spec.out/prm. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
    """
    return run_training("reasoner", spec, _course)


def _course(spec: ReasonerSpec) -> TrainingRun:
    out = Path(spec.out)
    tokenizer = number_tokenizer()
    heads = spec.width // 32
    inner = 3 * spec.width
    shape = LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, inner, CONTEXT)
    # A row goes through two experts, so these of half the width cost as much as one MLP.
    if spec.experts:
        shape = replace(shape, inner=inner // 2, experts=spec.experts)
    if spec.start is None:
        network = TrainableLlama(shape, seed=spec.seed)
    else:
        network = grow_network(load_directory(spec.start), shape, spec.seed)
    # With a model to begin with, the judge learns from solutions that this model wrote and that
    # were checked.
    own = list[LabelledSolution]()
    if spec.own and spec.start is not None:
        own = draw_solutions(
            # Solutions that the model itself wrote, right and wrong ones.
            out / "own.jsonl",
            checkpoint.load_bundle(spec.start),
            spec.kinds,
            spec.own,
            temperature=1.0,
            seed=spec.seed,
        )
    learner, rows = (
        # One of sixteen is set aside.
        ReasonerModel(network, spec.seed),
        ReasonerRows(tokenizer, spec, [d for i, d in enumerate(own) if i % 16]),
    )
    # Step -1 is drawn by no training step.
    apart = ReasonerRows(tokenizer, spec, own[::16]).batch_rows(-1, 4 * spec.rows)

    bf16 = is_bf16_run(out / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        with bf16_autocast(bf16):
            return learner.writing_loss(
                *rows.batch_rows(step, spec.rows), spec.judging
            ), spec.rows * spec.length

    # The weights that are best on the rows of step -1 are the ones that stay.
    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps), judge_every=200
    )
    config = network.s.config_content(
        bos=tokenizer.token_to_id(BEGIN), eos=tokenizer.token_to_id(END)
    )

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Save the network, and the judge below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        written = tokenizer_files(tokenizer, CONTEXT)
        save_directory(out, learner.network, config, files=written, dtype=torch.int8)
        about = {"target": out.name, "temperature": 1.0}
        # The vocabulary with its fingerprint comes from the directory that was just written.
        vocab = checkpoint.load_bundle(str(out)).lm.vocab
        step_reward.save(out / "prm", learner.process_reward(vocab), about)

    return TrainingRun(
        learner,
        step_loss,
        schedule,
        run_identity(spec, bf16=bf16),
        save_result,
        lambda: {"parameters": sum(p.numel() for p in learner.network.parameters())},
        lambda: learner.writing_loss(*apart, spec.judging if own else 0.0),
    )


class ReasonerRows:
    """Batches of problems as the chat template writes them, one after another until a row is full.

    `own` holds solutions to be judged; without any, solutions that end with a slip are judged.
    """

    def __init__(
        self, tokenizer: Tokenizer, spec: ReasonerSpec, own: Sequence[LabelledSolution] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._own = own

    def batch_rows(self, step: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the rows of a step, a function of the step alone.

        Args:
            step: Step of the training, from 0; -1 is the set that only judges.
            rows: Number of rows, B.

        Returns:
            Three tensors of shape ``[B, length]``: token ids; the token that each should be
            followed by; whether all up to each token of a solution may begin a right one (1 or 0).
            NOT_LEARNED stands where nothing is asked.
        """
        row_parts = [self._row(step, i) for i in range(rows)]
        tokens, goals, rights = (
            torch.tensor([row[part] for row in row_parts]) for part in range(3)
        )
        return tokens, goals, rights

    def _row(self, step: int, row: int) -> tuple[list[int], list[int], list[int]]:
        length = self._spec.length
        tokens = list[int]()
        learned = list[bool]()
        rights = list[int]()
        for written, wrote, right in self._problems(
            random.Random(f"{self._spec.seed} {step} {row}")
        ):
            tokens += written
            learned += [wrote] * len(written)
            rights += right or [NOT_LEARNED] * len(written)
            # Problems are cut where the row ends.
            if len(tokens) > length:
                break
        # Goals are the tokens one place later, so one token more than a row is needed.
        goals = [t if yes else NOT_LEARNED for t, yes in zip(tokens, learned, strict=True)]
        return tokens[:length], goals[1 : length + 1], rights[:length]

    def _problems(self, r: random.Random) -> Iterator[tuple[Sequence[int], bool, Sequence[int]]]:
        """Pieces of problems without end.

        Of each: tokens, whether they are learned, and labels of rightness, none where that is not
        asked.
        """
        while True:
            is_flawed = r.random() < self._spec.flawed
            # A model's own solution is judged only: its text is not to be imitated.
            if is_flawed and self._own:
                # Steps that it wrote itself are judged, not learned: they may be wrong.
                drawn = r.choice(self._own)
                yield drawn.prompt_ids, False, ()
                yield drawn.output_ids, False, [int(yes) for yes in drawn.right]
                continue
            problem = problems.draw_problem(
                r.choice(self._spec.kinds), self._spec.seed, r.getrandbits(60)
            )
            yield self._ids(reasoner_prompt(problem.question)), False, ()
            lines = problem.solution.split("\n")
            wrong = ""
            if is_flawed:
                before, wrong = problems.draw_flawed_solution(problem, self._spec.seed, 0)
                lines = [*before, wrong]
            for i, line in enumerate(lines):
                # The answer's line ends the text; others end with a line break.
                ids = self._ids(line + (END if line.startswith("=") else "\n"))
                if line is not wrong:
                    yield ids, True, [1] * len(ids)
                else:
                    text = "\n".join(lines[: i + 1])
                    start = len(text) - len(line)
                    # Within the wrong line, tokens up to the first wrong character are still right.
                    until = problems.right_until(problem, text)
                    ends = accumulate(
                        len(self._tokenizer.decode([x], skip_special_tokens=False)) for x in ids
                    )
                    yield ids, False, [int(start + end <= until) for end in ends]

    def _ids(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def number_tokenizer() -> Tokenizer:
    """A tokenizer of bytes with a token for each number of two digits."""
    tokenizer = train_tokenizer([], 256 + len(SPECIAL))
    tokenizer.add_tokens([AddedToken(n, normalized=False) for n in NUMBERS])
    return tokenizer


def reasoner_prompt(question: str) -> str:
    """The prompt of a question, as the chat template writes it."""
    return BEGIN + USER + question + END + ASSISTANT


def reasoner_chat_text(problem: ReasoningProblem) -> str:
    """A problem and its solution, as the model should write them."""
    return reasoner_prompt(problem.question) + problem.solution + END
