"""Memory that is used again: nothing that somebody still reads is given out, and little waits."""

import gc
import threading

import torch

from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.memory_pool import LARGE, MemoryPool, empty_pooled_tensor

MB = 1 << 20


def test_a_piece_comes_back_and_is_given_out_again():
    pool = MemoryPool(64 * MB)
    one = pool.take_bytes(4 * MB)
    place = one.data_ptr()
    del one
    assert pool.nbytes == 4 * MB
    again = pool.take_bytes(3 * MB)
    assert again.data_ptr() == place and len(again) == 3 * MB and pool.nbytes == 0


def test_what_a_view_reads_stays_its_own():
    """Not only the tensor: whatever was cut from it, on any way."""
    pool = MemoryPool(64 * MB)
    one = pool.take_bytes(4 * MB)
    view = one.view(torch.float32).view(4, -1)[2:, 5:].t()
    view.fill_(7.0)
    place = one.data_ptr()
    del one
    gc.collect()
    other = pool.take_bytes(4 * MB)
    other.zero_()
    assert other.data_ptr() != place and pool.nbytes == 0 and bool((view == 7.0).all())
    del view
    assert pool.nbytes == 4 * MB


def test_pieces_that_are_far_too_large_are_left_for_others():
    pool = MemoryPool(64 * MB)
    some = [pool.take_bytes(n * MB) for n in (10, 4, 6)]
    places = {len(t) // MB: t.data_ptr() for t in some}
    del some[:]
    assert pool.take_bytes(3 * MB).data_ptr() == places[4]
    assert pool.take_bytes(5 * MB).data_ptr() == places[6]
    small = pool.take_bytes(2 * MB)  # of 4 MB and more: nothing is kept for it but the one of 4
    assert small.data_ptr() == places[4]


def test_no_more_waits_than_was_said():
    pool = MemoryPool(10 * MB)
    some = [pool.take_bytes(4 * MB) for _ in range(5)]
    while some:
        some.pop()
        assert pool.nbytes <= 10 * MB
    assert pool.nbytes == 8 * MB


def test_what_nobody_takes_goes_back():
    """What was taken between two looks stays; what one request had, and no other one takes, does not."""
    pool = MemoryPool(64 * MB)
    often, once = pool.take_bytes(4 * MB), pool.take_bytes(20 * MB)
    del often, once
    pool.release_idle()
    assert pool.nbytes == 24 * MB, "it came back only now"
    for _ in range(3):
        often = pool.take_bytes(4 * MB)
        del often
        pool.release_idle()
        assert pool.nbytes == 4 * MB
    pool.release_idle()
    assert pool.nbytes == 0


def test_threads_never_share_a_piece():
    pool, wrong = MemoryPool(32 * MB), list[int]()

    def work(mark: int) -> None:
        for _ in range(150):
            mine = pool.take_bytes(MB)
            mine[::4096] = mark
            if not bool((mine[::4096] == mark).all()):
                wrong.append(mark)
            del mine

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_small_pieces_are_torch_s_own():
    small = empty_pooled_tensor((3, LARGE // 16), torch.float32, torch.device("cpu"))
    assert small.shape == (3, LARGE // 16) and small.dtype == torch.float32
    large = empty_pooled_tensor((2, LARGE), torch.float16, torch.device("cpu"))
    assert large.shape == (2, LARGE) and large.dtype == torch.float16 and large.is_contiguous()


def test_a_text_of_known_length_does_not_move():
    cache = KVCache(torch.empty(2, 2, 1, 16, 8))
    cache.reserve_slots(700)
    place, room = cache.kv.data_ptr(), cache.capacity
    for n in (256, 256, 188):
        cache.stage_slots(range(-1, n - 1))
        cache.commit_path(range(n))
    assert cache.kv.data_ptr() == place and cache.capacity == room >= 700
    cache.reserve_slots(300)
    assert cache.kv.data_ptr() == place
