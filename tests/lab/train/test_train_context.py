"""`polydec train context`: the tasks, thoughts in training and in decoding, and what is refused."""

import json
import math
import random

import pytest
import torch

from polydec import Ask, Engine, load
from polydec.lab.train import graphs, sums
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts import continuous_cot, hidden_cot
from polydec.lab.train.data import held_out
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.prefix_network import feed_continuous_thoughts, forward_with_past
from polydec.lab.train.specs.context import KINDS, ContextSpec

SMALL = {"steps": 6, "rows": 4, "width": 32, "layers": 2}


def network(seed=0):
    return TrainableLlama(LlamaShape(260, 32, 2, 2, 1, 64, 80), seed=seed)


@pytest.mark.parametrize("nodes, hops", [(8, 3), (12, 3), (26, 6)])
def test_only_the_answer_is_reached(nodes, hops):
    for i in range(40):
        made = graphs.draw_reachability_graph(f"{i}", nodes, hops, unseen=bool(i % 2))
        edges, asked = made.question.split("?")
        pairs = {tuple(e) for e in edges.split("|")}
        names, root = asked.split(">")
        layers, reached = [{root}], {root}
        while layers[-1]:
            layers.append({b for a, b in pairs if a in layers[-1]})
            reached |= layers[-1]
        assert len(pairs) == nodes - 2 and [x for x in names if x in reached] == [made.answer]
        assert [set(f) for f in made.frontier] == layers[1 : hops + 1] and not layers[hops + 1]
        assert made.answer in made.frontier[made.depth - 1]
        assert all(step in pairs for step in zip(root + made.path, made.path))
        assert held_out(made.question) == bool(i % 2)


def test_sums_are_right():
    for i in range(40):
        made = sums.draw_last_digit_sum(f"{i}", 4, bool(i % 2))
        value, rest = int(made.question[0]), made.question[1:]
        for at in range(4):
            value = eval(f"{value}{rest[2 * at]}{rest[2 * at + 1]}") % 10
            assert str(value) == made.chain[at]
        assert made.answer == made.chain[-1] and held_out(made.question) == bool(i % 2)


def test_a_network_goes_on_from_its_past():
    net = network()
    token_BT = torch.randint(0, 260, (3, 9), generator=torch.Generator().manual_seed(1))
    x = net.model.embed_tokens(token_BT)
    first, past = forward_with_past(net.model, x[:, :4])
    second, _ = forward_with_past(net.model, x[:, 4:], past)
    got = net.model.norm(torch.cat([first, second], dim=1))
    torch.testing.assert_close(got, net.model(token_BT), atol=1e-5, rtol=0.0)


def test_thoughts_are_the_states_that_the_head_reads_and_gradients_go_through_them():
    net = network()
    x = net.model.embed_tokens(torch.tensor([[5, 6, 7]])).detach().requires_grad_()
    states, _ = feed_continuous_thoughts(net.model, x, 2)
    again = x
    for at in range(3):
        state = net.model.norm(forward_with_past(net.model, again)[0])[:, -1:]
        torch.testing.assert_close(states[:, at : at + 1], state, atol=1e-5, rtol=0.0)
        again = torch.cat([again, state], dim=1)
    states[:, 2].sum().backward()
    assert bool((x.grad.abs().sum(-1) > 0).all())


def test_the_loss_asks_for_the_frontier_and_at_last_for_the_answer():
    rows = [graphs.draw_reachability_graph(f"{i}", 8, 3) for i in range(4)]
    law = continuous_cot.frontier_node_law(rows, 2)
    assert torch.allclose(law.sum(-1), torch.ones(4))
    for law_V, row in zip(law, rows):
        assert {i for i, p in enumerate(law_V.tolist()) if p} == {
            continuous_cot.IDS[x] for x in row.frontier[1]
        }
    spec = ContextSpec("x", steps=100, hops=3)
    stages = [
        continuous_cot.thought_curriculum_stage(spec, at) for at in (0, 39, 40, 54, 55, 69, 70, 99)
    ]
    assert stages == [0, 0, 1, 1, 2, 2, 3, 3]
    net = network()
    losses = [continuous_cot.latent_loss(net, rows, s).item() for s in range(4)]
    logits, answer = continuous_cot.latent_thought_logits(net, rows, 3)
    told = torch.stack(
        [
            -(continuous_cot.frontier_node_law(rows, d) * logits[:, d - 1].log_softmax(-1))
            .sum(-1)
            .mean()
            for d in (1, 2, 3)
        ]
    )
    right = continuous_cot.encode_node_letters([r.answer for r in rows])
    last = -answer[:, 0].log_softmax(-1)[torch.arange(4), right].mean() / 2
    last -= answer[:, 1].log_softmax(-1)[:, continuous_cot.IDS["<|end|>"]].mean() / 2
    wanted = [*(float(told[: s + 1].mean()) for s in range(3)), float(told.mean() + last)]
    assert losses == pytest.approx(wanted, abs=1e-4)


def test_the_first_stage_asks_where_edges_lead(monkeypatch):
    """Behind every node that is asked for, the law of the nodes below it, and nothing elsewhere."""
    rows = [graphs.draw_reachability_graph(f"{i}", 8, 3) for i in range(4)]
    read, net = [], network()
    monkeypatch.setattr(
        TrainableLlama, "forward", lambda s, t: read.append(t) or torch.zeros(*t.shape, 260)
    )
    assert continuous_cot.lookup_loss(net, rows, 0).item() == pytest.approx(math.log(260), abs=1e-3)
    called = {token: letter for letter, token in continuous_cot.IDS.items()}
    for row, ids in zip(rows, read[0].tolist()):
        text = "".join(called[x] for x in ids[1:])
        assert text.startswith(row.question[:-1])
        asked = text[len(row.question) - 1 :].split(">")
        assert len(asked) == continuous_cot.query_node_count(rows) and set(asked) <= set(
            row.names_below
        )

    def knows(self, token_BT):
        logits = torch.full((*token_BT.shape, 260), -30.0)
        for row, ids, logits_TV in zip(rows, token_BT.tolist(), logits):
            for at in range(len(row.question), len(ids)):
                for child in row.names_below.get(called[ids[at]], ""):
                    logits_TV[at, continuous_cot.IDS[child]] = 0.0
            for child in row.names_below.get(called[ids[len(row.question)]], ""):
                logits_TV[len(row.question), continuous_cot.IDS[child]] = 0.0
        return logits

    monkeypatch.setattr(TrainableLlama, "forward", knows)
    entropy = [math.log(len(row.names_below[x])) for row, x in asked_of(rows)]
    got = continuous_cot.lookup_loss(net, rows, 0).item()
    assert got == pytest.approx(sum(entropy) / len(entropy), abs=1e-3)


def asked_of(rows):
    """The nodes that are asked for, as the loss draws them."""
    for row in rows:
        names = sorted(row.names_below)
        random.Random(row.question).shuffle(names)
        for name in (names * 9)[: continuous_cot.query_node_count(rows)]:
            yield row, name


def answered(lm, rows, **fields):
    """The first token of each answer, as the engine decodes it."""
    engine = Engine(lm)
    tickets = [
        engine.submit(Ask(row.question + "=", raw=True, max_tokens=1, method="plain", **fields))
        for row in rows
    ]
    while engine.step():
        pass
    return [t.completion().choices[0].token_ids[0] for t in tickets]


def test_the_engine_thinks_as_in_training(tmp_path):
    """The same answers, whatever the number of thoughts; and the command's own result."""
    spec = ContextSpec(str(tmp_path / "c"), nodes=8, **SMALL)
    result = train_context(spec)
    assert set(result["right"]) == {0, 1, 2, 3, 4} and len(result["told"]) == 3
    told = json.loads((tmp_path / "c" / "training.json").read_text())
    assert told["right"]["3"] == {str(d): share for d, share in result["right"][3].items()}
    lm = load(spec.out, draft=None)
    net = continuous_cot.course(spec).network  # of the same shape
    net.load_state_dict(dict(torch.load(tmp_path / "c" / "state.pt")["network"].items()))
    rows = [graphs.draw_reachability_graph(f"{i}", 8, 3, unseen=True) for i in range(24)]
    seen = set()
    for thoughts in range(4):
        with torch.no_grad():
            want = (
                continuous_cot.latent_thought_logits(net, rows, thoughts)[1][:, 0]
                .argmax(-1)
                .tolist()
            )
        options = {"thoughts": thoughts}
        assert answered(lm, rows, steer="continuous-cot", steer_options=options) == want
        seen.add(tuple(want))
    assert len(seen) > 1, "thoughts decide"


def test_a_hidden_thought_is_read_as_in_training(tmp_path):
    spec = ContextSpec(str(tmp_path / "h"), kind="hidden-cot", **SMALL)
    result = train_context(spec)
    assert {"right", "of_another", "of_zeros", "found_again"} <= set(result)
    lm = load(spec.out, draft=f"{spec.out}/thinker", trained=[f"{spec.out}/thought"])
    assert lm.artefacts[0].mark == hidden_cot.IDS[hidden_cot.MARK]
    rows = [sums.draw_last_digit_sum(f"{i}", 3, True) for i in range(24)]
    answering = hidden_cot.HiddenThoughtAnswerer(hidden_cot.load_directory(spec.out), 0)
    made = lm.artefacts[0]
    with torch.no_grad():
        answering.bridge.weight.copy_(made.weight)
        answering.bridge.bias.copy_(made.bias)
        answering.bridge.scale.copy_(made.scale)
        thinker = hidden_cot.load_directory(f"{spec.out}/thinker")
        want = answering.answer_logits(rows, hidden_cot.thinker_mark_states(thinker, rows))[
            :, 0
        ].argmax(-1)
    assert answered(lm, rows, steer="hidden-cot") == want.tolist()


def test_what_thinks_is_frozen_and_its_chain_lies_behind_the_mark():
    """No gradient reaches it in the second stage, and in the first its state at the mark sees the
    question alone."""
    net = network()
    net = TrainableLlama(LlamaShape(261, 32, 2, 2, 1, 64, 64), seed=3)
    rows = [sums.draw_last_digit_sum(f"{i}", 3) for i in range(4)]
    state = hidden_cot.thinker_mark_states(net, rows)
    assert not state.requires_grad
    others = [sums.LastDigitSum(row.question, row.chain[::-1]) for row in rows]
    assert torch.equal(state, hidden_cot.thinker_mark_states(net, others))
    own = 8 * torch.eye(6)
    shuffled = own.roll(1, dims=0)
    assert (
        float(hidden_cot.info_nce_loss(own, own))
        < 1e-2
        < float(hidden_cot.info_nce_loss(own, shuffled))
    )


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"kind": "x"}, "kind is 'x'"),
        ({"reasoning": "words"}, "reasoning is 'words'"),
        ({"width": 40}, "width is 40: it must be a multiple of 32"),
        ({"nodes": 7}, "nodes is 7: it must be even and lie in 8"),
        ({"nodes": 6}, "nodes is 6: it must be even and lie in 8"),
        ({"hops": 0}, "hops is 0"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, fields, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        train_context(ContextSpec(str(tmp_path), **fields))
    assert sentence in str(error.value)


def test_kinds_are_files():
    from pkgutil import iter_modules

    from polydec.lab.train import contexts

    assert {m.name.replace("_", "-") for m in iter_modules(contexts.__path__)} == set(KINDS)


@pytest.mark.parametrize("reasoning", ["chain", "none"])
@pytest.mark.parametrize("kind", ["continuous-cot", "hidden-cot"])
def test_what_they_are_measured_beside(tmp_path, kind, reasoning):
    spec = ContextSpec(str(tmp_path), kind=kind, reasoning=reasoning, nodes=8, **SMALL)
    assert "right" in train_context(spec) and load(spec.out, draft=None)


def test_what_thinks_learns_to_be_near_its_own_steps():
    """The loss holds both the written steps and the contrastive part, each as large as by hand."""
    net = TrainableLlama(LlamaShape(261, 32, 2, 2, 1, 64, 64), seed=3)
    rows = [sums.draw_last_digit_sum(f"{i}", 3) for i in range(5)]
    chain_BT = torch.tensor([hidden_cot.encode_sum_text(row.chain) for row in rows])
    asked_BT = hidden_cot.encode_sum_questions(rows, hidden_cot.IDS[hidden_cot.MARK])
    at = asked_BT.shape[1] - 1
    with torch.no_grad():
        logits_BTV = net(torch.cat([asked_BT, chain_BT], dim=1))[:, at:-1]
        written = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), chain_BT.flatten())
        like_BB = torch.nn.functional.cosine_similarity(
            hidden_cot.thinker_mark_states(net, rows)[:, None],
            hidden_cot.of_chains(net, rows)[None],
            dim=-1,
        )
        sharp_BB = hidden_cot.SHARPNESS * like_BB
        apart = -(sharp_BB.log_softmax(0) + sharp_BB.log_softmax(1)).diagonal().mean() / 2
        loss = hidden_cot.thinking_loss(net, rows)
    assert float(apart) > 0.1
    assert float(loss) == pytest.approx(float(written + apart), abs=1e-4)


def test_a_thought_is_asked_for_every_node_of_its_frontier():
    """In graphs of twelve nodes, where frontiers hold several."""
    rows = [graphs.draw_reachability_graph(f"{i}", 12, 3) for i in range(12)]
    several = 0
    for depth in (1, 2, 3):
        law_BV = continuous_cot.frontier_node_law(rows, depth)
        for law_V, row in zip(law_BV, rows, strict=True):
            nodes = row.frontier[depth - 1]
            several += len(nodes) > 1
            wanted_V = torch.zeros_like(law_V)
            wanted_V[[continuous_cot.IDS[x] for x in nodes]] = 1.0 / len(nodes)
            assert torch.equal(law_V, wanted_V)
    assert several > 10


def test_what_answers_begins_as_what_thinks(tmp_path, monkeypatch):
    """The second model has the first one's weights, which differ from those of a new one."""
    spec = ContextSpec(str(tmp_path), kind="hidden-cot", **SMALL)
    thinker = hidden_cot.new_sum_network(ContextSpec("x", kind="hidden-cot", seed=7, **SMALL))

    def train_thinker(name, first, course):
        hidden_cot.save_network(tmp_path / "thinker", thinker)
        return {"found_again": 0.0}

    monkeypatch.setattr(hidden_cot, "run_training", train_thinker)
    network = hidden_cot._answering(spec).network.network
    compared = 0
    for name, tensor in thinker.state_dict().items():
        assert torch.equal(network.state_dict()[name], tensor), name
        compared += 1
    assert compared > 10
    new = hidden_cot.new_sum_network(spec).state_dict()
    assert any(not torch.equal(new[name], x) for name, x in thinker.state_dict().items())
