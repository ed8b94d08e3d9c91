"""Word problems of finite automata: where a word leads, and what is written on the way there.

Source: Merrill and Sabharwal, The expressive power of transformers with chain of thought, ICLR
2024. The tasks, the budgets and how a scratchpad is laid out are ours: the paper has theorems and
no experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from random import Random

SYMBOLS = "abc"
"""Of which a word is made, uniformly at random."""


@dataclass(frozen=True)
class FiniteAutomaton:
    """A finite automaton over `SYMBOLS`. A word begins in state 0.

    Attributes:
        table: table[state][symbol] is the state after that symbol.
    """

    table: tuple[tuple[int, ...], ...]

    def states_after_word(self, word: Sequence[int]) -> tuple[int, ...]:
        """The states that a word leads through, entry i after i + 1 symbols."""
        out = list[int]()
        state = 0
        for symbol in word:
            state = self.table[state][symbol]
            out.append(state)
        return tuple(out)

    def answer_law(self, length: int) -> list[float]:
        """The distribution of the state after a uniformly random word, shape ``[states]``."""
        law = [1.0] + [0.0] * (len(self.table) - 1)
        for _ in range(length):
            # One step of the Markov chain of states.
            then = [0.0] * len(law)
            for state, nexts in enumerate(self.table):
                # Each of the symbols is equally likely.
                for following in nexts:
                    then[following] += law[state] / len(nexts)
            law = then
        return law

    def naming_chance(self, length: int) -> float:
        """How often a guesser is right who always names the likeliest state: the accuracy to beat."""
        return max(self.answer_law(length))


def _of_permutations(generators: Sequence[tuple[int, ...]]) -> FiniteAutomaton:
    """The automaton whose states are all permutations of n things.

    Each symbol applies one more permutation to the state.
    """
    states = list(permutations(range(len(generators[0]))))
    # The first permutation is the identity: the state in which a word begins.
    number = {state: i for i, state in enumerate(states)}
    return FiniteAutomaton(
        tuple(
            tuple(number[tuple(state[i] for i in generator)] for generator in generators)
            for state in states
        )
    )


def _drawn(states: int, name: str) -> FiniteAutomaton:
    """Every step leads anywhere, uniformly at random, always the same for a name."""
    # The name seeds the draw, so that the task is the same everywhere.
    r = Random(name)
    return FiniteAutomaton(
        tuple(tuple(r.randrange(states) for _ in SYMBOLS) for _ in range(states))
    )


TASKS: Mapping[str, FiniteAutomaton] = {
    "parity": FiniteAutomaton(((1, 0, 0), (0, 1, 1))),
    "dfa": _drawn(5, "dfa 0"),
    "s5": _of_permutations(((1, 0, 2, 3, 4), (1, 2, 3, 4, 0), (0, 1, 3, 2, 4))),
}
"""parity: is the number of a's odd? dfa: five states, transitions at random. s5: the permutation of
five things that swaps and a rotation make one behind the other, of which there are 120: no circuit
of constant depth is believed to find it."""

BUDGETS: Mapping[str, Callable[[int], int]] = {
    "none": lambda length: 0,
    "log": lambda length: max(1, (length - 1).bit_length()),
    "half": lambda length: (length + 1) // 2,
    "linear": lambda length: length,
}
"""Steps that may be written before the answer, by the length of the word."""


def scratchpad_step_ends(length: int, steps: int) -> tuple[int, ...]:
    """After how many symbols each written step names the state.

    The word is cut into parts as equal as can be; the last part ends with the word.

    Args:
        length: Symbols of the word.
        steps: Steps that are written, 0 to `length`.

    Returns:
        Ascending counts of symbols, one for each step.
    """
    # -(-a // b) rounds up, so that the last end is the length itself.
    return tuple(-(-length * (i + 1) // steps) for i in range(steps))


BEGIN = "<|begin|>"
END = "<|end|>"
PAD = "<pad>"
ANSWER = "<answer>"


@dataclass(frozen=True)
class ScratchpadFormat:
    """A task as token ids.

    A row is BEGIN, the word, PAD up to `longest` symbols, the mark of a budget, its steps, ANSWER,
    the state and END. Padding keeps a step always equally far after the symbol that it needs.

    Attributes:
        task: Name of a task of `TASKS`.
        longest: The most symbols of a word.
    """

    task: str
    longest: int

    @property
    def automaton(self) -> FiniteAutomaton:
        return TASKS[self.task]

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """All tokens; the place of a token is its id."""
        marks = tuple(f"<{name}>" for name in BUDGETS)
        states = tuple(f"s{i}" for i in range(len(self.automaton.table)))
        return (BEGIN, END, PAD, ANSWER, *marks, *SYMBOLS, *states)

    def token_id(self, token: str) -> int:
        return self._ids[token]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    @property
    def positions(self) -> int:
        """Tokens of the longest row: the word and as many steps, and five marks."""
        return 2 * self.longest + 5

    def encode_prompt(self, word: Sequence[int], budget: str) -> list[int]:
        """Encode a word with the mark of its budget, without steps.

        Args:
            word: Symbols as numbers, indices into `SYMBOLS`, at most `longest` of them.
            budget: Name of a budget of `BUDGETS`.

        Returns:
            Token ids; all prompts of a task are equally long.
        """
        first = self._ids[SYMBOLS[0]]
        # Padding stands before the budget's mark, so that all steps begin at one position.
        filled = [self._ids[PAD]] * (self.longest - len(word))
        return [self._ids[BEGIN], *(first + x for x in word), *filled, self._ids[f"<{budget}>"]]

    def encode_answer(self, word: Sequence[int], budget: str) -> list[int]:
        """Encode what follows the prompt: the steps, ANSWER, the state and END.

        Args:
            word: Symbols as numbers, indices into `SYMBOLS`.
            budget: Name of a budget of `BUDGETS`; it says how many steps are written.

        Returns:
            Token ids.
        """
        states = self.automaton.states_after_word(word)
        # The ids of states are neighbours.
        first = self._ids["s0"]
        # A step that ends after i symbols names the state behind the i-th of them.
        steps = [
            first + states[i - 1]
            for i in scratchpad_step_ends(len(word), BUDGETS[budget](len(word)))
        ]
        return [*steps, self._ids[ANSWER], first + states[-1], self._ids[END]]


def random_symbol_word(r: Random, length: int) -> list[int]:
    """Draw a uniformly random word.

    Args:
        r: Source of randomness; it is advanced.
        length: Symbols of the word.

    Returns:
        Symbols as numbers, indices into `SYMBOLS`.
    """
    return [r.randrange(len(SYMBOLS)) for _ in range(length)]
