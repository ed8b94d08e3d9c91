"""What diverse beam search finds, written from its paper's card: fresh sessions, no cache, no tree."""

from collections import Counter

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest

PROMPT = (0, 1, 0)


def groups_of_texts(target, length, width, groups, strength, alpha):
    """Of each group its (score, text), the best first. A group that cannot get better stops, and charges the others no more."""
    b, eos = width // groups, target.vocab.eos

    def row(text):
        async def ask():
            return (
                (
                    await target.open_session((*PROMPT, *text)).score_draft(
                        Draft.chain_draft((*PROMPT, *text)[-1]), ScoreRequest()
                    )
                )
                .logprob_row(0)
                .tolist()
            )

        return run_coroutines([ask()])[0]

    live, done = [[((), 0.0)] for _ in range(groups)], [[] for _ in range(groups)]
    for _ in range(length):
        count = Counter()
        for g in range(groups):
            options = sorted(
                (
                    (s + p - strength * count[x], (*t, x))
                    for t, s in live[g]
                    for x, p in enumerate(row(t))
                ),
                reverse=True,
            )
            live[g], mine = [], []
            for rank, (s, t) in enumerate(options):
                if len(live[g]) == b:
                    break
                if t[-1] in eos or len(t) == length:
                    if rank < b:
                        done[g].append((s / len(t) ** alpha, t))
                        mine.append(t[-1])
                else:
                    live[g].append((t, s))
                    mine.append(t[-1])
            count.update(mine)
            pool = sorted(done[g], reverse=True)
            if len(pool) >= b and live[g]:
                longest = length if alpha > 0 else len(live[g][0][0])
                live[g] = [] if live[g][0][1] / longest**alpha <= pool[b - 1][0] else live[g]
    return [sorted(d, reverse=True)[:b] for d in done]


def ranked(found):
    """All groups' texts, the best first; of equal ones the best."""
    once = {}
    for score, text in sorted((x for group in found for x in group), reverse=True):
        once.setdefault(text, score)
    return [(score, text) for text, score in once.items()]
