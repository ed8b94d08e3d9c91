"""Published systems that are no method to choose: they are always on, or a command or a benchmark
of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSystem:
    """name: what people call it; title: what it does, in words; source: authors, paper, year;
    arxiv: the paper's number there; where: the command, benchmark or page that has it."""

    name: str
    title: str
    source: str
    arxiv: str
    where: str


STUDIES = (
    PublishedSystem(
        "paged-attention",
        "Paged key-value caches, shared prefixes and continuous batching",
        "Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023; "
        "Yu et al., Orca, 2022; Zheng et al., SGLang, 2023",
        "2309.06180",
        "always on; docs/serve.md",
    ),
    PublishedSystem(
        "sarathi-serve",
        "Prompts in chunks beside the answers that are being written",
        "Agrawal et al., Taming throughput-latency tradeoff in LLM inference with Sarathi-Serve, 2024",
        "2403.02310",
        "always on; polydec serve --max-positions N; docs/serve.md",
    ),
    PublishedSystem(
        "batch-speculative-decoding",
        "Batches in which every answer is what it is alone (EqSpec, ExSpec)",
        "Zhang et al., Batch speculative decoding done right, 2025",
        "2510.22876",
        "always on; polydec batch --batching eqspec|exspec lays passes out as published; docs/serve.md",
    ),
    PublishedSystem(
        "distillspec",
        "Draft models distilled towards their target, by one of four divergences",
        "Zhou et al., DistillSpec: improving speculative decoding via knowledge distillation, 2023",
        "2310.08461",
        "polydec train draft --divergence fkl|rkl|jsd|tvd; docs/trained.md",
    ),
    PublishedSystem(
        "scylla",
        "Scaling laws of speculative decoding: training tokens, size and width of a draft",
        "Yan et al., Scaling laws for speculative decoding, 2025",
        "2505.07858",
        "--method scylla; polydec train eagle --layers N; polydec bench --suite scaling; docs/bench.md",
    ),
    PublishedSystem(
        "granola",
        "Answers judged at several grains, from the exact day to the decade",
        "Yona et al., Narrowing the knowledge evaluation gap: open-domain question answering "
        "with multi-granularity answers, 2024",
        "2401.04695",
        "benchmarks/text.py drag; docs/search.md",
    ),
    PublishedSystem(
        "parallelbench",
        "What decoding several tokens of a canvas at once costs",
        "Kang et al., ParallelBench: understanding the trade-offs of parallel decoding in diffusion LLMs, 2025",
        "2510.04767",
        "polydec bench --suite parallelbench; docs/diffusion.md",
    ),
    PublishedSystem(
        "expressive-power-of-cot",
        "What a model can compute by the steps that it may write before its answer",
        "Merrill and Sabharwal, The expressive power of transformers with chain of thought, 2024",
        "2310.07923",
        "polydec train steps; polydec bench --suite steps; docs/steps.md",
    ),
    PublishedSystem(
        "exact-permutation-learning",
        "How many networks must vote until a permutation of bits is exact",
        "Giapitzakis et al., Exact learning of permutations for nonzero binary inputs with logarithmic training size "
        "and quadratic ensemble complexity, 2025",
        "2502.16763",
        "polydec bench --suite permutations; docs/steps.md",
    ),
    PublishedSystem(
        "decodingtrust",
        "Eight perspectives of trust, each scored beside plain decoding's answers",
        "Wang et al., DecodingTrust: a comprehensive assessment of trustworthiness in GPT models, 2023",
        "2306.11698",
        "polydec bench --suite decodingtrust; docs/trust.md",
    ),
    PublishedSystem(
        "lexinvariant-lm",
        "A language model that learns from each text what its symbols mean",
        "Huang et al., Lexinvariant language models, 2023",
        "2305.16349",
        "polydec train words --kind lexinvariant; docs/words.md",
    ),
    PublishedSystem(
        "word-pooled-tokenization",
        "Words as a few vectors, spelt byte by byte",
        "Thawani et al., Learn your tokens: word-pooled tokenization for language modeling, 2023",
        "2310.11628",
        "polydec train words --kind word-pooled; docs/words.md",
    ),
)
