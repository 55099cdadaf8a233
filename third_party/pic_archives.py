#!/usr/bin/env python3
"""Makes archives that were compiled for programs fit for a shared library.

    pic_archives.py OUT_DIR ARCHIVE...

leaves in OUT_DIR one archive for each, or a link to it if nothing has to change.

Debian compiles most archives with -fPIE. That differs from -fPIC in two kinds
of instruction:

- lea and mov of a variable of another library. A program gets a copy of the
  variable at a known distance; here it is read through the global offset table.
- Access to a thread-local variable by its offset from %fs:0, which a library
  that is loaded into a running process does not know before each thread asks
  for it. Here _muster_tls_offset (client/lib/tls_offset.S) asks.

The new instructions are longer, so they stand at the end of the section, and a
jump leads there and back. They change no register but the result. The
relocation moves with them. x86-64 only; what is not known here is an error.
"""

import os
import struct
import subprocess
import sys
import tempfile

PC32, PLT32, GOTPCREL, TLSGD, GOTTPOFF, TPOFF32 = 2, 4, 9, 19, 22, 23
SHT_SYMTAB, SHT_RELA, SHF_EXECINSTR = 2, 4, 4
EM_X86_64 = 62
TLS_OFFSET = b"_muster_tls_offset"

# Below the stack pointer a function without calls has variables.
SKIP_RED_ZONE = bytes.fromhex("488d642480")             # lea -128(%rsp),%rsp
BACK_OVER_RED_ZONE = bytes.fromhex("488da42480000000")  # lea 128(%rsp),%rsp
# Opcodes with an operand in memory, and the bytes of their constant.
CONSTANT_BYTES = {0x01: 0, 0x03: 0, 0x29: 0, 0x2B: 0, 0x39: 0, 0x3B: 0, 0x63: 0,
                  0x80: 1, 0x81: 4, 0x83: 1, 0x89: 0, 0x8B: 0, 0xC6: 1, 0xC7: 4}
# Those of them that write a register and do not read it.
LOADS = {0x8B, 0x63}
RAX, RCX, RSP = 0, 1, 4


class Site:
    """An instruction to replace: where it is, and what comes instead.

    relocation and call are offsets in `code`: of what the instruction's own
    relocation is for, and of the call of _muster_tls_offset, or None.
    """

    def __init__(self, start, end, kind, code, relocation, call=None):
        self.start, self.end, self.kind = start, end, kind
        self.code, self.relocation, self.call = code, relocation, call


def memory_access(prefix, opcode, register, base, offset, constant=b"", wide=True):
    """OPCODE offset(%base) with a register or an extension of the opcode."""
    rex = 0x40 | wide << 3 | register >> 3 << 2 | base >> 3
    code = prefix + bytes([rex, opcode, 0x80 | (register & 7) << 3 | base & 7])
    if base & 7 == 4:
        code += b"\x24"
    return code + struct.pack("<i", offset) + constant


def lea_sum(register, base, index, offset):
    """lea offset(%base,%index),%register."""
    assert index != RSP
    return bytes([0x48 | register >> 3 << 2 | index >> 3 << 1 | base >> 3, 0x8D,
                  0x84 | (register & 7) << 3,
                  (index & 7) << 3 | base & 7]) + struct.pack("<i", offset)


def with_tls_offset(start, end, register, rest):
    """Puts a variable's offset from %fs:0 into `register`; `rest` follows."""
    code = SKIP_RED_ZONE
    if register != RAX:
        code += b"\x50"                           # push %rax
    code += b"\x48\x8d\x05" + bytes(4)            # lea variable@tlsgd(%rip),%rax
    relocation = len(code) - 4
    code += b"\xe8" + bytes(4)                    # call _muster_tls_offset
    call = len(code) - 4
    if register != RAX:
        code += bytes([0x48 | register >> 3, 0x89, 0xC0 | register & 7])
        code += b"\x58"                           # mov %rax,%register; pop %rax
    return Site(start, end, TLSGD, code + BACK_OVER_RED_ZONE + rest, relocation, call)


def with_scratch(start, end, scratch, rest):
    """As with_tls_offset, with a register that keeps its value."""
    site = with_tls_offset(start, end, scratch, rest)
    before = SKIP_RED_ZONE + bytes([0x50 + scratch])
    site.code = before + site.code + bytes([0x58 + scratch]) + BACK_OVER_RED_ZONE
    site.relocation += len(before)
    site.call += len(before)
    return site


def tls_site(kind, text, at, addend):
    """An access to a thread-local variable; the relocation is at `at`."""
    rex, opcode, modrm = text[at - 3:at]
    # mov variable@gottpoff(%rip),%register
    if kind == GOTTPOFF:
        if rex & 0xFB != 0x48 or opcode != 0x8B or modrm & 0xC7 != 0x05 or addend != -4:
            raise ValueError(f"unknown access: {text[at - 5:at + 8].hex()}")
        return with_tls_offset(at - 3, at + 4, modrm >> 3 & 7 | (rex & 4) << 1, b"")
    # OP %fs:offset
    if text[at - 1] == 0x25 and text[at - 2] & 0xC7 == 0x04 and \
            text[at - 3] in CONSTANT_BYTES:
        opcode, modrm = text[at - 3:at - 1]
        rex = text[at - 4] if text[at - 4] & 0xF0 == 0x40 else 0
        start = at - 4 - bool(rex)
        end = at + 4 + CONSTANT_BYTES[opcode]
        if text[start] != 0x64:
            raise ValueError(f"unknown access: {text[start:end].hex()}")
        register = modrm >> 3 & 7 | (rex & 4) << 1
        base = register if opcode in LOADS else RCX if register == RAX else RAX
        access = memory_access(b"\x64", opcode, register, base, addend,
                               bytes(text[at + 4:end]), wide=bool(rex & 8))
        make = with_tls_offset if opcode in LOADS else with_scratch
        return make(start, end, base, access)
    # add $offset,%register, which may be %rax
    if opcode == 0x48 and modrm == 0x05:
        start, register, base = at - 2, RAX, RAX
    elif rex & 0xFE == 0x48 and opcode == 0x81 and modrm & 0xF8 == 0xC0:
        register = modrm & 7 | (rex & 1) << 3
        start, base = at - 3, register
    # lea offset(%base),%register
    elif rex & 0xFA == 0x48 and opcode == 0x8D and modrm & 0xC0 == 0x80 and \
            modrm & 7 != 4:
        register = modrm >> 3 & 7 | (rex & 4) << 1
        start, base = at - 3, modrm & 7 | (rex & 1) << 3
    else:
        raise ValueError(f"unknown access: {text[at - 5:at + 8].hex()}")
    if register != base:
        return with_tls_offset(start, at + 4, register,
                               lea_sum(register, base, register, addend))
    scratch = RCX if register == RAX else RAX
    return with_scratch(start, at + 4, scratch,
                        lea_sum(register, base, scratch, addend))


def variable_site(text, at, addend):
    """lea or mov of variable + addend, which is at `at`, to a register."""
    rex, opcode, modrm = text[at - 3:at]
    if rex & 0xFB != 0x48 or opcode not in (0x8B, 0x8D) or modrm & 0xC7 != 0x05:
        raise ValueError(f"unknown access: {text[at - 5:at + 8].hex()}")
    register = modrm >> 3 & 7 | (rex & 4) << 1
    # mov variable@GOTPCREL(%rip),%register
    code = bytes([rex, 0x8B, modrm]) + bytes(4)
    return Site(at - 3, at + 4, GOTPCREL, code + memory_access(
        b"", opcode, register, register, addend), 3)


class Object:
    """A relocatable ELF file."""

    def __init__(self, data):
        self.data = bytearray(data)
        machine, = struct.unpack_from("<H", data, 0x12)
        if machine != EM_X86_64:
            raise ValueError("only objects for x86-64 can be converted")
        self.headers_at, = struct.unpack_from("<Q", data, 0x28)
        self.count, = struct.unpack_from("<H", data, 0x3C)

    def section(self, index):
        """Type, flags, offset, size, link and info."""
        fields = struct.unpack_from("<IIQQQQIIQQ", self.data, self.headers_at + 64 * index)
        return fields[1], fields[2], fields[4], fields[5], fields[6], fields[7]

    def content(self, index):
        _, _, offset, size, _, _ = self.section(index)
        return bytearray(self.data[offset:offset + size])

    def replace(self, index, content):
        """Gives a section a longer content, which lies at the end of the file."""
        self.data += bytes(-len(self.data) % 64)
        struct.pack_into("<QQ", self.data, self.headers_at + 64 * index + 0x18,
                         len(self.data), len(content))
        self.data += content

    def undefined(self, symbols, index):
        """The name of a symbol that is not defined here, or None."""
        _, _, offset, _, link, _ = self.section(symbols)
        name_at, _, _, section = struct.unpack_from("<IBBH", self.data, offset + 24 * index)
        if section != 0:
            return None
        begin = self.section(link)[2] + name_at
        return self.data[begin:self.data.index(0, begin)].decode()

    def add_undefined(self, symbols, name):
        """Adds a symbol that is defined elsewhere; returns its index."""
        strings = self.section(symbols)[4]
        text, table = self.content(strings), self.content(symbols)
        table += struct.pack("<IBBHQQ", len(text), 1 << 4, 0, 0, 0, 0)
        self.replace(strings, text + name + b"\0")
        self.replace(symbols, table)
        return len(table) // 24 - 1

    def convert(self, defined):
        """Replaces what is not for a shared library; returns whether there was
        any. `defined` are the symbols that will be in that library."""
        changed, tls_offset = False, None
        for section in range(self.count):
            kind, _, _, _, symbols, target = self.section(section)
            if kind != SHT_RELA or not self.section(target)[1] & SHF_EXECINSTR:
                continue
            relocations, text = self.content(section), self.content(target)
            before = len(text)
            for entry in range(0, len(relocations), 24):
                at, info, addend = struct.unpack_from("<QQq", relocations, entry)
                kind, symbol = info & 0xFFFFFFFF, info >> 32
                if kind in (TPOFF32, GOTTPOFF):
                    site = tls_site(kind, text, at, addend)
                elif kind == PC32:
                    name = self.undefined(symbols, symbol)
                    if not name or name in defined:
                        continue
                    site = variable_site(text, at, addend + 4)
                else:
                    continue
                struct.pack_into("<QQq", relocations, entry,
                                 len(text) + site.relocation, symbol << 32 | site.kind, -4)
                if site.call is not None:
                    if tls_offset is None:
                        tls_offset = self.add_undefined(symbols, TLS_OFFSET)
                    relocations += struct.pack(
                        "<QQq", len(text) + site.call, tls_offset << 32 | PLT32, -4)
                # Jumps count from their end.
                jump = b"\xe9" + struct.pack("<i", len(text) - (site.start + 5))
                text[site.start:site.end] = jump.ljust(site.end - site.start, b"\x90")
                text += site.code
                text += b"\xe9" + struct.pack("<i", site.end - (len(text) + 5))
            if len(text) != before:
                self.replace(target, text)
                self.replace(section, relocations)
                changed = True
        return changed


def defined_symbols(archives):
    symbols = set()
    for line in subprocess.run(["nm", "--defined-only", *archives], check=True,
                               capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        if len(words) == 3:
            symbols.add(words[2])
    # The linker's own.
    return symbols | {"__dso_handle", "_GLOBAL_OFFSET_TABLE_"}


def convert(archive, out, defined):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["ar", "x", os.path.abspath(archive)], cwd=folder, check=True)
        changed = []
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                member = Object(file.read())
            try:
                if not member.convert(defined):
                    continue
            except ValueError as error:
                raise ValueError(f"{archive}({name}): {error}") from error
            with open(path, "wb") as file:
                file.write(member.data)
            changed.append(path)
        if not changed:
            os.symlink(archive, out)
            return
        members = subprocess.run(["ar", "t", archive], check=True,
                                 capture_output=True, text=True).stdout.split()
        if len(members) != len(set(members)):
            raise ValueError(f"{archive} has two members of one name")
        with open(archive, "rb") as source, open(out, "wb") as copy:
            copy.write(source.read())
        subprocess.run(["ar", "r", out, *changed], check=True)


def main():
    out, *archives = sys.argv[1:]
    defined = defined_symbols(archives)
    for archive in archives:
        convert(archive, os.path.join(out, os.path.basename(archive)), defined)


if __name__ == "__main__":
    main()
