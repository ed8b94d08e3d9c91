"""Known faults of the package, as changes of its text, and what `verify` must say of each: the evidence and the place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """`old` becomes `new` in `file`; the evidence `by` over `method` must then name `where`."""

    name: str
    file: str
    old: str
    new: str
    by: str
    method: str
    where: str


KNOWN = [
    Known(
        "acceptance turned round",
        "methods/speculative/verifiers/exact.py",
        "chance = min(1.0, p / (share * q))",
        "chance = min(1.0, share * q / max(p, 1e-300))",
        "enumeration",
        "draft-model",
        "verdict: toy law",
    ),
    Known(
        "a sibling sees those before it",
        "methods/speculative/verifiers/exact.py",
        "left[id(law_V)] = exclude_token(q_V, token)",
        "left[id(law_V)] = q_V",
        "enumeration",
        "rsd-c",
        "verdict: toy law",
    ),
    Known(
        "the residual of a rejected draft is that of its parent",
        "core/law.py",
        "r = (p_V - q_V).clamp_(min=0.0)",
        "r = (p_V - 0.5 * q_V).clamp_(min=0.0)",
        "enumeration",
        "draft-model",
        "verdict: toy law",
    ),
    Known(
        "noise of one position serves a whole path",
        "methods/speculative/verifiers/coupled.py",
        'rng.child_stream("token", position + depth)\n',
        'rng.child_stream("token", position)\n',
        "enumeration",
        "draft-model-coupled",
        "verdict: toy law",
    ),
    Known(
        "a path draws under one name",
        "methods/speculative/verifiers/match.py",
        'rng.child_stream("token", position + depth)',
        'rng.child_stream("token", position)',
        "enumeration",
        "token-recycling",
        "randomness: toy law",
    ),
    Known(
        "a chain draws under one name",
        "methods/speculative/trees/chain.py",
        'categorical_pick(rng.child_stream("draft", position, depth))',
        'categorical_pick(rng.child_stream("draft", position))',
        "enumeration",
        "draft-model",
        "randomness: toy law",
    ),
    Known(
        "rules hear of the token before",
        "laws/targets/shaped.py",
        "s.next_state(x, node.token) for s, x",
        "s.next_state(x, node.above.token) for s, x",
        "enumeration",
        "prompt-lookup",
        "law: toy law",
    ),
    Known(
        "what was written is never told to the rules",
        "laws/targets/shaped.py",
        "            kid = self.tip.next_node(x)\n            self.tip.kids.clear()",
        "            kid = Node(self.tip.above, x) if self.tip.above else self.tip.next_node(x)\n"
        "            self.tip.kids.clear()",
        "enumeration",
        "draft-model",
        "law: toy law",
    ),
    Known(
        "a gap is filled with its likeliest token",
        "methods/diffusion/loop/types.py",
        "return own.draw_categorical(float64_probabilities(self.shaped_RV[i]))",
        "return int(self.shaped_RV[i].argmax())",
        "enumeration",
        "mdlm",
        "unmasking: toy law",
    ),
    Known(
        "two gaps are filled at once",
        "methods/diffusion/unmaskers/left_to_right.py",
        "range(bounded_pass_quota(state, self.steps, len(look.rows)))",
        "range(min(2, len(look.rows)))",
        "enumeration",
        "left-to-right",
        "unmasking: toy law",
    ),
    Known(
        "gaps in no order are filled from the left",
        "methods/diffusion/unmaskers/at_random.py",
        'rng.child_stream("order", look.step).without_replacement(\n            '
        "even_R, bounded_pass_quota(state, self.steps, len(look.rows))\n        )",
        "range(bounded_pass_quota(state, self.steps, len(look.rows)))",
        "canvas",
        "mdlm",
        "order: ",
    ),
    Known(
        "what is filled from the left is filled from the right",
        "methods/diffusion/unmaskers/left_to_right.py",
        "range(bounded_pass_quota(state, self.steps, len(look.rows)))",
        "range(len(look.rows) - bounded_pass_quota(state, self.steps, len(look.rows)), len(look.rows))",
        "canvas",
        "left-to-right",
        "order: ",
    ),
    Known(
        "a canvas sees a gap where the last token stands",
        "methods/diffusion/loop/denoising.py",
        "logw_RV = await self.board.score_canvas(spot.canvas, asked, feed)",
        "logw_RV = await self.board.score_canvas((None, *spot.canvas[1:]), asked, feed)",
        "canvas",
        "mdlm",
        "cache: ",
    ),
    Known(
        "beginnings of a tree of thoughts are booked one after the other",
        "methods/search/loop/attempt.py",
        "return replace(total, passes=max((stats.passes for stats in spent), default=0))",
        "return total",
        "search",
        "stoc-tot",
        "passes are booked",
    ),
    Known(
        "rules of a search hear one token too few where its texts part",
        "laws/targets/shaped.py",
        "[trail.draft.token[i] for i in trail.draft.subtree_below(root, nodes)[0]]\n",
        "[trail.draft.token[i] for i in trail.draft.subtree_below(root, nodes)[0]][1:]\n",
        "toys",
        "beam",
        "toy law",
    ),
    Known(
        "rules of a search hear of the token before",
        "laws/targets/shaped.py",
        "s.next_state(x, node.token) for s, x",
        "s.next_state(x, node.above.token) for s, x",
        "toys",
        "best-of-n",
        "toy law",
    ),
    Known(
        "what is told of a token is told of another branch",
        "methods/search/loop/stochastic_beam.py",
        "logprobs_at_nodes(scores, (racer.node,), (token,), asked)",
        "logprobs_at_nodes(scores, (0,), (token,), asked)",
        "toys",
        "stochastic-beam-search",
        "toy law",
    ),
    Known(
        "each of several independent drafts is tried as if it were alone",
        "methods/speculative/verifiers/k_seq.py",
        "rho = smallest_rho(p_V, q_V, size)",
        "rho = 1.0",
        "enumeration",
        "spectr",
        "verdict: toy law",
    ),
    Known(
        "an approximate method draws from a colder law than its own",
        "methods/speculative/verifiers/match.py",
        "float64_probabilities(scores.logprob_row(node))\n",
        "float64_probabilities(scores.logprob_row(node)) ** 2\n",
        "distance",
        "entropy-adaptive",
        "against its own law, ",
    ),
]
