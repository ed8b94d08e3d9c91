import torch

from polydec.core.insertion_law import InsertionScores


def test_a_slot_is_as_likely_as_all_that_may_be_put_there():
    weights_SV = torch.tensor([[1.0, 3.0], [2.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    offer = InsertionScores(weights_SV.log(), whole=0.5)
    assert torch.allclose(offer.logp_S.exp(), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))


def test_models_of_canvases_and_of_slots_are_protocols():
    """What a model of each family must have is read by people and by types; nothing of it computes."""
    from polydec.core.canvas_law import CanvasSession, Denoiser
    from polydec.core.insertion_law import Inserter, InsertionSession

    assert all(
        getattr(kind, "_is_protocol", False)
        for kind in (CanvasSession, Denoiser, InsertionSession, Inserter)
    )
