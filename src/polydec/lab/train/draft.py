"""`polydec train draft`: a small draft distilled from a target (DistillSpec).

It learns on text that the target or the draft itself writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train import selfplay
from polydec.lab.train.acceptance import DraftAcceptance, measure_draft_acceptance
from polydec.lab.train.divergence import acceptance_probability, divergence_by_name
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.lora import adapted_weights, add_lora_adapters, save_lora_adapters
from polydec.lab.train.network import LlamaShape, TrainableLlama, from_weights, save_directory
from polydec.lab.train.own_text import write_text
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import SamplingMode, TrainingSample
from polydec.lab.train.specs.draft import POLICIES, DraftSpec
from polydec.lab.train.target import family_of_config, require_family
from polydec.lab.train.teacher import TeacherLaws, TeacherModel
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions import checkpoint, sources
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.sources import CheckpointFiles


def train_draft(spec: DraftSpec) -> dict[str, Any]:
    """Train, and save the draft at spec.out.

    Its config names the target, from which tokenizer and embedding table come. Where out/held.jsonl
    has the target's answers to some held-out prompts, its acceptance is measured on these. See
    `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.
    """
    return run_training("draft", spec, _course)


def _course(spec: DraftSpec) -> TrainingRun:
    out = Path(spec.out)
    source = sources.open_source(spec.target)
    require_family(AUTOREGRESSIVE, family_of_config(source.config), spec.target)
    # A draft to begin with is opened first: what is wrong with it is said before a text is written.
    begun = None if spec.start is None else sources.open_source(spec.start)
    shape = shape_of(spec, source.config)
    fast = is_bf16_run(out / STATE, spec.bf16)
    if spec.text:
        path = Path(spec.text)
    else:
        path = out / "text.jsonl"
    if not path.exists() or spec.text is None:
        write_text(
            checkpoint.load_bundle(spec.target),
            path,
            spec.data,
            spec.each,
            max_tokens=spec.max_tokens,
            seed=spec.seed,
        )
    samples = selfplay.read_fitting_samples(path, shape.vocab, spec.context)
    # The target's laws at all output tokens are computed once, and cached beside the text.
    teacher = TeacherModel.of_files(
        {**source.config, "max_position_embeddings": spec.context}, source.weights, fast
    )
    key = hashlib.sha1(f"{spec.target} {spec.context} {fast}".encode()).hexdigest()[
        :8
    ]  # a cache for each of these
    laws = teacher.stored_laws(
        samples, path.with_name(f"{path.stem}-{key}.jsonl"), spec.temperature
    )
    if begun is None:
        student = build(spec, shape, teacher, samples)
    else:
        student = begin_with_draft(spec, begun, teacher)
    apart = (
        range(0, len(samples), 16) if len(samples) >= 32 else range(0)
    )  # not trained on: says which weights are best
    lesson = DistillationObjective(
        spec, student, teacher, samples, laws, fast, {**source.config}, source.text.eos, apart
    )
    schedule = TrainingSchedule(spec.steps, spec.rate, muon=0.0 if spec.lora else spec.muon)
    # The samples belong to the run's name: other texts must not go on from its state.
    free = [name for name in ("start", "lora") if not getattr(spec, name)]
    known_as = run_identity(
        spec, *free, bf16=fast, samples=selfplay.samples_fingerprint(samples), apart=len(apart)
    )

    def measure_result() -> dict[str, Any]:
        result: dict[str, Any] = {
            "parameters": sum(p.numel() for p in student.parameters()),
            "samples": len(samples),
            "tokens": len(laws.lse_N),
            "bf16": fast,
            "acceptance_1_minus_tvd": lesson.acceptance_rate(range(min(64, len(samples)))),
        }
        # Held-out prompts are there where this program wrote them itself.
        if (out / "held.jsonl").exists():
            unseen = selfplay.read_samples(out / "held.jsonl", shape.vocab)
            result["held_out"] = {
                k: asdict(v) for k, v in evaluate_draft(student, teacher, unseen).items()
            }
        return result

    return TrainingRun(
        student,
        lesson.step_loss,
        schedule,
        known_as,
        lambda out, result: save_trained_draft(out, student, spec, source.config, begun),
        measure_result,
        lesson.held_out_loss if apart else None,
    )


def shape_of(spec: DraftSpec, config: Mapping[str, Any]) -> LlamaShape:
    """The draft's sizes.

    Args:
        spec: Options; what is 0 or None follows from the target.
        config: Fields of the target's config.json.

    Returns:
        The target's shape with the draft's depth, width and what depends on these.

    Raises:
        RequestError: The width is no multiple of the target's head size.
    """
    t = LlamaShape.of_config(config, spec.context)
    width = spec.width or t.width
    if width % t.head:
        raise RequestError(
            f"width is {width}: it must be a multiple of the target's head size, {t.head}"
        )
    heads = width // t.head
    # Else the most key-value heads, up to the target's, that divide the heads.
    kv = spec.kv_heads or (
        t.kv_heads
        if heads == t.heads
        else next(k for k in range(min(heads, t.kv_heads), 0, -1) if heads % k == 0)
    )
    # In proportion to the width, rounded up to a multiple of 32.
    inner = spec.inner or -(-t.inner * width // t.width // 32) * 32
    return replace(t, width=width, layers=spec.layers, heads=heads, kv_heads=kv, inner=inner)


def build(
    spec: DraftSpec, shape: LlamaShape, teacher: TeacherModel, samples: Sequence[TrainingSample]
) -> TrainableLlama:
    """A draft that begins with what it can take from the target.

    The embedding table is the target's, for good. Where the widths agree, the first layers, the
    final norm and the head's rows begin as the target's.

    Args:
        spec: Options; `tokens` is the size of the draft's vocabulary, 0 or None: the target's.
        shape: The draft's sizes.
        teacher: The target.
        samples: Texts that say which tokens are frequent.

    Returns:
        The draft, trainable.
    """
    counts = selfplay.token_counts(samples)
    size = shape.vocab
    # Ties go to the lower id, so that the vocabulary does not depend on the order of counting.
    frequent = sorted(range(size), key=lambda x: (-counts.get(x, 0), x))[: spec.tokens or size]
    tokens = torch.tensor(sorted(frequent), dtype=torch.int32)
    table = teacher.network.model.embed_tokens.weight
    student = TrainableLlama(shape, outer=table.bfloat16(), tokens=tokens, seed=spec.seed)
    # Layers of another width cannot be taken over.
    if shape.width == table.shape[1]:
        own = student.state_dict()
        theirs = teacher.network.state_dict()
        take = {
            k: v
            for k, v in theirs.items()
            if k in own and v.shape == own[k].shape and "lm_head" not in k
        }
        student.load_state_dict({**own, **take, "lm_head.weight": teacher.head_VH[tokens.long()]})
    return student


def begin_with_draft(
    spec: DraftSpec, begun: CheckpointFiles, teacher: TeacherModel
) -> TrainableLlama:
    """A draft that was trained before, or another small model with the target's tokens.

    Args:
        spec: Options; start, lora, seed and context are read.
        begun: Files of the draft.
        teacher: The target, whose embedding table a draft of `train_draft` borrows.

    Returns:
        The draft, trainable: its adapters, or all its weights.

    Raises:
        RequestError: It has other tokens, or its tensors have another shape than its config says.
    """
    theirs = teacher.network.s.vocab
    if (vocab := begun.config.get("vocab_size")) != theirs:
        raise RequestError(
            f"start is {spec.start!r}: it has {vocab} tokens and the target {theirs}, so it cannot draft for it"
        )
    if "lm_head.tokens" in begun.weights:
        shape = LlamaShape.of_config(begun.config, spec.context)
        table = teacher.network.model.embed_tokens.weight.bfloat16()
        tokens = begun.weights["lm_head.tokens"]
        student = TrainableLlama(shape, outer=table, tokens=tokens)
        student.load_state_dict({k: begun.weights[k].float() for k in student.state_dict()})
    else:
        student = from_weights(begun.config, begun.weights, spec.context)
    student.requires_grad_(True).train()
    if spec.lora:
        add_lora_adapters(student, spec.lora, spec.seed)
    return student


@dataclass(frozen=True, eq=False)
class DistillationObjective:
    """The loss of a step of distillation.

    A batch is texts of similar length, or what the draft writes now to the same prompts.

    Attributes:
        spec: Options of the training.
        student: The draft.
        teacher: The target.
        samples: Prompts with answers.
        laws: The target's laws at all output tokens of `samples`, in their order.
        fast: Whether products are made in bf16.
        config: Fields of the target's config.json.
        eos: Ids that end a text.
        apart: Indices of samples that only judge. Default: none.
    """

    spec: DraftSpec
    student: TrainableLlama
    teacher: TeacherModel
    samples: Sequence[TrainingSample]
    laws: TeacherLaws
    fast: bool
    config: Mapping[str, Any]
    eos: frozenset[int]
    apart: range = range(0)

    @property
    def share(self) -> float:
        """The share of the steps that learn from the draft's own text."""
        if self.spec.own is None:
            return POLICIES[self.spec.policy]
        return self.spec.own

    @cached_property
    def taught(self) -> list[int]:
        """Indices of the samples that are trained on."""
        return [i for i in range(len(self.samples)) if i not in self.apart]

    def held_out_loss(self) -> Tensor:
        """The loss on the first 32 samples that are set aside."""
        parts = [
            self.token_divergence([self.samples[i]], self.laws_of([i])) for i in self.apart[:32]
        ]
        return torch.cat(parts).mean()

    def token_divergence(self, samples: Sequence[TrainingSample], laws: TeacherLaws) -> Tensor:
        """The divergence at every output token; each kind of prompt may have its own.

        Args:
            samples: Prompts with answers.
            laws: The target's laws at their output tokens, in order.

        Returns:
            Nats, shape ``[N]``.
        """
        rows = self.token_logprobs(samples, laws)
        sizes = [len(s.output_ids) for s in samples]
        own = dict(self.spec.tasks)
        # The rows of each sample, as kinds may differ in their divergence.
        parts = zip(samples, *(t.split(sizes) for t in rows), strict=True)
        return torch.cat(
            [
                divergence_by_name(own.get(s.kind, self.spec.divergence), self.spec.beta)(*part)
                for s, *part in parts
            ]
        )

    def step_loss(self, step: int) -> tuple[Tensor, int]:
        # Whether the step is on the draft's own text depends on the step's number alone.
        """The mean divergence of a step, in nats, and the tokens that were read."""
        own = np.random.default_rng([self.spec.seed, 1, step]).random() < self.share
        lengths = tuple(
            len(self.samples[i].prompt_ids) + len(self.samples[i].output_ids) for i in self.taught
        )
        # Indices within the trained samples become indices of all.
        chosen = [self.taught[i] for i in batch_of(lengths, self.spec.rows, self.spec.seed, step)]
        samples = [self.samples[i] for i in chosen]
        laws = self.laws_of(chosen)
        if own:
            samples = self.write_answers(samples, step)
            # The cached laws are of the given text; a new text needs a pass of the target.
            laws = self.teacher.sample_laws(samples, self.spec.temperature)
        return self.token_divergence(samples, laws).mean(), sum(
            len(s.prompt_ids) + len(s.output_ids) for s in samples
        )

    def token_logprobs(
        self, samples: Sequence[TrainingSample], laws: TeacherLaws
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Both models' log-probabilities at all output tokens, over the draft's tokens.

        Args:
            samples: Prompts with answers.
            laws: The target's laws at their output tokens, in order.

        Returns:
            log p and log q, both of shape ``[N, C]``, and p of all tokens that the draft cannot
            propose, shape ``[N]``.
        """
        t = self.spec.temperature
        head = self.teacher.head_VH
        # A draft may propose some of the tokens only.
        if self.student.tokens is not None:
            head = head[self.student.tokens.long()]
        with bf16_autocast(self.fast):
            logits = self.student.token_logits(output_token_states(self.student, samples)).float()
            with torch.no_grad():
                z = torch.nn.functional.linear(laws.hidden_NH.to(head.dtype), head).float()
        # The log-sum-exp over the full vocabulary is cached, so only C rows of the head are
        # multiplied.
        logp = z / t - laws.lse_N[:, None]
        return logp, (logits / t).log_softmax(-1), (1 - logp.exp().sum(-1)).clamp(0, 1)

    def laws_of(self, chosen: Sequence[int]) -> TeacherLaws:
        """The target's laws at the output tokens of some samples, by their indices."""
        at = cumulative_offsets(tuple(len(s.output_ids) for s in self.samples))
        take = torch.cat([torch.arange(at[i], at[i + 1]) for i in chosen])
        return TeacherLaws(self.laws.hidden_NH[take], self.laws.lse_N[take], self.laws.temperature)

    def write_answers(self, samples: Sequence[TrainingSample], step: int) -> list[TrainingSample]:
        """Let the draft, as it is now, answer the prompts of some samples.

        Args:
            samples: Samples, of which only the prompts are read.
            step: Step of the training, which seeds the draws.

        Returns:
            The prompts with the draft's answers, of 64 tokens at most.
        """
        # The trainable network has no cache; its weights are put into the one that decodes.
        # The draft as it stands now writes the texts that it learns from next.
        weights = adapted_weights(self.student)
        weights["model.embed_tokens.weight"] = self.student.model.embed_tokens.weight.detach()
        if self.student.tokens is not None:
            weights["lm_head.tokens"] = self.student.tokens
        network = LlamaTransformer.build(
            self.student.s.config_content(tied=self.student.lm_head is None),
            weights,
            dtype="float32",
        )
        lm = CausalLaw(network, TokenVocabulary(self.student.s.vocab, self.eos))
        mode = SamplingMode(self.spec.temperature, 1.0)
        return list(
            selfplay.generate_answers(
                lm,
                [(s.kind, s.prompt_ids, mode) for s in samples],
                # Prompts are few, so all answers run at once.
                seed=step * len(samples),
                max_tokens=min(64, self.spec.max_tokens),
                live=len(samples),
            )
        )

    @torch.no_grad()
    def acceptance_rate(self, chosen: Sequence[int]) -> float:
        """Mean probability that exact verification accepts a token drawn from the draft."""
        return float(
            acceptance_probability(
                *self.token_logprobs([self.samples[i] for i in chosen], self.laws_of(chosen))
            ).mean()
        )


def output_token_states(network: TrainableLlama, samples: Sequence[TrainingSample]) -> Tensor:
    """The states that predict the output tokens of all samples.

    Args:
        network: The draft.
        samples: Prompts with answers, read side by side.

    Returns:
        States, ready for the head, in order of samples and tokens, shape ``[N, H]``.
    """
    length = max(len(s.prompt_ids) + len(s.output_ids) - 1 for s in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    rows = list[Tensor]()
    columns = list[Tensor]()
    for b, s in enumerate(samples):
        # The last output token predicts nothing that is known.
        text = (*s.prompt_ids, *s.output_ids[:-1])
        ids[b, : len(text)] = torch.tensor(text)
        # The last token of the prompt predicts the first of the answer.
        columns.append(torch.arange(len(s.prompt_ids) - 1, len(text)))
        rows.append(torch.full((len(s.output_ids),), b))
    return network.model(ids)[torch.cat(rows), torch.cat(columns)]


@lru_cache(maxsize=4)
def cumulative_offsets(lengths: tuple[int, ...]) -> list[int]:
    """Where each of some consecutive parts begins, and where the last one ends."""
    return [0, *np.cumsum(lengths).tolist()]


def batch_of(lengths: tuple[int, ...], rows: int, seed: int, step: int) -> list[int]:
    """The samples of a step.

    Every round goes through all of them once, in batches of similar length.

    Args:
        lengths: Tokens of each sample.
        rows: Samples of a batch.
        seed: Seed of the orders.
        step: Step of the training, from 0.

    Returns:
        Indices of samples.
    """
    each = -(-len(lengths) // rows)
    return round_of(lengths, rows, seed, step // each)[step % each]


@lru_cache(maxsize=4)
def round_of(lengths: tuple[int, ...], rows: int, seed: int, turn: int) -> list[list[int]]:
    """The batches of one round.

    Args:
        lengths: Tokens of each sample.
        rows: Samples of a batch.
        seed: Seed of the orders.
        turn: Number of the round, from 0.

    Returns:
        Batches of indices, which together hold every sample once.
    """
    rng = np.random.default_rng([seed, 2, turn])
    order = rng.permutation(len(lengths))
    # Samples are sorted by length within pools of 16 batches only, which keeps the order random.
    pool = rows * 16
    batches = [
        sorted(order[a : a + pool].tolist(), key=lambda i: lengths[i])
        for a in range(0, len(order), pool)
    ]
    batches = [part[a : a + rows] for part in batches for a in range(0, len(part), rows)]
    while len(batches) > -(
        -len(lengths) // rows
    ):  # the last pool's remainder may give one batch too many
        batches[-2:] = [batches[-2] + batches[-1]]
    return [batches[i] for i in rng.permutation(len(batches))]


def save_trained_draft(
    out: Path,
    student: TrainableLlama,
    spec: DraftSpec,
    config: Mapping[str, Any],
    begun: CheckpointFiles | None,
) -> None:
    """Save what was trained: an adapter, a draft that borrows from its target, or a whole model.

    Args:
        out: Directory to write.
        student: The draft.
        spec: Options; start and lora are read.
        config: Fields of the target's config.json.
        begun: Files of the draft that training began with; None: there was none.
    """
    if begun is not None and spec.lora:
        assert spec.start is not None
        save_lora_adapters(out, student, spec.start)
    elif begun is None or "lm_head.tokens" in begun.weights:
        save_draft_student(out, student, spec, config)
    else:
        # Its own tables and tokenizer stay with it.
        own = {k: v.bfloat16() for k, v in student.state_dict().items()}
        fields = {k: v for k, v in begun.config.items() if k != "polydec_base"}
        fields["torch_dtype"] = "bfloat16"
        sources.save_checkpoint(out, fields, own, begun.text, begun.generation)


def save_draft_student(
    out: Path, student: TrainableLlama, spec: DraftSpec, config: Mapping[str, Any]
) -> None:
    """Save a draft as a directory that `polydec.load` reads beside its target.

    Args:
        out: Directory to write.
        student: The draft.
        spec: Options; `target` is written into the config.
        config: Fields of the target's config.json.
    """
    own = student.s.config_content(
        bos=config.get("bos_token_id"), eos=config.get("eos_token_id"), tied=False
    )
    # Training reads short rows; positions are the target's all the same.
    context = config["max_position_embeddings"]
    save_directory(
        out,
        student,
        {
            **own,
            "max_position_embeddings": context,
            "polydec": "draft",
            "polydec_base": spec.target,
        },
        files={"generation_config.json": {}},
    )


def evaluate_draft(
    student: TrainableLlama, teacher: TeacherModel, samples: Sequence[TrainingSample]
) -> dict[str, DraftAcceptance]:
    """Measure a draft's acceptance, by kind of prompt.

    Args:
        student: The draft.
        teacher: The target.
        samples: Held-out prompts with the target's answers.

    Returns:
        See `measure_draft_acceptance`.
    """
    return measure_draft_acceptance(student, teacher, samples, output_token_states)
