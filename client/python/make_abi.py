#!/usr/bin/python3
"""Writes muster/_abi.py: muster's C interface for ctypes, from its headers.

    make_abi.py OUTPUT INCLUDE_FOLDER...

The constants, structs and functions of muster/muster_parallel.h and those that
it includes; so the package cannot
differ from the headers with which it is built.
"""

import subprocess
import sys

from pycparser import c_ast, c_parser

# Package python3-pycparser: headers that declare no more than the names.
FAKE_HEADERS = "/usr/share/python3-pycparser/fake_libc_include"
SCALARS = {
    "int32_t": "c_int32", "uint32_t": "c_uint32", "int64_t": "c_int64",
    "uint64_t": "c_uint64", "size_t": "c_size_t", "double": "c_double",
}
# Results with zero bytes inside, which c_char_p would cut.
BYTES_RESULTS = {"muster_strings_data"}

HEAD = '''"""muster's C interface for ctypes. Written by make_abi.py; do not edit."""

from ctypes import (CFUNCTYPE, POINTER, c_char_p, c_double, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)
from typing import Any, Dict, List, Tuple

from ._numbers import Struct

'''


class Interface:
    """The declarations of the headers, as text of Python."""

    def __init__(self):
        self.scalars = dict(SCALARS)
        self.structs = set()
        self.callbacks = set()
        self.text = []
        self.functions = []

    def type_of(self, node):
        """The ctypes expression for a type; None for void."""
        if isinstance(node, c_ast.PtrDecl):
            return self.pointer_to(node.type)
        if isinstance(node, c_ast.ArrayDecl):
            return self.pointer_to(node.type)
        if isinstance(node, c_ast.TypeDecl):
            if isinstance(node.type, c_ast.Struct):
                return node.type.name
            name = " ".join(node.type.names)
            if name == "void":
                return None
            return self.scalars.get(name, name)
        raise ValueError(f"no ctypes for {node}")

    def pointer_to(self, node):
        if isinstance(node, c_ast.FuncDecl):
            return self.function_type(node)
        inner = self.type_of(node)
        if inner is None:
            return "c_void_p"
        if inner == "char":
            return "c_char_p"
        if inner in self.structs or inner.startswith(("c_", "POINTER")):
            return f"POINTER({inner})"
        # A handle.
        return "c_void_p"

    def function_type(self, node):
        types = [self.type_of(node.type)] + self.arguments(node)
        return f"CFUNCTYPE({', '.join(str(one) for one in types)})"

    def arguments(self, node):
        declared = node.args.params if node.args else []
        types = [self.type_of(one.type) for one in declared]
        return [] if types == [None] else types

    def add(self, node):
        if isinstance(node, c_ast.Typedef):
            self.add_typedef(node)
        elif isinstance(node.type, c_ast.Enum):
            self.add_enum(node.type)
        elif isinstance(node.type, c_ast.FuncDecl):
            self.add_function(node)

    def add_typedef(self, node):
        if not node.name.startswith("muster_"):
            return  # of a header of C
        inner = node.type
        if isinstance(inner, c_ast.TypeDecl) and isinstance(inner.type,
                                                            c_ast.Struct):
            if inner.type.decls:
                self.add_struct(node.name, inner.type)
        elif isinstance(inner, c_ast.PtrDecl):
            self.text.append(f"{node.name} = {self.pointer_to(inner.type)}\n")
            self.scalars[node.name] = node.name
        else:
            self.scalars[node.name] = self.type_of(inner)

    def add_struct(self, name, struct):
        self.structs.add(name)
        fields = "".join(f'        ("{one.name}", {self.type_of(one.type)}),\n'
                         for one in struct.decls)
        self.text.append(f"class {name}(Struct):\n"
                         f"    _fields_ = [\n{fields}    ]\n")

    def add_enum(self, enum):
        value = -1
        for one in enum.values.enumerators:
            value = evaluate(one.value) if one.value else value + 1
            self.text.append(f"{one.name} = {value}\n")

    def add_function(self, node):
        result = self.type_of(node.type.type)
        if node.name in BYTES_RESULTS:
            result = "c_void_p"
        types = ", ".join(self.arguments(node.type))
        self.functions.append(f'    "{node.name}": ({result}, [{types}]),\n')


def evaluate(node):
    """The value of a constant expression of an enum."""
    if isinstance(node, c_ast.Constant):
        return int(node.value, 0)
    if isinstance(node, c_ast.UnaryOp) and node.op == "-":
        return -evaluate(node.expr)
    if isinstance(node, c_ast.BinaryOp) and node.op == "<<":
        return evaluate(node.left) << evaluate(node.right)
    raise ValueError(f"cannot evaluate {node}")


def main():
    output, *folders = sys.argv[1:]
    command = ["gcc", "-E", "-nostdinc", "-I" + FAKE_HEADERS, "-x", "c", "-"]
    command += ["-I" + folder for folder in folders]
    source = subprocess.run(command, input="#include <muster/muster_parallel.h>\n",
                            capture_output=True, check=True, text=True).stdout
    interface = Interface()
    for node in c_parser.CParser().parse(source).ext:
        if not isinstance(node, c_ast.Pragma):
            interface.add(node)
    with open(output, "w", encoding="utf-8") as file:
        file.write(HEAD + "".join(interface.text))
        file.write("\nFUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {\n" + "".join(interface.functions) + "}\n")


if __name__ == "__main__":
    main()
