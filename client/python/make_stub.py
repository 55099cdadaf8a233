#!/usr/bin/python3
"""Writes muster/collectives.pyi, from which type checkers take the results.

    make_stub.py OUTPUT COLLECTIVES.PY

Each function with `async_op` gets three signatures: without it the result is
None, with True a Work, and with a bool that is not known Optional[Work].
"""

import ast
import sys

HEAD = '"""Written by make_stub.py; do not edit."""\n\n'


def with_result(function, async_op, default, result):
    """The signature with this type of async_op, and this result.

    Without a default it can only be given by its name, as can those after it.
    """
    text = ast.unparse(function).partition("\n")[0]
    arguments, _, _ = text.rpartition(" -> ")
    given = "async_op: bool=False"
    assert arguments.count(given) == 1, text
    wanted = f"async_op: {async_op}{default}"
    if not default:
        wanted = "*, " + wanted
    return f"@overload\n{arguments.replace(given, wanted)} -> {result}: ...\n"


def to_stub(node):
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign)):
        text = ast.unparse(node) + "\n"
        return "" if "__future__" in text else text
    if not isinstance(node, ast.FunctionDef):
        return ""
    node.body = [ast.Pass()]
    if all(one.arg != "async_op" for one in node.args.args):
        return ast.unparse(node).partition("\n")[0] + " ...\n"
    return (with_result(node, "Literal[False]", "=False", "None")
            + with_result(node, "Literal[True]", "", "Work")
            + with_result(node, "bool", "=False", "Optional[Work]"))


def main():
    output, source = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    stub = "".join(to_stub(node) for node in tree.body)
    with open(output, "w", encoding="utf-8") as file:
        file.write(HEAD + "from typing import Literal, overload\n" + stub)


if __name__ == "__main__":
    main()
