"""python3 -m muster.run: the launcher muster-run, with its options.

A program whose name ends in .py runs with this Python:

    python3 -m muster.run --standalone --nproc-per-node=4 train.py --epochs=2
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import List, Optional

# muster-run's options without a value.
_FLAGS = {"standalone", "no-python", "relay", "use-env", "help", "h",
          "version"}


def find_program(name: str) -> Optional[str]:
    """The program that the wheel carries, else the one on PATH."""
    own = os.path.join(os.path.dirname(__file__), "bin", name)
    if os.access(own, os.X_OK):
        return own
    for folder in os.get_exec_path():
        found = shutil.which(name, path=folder)
        if found is not None and not _calls_this(found):
            return found
    return None


def _calls_this(path: str) -> bool:
    """Whether it is a script that an installer made to call main()."""
    with open(path, "rb") as file:
        head = file.read(512)
    return head.startswith(b"#!") and b"python" in head


def find_first(arguments: List[str]) -> int:
    """Where the program stands among muster-run's arguments."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            return index + 1
        if not argument.startswith("-"):
            return index
        name = argument.lstrip("-").replace("_", "-")
        has_value = ("=" in argument or name in _FLAGS
                     or re.match("-[rt][0-9]", argument))
        index += 1 if has_value else 2
    return index


def with_python(arguments: List[str]) -> List[str]:
    """The arguments, with this Python before the program if that is in Python."""
    index = find_first(arguments)
    if index < len(arguments) and arguments[index].endswith(".py"):
        return (arguments[:index] + [sys.executable, "-u"]
                + arguments[index:])
    return arguments


def main(name: str = "muster-run") -> None:
    program = find_program(name)
    if program is None:
        sys.exit(f"{name}: it is neither in this package nor on PATH; the "
                 f"package muster-tools has it")
    arguments = sys.argv[1:]
    if name == "muster-run":
        own = arguments[:find_first(arguments)]
        if "--no-python" not in own and "--no_python" not in own:
            arguments = with_python(arguments)
    os.execv(program, [program] + arguments)


def run_musterctl() -> None:
    main("musterctl")


def run_coordinator() -> None:
    main("muster-coordinator")


if __name__ == "__main__":
    main()
