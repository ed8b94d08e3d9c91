"""Readers of words in images are trained, saved and read back: what was learned is what decodes."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image as Pictures

from polydec import Image, Sampling, generate, load
from polydec.base.errors import FileError, PolydecError
from polydec.core.types import TokenVocabulary
from polydec.lab.train import reading_losses
from polydec.lab.train.data import held_out
from polydec.lab.train.reader import encode_word, train_reader
from polydec.lab.train.reading_losses import (
    PATTERNS,
    denoising_loss,
    draw_masked_places,
    replacement_loss,
)
from polydec.lab.train.specs.reader import ReaderSpec
from polydec.lab.train.specs.word_reader import WordReaderSpec
from polydec.lab.train.word_data import DrawnWords, read_word_folder
from polydec.lab.train.word_images import (
    GLYPHS,
    HEIGHT,
    LETTERS,
    ImageFaults,
    draw_word,
    draw_word_image,
)
from polydec.lab.train.word_reader import LEARNED, TrainableWordReader, train_word_reader
from polydec.models.formats.images import StripShape
from polydec.models.formats.seq2seq import T5Shape
from polydec.models.learned.kinds import word_reader
from polydec.models.nets.masked_head import MaskedHead
from polydec.models.nets.neighbour_head import NeighbourHead
from polydec.models.nets.reading_heads import HEADS
from polydec.models.nets.reading_layers import ReadingShape

BARE = ImageFaults(0, 0, 0, 0)
SMALL = {"steps": 3, "rows": 4, "least": 2, "most": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("reader")
    train_reader(ReaderSpec(str(at / "base"), width=32, encoder=1, decoder=1, **SMALL))
    return at


# images


def test_letters_are_drawn_as_they_are(seed=3):
    rng = np.random.default_rng(seed)
    image = draw_word_image("HI", BARE, rng)
    ink = 1 - image.astype(float) / 255
    rows, columns = ink.nonzero()
    assert image.shape[0] == HEIGHT and set(image.flatten()) == {0, 255}
    word = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    assert np.array_equal(word, np.concatenate([GLYPHS["H"], np.zeros((7, 1)), GLYPHS["I"]], 1))
    assert len({glyph.tobytes() for glyph in GLYPHS.values()}) == 26 == len(LETTERS)


def test_each_fault_changes_what_it_says():
    def drawn(**faults):
        return draw_word_image(
            "READER", ImageFaults(**{**vars(BARE), **faults}), np.random.default_rng(5)
        )

    plain = drawn()
    ink = (255 - plain.astype(int)).sum()
    sheared = drawn(shear=0.3)
    # A row keeps its ink where it goes; a bar takes some, and blur spreads what there is.
    assert np.allclose((255.0 - sheared).sum(1), (255.0 - plain).sum(1), atol=8)
    assert not np.array_equal(sheared, plain)
    assert abs((255 - drawn(blur=0.9).astype(int)).sum() - ink) < 0.02 * ink
    taken = [
        ink
        - (
            255
            - draw_word_image("READER", ImageFaults(0, 0, 0, 8), np.random.default_rng(s)).astype(
                int
            )
        ).sum()
        for s in range(6)
    ]
    assert max(taken) > 0
    assert not np.array_equal(drawn(noise=0.2), plain)


def test_words_and_letters_that_cannot_be_drawn():
    rng = np.random.default_rng(1)
    words = [draw_word(rng, 3, 5) for _ in range(200)]
    assert {len(w) for w in words} == {3, 4, 5} and len(set(words)) > 190
    with pytest.raises(PolydecError, match=r"^word 'ab' has the letter 'a': it must be of A to Z"):
        draw_word_image("ab", BARE, rng)


def test_held_out_words_are_never_drawn_to_learn_from():
    words = DrawnWords(3, 6, BARE)
    rng = np.random.default_rng(2)
    assert not any(held_out(x.word) for x in words.draw_examples(50, rng, unseen=False))
    assert all(held_out(x.word) for x in words.draw_examples(50, rng, unseen=True))


def test_images_that_are_drawn_once_are_learned_from_again():
    rng = np.random.default_rng(2)
    drawn = [x.strip.pixels for x in DrawnWords(3, 6, BARE, 5).draw_examples(60, rng, False)]
    assert len(set(drawn)) == 5
    fresh = DrawnWords(3, 6, BARE).draw_examples(60, rng, False)
    assert len({x.strip.pixels for x in fresh}) > 50
    # Another seed has other ones, and what is measured is new.
    other = DrawnWords(3, 6, BARE, 5, 1).draw_examples(60, rng, False)
    assert not {x.strip.pixels for x in other} & set(drawn)
    unseen = DrawnWords(3, 6, BARE, 5).draw_examples(30, rng, True)
    assert len({x.strip.pixels for x in unseen}) > 20 and all(held_out(x.word) for x in unseen)


# training


def test_a_trained_reader_is_loaded_and_reads(trained):
    model = load(str(trained / "base"), draft=None)
    config = json.loads((trained / "base" / "config.json").read_text())
    assert config["model_type"] == "polydec_reader" and config["strip_height"] == HEIGHT
    file = trained / "word.png"
    Pictures.fromarray(draw_word_image("AB", BARE, np.random.default_rng(1))).save(file)
    done = generate(model, "", source=Image(file), method="plain", max_tokens=4)
    assert set(done.text) <= set(LETTERS)


def test_training_computes_what_the_saved_model_does(trained):
    """The network that is trained and the one that decodes give the same laws."""
    from polydec.core.scheduler import run_coroutines
    from polydec.core.types import Draft, ScoreRequest
    from polydec.lab.train import reader

    spec = ReaderSpec(str(trained / "base"), width=32, encoder=1, decoder=1, **SMALL)
    run = reader._course(spec)
    state = torch.load(trained / "base" / "state.pt", weights_only=False)
    run.network.load_state_dict(state["network"])
    words = DrawnWords(3, 8, BARE).draw_examples(3, np.random.default_rng(4), unseen=False)
    logits, right = reader.score_words(run.network, words, LETTERS)
    law = load(str(trained / "base"), draft=None).checkpoint.lm

    async def rows(x):
        ids = encode_word(x.word, LETTERS)
        session = law.law_given_source(x.strip).open_session((0,))
        scores = await session.score_draft(Draft.chain_draft(0, ids[:-1]), ScoreRequest())
        session.close()
        return torch.stack([scores.log_weights(i) for i in range(len(ids))]).log_softmax(-1)

    got = torch.cat(run_coroutines([rows(x) for x in words]))
    assert float((got - logits.detach().log_softmax(-1)).abs().max()) < 1e-4 and len(right) == len(
        got
    )


@pytest.mark.parametrize("reading", HEADS)
def test_one_pass_readers_are_trained_and_saved(trained, reading):
    out = trained / reading
    spec = WordReaderSpec(str(out), str(trained / "base"), reading, longest=6, **SMALL)
    result = train_word_reader(spec)
    made = word_reader.load(out)
    assert made.reading == reading and made.shape.longest == 6
    assert result["held_out_right"] is not None
    # The encoder began with the target's weights, and has learned with the head.
    base = load(str(trained / "base"), draft=None)
    assert made.tensors.keys() >= {"strips.into.weight"} and base.name
    file = trained / "word.png"
    Pictures.fromarray(draw_word_image("AB", BARE, np.random.default_rng(1))).save(file)
    model = load(str(trained / "base"), draft=None, trained=[str(out)])
    fields = {"source": Image(file), "max_tokens": 8, "sampling": Sampling(temperature=0.0)}
    assert generate(model, "", method=reading, **fields).text is not None
    same = generate(model, "", method="read-ahead", **fields).choices[0].token_ids
    assert same == generate(model, "", method="plain", **fields).choices[0].token_ids


@pytest.mark.parametrize("reading", HEADS)
def test_a_word_that_is_longer_than_a_head_is_refused(trained, tmp_path, reading):
    rng = np.random.default_rng(1)
    rows = list[str]()
    for word in ("AB", "ABA", "ABABABABA"):
        Pictures.fromarray(draw_word_image(word, BARE, rng)).save(tmp_path / f"{word}.png")
        rows.append(json.dumps({"image": f"{word}.png", "text": word}))
    (tmp_path / "labels.jsonl").write_text("\n".join(rows))
    spec = WordReaderSpec(
        str(tmp_path / "x"), str(trained / "base"), reading, str(tmp_path), longest=8, **SMALL
    )
    with pytest.raises(
        PolydecError, match=r"^longest is 8: data has a word of 9 letters, so raise it"
    ):
        train_word_reader(spec)


@pytest.mark.parametrize(("stride", "window"), [(9, 4), (4, 7)])
def test_a_reader_whose_windows_do_not_fit_is_refused_when_it_is_read(tmp_path, stride, window):
    shape = word_reader.WordReaderShape(
        T5Shape(8, 8, 4, 8, 1, 1), StripShape(8, stride, window, 64), 6, 8
    )
    tensors = word_reader.tensor_shapes(shape, "cppd")
    reader = word_reader.WordReader(
        TokenVocabulary(8, frozenset(), "x"),
        "cppd",
        shape,
        {name: torch.zeros(size) for name, size in tensors.items()},
    )
    word_reader.save(tmp_path, reader, {})
    with pytest.raises(FileError, match=f"strip_window is {window}"):
        word_reader.load(tmp_path)


def test_a_reader_for_another_model_is_refused(trained, tmp_path):
    import micro

    other = micro.write(tmp_path / "other")
    with pytest.raises(PolydecError, match=r"it must be a model that reads images, as"):
        train_word_reader(WordReaderSpec(str(tmp_path / "x"), str(other), "cppd", **SMALL))


def test_a_folder_of_labelled_images_is_learned_from(tmp_path):
    rng = np.random.default_rng(1)
    words = [draw_word(rng, 3, 5) for _ in range(8)]
    rows = list[str]()
    for word in words:
        Pictures.fromarray(draw_word_image(word, BARE, rng)).save(tmp_path / f"{word}.png")
        rows.append(json.dumps({"image": f"{word}.png", "text": word}))
    (tmp_path / "labels.jsonl").write_text("\n".join(rows))
    read = read_word_folder(str(tmp_path))
    assert {x.word for x in (*read.learned, *read.unseen)} == set(words)
    assert set(read.known_letters) == set("".join(words))
    train_reader(ReaderSpec(str(tmp_path / "out"), str(tmp_path), steps=2, rows=4, width=32))
    assert load(str(tmp_path / "out"), draft=None).checkpoint.lm.vocab.size == 2 + len(
        read.known_letters
    )


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("no json", "labels.jsonl, line 1 is no JSON object"),
        ('{"image": "a.png"}', "labels.jsonl, line 1 has no text"),
        ('{"image": "../a.png", "text": "A"}', "labels.jsonl, line 1 has the image '../a.png'"),
        ('{"image": "a.png", "text": "A"}', "file "),
        ("[" * 100_000, "labels.jsonl, line 1 is no JSON object"),
        (
            '{"image": "a.png", "text": "\\ud800"}',
            "text of labels.jsonl, line 1 holds half a character",
        ),
    ],
)
def test_damaged_labels_are_one_sentence(tmp_path, row, said):
    (tmp_path / "labels.jsonl").write_text(row + "\n")
    with pytest.raises(PolydecError) as refused:
        read_word_folder(str(tmp_path))
    assert str(refused.value).startswith(said)


# losses


def test_masks_have_six_patterns_and_leave_something_to_read():
    rng = np.random.default_rng(1)
    drawn = {tuple(draw_masked_places(6, rng, PATTERNS).tolist()) for _ in range(3000)}
    assert len(PATTERNS) == 6 and all(any(masked) for masked in drawn)
    suffixes = {tuple(i >= s for i in range(6)) for s in range(1, 6)}
    prefixes = {tuple(i < s for i in range(6)) for s in range(1, 6)}
    single = {tuple(i == s for i in range(6)) for s in range(6)}
    assert drawn >= suffixes | prefixes | single | {(True,) * 6}
    for pattern in PATTERNS:
        for length in range(3, 9):
            assert all(pattern(length, rng).any() for _ in range(20))
    # Of the shortest words only all, and any, are left.
    assert all(draw_masked_places(1, rng, PATTERNS).tolist() == [True] for _ in range(20))


def test_one_of_six_patterns_is_drawn():
    drawn = list[int]()
    watched = [lambda length, rng, i=i: drawn.append(i) for i in range(6)]
    rng = np.random.default_rng(1)
    for _ in range(600):
        draw_masked_places(5, rng, watched)
    assert all(60 < drawn.count(i) < 140 for i in range(6))


def test_the_denoising_loss_of_a_head_that_knows_nothing():
    right = torch.tensor([[3, 4, 1, 12, 12]])
    masked = torch.tensor([[True, True, True, False, False]])
    got = denoising_loss(torch.zeros(1, 5, 12), right, masked, [3])
    assert float(got) == pytest.approx(3 / 4 * math.log(12))
    # Half as many masks count twice as much each.
    one = torch.tensor([[True, False, False, False, False]])
    assert float(denoising_loss(torch.zeros(1, 5, 12), right, one, [3])) == pytest.approx(
        float(got)
    )


def test_wrong_letters_stand_on_the_canvas_and_right_ones_are_learned():
    shown = list[torch.Tensor]()

    class Watched(MaskedHead):
        def forward(self, canvas_BN, states_BSW, there_BS):
            shown.append(canvas_BN)
            return super().forward(canvas_BN, states_BSW, there_BS)

    head = Watched(ReadingShape(12, 8, 2, 7, 16))
    right = torch.full((64, 8), head.mask)
    right[:, :5] = torch.tensor([3, 4, 5, 6, 1])
    x, there = torch.randn(64, 4, 8), torch.ones(64, 4, dtype=torch.bool)
    loss = replacement_loss(head, x, there, right, np.random.default_rng(1))
    (canvas,) = shown
    wrong = canvas[:, :5] != right[:, :5]
    # About half of the letters are replaced, and nothing behind the word.
    assert 0.3 < float(wrong.float().mean()) < 0.6 and bool((canvas[:, 5:] == head.mask).all())
    assert loss.requires_grad
    both = reading_losses.masked_loss(
        head, x, there, [(3, 4, 5, 6, 1)] * 64, np.random.default_rng(1)
    )
    assert len(shown) == 3 and bool(both > loss)  # once with masks, once with wrong letters


@pytest.mark.parametrize("reading", HEADS)
def test_each_loss_falls_on_a_batch_that_is_learned_by_heart(reading):
    torch.manual_seed(1)
    shape = ReadingShape(12, 16, 2, 7, 32)
    head = HEADS[reading](shape)
    words = [(3, 4, 5, 1), (6, 7, 1), (8, 9, 10, 11, 2, 1)]
    x, there = torch.randn(3, 10, 16), torch.ones(3, 10, dtype=torch.bool)
    step = torch.optim.Adam(head.parameters(), 1e-2)
    loss_of = LEARNED[reading](WordReaderSpec("x", "y", reading))
    losses = list[float]()
    for at in range(60):
        loss = loss_of(head, x, there, words, np.random.default_rng(at))
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(float(loss.detach()))
    assert min(losses[-5:]) < 0.5 * losses[0]


def test_what_weighs_nothing_is_left_out_of_a_loss():
    words = [(3, 4, 5, 1), (6, 7, 1)]
    x, there = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool)

    def gradients(reading, loss_of, **options):
        torch.manual_seed(1)
        head = HEADS[reading](ReadingShape(12, 16, 2, 7, 32))
        loss = loss_of(head, x, there, words, np.random.default_rng(1), **options)
        loss.backward()
        return loss, {n for n, p in head.named_parameters() if p.grad is not None and p.grad.any()}

    counting = reading_losses.counting_loss
    whole, bare = gradients("cppd", counting), gradients("cppd", counting, auxiliary=0.0)
    assert bare[0] < whole[0] and whole[1] - bare[1] >= {"count.weight", "occupied.weight"}
    masked = reading_losses.masked_loss
    whole, bare = gradients("mdiff4str", masked), gradients("mdiff4str", masked, replaced=0.0)
    assert bare[0] < whole[0]
    drawn = list[int]()

    def watched(length, rng):
        drawn.append(length)
        return np.ones(length, dtype=bool)

    gradients("mdiff4str", masked, patterns=(watched,))
    assert drawn == [4, 3]


def test_as_many_letters_are_counted_as_a_word_has_and_some_absent_ones():
    words = [(3, 4, 3, 1), (6, 1)]
    every = reading_losses.counted_classes(words, 12, 0, np.random.default_rng(1))
    assert every.tolist() == [list(range(12))] * 2
    few = reading_losses.counted_classes(words, 12, 2, np.random.default_rng(1)).tolist()
    assert [len(set(row)) for row in few] == [5, 5]
    assert set(few[0]) >= {1, 3, 4} and set(few[1]) >= {1, 6}
    # Other absent ones with each draw, and no more than there are.
    drawn = [reading_losses.counted_classes(words, 12, 2, np.random.default_rng(s)) for s in (1, 2)]
    assert not torch.equal(*drawn)
    assert reading_losses.counted_classes(words, 12, 99, np.random.default_rng(1)).shape == (2, 12)


def test_letters_that_are_not_drawn_are_not_counted():
    x, there = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool)
    torch.manual_seed(1)
    head = HEADS["cppd"](ReadingShape(12, 16, 2, 7, 32))
    words = [(3, 4, 3, 1), (3, 4, 1)]
    rng = np.random.default_rng(1)
    reading_losses.counting_loss(head, x, there, words, rng, absent=1).backward()
    asked = head.classes.grad.abs().sum(1) > 0
    assert {1, 3, 4} <= set(asked.nonzero().flatten().tolist()) and int(asked.sum()) < 6


def test_each_copy_of_a_word_is_masked_and_spoilt_apart():
    shown = list[torch.Tensor]()

    class Watched(MaskedHead):
        def forward(self, canvas_CN, states_BSW, there_BS):
            shown.append(canvas_CN)
            return super().forward(canvas_CN, states_BSW, there_BS)

    torch.manual_seed(1)
    head = Watched(ReadingShape(12, 16, 2, 7, 32))
    x, there = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool)
    words = [(3, 4, 5, 6, 1), (8, 9, 10, 7, 1)]
    rng = np.random.default_rng(3)
    reading_losses.masked_loss(head, x, there, words, rng, copies=3).backward()
    masks, wrong = shown
    assert masks.shape == wrong.shape == (6, 8)
    for canvas in (masks[:3], masks[3:], wrong[:3], wrong[3:]):
        assert len({tuple(row) for row in canvas.tolist()}) > 1
    # What is left of the first word stands on its own three canvases.
    assert set(masks[:3].flatten().tolist()) <= {*words[0], head.mask}
    assert set(masks[3:].flatten().tolist()) <= {*words[1], head.mask}


def test_a_walk_that_never_ends_is_pulled_to_its_end():
    torch.manual_seed(1)
    head = NeighbourHead(ReadingShape(12, 16, 2, 7, 32))
    maps = head(torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool))
    walk = head.walk_steps(maps, 4).detach()
    walk[..., -1] = 1e-12
    walk.requires_grad_()
    words = [(3, 4, 5, 1), (6, 7, 1)]
    loss, _ = reading_losses._walk_loss(head, maps, walk, words, 0.01)
    heavier, _ = reading_losses._walk_loss(head, maps, walk, words, 1.0)
    assert float((heavier - loss).detach()) == pytest.approx(0.99 * -math.log(1e-12), rel=1e-4)
    (grad,) = torch.autograd.grad(loss, walk)
    # By as much for each word as by a mass that is not so small: the logarithm's slope.
    pulled = (grad[:, :, -1] * 1e-12 * -2 / 0.01).round(decimals=2)
    assert pulled.tolist() == [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]]


def test_the_matrices_of_layers_are_those_that_muon_takes():
    shape = word_reader.WordReaderShape(
        T5Shape(12, 32, 32, 64, 1, 1), StripShape(8, 4, 8, 64), 6, 7
    )
    network = TrainableWordReader(shape, "cppd", 0)
    taken = set(map(id, network.reading_matrices))
    named = {name for name, p in network.named_parameters() if id(p) in taken}
    assert "encoder.block.0.layer.0.SelfAttention.q.weight" in named
    assert "head.counting.0.into.weight" in named
    assert not any("relative" in n or "classes" in n or "letters" in n for n in named)


def test_walks_over_refined_images_are_learned_once_the_first_one_reads(monkeypatch):
    torch.manual_seed(1)
    head = NeighbourHead(ReadingShape(12, 16, 2, 7, 32, rounds=2))
    words = [(3, 4, 5, 1), (6, 7, 1)]
    x, there = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool)

    def learned():
        head.zero_grad()
        loss = reading_losses.neighbour_loss(head, x, there, words, np.random.default_rng(1))
        loss.backward()
        parts = head.refiner.parameters()
        return all(p.grad is not None and bool(p.grad.any()) for p in parts)

    monkeypatch.setattr(reading_losses, "READS", 0.0)
    assert not learned()
    monkeypatch.setattr(reading_losses, "READS", 99.0)
    assert learned()


def test_a_reader_with_rounds_is_saved_and_read_by_as_many_as_are_asked_for(trained):
    out = trained / "rounds"
    train_word_reader(
        WordReaderSpec(str(out), str(trained / "base"), "lister", longest=6, rounds=2, **SMALL)
    )
    made = word_reader.load(out)
    assert made.shape.rounds == 2 and any("refiner" in name for name in made.tensors)
    file = trained / "word.png"
    Pictures.fromarray(draw_word_image("AB", BARE, np.random.default_rng(1))).save(file)
    model = load(str(trained / "base"), draft=None, trained=[str(out)])
    fields = {"source": Image(file), "max_tokens": 8, "method": "lister", "logprobs": 1}

    def chances(**options):
        got = generate(model, "", **fields, options=options)
        return [note.model_logp for note in got.choices[0].logprobs]

    assert chances() == chances(rounds=2) != chances(rounds=0)
    bare = trained / "lister-bare"
    train_word_reader(WordReaderSpec(str(bare), str(trained / "base"), "lister", **SMALL))
    model = load(str(trained / "base"), draft=None, trained=[str(bare)])
    assert generate(model, "", **fields, options={"rounds": 0}).text is not None
    with pytest.raises(PolydecError, match=r"^rounds is 1: this reader was trained without any"):
        generate(model, "", **fields, options={"rounds": 1})


def test_a_word_in_an_image_is_read_together_with_a_language_model(trained):
    file = trained / "story.png"
    Pictures.fromarray(draw_word_image("RIVER", BARE, np.random.default_rng(1))).save(file)
    model = load(str(trained / "base"), draft="zoo:tiny-draft", ngrams=None)

    def read(**options):
        fields = {"source": Image(file), "max_tokens": 6, "method": "gfd"}
        return generate(model, "", **fields, options={"width": 5, **options}).text

    alone = read(share=0.0)
    assert alone == read(share=0.0, before="down to the ") and set(alone) <= set(LETTERS)
    # The letters that the language model finds likely behind one another are others.
    assert read(share=0.9, lagging=False) != alone


def test_specs_keep_their_ranges():
    for name, value, reading in (
        ("rounds", 2, "lister"),
        ("ending", 0.01, "lister"),
        ("distances", True, "lister"),
        ("joins", 2, "cppd"),
        ("absent", 3, "cppd"),
        ("copies", 3, "mdiff4str"),
    ):
        WordReaderSpec("x", "y", reading, **{name: value})
        other = "cppd" if reading == "lister" else "lister"
        with pytest.raises(
            PolydecError, match=rf"^{name} is {value}: it is read with --reading {reading} alone"
        ):
            WordReaderSpec("x", "y", other, **{name: value})
    with pytest.raises(PolydecError, match=r"^width is 40: it must be a multiple of 32"):
        ReaderSpec("x", width=40)
    with pytest.raises(PolydecError, match=r"^least is 5: it must not exceed most"):
        ReaderSpec("x", least=5, most=4)
    with pytest.raises(PolydecError, match=r"^least is 3, most 8 and longest 7"):
        WordReaderSpec("x", "y", longest=7)
