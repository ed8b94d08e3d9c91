"""Public tools for tests: toy laws, exact enumeration of what a method writes, and one contract suite for each protocol."""

from polydec.testing.check_acceptance import check_acceptance, check_best_tree
from polydec.testing.check_decoder import check_decoder, check_law
from polydec.testing.check_drafter import check_drafter
from polydec.testing.check_informed import check_informed
from polydec.testing.check_policy import check_policy
from polydec.testing.check_preemption import check_preemption, run_on_hold
from polydec.testing.check_target import check_shaped, check_target
from polydec.testing.check_tree import check_tree
from polydec.testing.check_verifier import check_verifier
from polydec.testing.enumerate import distance, executions, law_of, target_law
from polydec.testing.strict import StrictRng
from polydec.testing.toy import toy

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
    "distance",
    "executions",
    "law_of",
    "run_on_hold",
    "target_law",
    "toy",
]
