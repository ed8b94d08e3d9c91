"""Known faults of requests that take an earlier text's cache behind an edit, and the tests that must see them."""

from mutant import Mutant

GRAFTS = "tests/models/sessions/test_grafts.py::"
REUSE = "tests/request/test_reuse.py::"

MUTANTS = [
    Mutant(
        "grafts: entries are those of the tokens before them",
        "models/sessions/reuse.py",
        "Graft(at + self.again, kept.cache, first + self.again, stop)",
        "Graft(at + self.again, kept.cache, first, stop - self.again)",
        GRAFTS + "test_one_layer_is_exact",
    ),
    Mutant(
        "grafts: an exact prefix takes what was computed with another text in view",
        "models/sessions/reuse.py",
        "n if kept.edited is None else min(n, kept.edited)",
        "n",
        GRAFTS + "test_a_prefix_is_exact_in_any_number_of_layers",
    ),
    Mutant(
        "grafts: keys turn the other way",
        "models/nets/moved_keys.py",
        "behind * before.conj()",
        "before * behind.conj()",
        GRAFTS + "test_one_layer_is_exact",
    ),
    Mutant(
        "grafts: the length of a turn (YaRN's) is applied a second time",
        "models/nets/moved_keys.py",
        " / before.abs().square()",
        "",
        GRAFTS + "test_one_layer_is_exact",
    ),
    Mutant(
        "grafts: values turn as well",
        "models/nets/moved_keys.py",
        "out[layers, 0, ..., : config.turned] = both.to(out.dtype)",
        "out[layers, :, ..., : config.turned] = both.to(out.dtype)[:, None]",
        GRAFTS + "test_keys_turn_there_and_back",
    ),
    Mutant(
        "grafts: they stand one place too far",
        "models/sessions/ledger.py",
        "first, one.at - one.first)",
        "first, one.at - one.first + 1)",
        GRAFTS + "test_one_layer_is_exact",
    ),
    Mutant(
        "grafts: what was edited is given back and fed anew",
        "models/sessions/ledger.py",
        "        if self.edited is not None:\n            return\n",
        "",
        GRAFTS + "test_nothing_gives_back_what_could_not_be_fed_again",
    ),
    Mutant(
        "grafts: a fork does not know what was edited",
        "models/sessions/ledger.py",
        "self.pressed, self.grafts, self.edited\n",
        "self.pressed, self.grafts, None\n",
        GRAFTS + "test_nothing_gives_back_what_could_not_be_fed_again",
    ),
    Mutant(
        "grafts: a rewind to where the edited entries begin counts as one into them",
        "models/sessions/ledger.py",
        "self.cache.length <= self.edited:",
        "self.cache.length < self.edited:",
        GRAFTS + "test_a_rewind_to_where_edited_entries_begin_leaves_none",
    ),
    Mutant(
        "grafts: the second one hides where the first began",
        "models/sessions/ledger.py",
        "if self.edited is None:\n            self.edited = one.at",
        "if True:\n            self.edited = one.at",
        GRAFTS + "test_edited_entries_begin_where_the_first_part_does",
    ),
    Mutant(
        "grafts: parts may stand in another order",
        "models/sessions/reuse.py",
        "        if i < behind_old:",
        "        if i < 0:",
        GRAFTS + "test_parts_that_changed_places_are_not_both_taken",
    ),
    Mutant(
        "grafts: a part may be short beside what is new",
        "models/sessions/reuse.py",
        "if n >= 2 * (j - behind_new):",
        "if n:",
        GRAFTS + "test_a_part_that_is_short_beside_what_is_new_is_fed",
    ),
    Mutant(
        "grafts: what stands twice in the old text is taken from its last place",
        "models/sessions/reuse.py",
        "place[gram] = -1 if gram in place else i",
        "place[gram] = i",
        GRAFTS + "test_what_stands_twice_in_the_old_text_finds_no_place",
    ),
    Mutant(
        "grafts: two requests of a key at a time",
        "models/sessions/lm.py",
        "if reuse.edited and any(x is not None and x[1].same_text(reuse) for x in others):",
        "if False:",
        GRAFTS + "test_another_request_of_the_key_waits",
    ),
    Mutant(
        "grafts: another law's session shares what was edited",
        "models/sessions/lm.py",
        "useful = session.law is self and n >= LEAST and n > most",
        "useful = n >= LEAST and n > most",
        GRAFTS + "test_nobody_else_is_given_what_was_edited",
    ),
    Mutant(
        "grafts: an edited law is called exact from the next edit on",
        "models/sessions/reuse.py",
        "self.approximate = bool(grafts) or edited is not None",
        "self.approximate = bool(grafts)",
        GRAFTS + "test_what_was_taken_is_counted",
    ),
    Mutant(
        "grafts: a key in use makes room",
        "models/sessions/reuse.py",
        "        if now - self._kept[oldest].at >= IDLE:\n            return oldest\n",
        "        if now - self._kept[oldest].at >= 0.0:\n            return oldest\n",
        GRAFTS + "test_keys_in_use_keep_their_texts",
    ),
    Mutant(
        "grafts: rows of the whole prompt are shown behind an edit, of what was fed",
        "models/sessions/prompts.py",
        "if want.prompt and (ledger.grafts or ledger.edited is not None):",
        "if want.prompt and ledger.grafts:",
        GRAFTS + "test_rows_of_the_whole_prompt_are_refused_before_a_pass",
    ),
    Mutant(
        "reuse: a plan does not know that part of the prompt is not fed",
        "request/ask.py",
        "reuse is None or not reuse.edited,",
        "True,",
        REUSE + "test_rows_of_the_whole_prompt_are_refused_where_options_ask_for_them",
    ),
    Mutant(
        "reuse: rows of the whole prompt are refused whoever asks for the last ones",
        "methods/registry/kit.py",
        "if reads and not self.whole_prompt:",
        "if not self.whole_prompt:",
        REUSE + "test_rows_of_the_whole_prompt_are_refused_where_options_ask_for_them",
    ),
]
