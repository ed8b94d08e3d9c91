"""Faults that a search can have, each of which the contract of searches must catch. It is not told which search it checks."""

import sys
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from polydec.lab.testing.check_search import check_search
from polydec.laws.targets.search_target import drop_greedy_rule
from search_reference import groups_of_texts, ranked

FILES = ("stats", "ranking", "branches", "best", "diverse_beam")
NUMBER = count()

MUTANTS = {
    "no fork of a text": ("diverse_beam", "beam.text.fork()", "beam.text"),
    "the root is not committed": (
        "branches",
        "self._session.keep_nodes(kept, root)",
        "draft.subtree_below(root, kept)[2]",
    ),
    "a branch keeps its old number": (
        "branches",
        "at = moved[node]",
        "at = min(node, len(left) - 1)",
    ),
    "sessions are not closed": ("branches", "self._session.close()", "pass"),
    "the parent is left out of the score": (
        "diverse_beam",
        "(beam.total + v, chance, beam, x)",
        "(v, chance, beam, x)",
    ),
    "charges are doubled": ("diverse_beam", "self.strength * count", "2 * self.strength * count"),
    "charges are forgotten": ("diverse_beam", "chosen.update(tokens)", "pass"),
    "the worst text wins": (
        "diverse_beam",
        "for g in groups for b in g.ended), key=self._score, reverse=True",
        "for g in groups for b in g.ended), key=self._score",
    ),
    "shapers are ignored": (
        "diverse_beam",
        "scores.logprob_row(beam.node)",
        "scores.base.logprob_row(beam.node)",
    ),
    "log-probabilities of another beam": (
        "diverse_beam",
        "(beam.node,), (x,)",
        "(group.live[0].node,), (x,)",
    ),
    "Finished is never told": (
        "best",
        "answer.follow_text(ranked[min(choice, len(ranked) - 1)])\n",
        "answer = ranked[min(choice, len(ranked) - 1)].fork()\n            answer.choice = choice\n",
    ),
    "one text for all choices": ("best", "ranked[min(choice, len(ranked) - 1)]", "ranked[0]"),
    "one text several times": (
        "best",
        "once.setdefault(tuple(text.tokens), text)",
        "once[id(text)] = text",
    ),
    "the length does not count": ("ranking", "total / length**self.length_penalty", "total"),
    "stop strings are not seen": (
        "diverse_beam",
        "(into.open_hypothesis(), 0.0, 0)",
        "(SilentWriter(into), 0.0, 0)",
    ),
    "what may still change is given out": (
        "best",
        "sure = len(common_prefix_tokens(texts))",
        "sure = len(texts[0].tokens)",
    ),
    "more answers than beams": ("best", "self._choices.stop > width", "False"),
    "an end behind the best ones counts": (
        "diverse_beam",
        "if over and rank >= self.beams:",
        "if False:",
    ),
    "the first end wins": (
        "ranking",
        "return self.ranked_score(total, limit if self.length_penalty > 0.0 else length) <= worst",
        "return True",
    ),
    "the bound is no bound": (
        "ranking",
        "limit if self.length_penalty > 0.0 else length",
        "length",
    ),
    "an ended text goes on": (
        "diverse_beam",
        "over = after.text.finish_reason is not None",
        "over = after.text.finish_reason == 'length'",
    ),
    "charges of earlier steps stay": (
        "diverse_beam",
        "chosen = Counter[int]()\n                grown",
        "chosen = vars(self).setdefault('chosen', Counter[int]())\n                grown",
    ),
    "who wins a tie changes from request to request": (
        "diverse_beam",
        "for g in groups for b in g.ended), key=self._score, reverse=True",
        "for g in groups for b in g.ended), reverse=True, "
        "key=lambda b, turn=next(TURNS): (self._score(b), b.text.tokens[-1] * (-1) ** turn)",
    ),
    "temperature 0 is a law of one text": ("searched", "", ""),
}
MUTE = """

def SilentWriter(into):
    from polydec.core import request
    text = into.open_hypothesis()
    text._writer = request.SilentWriter()
    return text
"""


def search(fault=None):
    """The class of diverse beam search, with a fault written into its source."""
    number, out = next(NUMBER), None
    for file in FILES:
        real = import_module(f"polydec.methods.search.loop.{file}")
        source = Path(real.__file__).read_text("utf-8")
        if fault is not None and fault[0] == file:
            assert source.count(fault[1]) == 1, (
                f"{fault[1]!r} stands {source.count(fault[1])} times in {file}.py"
            )
            source = source.replace(fault[1], fault[2]) + (
                MUTE if "SilentWriter" in fault[2] else ""
            )
        for other in FILES:
            source = source.replace(
                f"polydec.methods.search.loop.{other} import", f"mutant_{number}_{other} import"
            )
        out = sys.modules[f"mutant_{number}_{file}"] = ModuleType(f"mutant_{number}_{file}")
        vars(out)["TURNS"] = count()  # for a fault that does not do the same twice
        exec(compile(source, f"mutant_{number}_{file}", "exec"), vars(out))
    return out.DiverseBeamSearch


def check(kind, law):
    def expected(target, length):
        return ranked(groups_of_texts(target, length, 6, 2, 0.5, 1.0))

    check_search(
        lambda target: kind(law(target), 6, 2),
        6,
        wide=lambda target, width: kind(law(target), width, 1),
        expected=expected,
        score=None,
    )


def test_the_search_itself_is_right():
    check(search(), drop_greedy_rule)


@pytest.mark.parametrize("fault", MUTANTS)
def test_faulty_search(fault):
    no_law = MUTANTS[fault][0] == "searched"
    kind = search(
        None if no_law else MUTANTS[fault]
    )  # not inside: a fault that cannot be written is no fault that is found
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError)):
        check(kind, (lambda target: target) if no_law else drop_greedy_rule)
