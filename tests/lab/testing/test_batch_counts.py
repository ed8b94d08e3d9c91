"""Decoders whose batches share nothing, or whose answers are alike: the checks of batches say so."""

from batch_faults import WaitsForOthers, never_seen
from polydec.lab.testing.check_decoder import check_batch as check_decoder_batch
from polydec.lab.testing.check_inserting import check_batch as check_insertion_batch
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.insertion.loop.inserting import InsertionDecoder
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier


def plain_decoder(target, draft):
    return SpeculativeDecoder(target, NothingDrafter(), ExactVerifier(), FixedPolicy(1))


def one_token_decoder(target, draft):
    return plain_decoder(ShapedTarget(target, AllowedTokensRule((1,))), draft)


def test_requests_of_a_batch_share_passes_and_differ(record_counts):
    counts = check_decoder_batch(plain_decoder)
    record_counts(counts)
    assert counts.shared > 0 and counts.distinct > 0
    counts = check_insertion_batch(InsertionDecoder)
    record_counts(counts)
    assert counts.shared > 0 and counts.distinct > 0


def test_requests_that_wait_for_one_another():
    with never_seen("shared"):
        check_decoder_batch(lambda target, draft: WaitsForOthers(plain_decoder(target, draft)))
    with never_seen("shared"):
        check_insertion_batch(lambda inserter: WaitsForOthers(InsertionDecoder(inserter)))


def test_answers_that_are_alike():
    with never_seen("distinct"):
        check_decoder_batch(one_token_decoder)
