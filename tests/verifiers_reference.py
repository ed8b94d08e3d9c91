"""What the published rules of approximate verifiers say follows a node of a draft, written without the verifiers: for each
outcome the child that is accepted (None: none is), the token, and how likely that is."""

from dataclasses import replace

from polydec.core.types import DrawKind
from polydec.lab.testing.examples import example_mechanism
from polydec.methods.registry import registry


def probabilities(scores, node):
    only = scores.certain_token(node)
    if only is None:
        return scores.logprob_row(node).double().exp().tolist()
    return [float(x == only) for x in range(only + 1)]


def instead(draft, scores, node, stands_in):
    """The target's own token; where no child has it, the first child that stands in for it."""
    children = draft.children[node]
    for token, p in enumerate(probabilities(scores, node)):
        if p:
            own = [c for c in children if draft.token[c] == token]
            taken = next(iter(own or [c for c in children if stands_in(c)]), None)
            yield taken, token if taken is None else draft.token[taken], p


def near_best(top, tolerance):
    def rule(draft, scores, node):
        row_V = scores.base.logprob_row(node)
        order = sorted(range(len(row_V)), key=lambda x: (-float(row_V[x]), x))
        best = float(row_V[order[0]])
        near = {x for x in order[:top] if best - float(row_V[x]) <= tolerance}
        return list(instead(draft, scores, node, lambda c: draft.token[c] in near))

    return rule


def judged(judge, threshold):
    def rule(draft, scores, node):
        found_right = lambda c: judge.token_chance(scores.hidden_NH[c]) > threshold  # noqa: E731
        return list(instead(draft, scores, node, found_right))

    return rule


def trust(draft, scores, node):
    if draft.children[node]:
        first = draft.children[node][0]
        return [(first, draft.token[first], 1.0)]
    return [(None, x, p) for x, p in enumerate(probabilities(scores, node)) if p]


def lenient(lenience):
    """Drawn children in turn, each with min(1, p / (lenience q)); of those that are certain the one that the target draws."""

    def rule(draft, scores, node):
        only = scores.certain_token(node)
        if only is not None:
            return [(draft.child_of(node, only), only, 1.0)]
        p, left, out = probabilities(scores, node), 1.0, []
        children, seen = list(draft.children[node]), {}
        while any(draft.law[c] is not None for c in children):
            child = children.pop(0)
            token, law_V = draft.token[child], draft.law[child]
            q = [float(x == token) for x in range(len(p))]
            if law_V is not None:
                gone = (
                    seen.setdefault(id(law_V), []) if draft.draw[child] is DrawKind.WITHOUT else []
                )
                rest = [0.0 if x in gone else float(v.exp()) for x, v in enumerate(law_V.double())]
                gone.append(token)
                if sum(rest) > 1e-12:
                    q = [v / sum(rest) for v in rest]
            share = 1.0 if law_V is None else lenience
            chance = 0.0 if not p[token] else min(1.0, p[token] / (share * q[token]))
            out.append((child, token, left * chance))
            left *= 1.0 - chance
            above = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            if law_V is None:
                above = [0.0 if x == token else v for x, v in enumerate(p)]
            if sum(above) > 1e-15:
                p = [v / sum(above) for v in above]
        own = {draft.token[c]: c for c in reversed(children)}
        out += [(own.get(x), x, left * v) for x, v in enumerate(p) if v]
        return [outcome for outcome in out if outcome[2] > 0.0]

    return rule


def neighbourhood(verifier):
    """The first child whose look-alikes have enough together; else the target's own token."""
    levels = verifier.upsampler.tiles.flatten(1).double()

    def alike(token):
        if token >= len(levels):
            return [token]
        far = (levels - levels[token]).norm(dim=1).tolist()
        return sorted(range(len(far)), key=lambda x: (x != token, far[x]))[: verifier.near]

    def rule(draft, scores, node):
        p = probabilities(scores, node)
        for child in draft.children[node]:
            token = draft.token[child]
            if sum(p[x] for x in alike(token) if x < len(p)) >= verifier.threshold:
                return [(child, token, 1.0)]
        own = {draft.token[c]: c for c in reversed(draft.children[node])}
        return [(own.get(x), x, v) for x, v in enumerate(p) if v]

    return rule


RULES = {
    "neighbourhood": neighbourhood,
    "near_best": lambda v: near_best(v.top, v.tolerance),
    "judged": lambda v: judged(v.judge, v.threshold),
    "trust": lambda v: trust,
    "lenient": lambda v: lenient(v.lenience),
}
"""By the name of a verifier's file, the rule of one with its settings."""


SETTINGS = {"judged": {"threshold": 0.36}, "neighbourhood": {"near": 2, "threshold": 0.5}}


def example_verifier(name):
    """A verifier under which something of each kind happens: a random judge is seldom sure of a toy's states, and of few tiles
    most are neighbours."""
    verifier = example_mechanism(registry.mechanism_classes("verifiers")[name])
    return replace(verifier, **SETTINGS.get(name, {}))
