"""Stores, watches and sessions."""

import os
import signal
import threading

import pytest

import muster


@pytest.fixture(params=["default", "hash", "prefix"])
def store(request, rank):
    if request.param == "default":
        # Each rank has keys of its own.
        return muster.PrefixStore(f"{request.node.name}/{rank}",
                                  muster.get_default_store())
    if request.param == "hash":
        return muster.HashStore()
    return muster.PrefixStore("p", muster.HashStore())


def test_values_are_bytes(store):
    store.set("a", b"x\0y")
    store.set(b"b", "text")
    assert store.get("a") == b"x\0y" and store.get("b") == b"text"
    assert store.try_get("c") is None and store.try_get("a") == b"x\0y"
    assert store.check(["a", "b"]) and not store.check(["a", "c"])
    assert store.delete_key("a") and not store.delete_key("a")


def test_numbers_and_comparisons(store):
    assert store.add("n", 3) == 3 and store.add("n", -1) == 2
    assert store.compare_set("k", "", "one") == b"one"
    assert store.compare_set("k", "two", "three") == b"one"
    written, revision, present = store.compare_and_set("k", 0, "four")
    assert not written and present == b"one" and revision > 0
    assert store.compare_and_set("k", revision, "four")[0]
    assert store.try_get_revision("k")[0] == b"four"
    store.set("text", "t")
    with pytest.raises(muster.StoreError) as caught:
        store.add("text", 1)
    assert caught.value.code == muster.Code.INVALID_ARGUMENT


def test_many_keys(store):
    store.multi_set(["x/1", "x/2"], [b"1", b"2"])
    assert store.multi_get(["x/1", "x/2"]) == [b"1", b"2"]
    store.append("x/1", "0")
    assert store.get("x/1") == b"10"
    assert store.list_keys("x/") == [b"x/1", b"x/2"]
    assert store.num_keys() >= 2
    assert store.delete_prefix("x/") == 2
    assert store.has_extended_api()


def test_queues(store):
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == 2
    assert [store.queue_pop("q"), store.queue_pop("q")] == [b"1", b"2"]
    with pytest.raises(muster.QueueEmptyError):
        store.queue_pop("q", block=False)


def test_a_key_that_nobody_sets_is_an_error(store):
    store.set_timeout(0.05)
    assert store.timeout == 0.05
    for call in (lambda: store.get("missing"),
                 lambda: store.wait(["missing"], timeout=0.05)):
        with pytest.raises(muster.StoreError) as caught:
            call()
        assert caught.value.code == muster.Code.DEADLINE_EXCEEDED


def test_a_wait_lets_other_threads_run(store):
    other = store.clone()
    thread = threading.Thread(target=lambda: other.set("late", "x"))
    waiter = threading.Thread(target=lambda: store.wait(["late"], timeout=60))
    waiter.start()
    thread.start()
    waiter.join(60)
    thread.join(60)
    assert not waiter.is_alive()


def test_a_watch_has_each_change_once(rank):
    store = muster.get_default_store()
    key = f"watched/{rank}"
    watch = store.watch(key, prefix=True)
    store.set(key + "/a", "1")
    store.delete_key(key + "/a")
    first, second = watch.next(60), watch.next(60)
    assert (first.kind, first.key, first.value) == (
        muster.ChangeKind.PUT, f"{key}/a".encode(), b"1")
    assert second.kind == muster.ChangeKind.DELETED
    # Other ranks' keys have revisions, too.
    assert first.revision < second.revision <= watch.revision
    assert watch.next(0.01) is None
    watch.cancel()
    assert watch.next() is None and list(watch) == []


def test_ctrl_c_ends_the_wait_of_a_watch(rank):
    watch = muster.get_default_store().watch(f"interrupted/{rank}")
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=os.kill,
                         args=(os.getpid(), signal.SIGINT)).start()
        watch.next()


def test_a_key_may_have_a_time_to_live(rank):
    store = muster.get_default_store()
    watch = store.watch(f"ttl/{rank}")
    store.set(f"ttl/{rank}", "x", ttl=0.05)
    assert watch.next(60).kind == muster.ChangeKind.PUT
    assert watch.next(60).kind == muster.ChangeKind.EXPIRED


def test_stores_for_files_and_tcp(tmp_path):
    store = muster.FileStore(str(tmp_path / "store"), 1)
    store.set("a", "1")
    assert store.get("a") == b"1"
    with pytest.raises(muster.StoreError) as caught:
        store.queue_push("q", "1")
    assert caught.value.code == muster.Code.UNIMPLEMENTED
    server = muster.TCPStore("localhost", 0, 1, is_master=True)
    assert server.port > 0
    server.set("a", "1")
    assert server.get("a") == b"1"
    client = muster.TCPStore("localhost", server.port)
    assert client.get("a") == b"1"
