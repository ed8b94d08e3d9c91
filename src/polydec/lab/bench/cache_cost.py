"""What a smaller cache costs a model on a text: bytes, perplexity, the distance of laws, speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import torch
from torch import Tensor

from polydec.api import Ask, Engine, LoadedModel
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.registry import press
from polydec.models.nets.press import CachePress
from polydec.models.sessions.image_press import ImagePress

SKIPPED = 256
"""First tokens whose perplexity is not counted: little is packed before them."""
COMPARED = 256
"""Last tokens whose laws are compared."""
ROWS = 64
"""Tokens of a pass."""
FLOAT = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class CachePressSetting:
    """A press and its options as they are written on a command line.

    Attributes:
        name: Name of the press; "none": the cache as it is.
        options: Values by option, as text.
    """

    name: str
    options: Mapping[str, str]

    @property
    def setting_label(self) -> str:
        return self.name + "".join(f" {k}={v}" for k, v in self.options.items())

    def build_press(self) -> CachePress:
        """The press. Raises RequestError for an option that is not legal."""
        made, _ = press.build(self.name, self.options)
        assert not isinstance(made, ImagePress), "refused where it was named"
        return made


NO_PRESS = CachePressSetting("none", {})


def parse_press_setting(item: str) -> CachePressSetting:
    """Parse `name:option=value:option=value`.

    Raises:
        RequestError: The press is unknown or of images, or an option is unknown or not legal.
    """
    name, *pairs = item.strip().split(":")
    name = press.find_press(name)
    if press.reads_images(name):
        raise RequestError(
            f"press is {name}: it makes images smaller, and a text is read here, so name one of "
            f"{', '.join(press.block_press_names())}"
        )
    options = dict[str, str]()
    for pair in pairs:
        key, eq, value = pair.partition("=")
        if not eq:
            raise RequestError(f"press is {item!r}: options are written as {name}:option=value")
        options[key] = value
    press.press_option_values(name, options)
    return CachePressSetting(name, options)


@dataclass(frozen=True)
class CachePressCost:
    """What a press costs at one length of a text.

    Attributes:
        setting: The press.
        length: Tokens that were read.
        bits: Of a number of a packed block, with scales, offsets, outliers, factors and what was
            let go; 32 without a press.
        position_bytes: Bytes of the cache a position, exact tail and room to grow included.
        share: The same over those of a float32 entry.
        perplexity: Of the tokens behind the first `SKIPPED` (half of the shortest length where that
            is less), over that with the cache as it is. Without a press: the perplexity itself.
        kl: Of the law with the cache as it is from the pressed one, nats a token, mean over the
            last `COMPARED` tokens (or half of the shortest length).
        same: Share of these whose likeliest token is the same, 0 to 1.
        speeds: By method, tokens a second behind the text.
    """

    setting: CachePressSetting
    length: int
    bits: float
    position_bytes: float
    share: float
    perplexity: float
    kl: float
    same: float
    speeds: Mapping[str, float]

    def as_record(self) -> dict[str, Any]:
        """Its figures by name, rounded as far as they say something."""
        return {
            "press": self.setting.name,
            "options": " ".join(f"{k}={v}" for k, v in self.setting.options.items()),
            "length": self.length,
            "bits": round(self.bits, 2),
            "bytes": round(self.position_bytes),
            "share": round(self.share, 3),
            "perplexity": round(self.perplexity, 4),
            "kl": float(f"{self.kl:.1e}"),
            "same": round(self.same, 3),
            **{method: round(speed, 1) for method, speed in self.speeds.items()},
        }


@dataclass(frozen=True)
class TextReading:
    """What reading a text up to one length gave.

    Attributes:
        nats: Mean of the counted tokens' negative log-probabilities.
        logp_NV: The laws of the last tokens.
        cache_bytes: Bytes of the cache.
        bits: Of a packed number.
        speeds: By method, tokens a second behind the text.
    """

    nats: float
    logp_NV: Tensor
    cache_bytes: int
    bits: float
    speeds: Mapping[str, float]


def usable_settings(
    lm: LoadedModel, settings: Sequence[CachePressSetting]
) -> tuple[list[CachePressSetting], dict[str, str]]:
    """Part the presses that a model's network can read from those it cannot.

    Args:
        lm: The loaded model.
        settings: The presses.

    Returns:
        Those that it can, in order, and of the others by their labels why not.
    """
    good = list[CachePressSetting]()
    refused = dict[str, str]()
    for setting in settings:
        try:
            lm.checkpoint.lm.pressed_law(setting.build_press())
            good.append(setting)
        except RequestError as error:
            refused[setting.setting_label] = str(error)
    return good, refused


def measure_cache_costs(
    lm: LoadedModel,
    tokens: Sequence[int],
    settings: Sequence[CachePressSetting],
    lengths: Sequence[int],
    *,
    methods: Sequence[str] = (),
    written: int = 32,
    advance: Callable[[str, int], None] = lambda label, read: None,
) -> Iterator[list[CachePressCost]]:
    """Measure what presses cost, one after another.

    One text is read from its first token on, so all presses see the same tokens at all lengths.

    Args:
        lm: The loaded model, which continues texts.
        tokens: Token ids of the text, at least one more than the greatest length.
        settings: The presses; the cache as it is is always measured first.
        lengths: Tokens of the text at which figures are taken, ascending, each at least 2.
        methods: Names of methods whose speed is measured behind each length. Default: none.
        written: Tokens that are written for it, at least 1. Default 32.
        advance: Is told a press's label and how many tokens were read under it, after every pass.
            Default: nobody is told.

    Yields:
        The costs of a press at each length; first those of the cache as it is.

    Raises:
        RequestError: The network cannot read such caches.
    """
    config = lm.network.config
    entry = 2 * FLOAT * config.layers * config.kv_heads * config.head
    law = lm.checkpoint.lm
    exact = dict[int, TextReading]()
    for setting in (NO_PRESS, *settings):
        pressed = law
        if setting is not NO_PRESS:
            pressed = law.pressed_law(setting.build_press())
        reader = PressedTextReader(lm, pressed, setting, tuple(methods), written, advance)
        found = reader.read_text(tokens, lengths)
        if setting is NO_PRESS:
            exact = found
        yield [_cost(setting, n, entry, exact[n], found[n]) for n in lengths]


def _cost(
    setting: CachePressSetting, length: int, entry: int, exact: TextReading, found: TextReading
) -> CachePressCost:
    # 0 times minus infinity, of a token that neither law knows, counts nothing.
    difference_NV = (exact.logp_NV - found.logp_NV).nan_to_num(0.0)
    kl_N = (exact.logp_NV.exp() * difference_NV).sum(-1)
    same_N = exact.logp_NV.argmax(-1) == found.logp_NV.argmax(-1)
    perplexity = exp(found.nats)
    if setting is not NO_PRESS:
        perplexity = exp(found.nats - exact.nats)
    return CachePressCost(
        setting,
        length,
        found.bits,
        found.cache_bytes / length,
        found.cache_bytes / (entry * length),
        perplexity,
        max(0.0, float(kl_N.mean())),
        float(same_N.double().mean()),
        found.speeds,
    )


@dataclass(frozen=True)
class PressedTextReader:
    """Reads a text under one press.

    Attributes:
        lm: The loaded model.
        law: Its law over such a cache.
        setting: The press.
        methods: Methods whose speed is measured.
        written: Tokens that they write.
        advance: Is told the label and how many tokens were read.
    """

    lm: LoadedModel
    law: Any
    setting: CachePressSetting
    methods: tuple[str, ...]
    written: int
    advance: Callable[[str, int], None]

    def read_text(self, tokens: Sequence[int], lengths: Sequence[int]) -> dict[int, TextReading]:
        """Read a text, and stop at each length for its figures.

        Args:
            tokens: Token ids, at least one more than the last length.
            lengths: Where to stop, ascending.

        Returns:
            The readings by length.
        """
        skipped = min(SKIPPED, lengths[0] // 2)
        compared = min(COMPARED, lengths[0] // 2)
        session = self.law.open_session(tokens[:1])
        out = dict[int, TextReading]()
        nats = list[float]()
        at = 0
        for length in lengths:
            last = list[Tensor]()
            while at < length:
                stop = min(length, at + ROWS)
                scores = run_coroutines(
                    [
                        session.score_draft(
                            Draft.chain_draft(tokens[at], tokens[at + 1 : stop]), ScoreRequest()
                        )
                    ]
                )[0]
                for i in range(at, stop):
                    logp_V = scores.logprob_row(i - at)
                    if i >= skipped:
                        nats.append(-float(logp_V[tokens[i + 1]]))
                    if i >= length - compared:
                        last.append(logp_V.float().clone())
                session.commit_tokens(tuple(tokens[at:stop]))
                at = stop
                self.advance(self.setting.setting_label, at)
            cache = session.ledger.cache
            # What the last rows no longer see is given back first, as before any next pass.
            cache.shed_packed(length)
            held = cache.nbytes
            speeds = {m: self._speed(tuple(tokens[:length]), m) for m in self.methods}
            out[length] = TextReading(
                sum(nats) / len(nats), torch.stack(last), held, packed_number_bits(cache), speeds
            )
        session.close()
        return out

    def _speed(self, prompt: tuple[int, ...], method: str) -> float:
        """Tokens a second behind a text whose cache the open session shares."""
        fields: dict[str, Any] = {}
        if self.setting is not NO_PRESS:
            fields = {"cache": self.setting.name, "cache_options": self.setting.options}
        ask = Ask(
            prompt,
            raw=True,
            method=method,
            max_tokens=self.written,
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
            **fields,
        )
        seconds = 0.0
        # The first answer of a press makes `auto` measure what its rows cost: it does not count.
        for _ in range(2):
            engine = Engine(self.lm)
            ticket = engine.submit(ask)
            begin = time.perf_counter()
            while engine.step():
                pass
            seconds = time.perf_counter() - begin
            ticket.completion()
        return self.written / seconds


def packed_number_bits(cache: Any) -> float:
    """Count the bits that a number of a packed block takes; 32 where nothing is packed."""
    if cache.press is None:
        return 32.0
    blocks = [p for layer in cache.packed for p in layer]
    if not blocks:
        return 32.0
    held = sum(p.nbytes for p in blocks if p is not None)
    heads = cache.kv.shape[2]
    head = cache.kv.shape[-1]
    return 8 * held / (len(blocks) * cache.press.block * 2 * heads * head)
