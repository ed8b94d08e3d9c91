"""Mutants that take out what gives a published system its name, and that once no test noticed."""

from mutant import Mutant

SUPERPOSED = "methods/search/loop/superposed.py"
SUPERPOSED_TESTS = "tests/methods/search/test_superposed.py"
DPARALLEL = "lab/train/dparallel.py"
DPARALLEL_TESTS = "tests/lab/train/test_train_diffusion.py"
CONTEXT_TESTS = "tests/lab/train/test_train_context.py"
REFRAG_TESTS = "tests/methods/steering/test_refrag.py"
GLANCE_TESTS = "tests/methods/speculative/drafters/test_block_filled.py"

MUTANTS = [
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
]
