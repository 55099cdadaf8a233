"""python3 -m muster.run: the launcher muster-run, with its options.

A program that ends in .py runs with this Python:

    python3 -m muster.run --standalone --nproc-per-node=4 train.py --epochs=2
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import List, Optional


def find_program(name: str) -> Optional[str]:
    """The program that the wheel carries, else the one on PATH."""
    own = os.path.join(os.path.dirname(__file__), "bin", name)
    return own if os.access(own, os.X_OK) else shutil.which(name)


def with_python(arguments: List[str]) -> List[str]:
    """The arguments, with this Python before the first program in Python."""
    for index, argument in enumerate(arguments):
        if argument.startswith("-"):
            continue
        if os.path.basename(argument).startswith("python"):
            break
        if argument.endswith(".py"):
            return (arguments[:index] + [sys.executable, "-u"]
                    + arguments[index:])
    return arguments


def main(name: str = "muster-run") -> None:
    program = find_program(name)
    if program is None:
        sys.exit(f"{name}: it is neither in this package nor on PATH; the "
                 f"package muster-tools has it")
    arguments = sys.argv[1:]
    if name == "muster-run" and "--no-python" not in arguments:
        arguments = with_python(arguments)
    os.execv(program, [program] + arguments)


def run_musterctl() -> None:
    main("musterctl")


def run_coordinator() -> None:
    main("muster-coordinator")


if __name__ == "__main__":
    main()
