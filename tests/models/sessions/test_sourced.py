"""Encoder-decoder models from directories: logits, greedy, beam and several texts as transformers has them, with unequal
sources in one batch; every lossless method; what is shared; what is refused."""

import json
import random
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

import micro
from polydec import Ask, Engine, Sampling, generate, load
from polydec.base.errors import PolydecError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import check_target
from polydec.methods.economics.costs import PassCosts
from polydec.models.formats import seq2seq
from polydec.models.nets.seq2seq import build
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.request import profile
from polydec.request.ask import plan_request
from polydec.request.explain import explain_request

SIZE, END, PAD = 60, 1, 0
SHAPE = {
    "vocab_size": SIZE,
    "d_model": 48,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
}
BOTH = {
    **SHAPE,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 96,
    "forced_eos_token_id": None,
    "bos_token_id": 2,
}
T5 = {**SHAPE, "d_kv": 16, "d_ff": 64, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4}


def t5(**more):
    return T5ForConditionalGeneration(T5Config(**T5, **more))


def marian():
    return MarianMTModel(
        MarianConfig(**BOTH, scale_embedding=True, activation_function="swish"),
    )


FAMILIES = {
    "t5": (lambda: t5(feed_forward_proj="relu"), 0.12),
    "t5 v1.1": (lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False), 0.1),
    "bart": (lambda: BartForConditionalGeneration(BartConfig(**BOTH)), 0.15),
    "bart that begins with a mark": (
        lambda: BartForConditionalGeneration(BartConfig(**BOTH, forced_bos_token_id=2)),
        0.15,
    ),
    "marian": (marian, 0.15),
}


def words():
    """A tokenizer of one word a token; it ends every source."""
    vocab = {"<pad>": PAD, "</s>": END} | {f"w{i}": i for i in range(2, SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    return tokenizer


def write(path, make, spread, seed=3):
    """A random model's directory, and the model."""
    model = make()
    torch.manual_seed(seed)
    for name, p in model.named_parameters():
        if p.requires_grad:
            one = 1.0 if p.ndim == 1 and "bias" not in name else 0.0
            sharp = name.endswith(("q_proj.weight", "k_proj.weight"))  # who is looked at counts
            loud = 8.0 if sharp else 1.0
            p.data = torch.randn_like(p) * spread * loud + one
    model.eval().save_pretrained(path)
    words().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tmp_path_factory):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("sourced") / "m"
    path.mkdir()
    make, spread = FAMILIES[request.param]
    model = write(path, make, spread)
    lm, config = load(str(path), draft=None), model.config.to_dict()
    read = seq2seq.read_seq2seq_config(config, model.generation_config.to_dict())
    network = build(read, dict(model.double().state_dict()), dtype="float64")
    loaded = lm.checkpoint.lm
    assert loaded.network.config == network.config
    law = EncoderDecoderModel(network.encoder, network, loaded.vocab, network.config.start)
    exact = replace(lm, checkpoint=replace(lm.checkpoint, lm=law))
    vars(exact)["costs"] = PassCosts()  # instead of measuring
    return exact, model


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("sourced") / "one"
    path.mkdir()
    write(path, *FAMILIES["t5"])
    lm = load(str(path), draft=None)
    vars(lm)["costs"] = PassCosts()
    return lm


def sources(count=8, seed=1):
    r = random.Random(seed)
    return [(*(r.randrange(2, SIZE) for _ in range(r.randrange(1, 40))), END) for _ in range(count)]


def ours(lm, count, **fields):
    """The answers to all sources, written together."""
    engine = Engine(lm)
    given = {"max_tokens": 20, "sampling": Sampling(temperature=0.0), **fields}
    tickets = [engine.submit(source, **given) for source in sources(count)]
    return [[c.token_ids for c in done.choices] for done in engine.run(tickets)]


def theirs(model, start, count, **how):
    out = list[list[tuple[int, ...]]]()
    for source in sources(count):
        rows = model.generate(
            torch.tensor([source]), max_new_tokens=20 + len(start) - 1, do_sample=False, **how
        )
        out.append([_cut(row.tolist()[len(start) :]) for row in rows])
    return out


def _cut(ids):
    return tuple(ids[: ids.index(END) + 1] if END in ids else ids)


def test_logits_are_those_of_transformers(both):
    lm, model = both
    law = lm.checkpoint.lm

    async def rows(source, text):
        session = law.law_given_source(source).open_session(text[:1])
        scores = await session.score_draft(Draft.chain_draft(text[0], text[1:]), ScoreRequest())
        session.close()
        return torch.stack([scores.log_weights(i) for i in range(len(text))])

    text = (PAD, *sources(1, seed=5)[0])
    got = run_coroutines([rows(source, text) for source in sources(4)])
    for source, rows_NV in zip(sources(4), got):
        with torch.no_grad():
            want_NV = model(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([text])
            ).logits[0]
        assert float((rows_NV - want_NV).abs().max()) < 1e-5


def test_sessions_keep_the_contract(both):
    check_target(both[0].checkpoint.lm.law_given_source((5, 6, 7, END)), prompt=(2, 3))


def test_greedy_and_beam_texts_are_those_of_generate(both):
    lm, model = both
    start = lm.checkpoint.lm.start
    greedy = ours(lm, 8)
    assert greedy == theirs(model, start, 8, num_beams=1)
    assert len({ids for (ids,) in greedy}) > 1, "texts that are all alike say nothing"
    beam = ours(lm, 4, method="beam", options={"width": 4}, n=3)
    assert beam == theirs(model, start, 4, num_beams=4, num_return_sequences=3)


@pytest.mark.parametrize(
    "method",
    [
        "auto",
        "prompt-lookup",
        "suffix-automaton",
        "aggressive-decoding",
        "copyspec",
        "jacobi",
        "lookahead",
        "token-recycling",
        "merged-drafts",
        "lookup-recycling",
        "jump-forward",
    ],
)
def test_lossless_methods_write_the_plain_text(lm, method):
    options = {} if method in ("auto", "jacobi", "lookahead", "jump-forward") else None
    options = {"cost_aware": False} if options is None else options
    assert ours(lm, 4, method=method, options=options if method != "token-recycling" else {}) == (
        ours(lm, 4)
    )


def test_copying_drafters_see_the_source(lm):
    made = plan_request(
        lm,
        Ask((5, 6, 7, END), method="prompt-lookup", options={"cost_aware": False}),
        measure=PassCosts,
    )
    drafter = made.decoder.drafter
    assert drafter.source == (5, 6, 7, END)
    guess = drafter.open_guess((PAD, 5), None)
    draft = run_coroutines([_proposed(guess)])[0]
    assert draft.token[:3] == (5, 6, 7)


async def _proposed(guess):
    from polydec.core.rng import Rng
    from polydec.methods.speculative.loop.types import DraftBudget

    return await guess.propose_draft(5, 1, DraftBudget(4, 4), Rng(0))


def test_equal_sources_are_read_once_and_given_back(lm):
    law = lm.checkpoint.lm
    before = law.encoder.passes
    engine = Engine(lm)
    tickets = [engine.submit("w5 w6 w7", max_tokens=6, seed=i) for i in (0, 1)]
    tickets.append(engine.submit("w8", max_tokens=6))
    done = engine.run(tickets)
    assert law.encoder.passes == before + 1  # all of them in one pass
    assert done[0].text == done[1].text
    encoder = next(m for m in done[0].metrics["models"] if m["name"].endswith("(encoder)"))
    assert encoder["passes"] == 1
    assert (
        done[0].usage["prompt_tokens"] == 5
    )  # three words, their end, and what the answer begins with
    del tickets, done, engine
    assert not law.live and law.nbytes == 0


def test_what_was_given_back_is_read_again(lm):
    law = lm.checkpoint.lm.law_given_source((9, 8, END))

    async def twice():
        session = law.open_session((PAD, 4))
        first = (await session.score_draft(Draft.chain_draft(4), ScoreRequest())).logprob_row(0)
        held = law.beside.nbytes
        session.evict_cache()
        assert held and not law.beside.nbytes
        again = (await session.score_draft(Draft.chain_draft(4, (5,)), ScoreRequest())).logprob_row(
            0
        )
        session.close()
        return first, again

    first, again = run_coroutines([twice()])[0]
    assert torch.allclose(first, again, atol=1e-5)


def test_a_newcomer_does_not_wait_for_others_answers(lm):
    engine = Engine(lm)
    old = engine.submit("w5 w6", max_tokens=30, ignore_eos=True)
    for _ in range(4):
        engine.step()
    new = engine.submit("w9 w10 w11", max_tokens=2, ignore_eos=True)
    for _ in range(6):
        engine.step()
    assert new.done and not old.done
    engine.cancel(old)


def test_a_source_beside_what_the_answer_begins_with(lm):
    whole = generate(lm, "w5 w6 w7", max_tokens=6, ignore_eos=True)
    ids = whole.token_ids
    rest = generate(lm, ids[:2], source="w5 w6 w7", max_tokens=4, ignore_eos=True)
    assert rest.token_ids == ids[2:]
    alone = generate(lm, "", source=b"w5 w6 w7", max_tokens=6, ignore_eos=True)
    assert alone.token_ids == ids


def test_guidance_holds_one_source_against_another(lm):
    def text(scale):
        return generate(
            lm,
            "w5 w6 w7",
            negative_prompt="w20",
            steer="cfg",
            steer_options={"scale": scale},
            max_tokens=8,
            ignore_eos=True,
        ).token_ids

    assert text(1.0) == generate(lm, "w5 w6 w7", max_tokens=8, ignore_eos=True).token_ids
    assert text(0.0) == generate(lm, "w20", max_tokens=8, ignore_eos=True).token_ids


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"prompt": ""}, "prompt is empty: give a text of at least one character"),
        ({"source": ""}, "source is empty: give a text of at least one character"),
        ({"source": b"w5 \xff"}, "source is no UTF-8: byte 3 begins no character"),
        ({"source": "\ud800"}, "source"),
        ({"source": 5}, "source is a int: give text, token ids or chat messages"),
        ({"source": {"x": 1}}, "source is a dict: give text, token ids or chat messages"),
        ({"source": (5, 99)}, "source has token 99: ids lie in 0 to 59"),
        ({"source": (5,) * 3000}, "source has 3000 tokens: this model reads at most 2048"),
        ({"units": "bytes"}, "writes from a source, and has a law of tokens only"),
        ({"method": "layerskip"}, "needs a model whose layers can run alone"),
    ],
    ids=str,
)
def test_what_is_refused_before_a_pass(lm, fields, message):
    before = lm.checkpoint.lm.encoder.passes
    with pytest.raises(PolydecError) as error:
        generate(lm, **{"prompt": "w5", **fields})
    assert message in str(error.value)
    assert lm.checkpoint.lm.encoder.passes == before


def test_a_source_for_a_model_without_one(tmp_path):
    plain = load(str(micro.write(tmp_path / "a")))
    with pytest.raises(PolydecError, match=r"source is given: .* reads nothing beside its prompt"):
        generate(plain, "The grey fox", source="the fox")


def test_how_many_texts_are_kept_reaches_laws_that_are_open(lm):
    model = lm.checkpoint.lm
    law = model.law_given_source((5, 6, END))
    model.keep = 2
    try:
        assert law.keep == 2 and model.law_given_source((7, END)).keep == 2
        session = law.open_session((2, 3))
        run_coroutines([session.score_draft(Draft.chain_draft(3), ScoreRequest())])
        session.close()
        before = law.nbytes
        assert before > 0, "the text that was closed waits for another that begins like it"
    finally:
        model.keep = 0


def test_a_law_without_its_source_cannot_be_opened(lm):
    with pytest.raises(PolydecError, match="writes from a source: give one"):
        lm.checkpoint.lm.open_session((PAD,))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"d_model": 0}, "d_model is 0"),
        ({"feed_forward_proj": "gated-quux"}, "activation 'gated-quux' is unknown"),
        ({"num_heads": 5}, "has shape"),
        ({"decoder_start_token_id": 99}, "decoder_start_token_id is 99: it must be a token"),
        ({"num_layers": 4}, "weights lack encoder.block.3"),
    ],
    ids=str,
)
def test_damaged_directories_are_refused_in_a_sentence(tmp_path, change, message):
    write(tmp_path, *FAMILIES["t5"])
    at = tmp_path / "config.json"
    at.write_text(json.dumps({**json.loads(at.read_text()), **change}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(PolydecError) as error:
        load(str(tmp_path), draft=None)
    assert message in str(error.value)


STARTS = [
    ({}, None),
    ({"bos_token_id": 7}, None),
    ({"decoder_start_token_id": 5}, None),
    ({"decoder_start_token_id": 5, "bos_token_id": 7, "forced_bos_token_id": 6}, None),
    ({}, {"bos_token_id": 3}),
    ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 4}),
    ({"decoder_start_token_id": 5}, {"bos_token_id": 3}),
    ({"forced_bos_token_id": 6}, {"decoder_start_token_id": 4}),
    ({}, {"decoder_start_token_id": 4, "forced_bos_token_id": 11}),
    ({}, {"pad_token_id": 8}),
]


@pytest.mark.parametrize("family", ["t5", "bart", "marian"])
def test_answers_begin_as_in_transformers(family, tmp_path):
    """Nothing begins with padding because nobody said what else."""
    model = FAMILIES[family][0]()
    model.save_pretrained(tmp_path)
    at, beside = tmp_path / "config.json", tmp_path / "generation_config.json"
    said = json.loads(at.read_text())
    names = ("decoder_start_token_id", "bos_token_id", "forced_bos_token_id")
    bare, refused = {k: v for k, v in said.items() if k not in names}, 0
    for config, generation in STARTS:
        at.write_text(json.dumps(bare | config))
        beside.unlink(missing_ok=True)
        if generation is not None:
            beside.write_text(json.dumps(generation))
        try:
            source = torch.tensor([[10, 11, END]])
            answer = type(model).from_pretrained(tmp_path).generate(source, max_new_tokens=2)
        except ValueError:
            refused += 1
            with pytest.raises(PolydecError, match="decoder_start_token_id is missing"):
                seq2seq.read_seq2seq_config(bare | config, generation or {})
            continue
        start = seq2seq.read_seq2seq_config(bare | config, generation or {}).start
        assert answer[0].tolist()[: len(start)] == list(start)
        assert len(start) == 1 + ("forced_bos_token_id" in (generation or config))
    assert refused == 2


def test_a_forced_token_is_not_lost_where_the_first_one_stands_elsewhere():
    """transformers refuses such a pair of files; what both of them say is kept here."""
    said = FAMILIES["bart"][0]().config.to_dict()
    names = ("decoder_start_token_id", "bos_token_id", "forced_bos_token_id")
    bare = {k: v for k, v in said.items() if k not in names}
    for config, generation, start in [
        ({"bos_token_id": 5}, {"forced_bos_token_id": 3}, (5, 3)),
        ({"decoder_start_token_id": 6, "forced_bos_token_id": 4}, {"pad_token_id": 8}, (6, 4)),
        ({"bos_token_id": 5, "forced_bos_token_id": 4}, {"forced_bos_token_id": 3}, (5, 3)),
    ]:
        assert seq2seq.read_seq2seq_config(bare | config, generation).start == start


def test_passes_are_measured_without_a_source(lm, measured_costs):
    found = profile.measure_pass_profile(lm, seconds=0.05)
    assert found.costs.request_share(1) > 0.0


def test_from_the_command_line(lm, polydec_command, tmp_path):
    def said(*args):
        return polydec_command("generate", "--model", lm.name, *args)

    small = ("--max-tokens", "4", "--method", "plain", "--ignore-eos", "--json")
    want = list(generate(lm, "w5 w6", max_tokens=4, ignore_eos=True).token_ids)
    code, out, _ = said("w5 w6", *small)
    assert code == 0 and json.loads(out)["token_ids"] == want
    code, out, _ = said("--source", "w5 w6", *small)
    assert code == 0 and json.loads(out)["token_ids"] == want
    file = tmp_path / "source.txt"
    file.write_bytes(b"w5 \xff")
    code, _, err = said("--source-file", str(file), *small)
    assert code == 2 and "utf-8" in err and "Traceback" not in err
    code, _, err = said("--source", "w5", "--source-file", str(file), *small)
    assert code == 2 and "source and --source-file are both given" in err


def test_explain_tells_the_source(lm):
    parts = {p.role: p for p in explain_request(lm, Ask("w5 w6"))}
    assert parts["length"].says.startswith("3 tokens of source, 1 tokens of prompt")


def test_over_http(lm):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    from polydec.serve.body import read_body
    from polydec.serve.limits import RequestLimits, apply_request_limits
    from polydec.serve.shapes import CompletionsShape

    limits = RequestLimits(prompt=8)
    body = read_body(b'{"source": "w5 w6", "max_tokens": 3}')
    (ask,) = CompletionsShape().read_request(body, lm, "plain", 0).asks
    assert (ask.prompt, ask.source) == ("", "w5 w6")
    assert [fit.ask for fit in apply_request_limits(lm, [ask], limits)] == [ask]
    with pytest.raises(PolydecError, match="source has 10 tokens: there is room for 8"):
        apply_request_limits(lm, [replace(ask, source=(5,) * 10)], limits)
