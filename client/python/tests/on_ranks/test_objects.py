"""Collectives of byte strings and of pickled objects."""

import pytest

import muster


def test_objects_are_gathered(rank, size):
    want = [bytes([r]) * r for r in range(size)]
    assert muster.all_gather_object(bytes([rank]) * rank) == want
    got = muster.gather_object(bytes([rank]) * rank, dst=size - 1)
    assert got == (want if rank == size - 1 else None)


def test_objects_are_broadcast_and_scattered(rank, size):
    objects = [b"a\0b", b""] if rank == 0 else [None, None]
    muster.broadcast_object_list(objects)
    assert objects == [b"a\0b", b""]
    mine = muster.scatter_object(
        [b"%d" % r for r in range(size)] if rank == 0 else None)
    assert mine == b"%d" % rank


def test_objects_are_sent(rank, size):
    if size == 1:
        pytest.skip("one rank has no peer")
    if rank == 0:
        muster.send_object_list([b"x", b"y"], 1)
        muster.pickle_send_object_list([{"a": 1}], 1, tag=3)
    elif rank == 1:
        assert muster.recv_object_list(2) == (0, [b"x", b"y"])
        assert muster.pickle_recv_object_list(1, 0, tag=3) == (0, [{"a": 1}])


def test_only_functions_named_pickle_take_other_objects(rank, size):
    for call in (lambda: muster.all_gather_object({"a": 1}),
                 lambda: muster.gather_object("text"),
                 lambda: muster.scatter_object([1] * size)):
        with pytest.raises(TypeError, match="pickle_"):
            call()
    assert muster.pickle_all_gather_object({rank: "x"}) == [
        {r: "x"} for r in range(size)]
    got = muster.pickle_gather_object(rank)
    assert got == (list(range(size)) if rank == 0 else None)
    objects = [("t", rank), rank]
    muster.pickle_broadcast_object_list(objects, size - 1)
    assert objects == [("t", size - 1), size - 1]
    assert muster.pickle_scatter_object(
        list(range(size)) if rank == 0 else None) == rank


def test_an_object_that_is_too_large_is_an_error_on_all_ranks(rank, size):
    with pytest.raises(muster.ArgumentError):
        muster.all_gather_object(b"12345" if rank == size - 1 else b"",
                                 object_bytes_max=4)
    muster.barrier()


def test_a_rank_outside_the_group_keeps_its_list(rank, size):
    group = muster.new_group([0])
    objects = ["kept", rank]
    muster.pickle_broadcast_object_list(objects, 0, group)
    assert objects == ["kept", rank]
    if rank == 0:
        muster.destroy(group)
