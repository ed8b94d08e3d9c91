"""Small instances of everything, for the contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from polydec.core.canvas_law import Denoiser
from polydec.core.decoder import Decoder
from polydec.core.protocols import DraftScores, Session, Shaper, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.testing.kits import build, example_strip
from polydec.lab.testing.toy import toy_law
from polydec.lab.testing.toy_canvas import MarkovChainNetwork as MarkovChain
from polydec.lab.testing.toy_canvas import ToyDenoiser
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.presence import PresencePenaltyRule
from polydec.laws.shapers.repetition import RepetitionPenaltyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.shapers.top_p import TopPRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.diffusion.loop.protocols import Unmasker
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import MASKED_DRAFT, ModelArtefact
from polydec.methods.speculative.drafters.eagle import EagleDraftWeights
from polydec.methods.speculative.drafters.falcon import BlockDraftWeights
from polydec.methods.speculative.drafters.flash import FlashDraftWeights
from polydec.methods.speculative.drafters.heads import HeadDraftWeights
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.msd import MsdDraftWeights
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess, TreeGrower, Verifier
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.formats.images import PixelStrip
from polydec.models.learned.artefacts import MODULES
from polydec.models.learned.kinds import ngrams as ngram_tables
from polydec.models.learned.kinds import stop_head
from polydec.models.learned.kinds.eagle import EagleModel
from polydec.models.learned.kinds.falcon import FalconModel
from polydec.models.learned.kinds.flash import FlashModel
from polydec.models.learned.kinds.heads import DraftHeads
from polydec.models.learned.kinds.msd import MsdModel
from polydec.models.learned.kinds.ngrams import NGrams
from polydec.models.learned.kinds.stop_head import StopHead
from polydec.models.sessions.lm import CausalLaw

SHAPERS: dict[str, tuple[Shaper[Any], ...]] = {
    "plain": (),
    "shaped": (
        RepetitionPenaltyRule(1.3),
        PresencePenaltyRule(0.4),
        TemperatureRule(0.8),
        TopPRule(0.9),
    ),
    "greedy": (GreedyRule(),),
}
"""The laws of the enumeration: the model's own, one with state and cuts, and one without chance."""


def target_draft_pairs(count: int = 8) -> list[tuple[CausalLaw, CausalLaw]]:
    """Make random laws of targets and drafts.

    Args:
        count: How many pairs, at least 1. Default 8.

    Returns:
        (target, draft) pairs over three tokens, every fourth one over four; the draft resembles the
        target in half of them.
    """
    # Noise can be enumerated over three tokens only, so four are the exception.
    sizes = [4 if i % 4 == 3 else 3 for i in range(count)]
    return [
        (
            toy_law(i + 1, v),
            toy_law(i + 1 if i % 2 else i + 101, v, sharp=0.7 if i % 2 else 1.2, cost=0.1),
        )
        for i, v in enumerate(sizes)
    ]


def bend_target(target: Target, shapers: Sequence[Shaper[Any]]) -> Target:
    """Put shapers over a target.

    Args:
        target: The target.
        shapers: What bends it, in order; none leave the target itself.

    Returns:
        The shaped target.
    """
    if shapers:
        return ShapedTarget(target, *shapers)
    return target


def example_stop_head(width: int = 4) -> StopHead:
    """A random stop head for states of this width, at least 4, which is a toy's."""
    return stop_head.examples(toy_law(1).vocab, width, width)[0]


def example_ngrams(vocab: TokenVocabulary) -> NGrams:
    """A table over a few tokens."""
    return ngram_tables.examples(vocab, 4, 4)[0]


def example_artefacts(
    vocab: TokenVocabulary, width: int = 4, draft_width: int | None = None
) -> tuple[ModelArtefact, ...]:
    """Make trained parts of every kind, untrained.

    Args:
        vocab: Vocabulary of the target.
        width: Width of the target's hidden states, at least 4. Default 4, which is a toy's.
        draft_width: Width of the draft model's hidden states. None: that of the target.

    Returns:
        Some artefacts of each kind.
    """
    if draft_width is None:
        wide = width
    else:
        wide = draft_width
    return tuple(one for module in MODULES.values() for one in module.examples(vocab, width, wide))


def example_decoder(
    name: str,
    target: Target,
    draft: Target | None = None,
    options: Mapping[str, Any] | None = None,
) -> Decoder:
    """Build a recipe with all that it needs.

    Where the recipe needs a draft model that fills canvases, one is made in the place of `draft`.

    Args:
        name: Name of the recipe.
        target: The target.
        draft: The draft model. None: there is none.
        options: Values of the recipe's options; what is not given has its default. None: all
            defaults.

    Returns:
        The decoder.
    """
    # A toy of an autoregressive law cannot fill canvases.
    if MASKED_DRAFT in registry.get_recipe_module(name).CARD.needs:
        draft = masked_draft(target.vocab)
    return build(name, target, draft, options, artefacts=example_artefacts(target.vocab))[0]


def masked_draft(vocab: TokenVocabulary) -> Any:
    """A toy that fills canvases, of a toy target's vocabulary."""
    return ToyDenoiser(
        MarkovChain(5, vocab.size, context=256), max(vocab.eos, default=-1), masked=False
    )


def example_mechanism(kind: type) -> Any:
    """Make an instance of a mechanism.

    Args:
        kind: Its class, a dataclass.

    Returns:
        One with its defaults, and a toy, a chain or simple drafters where a field has none.

    Raises:
        KeyError: A field without a default has a type that nothing is made for here.
    """
    hints = get_type_hints(kind)
    fill: dict[Any, Any] = {
        Target: lambda: toy_law(91, cost=0.1),
        TreeGrower: ChainTree,
        TokenVocabulary: lambda: toy_law(1).vocab,
        Drafter: lambda: RecyclingDrafter(2, 6),
        Verifier: MatchVerifier,
        # Rows that cost little: who looks at costs drafts.
        PassCosts: lambda: PassCosts((1.0, 1.05)),
        PixelStrip: example_strip,
        SuffixDrafter: SuffixDrafter,
        Drafter | None: lambda: ModelDrafter(toy_law(91, cost=0.1), ChainTree()),
        Unmasker[Any]: ConfidenceUnmasker,
        tuple[tuple[int, int], ...]: lambda: ((1, 4), (4, 2)),
        Denoiser: lambda: masked_draft(toy_law(91).vocab),
        tuple[Drafter, ...]: lambda: (LookupDrafter(3, 2), RecyclingDrafter(2, 6)),
    }
    # Each artefact stands for fields of its own class, and for the protocol that it implements.
    fill |= {type(one): lambda one=one: one for one in example_artefacts(toy_law(1).vocab)}
    fill |= {HeadDraftWeights: fill[DraftHeads], EagleDraftWeights: fill[EagleModel]}
    fill |= {MsdDraftWeights: fill[MsdModel], FlashDraftWeights: fill[FlashModel]}
    fill |= {BlockDraftWeights: fill[FalconModel]}
    return kind(
        **{
            f.name: fill[hints[f.name]]()
            for f in fields(kind)
            if f.default is MISSING and f.default_factory is MISSING
        }
    )


@dataclass(frozen=True)
class SiblingDrafter:
    """A drafter for tests of verifiers: below every node, children of several sources in the order
    given.

    Attributes:
        size: Tokens of the vocabulary.
        sources: (how, seed, count): `count` children drawn from the toy of that seed, or, where
            certain, the tokens seed, seed + 1, … modulo the size. Tokens of certain children that
            stand there already are left out.
        depth: Levels that have children. Default 1.
        probe: Whether a node that is fed and must never be accepted stands first below the root.
            Default False.
    """

    size: int
    sources: tuple[tuple[DrawKind, int, int], ...]
    depth: int = 1
    probe: bool = False

    def open_guess(self, prompt: Sequence[int], session: Session) -> SiblingsGuess:
        """Begin a sequence with one session of each source's toy.

        Args:
            prompt: Token ids of the prompt.
            session: Not used: the toys have sessions of their own.

        Returns:
            The guess.
        """
        return SiblingsGuess(
            self,
            tuple(
                toy_law(seed, self.size, cost=0.1).open_session(prompt)
                for _, seed, _ in self.sources
            ),
        )


@dataclass(frozen=True)
class SiblingsGuess(DraftGuess):
    """One session of each source's toy."""

    config: SiblingDrafter
    sessions: tuple[Session, ...]

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Draw the children of every node, source by source.

        Args:
            root: Last token of the text.
            position: Absolute position of the first drafted token.
            budget: Only its depth counts.
            rng: Random stream of the text.

        Returns:
            The token tree.
        """
        draft = Draft.chain_draft(root)
        tips = [0]
        for _ in range(min(self.config.depth, budget.depth)):
            # Every source scores the draft as it stands; children of all sources follow one another
            # below a node.
            laws = [await s.score_draft(draft, ScoreRequest()) for s in self.sessions]
            known = len(draft)
            for node in tips:
                for j, (how, seed, count) in enumerate(self.config.sources):
                    row_V = laws[j].logprob_row(node)
                    # A name of its own for each source: two sources at one node draw independently.
                    here = rng.child_stream("draft", position, node, j)
                    if how is DrawKind.CERTAIN:
                        # A certain child equal to a sibling would be one path twice.
                        stand = {draft.token[c] for c in draft.children[node]}
                        tokens = [
                            x
                            for i in range(count)
                            if (x := (seed + i) % self.config.size) not in stand
                        ]
                    elif how is DrawKind.INDEPENDENT:
                        tokens = [
                            here.child_stream(i).draw_categorical(row_V.exp()) for i in range(count)
                        ]
                    else:
                        tokens = list(here.without_replacement(row_V.exp(), count))
                    for x in tokens:
                        draft = draft.with_node(
                            x, node, how, None if how is DrawKind.CERTAIN else row_V
                        )
            tips = list(range(known, len(draft)))
        if (
            self.config.probe
        ):  # a node that is fed and must never be accepted, first among its siblings
            tokens = (draft.token[0], self.config.size - 1, *draft.token[1:])
            parent = (-1, 0, *(p + (p > 0) for p in draft.parent[1:]))
            draft = Draft(
                tokens,
                parent,
                (DrawKind.CERTAIN, DrawKind.CERTAIN, *draft.draw[1:]),
                (None, None, *draft.law[1:]),
                (False, True, *[False] * (len(draft) - 1)),
            )
        return draft

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Commit the accepted tokens to the session of every source.

        Args:
            draft: The draft that was verified.
            scores: Not used.
            verdict: The accepted nodes and the token that follows.
        """
        for s in self.sessions:
            s.commit_tokens(verdict.committed_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> SiblingsGuess:
        """Copy the guess with forks of all its sessions.

        Args:
            session: Not used: the toys have sessions of their own.
            choice: Choice that the copy drafts for; None: the same as before.

        Returns:
            The copy.
        """
        return SiblingsGuess(self.config, tuple(s.fork(choice) for s in self.sessions))

    def close(self) -> None:
        for s in self.sessions:
            s.close()
