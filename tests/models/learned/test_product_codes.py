"""Product quantisation: vectors as a byte for each piece."""

import torch

from polydec.models.learned.product_codes import ProductCodebook


def test_each_piece_is_named_by_the_nearest_of_its_own_centres():
    book = ProductCodebook(
        torch.tensor([[[0.0, 0.0], [10.0, 0.0], [0.0, 9.0]], [[5.0, 5.0], [-1.0, 0.0], [2.0, 2.0]]])
    )
    vectors = torch.tensor([[9.0, 1.0, 2.4, 2.4], [0.0, 6.0, -4.0, 0.0], [1.0, 1.0, 9.0, 9.0]])
    codes = book.encode_vectors(vectors)
    assert codes.dtype == torch.uint8 and codes.tolist() == [[1, 2], [2, 1], [0, 0]]
    want = [[10.0, 0.0, 2.0, 2.0], [0.0, 9.0, -1.0, 0.0], [0.0, 0.0, 5.0, 5.0]]
    assert book.decode_codes(codes).tolist() == want


def test_codes_are_the_nearest_of_all_by_brute_force():
    dice = torch.Generator().manual_seed(3)
    book = ProductCodebook(torch.randn(3, 16, 4, generator=dice))
    vectors = torch.randn(50, 12, generator=dice)
    for row, code in zip(vectors, book.encode_vectors(vectors), strict=True):
        for at in range(3):
            piece = row[4 * at : 4 * at + 4]
            far = (book.centre_PKD[at] - piece).square().sum(-1)
            assert int(far.argmin()) == int(code[at])
