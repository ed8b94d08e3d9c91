"""What a method is observed on to see its options at work: a toy, a request, and everything that an observer can tell."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import exp
from random import Random
from typing import Any

import torch

from mixtures import mixture
from patch_toys import PatchCanvasNetwork, ToyPatchCanvas
from polydec.base.errors import FileError, PolydecError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing import examples
from polydec.lab.testing.check_search import toy_writer_factory
from polydec.lab.testing.kits import example_strip
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords
from polydec.lab.testing.toy_canvas import MarkovChainNetwork, ToyDenoiser
from polydec.lab.testing.toy_insertion import PosteriorNetwork, ToyInserter
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.other_prompt import SecondPromptTarget
from polydec.laws.targets.shaped import ShapedTarget
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.kit import BLOCKS, MASKED_DRAFT, Kit, OtherPrompts, PromptedLaw
from polydec.methods.speculative.loop.events import ProposedEvent
from polydec.models.learned.kinds import patch_head
from polydec.models.learned.kinds.mask_head import MaskHead
from polydec.models.learned.kinds.patch_head import PatchHead
from polydec.models.learned.kinds.reward import TextReward
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.soft import make_soft_tokens

LETTERS = ("a", "b", " ", "\n", "1", "2", "c", "")
"""The words of a toy; the last one is its end."""

CHEAP_ROWS = PassCosts((1.0, 1.05, 1.1, 1.15), 0.05)


@dataclass(frozen=True)
class Toy:
    """What a method decodes.

    Attributes:
        seed: Of the target's law, and of the draft's where it is `near`.
        near: Whether the draft's law is the target's, but flatter.
        greedy: Whether both are greedy.
        copied: Tokens of the target's own greedy text that the prompt is, one of them changed, before it begins anew;
            0: `prompt` is the prompt.
        prompt: Token ids.
        most: Most tokens of an answer.
        answers: Answers to a request.
        requests: Requests one after the other, which share the engine's memory.
        together: Requests at the same time.
        ends: Whether the end ends an answer.
        words: What each token reads as.
        likely: Tokens that the target likes more than its law says, and how much.
        layers: Of the target.
        regex: What the answer must match; "": nothing.
        costs: Of passes.
        experts: Whether the target is a mixture of experts.
        block: Positions of a block of a block-causal canvas; 0: the method's own.
        sharp: How far logits are spread.
            size: Tokens of a canvas's chain.
        draft_sharp: As `sharp`, of the draft.
        image: Whether two vectors stand in the prompt, in the place of its second and third token.
    """

    seed: int = 1
    near: bool = True
    greedy: bool = False
    copied: int = 0
    prompt: tuple[int, ...] = (0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2)
    most: int = 12
    answers: int = 1
    requests: int = 1
    together: int = 1
    ends: bool = False
    words: tuple[str, ...] = LETTERS
    likely: tuple[int, ...] = ()
    layers: int = 3
    regex: str = ""
    costs: PassCosts = CHEAP_ROWS
    experts: bool = False
    block: int = 0
    sharp: float = 2.0
    size: int = 6
    draft_sharp: float = 1.4
    image: bool = False

    @property
    def vocab(self) -> TokenVocabulary:
        end = len(self.words) - 1
        return TokenVocabulary(
            end + 1, frozenset({end}), words=ToyWords(self.words, frozenset({end}))
        )

    def law(self, seed: int, sharp: float, cost: float = 1.0) -> CausalLaw:
        """A law over the words."""
        network = OrderTwoNetwork(seed, len(self.words), sharp, cost=cost)
        network.layers = self.layers
        for token in self.likely:
            network.weight[..., token] += 3.0
        return CausalLaw(network, self.vocab, chunk=2)

    def begin(self, target: CausalLaw) -> tuple[int, ...]:
        """The prompt."""
        if not self.copied:
            return self.prompt
        text = [0, 1]
        while len(text) < self.copied:
            row_V = target.network.weight[text[-2], text[-1]][:-1]
            text.append(int(row_V.argmax()))
        half = self.copied // 2
        text[half] = (text[half] + 1) % (len(self.words) - 1)
        return (*text, 0, 1)


SAMPLED = Toy()
COPIED = Toy(seed=2, greedy=True, copied=20, most=32)


def observed(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    """Everything that can be seen of a method at work: answers, events, passes, positions, and a refusal.

    Args:
        name: Of the recipe.
        options: Of the recipe; what is not given has its default.
        toy: What it decodes.

    Returns:
        Values that are equal where nothing can be told apart.
    """
    family = registry.get_recipe_module(name).CARD.family
    if family == "diffusion":
        return _seen_on_canvases(name, options, toy)
    if family == "insertion":
        return _seen_in_slots(name, options, toy)
    if family == "patches":
        return _seen_in_patches(name, options, toy)
    return _seen_in_texts(name, options, toy)


class HeadOfDraft(PatchHead):
    """A head that fits a toy of a draft's cost alone."""

    def check_fit(self, target, draft):
        if getattr(getattr(target, "network", None), "cost", 1.0) != 0.1:
            raise FileError("the head is the draft's")


@cache
def _artefacts(vocab: TokenVocabulary, words: ToyWords | None, width: int) -> tuple[Any, ...]:
    # A second reward of texts, behind the first one: that of a baseline (indirect transfer).
    other = TextReward(lambda text: 0.5 * len(text))
    (head,) = patch_head.examples(vocab, width, width)
    moved = {name: 1.2 * t for name, t in head.tensors.items()}
    drafts = HeadOfDraft(
        vocab,
        head.shape,
        head.levels,
        head.patches,
        head.mark_H,
        {**moved, "embed.weight": head.tensors["embed.weight"]},
    )
    # A mask of two patches, which may see one another, behind each end that is not one.
    mask = MaskHead(vocab, vocab.size - 1, 0, 1, 2, 4, torch.arange(1.0, width + 1), 0.5)
    return (drafts, mask, *examples.example_artefacts(vocab, width), other)


def _other_prompts(target: Any, vocab: TokenVocabulary) -> OtherPrompts:
    """Other texts stand in the place of the whole prompt."""
    words = vocab.words
    assert words is not None
    return OtherPrompts("ab", lambda text: PromptedLaw(target, words.encode(text)))


def _seen_in_texts(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    card = registry.get_recipe_module(name).CARD
    if toy.experts:
        bare = mixture(toy.seed)
    else:
        bare = toy.law(toy.seed, toy.sharp)
    prompt = toy.begin(bare)
    filling = MASKED_DRAFT in card.needs
    if filling:
        small: Any = examples.masked_draft(bare.vocab)
        small = replace(
            small, network=MarkovChainNetwork(5, bare.vocab.size, toy.draft_sharp, context=256)
        )
    else:
        small = toy.law(toy.seed + 7 * (not toy.near), toy.draft_sharp, 0.1)
    target, draft, language = bare, small, None
    if toy.regex:
        from polydec import Regex

        language = Regex(toy.regex).token_language(bare.vocab, bare.vocab.eos)
        target = ShapedTarget(target, ConstraintRule(language))
        draft = draft if filling else ShapedTarget(draft, ConstraintRule(language))
    if toy.greedy:
        target = ShapedTarget(target, GreedyRule())
        draft = draft if filling else ShapedTarget(draft, GreedyRule())
    width = bare.network.config.width if toy.experts else 4
    if toy.image:
        soft = make_soft_tokens(bare.network.embed_tokens((2, 0)), bare.vocab.size, width, "x")
        read = (prompt[0], *soft, *prompt[3:])
        target = SoftPromptTarget(target, prompt, read, tuple(range(len(prompt) - 1)))
    trained = _artefacts(bare.vocab, bare.vocab.words, width)
    memory = dict[str, Any]()
    seen = list[Any]()
    for turn in range(toy.requests):
        kit = Kit(
            target,
            draft,
            trained,
            lambda: toy.costs,
            memory,
            language=language,
            strip=example_strip(),
            shows_image=toy.image,
            other=_other_prompts(target, bare.vocab),
        )
        asked = [
            Request(
                prompt[i:],
                toy.most,
                seed=turn + 10 * i,
                n=toy.answers,
                writer=toy_writer_factory(bare, ""),
                ignore_eos=not toy.ends,
            )
            for i in range(toy.together)
        ]
        seen += _run([registry.build(name, kit, options)[0] for _ in asked], asked)
    if toy.experts:
        return repr(seen), 0, 0, 0, 0
    fed = getattr(small.network, "fed", getattr(small.network, "runs", 0))
    return repr(seen), bare.network.calls, bare.network.runs, small.network.calls, fed


def drafts_behind(name: str, options: Mapping[str, Any], toy: Toy) -> list[tuple[float, int]]:
    """Of each token of an answer that a round began with: its probability under the model, and the tokens drafted behind it.

    Args:
        name: Of a recipe of the draft-and-verify family that needs no draft model.
        options: Of the recipe.
        toy: What it decodes.
    """
    law = toy.law(toy.seed, toy.sharp)
    prompt = toy.begin(law)
    kit = Kit(law, None, _artefacts(law.vocab, law.vocab.words, 4), lambda: toy.costs)
    asked = Request(prompt, toy.most, seed=toy.seed, ignore_eos=True, logprobs=0)
    answers, events = _run([registry.build(name, kit, options)[0]], [asked])
    notes = answers[0][0].logprobs
    # the root stands before the first drafted position
    return [
        (exp(notes[e.position - 1 - len(prompt)].model_logp), len(e.token) - 1 - len(e.probes))
        for e in events
        if isinstance(e, ProposedEvent) and e.position > len(prompt)
    ]


def _run(decoders: list[Any], asked: list[Request]) -> list[Any]:
    events = list[Any]()
    try:
        results = run_coroutines(
            [
                run_decoder(decoder, request, on=events.append)
                for decoder, request in zip(decoders, asked, strict=True)
            ]
        )
    except PolydecError as refused:
        return [str(refused)]
    return [results, events]


def _seen_on_canvases(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    card = registry.get_recipe_module(name).CARD
    network = StartedChain(toy.seed, toy.size, toy.sharp, context=64)
    end = toy.size - 1
    block = (toy.block or 4) * (BLOCKS in card.needs)
    denoiser = SpelledDenoiser(network, end if toy.ends else -1, block)
    size = denoiser.vocab.size
    guide = CausalLaw(
        OrderTwoNetwork(toy.seed, size, toy.draft_sharp, cost=0.1),
        denoiser.vocab,
        chunk=2,
    )
    trained = _artefacts(denoiser.vocab, denoiser.vocab.words, 4)
    shapers = (GreedyRule(),) if toy.greedy else ()
    kit = Kit(
        denoiser, guide if card.needs_draft else None, trained, lambda: toy.costs, shapers=shapers
    )
    asked = [Request(toy.prompt[:3], toy.most, ignore_eos=not toy.ends, n=toy.answers)]
    seen = _run([registry.build(name, kit, options)[0]], asked)
    return repr(seen), network.calls, network.fed, guide.network.calls, guide.network.runs


def _seen_in_patches(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    vocab = toy.vocab
    models = [
        ToyPatchCanvas(PatchCanvasNetwork(toy.seed + at, vocab.size, cost), vocab)
        for at, cost in enumerate((1.0, 0.1))
    ]
    kit = Kit(*models, _artefacts(vocab, vocab.words, 4), lambda: toy.costs)
    asked = [Request(toy.prompt[:1], 12, ignore_eos=True, seed=toy.seed, n=toy.answers)]
    seen = _run([registry.build(name, kit, options)[0]], asked)
    counts = [(model.network.calls, model.network.runs) for model in models]
    return repr(seen), *counts


class StartedChain(MarkovChainNetwork):
    """A chain that has a law without a prompt, too: as if token 0 stood first."""

    def position_law(self, canvas, at):
        return super().position_law((canvas[0] or 0, *canvas[1:]), at)


@dataclass(frozen=True)
class SpelledDenoiser(ToyDenoiser):
    """A toy whose tokens are letters, which rewards of texts read."""

    @property
    def vocab(self) -> TokenVocabulary:
        letters = ToyWords((*(chr(0x61 + i) for i in range(self.network.size)), ""))
        return TokenVocabulary(
            self.network.size + self.masked,
            frozenset({self.eos} if self.eos >= 0 else ()),
            words=letters,
        )


def _seen_in_slots(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    texts = [text for n in range(6) for text in product(range(2), repeat=n)]
    dice = Random(toy.seed)
    network = PosteriorNetwork({text: dice.random() for text in texts}, 2)
    kit = Kit(ToyInserter(network), shapers=(GreedyRule(),) if toy.greedy else ())
    asked = [Request((0,), 5, seed=seed) for seed in range(8)]
    seen = [_run([registry.build(name, kit, options)[0]], [request]) for request in asked]
    return repr(seen), network.fed


def observed_steering(name: str, options: Mapping[str, Any], toy: Toy) -> tuple[Any, ...]:
    """Everything that can be seen of plain decoding under a steered law, its log-probabilities included.

    Args:
        name: Of the way to steer.
        options: Of it; what is not given has its default.
        toy: What is decoded.

    Returns:
        Values that are equal where nothing can be told apart.
    """
    bare = attending_law() if toy.experts else toy.law(toy.seed, toy.sharp)
    small = toy.law(toy.seed + 7, toy.draft_sharp, 0.1)
    prompt = toy.begin(bare)
    beside = SecondPromptTarget(bare, prompt, prompt[::-1])
    trained = _artefacts(bare.vocab, bare.vocab.words, 32 if toy.experts else 4)
    kit = Kit(bare, small, trained, lambda: toy.costs, beside=beside, prompt=prompt)
    law = steer.build(name, kit, options)[0]
    plain = registry.build("plain", Kit(law))[0]
    seen = _run([plain], [Request(prompt, toy.most, ignore_eos=True, logprobs=2)])
    if toy.experts:
        return (repr(seen),)
    return repr(seen), bare.network.calls, bare.network.runs, small.network.calls


@cache
def attending_law() -> CausalLaw:
    """A small network with keys and values: of four heads, as example artefacts have them."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return mixture(3, build=lambda c, w: LlamaTransformer.build({**c, **heads}, w, dtype="float32"))


def observed_press(name: str, options: Mapping[str, Any], tokens: int) -> tuple[Any, ...]:
    """Plain decoding over a pressed cache, with its log-probabilities.

    Args:
        name: Of the press.
        options: Of it; what is not given has its default.
        tokens: Of the prompt.

    Returns:
        Values that are equal where nothing can be told apart.
    """
    law = attending_law().pressed_law(press.build(name, options)[0])
    prompt = tuple(Random(5).choices(range(2, 12), k=tokens))
    plain = registry.build("plain", Kit(law))[0]
    return (repr(_run([plain], [Request(prompt, 6, ignore_eos=True, logprobs=2)])),)


def observed_unmasker(unmasker: Any, toy: Toy) -> tuple[Any, ...]:
    """Everything that can be seen of canvases that an unmasker fills.

    Args:
        unmasker: The unmasker.
        toy: The canvas.

    Returns:
        Values that are equal where nothing can be told apart.
    """
    network = StartedChain(toy.seed, toy.size, toy.sharp, context=64)
    denoiser = SpelledDenoiser(network, toy.size - 1 if toy.ends else -1, 0)
    # One that reads laws at known tokens is asked where.
    asking = {"written": unmasker} if hasattr(unmasker, "known_positions") else {}
    # One that says what each pass feeds is asked for that, too.
    if hasattr(unmasker, "planned_positions"):
        asking["plan"] = unmasker
    decoder = DenoisingDecoder(denoiser, unmasker, FullRefresh(), toy.block or 8, **asking)
    asked = [Request(toy.prompt[:3], toy.most, ignore_eos=not toy.ends)]
    return repr(_run([decoder], asked)), network.calls, network.fed
