"""The LLaVA layout in torch: a CLIP tower whose states are projected to the language model's
embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, layer_norm, linear

from polydec.base.errors import FileError
from polydec.models.formats.fields import shape_of
from polydec.models.formats.image_tiles import ImagePlan, ImageTiles
from polydec.models.formats.llava import LlavaShape
from polydec.models.nets.query_ladder import QueryLadder, ladder_shapes
from polydec.models.nets.tile_evidence import TileEvidence, TowerWatch
from polydec.models.nets.vit import ACTIVATIONS, scaled_pixels, vit_layer


class LlavaTower:
    """Tower and projector.

    Args:
        shape: What they are.
        weights: Their tensors by name, which are read now, as float32.
        device: Where they compute.
        ladder: Queries that climb the tower's layers. Default None: there are none.
    """

    def __init__(
        self,
        shape: LlavaShape,
        weights: Mapping[str, Tensor],
        device: str,
        ladder: QueryLadder | None = None,
    ) -> None:
        self.shape = shape
        self.ladder = ladder
        self._device = torch.device(device)
        self._weights = {
            name: weights[name].float().to(self._device) for name in shape.tensor_shapes
        }

    @property
    def tile_plan(self) -> ImagePlan:
        """How an image becomes the tiles that it reads."""
        return self.shape.plan

    @property
    def appended_count(self) -> int:
        """How many vectors stand behind those of a tile's patches."""
        return 0 if self.ladder is None else self.ladder.query_count

    def place_of(self, tiles: ImageTiles) -> tuple[str | int, ...]:
        """What stands in a prompt in the place of an image: texts, and numbers of its vectors."""
        return (tiles.tile_count * (self.shape.vector_count + self.appended_count),)

    def grid_of(self, tiles: ImageTiles) -> None:
        """The language model does not tell rows and columns."""

    def image_vectors(self, tiles: ImageTiles) -> Tensor:
        """The vectors of an image.

        Args:
            tiles: The image.

        Returns:
            The vectors, ``[k, width]``, float32.
        """
        return self._read_image(tiles, None)

    def watched_vectors(self, tiles: ImageTiles) -> tuple[Tensor, list[TileEvidence]]:
        """The vectors of an image, and of each tile what the tower's layers look at."""
        watch = TowerWatch(has_class=True)
        vectors_KD = self._read_image(tiles, watch)
        # Vectors of patches alone, or of the class token too.
        first = int(self.shape.drop)
        # A tile that is read by itself is compared with itself alone.
        keys_TPW = watch.keys_TPW[:, first:].cpu()
        looked_LTP = watch.looked_LTP[:, :, first:].cpu()
        return vectors_KD, [
            TileEvidence(keys_PW, looked_LTP[:, at]) for at, keys_PW in enumerate(keys_TPW)
        ]

    @torch.inference_mode()
    def _read_image(self, tiles: ImageTiles, watch: TowerWatch | None) -> Tensor:
        """The vectors of an image; watch: notes what layers look at."""
        pixels_TCHW = scaled_pixels(tiles, self.shape.scale, self._device)
        states = self.layer_states(pixels_TCHW, watch)
        vectors_TKD = project_states(self.shape, self._weights, self.ladder, states)
        return vectors_TKD.flatten(0, 1).cpu()

    def layer_states(self, pixels_TCHW: Tensor, watch: TowerWatch | None = None) -> list[Tensor]:
        """The states of tiles: what enters the tower's first layer, and what leaves each that runs.

        Args:
            pixels_TCHW: Numbers of their pixels, ``[tiles, 3, height, width]``.
            watch: Notes what layers look at. Default None: nobody does.

        Returns:
            Each ``[tiles, P, width]``, the class token's first.
        """
        w = self._weights
        vit = self.shape.vit
        at = "vision_tower."
        patches = conv2d(pixels_TCHW, w[f"{at}embeddings.patch_embedding.weight"], stride=vit.patch)
        first_TPW = w[f"{at}embeddings.class_embedding"].expand(len(patches), 1, -1)
        # The class token stands before the patches, which go row by row.
        x_TPW = torch.cat([first_TPW, patches.flatten(2).transpose(1, 2)], 1)
        x_TPW = x_TPW + w[f"{at}embeddings.position_embedding.weight"]
        own = (w[f"{at}pre_layrnorm.weight"], w[f"{at}pre_layrnorm.bias"])
        x_TPW = layer_norm(x_TPW, (vit.width,), *own, vit.eps)
        # States before the first layer count as those behind none.
        states = [x_TPW]
        for layer in range(max(self.shape.behind)):
            states.append(vit_layer(states[-1], w, f"{at}encoder.layers.{layer}.", vit, watch))
        return states


def project_states(
    shape: LlavaShape,
    weights: Mapping[str, Tensor],
    ladder: QueryLadder | None,
    states: Sequence[Tensor],
) -> Tensor:
    """What the language model reads of a tower's states.

    Args:
        shape: Sizes of tower and projector.
        weights: Has the projector's tensors.
        ladder: Queries that climb the layers; None: there are none.
        states: As `LlavaTower.layer_states` gives them.

    Returns:
        The vectors of the patches and behind them those of the queries, ``[tiles, K, width]``.
    """
    taken_TPW = torch.cat([states[behind] for behind in shape.behind], -1)
    # It stands first.
    if shape.drop:
        taken_TPW = taken_TPW[:, 1:]
    if ladder is not None:
        taken_TPW = torch.cat([taken_TPW, ladder.climb_states(states[1:])], 1)
    # The projector: two layers with an activation between them.
    w = weights
    inner = linear(taken_TPW, w["projector.linear_1.weight"], w.get("projector.linear_1.bias"))
    return linear(
        ACTIVATIONS[shape.act](inner),
        w["projector.linear_2.weight"],
        w.get("projector.linear_2.bias"),
    )


def fit_query_ladder(shape: LlavaShape, tensors: Mapping[str, Tensor], device: str) -> QueryLadder:
    """A ladder as a tower climbs it: a rung for each layer that runs.

    Args:
        shape: Sizes of tower and projector.
        tensors: The ladder's tensors, of which all that there are are read.
        device: Where it computes.

    Returns:
        The ladder.

    Raises:
        FileError: It was made for another tower.
    """
    # A query is as wide as one state.
    if len(shape.behind) > 1:
        raise FileError(
            f"the adapter has a ladder of queries: its tower gives states of {len(shape.behind)} layers side by side, and "
            "queries are one state each"
        )
    # Two sizes are the ladder's own; of tensors that are missing they are said to be none.
    queries, inner = (
        next(iter(shape_of(tensors, name)[at:]), 0) if name in tensors else 0
        for name, at in (("queries", 0), ("up_bias", 1))
    )
    want = ladder_shapes(shape.vit, max(shape.behind), queries, inner)
    if unknown := next((name for name in tensors if name not in want), None):
        raise FileError(
            f"the adapter's ladder has {unknown!r:.120}: a ladder has {', '.join(want)}"
        )
    for name, size in want.items():
        has = tuple(shape_of(tensors, name)) if name in tensors else "none"
        if has != size or 0 in size:
            raise FileError(
                f"the adapter's ladder has {name} of shape {has}: this tower's would have {size}"
            )
    where = torch.device(device)
    own = {name: tensors[name].float().to(where) for name in want}
    return QueryLadder(shape.vit.heads, shape.vit.eps, own)
