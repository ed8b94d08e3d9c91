"""Rows of other scores are these rows, whoever asks for them, and a row of log-probabilities is all that is read of it."""

import pytest
import torch

from polydec.core.row_scores import LogprobRowScores, PickedScores


class TableScores(LogprobRowScores):
    """Rows of a table; `asked` holds every call that reads several rows."""

    def __init__(self, name, rows_RV, hidden_NH=None, base=None):
        self.name = name
        self.rows_RV = rows_RV
        self.hidden_NH = hidden_NH
        self.inner = base
        self.asked = []

    def logprob_row(self, i):
        return self.rows_RV[i]

    def log_weights(self, i):
        return 2 * self.rows_RV[i]

    def certain_token(self, i):
        return None if i else 7

    def likeliest_token(self, i):
        return int(self.rows_RV[i].argmax())

    def topk_rows(self, rows, k):
        self.asked.append(list(rows))
        return [self.rows_RV[i].topk(k).indices.tolist() for i in rows]

    def exit_laws(self, depth, nodes):
        self.asked.append((depth, list(nodes)))
        return TableScores(f"{self.name}, {depth}", self.rows_RV[list(nodes)] - depth)

    @property
    def base(self):
        # A new one at each call, as scores that are shaped have it.
        return TableScores(f"{self.name}, bare", self.rows_RV / 2)


def two_tables(hidden=True):
    rows_RV = torch.arange(24.0).reshape(6, 4).sin()
    states = [torch.arange(6.0).reshape(3, 2) + 10 * i if hidden else None for i in range(2)]
    return [TableScores(str(i), rows_RV[3 * i : 3 * i + 3], states[i]) for i in range(2)]


def test_a_row_is_that_of_the_scores_it_was_picked_of():
    first, second = two_tables()
    scores = PickedScores([first, second, first], [2, 0, 0])
    for i, (table, at) in enumerate([(first, 2), (second, 0), (first, 0)]):
        assert torch.equal(scores.logprob_row(i), table.rows_RV[at])
        assert torch.equal(scores.log_weights(i), 2 * table.rows_RV[at])
        assert scores.certain_token(i) == (None if at else 7)
        assert scores.likeliest_token(i) == int(table.rows_RV[at].argmax())
        assert scores.likeliest_tokens(i, 2) == table.likeliest_tokens(at, 2)
        assert scores.token_logprobs(i, (3, 1)) == table.token_logprobs(at, (3, 1))


def test_rows_side_by_side_in_the_same_scores_are_read_together():
    first, second = two_tables()
    scores = PickedScores([first, first, second, first], [2, 0, 1, 1])
    found = scores.topk_rows([0, 1, 2, 3], 2)
    assert (first.asked, second.asked) == ([[2, 0], [1]], [[1]])
    rows = [first.rows_RV[2], first.rows_RV[0], second.rows_RV[1], first.rows_RV[1]]
    assert found == [row_V.topk(2).indices.tolist() for row_V in rows]


def test_laws_of_first_layers_keep_the_order_of_the_nodes():
    first, second = two_tables()
    scores = PickedScores([first, second, second], [1, 2, 0])
    exits = scores.exit_laws(5, [2, 1, 0])
    assert second.asked == [(5, [0, 2])] and first.asked == [(5, [1])]
    wanted = [second.rows_RV[0], second.rows_RV[2], first.rows_RV[1]]
    for j, row_V in enumerate(wanted):
        assert torch.equal(exits.logprob_row(j), row_V - 5)


def test_states_are_those_of_the_rows_or_none():
    first, second = two_tables()
    scores = PickedScores([second, first], [1, 0])
    assert scores.hidden_NH.tolist() == [[12.0, 13.0], [0.0, 1.0]]
    blind = two_tables(hidden=False)[0]
    assert PickedScores([first, blind], [0, 0]).hidden_NH is None
    assert PickedScores([], []).hidden_NH is None


def test_what_was_not_shaped_is_of_the_same_rows_and_the_same_class():
    class OtherScores(PickedScores):
        pass

    first, second = two_tables()
    bare = OtherScores([first, second, first], [2, 0, 0]).base
    assert type(bare) is OtherScores and bare.of[0] is bare.of[2] is not bare.of[1]
    assert torch.equal(bare.logprob_row(1), second.rows_RV[0] / 2)


def test_some_rows_of_one_and_one_row_of_each():
    first, second = two_tables()
    some = PickedScores.rows_of(first, (2, 0))
    assert list(some.of) == [first, first] and list(some.at) == [2, 0]
    each = PickedScores.by_node([first, second, first])
    assert list(each.at) == [0, 1, 2] and torch.equal(each.logprob_row(1), second.rows_RV[1])


def test_the_likeliest_tokens_are_those_of_the_row_and_all_of_a_small_vocabulary():
    table = TableScores("", torch.tensor([[-3.0, -1.0, -2.0]]))
    assert table.likeliest_tokens(0, 2) == ((1, 2), (-1.0, -2.0))
    assert table.likeliest_tokens(0, 9) == ((1, 2, 0), (-1.0, -2.0, -3.0))
    assert table.token_logprobs(0, (0, 0, 2)) == (-3.0, -3.0, -2.0)
    with pytest.raises(NotImplementedError):
        LogprobRowScores().logprob_row(0)
