"""Text that a model writes itself, as training data for its draft: prompts, sampling, JSONL."""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field

from polydec.base import edge, files
from polydec.base.errors import PolydecError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import ScheduledTask, Scheduler
from polydec.lab.train.data import hash_bucket, held_out, is_collection_folder, read_rows
from polydec.laws.shapers.sampling import Sampling, build_shapers
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.protocols import Drafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats import text_rows
from polydec.models.sessions.lm import CausalLaw
from polydec.models.text.tokenizer import Tokenizer

D = TypeVar("D", bound=Drafter)
Token = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class TrainingSample:
    """One answer to a prompt.

    Attributes:
        prompt_ids: Token ids of the prompt.
        output_ids: Token ids of the answer.
        temperature: Sampling temperature, 0 is greedy.
        penalty: Repetition penalty, 1 is none.
        kind: What the prompt asks for, by name; "" where nobody said.
    """

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    temperature: float = 0.0
    penalty: float = 1.0
    kind: str = ""


@dataclass(frozen=True)
class SamplingMode:
    """How an answer is drawn.

    Attributes:
        temperature: Sampling temperature, 0 is greedy.
        penalty: Repetition penalty, 1 is none.
    """

    temperature: float
    penalty: float


MODES = (
    SamplingMode(0.0, 1.0),
    SamplingMode(0.0, 1.0),
    SamplingMode(0.0, 1.1),
    SamplingMode(0.7, 1.0),
)  # a prompt's own by its hash


Asked = tuple[str, tuple[int, ...], SamplingMode]
"""What is asked for, the prompt in ids, and how its answer is drawn."""


def mode_of(user: str) -> SamplingMode:
    """The sampling mode of a prompt, by the hash of its text."""
    return MODES[hash_bucket(f"mode:{user}") % len(MODES)]


def _join(row: Mapping[str, Any], *fields: str) -> str:
    return " ".join(str(row[f]).strip() for f in fields)


# Of each kind of work: its file in the collection, and how a row becomes a prompt.
SOURCES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "bench": ("spec_bench/question.jsonl", lambda r: r["turns"][0]),
    "mathematics": ("gsm8k/train.jsonl.gz", lambda r: r["question"]),
    "word problem": ("svamp/part_a.jsonl", lambda r: _join(r, "Body", "Question")),
    "code": ("mbpp/prompt_val_train.jsonl", lambda r: r["text"]),
    "edit": (
        "code_edits/edits.jsonl.gz",
        lambda r: (
            f"Edit this file: {r['instruction']}\n\n```python\n{r['before']}\n```\nWrite the whole file."
        ),
    ),
    "summary": ("summ_scitldr/train_dev.jsonl.gz", lambda r: "Summarize: " + " ".join(r["source"])),
    "translation": (
        "translation_tatoeba/en_de.jsonl.gz",
        lambda r: f"Translate German to English: {r['de']}",
    ),
    "question": ("qa_xquad/en.jsonl.gz", lambda r: r["question"]),
    "reading": (
        "qa_xquad/en.jsonl.gz",
        lambda r: f"{r['context']}\n\nQuestion: {r['question']}\nAnswer:",
    ),
    "request": ("intents_clinc150/train_val.jsonl.gz", lambda r: r["text"]),
    "commands": (
        "text_tldr/pages_en.jsonl.gz",
        lambda r: "Explain these commands:\n\n" + r["text"],
    ),
    "reasoning": ("bbh/half_a.jsonl.gz", lambda r: r["input"]),
}


def prompts_by_kind(root: Path) -> Iterator[tuple[str, list[str]]]:
    """The different prompts of each kind of work.

    The collection has kinds by SOURCES, one's own data by category or file.
    """
    if is_collection_folder(root):
        for kind, (file, ask) in SOURCES.items():
            if (root / file).exists():
                # Rows may share a prompt; it is answered once.
                yield kind, list(dict.fromkeys(ask(r) for r in read_rows(root / file)))
        return
    texts_by_kind = dict[str, dict[str, None]]()
    for item in text_rows.read_text_rows(root):
        texts_by_kind.setdefault(item.kind, {}).update(dict.fromkeys(item.prompts))
    yield from ((kind, list(texts)) for kind, texts in texts_by_kind.items())


def draw_prompts(
    root: Path, each: int, *, unseen: bool = False, seed: int = 0, longest: int = 2400
) -> list[tuple[str, str]]:
    """Draw prompts of each kind, shuffled.

    Files of the collection that are absent are left out.

    Args:
        root: The collection's folder, or one's own data.
        each: Prompts of each kind, at most.
        unseen: Whether held-out prompts are drawn (`hash_bucket` of 7 to 9), else only others.
            Default False.
        seed: Seed of the draws. Default 0.
        longest: Characters of a prompt, at most. Default 2400.

    Returns:
        Pairs of kind and text.

    Raises:
        RequestError: There is no such prompt.
    """
    rng = random.Random(seed)
    out = list[tuple[str, str]]()
    for kind, texts in prompts_by_kind(root):
        # The split and the length come first, so that `each` counts usable prompts.
        texts = [t for t in texts if held_out(t) == unseen and len(t) <= longest]
        out += [(kind, t) for t in rng.sample(texts, min(each, len(texts)))]
    # Kinds are mixed, so that a run that stops early has seen all.
    rng.shuffle(out)
    if not out:
        if unseen:
            part = "held out"
        else:
            part = "to learn from"
        raise RequestError(
            edge.error_sentence(
                f"data is {str(root)!r}: it has no prompt of at most {longest} characters {part} "
                "(of ten prompts seven are learned from and three held out, by their SHA-1): give more by --data"
            )
        )
    return out


class PassRecorder(Protocol):
    """Keeps what the target's passes give while answers are written."""

    def begin_samples(self, samples: Sequence[TrainingSample], /) -> None:
        """Make what is kept of these samples complete, and cut off what follows them."""
        ...

    def pass_watcher(self) -> Any:
        """Make a drafter that sees one answer's passes and drafts nothing."""
        ...

    def write_states(self, sample: TrainingSample, watcher: Any, /) -> None:
        """Keep what was seen of the next sample.

        Args:
            sample: Prompt and answer.
            watcher: The drafter that saw its passes.
        """
        ...


def generate_answers(
    lm: CausalLaw, asked: Sequence[Asked], *, max_tokens: int = 256, seed: int = 0, live: int = 32
) -> Iterator[TrainingSample]:
    """Let a model answer prompts.

    Args:
        lm: The model.
        asked: Kind, token ids and sampling mode of each prompt.
        max_tokens: Tokens of an answer, at most. Default 256.
        seed: Seed of the draws. Default 0.
        live: Answers that are written at once. Default 32.

    Yields:
        Prompts with answers, in the order of `asked`.
    """
    # A prompt's number seeds its draws.
    numbered = list(enumerate(asked))
    return (
        sample
        for sample, _ in generate_watched_answers(
            lm, numbered, NothingDrafter, max_tokens=max_tokens, seed=seed, live=live
        )
    )


def generate_watched_answers(
    lm: CausalLaw,
    asked: Sequence[tuple[int, Asked]],
    watcher: Callable[[], D],
    *,
    max_tokens: int,
    seed: int,
    live: int,
) -> Iterator[tuple[TrainingSample, D]]:
    """Let a model answer prompts, each with a drafter that sees its passes and drafts nothing.

    The number of a prompt seeds its draws. Answers come in the order of the prompts, whichever ends
    first, so that they do not depend on what else is asked.

    Args:
        lm: The model.
        asked: Numbered prompts: kind, token ids and sampling mode.
        watcher: Makes the drafter of an answer.
        max_tokens: Tokens of an answer, at most.
        seed: Seed of the draws; the prompt's number is added.
        live: Answers that are written at once.

    Yields:
        Each prompt with its answer, and the drafter that saw it.
    """
    scheduler = Scheduler()
    waiting = deque(asked)
    of = dict(asked)
    running = dict[ScheduledTask, tuple[int, D]]()
    ended = dict[int, tuple[TrainingSample, D]]()
    # Until the answer whose turn it is has ended the others go on; what ends early waits in
    # `ended`.
    for number in of:
        while number not in ended:
            # Free places are filled as soon as an answer ends, whatever its turn.
            while waiting and len(running) < live:
                n, (_, ids, mode) = waiting.popleft()
                sampling = Sampling(temperature=mode.temperature, repetition_penalty=mode.penalty)
                law = ShapedTarget(lm, *build_shapers(sampling, eos=lm.vocab.eos))
                watched_drafter = watcher()
                # An answer may not outgrow the context.
                request = Request(
                    ids, max_tokens=min(max_tokens, lm.network.context - len(ids)), seed=seed + n
                )
                running[
                    scheduler.submit_coroutine(
                        answer_one(
                            # With no draft tokens this is plain decoding, one pass a token.
                            SpeculativeDecoder(
                                law, watched_drafter, MatchVerifier(), FixedPolicy(0)
                            ),
                            request,
                        )
                    )
                ] = n, watched_drafter
            scheduler.step()
            for task in [t for t in running if t.done]:
                n, watched_drafter = running.pop(task)
                if task.error is not None:
                    # One failure ends all: the file must not have a gap.
                    raise task.error
                kind, ids, mode = of[n]
                ended[n] = (
                    TrainingSample(
                        ids, task.result.token_ids, mode.temperature, mode.penalty, kind
                    ),
                    watched_drafter,
                )
        yield ended.pop(number)


def user_prompt_ids(text: Tokenizer, user: str) -> tuple[int, ...]:
    """What a model reads of a prompt: a turn of a chat, or the text itself where there are no chats.

    Args:
        text: The model's tokenizer.
        user: The prompt.

    Returns:
        Token ids.
    """
    if text.has_chat:
        return text.chat_prompt([{"role": "user", "content": user}])
    return text.encode(user)


def write_answers(
    path: Path,
    lm: CausalLaw,
    text: Tokenizer,
    root: Path,
    each: int,
    *,
    max_tokens: int = 256,
    seed: int = 0,
    live: int = 32,
    unseen: bool = False,
    mode: SamplingMode | None = None,
    longest: int = 2400,
    room: int = 32,
    record: PassRecorder | None = None,
    watch: Callable[[int, int], None] = lambda n, of: None,
) -> None:
    """Let a model answer the prompts of some data, and collect the answers in a file.

    Args:
        path: File of JSON lines; answers that are there already stay.
        lm: The model.
        text: Its tokenizer.
        root: Where the prompts are.
        each: Prompts of each kind, at most.
        max_tokens: Tokens of an answer, at most. Default 256.
        seed: Seed of prompts and answers. Default 0.
        live: Answers that are written at once. Default 32.
        unseen: Whether held-out prompts are answered. Default False.
        mode: Sampling mode of all answers; None: each prompt has its own.
        longest: Characters of a prompt, at most. Default 2400.
        room: Tokens of the context that a prompt must leave. Default 32.
        record: Keeps what the passes give; None: nothing is kept.
        watch: Called with (answers that are there, answers in all).
    """
    asked = list[Asked]()
    for kind, user in draw_prompts(root, each, unseen=unseen, seed=seed, longest=longest):
        ids = user_prompt_ids(text, user)
        # Prompts that leave no room for an answer are left out, not cut.
        if len(ids) + room <= lm.network.context:
            asked.append((kind, ids, mode_of(user) if mode is None else mode))
    collect_answers(
        path, lm, asked, max_tokens=max_tokens, seed=seed, live=live, record=record, watch=watch
    )


def collect_answers(
    path: Path,
    lm: CausalLaw,
    asked: Sequence[Asked],
    *,
    max_tokens: int,
    seed: int = 0,
    live: int = 32,
    record: PassRecorder | None = None,
    watch: Callable[[int, int], None] = lambda n, of: None,
) -> None:
    """Append answers to a file, a JSON object a line, in the order of the prompts.

    What stands there stays: prompts that are answered already are passed over. So an interruption
    loses only answers that were under way or ended before their turn, and a run that goes on ends
    with the same file.

    Args:
        path: File of JSON lines.
        lm: The model.
        asked: Kind, token ids and sampling mode of each prompt.
        max_tokens: Tokens of an answer, at most.
        seed: Seed of the draws. Default 0.
        live: Answers that are written at once. Default 32.
        record: Keeps what the passes give; None: nothing is kept.
        watch: Called with (answers that are there, answers in all).

    Raises:
        RequestError: Another process collects into the file.
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes that append to one file would answer the same prompts twice.
    with files.hold_file_lock(path, wait=0.0):
        if path.exists():
            there = read_samples(path)
        else:
            there = []
        # A prompt keeps its number among all that are asked, so its draws do not depend on what is
        # done already.
        numbered = {
            (ids, mode.temperature, mode.penalty): (n, (kind, ids, mode))
            for n, (kind, ids, mode) in reversed(list(enumerate(asked)))
        }  # of the same ones the first
        # An answer is recognised by its prompt and mode, not by its place.
        known = {(s.prompt_ids, s.temperature, s.penalty) for s in there}
        left = sorted(
            (numbered_sample for key, numbered_sample in numbered.items() if key not in known),
            key=itemgetter(0),
        )
        done = len(asked) - len(left)
        # An interruption may have cut the last line short.
        if path.exists():
            files.end_last_line(path, _is_sample)
        if record is not None:
            record.begin_samples(there)
        if record is None:
            watcher = NothingDrafter
        else:
            watcher = record.pass_watcher
        with open(path, "a", encoding="utf-8") as f:
            for sample, seen in generate_watched_answers(
                lm, left, watcher, max_tokens=max_tokens, seed=seed, live=live
            ):
                # States first: those of an answer that never reaches the file are cut off later,
                # while an answer without states would have to be read again.
                if record is not None:
                    record.write_states(sample, seen)
                f.write(json.dumps(asdict(sample)) + "\n")
                # A finished answer reaches the file at once, so an interruption loses none.
                f.flush()
                done += 1
                watch(done, len(asked))


class _SampleLineRecord(edge.StrictRecord):
    """A line of a file of samples."""

    prompt_ids: Annotated[list[Token], Field(min_length=1)]
    output_ids: list[Token]
    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    penalty: Annotated[float, Field(gt=0.0)] = 1.0
    kind: str = ""

    @property
    def sample(self) -> TrainingSample:
        return TrainingSample(
            tuple(self.prompt_ids),
            tuple(self.output_ids),
            self.temperature,
            self.penalty,
            self.kind,
        )


def read_samples(path: Path, size: int | None = None) -> list[TrainingSample]:
    """Read the samples of a JSONL file; a last line that an interruption cut short is left out.

    Args:
        path: The file.
        size: Tokens of the vocabulary that all ids must belong to; None: it is not known.

    Returns:
        The samples in order.

    Raises:
        RequestError: The file cannot be read, another line is no sample, or an id is too large; one
            sentence says which.
    """
    out: list[TrainingSample] = []
    lines = edge.read_bytes(path, most=1 << 34).split(b"\n")
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            sample = _sample(
                line, f"{path}, line {n}, is not a sample with prompt_ids and output_ids"
            )
        except PolydecError:
            # Only the last line may be damaged: every complete line ends with a line break.
            if n < len(lines):
                raise
            continue
        if size is None:
            strange = -1
        else:
            # The largest id tells whether all are in range.
            strange = max((*sample.prompt_ids, *sample.output_ids))
        if size is not None and strange >= size:
            raise RequestError(
                edge.error_sentence(
                    f"{path}, line {n}, has token {strange}: the target's ids lie in 0 to {size - 1}"
                )
            )
        out.append(sample)
    return out


def read_fitting_samples(path: Path, vocab: int, longest: int) -> list[TrainingSample]:
    """Read the samples of a file that fit into a number of tokens.

    Args:
        path: The file.
        vocab: Tokens of the vocabulary.
        longest: Tokens of prompt and answer together, at most.

    Returns:
        The samples that fit and have an answer.

    Raises:
        RequestError: There is none.
    """
    answered = [s for s in read_samples(path, vocab) if s.output_ids]
    out = [s for s in answered if len(s.prompt_ids) + len(s.output_ids) <= longest]
    if not out:
        shortest = min((len(s.prompt_ids) + len(s.output_ids) for s in answered), default=0)
        raise RequestError(
            f"text is {str(path)!r}: no sample in it fits into {longest} tokens"
            + (
                f" (the shortest has {shortest}): give shorter prompts or answers"
                if answered
                else ": it holds no answer, so give other prompts"
            )
        )
    return out


def _sample(line: bytes, what: str) -> TrainingSample:
    return edge.validate_record(_SampleLineRecord, edge.parse_object(line, what), what).sample


def _is_sample(line: bytes) -> bool:
    try:
        _sample(line, "line")
    except PolydecError:
        return False
    return True


def samples_fingerprint(samples: Sequence[TrainingSample]) -> str:
    """What samples are recognised by: how many they are, and a digest of their tokens."""
    return f"{len(samples)} {sample_prefix_digests(samples)[-1] if samples else ''}"


def sample_prefix_digests(samples: Sequence[TrainingSample]) -> list[str]:
    """For each sample a digest of it and all before it.

    Two files that agree up to a sample agree in its digest.
    """
    out = list[str]()
    whole = hashlib.sha1()
    for s in samples:
        whole.update(json.dumps([s.prompt_ids, s.output_ids]).encode())
        out.append(whole.hexdigest()[:16])
    return out


def token_counts(samples: Iterable[TrainingSample]) -> dict[int, int]:
    """How often each token stands in the answers, times ten.

    Prompts count a tenth, as text that may be copied.
    """
    counts: dict[int, float] = {}
    for s in samples:
        # Text that copies from its prompt needs the prompt's tokens too.
        for ids, weight in ((s.output_ids, 1.0), (s.prompt_ids, 0.1)):
            for x in ids:
                counts[x] = counts.get(x, 0.0) + weight
    return {x: int(10 * c) for x, c in counts.items()}
