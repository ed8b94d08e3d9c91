"""What reads a model's cache and makes vectors that the model reads behind its prompt (differentiable
cache augmentation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.base.errors import FileError, PolydecError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import CoprocessorFields
from polydec.models.learned.skeleton import LlamaLayers, Past

KIND = artefact.ArtefactKind("coprocessor", "coprocessor", "coprocessor.safetensors", "context")


def coprocessor_latents(
    s: LlamaLayers,
    t: Mapping[str, Tensor],
    soft_LH: Tensor,
    first_BG: Tensor,
    past: Past,
    seen_BGP: Tensor,
) -> Tensor:
    """Make the vectors that are read behind G places of each text.

    What stands at one place never sees what stands at another.

    Args:
        s: Sizes of the layers.
        t: The tensors of the layers, by name.
        soft_LH: The learned inputs, alike at every place, shape ``[L, H]``.
        first_BG: The position that the first vector of each place takes, shape ``[B, G]``.
        past: Of each layer the model's own keys and values, P entries each.
        seen_BGP: Which of these a place sees, shape ``[B, G, P]``, bool.

    Returns:
        The vectors, shape ``[B, G, L, H]``.
    """
    # All places of all texts go through the layers as one long row of inputs.
    (B, G), L = first_BG.shape, len(soft_LH)
    x = soft_LH.expand(B, G, *soft_LH.shape).flatten(1, 2)
    # Positions are those in the text, not in this row, so that places overlap in position.
    position = (first_BG[..., None] + torch.arange(L)).flatten(1)
    state, _ = s.run_layers(t, x, position, past, grouped_attention_mask(seen_BGP, L))
    return state.unflatten(1, (G, L))


def grouped_attention_mask(seen_BGP: Tensor, length: int) -> Tensor:
    """Tell whom each input sees, of G groups of inputs that stand one after another.

    An input sees what its group sees of the past, the inputs before it in its group, and itself.

    Args:
        seen_BGP: Which entries of the past each group sees, shape ``[B, G, P]``, bool.
        length: Number L of inputs in each group.

    Returns:
        The mask, shape ``[B, G L, P + G L]``, True where an input sees an entry.
    """
    B, G, _ = seen_BGP.shape
    # All inputs of one place see the same part of the past.
    before = seen_BGP.repeat_interleave(length, dim=1)
    # A block of lower triangles along the diagonal: each place is causal and apart from others.
    group = torch.arange(G).repeat_interleave(length)
    own = (group[:, None] == group) & torch.ones(G * length, G * length, dtype=torch.bool).tril()
    return torch.cat([before, own.expand(B, -1, -1)], dim=2)


@dataclass(frozen=True, eq=False)
class CacheCoprocessor:
    """skeleton, tensors: of its layers, which are shaped as the model's; soft_LH: the learned inputs, as
    many as vectors are made. Arithmetic is fp32."""

    called: ClassVar[str] = "a coprocessor"
    kind: ClassVar[str] = "coprocessor"
    made_by: ClassVar[str] = KIND.training_command
    # Its passes may run while the model's do.
    runs_beside: ClassVar[bool] = True

    skeleton: LlamaLayers
    soft_LH: Tensor
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that the target's cache has the shape that it reads.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            FileError: The states, layers or heads are of other sizes, or the target shows no keys.
        """
        s = self.skeleton
        artefact.require_width(target, s.width, "a coprocessor's vectors")
        # Of one token there are no keys yet; their shapes are there all the same.
        session = target.open_session((0,))
        try:
            keys_KNH, _ = session.layer_memory()
        except PolydecError as error:
            raise FileError(f"a coprocessor reads the target's keys and values: {error}") from None
        finally:
            session.close()
        have = (target.layers, keys_KNH.shape[0], keys_KNH.shape[2])
        own = (s.layers, s.kv_heads, s.head)
        if have != own:
            raise FileError(
                f"a coprocessor reads {own[0]} layers of {own[1]} heads of {own[2]} numbers: this target "
                f"has {have[0]} of {have[1]} of {have[2]}"
            )

    @property
    def cost(self) -> float:
        # As many numbers as a pass reads, the cache left out.
        return float(sum(t.numel() for t in self.tensors.values()))

    def forward(
        self, queries: Sequence[tuple[Sequence[tuple[Tensor, Tensor]], int]]
    ) -> list[Tensor]:
        """Make vectors for texts of any lengths, one after another: what memories hold of them is
        read where it lies."""
        return [self.make_vectors(memory, count) for memory, count in queries]

    @torch.no_grad()
    def make_vectors(self, memory: Sequence[tuple[Tensor, Tensor]], count: int) -> Tensor:
        """Make the first vectors behind a text, none of which sees a later one.

        Args:
            memory: Of each layer the keys and values of the text, each ``[kv heads, N, head]``.
            count: Number of vectors; more than there are learned inputs count as all.

        Returns:
            The vectors, shape ``[count, H]``.
        """
        # A batch of one text, in fp32 whatever the model computes in.
        past = [(k[None].float(), v[None].float()) for k, v in memory]
        # Everything that is read is seen; the vectors stand right behind it.
        n = past[0][0].shape[2]
        seen = torch.ones(1, 1, n, dtype=torch.bool)
        first = torch.tensor([[n]])
        return coprocessor_latents(
            self.skeleton, self.tensors, self.soft_LH[:count], first, past, seen
        )[0, 0]


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[CacheCoprocessor, ...]:
    """Make a random one for tests, which fits models of two layers.

    Args:
        vocab: Not read: it reads keys and values.
        width: Width H of the target's states. It has four heads, two of keys, or half as many where
            heads would be too narrow to rotate.
        draft_width: Width of the draft model's states; not read.

    Returns:
        One coprocessor of three vectors.
    """
    heads = 2 if width % 8 else 4
    s = LlamaLayers(width, 2, heads, heads // 2, 2 * width, 1e4, 1e-5)
    dice = torch.Generator().manual_seed(17)
    tensors = {
        name: torch.full(shape, 0.1)
        if len(shape) == 1
        else torch.randn(shape, generator=dice) * shape[1] ** -0.5
        for name, shape in s.shapes.items()
    }
    return (CacheCoprocessor(s, torch.randn(3, width, generator=dice) * 0.1, tensors),)


def save(path: str | Path, made: CacheCoprocessor, about: Mapping[str, Any]) -> None:
    """Write coprocessor.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        made: The coprocessor.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    tensors = {**made.tensors, "soft": made.soft_LH}
    sizes = {**asdict(made.skeleton), "count": len(made.soft_LH)}
    artefact.save_artefact(
        path, KIND, {k: v.float() for k, v in tensors.items()}, {**about, **sizes}
    )


def load(path: str | Path) -> CacheCoprocessor:
    """What `save` wrote into a directory. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(CoprocessorFields, config, artefact.CONFIG)
        s = LlamaLayers(c.width, c.layers, c.heads, c.kv_heads, c.inner, c.theta, c.eps)
        soft = artefact.read_float_tensor(t, KIND, "soft", c.count, c.width)
        tensors = artefact.read_float_tensors(t, KIND, s.shapes)
        return CacheCoprocessor(s, soft, tensors)
