"""Public tools for tests: toy laws, exact enumeration of what a method writes, and one contract
suite for each protocol.
"""

from polydec.lab.testing.check_acceptance import check_acceptance, check_best_tree
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.check_informed import check_informed
from polydec.lab.testing.check_policy import check_policy
from polydec.lab.testing.check_preemption import check_preemption, run_on_hold
from polydec.lab.testing.check_target import check_shaped, check_target
from polydec.lab.testing.check_tree import check_tree
from polydec.lab.testing.check_verifier import check_verifier
from polydec.lab.testing.enumerate import (
    enumerate_executions,
    law_of,
    target_law,
    text_law_distance,
)
from polydec.lab.testing.strict import StrictRng
from polydec.lab.testing.toy import toy_law

__all__ = [
    "StrictRng",
    "check_acceptance",
    "check_best_tree",
    "check_decoder",
    "check_drafter",
    "check_informed",
    "check_law",
    "check_policy",
    "check_preemption",
    "check_shaped",
    "check_target",
    "check_tree",
    "check_verifier",
    "enumerate_executions",
    "law_of",
    "run_on_hold",
    "target_law",
    "text_law_distance",
    "toy_law",
]
