"""Centres of product quantisation are learned by k-means, each piece by itself."""

import torch

from polydec.lab.train.product_centres import learn_product_codebook


def test_as_many_vectors_as_centres_stand_for_themselves():
    vectors = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    book = learn_product_codebook(vectors, 3, 0)
    assert book.centre_PKD.shape == (3, 40, 4)
    assert torch.equal(book.decode_codes(book.encode_vectors(vectors)), vectors)


def test_centres_move_to_the_means_of_what_is_nearest_to_them():
    dice = torch.Generator().manual_seed(2)
    vectors = torch.randn(2000, 8, generator=dice)
    book = learn_product_codebook(vectors, 4, 5)
    assert book.centre_PKD.shape == (4, 256, 2)
    codes = book.encode_vectors(vectors)
    lost = float((book.decode_codes(codes) - vectors).square().mean())
    # The vectors that they began as lose more.
    first = torch.randperm(2000, generator=torch.Generator().manual_seed(5))[:256]
    begun = type(book)(vectors[first].unflatten(1, (4, -1)).transpose(0, 1))
    assert lost < 0.8 * float(
        (begun.decode_codes(begun.encode_vectors(vectors)) - vectors).square().mean()
    )
    # Fewer pieces are fewer bytes, and lose more.
    coarse = learn_product_codebook(vectors, 2, 5)
    assert (
        float((coarse.decode_codes(coarse.encode_vectors(vectors)) - vectors).square().mean())
        > lost
    )
    assert torch.equal(learn_product_codebook(vectors, 4, 5).centre_PKD, book.centre_PKD)
