#!/usr/bin/env python3
"""Writes compile_commands.json at the root of the clone, for clangd.

Called by ./dev compdb, with the options of its bazel. Asks Bazel how it would
compile each file; generated headers exist only after a build.
"""

import json
import os
import subprocess
import sys

FOLDERS = ("base", "proto", "coordinator", "dataplane", "client", "worker",
           "tests")


def bazel(*arguments):
    return subprocess.run(["bazel", *arguments], check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def main():
    root = os.getcwd()
    execution_root = bazel("info", "execution_root").strip()
    targets = " + ".join(f"//{folder}/..." for folder in FOLDERS)
    graph = json.loads(bazel("aquery", *sys.argv[1:], "--output=jsonproto",
                             f'mnemonic("CppCompile", {targets})'))
    commands = {}
    for action in graph.get("actions", []):
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if os.path.exists(os.path.join(root, source)):
            commands[source] = {"directory": execution_root,
                                "file": os.path.join(root, source),
                                "arguments": arguments}
    with open("compile_commands.json", "w", encoding="utf-8") as handle:
        json.dump([commands[source] for source in sorted(commands)], handle,
                  indent=1)
    print(f"compile_commands.json: {len(commands)} files", file=sys.stderr)


if __name__ == "__main__":
    main()
