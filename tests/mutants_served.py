"""Mutants of what a server counts, gives back and tells: each fails the test that is named for it."""

from mutant import Mutant

COUNTED = "tests/serve/test_replica_counts.py::test_who_has_read_the_end_is_counted"

MUTANTS = [
    Mutant(
        "a stream is counted behind its last event",
        "serve/answering.py",
        "        await record.finish_record()\n        async for piece in",
        "        async for piece in",
        COUNTED,
    ),
    Mutant(
        "a whole response is counted behind its end",
        "serve/request_log.py",
        "                await record.finish_record()\n            await send(message)",
        "                pass\n            await send(message)",
        COUNTED,
    ),
    Mutant(
        "a front counts a stream behind its last event",
        "serve/replica_front.py",
        "if _LAST_EVENT.search(whole):",
        "if not whole:",
        COUNTED,
    ),
    Mutant(
        "a front forgets what a search threw away",
        "serve/replica_counts.py",
        '        told["written"],\n',
        "        0,\n",
        "tests/serve/test_replica_counts.py::test_a_front_counts_what_a_search_threw_away",
    ),
    Mutant(
        "the pool gives up what came back only now",
        "models/nets/memory_pool.py",
        "if came < self._looks - 1:",
        "if came < self._looks:",
        "tests/models/nets/test_memory_pool.py::test_what_nobody_takes_goes_back",
    ),
    Mutant(
        "nobody looks once more behind the last request",
        "serve/memory.py",
        "if came or again:",
        "if came:",
        "tests/serve/test_bounds.py::test_caches_that_nobody_takes_go_back",
    ),
    Mutant(
        "clients share what is kept of their texts",
        "serve/clients.py",
        'return f"{self.credential}:{asked}"',
        "return asked",
        "tests/serve/test_accounts.py::test_no_figure_tells_what_another_client_asked",
    ),
]
