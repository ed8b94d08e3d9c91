"""Mutants that take out what gives a published system its name, and that once no test noticed."""

from mutant import Mutant

SUPERPOSED = "methods/search/loop/superposed.py"
SUPERPOSED_TESTS = "tests/methods/search/test_superposed.py"
DPARALLEL = "lab/train/dparallel.py"
DPARALLEL_TESTS = "tests/lab/train/test_train_diffusion.py"
CONTEXT_TESTS = "tests/lab/train/test_train_context.py"
REFRAG_TESTS = "tests/methods/steering/test_refrag.py"
ANSWER_TESTS = "tests/lab/train/test_train_answers.py"
GLANCE_TESTS = "tests/methods/speculative/drafters/test_block_filled.py"
PLANNER = "models/learned/kinds/plan_extractor.py"
PLAN_GUIDED = "methods/search/loop/plan_guided.py"
PLAN_GUIDED_TESTS = "tests/methods/search/test_plan_guided.py"
TRAIN_PLANS_TESTS = "tests/lab/train/test_train_plans.py"
BYTE_WORDS = "models/nets/byte_words.py"
BYTE_WORDS_TESTS = "tests/lab/train/test_byte2word.py"
SUPERLINEAR = "models/nets/superlinear.py"
SUPERLINEAR_RULE = "models/formats/superlinear.py"
SUPERLINEAR_TESTS = "tests/models/nets/test_superlinear.py"
BY_ROWS = f"{SUPERLINEAR_TESTS}::test_masks_are_the_published_steps_row_by_row"
IN_CHUNKS = (
    f"{SUPERLINEAR_TESTS}::test_a_network_in_training_and_one_that_decodes_agree_in_any_chunks"
)
TRAIN_SUPERLINEAR_TESTS = "tests/lab/train/test_train_superlinear.py"
BEAM = "methods/search/loop/diverse_beam.py"
OUTCOME = "models/learned/kinds/outcome_head.py"
CONDITIONAL_TESTS = "tests/methods/search/test_conditional_beam.py"
HIDDEN_STATES = "lab/bench/hidden_states.py"
HIDDEN_STATES_TESTS = "tests/lab/bench/test_hidden_states.py"

MUTANTS = [
    Mutant(
        "hidden states: a segment is scored behind its own step",
        HIDDEN_STATES,
        "self.past = list(zip(moved[::2], moved[1::2], strict=True))\n        return nats_T.detach()",
        "old, self.past = self.past, list(zip(moved[::2], moved[1::2], strict=True))\n"
        "        behind = [(k[:, :, : len(token_T) - 1], v[:, :, : len(token_T) - 1]) for k, v in self.past]\n"
        "        return self._nats(token_T, old and behind)[0].detach()",
        f"{HIDDEN_STATES_TESTS}::test_a_segment_is_scored_before_anything_changes",
    ),
    Mutant(
        "hidden states: nothing changes",
        HIDDEN_STATES,
        "return entries_BHPD - step * ",
        "return entries_BHPD - 0 * step * ",
        f"{HIDDEN_STATES_TESTS}::test_a_small_step_makes_the_same_segment_likelier",
    ),
    Mutant(
        "hidden states: steps go up",
        HIDDEN_STATES,
        "return entries_BHPD - step * ",
        "return entries_BHPD + step * ",
        f"{HIDDEN_STATES_TESTS}::test_a_small_step_makes_the_same_segment_likelier",
    ),
    Mutant(
        "hidden states: entries share a step counter",
        HIDDEN_STATES,
        "self.steps_P = F.pad(self.steps_P, (0, new)) + 1",
        "self.steps_P = F.pad(self.steps_P, (0, new), value=float(self.steps_P.amax()) if len(self.steps_P) else 0.0) + 1",
        f"{HIDDEN_STATES_TESTS}::test_entries_count_their_own_steps_and_begin_with_nothing",
    ),
    Mutant(
        "hidden states: entries have no bound",
        HIDDEN_STATES,
        "* (most / size.clamp(min=1e-30)).clamp(max=1.0)",
        "* (most / size.clamp(min=1e-30)).clamp(min=1.0)",
        f"{HIDDEN_STATES_TESTS}::test_no_entry_moves_further_than_its_bound",
    ),
    Mutant(
        "hidden states: means are not corrected",
        HIDDEN_STATES,
        "mean = self.first_BHPD / (1 - a**self.steps_P)[:, None]",
        "mean = self.first_BHPD",
        f"{HIDDEN_STATES_TESTS}::test_a_first_step_of_adam_is_the_sign_of_the_gradient",
    ),
    Mutant(
        "conditional beam: chances are summed over steps",
        BEAM,
        "out += [(beam.total + v, chance, beam, x)",
        "out += [(beam.total + v + chance, chance, beam, x)",
        f"{CONDITIONAL_TESTS}::test_the_newest_chance_counts_and_no_sum_over_steps",
    ),
    Mutant(
        "conditional beam: the condition ranks nothing",
        BEAM,
        "key=lambda option: -(option[0] + option[1])",
        "key=lambda option: -option[0]",
        f"{CONDITIONAL_TESTS}::test_one_beam_takes_the_token_of_the_best_sum_each_time",
    ),
    Mutant(
        "conditional beam: whatever ends is an answer",
        BEAM,
        "if not self.condition.is_met(said, len(after.text.tokens)):",
        "if self.condition is None:",
        f"{CONDITIONAL_TESTS}::test_a_wide_search_gives_the_likeliest_texts_of_the_condition",
    ),
    Mutant(
        "conditional beam: what was foretold stays at the end",
        BEAM,
        "after = replace(after, chance=0.0)",
        "after = replace(after, chance=chance - 1.0)",
        f"{CONDITIONAL_TESTS}::test_a_wide_search_gives_the_likeliest_texts_of_the_condition",
    ),
    Mutant(
        "conditional beam: few candidates are asked for",
        BEAM,
        "enough = max(enough, self.candidates)",
        "enough = min(enough, self.candidates)",
        f"{CONDITIONAL_TESTS}::test_only_the_likeliest_candidates_are_asked_for",
    ),
    Mutant(
        "conditional beam: the head reads no token",
        OUTCOME,
        " + embedding(token_NC, self.token_VI)",
        " + 0 * embedding(token_NC, self.token_VI)",
        f"{CONDITIONAL_TESTS}::test_a_head_reads_the_state_and_the_token",
    ),
    Mutant(
        "conditional beam: a head learns nothing of what texts became",
        "lab/train/probes/outcome.py",
        "labels += [float(met)] * len(s.output_ids)",
        "labels += [0.0] * (len(s.output_ids) - 1) + [float(met)]",
        f"{CONDITIONAL_TESTS}::test_every_beginning_has_the_label_of_its_text",
    ),
    Mutant(
        "superlinear: the first anchors are taken",
        SUPERLINEAR,
        "top, at = score.topk(rule.spans, -1)",
        "top, at = score[..., : rule.spans], torch.arange(rule.spans).expand(*score.shape[:-1], -1)",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: spans count alike",
        SUPERLINEAR,
        "gate = torch.softmax(top.masked_fill(none, 0.0), -1)",
        "gate = torch.softmax(top.masked_fill(none, 0.0).clamp(-1e-9, 1e-9), -1)",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: the gate has no gradient",
        SUPERLINEAR,
        "gate = torch.softmax(top.masked_fill(none, 0.0), -1)",
        "gate = torch.softmax(top.detach().masked_fill(none, 0.0), -1)",
        f"{SUPERLINEAR_TESTS}::test_the_search_learns_through_the_gate",
    ),
    Mutant(
        "superlinear: spans reach nothing behind their anchors",
        SUPERLINEAR,
        "first = (anchor - places.behind_T[:, None]).clamp(min=0)",
        "first = anchor.clamp(min=0)",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: spans reach nothing ahead",
        SUPERLINEAR,
        "anchor + places.ahead_T[:, None], end_T",
        "anchor, end_T",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: keys of the window count twice",
        SUPERLINEAR,
        "end_T = (places.window_T - 1)[:, None]",
        "end_T = places.position_T[:, None]",
        IN_CHUNKS,
    ),
    Mutant(
        "superlinear: no window is masked in",
        SUPERLINEAR,
        "seen = (at_T >= first) & (at_T <= last) | window_TT",
        "seen = (at_T >= first) & (at_T <= last)",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: no window is gathered",
        SUPERLINEAR,
        "size = min(self.rule.window_length, int(places.position_T.max()) + 1)",
        "size = 0",
        IN_CHUNKS,
    ),
    Mutant(
        "superlinear: the window has a softmax of its own",
        SUPERLINEAR,
        "window = weights[..., width:].sum(3)",
        "window = weights[..., width:].sum(3).softmax(-1)",
        IN_CHUNKS,
    ),
    Mutant(
        "superlinear: branches read by position",
        SUPERLINEAR,
        "slot_MP = None if self.slot_MP is None else self.slot_MP[rows]",
        "slot_MP = None",
        f"{SUPERLINEAR_TESTS}::test_branches_of_a_tree_read_their_own_paths",
    ),
    Mutant(
        "superlinear: anchors that the window stands for are searched",
        SUPERLINEAR_RULE,
        "distance = self._distances(most)[self.near :]",
        "distance = self._distances(most)",
        BY_ROWS,
    ),
    Mutant(
        "superlinear: anchors stand evenly",
        SUPERLINEAR_RULE,
        "return i * i",
        "return 3 * i - 2",
        f"{SUPERLINEAR_TESTS}::test_perfect_squares_are_whole_distances",
    ),
    Mutant(
        "superlinear: gaps between spans are let pass",
        SUPERLINEAR_RULE,
        "if (bad := (reach < need) | last_alone).any():",
        "if (bad := last_alone & False).any():",
        f"{SUPERLINEAR_TESTS}::test_spans_with_gaps_between_them_are_refused",
    ),
    Mutant(
        "superlinear: searches are not turned",
        "models/nets/transformer.py",
        "for part in (qk, qkv[:, own:])[: 2 if searching else 1]",
        "for part in (qk, qkv[:, own:])[:1]",
        IN_CHUNKS,
    ),
    Mutant(
        "superlinear: searches have no scale",
        "models/nets/transformer.py",
        "reorder_heads(search, H) * c.superlinear.search_scale",
        "reorder_heads(search, H)",
        IN_CHUNKS,
    ),
    Mutant(
        "superlinear: a dense model begins with a drawn search",
        "lab/train/exits.py",
        'weights.setdefault(name.replace("q_proj", "search_proj"), tensor)',
        'weights.setdefault(name.replace("q_proj", "search_proj"), torch.randn_like(tensor))',
        f"{TRAIN_SUPERLINEAR_TESTS}::test_a_dense_model_gets_its_own_queries_as_a_search",
    ),
    Mutant(
        "plan-guided: a clause stands in a plan twice",
        PLANNER,
        "logits_BN.scatter(1, plan_BP + FIRST, -math.inf)",
        "logits_BN.clone()",
        f"{PLAN_GUIDED_TESTS}::test_plans_are_the_likeliest_ones_by_enumeration",
    ),
    Mutant(
        "plan-guided: plans of the same clauses are written twice",
        PLANNER,
        "best.setdefault(frozenset(plan.clauses), plan)",
        "best.setdefault(frozenset(enumerate(plan.clauses)), plan)",
        f"{PLAN_GUIDED_TESTS}::test_plans_are_the_likeliest_ones_by_enumeration",
    ),
    Mutant(
        "plan-guided: all clauses are marked",
        PLAN_GUIDED,
        "mark_clauses(source, spans, plan.clauses, self.extractor.marks)",
        "mark_clauses(source, spans, range(len(spans)), self.extractor.marks)",
        f"{PLAN_GUIDED_TESTS}::test_every_text_is_the_beam_search_of_its_own_marks",
    ),
    Mutant(
        "plan-guided: marks take no room",
        "laws/targets/marked_source.py",
        "len(instead) + answer > context",
        "len(prompt) + answer > context",
        f"{PLAN_GUIDED_TESTS}::test_marks_that_leave_no_room_are_refused_before_the_model_reads",
    ),
    Mutant(
        "plan-guided: the first plan always wins",
        PLAN_GUIDED,
        "sorted(texts, key=lambda text: -(text.score or 0.0))",
        "list(texts)",
        f"{PLAN_GUIDED_TESTS}::test_the_model_judges_texts_by_the_source_without_marks",
    ),
    Mutant(
        "plan-guided: wrong marks are not unlearned",
        "lab/train/plan_likelihood.py",
        "loss = loss - (1 - chance_N).clamp(min=1e-5).log().mean()",
        "loss = loss + 0 * chance_N.mean()",
        f"{TRAIN_PLANS_TESTS}::test_the_loss_of_marks_is_likelihood_twice_and_unlikelihood_of_wrong_ones",
    ),
    Mutant(
        "plan-guided: no salience is learned",
        "lab/train/plan_extractor.py",
        "nats + salience * apart",
        "nats + 0 * apart",
        f"{TRAIN_PLANS_TESTS}::test_what_points_learns_plans_and_salience_whatever_stands_beside_a_pair",
    ),
    Mutant(
        "plan-guided: an oracle plan only grows",
        "lab/train/oracle_plans.py",
        "max((list(nearest), grown), key=plan_score)",
        "grown",
        f"{TRAIN_PLANS_TESTS}::test_an_oracle_plan_is_the_better_of_two",
    ),
    Mutant(
        "byte2word: bytes have no places",
        BYTE_WORDS,
        ' + w["places"][: row_QS.shape[1]]',
        "",
        f"{BYTE_WORDS_TESTS}::test_places_of_bytes_count",
    ),
    Mutant(
        "byte2word: a mean of the bytes in place of attention",
        BYTE_WORDS,
        'torch.einsum("nd,qsnd->qns", w["query"], key_QSND)',
        '0 * torch.einsum("nd,qsnd->qns", w["query"], key_QSND)',
        f"{BYTE_WORDS_TESTS}::test_a_vector_is_the_attention_of_each_learned_query",
    ),
    Mutant(
        "byte2word: what fills a word up is read",
        BYTE_WORDS,
        "row_QS[:, None] < 0",
        "row_QS[:, None] < -9",
        f"{BYTE_WORDS_TESTS}::test_what_fills_a_word_up_is_not_read",
    ),
    Mutant(
        "byte2word: all pieces of a word have one law",
        BYTE_WORDS,
        'state_RH + w["steps"][place_R]',
        'state_RH + w["steps"][0]',
        f"{BYTE_WORDS_TESTS}::test_pieces_of_a_word_are_independent_given_its_state",
    ),
    Mutant(
        "byte2word: a chained piece does not see the one before it",
        BYTE_WORDS,
        "    if c.chained:\n        seen_RH",
        "    if False:\n        seen_RH",
        f"{BYTE_WORDS_TESTS}::test_pieces_of_a_word_are_independent_given_its_state",
    ),
    Mutant(
        "superposed: the leader's embedding alone is fed",
        SUPERPOSED,
        "return (weight_N[:, None].to(embedded_NH) * embedded_NH).sum(0)",
        "return embedded_NH[0]",
        f"{SUPERPOSED_TESTS}::test_every_text_enters_by_its_weight",
    ),
    Mutant(
        "superposed: texts are mixed alike",
        SUPERPOSED,
        "dtype=torch.float64).softmax(0)",
        "dtype=torch.float64).mul(0.0).softmax(0)",
        f"{SUPERPOSED_TESTS}::test_every_text_enters_by_its_weight",
    ),
    Mutant(
        "superposed: the mixture never enters the model",
        SUPERPOSED,
        "self._mixture(live, session))",
        "0 * self._mixture(live, session) + session.embed_tokens([live[0].text.tokens[-1]])[0])",
        f"{SUPERPOSED_TESTS}::test_what_the_model_reads_is_the_mixture",
    ),
    Mutant(
        "superposed: the temperature is ignored",
        SUPERPOSED,
        "(logp_V.double() / self.temperature)",
        "(logp_V.double() / 1.0)",
        f"{SUPERPOSED_TESTS}::test_the_law_is_read_at_the_temperature",
    ),
    Mutant(
        "multi-prompting: every prompt goes to every prototype alike",
        "request/prototypes.py",
        "moved_NCPM = sinkhorn_plan(cost_NCPM, self.softness, self.rounds)",
        "moved_NCPM = torch.full_like(cost_NCPM, 1.0 / cost_NCPM[0, 0].numel())",
        "tests/request/test_classifier.py::test_prompts_go_to_the_prototypes_that_are_near_them",
    ),
    Mutant(
        "aggressive decoding: nothing is shown to the drafter in training",
        "lab/train/block_drafter.py",
        "[: int(share * wrong + rng.random())]",
        "[:0]",
        f"{GLANCE_TESTS}::test_a_share_of_what_is_wrong_is_shown",
    ),
    Mutant(
        "aggressive decoding: a step of training does not glance",
        "lab/train/block_drafter.py",
        "shown = lesson.show_hard_tokens(gaps, share, rng)",
        "shown = gaps",
        f"{GLANCE_TESTS}::test_a_step_glances_less_and_less",
    ),
    Mutant(
        "deer: the second stage never comes",
        "lab/train/deer.py",
        "lesson.training_row(s, step >= spec.steps, rng)",
        "lesson.training_row(s, False, rng)",
        "tests/lab/train/test_train_deer.py::test_the_second_stage_follows_the_first",
    ),
    Mutant(
        "hidden thoughts: no contrastive loss",
        "lab/train/contexts/hidden_cot.py",
        "return wrote + info_nce_loss(state_BTH[:, at], of_chains(network, rows))",
        "return wrote",
        f"{CONTEXT_TESTS}::test_what_thinks_learns_to_be_near_its_own_steps",
    ),
    Mutant(
        "continuous thoughts: one node of the frontier is asked for",
        "lab/train/contexts/continuous_cot.py",
        "law_V[encode_node_letters(row.frontier[depth - 1])] = 1.0 / len(row.frontier[depth - 1])",
        "law_V[encode_node_letters(row.frontier[depth - 1][:1])] = 1.0",
        f"{CONTEXT_TESTS}::test_a_thought_is_asked_for_every_node_of_its_frontier",
    ),
    Mutant(
        "dparallel: half of a block does not arrive",
        DPARALLEL,
        "                spec.half,\n",
        "                False,\n",
        f"{DPARALLEL_TESTS}::test_a_run_masks_half_and_trains_adapters_where_told_so",
    ),
    Mutant(
        "dparallel: half masks any share",
        DPARALLEL,
        "share_B1 = torch.full_like(share_B1, 0.5)",
        "pass",
        f"{DPARALLEL_TESTS}::test_half_of_a_block_is_masked_in_every_row",
    ),
    Mutant(
        "dparallel: adapters are not trained",
        DPARALLEL,
        "add_lora_adapters(network, spec.lora, spec.seed)",
        "pass",
        f"{DPARALLEL_TESTS}::test_a_run_masks_half_and_trains_adapters_where_told_so",
    ),
    Mutant(
        "hyperfitting: weights decay",
        "lab/train/hyperfit.py",
        "decay=0.0, weight_decay=0.0,",
        "decay=0.0, weight_decay=0.05,",
        "tests/lab/train/test_train_hyperfit.py::test_nothing_pulls_weights_to_zero_and_the_rate_stays",
    ),
    Mutant(
        "cm3: any end mark ends a gap",
        "request/families.py",
        "others = {*(checked.vocab.eos - {marks.filled}), *marks.gaps}",
        "others = {*marks.gaps}",
        "tests/lab/train/test_train_objectives.py::test_only_its_own_mark_ends_a_gap",
    ),
    Mutant(
        "lexical units: every token is taught as one of a span",
        "lab/train/lexical.py",
        "sure_BT = side_by_side(sure, chosen)",
        "sure_BT = torch.ones_like(side_by_side(sure, chosen))",
        "tests/lab/train/test_train_lexical.py::test_a_step_is_taught_the_spans_that_the_model_was_sure_of",
    ),
    Mutant(
        "refrag: the last stage opens no chunk",
        "lab/train/contexts/refrag.py",
        "open_BL = at_random(len(pages), LINES, count, chance)",
        "open_BL = at_random(len(pages), LINES, 0, chance)",
        f"{REFRAG_TESTS}::test_the_last_stage_goes_on_from_what_was_rewritten_with_any_number_of_open_chunks",
    ),
    Mutant(
        "refrag: what was rewritten is thrown away",
        "lab/train/contexts/refrag.py",
        'load_refrag_model(Path(spec.target or ""), spec, Path(spec.out).parent / "rewriting")',
        'load_refrag_model(Path(spec.target or ""), spec, None)',
        f"{REFRAG_TESTS}::test_the_last_stage_goes_on_from_what_was_rewritten_with_any_number_of_open_chunks",
    ),
    Mutant(
        "hidden thoughts: what answers begins anew",
        "lab/train/contexts/hidden_cot.py",
        "answering = HiddenThoughtAnswerer(load_directory(first.out).requires_grad_(True), spec.seed)",
        "answering = HiddenThoughtAnswerer(new_sum_network(spec), spec.seed)",
        f"{CONTEXT_TESTS}::test_what_answers_begins_as_what_thinks",
    ),
    Mutant(
        "guidance for captions: train lm leaves no question out",
        "lab/train/answers.py",
        "    if spec.drop:\n            chosen",
        "    if not spec:\n            chosen",
        f"{ANSWER_TESTS}::test_a_share_of_the_questions_is_left_out",
    ),
    Mutant(
        "guidance for captions: train diffusion leaves no question out",
        "lab/train/diffusion_pairs.py",
        "if spec.causal and spec.drop:",
        "if spec.causal and not spec:",
        f"{ANSWER_TESTS}::test_a_causal_model_of_the_same_pairs_reads_an_empty_question",
    ),
    Mutant(
        "meap: the second copy is learned whole",
        "lab/train/objectives/meap_answers.py",
        "labels = np.full(len(tokens), IGNORED)",
        "labels = np.array(row.labels)",
        f"{ANSWER_TESTS}::test_the_second_copy_asks_for_exactly_what_it_masks",
    ),
    Mutant(
        "meap: the second copy has no holes",
        "lab/train/objectives/meap_answers.py",
        "    tokens[at] = mask\n",
        "",
        f"{ANSWER_TESTS}::test_the_second_copy_asks_for_exactly_what_it_masks",
    ),
    Mutant(
        "tokenunify: a masked step sees the left side alone",
        "lab/train/objectives/token_unify.py",
        "rows_of(labels), see_TT)",
        "rows_of(labels), see_TT.tril())",
        "tests/lab/train/test_train_objectives.py::test_masked_steps_learn_only_masks_behind_their_own_mark",
    ),
    Mutant(
        "cm3: what fills a gap is not seen by the next one",
        "request/gap_decoder.py",
        "prompt += (*written, self.marks.filled)",
        "prompt += (self.marks.filled,)",
        "tests/request/test_gap_decoder.py::test_gaps_are_filled_in_order_behind_what_is_filled",
    ),
    Mutant(
        "distillspec: a draft to begin with is not read",
        "lab/train/draft.py",
        "student.load_state_dict({k: begun.weights[k].float() for k in student.state_dict()})",
        "pass",
        "tests/lab/train/test_train_adapters.py::test_a_draft_goes_on_from_what_it_was",
    ),
]
