#!/usr/bin/env python3
"""How near an all_reduce between hosts comes to what its links can carry.

    laboratory_bench.py MUSTER_COORDINATOR MUSTER_BENCH [--hosts=4]
        [--rate=1gbit] [--size=64M] [--json=FILE]
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

LIMIT_S = 300
TARGET = 0.9


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("coordinator", help="the program muster-coordinator")
    parser.add_argument("bench", help="the program muster-bench")
    parser.add_argument("--hosts", type=int, default=4, help="2 to 8")
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
        host, port = coordinator.split(":")
        file = os.path.join(lab.folder, "figures.json")
        ranks = [where.start(
            [options.bench, "all_reduce", f"--minbytes={options.size}",
             f"--maxbytes={options.size}", "--iters=2", "--run_cycles=3",
             "--warmup_iters=1", f"--json={file}"],
            {"RANK": str(rank), "WORLD_SIZE": str(options.hosts),
             "MASTER_ADDR": host, "MASTER_PORT": port,
             "TORCHELASTIC_RUN_ID": "bench",
             "TORCHELASTIC_USE_AGENT_STORE": "True"})
            for rank, where in enumerate(lab.hosts)]
        for rank in ranks:
            if rank.wait() != 0:
                sys.exit("a rank failed")
        with open(file, encoding="utf-8") as figures:
            row = json.load(figures)[0]
    bound_us = (2 * (options.hosts - 1) / options.hosts * row["bytes"] /
                bytes_per_s * 1e6)
    time_us = row["time_us"]["median"]
    reached = bound_us / time_us
    figure = {"name": f"all_reduce of {row['bytes']} bytes over "
                      f"{options.hosts} hosts at {options.rate}, of what a "
                      "ring could do",
              "value": reached, "unit": "of the bound", "reference": None,
              "reference_value": None, "ratio": None, "target": TARGET,
              "met": reached >= TARGET}
    print(f"{'met' if figure['met'] else 'MISSED':6} {figure['name']}: "
          f"{reached:.3f} ({time_us:.0f} us, bound {bound_us:.0f} us; wanted: "
          f"at least {TARGET})")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump([figure], out, indent=1)


if __name__ == "__main__":
    main()
