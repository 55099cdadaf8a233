#!/usr/bin/python3
"""A rank of torch's DistributedDataParallel over gloo, beside parallel_bench's.

    torch_ddp.py RANK RANKS FOLDER VIEW BUCKET_KIB ELEMENTS

VIEW is 1 or 0, gradient_as_bucket_view. BUCKET_KIB is 0 for the usual sizes.
ELEMENTS lists the sizes of the parameters, separated by commas. Needs
python3-torch. The protocol and the model of the computation are in
training_rank.h.
"""

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Computation:
    """One step's computation, on a device or on this thread."""

    def __init__(self, kind):
        self.on_device = kind == "device"
        self.device_time = time.monotonic()

    def run(self, seconds):
        if seconds <= 0:
            return
        if self.on_device:
            self.device_time += seconds
            left = self.device_time - time.monotonic()
            # The device computes for so long: the pause is what is measured, and
            # waits for nothing.
            if left > 0:
                time.sleep(left)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


class Layer(torch.autograd.Function):
    """Has one parameter. Its backward computes for a while.

    The gradient counts as written to `weight.grad`, which lies in the bucket
    with gradient_as_bucket_view: no copy of it is made outside of DDP.
    """

    @staticmethod
    def forward(ctx, inputs, weight, computation, seconds):
        ctx.computation, ctx.seconds = computation, seconds
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.computation.run(ctx.seconds)
        return gradient, None, None, None


class Model(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            [torch.zeros(count) for count in elements])
        self.parts = [count / sum(elements) for count in elements]
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)

    def forward(self, inputs, computation, seconds):
        for weight, part in zip(self.weights, self.parts):
            inputs = Layer.apply(inputs, weight, computation, seconds * part)
        return inputs


def step(model, kind, seconds, sync):
    computation = Computation(kind)
    with contextlib.nullcontext() if sync else model.no_sync():
        model(torch.zeros(1), computation, seconds).backward(torch.ones(1))


def is_right(model):
    """Whether gradients of rank + 1 are averaged."""
    # Buckets are built anew after the first step.
    for _ in range(2):
        for weight in model.module.weights:
            weight.grad.fill_(dist.get_rank() + 1)
        step(model, "device", 0, True)
    average = (dist.get_world_size() + 1) / 2
    return all(bool((weight.grad == average).all())
               for weight in model.module.weights)


def main():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rank, ranks, folder, view, bucket_kib, elements = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{folder}/torch",
                            rank=int(rank), world_size=int(ranks))
    bucket_bytes = 1024 * int(bucket_kib) or 25 << 20
    # DDP has no option for the first bucket.
    dist._DEFAULT_FIRST_BUCKET_BYTES = min(1 << 20, bucket_bytes)
    model = DistributedDataParallel(
        Model([int(count) for count in elements.split(",")]),
        bucket_cap_mb=bucket_bytes / (1 << 20),
        gradient_as_bucket_view=view == "1")
    if not is_right(model):
        print("wrong result", flush=True)
        return
    print(f"ready torch {torch.__version__}, gloo", flush=True)
    for line in sys.stdin:
        kind, seconds, sync, steps = line.split()
        dist.all_reduce(torch.zeros(1))
        start = time.perf_counter()
        for _ in range(int(steps)):
            step(model, kind, float(seconds), sync == "1")
        elapsed = time.perf_counter() - start
        print(f"{elapsed / int(steps):.9f}", flush=True)


if __name__ == "__main__":
    main()
