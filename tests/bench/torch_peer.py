#!/usr/bin/python3
"""torch.distributed's gloo backend, as a peer of muster-bench.

    muster-bench all_reduce --nproc=4 --peer=tests/bench/torch_peer.py

Needs python3-torch. The protocol is in worker/bench/peer.h.
"""

import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"python3-torch is not installed: {error}", flush=True)
    sys.exit(1)

TYPES = {"float32": torch.float32, "float64": torch.float64,
         "float16": torch.float16, "int8": torch.int8, "uint8": torch.uint8,
         "int32": torch.int32, "int64": torch.int64}
OPS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN,
       "max": dist.ReduceOp.MAX, "product": dist.ReduceOp.PRODUCT}


def prepare(operation, data_type, reduce_op, count, root):
    """Returns the call and its tensors; None: it is not supported."""
    if data_type not in TYPES or reduce_op not in OPS:
        return None
    rank, size = dist.get_rank(), dist.get_world_size()

    def new(n):
        return torch.zeros(n, dtype=TYPES[data_type])

    def parts():
        return list(new(count * size).chunk(size))

    one, op = new(count), OPS[reduce_op]
    if operation == "barrier":
        return dist.barrier, []
    if operation == "all_reduce":
        return lambda: dist.all_reduce(one, op=op), [one]
    if operation == "broadcast":
        return lambda: dist.broadcast(one, root), [one]
    if operation == "reduce":
        return lambda: dist.reduce(one, root, op=op), [one]
    if operation == "all_gather":
        many = parts()
        return lambda: dist.all_gather(many, one), many + [one]
    if operation == "gather":
        many = parts() if rank == root else None
        return lambda: dist.gather(one, many, dst=root), (many or []) + [one]
    if operation == "scatter":
        many = parts() if rank == root else None
        return lambda: dist.scatter(one, many, src=root), (many or []) + [one]
    if operation in ("all_to_all", "all_to_all_single"):
        give, take = new(count * size), new(count * size)
        return lambda: dist.all_to_all_single(take, give), [give, take]
    return None


def is_right(operation, reduce_op, tensors):
    """Whether a call is right whose inputs are rank + 1 on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if operation == "all_reduce" and reduce_op == "sum":
        return bool((tensors[0] == size * (size + 1) // 2).all())
    if operation == "all_gather":
        return all(bool((tensor == r + 1).all())
                   for r, tensor in enumerate(tensors[:-1]))
    if operation.startswith("all_to_all"):
        return all(bool((tensor == r + 1).all())
                   for r, tensor in enumerate(tensors[1].chunk(size)))
    return bool(rank >= 0)


def main():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    folder = os.environ["MUSTER_BENCH_FOLDER"]
    dist.init_process_group("gloo", init_method=f"file://{folder}/torch",
                            rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    print(f"ready torch_{torch.__version__}", flush=True)
    kept = None
    prepared = None
    for line in sys.stdin:
        _, operation, data_type, reduce_op, count, root, calls = line.split()
        key = (operation, data_type, reduce_op, int(count), int(root))
        if key != kept:
            prepared = None
            prepared = prepare(*key)
            kept = key
            if prepared is not None:
                call, tensors = prepared
                for tensor in tensors:
                    tensor.fill_(dist.get_rank() + 1)
                call()
                if not is_right(operation, reduce_op, tensors):
                    print("wrong result", flush=True)
                    return
                for tensor in tensors:
                    tensor.zero_()
        if prepared is None:
            print("none", flush=True)
            continue
        call = prepared[0]
        # Starts all ranks together with an all_reduce: the group's barrier is
        # slow.
        dist.all_reduce(torch.zeros(1))
        start = time.perf_counter()
        for _ in range(int(calls)):
            call()
        elapsed = time.perf_counter() - start
        print(f"seconds {elapsed / int(calls):.12f}", flush=True)


if __name__ == "__main__":
    main()
