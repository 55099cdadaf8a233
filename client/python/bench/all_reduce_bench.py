#!/usr/bin/python3
"""all_reduce of muster and of mpi4py from Python, in one run.

    mpirun --oversubscribe -n 2 all_reduce_bench.py [--json=FILE]

Both work on the same numpy array in the same processes, in turns, so that they
find the same machine. Prints for each size the median over the rounds of the
time of one call, and muster's as a multiple of mpi4py's. Checks the results.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time

import numpy as np
from mpi4py import MPI

import muster

# Bytes, and calls in one round.
SIZES = [(4, 5000), (1024, 5000), (64 * 1024, 500), (1 << 20, 50), (16 << 20, 5)]


def make_calls(array):
    """The contestants: a name, and a call that sums the array over all ranks."""
    world = MPI.COMM_WORLD
    prepared = muster.prepare_all_reduce(array)
    return {
        "mpi4py": lambda: world.Allreduce(MPI.IN_PLACE, array),
        "muster": lambda: muster.all_reduce(array),
        "muster prepared": prepared.run,
    }


def check(array, call, name):
    array[:] = MPI.COMM_WORLD.rank + 1
    call()
    size = MPI.COMM_WORLD.size
    if not (array == size * (size + 1) / 2).all():
        sys.exit(f"{name}: wrong result")


def measure(array, calls, rounds):
    """Seconds of one call, by contestant: the median of the rounds."""
    times = {name: [] for name in calls}
    made = make_calls(array)
    for name, call in made.items():
        check(array, call, name)
    array[:] = 0
    for _ in range(rounds):
        for name, call in made.items():
            call()
            MPI.COMM_WORLD.Barrier()
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            times[name].append((time.perf_counter() - start) / calls[name])
    return {name: sorted(times[name])[rounds // 2] for name in times}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--smoke", action="store_true",
                        help="one short round, for a test")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    muster.init(init_method=f"file://{folder}/store", rank=world.rank,
                world_size=world.size, timeout=60)
    figures = []
    for size, calls in SIZES[:2] if options.smoke else SIZES:
        array = np.zeros(size // 4, np.float32)
        count = 10 if options.smoke else calls
        rounds = 1 if options.smoke else options.rounds
        times = measure(array, dict.fromkeys(make_calls(array), count), rounds)
        figures.append({"bytes": size, "ranks": world.size,
                        **{f"{name} us": 1e6 * seconds
                           for name, seconds in times.items()},
                        "ratio": times["muster"] / times["mpi4py"]})
        if world.rank == 0:
            print(f"{size:>9} B  " + "  ".join(
                f"{name} {1e6 * seconds:9.2f} us"
                for name, seconds in times.items())
                + f"  ratio {figures[-1]['ratio']:.2f}", flush=True)
    if options.json and world.rank == 0:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    muster.destroy()
    world.Barrier()
    if world.rank == 0:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
