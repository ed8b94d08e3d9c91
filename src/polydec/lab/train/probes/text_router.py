"""A router that reads the text: a language model of its own that reads a problem and who wrote its
steps, and says after which of the draft model's steps the target would write a better one
(Arbitrage).

Both models write every step of training problems, the checker or a reward values both, and the
better one stands. Of the two classes of steps the larger one is cut to the size of the smaller one.
Every eighth problem is set aside; the weights that are best there are saved. What was learned from
is kept in the directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from polydec.base import files
from polydec.base.edge import StrictRecord, error_sentence, read_json, validate_record
from polydec.base.errors import RequestError
from polydec.core.rng import Rng
from polydec.lab.train import problems
from polydec.lab.train.auc import roc_auc
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.probe import HEAD_SCHEDULE, ProbeTraining, TrainableProbe
from polydec.lab.train.probes.prm import trainable_step_reward
from polydec.lab.train.problems import ReasoningProblem
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.spearman import spearman_correlation
from polydec.lab.train.specs.probe.text_router import TextRouterSpec
from polydec.lab.train.step_pairs import (
    StepModels,
    gathering_identity,
    load_step_models,
    problem_count,
    write_step_pairs,
)
from polydec.methods.search.loop.arbitrage import mark_step_writers
from polydec.methods.search.loop.protocols import ArbiterCase
from polydec.models.learned.kinds import step_reward, text_router
from polydec.models.learned.kinds.step_reward import StepReward
from polydec.models.learned.kinds.text_router import MARKS, TextRouter, TextRouterSizes, marks_of
from polydec.models.sessions import sources
from polydec.models.text.tokenizer import Tokenizer

LOOKED = 512
"""Steps that are set aside and looked at while it trains, at most."""


@dataclass(frozen=True)
class TextRouterExample:
    """A step of the draft model's.

    Attributes:
        text: The prompt, and all steps up to this one behind their marks.
        problem: Its number.
        value: Of the step, 0 to 1.
        own: Of what the target wrote in its place, 0 to 1.
    """

    text: tuple[int, ...]
    problem: int
    value: float
    own: float

    @property
    def better(self) -> bool:
        """Whether the target's step is the better one; a tie goes to the draft model."""
        return self.own > self.value


@dataclass(frozen=True, eq=False)
class _StepPairOracle:
    """Whichever step is worth more stands, and every pair of steps is a lesson.

    Attributes:
        prompt: Token ids of the problem.
        marks: Tokens that say who wrote a step.
        problem: Its number.
        lessons: What was seen; all oracles of a run share it.
        reward: Values steps on the target's states; None: `worth` does.
        worth: Of the tokens before a step and the step, 0 to 1.
    """

    prompt: tuple[int, ...]
    marks: tuple[int, int]
    problem: int
    lessons: list[TextRouterExample]
    reward: StepReward | None
    worth: Callable[[Sequence[int], Sequence[int]], float]

    async def prefers_target(self, case: ArbiterCase, rng: Rng) -> bool:
        """Value both steps, and keep them as a lesson.

        Args:
            case: The step of the draft model's and what stands before it.
            rng: Random stream of the answer; not needed.

        Returns:
            Whether the target's step stands; the draft model's does where both are worth the same.
        """
        *before, drafted = case.steps
        if self.reward is None:
            stood = [x for step in before for x in step.tokens]
            value, own = (
                self.worth(stood, step) for step in (drafted.tokens, await case.target_step())
            )
        else:
            value = await case.target_reading_value(self.reward)
            own = await case.target_step_value(self.reward)
        text = (*self.prompt, *mark_step_writers(case.steps, *self.marks))
        self.lessons.append(TextRouterExample(text, self.problem, value, own))
        return own > value


@dataclass(frozen=True, eq=False)
class TextRouterExamples:
    """Steps that a batch is taken from."""

    steps: Sequence[TextRouterExample]

    def __len__(self) -> int:
        return len(self.steps)

    def select_rows(self, picked: Tensor) -> TextRouterExamples:
        """The steps of these numbers."""
        return TextRouterExamples([self.steps[i] for i in picked.tolist()])


class TextRouterModel(nn.Module):
    """The network, whose table has a row more for each mark, and the head."""

    def __init__(self, network: TrainableLlama, head: TrainableProbe[StepReward]) -> None:
        super().__init__()
        self.network = network
        self.head = head

    def step_logits(self, text_BT: Tensor, last_B: Tensor) -> Tensor:
        """Read texts that end in a step of the draft model's.

        Args:
            text_BT: Token ids, filled up behind their ends.
            last_B: The place of the last token of each.

        Returns:
            Log odds ``[B]`` that the target's step would be the better one.
        """
        state_BTH = self.network.model.text_states(text_BT)
        return self.head.current_probe().step_logits(state_BTH[torch.arange(len(text_BT)), last_B])


def prepare_probe(spec: TextRouterSpec) -> ProbeTraining[TextRouterExamples]:
    """Gather steps that both models wrote, or read those that are kept.

    Raises:
        RequestError: All steps are of one class.
    """
    models = load_step_models(spec)
    vocab = models.target.lm.vocab
    Path(spec.out).mkdir(parents=True, exist_ok=True)
    seen = _kept(spec, models, False)
    unseen = _kept(spec, models, True)
    aside = balance_router_examples([x for x in seen if x.problem % 8 == 0], spec.seed)[:LOOKED]
    lessons = balance_router_examples([x for x in seen if x.problem % 8], spec.seed)
    if not lessons or not aside:
        raise RequestError(
            f"each is {spec.each}: among so many problems no step of the target's, or each one, was the better one: "
            f"give more than {spec.each}"
        )
    net = start_text_router(spec, vocab.size)

    def loss_on(part: Sequence[TextRouterExample]) -> Tensor:
        better_B = torch.tensor([float(x.better) for x in part])
        return binary_cross_entropy_with_logits(net.step_logits(*pad_router_texts(part)), better_B)

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the router as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        # The router reads states alone, so the language model's last matrix stays behind.
        weights = net.network.state_dict()
        weights = {name: t for name, t in weights.items() if name.startswith("model.")}
        s = net.network.s
        sizes = TextRouterSizes(
            s.width, s.layers, s.heads, s.kv_heads, s.inner, s.context, s.theta, s.eps
        )
        about = {"target": spec.target, "draft": spec.draft, "temperature": spec.temperature}
        text_router.save(out, TextRouter(vocab, sizes, weights, net.head.current_probe()), about)

    return ProbeTraining(
        net,
        TextRouterExamples(lessons),
        lambda part: loss_on(part.steps),
        lambda: {
            "steps_seen": len(seen),
            "steps_learned": len(lessons),
            "loss_aside": float(loss_on(aside)),
            "parameters": sum(p.numel() for p in net.parameters()),
            "held_out": measure_text_router(net, unseen),
        },
        save_result,
        lambda: loss_on(aside),
        schedule={**HEAD_SCHEDULE, "warmup": 0.1},
    )


def start_text_router(spec: TextRouterSpec, size: int) -> TextRouterModel:
    """Make the network that is begun with; its marks begin as the mean row of its table.

    Args:
        spec: Names the language model, by default the draft.
        size: Tokens of the target's vocabulary.

    Returns:
        The network and a new head on its states.

    Raises:
        RequestError: It is not one that can be trained, or it writes another vocabulary.
    """
    name = spec.start or spec.draft
    source = sources.open_source(name)
    shape = LlamaShape.of_config(source.config)
    if shape.vocab != size:
        raise RequestError(
            error_sentence(f"start is {name!r}, of {shape.vocab} tokens: the target has {size}")
        )
    grown = LlamaShape(**{**asdict(shape), "vocab": size + MARKS})
    network = TrainableLlama(grown)
    table = "model.embed_tokens.weight"
    weights = {n: source.weights[n].float() for n in network.state_dict()}
    # A mark is no token of the model: its row begins in the middle of all others.
    more = weights[table].mean(0, keepdim=True).expand(MARKS, -1)
    network.load_state_dict({**weights, table: torch.cat([weights[table], more])})
    start = step_reward.new_step_reward(shape.width, spec.head, None, spec.seed)  # pyright: ignore[reportArgumentType]
    return TextRouterModel(network, trainable_step_reward(start))


def balance_router_examples(
    lessons: Sequence[TextRouterExample], seed: int
) -> list[TextRouterExample]:
    """Draw as many steps of each class, from the larger one.

    Args:
        lessons: Steps of both classes.
        seed: Names the draws.

    Returns:
        The steps, in an order that mixes the classes.
    """
    classes = [[x for x in lessons if x.better is better] for better in (False, True)]
    count = min(map(len, classes))
    out = list[TextRouterExample]()
    for number, of in enumerate(classes):
        order = torch.randperm(len(of), generator=generator_for(seed, number, "classes"))
        out += [of[i] for i in order[:count].tolist()]
    order = torch.randperm(len(out), generator=generator_for(seed, 2, "classes"))
    return [out[i] for i in order.tolist()]


def pad_router_texts(lessons: Sequence[TextRouterExample]) -> tuple[Tensor, Tensor]:
    """Their texts [B, T], and the places of their last tokens."""
    longest = max(len(x.text) for x in lessons)
    rows = [(*x.text, *[0] * (longest - len(x.text))) for x in lessons]
    return torch.tensor(rows), torch.tensor([len(x.text) - 1 for x in lessons])


_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
_Row = Annotated[tuple[_TokenIds, Annotated[int, Field(ge=0)], float, float], Field(strict=False)]
"""JSON has lists where a tuple is meant."""


class _RouterExamplesRecord(StrictRecord):
    """What lies in a file of lessons: of each the text, its problem, and what both steps are worth."""

    asked: dict[str, Any]
    lessons: list[_Row]


def _kept(spec: TextRouterSpec, models: StepModels, unseen: bool) -> list[TextRouterExample]:
    """As `gather_text_router_examples` makes them, kept in out.

    Raises:
        RequestError: Those of another training lie there.
    """
    out = Path(spec.out)
    file = out / ("held.json" if unseen else "lessons.json")
    asked = gathering_identity(spec)
    if file.exists():
        kept = validate_record(
            _RouterExamplesRecord, read_json(file), f"file {str(file)!r} (delete it to gather anew)"
        )
        # Through JSON, where tuples are lists, as they come from the file.
        if kept.asked != json.loads(json.dumps(asked)):
            raise RequestError(
                f"out is {str(out)!r}: what lies there was gathered for another training"
            )
        return [
            TextRouterExample(tuple(text), problem, value, own)
            for text, problem, value, own in kept.lessons
        ]
    lessons = gather_text_router_examples(spec, models, unseen)
    rows = [[x.text, x.problem, x.value, x.own] for x in lessons]
    text = json.dumps({"asked": asked, "lessons": rows})
    files.replace_file_atomically(file, lambda at: Path(at).write_text(text))
    return lessons


def gather_text_router_examples(
    spec: TextRouterSpec, models: StepModels, unseen: bool
) -> list[TextRouterExample]:
    """Let both models write, and keep every step with what both are worth.

    Args:
        spec: Names the problems and the randomness.
        models: The two models, and the reward where one values the steps.
        unseen: Of held-out problems, a quarter as many.

    Returns:
        Every step that the draft model wrote.
    """
    # The count of all kinds has no divisor in common with 8, so that by these numbers every kind is
    # set aside as often.
    order = tuple(problems.KINDS)
    numbered = [
        # A number for each kind and index, which no other problem has.
        (i * len(order) + order.index(kind), problems.draw_problem(kind, spec.seed + 1, i, unseen))
        for i in range(problem_count(spec, unseen))
        for kind in spec.kinds
    ]
    vocab = models.target.lm.vocab
    marks = marks_of(vocab)
    lessons = list[TextRouterExample]()

    def oracle_for(number: int, problem: ReasoningProblem, ids: tuple[int, ...]) -> _StepPairOracle:
        """Make the oracle of a problem, which keeps every pair of steps as a lesson.

        Args:
            number: Number of the problem.
            problem: The problem, whose checker values steps.
            ids: Its prompt.

        Returns:
            The oracle.
        """
        worth = build_step_checker(problem, models.target.text, vocab.eos)
        return _StepPairOracle(ids, marks, number, lessons, models.reward, worth)

    write_step_pairs(spec, models, numbered, oracle_for, unseen)
    return lessons


def build_step_checker(
    problem: ReasoningProblem, text: Tokenizer, ends: frozenset[int]
) -> Callable[[Sequence[int], Sequence[int]], float]:
    """Make the value of a step behind what was written, by the checker of a problem.

    Args:
        problem: The problem.
        text: Turns tokens into text.
        ends: Tokens that end a text.

    Returns:
        A function of the tokens before a step and of the step: 1 where all up to its end may begin
        a right solution, or is one where the text ends there; else 0.
    """

    def step_worth(before: Sequence[int], step: Sequence[int]) -> float:
        """Value a step by the checker of the problem.

        Args:
            before: Tokens of the answer before the step.
            step: Tokens of the step, at least one.

        Returns:
            1 where all up to its end may stand in a right solution, else 0.
        """
        written = text.decode([*before, *step])
        if step[-1] in ends:
            return float(problems.is_right_solution(problem, written))
        return float(problems.right_until(problem, written) >= len(written))

    return step_worth


@torch.no_grad()
def measure_text_router(
    net: TextRouterModel, lessons: Sequence[TextRouterExample]
) -> dict[str, Any]:
    """Say how well a router ranks steps.

    Args:
        net: The router.
        lessons: Steps of held-out problems.

    Returns:
        steps: how many; better: the share in which the target's is; auc: how often, of such a step
        and another one, the router tells which is which; of_value: the same for the value of the
        draft model's step; of_place: the same for how long the text is (None where all are alike);
        spearman: how far the router's order of steps is that of what the target's is worth more,
        and of_value's.
    """
    better_N = torch.tensor([x.better for x in lessons])
    # In parts, as long texts of all lessons would not fit into memory at once.
    parts = [lessons[i : i + 64] for i in range(0, len(lessons), 64)]
    logit_N = torch.cat([net.step_logits(*pad_router_texts(part)) for part in parts])
    value_N = torch.tensor([x.value for x in lessons])
    gain_N = torch.tensor([x.own for x in lessons]) - value_N

    return {
        "steps": len(lessons),
        "better": round(float(better_N.float().mean()), 4),
        "auc": roc_auc(logit_N, better_N),
        # The value of the draft's step alone, and the length of the text: a router must beat both.
        "of_value": roc_auc(-value_N, better_N),
        "of_place": roc_auc(torch.tensor([float(len(x.text)) for x in lessons]), better_N),
        "spearman": spearman_correlation(logit_N, gain_N),
        "spearman_of_value": spearman_correlation(-value_N, gain_N),
    }
