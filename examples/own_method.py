"""Write a decoding method of your own, and see that it changes nothing but the number of passes.

    python examples/own_method.py

It drafts what followed the last token when that token stood in the text before. docs/adding-a-method.md goes on from
here: how it becomes a method of the command line and of the server, and how it is tested.
"""

import polydec
from polydec.core.decoder import run_decoder
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


class Followers:
    """The drafter. It is shared by all texts, so it remembers nothing itself."""

    def open_guess(self, prompt, session):
        return Following(prompt)


class Following(DraftGuess):
    """The drafter at work on one text."""

    want = ScoreRequest(law=RowDetail.NOTHING)  # what it must see of the model: nothing

    def __init__(self, text):
        self.text = list(text)

    async def propose_draft(self, root, position, budget, rng):
        after = dict(zip(self.text, self.text[1:]))  # the latest follower of each token
        chain = [root]
        while len(chain) <= budget.depth and chain[-1] in after:
            chain.append(after[chain[-1]])
        return polydec.Draft.chain_draft(root, chain[1:])

    def learn_round(self, draft, scores, verdict):
        self.text += verdict.written_tokens(draft)

    def fork_guess(self, session, choice=None):
        return Following(self.text)

    def close(self): ...


model = polydec.load("zoo:tiny")
prompt = model.encode_prompt("red, green, blue, red, green, blue, red,", raw=True)
greedy = polydec.build_shapers(polydec.Sampling(temperature=0))
law = polydec.ShapedTarget(model.checkpoint.lm, *greedy)
method = polydec.SpeculativeDecoder(law, Followers(), MatchVerifier(), FixedPolicy(4))
request = polydec.Request(prompt, max_tokens=32, ignore_eos=True)
((mine,),) = run_coroutines([run_decoder(method, request)])

plain = polydec.generate(model, prompt, method="plain", max_tokens=32, ignore_eos=True)
assert mine.token_ids == plain.token_ids  # the model checks every draft
print(model.checkpoint.text.decode(mine.token_ids))
print(f"{plain.metrics['target_passes']} passes by plain decoding, {mine.stats.passes} by this one")
