"""X-Decoder as a method: captions with and without what is held, regions, names and phrases with their masks, and refusals."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from polydec import Ask, Engine, Image, Regex, Sampling, generate, load
from polydec.base.errors import FileError, MissingError, RequestError
from polydec.cli.main import main
from polydec.core.types import TokenVocabulary
from polydec.methods.speculative.loop.query_decoding import region_cells
from polydec.models.learned.kinds import query_decoder
from polydec.models.learned.kinds.query_decoder import (
    QueryDecoder,
    find_named_objects,
    find_phrase,
    random_tensors,
)
from polydec.models.nets.query_decoder import QuerySizes
from polydec.request.ask import plan_request
from vision_checkpoints import file_of, picture, write_llava

QUESTION = "Who followed the boat?"
LATENTS = 5
"""Object queries, and the image's."""
LONGEST = 12
NAMES = ((7,), (9, 11), (12,), (13, 14, 15), (20,), (21, 22))


def decoder_of(vocab, spread=4.0, **more):
    sizes = QuerySizes(vocab.size, 32, 5, 5, 16, 2, 3, LATENTS - 1, LONGEST, 1)
    fields = {"start": 5, "end": 1, "cell": 2, "names": NAMES}
    fields |= {"tensors": random_tensors(sizes, 11, spread), "sizes": sizes, **more}
    return QueryDecoder(vocab, **fields)


def with_decoder(lm, decoder):
    return type(lm)(lm.checkpoint, None, (decoder,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("queries")
    write_llava(root / "m")
    (root / "a.png").write_bytes(file_of(picture()))
    return root


@pytest.fixture(scope="module")
def plain(folder):
    return load(str(folder / "m"), draft=None, dtype="float32")


@pytest.fixture(scope="module")
def lm(plain):
    return with_decoder(plain, decoder_of(plain.checkpoint.lm.vocab))


def asked(image=None, **more):
    fields = {"method": "x-decoder", "max_tokens": 20, "source": Image(file_of(image or picture()))}
    return Ask(QUESTION, **{**fields, **more})


def vectors_of(lm, image=None):
    """Of an image, as the model's tower makes them."""
    plan = plan_request(lm, asked(image, method="plain"))
    target = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
    session = target.open_session(plan.request.prompt)
    return lm.artefacts[0].last_image(session.text_vectors())


def greedy_caption(lm, region_1F=None, image=None):
    """What the whole decoder writes, computed anew for each token."""
    decoder, vector_PH = lm.artefacts[0], vectors_of(lm, image)
    caption = [decoder.start]
    with torch.inference_mode():
        while len(caption) <= LONGEST and (len(caption) == 1 or caption[-1] != decoder.end):
            logit_V = decoder.query_network.recompute_token(vector_PH, caption, region_1F)
            caption.append(int(logit_V.argmax()))
    return tuple(caption[1:])


def test_cached_captions_equal_those_of_the_published_way(lm):
    texts = set()
    for seed in range(4):
        image = picture(20, 20, seed)
        cached, computed = (
            generate(lm, asked(image, options={"cached": cached})) for cached in (True, False)
        )
        assert cached.token_ids == computed.token_ids
        # The buffer bounds a caption, behind which its end stands.
        want = greedy_caption(lm, image=image)
        assert cached.token_ids == (want if want[-1] == 1 else (*want, 1))
        texts.add(cached.token_ids)
        # Latent queries once and a query a token, or all of them and the whole buffer for each.
        count = len(want)
        assert cached.metrics["query_rows"] == LATENTS + count
        assert computed.metrics["query_rows"] == (LATENTS + LONGEST) * count
    assert len(texts) > 1 and max(len(set(text)) for text in texts) > 2
    assert cached.method["guarantee"] == "approximate"


def test_a_caption_ends_at_its_end_and_where_the_request_says(plain):
    vocab = plain.checkpoint.lm.vocab
    first = greedy_caption(with_decoder(plain, decoder_of(vocab)))
    # The second word of that caption ends one.
    ends = with_decoder(plain, decoder_of(replace(vocab), end=first[1]))
    stopped = generate(ends, asked(stop_token_ids=(first[1],)))
    assert stopped.token_ids == first[:2] and stopped.finish_reason == "stop"
    cut = generate(ends, asked(max_tokens=1))
    assert cut.token_ids == first[:1] and cut.finish_reason == "length"


def test_a_region_is_what_a_caption_is_about(lm):
    region_1F = region_cells((0, 4, 5, 20), (10, 10), 2)
    # Cells of two pixels: columns 0 to 2, rows 2 to 9.
    assert region_1F.view(10, 10).nonzero().amin(0).tolist() == [2, 0]
    assert region_1F.view(10, 10).nonzero().amax(0).tolist() == [9, 2]
    assert int(region_1F.sum()) == 24
    want = greedy_caption(lm, region_1F)
    assert want != greedy_caption(lm)
    for cached in (True, False):
        answer = generate(lm, asked(options={"region": "0,4,5,20", "cached": cached}))
        assert answer.token_ids[: len(want)] == want and not answer.image_masks


def test_names_that_are_found_are_written_with_their_masks(lm):
    decoder = lm.artefacts[0]
    with torch.inference_mode():
        found = find_named_objects(decoder.query_network, vectors_of(lm), decoder.names)
    assert len(found) > 1
    answer = generate(lm, asked(options={"names": "all"}))
    written = [decoder.names[one.name] for one in found]
    assert answer.token_ids == (*(token for name in written for token in name), decoder.end)
    # Each at the last token of its name.
    places = [sum(map(len, written[: at + 1])) - 1 for at in range(len(written))]
    assert [mask.place for mask in answer.image_masks] == places
    for mask, one in zip(answer.image_masks, found, strict=True):
        torch.testing.assert_close(mask.logit_HW, one.logit_HW)
        assert mask.patch == 2 and mask.logit_HW.shape == (10, 10)
    # An answer that is cut off has the masks of what it has.
    cut = generate(lm, asked(options={"names": "all"}, max_tokens=places[0] + 1))
    assert [mask.place for mask in cut.image_masks] == places[:1]


def test_any_names_may_be_given(lm):
    decoder = lm.artefacts[0]
    spelled = [lm.encode(name, special=False) for name in ("boat", "grey fox")]
    with torch.inference_mode():
        found = find_named_objects(decoder.query_network, vectors_of(lm), spelled)
    answer = generate(lm, asked(options={"names": "boat| grey fox |"}))
    want = [token for one in found for token in spelled[one.name]]
    assert want and answer.token_ids == (*want, decoder.end)[: len(answer.token_ids)]


def test_a_phrase_gets_its_mask(lm):
    decoder = lm.artefacts[0]
    phrase = lm.encode("the boat", special=False)
    with torch.inference_mode():
        found = find_phrase(decoder.query_network, vectors_of(lm), phrase)
    answer = generate(lm, asked(options={"refer": "the boat"}))
    assert answer.token_ids == (*phrase, decoder.end)
    (mask,) = answer.image_masks
    torch.testing.assert_close(mask.logit_HW, found.logit_HW)
    assert mask.place == len(phrase) - 1
    assert answer.metrics["query_rows"] == LATENTS - 1


def test_the_language_model_does_not_run(lm, monkeypatch):
    monkeypatch.setattr(lm.network, "forward", lambda _: pytest.fail("a pass ran"))
    for options in ({}, {"names": "all"}, {"refer": "boat"}):
        assert generate(lm, asked(options=options)).token_ids


def test_all_choices_are_one_answer_in_any_company(lm):
    alone = generate(lm, asked(n=2, logprobs=3, sampling=Sampling(temperature=2.0), seed=5))
    assert alone.choices[0].token_ids == alone.choices[1].token_ids
    for note in alone.choices[0].logprobs[: len(greedy_caption(lm))]:
        # Greedy: the token is the likeliest one.
        assert note.top[0][0] == note.token and note.model_logp == pytest.approx(note.top[0][1])
        assert note.logp == 0.0
    engine = Engine(lm)
    images = [picture(), picture(9, 60, 2), picture(20, 20, 3)]
    tickets = [engine.submit(asked(image)) for image in images]
    together = [answer.token_ids for answer in engine.run(tickets)]
    assert together == [generate(lm, asked(image)).token_ids for image in images]
    assert together[0] == alone.token_ids


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"names": "all", "refer": "boat"}, "names and refer are given"),
        ({"names": " | "}, "names is ' | ': give at least one"),
        ({"refer": "boat " * 20}, "tokens, and must have 1 to 12"),
        ({"region": "0,0,9"}, "region is '0,0,9': it must be left,top,right,bottom"),
        ({"region": "0,0,21,9"}, "within 20 x 20"),
        ({"region": "4,0,4,9"}, "left below right"),
        ({"region": "a,0,4,9"}, "whole pixels"),
    ],
)
def test_options_are_refused_in_one_sentence(lm, options, says):
    with pytest.raises(RequestError, match=says):
        plan_request(lm, asked(options=options))


def test_what_it_cannot_read_is_refused_before_any_pass(plain, lm, monkeypatch):
    with pytest.raises(MissingError, match="method x-decoder reads the image of a prompt"):
        plan_request(lm, Ask(QUESTION, method="x-decoder"))
    with pytest.raises(MissingError, match="method x-decoder needs a query decoder"):
        plan_request(plain, asked())
    with pytest.raises(RequestError, match="constraint is given: method x-decoder"):
        plan_request(lm, asked(constraint=Regex("boat")))
    none = with_decoder(plain, decoder_of(plain.checkpoint.lm.vocab, names=()))
    with pytest.raises(RequestError, match="this query decoder learned none"):
        plan_request(none, asked(options={"names": "all"}))
    monkeypatch.setattr(QueryDecoder, "forward", lambda *_: pytest.fail("a pass ran"))
    sizes = replace(lm.artefacts[0].sizes, rows=4)
    tensors = random_tensors(sizes, 1, 1.0)
    other = decoder_of(plain.checkpoint.lm.vocab, sizes=sizes, tensors=tensors)
    with pytest.raises(RequestError, match=r"the last image has 25 vectors: .* trained for 20"):
        generate(with_decoder(plain, other), asked())


def test_a_decoder_of_another_model_is_refused(plain):
    law = plain.checkpoint.lm
    decoder = decoder_of(law.vocab)
    with pytest.raises(FileError, match="states of width 9"):
        replace(decoder, sizes=replace(decoder.sizes, image_width=9)).check_fit(law, None)
    with pytest.raises(RequestError, match="vocabular"):
        replace(decoder, vocab=TokenVocabulary(7, frozenset())).check_fit(law, None)


def test_a_decoder_is_saved_and_read_again(tmp_path):
    decoder = decoder_of(TokenVocabulary(40, frozenset(), "x"))
    query_decoder.save(tmp_path, decoder, {"target": "y"})
    again = query_decoder.load(tmp_path)
    for name in ("vocab", "sizes", "start", "end", "cell", "names"):
        assert getattr(again, name) == getattr(decoder, name), name
    assert all(torch.equal(t, again.tensors[name]) for name, t in decoder.tensors.items())


@pytest.fixture
def run(folder, lm, monkeypatch, capsys):
    """Runs `polydec generate` by this method: (status, standard output)."""
    query_decoder.save(folder / "decoder", lm.artefacts[0], {})

    def ended(*more):
        args = ["generate", QUESTION, "--image", str(folder / "a.png"), "--model"]
        args += [str(folder / "m"), "--draft", "none", "--with", str(folder / "decoder")]
        monkeypatch.setattr(sys, "argv", ["polydec", *args, "--method", "x-decoder", *more])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().out

    return ended


def test_the_command_line_reaches_captions_regions_names_and_masks(tmp_path, lm, run):
    texts = list[list[int]]()
    for options in ((), ("cached=false",), ("region=0,4,5,20",), ("names=all",)):
        sets = [part for option in options for part in ("--set", option)]
        status, said = run("--json", *sets)
        texts.append(json.loads(said)["token_ids"])
        assert status == 0
    assert texts[0] == texts[1] == list(generate(lm, asked()).token_ids)
    assert len({tuple(text) for text in texts}) == 3
    out = tmp_path / "mask.png"
    status, said = run("--json", "--set", "refer=the boat", "--out", str(out))
    (mask,) = json.loads(said)["masks"]
    assert status == 0 and out.exists() and len(mask["patches"]) == 10
