"""Groups, meshes and what a process knows about itself."""

import numpy as np
import pytest

import muster


def test_the_default_group_knows_its_ranks(rank, size):
    world = muster.world_group()
    assert muster.is_initialized() and muster.is_torchelastic_launched()
    assert (world.rank, world.size) == (rank, size)
    assert world.ranks == muster.get_process_group_ranks() == list(range(size))
    assert world.timeout == 60
    assert muster.get_backend() == world.backend
    assert "world" in repr(world) and world.name
    assert muster.get_node_local_rank() == rank


def test_a_second_init_is_an_error():
    with pytest.raises(muster.Error) as caught:
        muster.init()
    assert caught.value.code == muster.Code.FAILED_PRECONDITION


def test_a_new_group_has_its_own_ranks(rank, size):
    last = muster.new_group([size - 1], timeout=30, group_desc="the last")
    if rank == size - 1:
        assert (last.rank, last.size, last.timeout) == (0, 1, 30)
        assert last.description == "the last"
        assert muster.get_group_rank(last, size - 1) == 0
        assert muster.get_global_rank(last, 0) == size - 1
        array = np.ones(3)
        muster.all_reduce(array, group=last)
        assert (array == 1).all()
        assert last.last_run[0]
    else:
        assert (last.rank, last.size) == (-1, -1)
    muster.destroy(last)


def test_subgroups_and_splits(rank, size):
    mine, groups = muster.new_subgroups(1)
    assert len(groups) == size and mine.size == 1
    mine, groups = muster.new_subgroups_by_enumeration(
        [list(range(size))])
    assert len(groups) == 1 and mine.rank == rank
    part = muster.split_group(None, [[r] for r in range(size)])
    assert part.size == 1 and part.ranks == [rank]


def test_bad_ranks_are_an_argument_error(size):
    with pytest.raises(muster.ArgumentError):
        muster.new_group([size])


def test_meshes_have_a_group_for_each_line(rank, size):
    rows = 2 if size % 2 == 0 else 1
    mesh = muster.init_device_mesh("cpu", (rows, size // rows),
                                   mesh_dim_names=("dp", "tp"))
    assert mesh.shape == (rows, size // rows) and mesh.ndim == 2
    assert mesh.mesh_dim_names == ("dp", "tp")
    assert mesh.ranks == list(range(size)) and mesh.size() == size
    assert mesh.get_coordinate() == [rank // (size // rows),
                                     rank % (size // rows)]
    array = np.ones(1)
    muster.all_reduce(array, group=mesh.get_group("tp"))
    assert array[0] == size // rows
    assert mesh.get_local_rank("dp") == rank // (size // rows)
    assert mesh["tp"].ranks == mesh.get_group(1).ranks
    assert mesh == mesh and mesh["dp"] != mesh["tp"]
    flat = mesh.flatten("all")
    assert flat.size() == size and "DeviceMesh" in repr(mesh)
    with pytest.raises(muster.ArgumentError):
        mesh["pp"]


def test_lists_for_a_mesh_have_its_size(size):
    # The C interface reads as many elements as the shape has; it is not told
    # how many there are.
    for options in ({"mesh_dim_names": ["a"]}, {"backends": [None]},
                    {"ranks": []}):
        name, = options
        with pytest.raises(muster.ArgumentError, match=f"argument {name} must"):
            muster.init_device_mesh("cpu", (1, size), **options)
    mesh = muster.init_device_mesh("cpu", (size,))
    with pytest.raises(muster.ArgumentError, match="argument dim_names must"):
        mesh.unflatten(0, (1, size), dim_names=["a"])


# Each has the low 32 or 64 bits of a number that would do.
@pytest.mark.parametrize("call", [
    lambda: muster.new_group([1 << 32]),
    lambda: muster.new_subgroups((1 << 32) + 1),
    lambda: muster.new_subgroups_by_enumeration([[1 << 32]]),
    lambda: muster.get_group_rank(None, 1 << 32),
    lambda: muster.init_device_mesh("cpu", ((1 << 64) + 1,)),
    lambda: muster.get_default_store().add("wide", (1 << 64) + 1),
    lambda: muster.SymmetricMemory("float32", (1 << 64) + 1),
    lambda: muster.new_group([0], device_id=1 << 32),
    lambda: muster.all_reduce(np.ones(1), op=1 << 32),
])
def test_a_number_that_is_too_large_is_refused(call):
    with pytest.raises(muster.ArgumentError):
        call()


def test_handles_of_one_group_are_equal(rank):
    world = muster.world_group()
    assert world == muster.world_group() and world != muster.new_group()
    assert len({world, muster.world_group()}) == 1
    assert world != "world"
    muster.batch_isend_irecv([
        muster.P2POp(muster.irecv, np.ones(1), rank, muster.world_group()),
        muster.P2POp(muster.isend, np.ones(1), rank, muster.world_group())])


def test_a_text_with_a_zero_byte_is_refused():
    with pytest.raises(muster.ArgumentError, match="zero byte"):
        muster.new_group(group_desc="a\0b")


def test_debugging_and_backends(size):
    assert "shm" in muster.list_backends()
    assert muster.is_backend_available("gloo")
    assert not muster.is_backend_available("none")
    assert muster.get_default_backend_for_device("cpu") == "shm"
    assert muster.get_debug_level() in muster.DebugLevel
    muster.all_reduce(np.ones(1))
    assert muster.flight_recorder()["entries"]
    assert muster.__version__


def test_symmetric_memory_is_memory_for_collectives(size):
    symmetric = muster.SymmetricMemory("float32", 1024)
    array = np.frombuffer(symmetric.memory, np.float32)
    array[:] = 1
    muster.all_reduce(array)
    assert (array == size).all() and len(array) == 1024
    with pytest.raises(TypeError, match="no data type"):
        muster.SymmetricMemory("text", 1)
