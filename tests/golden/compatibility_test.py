#!/usr/bin/env python3
"""Checks that clients and coordinators of the last release understand today's.

Usage: compatibility_test.py RELEASED TODAY

Both are descriptors of the protocol as text (muster.v1.txt). RELEASED,
released.v1.txt, is a copy of TODAY made for each release; CONTRIBUTING.md says
when. A message may get new fields, a service new calls. What is there stays, or
leaves its number and name reserved.
"""

import re
import sys
import unittest

RELEASED, TODAY = sys.argv[1:3]


def parse(text):
    """A descriptor's text as nested lists of (name, value or list)."""
    stack = [[]]
    for line in text.splitlines():
        line = line.strip()
        if line == "}":
            stack.pop()
        elif line.endswith("{"):
            block = []
            stack[-1].append((line[:-1].strip(), block))
            stack.append(block)
        else:
            name, value = line.split(": ", 1)
            stack[-1].append((name, value.strip('"')))
    return stack[0]


def get(block, name, default=""):
    return next((value for key, value in block if key == name), default)


def all_of(block, name):
    return [value for key, value in block if key == name]


class Protocol:
    """What two programs must agree on, by full name."""

    def __init__(self, text):
        # Message -> number -> what the bytes mean; enum -> number -> name.
        self.fields, self.values = {}, {}
        # Message or enum -> numbers and names that nobody may use.
        self.reserved = {}
        # Call -> request, response, and which of them is a stream.
        self.calls = {}
        for file in all_of(parse(text), "file"):
            package = "." + get(file, "package")
            self.add_types(file, package, "message_type")
            for service in all_of(file, "service"):
                for method in all_of(service, "method"):
                    name = f"{package}.{get(service, 'name')}/{get(method, 'name')}"
                    self.calls[name] = tuple(
                        get(method, part) for part in
                        ("input_type", "output_type", "client_streaming",
                         "server_streaming"))

    def add_types(self, block, scope, messages):
        for enum in all_of(block, "enum_type"):
            name = f"{scope}.{get(enum, 'name')}"
            self.values[name] = {
                get(value, "number"): get(value, "name")
                for value in all_of(enum, "value")}
            # The end of an enum's range is in it.
            self.reserve(name, enum, last=0)
        for message in all_of(block, messages):
            name = f"{scope}.{get(message, 'name')}"
            self.fields[name] = {
                get(field, "number"): tuple(
                    get(field, part) for part in
                    ("name", "label", "type", "type_name"))
                for field in all_of(message, "field")}
            self.reserve(name, message, last=-1)
            self.add_types(message, name, "nested_type")

    def reserve(self, name, block, last):
        words = set(all_of(block, "reserved_name"))
        for span in all_of(block, "reserved_range"):
            words.update(str(number) for number in range(
                int(get(span, "start")), int(get(span, "end")) + last + 1))
        self.reserved[name] = words


def compare(released, today):
    """What a program of the one does not understand of the other: one line each."""
    found = []
    for kind in ("fields", "values"):
        old, new = getattr(released, kind), getattr(today, kind)
        for name, numbers in old.items():
            if name not in new:
                found.append(f"{name} is gone")
                continue
            for number, meaning in numbers.items():
                now = new[name].get(number)
                word = meaning if kind == "values" else meaning[0]
                if now is None:
                    if not {number, word} <= today.reserved[name]:
                        found.append(f"{name} {word} = {number} is gone and not reserved")
                elif now != meaning:
                    found.append(f"{name} {number} was {meaning}, is {now}")
            for word in released.reserved[name] - today.reserved[name]:
                found.append(f"{name} {word} is no longer reserved")
    for name, call in released.calls.items():
        if today.calls.get(name) != call:
            found.append(f"{name} was {call}, is {today.calls.get(name)}")
    return found


class CompatibilityTest(unittest.TestCase):

    def setUp(self):
        with open(RELEASED, encoding="utf-8") as file:
            self.text = file.read()
        self.released = Protocol(self.text)

    def changed(self, pattern, to):
        """The findings after one change of the released protocol."""
        text, count = re.subn(pattern, to, self.text, count=1)
        self.assertEqual(count, 1, pattern)
        return compare(self.released, Protocol(text))

    def test_todays_protocol_is_compatible_with_the_last_release(self):
        self.assertGreater(len(self.released.fields), 50)
        self.assertGreater(len(self.released.calls), 5)
        with open(TODAY, encoding="utf-8") as file:
            self.assertEqual(compare(self.released, Protocol(file.read())), [])

    def test_each_kind_of_break_is_found(self):
        field = r'    field \{\n      name: "member"\n      number: 2\n'
        for pattern, to in (
                (field, field.replace("2", "97")),
                (field, '    field {\n      name: "somebody"\n      number: 2\n'),
                (r"type: TYPE_FIXED64", "type: TYPE_UINT64"),
                (r"label: LABEL_REPEATED", "label: LABEL_OPTIONAL"),
                (r'type_name: "\.muster\.v1\.\w+"', 'type_name: ".muster.v1.Caller"'),
                (r'name: "WireStatus"', 'name: "Status"'),
                (r'(value \{\n      name: ")\w', r"\1X"),
                (r'(method \{\n      name: ")\w', r"\1X"),
                (r'input_type: ".*"', 'input_type: ".muster.v1.Caller"')):
            with self.subTest(pattern):
                self.assertNotEqual(self.changed(pattern, to.replace("\\{", "{")), [])

    def test_a_number_stays_reserved(self):
        text = self.text.replace('    name: "Caller"\n',
                                 '    name: "Caller"\n    reserved_name: "x"\n')
        self.assertEqual(compare(Protocol(text), self.released),
                         [".muster.v1.Caller x is no longer reserved"])

    def test_what_is_new_or_reserved_is_compatible(self):
        self.assertEqual(self.changed(
            r'(  message_type \{\n    name: "Caller"\n)',
            r'\1    field {\n      name: "new"\n      number: 99\n    }\n'), [])
        self.assertEqual(self.changed(
            r'    field \{\n      name: "member"\n      number: 2\n(      .*\n)+?    \}\n',
            '    reserved_range {\n      start: 2\n      end: 3\n    }\n'
            '    reserved_name: "member"\n'), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
