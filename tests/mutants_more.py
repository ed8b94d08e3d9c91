"""Known faults of sessions, the engine, replies, walks, contrasts and rules of canvases, and the tests that must see them."""

from mutant import Mutant

MUTANTS = [
    Mutant(
        "unsure answers of a path weigh as much as sure ones",
        "families/search/multi_view.py",
        "return self.chance * self.sure",
        "return self.chance",
        "tests/families/test_multi_view.py::test_the_vote_is_that_of_the_formula",
    ),
    Mutant(
        "unlikely first tokens are followed as well",
        "families/search/multi_view.py",
        "if chance[x] >= plan.least]",
        "if chance[x] >= 0.0]",
        "tests/families/test_multi_view.py::test_the_vote_is_that_of_the_formula",
    ),
    Mutant(
        "a fused search lets a text end wherever it may",
        "families/search/fused_beam.py",
        "tokens, logp = zip(*((x, p) for x, p in zip(tokens, logp) if x not in ends))",
        "pass",
        "tests/families/test_fused_beam.py::test_it_is_the_published_search",
    ),
    Mutant(
        "an end that is likeliest in a fused search does not stand alone",
        "families/search/fused_beam.py",
        "tokens, logp = tokens[:1], logp[:1]",
        "pass",
        "tests/families/test_fused_beam.py::test_it_is_the_published_search",
    ),
    Mutant(
        "the verdict on a text counts what was read before it",
        "families/search/fused_beam.py",
        "nats = total - self._begun[0]",
        "nats = total",
        "tests/families/test_fused_beam.py::test_it_is_the_published_search",
    ),
    Mutant(
        "a verdict forgets the tokens that are not written yet",
        "targets/covers.py",
        "going = float(chance_R.logsumexp(0))",
        "going = 0.0",
        "tests/families/test_fused_beam.py::test_the_verdict_is_the_sum_over_all_spellings",
    ),
    Mutant(
        "a trained tree is credited with what copies would have brought",
        "drafters/cost_aware.py",
        "ledger.tree.observe(plain.step, len(verdict.path) - came)",
        "ledger.tree.observe(plain.step, len(verdict.path))",
        "tests/drafters/test_cost_aware.py::test_a_tree_that_names_what_is_there_anyway_brings_nothing",
    ),
    Mutant(
        "nobody looks at what a trained tree has brought",
        "drafters/cost_aware.py",
        "ledger.tree.observe(plain.step, len(verdict.path) - came)",
        "pass",
        "tests/drafters/test_cost_aware.py::test_a_trained_tree_that_is_wrong_is_soon_left_alone",
    ),
    Mutant(
        "one bad stretch of a trained tree is for good",
        "drafters/priced_tree.py",
        """        self.counts.right[step] *= FADE
        self.counts.tried[step] *= FADE
""",
        """        self.counts.right[step] *= FADE
""",
        "tests/drafters/test_cost_aware.py::test_a_class_of_steps_in_which_a_tree_brought_nothing_is_tried_again",
    ),
    Mutant(
        "a trained tree brings the same however often it is right",
        "drafters/priced_tree.py",
        "return BRINGS[step] * self.right / RIGHT",
        "return BRINGS[step]",
        "tests/drafters/test_cost_aware.py::test_what_a_tree_brings_follows_how_often_it_is_right",
    ),
    Mutant(
        "company does not make the rows of a trained tree dearer",
        "drafters/priced_tree.py",
        "return self.first_ms + self.level_ms + row_ms",
        "return self.first_ms + self.level_ms",
        "tests/drafters/test_cost_aware.py::test_what_a_tree_brings_follows_how_often_it_is_right",
    ),
    Mutant(
        "a level of a trained tree that named nothing costs nothing",
        "drafters/priced_tree.py",
        "(min(depth, max(draft.depth) + 1) - 1)",
        "(min(depth, max(draft.depth)) - 1)",
        "tests/drafters/test_cost_aware.py::test_what_a_tree_took",
    ),
    Mutant(
        "a step's class follows tokens further below",
        "drafters/priced_tree.py",
        "firsts = draft.children[0] if draft.chance else ()",
        "firsts = range(1, len(draft)) if draft.chance else ()",
        "tests/drafters/test_cost_aware.py::test_the_class_of_a_step_is_its_best_first_chance",
    ),
    Mutant(
        "a second source's tokens all stand below the root",
        "drafting/mixing.py",
        "tree.put(place[second.parent[i]], second.token[i])",
        "tree.put(0, second.token[i])",
        "tests/drafters/test_mixing.py::test_two_trees_become_one",
    ),
    Mutant(
        "a fork of a text shares its trained tree",
        "drafters/cost_aware.py",
        "tree=None if self.tree is None else self.tree.fork(session, choice),",
        "tree=self.tree,",
        "tests/drafters/test_cost_aware.py::test_a_fork_has_a_tree_of_its_own",
    ),
    Mutant(
        "states that were not computed are taken as answered",
        "models/depths.py",
        """        if (want.hidden and answer.hidden_RH is None) or (
            law and answer.logits_RV is None and answer.later is None
        ):
""",
        """        if law and answer.logits_RV is None and answer.later is None:
""",
        "tests/models/test_session.py::test_states_are_given_whatever_was_asked_before",
    ),
    Mutant(
        "what some layers had committed stays noted although it is forgotten",
        "models/ledger.py",
        """        if skipped is not None and not skipped.evicted and self.cache.length <= skipped.first:
            self.skipped = None
""",
        """        if skipped is not None and not skipped.evicted and self.cache.length < skipped.first:
            self.skipped = None
""",
        "tests/models/test_parts.py::test_what_was_skipped_is_fed_again_once",
    ),
    Mutant(
        "what some layers had committed is never forgotten",
        "models/ledger.py",
        """        if skipped is not None and not skipped.evicted and self.cache.length <= skipped.first:
            self.skipped = None
""",
        """        if skipped is not None and not skipped.evicted and self.cache.length <= skipped.first:
            pass
""",
        "tests/models/test_parts.py::test_a_rewind_to_what_the_whole_has_seen_forgets_the_part",
    ),
    Mutant(
        "one answer fewer than may be is written at a time",
        "request/engine.py",
        "if self._running and answers + ticket.plan.request.n > self.max_running:",
        "if self._running and answers + ticket.plan.request.n >= self.max_running:",
        "tests/engine/test_engine.py::test_as_many_answers_are_written_at_once_as_may_be",
    ),
    Mutant(
        "the youngest request on hold goes on first",
        "request/engine.py",
        "self._held.insert(0, ticket)",
        "self._held.append(ticket)",
        "tests/engine/test_engine.py::test_requests_on_hold_go_on_in_their_order",
    ),
    Mutant(
        "an answer with calls that was cut counts as ended",
        "serve/reply.py",
        'return "tool_calls" if calls and whole and finish_reason == "stop" else finish_reason',
        'return "tool_calls" if calls and whole else finish_reason',
        "tests/serve/test_tools.py::test_an_answer_that_is_cut_behind_its_calls_says_so",
    ),
    Mutant(
        "offsets of a stream begin anew with each chunk",
        "serve/reply.py",
        "self._logprobs(news.notes, self._offsets[news.index])",
        "self._logprobs(news.notes, Offsets(len(self.echoes[news.index])))",
        "tests/serve/test_api.py::test_offsets_of_a_stream_go_on_from_chunk_to_chunk",
    ),
    Mutant(
        "the drafter's wish for the model's own rows is lost",
        "families/ar/walk.py",
        "base=max(guess.want.base, base)",
        "base=base",
        "tests/core/test_decode.py::test_every_pass_reads_what_the_drafter_and_the_request_ask_for",
    ),
    Mutant(
        "a round that is cut teaches its last token twice",
        "families/ar/walk.py",
        "path=verdict.path[: len(tokens) - 1]",
        "path=verdict.path[: len(tokens)]",
        "tests/core/test_decode.py::test_a_round_that_is_cut_teaches_each_token_once",
    ),
    Mutant(
        "a drafter is shown the prompt's last row as another token's",
        "families/ar/walk.py",
        "prompt[:-1] if want.prompt else prompt[-2:-1]",
        "prompt[:-1] if want.prompt else prompt[:1]",
        "tests/core/test_decode.py::test_a_drafter_that_wants_the_last_row_is_shown_that_one",
    ),
    Mutant(
        "behind a closed gate nobody hears which branches were kept",
        "targets/contrast.py",
        "                session.commit(path)\n",
        "                pass\n",
        "tests/targets/test_contrast.py::test_branches_that_are_kept_behind_a_closed_gate",
    ),
    Mutant(
        "a margin is one of log-probabilities",
        "unmaskers/margin.py",
        "look.logp_RV.exp().topk(2, dim=-1)",
        "look.logp_RV.topk(2, dim=-1)",
        "tests/families/test_denoising.py::test_a_margin_is_of_probabilities",
    ),
    Mutant(
        "what the pass before has written keeps what a gap saw",
        "refreshes/delayed.py",
        "if before[i] is None]",
        "if canvas[i] is None]",
        "tests/families/test_denoising.py::test_what_is_fed_by_its_definition",
    ),
    Mutant(
        "a window is one gap too narrow",
        "refreshes/window.py",
        "around(at, left)[: self.width]",
        "around(at, left)[: max(0, self.width - 1)]",
        "tests/families/test_denoising.py::test_what_is_fed_by_its_definition",
    ),
    Mutant(
        "a window leaves out what was written behind it",
        "refreshes/window.py",
        "if x is not None and before[i] is None]",
        "if x is not None and before[i] is None and i < block.stop]",
        "tests/families/test_denoising.py::test_what_is_fed_by_its_definition",
    ),
    Mutant(
        "of what was written late before a block only the last is fed again",
        "refreshes/frozen.py",
        "min((block.start, *late))",
        "min((block.start, *late[-1:]))",
        "tests/families/test_denoising.py::test_what_is_fed_by_its_definition",
    ),
    Mutant(
        "forked guesses share what they have read",
        "drafters/forced.py",
        "        return ForcedGuess(self.config, self.state)\n",
        "        return self\n",
        "tests/constraints/test_languages.py::test_forked_guesses_go_their_own_ways",
    ),
    Mutant(
        "a forked guess begins anew",
        "drafters/forced.py",
        "        return ForcedGuess(self.config, self.state)\n",
        "        return self.config.open((), session)\n",
        "tests/constraints/test_languages.py::test_forked_guesses_go_their_own_ways",
    ),
    Mutant(
        "remasking takes back the surest tokens",
        "families/diffusion/remasking.py",
        "key=lambda p: (self.sure[p], p)",
        "key=lambda p: (-self.sure[p], p)",
        "tests/families/test_remasking.py::test_it_is_the_published_loop",
    ),
    Mutant(
        "remasking keeps how sure the first writing was",
        "families/diffusion/remasking.py",
        "self.sure |= {p: float(look.logp_RV[at[p], x]) for p, x in step.edit.write}",
        "self.sure = {p: float(look.logp_RV[at[p], x]) for p, x in step.edit.write} | self.sure",
        "tests/families/test_remasking.py::test_it_is_the_published_loop",
    ),
    Mutant(
        "remasking waits until a block is whole",
        "families/diffusion/remasking.py",
        ">= how.late * self.given",
        ">= 1 + self.given",
        "tests/families/test_remasking.py::test_it_is_the_published_loop",
    ),
    Mutant(
        "a token streams that remasking takes back",
        "families/diffusion/remasking.py",
        "replace(after, final=self.start if self.done < how.again else first)",
        "replace(after, final=first)",
        "tests/families/test_remasking.py::test_nothing_is_final_that_may_be_taken_back",
    ),
]
