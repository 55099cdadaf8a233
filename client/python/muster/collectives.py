"""Collectives, at once, asynchronous and prepared.

Arrays are anything with the buffer protocol (numpy, array.array, bytearray) or
with DLPack (torch, jax, cupy). No call copies them: they must be contiguous in
row-major order and in this machine's byte order, and writable where the call
writes; otherwise ArgumentError is raised and nothing is sent. A call that is
refused on one rank alone uses up its number there, as in C++.

Arguments that all functions share:

group: a Group; None is the default group.
timeout: seconds or a datetime.timedelta; None is the group's timeout.
async_op: if True, the function returns a Work at once, which keeps the arrays
    alive; do not touch them before it is complete. Otherwise the function
    returns None when the collective is complete.

Ranks are global. `group_src` and `group_dst` are ranks in the group, instead.

Errors of all functions, or of Work.wait: ArgumentError (an argument, or ranks
that disagree), BackendError (the collective failed, or its timeout passed),
NetworkError (a peer is gone). `culprits` of the error names who is to blame.
Ctrl-C in a call that waits raises KeyboardInterrupt; if the collective had begun,
the group is aborted, because the other ranks count on it.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from . import _core
from .errors import ArgumentError
from .groups import Group, Timeout
from .reductions import ReduceOp, UserOp
from .works import Prepared, Work

Op = Union[ReduceOp, UserOp]

# async_op of muster._core is false, true or this.
_PREPARE = ...


def all_reduce(array: Any, op: Op = ReduceOp.SUM, group: Optional[Group] = None,
               timeout: Timeout = None, async_op: bool = False,
               factor: Optional[float] = None) -> Optional[Work]:
    """`array` becomes the reduction of all ranks' arrays.

    The result is bitwise equal on all ranks. Shapes and types must be equal on
    all ranks. `factor`: for PREMUL_SUM alone, what this rank's array is
    multiplied by.
    """
    return _core.all_reduce(array, op, factor, group, timeout, async_op)


def broadcast(array: Any, src: Optional[int] = None,
              group: Optional[Group] = None, timeout: Timeout = None,
              async_op: bool = False,
              group_src: Optional[int] = None) -> Optional[Work]:
    """`array` becomes the array of rank `src`, of the same shape and type."""
    return _core.broadcast(array, src, group_src, group, timeout, async_op)


def reduce(array: Any, dst: Optional[int] = None, op: Op = ReduceOp.SUM,
           group: Optional[Group] = None, timeout: Timeout = None,
           async_op: bool = False, group_dst: Optional[int] = None,
           factor: Optional[float] = None) -> Optional[Work]:
    """`array` of rank `dst` becomes the reduction of all ranks' arrays.

    The other ranks' arrays do not change.
    """
    return _core.reduce(array, dst, group_dst, op, factor, group, timeout,
                        async_op)


def all_gather(array_list: Sequence[Any], array: Any,
               group: Optional[Group] = None, timeout: Timeout = None,
               async_op: bool = False) -> Optional[Work]:
    """Every rank gets all ranks' `array`s in `array_list`, by rank in the group.

    Sizes may differ from rank to rank; all ranks must know them.
    """
    return _core.all_gather(array_list, array, group, timeout, async_op)


def all_gather_into_tensor(output: Any, input: Any,
                           group: Optional[Group] = None,
                           timeout: Timeout = None,
                           async_op: bool = False) -> Optional[Work]:
    """Every rank gets all ranks' `input`s, one after the other, in `output`.

    `output` has as many elements as all inputs: shape (n*a, b) or (n, a, b) for
    n ranks with inputs of shape (a, b).
    """
    return _core.all_gather_into_tensor(output, input, group, timeout, async_op)


def all_gather_v(output: Any, counts: Sequence[int], input: Any,
                 displacements: Optional[Sequence[int]] = None,
                 group: Optional[Group] = None, timeout: Timeout = None,
                 async_op: bool = False) -> Optional[Work]:
    """Every rank gets all ranks' `input`s in `output`, in parts of any size.

    `counts[r]` elements come from rank r, to element `displacements[r]` and
    after; without displacements one part after the other. A displacement must
    lie in the array also where the count is 0.
    """
    return _core.all_gather_v(output, counts, input, displacements, group,
                              timeout, async_op)


def gather(array: Any, gather_list: Optional[Sequence[Any]] = None,
           dst: Optional[int] = None, group: Optional[Group] = None,
           timeout: Timeout = None, async_op: bool = False,
           group_dst: Optional[int] = None) -> Optional[Work]:
    """Rank `dst` (0 if none is given) gets all ranks' arrays in `gather_list`.

    The other ranks leave `gather_list` out. All arrays have the same size.
    """
    return _core.gather(array, gather_list, dst, group_dst, group, timeout,
                        async_op)


def scatter(array: Any, scatter_list: Optional[Sequence[Any]] = None,
            src: Optional[int] = None, group: Optional[Group] = None,
            timeout: Timeout = None, async_op: bool = False,
            group_src: Optional[int] = None) -> Optional[Work]:
    """`array` becomes this rank's element of `scatter_list` of rank `src`.

    `src` is 0 if none is given. The other ranks leave `scatter_list` out. All
    arrays have the same size.
    """
    return _core.scatter(array, scatter_list, src, group_src, group, timeout,
                         async_op)


def reduce_scatter(output: Any, input_list: Sequence[Any],
                   op: Op = ReduceOp.SUM, group: Optional[Group] = None,
                   timeout: Timeout = None, async_op: bool = False,
                   factor: Optional[float] = None) -> Optional[Work]:
    """`output` becomes the reduction of element r of all ranks' `input_list`.

    r is this rank in the group. Sizes may differ from element to element.
    """
    return _core.reduce_scatter(output, input_list, op, factor, group, timeout,
                                async_op)


def reduce_scatter_tensor(output: Any, input: Any, op: Op = ReduceOp.SUM,
                          group: Optional[Group] = None,
                          timeout: Timeout = None, async_op: bool = False,
                          factor: Optional[float] = None) -> Optional[Work]:
    """`output` becomes the reduction of this rank's part of all ranks' `input`.

    `input` is cut into equal parts, one for each rank: n*a elements for an
    output of a elements and n ranks.
    """
    return _core.reduce_scatter_tensor(output, input, op, factor, group,
                                       timeout, async_op)


def reduce_scatter_v(output: Any, input: Any, counts: Sequence[int],
                     displacements: Optional[Sequence[int]] = None,
                     op: Op = ReduceOp.SUM, group: Optional[Group] = None,
                     timeout: Timeout = None, async_op: bool = False,
                     factor: Optional[float] = None) -> Optional[Work]:
    """reduce_scatter_tensor with parts of any size.

    Part r of `input` has `counts[r]` elements, from element `displacements[r]`
    on; without displacements one part after the other. Parts may overlap; a
    displacement must lie in the array also where the count is 0.
    """
    return _core.reduce_scatter_v(output, input, counts, displacements, op,
                                  factor, group, timeout, async_op)


def all_to_all(output_array_list: Sequence[Any],
               input_array_list: Sequence[Any],
               group: Optional[Group] = None, timeout: Timeout = None,
               async_op: bool = False) -> Optional[Work]:
    """Sends element r of `input_array_list` to rank r, for every r.

    Element r of `output_array_list` becomes what rank r sends here. Sizes may
    differ.
    """
    return _core.all_to_all(output_array_list, input_array_list, group, timeout,
                            async_op)


def all_to_all_single(output: Any, input: Any,
                      output_split_sizes: Optional[Sequence[int]] = None,
                      input_split_sizes: Optional[Sequence[int]] = None,
                      group: Optional[Group] = None, timeout: Timeout = None,
                      async_op: bool = False) -> Optional[Work]:
    """all_to_all with one input and one output, cut along dimension 0.

    The split sizes say how many rows come from and go to each rank; None: equal
    parts.
    """
    return _core.all_to_all_single(output, input, output_split_sizes,
                                   input_split_sizes, group, timeout, async_op)


def barrier(group: Optional[Group] = None, timeout: Timeout = None,
            async_op: bool = False) -> Optional[Work]:
    """Waits until every rank of the group has made the call."""
    return _core.barrier(group, timeout, async_op)


# The functions below start many collectives of one verb together, as one.


def all_reduce_coalesced(array_list: Sequence[Any], op: Op = ReduceOp.SUM,
                         group: Optional[Group] = None,
                         timeout: Timeout = None, async_op: bool = False,
                         factor: Optional[float] = None) -> Optional[Work]:
    """all_reduce of every array of a list, which must not be empty."""
    return _core.all_reduce_coalesced(array_list, op, factor, group, timeout,
                                      async_op)


def all_gather_coalesced(output_lists: Sequence[Sequence[Any]],
                         input_list: Sequence[Any],
                         group: Optional[Group] = None,
                         timeout: Timeout = None,
                         async_op: bool = False) -> Optional[Work]:
    """all_gather of every array of a list, which must not be empty.

    Array i of rank r becomes `output_lists[r][i]`.
    """
    for rank, outputs in enumerate(output_lists):
        if len(outputs) != len(input_list):
            raise ArgumentError(
                f"output_lists[{rank}] and input_list must have one length, "
                f"but have {len(outputs)} and {len(input_list)}")
    return _core.all_gather_coalesced(
        [array for outputs in output_lists for array in outputs], input_list,
        group, timeout, async_op)


def all_gather_into_tensor_coalesced(output_list: Sequence[Any],
                                     input_list: Sequence[Any],
                                     group: Optional[Group] = None,
                                     timeout: Timeout = None,
                                     async_op: bool = False) -> Optional[Work]:
    """all_gather_into_tensor of every pair of the lists."""
    return _core.all_gather_into_tensor_coalesced(output_list, input_list,
                                                  group, timeout, async_op)


def reduce_scatter_tensor_coalesced(output_list: Sequence[Any],
                                    input_list: Sequence[Any],
                                    op: Op = ReduceOp.SUM,
                                    group: Optional[Group] = None,
                                    timeout: Timeout = None,
                                    async_op: bool = False,
                                    factor: Optional[float] = None,
                                    ) -> Optional[Work]:
    """reduce_scatter_tensor of every pair of the lists."""
    return _core.reduce_scatter_tensor_coalesced(output_list, input_list, op,
                                                 factor, group, timeout,
                                                 async_op)


# The functions below prepare a collective, to be run with these arrays again
# and again: what a call checks is checked once. They send nothing.


def prepare_all_reduce(array: Any, op: Op = ReduceOp.SUM,
                       group: Optional[Group] = None, timeout: Timeout = None,
                       factor: Optional[float] = None) -> Prepared:
    """Prepares all_reduce, which has the same arguments."""
    return _core.all_reduce(array, op, factor, group, timeout, _PREPARE)


def prepare_broadcast(array: Any, src: Optional[int] = None,
                      group: Optional[Group] = None, timeout: Timeout = None,
                      group_src: Optional[int] = None) -> Prepared:
    """Prepares broadcast, which has the same arguments."""
    return _core.broadcast(array, src, group_src, group, timeout, _PREPARE)


def prepare_reduce(array: Any, dst: Optional[int] = None,
                   op: Op = ReduceOp.SUM, group: Optional[Group] = None,
                   timeout: Timeout = None, group_dst: Optional[int] = None,
                   factor: Optional[float] = None) -> Prepared:
    """Prepares reduce, which has the same arguments."""
    return _core.reduce(array, dst, group_dst, op, factor, group, timeout,
                        _PREPARE)


def prepare_all_gather(array_list: Sequence[Any], array: Any,
                       group: Optional[Group] = None,
                       timeout: Timeout = None) -> Prepared:
    """Prepares all_gather, which has the same arguments."""
    return _core.all_gather(array_list, array, group, timeout, _PREPARE)


def prepare_all_gather_into_tensor(output: Any, input: Any,
                                   group: Optional[Group] = None,
                                   timeout: Timeout = None) -> Prepared:
    """Prepares all_gather_into_tensor, which has the same arguments."""
    return _core.all_gather_into_tensor(output, input, group, timeout, _PREPARE)


def prepare_all_gather_v(output: Any, counts: Sequence[int], input: Any,
                         displacements: Optional[Sequence[int]] = None,
                         group: Optional[Group] = None,
                         timeout: Timeout = None) -> Prepared:
    """Prepares all_gather_v, which has the same arguments."""
    return _core.all_gather_v(output, counts, input, displacements, group,
                              timeout, _PREPARE)


def prepare_gather(array: Any, gather_list: Optional[Sequence[Any]] = None,
                   dst: Optional[int] = None, group: Optional[Group] = None,
                   timeout: Timeout = None,
                   group_dst: Optional[int] = None) -> Prepared:
    """Prepares gather, which has the same arguments."""
    return _core.gather(array, gather_list, dst, group_dst, group, timeout,
                        _PREPARE)


def prepare_scatter(array: Any, scatter_list: Optional[Sequence[Any]] = None,
                    src: Optional[int] = None, group: Optional[Group] = None,
                    timeout: Timeout = None,
                    group_src: Optional[int] = None) -> Prepared:
    """Prepares scatter, which has the same arguments."""
    return _core.scatter(array, scatter_list, src, group_src, group, timeout,
                         _PREPARE)


def prepare_reduce_scatter(output: Any, input_list: Sequence[Any],
                           op: Op = ReduceOp.SUM,
                           group: Optional[Group] = None,
                           timeout: Timeout = None,
                           factor: Optional[float] = None) -> Prepared:
    """Prepares reduce_scatter, which has the same arguments."""
    return _core.reduce_scatter(output, input_list, op, factor, group, timeout,
                                _PREPARE)


def prepare_reduce_scatter_tensor(output: Any, input: Any,
                                  op: Op = ReduceOp.SUM,
                                  group: Optional[Group] = None,
                                  timeout: Timeout = None,
                                  factor: Optional[float] = None) -> Prepared:
    """Prepares reduce_scatter_tensor, which has the same arguments."""
    return _core.reduce_scatter_tensor(output, input, op, factor, group,
                                       timeout, _PREPARE)


def prepare_reduce_scatter_v(output: Any, input: Any, counts: Sequence[int],
                             displacements: Optional[Sequence[int]] = None,
                             op: Op = ReduceOp.SUM,
                             group: Optional[Group] = None,
                             timeout: Timeout = None,
                             factor: Optional[float] = None) -> Prepared:
    """Prepares reduce_scatter_v, which has the same arguments."""
    return _core.reduce_scatter_v(output, input, counts, displacements, op,
                                  factor, group, timeout, _PREPARE)


def prepare_all_to_all(output_array_list: Sequence[Any],
                       input_array_list: Sequence[Any],
                       group: Optional[Group] = None,
                       timeout: Timeout = None) -> Prepared:
    """Prepares all_to_all, which has the same arguments."""
    return _core.all_to_all(output_array_list, input_array_list, group, timeout,
                            _PREPARE)


def prepare_all_to_all_single(output: Any, input: Any,
                              output_split_sizes: Optional[Sequence[int]] = None,
                              input_split_sizes: Optional[Sequence[int]] = None,
                              group: Optional[Group] = None,
                              timeout: Timeout = None) -> Prepared:
    """Prepares all_to_all_single, which has the same arguments."""
    return _core.all_to_all_single(output, input, output_split_sizes,
                                   input_split_sizes, group, timeout, _PREPARE)


def prepare_barrier(group: Optional[Group] = None,
                    timeout: Timeout = None) -> Prepared:
    """Prepares barrier, which has the same arguments."""
    return _core.barrier(group, timeout, _PREPARE)
