"""Heads that read a word at once: what each card promises, by construction."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from polydec.core.rng import Rng
from polydec.models.nets.masked_head import (
    POLICIES,
    MaskedHead,
    commits_above_mean,
    commits_by_coin,
    fill_canvas,
    first_end,
)
from polydec.models.nets.neighbour_head import NeighbourHead, sharpen_walk, walk_word
from polydec.models.nets.reading_heads import CountingHead
from polydec.models.nets.reading_layers import END, ReadingShape

RNG = Rng.of_choice(3)
BLOCKS = POLICIES["block-low-confidence"].keywords["window"]
SHAPE = ReadingShape(vocab=12, width=16, heads=2, longest=7, places=64)


def made(kind, seed=1, shape=SHAPE):
    torch.manual_seed(seed)
    head = kind(shape).eval()
    for p in head.parameters():
        p.requires_grad_(False)
        p += torch.randn_like(p) * 0.3
    return head


def states(*lengths, seed=2):
    """States of images of unequal length, with what fills the short ones up."""
    g = torch.Generator().manual_seed(seed)
    there = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), SHAPE.width, generator=g), there


# CPPD


def test_letters_are_the_same_without_the_classes_that_are_counted():
    """Only the image's own rows are read, so classes change nothing that is read."""
    head = made(CountingHead)
    x, there = states(9, 5)
    every = torch.arange(SHAPE.vocab).expand(2, -1)
    whole, bare = head(x, there, every), head(x, there)
    assert torch.equal(whole.letters_BTV, bare.letters_BTV)
    assert torch.equal(whole.occupied_BT, bare.occupied_BT) and bare.counts_BCN is None
    assert whole.counts_BCN.shape == (2, SHAPE.vocab, SHAPE.longest)
    # Classes do not see each other, so a few of them are counted as they are among all.
    few = head(x, there, torch.tensor([[3, 7], [1, 2]])).counts_BCN
    assert torch.allclose(few[0], whole.counts_BCN[0, [3, 7]], atol=1e-5)
    assert torch.allclose(few[1], whole.counts_BCN[1, [1, 2]], atol=1e-5)


def test_counting_layers_shape_what_is_read():
    """The rows that letters are read of are those that counting has refined."""
    head = made(CountingHead)
    x, there = states(9)
    before = head(x, there).letters_BTV
    head.counting[1].v.weight.zero_()
    assert not torch.equal(head(x, there).letters_BTV, before)


def test_scores_of_the_joining_attention_are_not_divided():
    head = made(CountingHead, shape=replace(SHAPE, joins=3))
    assert [layer.scale for layer in head.joining] == [1.0, 8**-0.5, 1.0]
    assert head.counting[0].scale == 8**-0.5 and len(made(CountingHead).joining) == 1


def test_places_look_at_the_image_and_at_those_before_them_in_turn():
    x, there = states(9)
    head = made(CountingHead, shape=replace(SHAPE, joins=2))
    before = head(x, there).letters_BTV
    head.slots[4] += 1
    changed = (head(x, there).letters_BTV - before).abs().amax(-1)[0] > 1e-5
    # A place knows those before it, and none behind it.
    assert changed.tolist() == [False] * 4 + [True] * 4
    # With one layer each place is read by itself.
    head = made(CountingHead)
    before = head(x, there).letters_BTV
    head.slots[4] += 1
    changed = (head(x, there).letters_BTV - before).abs().amax(-1)[0] > 1e-5
    assert changed.tolist() == [at == 4 for at in range(8)]
    # In a third one the image is read again.
    head = made(CountingHead, shape=replace(SHAPE, joins=3))
    before = head(x, there).letters_BTV
    head.joining[2].v.weight.zero_()
    assert not torch.allclose(head(x, there).letters_BTV, before)


# LISTER


def test_rows_of_the_neighbour_matrix_sum_to_one_and_the_end_stays():
    maps = made(NeighbourHead)(*states(9, 5))
    assert torch.allclose(maps.next_BMM.sum(-1), torch.ones(2, 10))
    assert torch.allclose(maps.start_BM.sum(-1), torch.ones(2))
    assert maps.next_BMM[:, -1].tolist() == [[0.0] * 9 + [1.0]] * 2
    # Nothing leads to where a shorter image has no positions.
    assert maps.next_BMM[1, :5, 5:9].abs().max() == 0 and maps.start_BM[1, 5:9].abs().max() == 0


def test_scores_have_a_bias_of_each_distance_only_where_it_is_asked_for():
    bare = made(NeighbourHead)
    assert "near" not in bare.state_dict()
    far = made(NeighbourHead, shape=replace(SHAPE, distances=True))
    far.load_state_dict({**bare.state_dict(), "near": torch.zeros(25)})
    x, there = states(9)
    assert torch.equal(far(x, there).next_BMM, bare(x, there).next_BMM)
    # What is two positions on is likelier than before, and nothing else beside it.
    far.near[far.FAR + 2] = 9.0
    odds = (far(x, there).next_BMM / bare(x, there).next_BMM)[0, :-1, :9]
    ahead = torch.arange(9)[None] - torch.arange(9)[:, None] == 2
    assert bool((odds[ahead] > 1).all()) and bool((odds[~ahead][:60] <= 1 + 1e-5).all())


def test_mass_on_the_end_never_falls():
    head = made(NeighbourHead)
    walk = head.walk_steps(head(*states(9, 5)), 20)
    assert torch.allclose(walk.sum(-1), torch.ones(2, 20), atol=1e-5)
    assert bool((walk[:, 1:, -1] >= walk[:, :-1, -1] - 1e-6).all())


class ShiftHead(NeighbourHead):
    """A head whose matrix goes one position to the right, and whose letters are the positions'."""

    def forward(self, states_BSW, there_BS):
        maps = super().forward(states_BSW, there_BS)
        size = maps.next_BMM.shape[1]
        right = torch.eye(size).roll(1, 1)
        right[-1] = torch.eye(size)[-1]
        start = torch.eye(size)[:1]
        return type(maps)(maps.rows_BMW, start, right[None], maps.there_BS)


def test_a_shift_matrix_reads_a_word_of_any_length():
    head = made(ShiftHead)
    head.letters.weight.copy_(torch.eye(SHAPE.vocab, SHAPE.width))
    head.letters.bias.zero_()
    for length in (3, 40):
        tokens = [2 + (i * 5) % 10 for i in range(length)]
        rows = torch.eye(SHAPE.width)[tokens]
        assert head.word_logits(rows).argmax(-1).tolist() == [*tokens, END]


def test_a_walk_is_sharpened_as_it_goes_on():
    at = torch.tensor([0.1, 0.2, 0.7])
    first, later = sharpen_walk(at, 1), sharpen_walk(at, 9)
    assert torch.allclose(first, torch.expm1(at) / torch.expm1(at).sum())
    assert float(later[2]) > 0.99 > float(first[2]) > 0.7
    # A walk that spreads a little at each step reaches its end all the same.
    head = made(ShiftHead)
    blurred = torch.eye(13).roll(1, 1) * 0.85 + torch.eye(13) * 0.15
    blurred[-1] = torch.eye(13)[-1]
    at = torch.eye(13)[0]
    steps = 0
    while float(at[-1]) <= head.ended:
        steps += 1
        at = sharpen_walk(at, steps) @ blurred
    assert steps == 12
    # Without it the walk loses its place.
    plain = torch.eye(13)[0]
    for _ in range(12):
        plain = plain @ blurred
    assert float(plain[-1]) <= head.ended


def test_images_of_unequal_length_read_as_they_do_alone():
    for kind in (CountingHead, NeighbourHead, MaskedHead):
        head = made(kind)
        x, there = states(9, 5)
        if kind is MaskedHead:
            canvas = torch.full((2, 8), head.mask)
            whole, alone = head(canvas, x, there)[1], head(canvas[:1], x[1:, :5], there[1:, :5])[0]
        elif kind is CountingHead:
            whole, alone = (
                head(x, there).letters_BTV[1],
                head(x[1:, :5], there[1:, :5]).letters_BTV[0],
            )
        else:
            whole, alone = (
                head(x, there).start_BM[1, :5],
                head(x[1:, :5], there[1:, :5]).start_BM[0, :5],
            )
        assert torch.allclose(whole, alone, atol=1e-5)


REFINING = replace(SHAPE, rounds=2)


def test_rounds_read_a_refined_image_with_the_same_weights():
    head = made(NeighbourHead, shape=REFINING)
    x, _ = states(9)
    bare = made(NeighbourHead)
    bare.load_state_dict({k: v for k, v in head.state_dict().items() if k in bare.state_dict()})
    # Without rounds it is the head without what refines.
    assert torch.equal(walk_word(head, x[0], rounds=0), bare.word_logits(x[0]))
    read = [walk_word(head, x[0], rounds=n) for n in range(3)]
    assert torch.equal(head.word_logits(x[0]), read[2])
    assert not torch.equal(read[0], read[1]) and not torch.equal(read[1], read[2])


def test_an_image_is_refined_by_the_letters_that_were_found():
    head = made(NeighbourHead, shape=REFINING)
    x, there = states(9)
    maps = head(x, there)
    walk = head.walk_steps(maps, 4)
    found = torch.tensor([[True, True, True, False]])
    whole = head.refined_states(maps, walk, found)
    # A step that found no letter leaves nothing, wherever it stands.
    other = walk.clone()
    other[:, 3] = torch.eye(10)[2]
    assert torch.allclose(head.refined_states(maps, other, found), whole, atol=1e-6)
    other[:, 1] = torch.eye(10)[2]
    assert not torch.allclose(head.refined_states(maps, other, found), whole, atol=1e-3)
    none = head.refined_states(maps, walk, torch.zeros_like(found))
    assert torch.allclose(none, head.refiner.image(x, there), atol=1e-6)


def test_letters_look_at_those_near_them_alone():
    head = made(NeighbourHead, shape=REFINING)
    eye = torch.eye(21)
    walk = eye[None, :20].clone()
    rows = torch.randn(1, 21, SHAPE.width)
    there, found = torch.ones(1, 20, dtype=torch.bool), torch.ones(1, 20, dtype=torch.bool)
    head.refiner.image = Unmixed()
    before = head.refiner(walk, rows, there, found)
    rows[0, 12] += 1
    changed = (head.refiner(walk, rows, there, found) - before).abs().amax(-1)[0] > 1e-6
    assert changed.nonzero().flatten().tolist() == list(range(7, 18))


class Unmixed(torch.nn.Module):
    def forward(self, x_BSW, there_BS):
        return x_BSW


def test_images_of_unequal_length_are_refined_as_they_are_alone():
    head = made(NeighbourHead, shape=REFINING)
    x, there = states(9, 5)

    def refined(x, there, steps):
        maps = head(x, there)
        walk = head.walk_steps(maps, 6)
        return head.refined_states(maps, walk, torch.arange(6)[None] < torch.tensor(steps)[:, None])

    whole, alone = refined(x, there, [6, 3])[1, :5], refined(x[1:, :5], there[1:, :5], [3])[0]
    assert torch.allclose(whole, alone, atol=1e-5)


def test_an_image_without_a_letter_is_read_as_none():
    head = made(NeighbourHead, shape=REFINING)
    head.ended = -1.0
    assert walk_word(head, states(4)[0][0]).argmax(-1).tolist() == [END]


# MDiff4STR


def test_copies_of_a_word_read_its_image_and_not_each_other():
    head = made(MaskedHead)
    x, there = states(9, 5)
    g = torch.Generator().manual_seed(4)
    canvas = torch.randint(head.mask + 1, (6, 8), generator=g)
    apart = head(canvas, x.repeat_interleave(3, 0), there.repeat_interleave(3, 0))
    assert torch.allclose(head(canvas, x, there), apart, atol=1e-5)


class ScriptedHead(MaskedHead):
    """A head whose laws are a script, pass by pass; it keeps the canvases that it was shown."""

    def __init__(self, passes):
        super().__init__(SHAPE)
        self.passes, self.shown = list(passes), []

    def forward(self, canvas_BN, states_BSW, there_BS):
        self.shown.append(canvas_BN[0].tolist())
        rows = torch.full((1, 8, SHAPE.vocab), -20.0)
        for at, (token, chance) in enumerate(self.passes[len(self.shown) - 1]):
            chance = torch.tensor(chance, dtype=torch.float64)
            rows[0, at] = torch.log((1 - chance) / (SHAPE.vocab - 1))
            rows[0, at, token] = torch.log(chance)
        return rows


def script(*chances, tokens=(3, 4, 5, END, 6, 6, 6, 6)):
    return list(zip(tokens, [*chances, *[0.9] * (8 - len(chances))]))


def test_each_pass_fills_what_is_surer_than_the_mean_up_to_the_first_end():
    mask = SHAPE.vocab
    head = ScriptedHead([script(0.9, 0.5, 0.6, 0.8), script(0.9, 0.7, 0.95, 0.9), script(0.9, 0.9)])
    got = fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, steps=3)
    # Mean 0.7: the first letter and the end; then of two left the surer one; then one is left.
    assert head.shown == [
        [mask] * 8,
        [3, mask, mask, END, mask, mask, mask, mask],
        [3, mask, 5, END, mask, mask, mask, mask],
    ]
    assert got.argmax(-1).tolist()[:4] == [3, 4, 5, END]


def test_what_was_read_stays_as_it_was_when_it_was_filled_in():
    """A letter that is on the canvas keeps the law of the pass before; the others have the last one's."""
    again = script(0.9, 0.9, 0.9, 0.9, tokens=(7, 8, 9, END, 6, 6, 6, 6))
    head = ScriptedHead([script(0.9, 0.5, 0.5, 0.8), again, again])
    got = fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, steps=2)
    assert got.argmax(-1).tolist()[:4] == [3, 8, 9, END]


def test_one_pass_reads_every_letter_by_itself():
    head = made(MaskedHead)
    x, there = states(9)
    alone = head(torch.full((1, 8), head.mask), x, there)[0].log_softmax(-1)
    assert torch.equal(fill_canvas(head, x[0], RNG, steps=1), alone)
    assert torch.equal(head.word_logits(x[0]), fill_canvas(head, x[0], RNG, steps=3))


def test_equally_sure_letters_do_not_stop_the_filling():
    open_N = torch.tensor([False, True, True, True])
    assert commits_above_mean(torch.tensor([0.9, 0.5, 0.5, 0.5]), open_N, RNG).tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert not commits_above_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool), RNG).any()


def test_a_word_without_an_end_is_as_long_as_the_canvas():
    assert first_end(torch.tensor([3, 4, 5])) == 2 and first_end(torch.tensor([3, END, END])) == 1


def test_blocks_are_filled_in_turn_and_all_are_reached():
    opened = [BLOCKS(step, 5, 26) for step in range(5)]
    assert opened == [slice(0, 5), slice(0, 10), slice(0, 15), slice(10, 26), slice(15, 26)]
    assert BLOCKS(0, 2, 26) == slice(0, 26)
    mask = SHAPE.vocab
    tokens = (3, 4, 5, 6, 7, 8, 9, END)
    head = ScriptedHead([script(*[0.5] * 4, *[0.9] * 4, tokens=tokens)] * 8)
    fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, steps=4, policy="block-low-confidence")
    assert head.shown[1] == [3, *[mask] * 7]  # the sure ones lie in later blocks


def test_no_more_passes_run_than_there_are_positions():
    # Among more passes than positions a block would be empty, and its pass would fill nothing.
    tokens = (3, 4, 5, 6, 7, 8, 9, END)
    head = ScriptedHead([script(*[0.5] * 8, tokens=tokens)] * 64)
    fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, steps=64, policy="block-low-confidence")
    assert len(head.shown) <= 8
    assert len(set(map(tuple, head.shown))) == len(head.shown)


@pytest.mark.parametrize(("chance", "kept"), [(0.95, [3, 8, 5, END]), (0.4, [3, 4, 5, END])])
def test_reflection_mends_what_it_is_surer_of(chance, kept):
    first = script(0.9, 0.5, 0.9, 0.9)
    second = script(0.4, chance, 0.4, 0.4, tokens=(9, 8, 9, 9, 6, 6, 6, 6))
    head = ScriptedHead([first, second])
    got = fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, steps=1, reflect=True)
    assert got.argmax(-1).tolist()[:4] == kept
    assert head.shown[1] == [3, 4, 5, END, *[SHAPE.vocab] * 4]


def test_coins_fill_half_of_the_masks_whatever_they_are_sure_of():
    open_N = torch.arange(400) % 2 == 0
    chosen = commits_by_coin(torch.ones(400), open_N, RNG.child_stream("a"))
    assert not chosen[~open_N].any() and 70 < int(chosen.sum()) < 130
    assert torch.equal(chosen, commits_by_coin(torch.zeros(400), open_N, RNG.child_stream("a")))
    assert not torch.equal(chosen, commits_by_coin(torch.ones(400), open_N, RNG.child_stream("b")))


def test_a_random_order_is_that_of_its_stream():
    head = ScriptedHead([script(*[0.6] * 8, tokens=(3, 4, 5, 6, 7, 8, 9, END))] * 40)

    def shown(rng):
        head.shown.clear()
        fill_canvas(head, torch.zeros(4, SHAPE.width), rng, steps=4, policy="random")
        return list(head.shown)

    first = shown(RNG)
    assert first == shown(RNG) != shown(Rng.of_choice(4))
    # Nothing that was filled is opened again.
    for before, after in pairwise(first):
        assert all(b in (SHAPE.vocab, a) for b, a in zip(before, after))


def test_from_left_to_right_it_is_greedy_decoding_of_the_same_network():
    for seed in range(6):
        head = made(MaskedHead, seed)
        x, there = states(9, seed=seed)
        got = fill_canvas(head, x[0], RNG, policy="left-to-right").argmax(-1).tolist()
        canvas = torch.full((1, 8), head.mask)
        for at in range(8):
            token = int(head(canvas, x, there)[0, at].argmax())
            assert got[at] == token
            if token == END:
                break
            canvas[0, at] = token


def test_a_cloze_reads_each_letter_beside_all_others():
    mask = SHAPE.vocab
    tokens = (3, 4, 5, END, 6, 6, 6, 6)
    second = script(0.9, 0.9, 0.9, 0.9, tokens=(7, 4, 5, END, 6, 6, 6, 6))
    sooner = script(0.9, 0.9, 0.9, 0.9, tokens=(7, 4, END, END, 6, 6, 6, 6))
    head = ScriptedHead([script(0.9, 0.9, 0.9, 0.9, tokens=tokens), second, second, sooner])
    got = fill_canvas(head, torch.zeros(4, SHAPE.width), RNG, policy="cloze").argmax(-1).tolist()
    # What was read anew stands at once, and a word that ends sooner is over.
    assert head.shown == [
        [mask] * 8,
        [mask, 4, 5, END, *[mask] * 4],
        [7, mask, 5, END, *[mask] * 4],
        [7, 4, mask, END, *[mask] * 4],
    ]
    assert got[:3] == [7, 4, END]
    # A network that looks at the image alone reads what it read at first.
    blind = made(MaskedHead)
    for layer in blind.own:
        layer.v.weight.zero_()
        layer.v.bias.zero_()
    blind.tokens.weight[:] = blind.tokens.weight[blind.mask]
    x, _ = states(9)
    once = fill_canvas(blind, x[0], RNG, steps=1)
    length = first_end(once.argmax(-1)) + 1
    again = fill_canvas(blind, x[0], RNG, policy="cloze")
    assert torch.allclose(again[:length], once[:length], atol=1e-5)
