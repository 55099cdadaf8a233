"""Checkpoints of several ranks, on a directory that all of them see."""

import glob
import json
import os
import shutil
import tempfile

import numpy as np
import pytest

import muster
from muster import checkpoint
from muster.checkpoint import Shard


@pytest.fixture
def folder(rank):
    """A folder that all ranks share."""
    names = [tempfile.mkdtemp().encode() if rank == 0 else b""]
    muster.broadcast_object_list(names)
    yield names[0].decode()
    muster.barrier()
    if rank == 0:
        shutil.rmtree(names[0].decode())


@pytest.fixture
def storage(folder):
    return checkpoint.DirectoryStorage(folder)


def rows(rank, size, columns=3):
    """Two rows of a matrix for each rank."""
    first = 2 * rank * columns
    array = np.arange(first, first + 2 * columns,
                      dtype=np.float32).reshape(2, columns)
    return Shard("rows", (2 * size, columns), (2 * rank, 0), array)


def test_parts_are_loaded_as_other_parts(storage, rank, size):
    bias = np.arange(5.0)
    checkpoint.save(storage, 3, [rows(rank, size), ("bias", bias)],
                    {"rank": str(rank), "epoch": "7 \u00e9"})
    assert checkpoint.list_steps(storage) == [3]
    assert checkpoint.newest_step(storage) == 3
    whole = {"rows": np.zeros((2 * size, 3), np.float32), "bias": np.zeros(5)}
    loaded = checkpoint.load(storage, 3, whole)
    assert loaded.values == {"rank": "0", "epoch": "7 \u00e9"}
    assert loaded.missing == []
    np.testing.assert_array_equal(whole["rows"].ravel(), np.arange(6 * size))
    np.testing.assert_array_equal(whole["bias"], bias)
    # One column, and a rank's rows of another one.
    column = np.zeros((2 * size, 1), np.float32)
    checkpoint.load(storage, 3, [Shard("rows", (2 * size, 3), (0, 2), column)])
    np.testing.assert_array_equal(column.ravel(), 3 * np.arange(2 * size) + 2)


def test_a_new_storage_has_no_checkpoint(folder):
    storage = checkpoint.DirectoryStorage(os.path.join(folder, "none"))
    assert checkpoint.list_steps(storage) == []
    assert checkpoint.newest_step(storage) is None
    with pytest.raises(muster.Error, match="step.3") as caught:
        checkpoint.load(storage, 3, {"w": np.ones(2)})
    assert caught.value.code == muster.Code.NOT_FOUND


def test_old_checkpoints_are_removed(storage):
    for step in range(1, 7):
        checkpoint.save(storage, step, {"w": np.ones(2)}, keep_newest=2,
                        keep_every=4)
    muster.barrier()
    assert checkpoint.list_steps(storage) == [4, 5, 6]


def test_a_checkpoint_is_saved_while_the_program_goes_on(storage, rank, size):
    part = rows(rank, size)
    with checkpoint.Checkpointer(storage, keep_newest=1) as checkpointer:
        for step in (1, 2):
            pending = checkpointer.save_async(step, [part], {"step": str(step)})
            part.array[...] += 100
        pending.wait()
        assert pending.done()
    muster.barrier()
    assert checkpoint.list_steps(storage) == [2]
    whole = np.zeros((2 * size, 3), np.float32)
    loaded = checkpoint.load(storage, 2, {"rows": whole})
    assert loaded.values == {"step": "2"}
    np.testing.assert_array_equal(whole.ravel(), np.arange(6 * size) + 100)


def test_the_end_of_a_checkpointer_waits(storage, rank, size):
    checkpointer = checkpoint.Checkpointer(storage)
    checkpointer.save_async(1, [rows(rank, size)])
    checkpointer.close()
    muster.barrier()
    assert checkpoint.list_steps(storage) == [1]


def test_the_end_of_a_checkpointer_raises_the_error_of_the_last_save(folder,
                                                                     rank):
    # It looks as if there were none, and cannot be made.
    link = os.path.join(folder, "link")
    if rank == 0:
        os.symlink(os.path.join(folder, "none", "none"), link)
    muster.barrier()
    bad = checkpoint.DirectoryStorage(link)
    pending = None
    with pytest.raises(muster.Error, match="link"):
        with checkpoint.Checkpointer(bad) as checkpointer:
            pending = checkpointer.save_async(1, {"w": np.ones(2)})
    assert pending is not None
    # An exception that is on its way goes on.
    with pytest.raises(KeyError):
        with checkpoint.Checkpointer(bad) as checkpointer:
            checkpointer.save_async(1, {"w": np.ones(2)})
            raise KeyError("as the test wants")
    # What wait() has raised is not raised again.
    with checkpoint.Checkpointer(bad) as checkpointer:
        pending = checkpointer.save_async(1, {"w": np.ones(2)})
        with pytest.raises(muster.Error, match="link"):
            pending.wait()


def test_a_closed_checkpointer_saves_nothing(storage):
    checkpointer = checkpoint.Checkpointer(storage)
    checkpointer.close()
    checkpointer.close()
    with pytest.raises(muster.Error,
                       match="the checkpointer is closed") as caught:
        checkpointer.save_async(1, {"w": np.ones(2)})
    assert caught.value.code == muster.Code.FAILED_PRECONDITION


def test_close_leaves_the_handle_to_a_call_that_was_interrupted(storage):
    checkpointer = checkpoint.Checkpointer(storage)
    handle = checkpointer._handle  # as the call has it
    checkpointer._is_interrupted = True
    checkpointer.close()
    assert handle.address is not None
    with pytest.raises(muster.Error, match="Ctrl-C"):
        checkpointer.save_async(1, {"w": np.ones(2)})


def test_what_the_checkpoint_lacks_is_an_error_or_missing(storage):
    checkpoint.save(storage, 1, {"w": np.ones(2)})
    other = np.full(2, 5.0)
    with pytest.raises(muster.Error, match='no tensor "other"'):
        checkpoint.load(storage, 1, {"w": np.zeros(2), "other": other})
    loaded = checkpoint.load(storage, 1, {"other": other}, strict=False)
    assert loaded.missing == ["other"] and (other == 5).all()
    with pytest.raises(muster.ArgumentError, match='"w".*float64'):
        checkpoint.load(storage, 1, {"w": np.zeros(2, np.float32)})
    with pytest.raises(muster.ArgumentError, match='"w"'):
        checkpoint.load(storage, 1, {"w": np.zeros(3)})
    array = np.zeros(2)
    array.flags.writeable = False
    with pytest.raises(muster.ArgumentError,
                       match=r"argument shards\['w'\]: the array is read-only"):
        checkpoint.load(storage, 1, {"w": array})


def list_files(folder):
    """The safetensors files of all checkpoints."""
    return sorted(glob.glob(f"{folder}/step-*/*.safetensors"))


def damage(path):
    """Changes the last byte of a file, which is not 0xff."""
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")


def test_a_damaged_file_is_an_error(storage, folder, rank):
    checkpoint.save(storage, 1, {"w": np.ones(100)})
    if rank == 0:
        damage(list_files(folder)[0])
    muster.barrier()
    with pytest.raises(muster.Error, match='tensor "w"') as caught:
        checkpoint.load(storage, 1, {"w": np.zeros(100)})
    assert caught.value.code == muster.Code.DATA_LOSS


def test_a_later_checkpoint_of_a_step_replaces_the_earlier_one(storage):
    checkpoint.save(storage, 2, {"w": np.ones(2)})
    checkpoint.save(storage, 1, {"w": np.full(2, 5.0)})
    checkpoint.save(storage, 1, {"w": np.full(2, 6.0)})
    muster.barrier()
    assert checkpoint.list_steps(storage) == [2, 1]
    assert checkpoint.newest_step(storage) == 1
    array = np.zeros(2)
    checkpoint.load(storage, 1, {"w": array})
    assert (array == 6).all()


def test_the_newest_undamaged_checkpoint_is_loaded(storage, folder, rank, size):
    part = rows(rank, size)
    assert checkpoint.load_newest(storage, [part]) is None
    checkpoint.save(storage, 1, [part], {"epoch": "7"})
    checkpoint.save(storage, 2, {"rows": np.ones((2 * size, 3), np.float32)})
    checkpoint.verify(storage, 2)
    muster.barrier()
    if rank == 0:
        damage([path for path in list_files(folder) if "step-2" in path][0])
    muster.barrier()
    with pytest.raises(muster.Error, match="rows") as caught:
        checkpoint.verify(storage, 2)
    assert caught.value.code == muster.Code.DATA_LOSS
    whole = np.zeros((2 * size, 3), np.float32)
    loaded = checkpoint.load_newest(storage, {"rows": whole})
    assert (loaded.step, loaded.values) == (1, {"epoch": "7"})
    np.testing.assert_array_equal(whole.ravel(), np.arange(6 * size))
    # A bad array of one rank is an error on all.
    array = whole.copy()
    array.flags.writeable = rank != size - 1
    with pytest.raises(muster.ArgumentError,
                       match=r"argument shards\['rows'\]: the array is read-only"
                       if rank == size - 1 else f"rank {size - 1}"):
        checkpoint.load_newest(storage, {"rows": array})
    muster.barrier()
    if rank == 0:
        checkpoint.remove(storage, 1)
        with pytest.raises(muster.Error, match="step 1"):
            checkpoint.remove(storage, 1)
    muster.barrier()
    with pytest.raises(muster.Error) as caught:
        checkpoint.load_newest(storage, {"rows": whole})
    assert caught.value.code == muster.Code.DATA_LOSS


def strided(_):
    return {"w": np.ones((2, 4))[:, ::2]}


BAD_STATES = {
    # What the last rank passes, and its error.
    "strided": (strided, r"argument state\['w'\]: the array is not contiguous"),
    "no_array": (lambda _: {"w": [1.0]}, r"argument state\['w'\]: muster takes"),
    "dimensions": (lambda w: [Shard("w", (2, 2), (0,), w)],
                   r"argument state\['w'\]: global_shape has 2 dimensions, "
                   r"offsets have 1"),
    "outside": (lambda w: [Shard("w", (2, 2), (1, 0), w)], "outside"),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_bad_shard_of_one_rank_is_an_error_on_all(storage, rank, size, case):
    make, own_text = BAD_STATES[case]
    array = np.ones((2, 2))
    if rank == size - 1:
        with pytest.raises((muster.ArgumentError, TypeError), match=own_text):
            checkpoint.save(storage, 1, make(array))
    else:
        with pytest.raises(muster.ArgumentError,
                           match=f'rank {size - 1}: shard "w"'):
            checkpoint.save(storage, 1, {"w": array})
    assert checkpoint.list_steps(storage) == []
    # The group goes on.
    checkpoint.save(storage, 1, {"w": array})


BAD_ARGUMENTS = {
    # What the last rank passes besides the array, its error, and the argument
    # that the others' text names.
    "value": ({"values": {"epoch": 3}},
              r"argument values\['epoch'\] must be a str, but is int",
              r"argument values\['epoch'\]"),
    "name_of_value": ({"values": {3: "3"}},
                      "argument values: the name 3 must be a str, but is int",
                      r"argument values\[3\]"),
    "zero_byte": ({"values": {"a": "b\0"}},
                  r"argument values\['a'\]: .*zero byte",
                  r"argument values\['a'\]"),
    "values": ({"values": 5}, "argument values must be a dict, but is int",
               "argument values"),
    "step": ({"step": 1.5}, "argument step must be an int, but is float",
             "argument step"),
    "keep_newest": ({"keep_newest": 2.5},
                    "argument keep_newest must be an int, but is float",
                    "argument keep_newest"),
    "keep_every": ({"keep_every": 1 << 70}, "argument keep_every: the number",
                   "argument keep_every"),
    "timeout": ({"timeout": -1}, "argument timeout must be positive",
                "argument timeout"),
    "name": ({"state": {7: np.ones(2)}},
             "argument state: the name 7 must be a str, but is int",
             "argument state"),
    "state": ({"state": 5}, "argument state must be a dict or a list",
              "argument state"),
    "pair": ({"state": [("w",)]}, "argument state must have Shards",
             "argument state"),
    "offsets": ({"state": [Shard("w", (2,), (0.5,), np.ones(2))]},
                r"argument state\['w'\]: offsets must be an int", 'shard "w"'),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_a_bad_argument_of_one_rank_is_an_error_on_all(storage, rank, size,
                                                       case):
    changes, own_text, others_text = BAD_ARGUMENTS[case]
    good = {"step": 1, "state": {"w": np.ones(2)}}
    if rank == size - 1:
        with pytest.raises((muster.ArgumentError, TypeError), match=own_text):
            checkpoint.save(storage, **{**good, **changes})
    else:
        with pytest.raises(muster.ArgumentError,
                           match=f"rank {size - 1}: .*{others_text}"):
            checkpoint.save(storage, **good)
    assert checkpoint.list_steps(storage) == []
    # The group goes on.
    checkpoint.save(storage, **good)


def test_a_bad_value_of_save_async_is_an_error_on_all(storage, rank, size):
    with checkpoint.Checkpointer(storage) as checkpointer:
        last = rank == size - 1
        with pytest.raises((muster.ArgumentError, TypeError),
                           match=r"argument values\['epoch'\]"):
            checkpointer.save_async(1, {"w": np.ones(2)},
                                    {"epoch": 3 if last else "3"})
        checkpointer.save_async(1, {"w": np.ones(2)}, {"epoch": "3"})


def test_a_bad_option_of_a_checkpointer_is_an_error_on_all(storage, rank, size):
    last = rank == size - 1
    with pytest.raises(TypeError if last else muster.Error,
                       match="argument keep_newest must be an int"):
        checkpoint.Checkpointer(
            storage, keep_newest=2.5 if last else 2).save_async(
                1, {"w": np.ones(2)})


def test_ranks_that_differ_are_an_error_that_names_both(storage, rank, size):
    if size == 1:
        checkpoint.save(storage, 1, {"w": np.ones(4)})
        return
    last = rank == size - 1
    with pytest.raises(muster.ArgumentError,
                       match=rf"float64\[5\] on rank {size - 1}, "
                             rf"float64\[4\] on rank 0"):
        checkpoint.save(storage, 1, {"w": np.ones(5 if last else 4)})
    with pytest.raises(muster.ArgumentError,
                       match=f"step is 2 on rank {size - 1}, 1 on rank 0"):
        checkpoint.save(storage, 2 if last else 1, {"w": np.ones(4)})


def test_a_text_with_a_zero_byte_is_refused(storage):
    with pytest.raises(muster.ArgumentError, match="zero byte"):
        checkpoint.save(storage, 1, {"w": np.ones(2)}, {"a": "b\0c"})


def read_safetensors(path):
    """The arrays of a file, by the published format."""
    with open(path, "rb") as file:
        content = file.read()
    data = 8 + int.from_bytes(content[:8], "little")
    types = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "?", "I64": "<i8"}
    return {name: np.frombuffer(content[data + entry["data_offsets"][0]:
                                        data + entry["data_offsets"][1]],
                                types[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in json.loads(content[8:data]).items()}


def test_other_programs_read_the_files(storage, folder, rank, size):
    state = [rows(rank, size), ("half", np.full(3, 0.5, np.float16)),
             ("flags", np.array([True, False])), ("count", np.array(5))]
    checkpoint.save(storage, 1, state)
    found = {}
    for path in list_files(folder):
        found.update(read_safetensors(path))
    assert found["half"].tolist() == [0.5] * 3
    assert found["flags"].tolist() == [True, False]
    assert found["count"].ravel().tolist() == [5]
    parts = [found["rows" if size == 1 else f"rows[{2 * r}:{2 * r + 2},0:3]"]
             for r in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts).ravel(),
                                  np.arange(6 * size))
