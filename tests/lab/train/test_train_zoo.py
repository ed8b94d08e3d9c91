"""The weights that travel in the package, against the data that they have not seen."""

import numpy as np
import pytest
import torch

from polydec import Image, api
from polydec.lab.train.data import KINDS, split_documents
from polydec.lab.train.evaluate import bits_per_byte, ngram_bits_per_byte
from polydec.lab.train.lm import LMSpec, encode_corpus
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.ngram import NGram
from polydec.lab.train.problems import KINDS as PROBLEMS
from polydec.lab.train.problems import draw_problem, is_right_solution
from polydec.lab.train.scenes import draw_questions, draw_scene, draw_scene_pixels
from polydec.models.formats import zoo
from polydec.models.sessions import checkpoint
from polydec.models.text.picture_view import DrawnPicture
from project_paths import DATA_FOLDER

torch.set_num_threads(1)
DATA = DATA_FOLDER


@pytest.mark.parametrize(
    ("name", "least", "most"), [("zoo:tiny", 2.5e6, 3.5e6), ("zoo:tiny-draft", 0.2e6, 0.4e6)]
)
def test_sizes(name, least, most):
    network = load_directory(name)
    assert least < sum(p.numel() for p in network.parameters()) < most
    assert network.s.context == 1024 and network.s.vocab == 4096


def test_weights_stay_small():
    size = sum(
        f.stat().st_size
        for e in zoo.zoo_entries()
        if e.package is None and e.path
        for f in e.path.iterdir()
    )
    assert 5e6 < size < 60e6


@pytest.mark.parametrize("name", ["zoo:tiny", pytest.param("zoo:smollm2", marks=pytest.mark.slow)])
def test_drafts_fit_their_targets(name):
    if not zoo.find_zoo_entry(name).here:
        pytest.skip(f"{name} is not installed")
    target, draft = (checkpoint.load_bundle(n, dtype="float32").lm for n in (name, f"{name}-draft"))
    target.vocab.require_same(draft.vocab, f"{name}-draft")
    assert draft.network.cost < 0.11 * target.network.cost


def test_reasoner_is_right_about_half_of_the_time_and_its_reward_tells_right_solutions_from_wrong_ones():
    lm = api.load("zoo:reasoner", trained=["zoo:reasoner-prm"], threads=1)
    assert 5e6 <= sum(p.numel() for p in load_directory("zoo:reasoner").parameters()) <= 10e6
    asked = [draw_problem(kind, 41, i, unseen=True) for kind in PROBLEMS for i in range(24)]
    engine, greedy = api.Engine(lm, max_running=24), lm.sampling_with(temperature=0.0)
    tickets = [
        engine.submit(
            p.question, method="best-of-n", options={"tries": 1}, max_tokens=96, sampling=greedy
        )
        for p in asked
    ]
    tickets += [
        engine.submit(p.question, method="plain", max_tokens=96, sampling=greedy) for p in asked
    ]
    engine.run(tickets)
    done = [t.completion() for t in tickets]
    right = [is_right_solution(p, d.text) for p, d in zip(asked, done[len(asked) :], strict=True)]
    assert 0.25 < sum(right) / len(right) < 0.85
    for kind, share in (
        ("make", 0.75),
        (None, 0.8),
    ):  # of one kind, and of all together (docs/models.md)
        drawn = [
            (d.choices[0].score, is_right_solution(p, d.text))
            for p, d in zip(asked, done)
            if kind in (None, p.kind)
        ]
        pairs = [a > b for a, good in drawn if good for b, bad in drawn if not bad]
        assert sum(pairs) > share * len(pairs) > 0, kind


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the directory of data is absent (POLYDEC_DATA)")
def test_tiny_beats_the_5_gram_on_every_kind_of_text():
    spec, network = LMSpec("unused"), load_directory("zoo:tiny")
    tokenizer = checkpoint.load_bundle("zoo:tiny").text.tokenizer
    parts = {
        k: split_documents(DATA, k, int(mb * 1e6), 60_000) for k, mb in zip(KINDS, spec.train_mb)
    }
    corpus = encode_corpus(tokenizer, parts)
    baseline = NGram.train_counts([corpus.train[k] for k in KINDS], 4096, 5)
    for kind in KINDS:
        held, size = corpus.unseen[kind], corpus.held_bytes[kind]
        assert bits_per_byte(network, held, size, context=1024) < ngram_bits_per_byte(
            baseline, held, size
        )


def test_vision_answers_questions_about_scenes_that_it_has_not_seen():
    """Of the kinds that it answers well, and not without looking."""
    lm = api.load("zoo:vision", threads=1)
    rng = np.random.default_rng(5)
    engine, greedy = api.Engine(lm, max_running=24), lm.sampling_with(temperature=0.0)
    scenes = [draw_scene(rng, unseen=True) for _ in range(12)]
    images = [Image(DrawnPicture(draw_scene_pixels(scene, rng)).png_file) for scene in scenes]
    asked = [
        [q for q in draw_questions(scene, rng) if q.kind in ("caption", "thing", "region")]
        for scene in scenes
    ]
    shares = []
    # Each scene with its own image, and with the next one's.
    for shown in (images, images[1:] + images[:1]):
        tickets = [
            (q.answer, engine.submit(q.asked, source=image, max_tokens=40, sampling=greedy))
            for image, questions in zip(shown, asked, strict=True)
            for q in questions
        ]
        while engine.step():
            pass
        answers = [(want, t.completion().choices[0].text.strip()) for want, t in tickets]
        shares.append(sum(want == got for want, got in answers) / len(answers))
    assert shares[0] > 0.6 and shares[1] < 0.2, shares
