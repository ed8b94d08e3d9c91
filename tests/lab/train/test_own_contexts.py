"""`polydec train context --model --data`: a model and a text of one's own."""

import json
from dataclasses import replace

import pytest
import torch

from polydec import Ask, Engine, load
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts.hidden_cot import MARK
from polydec.lab.train.data import ASSISTANT, held_out
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.own_contexts import cache_augmentation, continuous_cot, hidden_cot, refrag
from polydec.lab.train.own_model import OwnContextModel
from polydec.lab.train.prefix_network import feed_continuous_thoughts, forward_with_past
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.context import KINDS, ON_OWN_TEXT, ContextSpec
from polydec.lab.train.thought_rows import ThoughtRow, read_thought_rows
from polydec.lab.train.tokens import tokenizer_files, train_tokenizer
from polydec.models.sessions.soft import state_of

SHAPE = LlamaShape(300, width=32, layers=2, heads=2, kv_heads=1, inner=48, context=96)
THOUGHTS = [
    {
        "question": f"{a} and {b} and {c}",
        "thought": [f"{a + b}", f"{a + b + c}"],
        "answer": f"{a + b + c}!",
    }
    for a in range(4)
    for b in range(4)
    for c in range(3)
]
PARTED = [
    {
        "question": row["question"],
        "thought": row["thought"],
        "answer": [f"first {row['thought'][0]}", f" then {row['answer']}"],
    }
    for row in THOUGHTS
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return str(path)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A model with a tokenizer of its own, and files of each kind."""
    folder = tmp_path_factory.mktemp("own")
    prose = "\n\n".join(
        f"The {a} {b} saw the {c} by the old river, and nobody asked why it was {d}."
        for a in ("grey", "tall", "quiet", "young", "old")
        for b in ("fox", "baker", "teacher", "dog")
        for c in ("boat", "bridge", "train", "mill")
        for d in ("cold", "warm", "late")
    )
    (folder / "own.txt").write_text(prose, "utf-8")
    tokenizer = train_tokenizer([prose], SHAPE.vocab)
    network = TrainableLlama(replace(SHAPE, vocab=tokenizer.get_vocab_size()), seed=5)
    ids = {name: tokenizer.token_to_id(f"<|{name}|>") for name in ("begin", "end")}
    config = network.s.config_content(bos=ids["begin"], eos=ids["end"])
    files = tokenizer_files(tokenizer, SHAPE.context)
    save_directory(folder / "model", network, config, files=files, dtype=torch.float32)
    return {
        "model": str(folder / "model"),
        "text": str(folder / "own.txt"),
        "thoughts": write_lines(folder / "thoughts.jsonl", THOUGHTS),
        "parted": write_lines(folder / "parted.jsonl", PARTED),
    }


def spec_of(own, out, kind, **fields):
    """A short training of a kind."""
    data = "text" if kind in ("refrag", "cache-augmentation") else "thoughts"
    small = {"steps": 3, "rows": 4, "encoder": 16, "latents": 3, "hops": 2, "length": 32}
    given = {"target": own["model"], "data": own[data], "tries": 6, **small, **fields}
    return ContextSpec(str(out), kind=kind, **given)


def first_answer(lm, question, **fields):
    """The first token that the engine writes behind a question."""
    engine = Engine(lm)
    ticket = engine.submit(Ask(question, max_tokens=1, method="plain", ignore_eos=True, **fields))
    while engine.step():
        pass
    return ticket.completion().choices[0].token_ids[0]


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"target": None}, "name the model that is trained on it (--model)"),
        ({"kind": "arc-encoder"}, "kind is 'arc-encoder': on a text of your own continuous-cot"),
        ({"texts": 2}, "texts is 2: a step takes rows (4)"),
        ({"length": 12}, "so with chunks of 8 it must be at least 16"),
        ({"length": 94}, "has a context of 96, three marks included"),
        (
            {"kind": "cache-augmentation", "length": 94},
            "with 3 vectors it is more than the context",
        ),
        ({"data": "nowhere.txt"}, "no such directory or file"),
        ({"target": "zoo:no"}, "zoo:no"),
        ({"kind": "hidden-cot"}, "thoughts are lines of .jsonl with question, thought and answer"),
    ],
)
def test_what_cannot_be_taken_is_refused(own, tmp_path, fields, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        train_context(
            spec_of(own, tmp_path / "x", **{"kind": "refrag", "data": own["text"]} | fields)
        )
    assert sentence in str(error.value) and len(str(error.value)) <= 300


@pytest.mark.parametrize(
    "line, sentence",
    [
        ({"question": "a", "thought": "b"}, "answer"),
        ({"question": "a", "thought": 1, "answer": "c"}, "thought"),
        ({"question": "", "thought": "b", "answer": "c"}, "is empty"),
        (
            {"question": "a", "thought": "b", "answer": ["c", "d"]},
            "answer has 2 parts and thought 1",
        ),
        ({"question": "a", "thought": [], "answer": []}, "answer has 0 parts"),
        ({"question": f"a{MARK}", "thought": "b", "answer": "c"}, f"it holds {MARK}"),
        ({"question": "a", "thought": "<|end|>", "answer": "c"}, "it holds <|end|>"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, sentence):
    path = write_lines(tmp_path / "x.jsonl", [THOUGHTS[0], line])
    with pytest.raises(ValueError, match="line 2 of") as error:
        read_thought_rows(tmp_path / "x.jsonl", (MARK,))
    assert sentence in str(error.value) and path


def test_rows_are_read_as_they_are_meant(tmp_path):
    write_lines(tmp_path / "x.jsonl", [THOUGHTS[5], PARTED[5], {**THOUGHTS[5], "thought": "1\n2"}])
    several, parted, lines = read_thought_rows(tmp_path / "x.jsonl", ())
    assert several.steps == tuple(THOUGHTS[5]["thought"]) and several.answers == (
        THOUGHTS[5]["answer"],
    )
    assert parted.thoughts == tuple(PARTED[5]["thought"]) and len(parted.answers) == 2
    assert lines.steps == ("1", "2") and lines.thoughts == ("1\n2",)


def test_kinds_are_files():
    from pkgutil import iter_modules

    from polydec.lab.train import own_contexts

    made = {m.name.replace("_", "-") for m in iter_modules(own_contexts.__path__)}
    assert made == set(ON_OWN_TEXT) and made < set(KINDS)


def test_blanks_before_a_text_change_nothing():
    net = TrainableLlama(SHAPE, seed=1)
    token_BT = torch.randint(0, 300, (2, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        x_BTH = net.model.embed_tokens(token_BT)
        wanted, _ = feed_continuous_thoughts(net.model, x_BTH, 2)
        padded = torch.cat([torch.ones(2, 3, 32), x_BTH], dim=1)
        got, _ = feed_continuous_thoughts(net.model, padded, 2, torch.tensor([3, 3]))
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0.0)
        mixed = torch.stack([padded[0], torch.cat([padded[1, 3:], x_BTH[1, :3]])])
        state, _ = forward_with_past(net.model, mixed, None, torch.tensor([3, 0]))
        alone, _ = forward_with_past(net.model, mixed[1:])
        torch.testing.assert_close(state[1], alone[0], atol=1e-5, rtol=0.0)
        first, _ = forward_with_past(net.model, x_BTH[:1])
        torch.testing.assert_close(state[0, 3:], first[0], atol=1e-5, rtol=0.0)


def test_continuous_thoughts_are_read_as_in_training(own, tmp_path):
    spec = spec_of(own, tmp_path / "c", "continuous-cot")
    result = train_context(spec)
    assert set(result["right"]) == set(result["nats"]) == {0, 1, 2, 3}
    lm = load(spec.out, draft=None, dtype="float32")
    tokens, net = (
        continuous_cot.ThoughtRowTokens(OwnContextModel.load_own(spec)),
        load_directory(spec.out),
    )
    rows = read_thought_rows(tmp_path.parent / own["thoughts"], ())[:5]
    for thoughts in (0, 2):
        with torch.no_grad():
            logits, goal = continuous_cot.latent_row_logits(net, tokens, rows, thoughts, 2)
        options = {"thoughts": thoughts}
        asked = [
            first_answer(lm, r.question, steer="continuous-cot", steer_options=options)
            for r in rows
        ]
        assert asked == logits[:, 0].argmax(-1).tolist()
        assert goal[:, 0].tolist() == [tokens.model.text_tokens(r.answers[0])[0] for r in rows]


def test_stages_leave_steps_out_and_go_back_now_and_then(own, tmp_path):
    spec = spec_of(own, tmp_path, "continuous-cot", steps=200)
    tokens = continuous_cot.ThoughtRowTokens(OwnContextModel.load_own(spec))
    row = ThoughtRow("q", ("one\ntwo",), ("end",))
    written = [
        tokens.model.tokenizer.decode(
            continuous_cot.remaining_tokens(tokens, row, s), skip_special_tokens=True
        )
        for s in range(4)
    ]
    assert written == ["one\ntwo\nend", "two\nend", "end", "end"]
    late = [continuous_cot.drawn_stage(spec, step) for step in range(150, 200)]
    assert late.count(2) > 35 and set(late) == {0, 1, 2}


@pytest.mark.parametrize("reasoning", ["chain", "none"])
@pytest.mark.parametrize("kind", ["continuous-cot", "hidden-cot"])
def test_what_they_are_measured_beside(own, tmp_path, kind, reasoning):
    spec = spec_of(own, tmp_path, kind, reasoning=reasoning)
    assert 0 <= train_context(spec)["right"] <= 1 and load(spec.out, draft=None)


@pytest.mark.parametrize("data", ["thoughts", "parted"])
def test_a_hidden_thought_is_read_as_in_training(own, tmp_path, data):
    spec = spec_of(own, tmp_path / "h", "hidden-cot", data=own[data])
    result = train_context(spec)
    assert {"right", "right_of_another", "nats_of_zeros", "found_again"} <= set(result)
    lm = load(
        spec.out, draft=f"{spec.out}/thinker", trained=[f"{spec.out}/thought"], dtype="float32"
    )
    tokens, split = hidden_cot.read_thoughts(spec)
    assert lm.artefacts[0].mark == tokens.thought_mark == lm.checkpoint.lm.vocab.size - 1
    answering, thinker = (
        hidden_cot.OwnThoughtAnswerer(load_directory(spec.out), tokens),
        load_directory(f"{spec.out}/thinker"),
    )
    made = lm.artefacts[0]
    with torch.no_grad():
        for name in ("weight", "bias", "scale"):
            getattr(answering.bridge, name).copy_(getattr(made, name))
        rows = split.unseen
        logits, goal = answering.row_logits(rows, hidden_cot.mark_states(thinker, tokens, rows))
    for row, logits_TV, goal_T in zip(rows, logits, goal, strict=True):
        at = int((goal_T != -100).nonzero()[0])
        assert first_answer(lm, row.question, steer="hidden-cot") == int(logits_TV[at].argmax())


def test_thoughts_stand_before_each_part_of_an_answer(own, tmp_path):
    """The second text that is thought about holds the first part, and no thought itself."""
    spec = spec_of(own, tmp_path, "hidden-cot", data=own["parted"])
    tokens, _ = hidden_cot.read_thoughts(spec)
    row = ThoughtRow("q", ("one", "two"), ("A", "B"))
    text = tokens.rows.model.tokenizer.decode
    first, second = (text(ids, skip_special_tokens=False) for ids in tokens.thinking_texts(row))
    assert first.endswith(f"q<|end|>{MARK}")
    assert second.endswith(f"q<|end|>{ASSISTANT}A{MARK}") and "one" not in second
    ids, at = tokens.answering_row(row)
    assert text(ids, skip_special_tokens=False).endswith(
        f"q<|end|>{MARK}{ASSISTANT}A{MARK}B<|end|>"
    )
    assert text(ids[at:], skip_special_tokens=False) == f"A{MARK}B<|end|>"
    answering = hidden_cot.OwnThoughtAnswerer(tokens.rows.model.network, tokens)
    with torch.no_grad():
        state = torch.randn(2, 32, generator=torch.Generator().manual_seed(3))
        logits, goal = answering.row_logits([row], state)
        assert goal[0, at - 1 : -1].tolist() == list(ids[at:])
        changed, _ = answering.row_logits([row], state * torch.tensor([[1.0], [-1.0]]))
    places = [i for i, x in enumerate(ids) if x == tokens.thought_mark]
    torch.testing.assert_close(changed[0, : places[1]], logits[0, : places[1]])
    assert not torch.allclose(changed[0, places[1] :], logits[0, places[1] :], atol=1e-3)


def test_what_thinks_learns_its_thoughts_and_to_be_near_them(own, tmp_path):
    spec = spec_of(own, tmp_path, "hidden-cot")
    tokens, split = hidden_cot.read_thoughts(spec)
    net, rows = tokens.rows.model.network, split.unseen[:3]
    with torch.no_grad():
        near = hidden_cot.mark_states(net, tokens, rows)
        own_states = hidden_cot.mean_thought_states(net, tokens, rows)
        wrote = torch.cat(
            [
                torch.nn.functional.cross_entropy(
                    net(torch.tensor([[*a, *b]]))[0, len(a) - 1 : -1],
                    torch.tensor(b),
                    reduction="none",
                )
                for row in rows
                for a, b in zip(tokens.thinking_texts(row), tokens.thought_tokens(row))
            ]
        ).mean()
        apart = hidden_cot.info_nce_loss(near, own_states)
        loss = hidden_cot.own_thinking_loss(net, tokens, rows)
        alone = torch.stack(
            [
                net.model(torch.tensor([[0, *tokens.thought_tokens(r)[0][:-1]]]))[0, 1:].mean(0)
                for r in rows
            ]
        )
    assert tokens.rows.model.mark_token("<|begin|>") == 0
    torch.testing.assert_close(own_states, alone, atol=1e-5, rtol=0.0)
    assert float(apart) > 0.01 and float(loss) == pytest.approx(float(wrote + apart), abs=1e-4)


def test_held_out_questions_are_not_learned(own, tmp_path):
    _, split = hidden_cot.read_thoughts(spec_of(own, tmp_path, "hidden-cot"))
    assert all(held_out(row.question) for row in split.unseen) and len(split.unseen) == 6
    assert not any(held_out(row.question) for row in split.learned)


def test_a_coprocessor_of_an_own_model_is_read_as_in_training(own, tmp_path):
    spec = spec_of(own, tmp_path / "a", "cache-augmentation")
    result = train_context(spec)
    assert len(result["nats_with"]) == len(result["nats_without"]) == cache_augmentation.FOLLOW
    lm = load(own["model"], draft=None, trained=[f"{spec.out}/coprocessor"], dtype="float32")
    made = lm.artefacts[0]
    net = cache_augmentation.CacheAugmentationModel(load_directory(own["model"]), 3, 0, False, 4)
    with torch.no_grad():
        net.soft.copy_(made.soft_LH)
        for name, p in net.tensors.items():
            p.copy_(made.tensors[name])
        token = torch.tensor(
            [[0, *OwnContextModel.load_own(spec).text_tokens("The old grey fox saw it")]]
        )
        place = token.shape[1] - 5
        nats, _ = net.predict_ahead(token, torch.tensor([[place - 1]]))
    from polydec.laws.targets.augmented import CacheAugmentationMaker
    from polydec.laws.targets.thinking import LatentPrefixTarget

    ids = tuple(token[0, : place + 1].tolist())
    maker = CacheAugmentationMaker(made, 2, lm.checkpoint.lm.vocab.size, 3)
    law = LatentPrefixTarget(lm.checkpoint.lm, ids, maker).open_session(ids)
    row = run_coroutines([law.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])[0]
    got = -row.logprob_row(0)[token[0, place + 1]]
    assert float(got) == pytest.approx(float(nats[0, 0, 1]), abs=2e-3)
    never = train_context(replace(spec, out=str(tmp_path / "n"), reasoning="none"))
    assert never["nats_without"] == result["nats_without"] and never["steps"] == 1
    pause = train_context(replace(spec, out=str(tmp_path / "p"), reasoning="chain"))
    assert pause["nats_without"] == result["nats_without"]


def test_passages_of_an_own_text_are_read_as_in_training(own, tmp_path):
    spec = spec_of(own, tmp_path / "r", "refrag", steps=20, chunk=4)
    result = train_context(spec)
    ways = {"none open", "by the policy", "by perplexity", "by chance", "all open"}
    ways |= {"no passage", "before"}
    assert set(result["nats"]) == ways
    lm = load(spec.out, draft=None, trained=[f"{spec.out}/chunks"], dtype="float32")
    texts = refrag.OwnPassages.of_spec(spec)
    net = texts.load_refrag(spec, tmp_path / "r")
    line, told = texts.split_texts(texts.unseen_NT[:2])
    assert line.shape == (2, 4, 4) and told.shape == (2, 16)
    for count in (0, 1, 4):
        c = net.encode_lines(line)
        order = refrag.score_chunks(net.sizes, net.t, c).argsort(-1, descending=True)
        opened = refrag.open_chunk_mask(order[:, :count], 4)
        with torch.no_grad():
            nats, _ = texts.followed_nats(net.decoder, net.lay_out_page(line, c, opened), told)
        mark = texts.model.mark_token
        for row in range(2):
            ids = (
                *(mark("<|begin|>"), mark(refrag.OPENING)),
                *line[row].flatten().tolist(),
                mark(refrag.CLOSING),
            )
            from polydec.laws.targets.passage_chunks import SELECTORS, chunk_prompt_passages

            shown = chunk_prompt_passages(
                lm.checkpoint.lm, ids, lm.artefacts[0], count / 4, SELECTORS["policy"]
            )
            assert sum(state_of(x) is not None for x in shown.instead) == 4 - count
            law = shown.open_session(ids)
            scores = run_coroutines([law.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])[
                0
            ]
            got = -scores.logprob_row(0)[told[row, 0]]
            assert float(got) == pytest.approx(float(nats[row, 0]), abs=2e-3)


def test_the_encoder_alone_is_trained_first_and_then_the_model(own, tmp_path):
    before = load_directory(own["model"])
    spec = spec_of(own, tmp_path / "r", "refrag", steps=20)
    train_context(spec)
    size = len(before.model.embed_tokens.weight)
    for folder, moved in (("rewriting", False), ("continued", True)):
        made = load_directory(str(tmp_path / "r" / folder))
        same = torch.equal(made.model.embed_tokens.weight[:size], before.model.embed_tokens.weight)
        assert same != moved and len(made.model.embed_tokens.weight) == size + 2
    last = load_directory(spec.out)
    continued = load_directory(str(tmp_path / "r" / "continued"))
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), continued.parameters()))
