#!/usr/bin/env python3
"""Compares an all_reduce between hosts with the bandwidth of their links.

    laboratory_bench.py MUSTER_COORDINATOR MUSTER_BENCH [--hosts=4]
        [--ranks=1] [--rate=1gbit] [--size=64M] [--json=FILE]
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

LIMIT_S = 300
TARGET = 0.9


def measure(lab, coordinator, options, job, variables):
    """muster-bench's figures; ranks are grouped by host."""
    host, port = coordinator.split(":")
    file = os.path.join(lab.folder, f"{job}.json")
    world_size = options.hosts * options.ranks
    ranks = [lab.hosts[rank // options.ranks].start(
        [options.bench, "all_reduce", "--backend=shm",
         f"--minbytes={options.size}", f"--maxbytes={options.size}",
         "--iters=2", "--run_cycles=3", "--warmup_iters=1", f"--json={file}"],
        {"RANK": str(rank), "WORLD_SIZE": str(world_size),
         "MASTER_ADDR": host, "MASTER_PORT": port,
         "TORCHELASTIC_RUN_ID": job,
         "TORCHELASTIC_USE_AGENT_STORE": "True", **variables})
        for rank in range(world_size)]
    for rank in ranks:
        if rank.wait() != 0:
            sys.exit("a rank failed")
    with open(file, encoding="utf-8") as figures:
        return json.load(figures)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coordinator", help="the program muster-coordinator")
    parser.add_argument("bench", help="the program muster-bench")
    parser.add_argument("--hosts", type=int, default=4, help="2 to 8")
    parser.add_argument("--ranks", type=int, default=1,
                        help="on each host; from 2 on they share memory, and "
                        "are timed beside MUSTER_SHM=0, where they do not")
    parser.add_argument("--rate", default="1gbit", help="of each link, in bits "
                        "a second: a number and kbit, mbit or gbit")
    parser.add_argument("--size", default="64M", help="bytes, or with K, M, G")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    laboratory.inside(LIMIT_S)
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
    bytes_per_s = float(options.rate[:-4]) * units[options.rate[-4:]] / 8
    with laboratory.Laboratory(options.hosts, rate=options.rate) as lab:
        coordinator = lab.start_coordinator(options.coordinator)
        row = measure(lab, coordinator, options, "bench", {})
        flat = (measure(lab, coordinator, options, "flat", {"MUSTER_SHM": "0"})
                if options.ranks > 1 else None)
    bound_us = (2 * (options.hosts - 1) / options.hosts * row["bytes"] /
                bytes_per_s * 1e6)
    time_us = row["time_us"]["median"]
    reached = bound_us / time_us
    ranks = f" with {options.ranks} ranks each" if options.ranks > 1 else ""
    figure = {"name": f"all_reduce of {row['bytes']} bytes over "
                      f"{options.hosts} hosts{ranks} at {options.rate}, of "
                      "what a ring of hosts could do",
              "value": reached, "unit": "of the bound", "reference": None,
              "reference_value": None, "ratio": None, "target": TARGET,
              "met": reached >= TARGET}
    if flat is not None:
        flat_us = flat["time_us"]["median"]
        figure.update({"reference": "MUSTER_SHM=0",
                       "reference_value": bound_us / flat_us,
                       "ratio": flat_us / time_us})
        print(f"MUSTER_SHM=0: {flat_us:.0f} us, {flat_us / time_us:.2f} times "
              "as long")
    print(f"{'met' if figure['met'] else 'MISSED':6} {figure['name']}: "
          f"{reached:.3f} ({time_us:.0f} us, bound {bound_us:.0f} us; wanted: "
          f"at least {TARGET})")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump([figure], out, indent=1)


if __name__ == "__main__":
    main()
