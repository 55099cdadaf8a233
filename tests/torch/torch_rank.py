#!/usr/bin/env python3
"""Runs the cases as one rank on PyTorch's gloo: torch_rank.py CASES OUTPUT.

Writes the bytes of each case's result, one tensor after another. RANK and the
other variables come from the environment.
"""

import os
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # pylint: disable=wrong-import-position

OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


def make(rank, count, dtype):
    numbers = (torch.arange(count) * 7 + rank * 3) % 5 - 2
    return (numbers * cases.SCALE[dtype]).to(getattr(torch, dtype))


def run(line):
    """The result of the case on this rank, or None."""
    verb, dtype, op, count, root = line.split()
    count, root = int(count), int(root)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = make(rank, count, dtype)
    if verb == "all_reduce":
        dist.all_reduce(mine, OPS[op])
        return mine
    if verb == "reduce":
        dist.reduce(mine, root, OPS[op])
        return mine if rank == root else None
    if verb == "broadcast":
        dist.broadcast(mine, root)
        return mine
    parts = [torch.zeros_like(mine) for _ in range(size)]
    if verb == "all_gather":
        dist.all_gather(parts, mine)
        return torch.cat(parts)
    if verb == "gather":
        dist.gather(mine, parts if rank == root else None, root)
        return torch.cat(parts) if rank == root else None
    if verb == "scatter":
        parts = [make(rank + to, count, dtype) for to in range(size)]
        dist.scatter(mine, parts if rank == root else None, root)
        return mine
    if verb == "all_to_all_single":
        sent = torch.cat([make(rank + to, count, dtype) for to in range(size)])
        got = torch.zeros_like(sent)
        dist.all_to_all_single(got, sent)
        return got
    if verb == "send_recv":
        got = torch.zeros_like(mine)
        request = dist.isend(mine, (rank + 1) % size, tag=root)
        dist.recv(got, (rank + size - 1) % size, tag=root)
        request.wait()
        return got
    raise ValueError(line)


def main():
    dist.init_process_group("gloo")
    with open(sys.argv[1], encoding="utf-8") as lines, \
            open(sys.argv[2], "wb") as output:
        for line in lines:
            result = run(line)
            if result is not None:
                output.write(result.numpy().tobytes())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
