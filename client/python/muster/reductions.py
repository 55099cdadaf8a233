"""Reductions: the built-in ones and those of the user's own."""

from __future__ import annotations

from enum import IntEnum
from typing import Callable

from . import _core


class ReduceOp(IntEnum):
    """The built-in reductions."""

    SUM = 0
    #: The sum divided by the number of ranks. Integers truncate toward zero.
    AVG = 1
    #: Floating point: NaN if any rank has NaN at that element.
    MIN = 2
    MAX = 3
    PRODUCT = 4
    #: Bitwise, on integers and bool.
    BAND = 5
    BOR = 6
    BXOR = 7
    #: The sum of every rank's array times that rank's `factor`.
    PREMUL_SUM = 8
    #: On pairs of a value and an index (structured arrays): the pair with the
    #: least, or the greatest value; among equal ones that with the least index.
    MINLOC = 9
    MAXLOC = 10


class UserOp(_core.UserOp):
    """A reduction from a function of Python, on CPU arrays.

    UserOp(function, commutative=True): function(operand, result) combines two
    memoryviews of equally many elements: result[i] = operand[i] op result[i].
    The op must be associative. Operands are combined in the order of ranks in
    any case; `commutative` must be equal on all ranks, which is checked. The
    views have the array's element type; those of float16, bfloat16, complex and
    structured arrays are bytes. They end with the call:
    numpy.frombuffer(result, dtype)[:] = ... is fine. Keep no such array and no
    slice of a view: its memory is gone, and nothing tells.

    It may run on any thread. An exception is printed, fails the collective and
    ends the group: other ranks get the error from this call or the next. All
    ranks give equal ops to one collective.

        largest = muster.UserOp(lambda a, b: np.maximum(a, b, out=np.asarray(b)))
        muster.all_reduce(array, op=largest)
    """

    __slots__ = ()

    def __new__(cls, function: Callable[[memoryview, memoryview], object],
                commutative: bool = True) -> "UserOp":
        return super().__new__(cls, function, commutative)
