"""Decoders of canvases whose batches share nothing, or whose answers no rule changes: their contract says so."""

import pytest

from batch_faults import WaitsForOthers, never_seen
from polydec.lab.testing.check_unmasker import check_batch, check_rules
from polydec.laws.shapers.allowed import AllowedTokensRule
from polydec.laws.shapers.logit_bias import LogitBiasRule
from polydec.methods.diffusion.loop.denoising import DenoisingDecoder
from polydec.methods.diffusion.refreshes.full import FullRefresh
from polydec.methods.diffusion.unmaskers.confidence import ConfidenceUnmasker


def denoising(denoiser, shapers=()):
    return DenoisingDecoder(denoiser, ConfidenceUnmasker(), FullRefresh(), 4, shapers)


def test_the_decoder_itself_is_right(record_counts):
    record_counts(check_batch(denoising))
    record_counts(check_rules(denoising))


def test_a_batch_whose_canvases_wait_for_one_another():
    with never_seen("shared"):
        check_batch(lambda denoiser: WaitsForOthers(denoising(denoiser)))


def test_a_batch_of_answers_that_are_alike():
    with never_seen("distinct"):
        check_batch(lambda denoiser: denoising(denoiser, (AllowedTokensRule((1,)),)))


@pytest.mark.parametrize("token, counts", [(4, "banned"), (2, "biased")])
def test_rules_that_keep_nothing_out(token, counts):
    """Answers that say one token wherever they may: no ban names it, or every bias leaves it."""
    own = LogitBiasRule({token: 50.0})
    with never_seen(counts):
        check_rules(lambda denoiser, shapers: denoising(denoiser, (own, *shapers)))


def test_rules_that_are_not_asked():
    with pytest.raises(AssertionError, match="and yet"):
        check_rules(lambda denoiser, shapers: denoising(denoiser))
