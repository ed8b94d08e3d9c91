"""X-Decoder's network: object queries that become masks, an image query, and caption queries that become
words, all in the layers of one decoder over the features of an image.

The same module is trained and served.

Source: Zou et al., "Generalized decoding for pixel, image, and language" (2022). There features come of
a backbone of their own; here they are made of the vectors that a vision-language model has of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.models.nets.query_masks import latent_query_mask
from polydec.models.nets.reading_layers import PostNormLayer

FINER = 2
"""Cells of a mask on a side of a patch."""


@dataclass(frozen=True)
class QuerySizes:
    """Sizes of the network.

    Attributes:
        vocab: Tokens of captions and names.
        image_width: Of the vectors of an image.
        rows: Rows of them.
        columns: Vectors of a row.
        width: Of all states, a multiple of heads.
        heads: Heads of attention.
        layers: Of the decoder; layer i reads scale i modulo 3.
        objects: Object queries.
        longest: Tokens of a caption at most, the mark before it included.
        text_layers: Of the encoder of names.
        masked: Whether an object query reads those cells alone that its last mask has. Default True.
    """

    vocab: int
    image_width: int
    rows: int
    columns: int
    width: int
    heads: int
    layers: int
    objects: int
    longest: int
    text_layers: int
    masked: bool = True

    @property
    def scale_grids(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the cells of each scale: half, as many, and twice those of the vectors."""
        # A grid of an odd side has half a cell more, so that no vector is left out.
        halved = ((self.rows + 1) // 2, (self.columns + 1) // 2)
        return halved, (self.rows, self.columns), (FINER * self.rows, FINER * self.columns)

    @property
    def mask_grid(self) -> tuple[int, int]:
        """Rows and columns of a mask."""
        return self.scale_grids[-1]


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the decoder reads of images.

    Attributes:
        scales: Cells of each scale, ``[B, cells, width]``, the coarsest first.
        pixel_BFW: What masks are products with, for each cell of the finest scale.
        memories: By layer, keys and values of the cells that it reads, ``[2, B, heads, cells, head]``.
    """

    scales: tuple[Tensor, ...]
    pixel_BFW: Tensor
    memories: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Queries that run through the layers together.

    Attributes:
        x_BNW: What enters the first layer.
        place_NW: What tells each query apart, added wherever it asks or is asked.
        objects: How many of them, from the first, are object queries. Default 0.
        captions: Where caption queries begin: from there on the region counts. Default 0.
        region_BF: Cells of the finest scale that caption queries read. None: all.
        sees_NN: Which query sees which. None: each sees all, and all that stands before them.
    """

    x_BNW: Tensor
    place_NW: Tensor
    objects: int = 0
    captions: int = 0
    region_BF: Tensor | None = None
    sees_NN: Tensor | None = None


@dataclass(frozen=True, eq=False)
class CaptionMemory:
    """An image as a caption that is being written reads it.

    Attributes:
        features: Of the image.
        object_1QW: States of the object queries behind the last layer.
        memories: By layer, keys and values of the latent queries and of the caption so far.
        region_1F: Cells of the finest scale that the caption is about. None: all.
        length: Tokens of the caption that were read.
    """

    features: ImageFeatures
    object_1QW: Tensor
    memories: tuple[Tensor, ...]
    region_1F: Tensor | None
    length: int = 0


class QueryAttention(nn.Module):
    """Attention whose keys and values are made apart, so that they can be held."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def keys_values(self, key_BSW: Tensor, value_BSW: Tensor) -> Tensor:
        """Keys and values of what is read.

        Args:
            key_BSW: What keys are made of.
            value_BSW: What values are made of.

        Returns:
            Both, ``[2, B, heads, S, head]``.
        """
        return torch.stack([self._split(self.k(key_BSW)), self._split(self.v(value_BSW))])

    def forward(self, asks_BNW: Tensor, memory: Tensor, sees: Tensor | None) -> Tensor:
        """Gather what is asked for.

        Args:
            asks_BNW: What asks.
            memory: Keys and values, as `keys_values` makes them.
            sees: Whether a row sees a column, ``[N, S]`` or ``[B, 1, N, S]``. None: all do.

        Returns:
            Shape ``[B, N, width]``.
        """
        # Keys and values lie in one tensor, keys first.
        key_BHSD, value_BHSD = memory.unbind(0)
        asked_BHND = self._split(self.q(asks_BNW))
        mixed = F.scaled_dot_product_attention(asked_BHND, key_BHSD, value_BHSD, sees)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _split(self, x_BSW: Tensor) -> Tensor:
        return x_BSW.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class QueryLayer(nn.Module):
    """A layer: queries read the image, then one another, then an MLP; norms stand behind each sum."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.image = QueryAttention(width, heads)
        self.queries = QueryAttention(width, heads)
        self.into = nn.Linear(width, 4 * width)
        self.out = nn.Linear(4 * width, width)
        self.image_norm, self.query_norm, self.last_norm = (nn.LayerNorm(width) for _ in range(3))

    def forward(
        self, rows: QueryRows, image: Tensor, image_sees: Tensor | None, past: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            rows: The queries, with their states as they stand.
            image: Keys and values of the image's cells.
            image_sees: Which cells a query reads; see `QueryAttention`.
            past: Keys and values of queries before these. None: there are none.

        Returns:
            The new states, and keys and values of all queries so far.
        """
        place_NW = rows.place_NW
        x_BNW = rows.x_BNW
        x_BNW = self.image_norm(x_BNW + self.image(x_BNW + place_NW, image, image_sees))
        # A place says which query it is, and is no part of what is gathered.
        memory = self.queries.keys_values(x_BNW + place_NW, x_BNW)
        if past is not None:
            memory = torch.cat([past, memory], 3)
        x_BNW = self.query_norm(x_BNW + self.queries(x_BNW + place_NW, memory, rows.sees_NN))
        return self.last_norm(x_BNW + self.out(F.relu(self.into(x_BNW)))), memory


class QueryDecoderNetwork(nn.Module):
    """The whole network."""

    def __init__(self, sizes: QuerySizes) -> None:
        super().__init__()
        self.sizes = sizes
        W = sizes.width
        # Of the image: one map into each scale, and one into what masks are products with.
        self.enter = nn.Linear(sizes.image_width, W)
        self.coarse = nn.Linear(W, W)
        self.middle = nn.Linear(W, W)
        self.fine = nn.ConvTranspose2d(W, W, FINER, FINER)
        self.pixels = nn.Linear(W, W)
        self.scale_places = nn.ParameterList(
            nn.Parameter(torch.randn(r * c, W) * 0.1) for r, c in sizes.scale_grids
        )
        # The last one is the image query.
        self.latents = nn.Parameter(torch.randn(sizes.objects + 1, W) * 0.5)
        self.latent_places = nn.Parameter(torch.randn(sizes.objects + 1, W) * 0.5)
        # One table for captions, names and logits: one space.
        self.words = nn.Parameter(torch.randn(sizes.vocab, W) * W**-0.5)
        self.caption_places = nn.Parameter(torch.randn(sizes.longest, W) * 0.1)
        self.layers = nn.ModuleList(QueryLayer(W, sizes.heads) for _ in range(sizes.layers))
        # One map for each thing that a query may become: a mask, a name, a word.
        self.mask_map = nn.Sequential(nn.Linear(W, W), nn.ReLU(), nn.Linear(W, W))
        self.name_map = nn.Linear(W, W)
        self.word_map = nn.Linear(W, W)
        self.nothing = nn.Parameter(torch.randn(W))
        # The logarithm of what likenesses are multiplied by.
        self.sharpness = nn.Parameter(torch.tensor(2.0))
        self.text_layers = nn.ModuleList(
            PostNormLayer(W, sizes.heads) for _ in range(sizes.text_layers)
        )
        self.text_map = nn.Linear(W, W)

    @property
    def query_layers(self) -> list[QueryLayer]:
        """The layers in their order."""
        return [layer for layer in self.layers if isinstance(layer, QueryLayer)]

    @property
    def layer_matrices(self) -> list[nn.Parameter]:
        """The matrices inside layers, for an optimiser of matrices."""
        inside = (*self.layers.parameters(), *self.text_layers.parameters())
        return [p for p in inside if p.dim() == 2]

    def image_features(self, vector_BPH: Tensor) -> ImageFeatures:
        """Features of images in three scales, from their vectors, ``[B, rows * columns, image_width]``."""
        s = self.sizes
        map_BWRC = self.enter(vector_BPH).transpose(1, 2).unflatten(2, (s.rows, s.columns))
        coarse_BWRC = F.adaptive_avg_pool2d(map_BWRC, s.scale_grids[0])
        fine_BFW = _cells(self.fine(F.gelu(map_BWRC)))
        scales = (self.coarse(_cells(coarse_BWRC)), self.middle(_cells(map_BWRC)), fine_BFW)
        memories = list[Tensor]()
        # They do not depend on the queries, so they are made once for all passes.
        for i, layer in enumerate(self.query_layers):
            cell_BSW = scales[i % len(scales)]
            memories.append(
                layer.image.keys_values(cell_BSW + self.scale_places[i % len(scales)], cell_BSW)
            )
        return ImageFeatures(scales, self.pixels(F.gelu(fine_BFW)), tuple(memories))

    def run_layers(
        self, rows: QueryRows, features: ImageFeatures, past: Sequence[Tensor] = ()
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run queries through all layers.

        Args:
            rows: The queries.
            features: Of their images.
            past: By layer, keys and values of queries before these. Default: there are none.

        Returns:
            The states before the first layer and behind each, and by layer keys and values of all
            queries so far.
        """
        states = [rows.x_BNW]
        memories = list[Tensor]()
        for i, layer in enumerate(self.query_layers):
            # By the masks as they stand before this layer.
            image_sees = self._visible_cells(rows, features, i % len(features.scales))
            before = past[i] if past else None
            x_BNW, memory = layer(rows, features.memories[i], image_sees, before)
            rows = replace(rows, x_BNW=x_BNW)
            states.append(x_BNW)
            memories.append(memory)
        return states, tuple(memories)

    def _visible_cells(self, rows: QueryRows, features: ImageFeatures, scale: int) -> Tensor | None:
        """Which cells of a scale each query reads, ``[B, 1, N, cells]``; None: all."""
        grid = self.sizes.scale_grids[scale]
        B, N, _ = rows.x_BNW.shape
        sees_BNS = torch.ones(B, N, grid[0] * grid[1], dtype=torch.bool)
        if rows.objects and self.sizes.masked:
            # What is read is no part of what is learned: masks have losses of their own.
            logit_BQF = self.mask_logits(rows.x_BNW[:, : rows.objects].detach(), features)
            coarser = F.adaptive_avg_pool2d(self._as_maps(logit_BQF.detach()), grid)
            inside_BQS = coarser.flatten(2) > 0
            # A query whose mask is empty would read nothing: it reads all.
            sees_BNS[:, : rows.objects] = inside_BQS | ~inside_BQS.any(-1, keepdim=True)
        if rows.region_BF is not None:
            # A coarse cell belongs to the region where any part of it does.
            touched = F.adaptive_max_pool2d(self._as_maps(rows.region_BF[:, None].float()), grid)
            # Captions alone are about the region; masks say nothing to them.
            sees_BNS[:, rows.captions :] = touched.flatten(2) > 0
        elif not (rows.objects and self.sizes.masked):
            return None
        return sees_BNS[:, None]

    def _as_maps(self, x_BQF: Tensor) -> Tensor:
        """Numbers of cells of the finest scale, in rows and columns."""
        return x_BQF.unflatten(2, self.sizes.mask_grid)

    def latent_rows(self, count: int) -> QueryRows:
        """The latent queries of so many images: those of objects, and the image's."""
        objects = self.sizes.objects
        return QueryRows(
            self.latents.expand(count, -1, -1),
            self.latent_places,
            objects,
            objects + 1,
            sees_NN=latent_query_mask(objects, 0),
        )

    def caption_rows(self, token_BT: Tensor, first: int, region_BF: Tensor | None) -> QueryRows:
        """The queries of a part of captions.

        Args:
            token_BT: Token ids.
            first: Place of the first of them in its caption.
            region_BF: Cells that the caption is about. None: all.

        Returns:
            The queries; each sees all before it, so a part must have one.
        """
        place_TW = self.caption_places[first : first + token_BT.shape[1]]
        return QueryRows(self.words[token_BT], place_TW, region_BF=region_BF)

    def joint_rows(self, token_BT: Tensor, region_BF: Tensor | None) -> QueryRows:
        """Latent queries and whole captions side by side.

        Args:
            token_BT: Token ids of the captions, which begin with the mark before a caption.
            region_BF: Cells that captions are about. None: all.

        Returns:
            The queries: objects, the image's, captions.
        """
        latent = self.latent_rows(len(token_BT))
        caption = self.caption_rows(token_BT, 0, region_BF)
        # In the order of `latent_query_mask`.
        return QueryRows(
            torch.cat([latent.x_BNW, caption.x_BNW], 1),
            torch.cat([latent.place_NW, caption.place_NW]),
            latent.objects,
            latent.captions,
            region_BF,
            latent_query_mask(latent.objects, token_BT.shape[1]),
        )

    def read_image(self, vector_PH: Tensor, region_1F: Tensor | None) -> CaptionMemory:
        """Run the latent queries of one image, and hold what a caption reads of them.

        Args:
            vector_PH: Vectors of the image.
            region_1F: Cells that a caption is to be about. None: all.

        Returns:
            The memory.
        """
        features = self.image_features(vector_PH[None])
        states, memories = self.run_layers(self.latent_rows(1), features)
        objects = self.sizes.objects
        return CaptionMemory(features, states[-1][:, :objects], memories, region_1F)

    def read_token(self, memory: CaptionMemory, token: int) -> tuple[Tensor, CaptionMemory]:
        """Read one more token of a caption.

        Args:
            memory: The image, and the caption so far.
            token: Its token id.

        Returns:
            Logits of the token behind it, ``[vocab]``, and the memory with it.
        """
        rows = self.caption_rows(torch.tensor([[token]]), memory.length, memory.region_1F)
        states, memories = self.run_layers(rows, memory.features, memory.memories)
        logit_V = self.word_logits(states[-1][0, 0])
        return logit_V, replace(memory, memories=memories, length=memory.length + 1)

    def recompute_token(
        self, vector_PH: Tensor, caption: Sequence[int], region_1F: Tensor | None
    ) -> Tensor:
        """Logits behind a caption as the published code has them: without anything that is held.

        The whole decoder runs over a buffer of `longest` tokens, of which the last ones are filler.

        Args:
            vector_PH: Vectors of the image.
            caption: Token ids, at least one and at most `longest`.
            region_1F: Cells that the caption is about. None: all.

        Returns:
            Logits of the next token, ``[vocab]``.
        """
        buffer = [*caption, *[0] * (self.sizes.longest - len(caption))]
        rows = self.joint_rows(torch.tensor([buffer]), region_1F)
        states, _ = self.run_layers(rows, self.image_features(vector_PH[None]))
        return self.word_logits(states[-1][0, rows.captions + len(caption) - 1])

    def read_phrase(self, features: ImageFeatures, phrase_BT: Tensor, there_BT: Tensor) -> Tensor:
        """States of a copy of the object queries that reads the words of a phrase in every layer.

        The words enter each layer as they were, and nothing else sees the copy.

        Args:
            features: Of the images.
            phrase_BT: Token ids of a phrase for each.
            there_BT: Which of them are there, at least one of each.

        Returns:
            States behind the last layer, ``[B, objects, width]``.
        """
        objects = self.sizes.objects
        word_BTW = self._word_states(phrase_BT, there_BT)
        # As keys and values before the copy's own: words ask nothing, and stay as they are.
        past = [layer.queries.keys_values(word_BTW, word_BTW) for layer in self.query_layers]
        own_BS = F.pad(there_BT, (0, objects), value=True)
        copy = QueryRows(
            self.latents[:objects].expand(len(phrase_BT), -1, -1),
            self.latent_places[:objects],
            objects,
            objects,
            sees_NN=own_BS[:, None, None],
        )
        return self.run_layers(copy, features, past)[0][-1]

    def mask_logits(self, state_BQW: Tensor, features: ImageFeatures) -> Tensor:
        """Of each query, how surely a cell belongs to its mask.

        Args:
            state_BQW: States of queries.
            features: Of their images.

        Returns:
            Logits, ``[B, Q, cells of the finest scale]``.
        """
        return self.mask_map(state_BQW) @ features.pixel_BFW.transpose(1, 2)

    def meaning_vectors(self, state_BQW: Tensor) -> Tensor:
        """Where queries stand in the space of texts: vectors of length 1, of the shape of `state_BQW`."""
        return F.normalize(self.name_map(state_BQW), dim=-1)

    def name_logits(self, state_BQW: Tensor, name_CW: Tensor) -> Tensor:
        """What queries are called.

        Args:
            state_BQW: States of queries.
            name_CW: Vectors of names, as `text_vectors` makes them.

        Returns:
            Logits of each name, and in the last column of being nothing, ``[B, Q, C + 1]``.
        """
        # It competes with the names, as one of them.
        nothing_1W = F.normalize(self.nothing, dim=-1)[None]
        alike_BQC = self.meaning_vectors(state_BQW) @ torch.cat([name_CW, nothing_1W]).T
        # Both sides have length 1, so without a factor no law could be sharp.
        return alike_BQC * self.sharpness.exp()

    def word_logits(self, state_W: Tensor) -> Tensor:
        """Logits of the word behind each caption query: products with the table of words."""
        return self.word_map(state_W) @ self.words.T

    def text_vectors(self, token_BT: Tensor, there_BT: Tensor) -> Tensor:
        """Vectors of texts in the space of queries.

        Args:
            token_BT: Token ids.
            there_BT: Which of them are there, at least one of each text.

        Returns:
            Vectors of length 1, ``[B, width]``.
        """
        state_BTW = self._word_states(token_BT, there_BT)
        # A mean over the words that are there.
        share_BT1 = (there_BT / there_BT.sum(1, keepdim=True))[..., None]
        return F.normalize(self.text_map((state_BTW * share_BT1).sum(1)), dim=-1)

    def _word_states(self, token_BT: Tensor, there_BT: Tensor) -> Tensor:
        """States of the words of texts, which all see one another."""
        x_BTW = self.words[token_BT] + self.caption_places[: token_BT.shape[1]]
        for layer in self.text_layers:
            x_BTW = layer(x_BTW, x_BTW, there_BT[:, None])
        return x_BTW


def _cells(map_BWRC: Tensor) -> Tensor:
    """A map as its cells, row by row."""
    return map_BWRC.flatten(2).transpose(1, 2)
