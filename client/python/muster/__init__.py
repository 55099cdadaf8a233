"""muster: torch.distributed's job without torch.

    import numpy as np
    import muster

    muster.init()                      # env://, as muster-run sets it
    array = np.ones(1000, np.float32)
    muster.all_reduce(array)           # in place, without a copy
    work = muster.all_reduce(array, op=muster.ReduceOp.MAX, async_op=True)
    work.wait()
    muster.destroy()

Run it with `python3 -m muster.run --standalone --nproc-per-node=4 program.py`,
which is muster-run. The functions have torch.distributed's names.

Arrays are anything with the buffer protocol (numpy, array.array, bytearray) or
with DLPack (torch, jax, cupy). They are never copied, so they must be
contiguous, in this machine's byte order, and writable where a call writes;
anything else is an ArgumentError. Structured arrays of a value and an index are
for MINLOC and MAXLOC; other structured arrays are moved as bytes.

muster.parallel trains with the data parallel method, and muster.checkpoint saves
and loads the state of all ranks.

Every collective runs at once, starts with async_op=True (a Work, which has
wait() and can be awaited), or is prepared once and run often (Prepared). UserOp
makes a reduction from a function of Python. Objects are bytes; only functions
whose names begin with pickle_ take others.

Errors are muster.Error and its kinds; `culprits` names the ranks to blame. The
GIL is released while a call waits. Ctrl-C ends every wait; a synchronous
collective that has begun takes its group with it. A forked child gets errors: it
cannot use its parent's groups.
"""

from .errors import (ArgumentError, BackendError, Code, Error, InternalError,
                     Member, NetworkError, QueueEmptyError, StoreError)
from .reductions import ReduceOp, UserOp
from .works import Prepared, Work
from .stores import (ChangeKind, CoordinatorStore, FileStore, HashStore,
                     KeyChange, PrefixStore, Store, StoreWatch, TCPStore)
from .groups import (Group, destroy, get_backend, get_debug_address,
                     get_default_store, get_global_rank, get_group_rank,
                     get_node_local_rank, get_process_group_ranks, get_rank,
                     get_world_size, init, is_initialized,
                     is_torchelastic_launched, monitored_barrier, new_group,
                     new_subgroups, new_subgroups_by_enumeration, shrink_group,
                     split_group, world_group)
from .collectives import (all_gather, all_gather_coalesced,
                          all_gather_into_tensor,
                          all_gather_into_tensor_coalesced, all_gather_v,
                          all_reduce, all_reduce_coalesced, all_to_all,
                          all_to_all_single, barrier, broadcast, gather,
                          prepare_all_gather, prepare_all_gather_into_tensor,
                          prepare_all_gather_v, prepare_all_reduce,
                          prepare_all_to_all, prepare_all_to_all_single,
                          prepare_barrier, prepare_broadcast, prepare_gather,
                          prepare_reduce, prepare_reduce_scatter,
                          prepare_reduce_scatter_tensor,
                          prepare_reduce_scatter_v, prepare_scatter, reduce,
                          reduce_scatter, reduce_scatter_tensor,
                          reduce_scatter_tensor_coalesced, reduce_scatter_v,
                          scatter)
from .p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from .objects import (all_gather_object, broadcast_object_list, gather_object,
                      pickle_all_gather_object, pickle_broadcast_object_list,
                      pickle_gather_object, pickle_recv_object_list,
                      pickle_scatter_object, pickle_send_object_list,
                      recv_object_list, scatter_object, send_object_list)
from .mesh import (DeviceMesh, concatenate_meshes, init_device_mesh,
                   mesh_from_group)
from .sessions import (EventKind, Formation, GroupProgress, MemberEvent,
                       Session)
from .debug import (DebugLevel, SymmetricMemory, cuda_device_count,
                    current_stream, dump_flight_recorder, flight_recorder,
                    get_debug_level, get_default_backend_for_device,
                    is_backend_available, is_nccl_available, list_backends,
                    load_backend, set_current_stream, set_debug_level,
                    set_debug_level_from_env)
from . import checkpoint, parallel
from ._library import library as _loaded

#: The version of the library.
__version__: str = _loaded.muster_version().decode()

# torch.distributed's names of the same functions.
init_process_group = init
destroy_process_group = destroy

__all__ = [
    "ArgumentError", "BackendError", "ChangeKind", "Code", "CoordinatorStore",
    "DebugLevel", "DeviceMesh", "Error", "EventKind", "FileStore", "Formation",
    "Group", "GroupProgress", "HashStore", "InternalError", "KeyChange", "Member",
    "MemberEvent", "NetworkError", "P2POp", "PrefixStore", "Prepared",
    "QueueEmptyError", "ReduceOp", "Session", "Store", "StoreError",
    "StoreWatch", "SymmetricMemory", "TCPStore", "UserOp", "Work",
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_object", "all_gather_v", "all_reduce", "all_reduce_coalesced",
    "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
    "broadcast", "broadcast_object_list", "concatenate_meshes",
    "cuda_device_count", "current_stream", "destroy", "destroy_process_group",
    "dump_flight_recorder", "flight_recorder", "gather", "gather_object",
    "get_backend", "get_debug_address", "get_debug_level",
    "get_default_backend_for_device", "get_default_store", "get_global_rank",
    "get_group_rank", "get_node_local_rank", "get_process_group_ranks",
    "get_rank", "get_world_size", "init", "init_device_mesh",
    "init_process_group", "irecv", "is_backend_available", "is_initialized",
    "is_nccl_available", "is_torchelastic_launched", "isend", "list_backends",
    "load_backend", "mesh_from_group", "monitored_barrier", "new_group",
    "new_subgroups", "new_subgroups_by_enumeration",
    "pickle_all_gather_object", "pickle_broadcast_object_list",
    "pickle_gather_object", "pickle_recv_object_list", "pickle_scatter_object",
    "pickle_send_object_list", "prepare_all_gather",
    "prepare_all_gather_into_tensor", "prepare_all_gather_v",
    "prepare_all_reduce", "prepare_all_to_all", "prepare_all_to_all_single",
    "prepare_barrier", "prepare_broadcast", "prepare_gather", "prepare_reduce",
    "prepare_reduce_scatter", "prepare_reduce_scatter_tensor",
    "prepare_reduce_scatter_v", "prepare_scatter", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_v", "scatter",
    "scatter_object", "send", "send_object_list", "set_current_stream",
    "set_debug_level", "set_debug_level_from_env", "shrink_group",
    "split_group", "world_group",
]
