"""Molecules that are valid and new: sampling, masks and adaptive weighted rejection sampling, on a small model of SMILES.

    python benchmarks/molecules.py [directory of the model] [answers]

The model has a vocabulary of 512 (byte pairs of SMILES) and is trained here on 20,000 molecules of QM9, in some minutes, where
the directory holds none. Valid: atoms C, N, O, F with no more bonds than they can have, branches and rings closed.
New: no molecule that it was trained on, in whatever spelling (by colour refinement, which never takes a known one for new).
What plain sampling draws and the constraint allows follows the exact law, so the others are held against that.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from tasks import taught
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from polydec import api
from polydec.core.types import TokenVocabulary
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.laws.constraints import pieces

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1}
BONDS = {"=": 2, "#": 3}
BEGIN, END, KNOWN = "<begin>", "<end>", 20_000


# What a text says


@dataclass(frozen=True)
class Molecule:
    """The beginning of a SMILES. atoms: their elements; free: bonds that each may still have; bonds: pairs of atoms with the
    order; at: the atom that the next one is bound to; order: of the bond that is written, 0 for none; branches: atoms that an
    open branch leaves, each with a bond kept for what follows the branch; rings: the atom of each open ring, by digit, with a
    bond kept; last: the last character."""

    atoms: str = ""
    free: tuple[int, ...] = ()
    bonds: tuple[tuple[int, int, int], ...] = ()
    at: int = -1
    order: int = 0
    branches: tuple[int, ...] = ()
    rings: tuple[tuple[str, int], ...] = ()
    last: str = ""

    def then(self, c: str) -> Molecule | None:
        """With one character more; None where no molecule begins so."""
        if c in VALENCE:
            found = self._atom(c)
        elif c in BONDS:
            here = self.order == 0 and self.at >= 0 and self.free[self.at] >= BONDS[c]
            found = replace(self, order=BONDS[c], last=c) if here else None
        elif c == "(":
            here = self.order == 0 and self.at >= 0 and self.last != "(" and self.free[self.at] >= 2
            found = (
                replace(self._bound(self.at, 1), branches=(*self.branches, self.at), last=c)
                if here
                else None
            )
        elif c == ")":
            here = bool(self.branches) and self.order == 0 and self.last not in "()"
            back = self.branches[-1] if here else -1
            found = (
                replace(self._bound(back, -1), at=back, branches=self.branches[:-1], last=c)
                if here
                else None
            )
        else:
            found = self._ring(c) if c in "12345" else None
        return found if found is not None and found._goes_on() else None

    def _atom(self, c: str) -> Molecule | None:
        order = self.order or 1
        if self.at < 0:
            return replace(self, atoms=c, free=(VALENCE[c],), at=0, last=c)
        if self.free[self.at] < order or VALENCE[c] < order:
            return None
        new = len(self.atoms)
        free = (*self._bound(self.at, order).free, VALENCE[c] - order)
        bonds = (*self.bonds, (self.at, new, order))
        return replace(self, atoms=self.atoms + c, free=free, bonds=bonds, at=new, order=0, last=c)

    def _ring(self, c: str) -> Molecule | None:
        """Behind an atom or another ring."""
        if self.at < 0 or self.order or self.last in "()" or self.free[self.at] < 1:
            return None
        there, here = dict(self.rings).get(c), self._bound(self.at, 1)
        if there is None:
            return replace(here, rings=(*self.rings, (c, self.at)), last=c)
        if there == self.at or any({a, b} == {there, self.at} for a, b, _ in self.bonds):
            return None
        left = tuple(x for x in self.rings if x[0] != c)
        return replace(here, bonds=(*self.bonds, (there, self.at, 1)), rings=left, last=c)

    def _bound(self, atom: int, by: int) -> Molecule:
        return replace(self, free=tuple(x - by * (i == atom) for i, x in enumerate(self.free)))

    def _goes_on(self) -> bool:
        """Whether open rings can still be closed: from here, or behind a branch."""
        return not self.rings or self.free[self.at] > 0 or bool(self.branches)

    @property
    def whole(self) -> bool:
        return self.at >= 0 and not (self.order or self.branches or self.rings) and self.last != ")"

    def colours(self) -> int:
        """The same for every spelling of a molecule, and different for nearly all different ones."""
        now, near = [hash(x) for x in self.atoms], [list[tuple[int, int]]() for _ in self.atoms]
        for a, b, order in self.bonds:
            near[a].append((order, b))
            near[b].append((order, a))
        for _ in range(4):
            now = [
                hash((x, tuple(sorted((order, now[b]) for order, b in near[i]))))
                for i, x in enumerate(now)
            ]
        return hash(tuple(sorted(now)))


def read(text: str) -> Molecule | None:
    """A SMILES as far as it goes; None where no molecule begins so."""
    found: Molecule | None = Molecule()
    for c in text:
        found = None if found is None else found.then(c)
    return found


# The constraint


@dataclass(frozen=True)
class New:
    """The answer is a valid molecule, none of those whose colours are known."""

    known: frozenset[int]
    asked: list[int] = field(default_factory=lambda: [0, 0])

    def token_language(self, vocab: TokenVocabulary, ends: frozenset[int]) -> Molecules:
        return Molecules(self, pieces.token_byte_pieces(vocab, ends), ends)


@dataclass(frozen=True, eq=False)
class Molecules:
    """Its language. A state is a Molecule, or None behind what is none. It counts, in `asked`, tokens that were looked at and
    tokens that were written."""

    constraint: New
    pieces: Sequence[bytes | None]
    ends: frozenset[int]
    finite = False

    def start_state(self) -> Molecule | None:
        return Molecule()

    def next_state(self, state: Molecule | None, token: int) -> Molecule | None:
        self.constraint.asked[1] += 1
        return self._behind(state, token)

    def _behind(self, state: Molecule | None, token: int) -> Molecule | None:
        for c in (self.pieces[token] or b"?").decode("latin-1"):
            state = None if state is None else state.then(c)
        return state

    def allows_token(self, state: Molecule | None, token: int) -> bool:
        self.constraint.asked[0] += 1
        if token in self.ends:
            return (
                state is not None and state.whole and state.colours() not in self.constraint.known
            )
        return self._behind(state, token) is not None

    def token_mask(self, state: Molecule | None) -> Tensor:
        """All tokens are looked at, those with a common beginning together."""
        self.constraint.asked[0] += len(self.pieces) - len(self.ends)
        reached: dict[bytes, Molecule | None] = {b"": state}

        def behind(piece: bytes) -> Molecule | None:
            if piece not in reached:
                before = behind(piece[:-1])
                reached[piece] = (
                    None if before is None else before.then(piece[-1:].decode("latin-1"))
                )
            return reached[piece]

        return torch.tensor(
            [
                self.allows_token(state, i) if i in self.ends else behind(piece or b"?") is not None
                for i, piece in enumerate(self.pieces)
            ]
        )

    def forced_bytes(self, state: Molecule | None) -> bytes:
        return b""


# The model


def molecules(count: int) -> list[str]:
    """Molecules of QM9, in an order that says nothing of them."""
    with gzip.open(DATA / "molecules_qm9" / "smiles.txt.gz", "rt", encoding="utf-8") as lines:
        every = lines.read().split()
    return Random(0).sample(every, count)


def train(at: Path, texts: Sequence[str], steps: int = 3000, batch: int = 64) -> None:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    words.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=[BEGIN, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    begin, end = words.token_to_id(BEGIN), words.token_to_id(END)
    ids = [[begin, *e.ids, end] for e in words.encode_batch(list(texts))]
    torch.manual_seed(1)
    net, dice = TrainableLlama(LlamaShape(512, 96, 3, 4, 2, 256, 64), seed=1), Random(1)

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        some = dice.sample(ids, batch)
        rows = torch.full((batch, max(map(len, some))), -100)
        for i, line in enumerate(some):
            rows[i, : len(line)] = torch.tensor(line)
        return rows[:, :-1].clamp_min(0), rows[:, 1:]

    taught(net, drawn, steps, 3e-3)
    save_directory(
        at,
        net,
        net.s.config_content(bos=begin, eos=end),
        dtype=torch.float32,
        files={
            "tokenizer.json": words.to_str(),
            "tokenizer_config.json": {"bos_token": BEGIN, "eos_token": END},
        },
    )


# What is measured


@dataclass(frozen=True)
class Run:
    """What one way drew: molecules (empty where it could not go on), tokens of the answers, nats that each costs the model,
    checks and masks a token."""

    texts: list[str]
    tokens: list[int]
    nats: list[float]
    looked: float
    seconds: float
    metrics: list[Mapping[str, Any]]


def ended(ticket: api.Ticket) -> api.Completion | None:
    """None for one that could not go on: a known molecule, which may not end there, without a bond left."""
    try:
        return ticket.completion()
    except ValueError:
        return None


def drawn(lm: api.LoadedModel, count: int, known: New, **how: Any) -> Run:
    engine, (looked, stepped) = api.Engine(lm, max_running=64), known.asked
    begin, start = [lm.checkpoint.text.encode(BEGIN)[-1]], time.process_time()
    tickets = [
        engine.submit(
            api.Ask(
                begin,
                seed=i,
                max_tokens=32,
                logprobs=0,
                sampling=lm.sampling_with(temperature=1.0),
                **{"method": "plain", **how},
            )
        )
        for i in range(count)
    ]
    while engine.step():
        pass
    seconds, answers = (
        time.process_time() - start,
        [a for a in map(ended, tickets) if a is not None],
    )
    return Run(
        [*[a.text for a in answers], *[""] * (count - len(answers))],
        [len(a.token_ids) for a in answers],
        [-sum(n.model_logp for n in a.choices[0].logprobs or ()) for a in answers],
        (known.asked[0] - looked) / max(1, known.asked[1] - stepped),
        seconds / count,
        [a.metrics for a in answers],
    )


def mean(values: Sequence[float]) -> str:
    """With the half width of its 95 % interval."""
    return f"{np.mean(values):.3g} ± {1.96 * np.std(values) / max(1, len(values)) ** 0.5:.2g}"


def main() -> None:
    at, count = (
        Path(sys.argv[1] if len(sys.argv) > 1 else "nets/molecules"),
        int(sys.argv[2] if len(sys.argv) > 2 else 500),
    )
    texts = molecules(KNOWN)
    if not (at / "model.safetensors").exists():
        train(at, texts)
    graphs = [read(x) for x in texts]
    known = New(frozenset(g.colours() for g in graphs if g is not None))
    print(
        f"{sum(g is not None and g.whole for g in graphs)} of {len(texts)} known molecules are valid here",
        file=sys.stderr,
    )
    lm = api.load(str(at), draft=None, ngrams=None, threads=1, dtype="float32")

    def is_new(text: str) -> bool:
        found = read(text)
        return found is not None and found.whole and found.colours() not in known.known

    def is_valid(text: str) -> bool:
        found = read(text)
        return found is not None and found.whole

    runs = {
        "sampled": drawn(lm, count, known, method="plain"),
        "masked": drawn(lm, count, known, method="plain", constraint=known),
        **{
            f"AWRS, {n} particles": drawn(
                lm, count, known, method="awrs", constraint=known, options={"particles": n}
            )
            for n in (1, 4, 8)
        },
    }
    print(
        "| | valid | valid and new | different | nats of the text | tokens | tokens looked at, a token | CPU ms an answer |"
    )
    print("|---|---|---|---|---|---|---|---|")
    exact = [i for i, x in enumerate(runs["sampled"].texts) if is_new(x)]
    for name, run in runs.items():
        fresh = [is_new(x) for x in run.texts]
        cells = [
            mean([is_valid(x) for x in run.texts]),
            mean(fresh),
            f"{len(set(run.texts)) / count:.2f}",
            mean(run.nats),
            mean(run.tokens),
            f"{run.looked:.1f}" if run.looked else "",
            f"{1000 * run.seconds:.1f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |")
        if name == "sampled" and exact:
            some = [mean([x[i] for i in exact]) for x in (run.nats, run.tokens)]
            print(
                f"| of these, the valid and new ones: the exact law | | | | {some[0]} | {some[1]} | | |"
            )
    shares = [
        m["log_normaliser"][0]
        for name, run in runs.items()
        if name.startswith("AWRS, 8")
        for m in run.metrics
    ]
    print(
        f"\nestimated share of the law that is allowed: {np.exp(shares).mean():.3f} (sampled: {len(exact) / count:.3f})"
    )


if __name__ == "__main__":
    main()
