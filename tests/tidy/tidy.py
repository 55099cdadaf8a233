#!/usr/bin/env python3
"""Checks rules of the house that no compiler checks.

Run without arguments in a clone, or with --root=FOLDER. Prints one line per
violation, `file:line: rule: what`, and exits 1 if there is any.
"""

import argparse
import os
import re
import subprocess
import sys

# Allowed names at the top (besides dot files).
TOP = {
    "WORKSPACE", "BUILD.bazel", "base", "proto", "coordinator", "worker", "dataplane",
    "client", "deploy", "tests", "README.md", "base", "dev", "third_party",
    "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md",
}

README_FOLDERS = [
    "base", "proto", "coordinator", "worker", "dataplane", "client", "deploy", "tests",
]

SOURCE_FOLDERS = (
    "base/", "proto/", "coordinator/", "worker/", "dataplane/", "client/", "tests/",
)

# The folders that each folder may include besides base/, longest prefix first.
# Tests beside the code may include more: TEST_MAY.
MAY_INCLUDE = [
    ("base/", ["base/"]),
    ("coordinator/core/testing/",
     ["base/", "coordinator/core/", "proto/muster/v1/verbs.inc"]),
    ("coordinator/core/", ["base/", "coordinator/core/"]),
    ("coordinator/storage/",
     ["base/", "coordinator/core/", "coordinator/storage/"]),
    ("coordinator/server/", ["base/", "coordinator/", "muster/v1/", "proto/"]),
    ("proto/", ["muster/v1/", "proto/"]),
    ("dataplane/", ["base/", "dataplane/"]),
    ("client/telemetry/",
     ["base/", "client/telemetry/", "dataplane/observe/metrics.h"]),
    ("client/groups/embedded_coordinator.cc",
     ["base/", "client/", "coordinator/server/server.h"]),
    ("client/examples/", ["client/"]),
    ("client/", ["base/", "client/", "dataplane/", "muster/v1/", "proto/"]),
    ("worker/", ["base/", "client/", "dataplane/observe/metrics.h", "worker/"]),
    ("tests/", [""]),
]

# Unit tests may use a real server to test its client.
TEST_MAY = {"client/": ["coordinator/server/server.h",
                        "coordinator/server/test_server.h",
                        "coordinator/server/auth/test_certificates.h"],
            "worker/": ["coordinator/server/auth/test_certificates.h"]}

# Folders whose headers count as ours in an #include.
OURS = ("base/", "coordinator/", "worker/", "dataplane/", "client/", "tests/", "proto/",
        "muster/v1/")

# The files that may include a library: (pattern of the include, allowed file
# pattern).
LIBRARIES = [
    (r"grpc(pp)?/", r"^(proto/muster/v1/status_wire|coordinator/(server|storage/etcd)/|"
                    r"coordinator/main_test\.cc|client/(control|groups|stores)/|"
                    r"tests/).*"),
    (r"google/protobuf/|muster/v1/.*\.pb\.h",
     r"^(proto/|coordinator/server/|coordinator/main_test\.cc|"
     r"client/(control|groups|stores|tools)/|client/store\.cc$|tests/|"
     r"client/[a-z_]*_test\.cc).*"),
    (r"prometheus/", r"^(coordinator/server/ops|client/telemetry)/metrics\.cc$"),
    (r"httplib\.h", r"^base/http_server\.cc$|"
     r"^client/tools/diagnose/fetch\.cc$|.*_test\.cc$"),
    (r"gloo/", r"^(dataplane/gloo/.*|tests/bench/gloo_peer\.cc)$"),
    (r"mpi\.h", r"^(dataplane/mpi/.*|tests/bench/mpi_peer\.cc)$"),
    (r"openssl/", r"^(coordinator/server/auth/(credentials|handshake_peer|tokens)|"
     r"client/control/channel_security)\.cc$"),
    (r"rocksdb/", r"^coordinator/storage/rocksdb.*"),
]

# Files that BUILD.bazel may name by their target alone.
NAMED_BY_TARGET = ("_test.cc", "_test.py", "_benchmark.cc")

LINES_MAX = 1500
# The most words of one README, of the root's, and of all of them.
README_WORDS_MAX, ROOT_README_WORDS_MAX, ALL_WORDS_MAX = 2500, 1500, 15000
BINARY_BYTES_MAX = 256 * 1024

# Built from parts, so that this file does not violate its own rules.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME",
                                           "XX" + "X", "HA" + "CK"]) + r")\b")
FOREIGN_PATH = re.compile(r"(?<![\w.])(/wo" + r"rk/|/ro" + r"ot/|/ho" + r"me/\w)")
SLEEP = re.compile(r"\b(sleep_for|sleep_until|SleepFor|usleep|nanosleep|"
                   r"time\.sleep)\b|(?<![\w.:])sleep\(")
CLOCK = re.compile(r"\b(steady_clock|system_clock|high_resolution_clock)"
                   r"::now\b|absl::Now\b")
# Old names; CONTRIBUTING.md's table of words has their replacements.
OLD_WORDS = re.compile(
    r"\b(gloo_internal|shm_internal|GlooMesh|BareMesh|PartMesh|LineBuffer|"
    r"Greeter|Farewells?|FarewellBytes|Errands?|Council|Workshop|DealtRounds|"
    r"WayTrials|TwoLevels|HostCollectives|NoteLane|NoteHeader|LaneSupply|"
    r"BoardTraits|LookTime|Heritage|Descent|Guarding|Timekeeping|FailureJudge|"
    r"Mail|Desk|Nudge|Doze|Strand|Lane|GroupLane|Wave|Board|Workshop|Errand|Hear|"
    r"Accuse|HangJudge|CloseMesh|OnLine|CallBoard|Gathering|TheWorld|StandIn|Vigil|TurnQueue|"
    r"Place|Places|Outcome|Origin|Turn|Settle|GoOn|looks_?)\b")
# A function says that it converts, looks up or creates: ToText, Find, Make.
# Matchers of gmock have such names.
OF_FUNCTION = re.compile(
    r"\b(?!(?:AllOf|AnyOf|AllOfArray|AnyOfArray)\b)[A-Z]\w*Of(?=[(<])")
# The tag of an image of ours.
VERSION_HEADER = "base/include/muster/version.h"
IMAGE_VERSION = re.compile(
    r"(?:newTag: |VERSION=|/muster(?:-\w+)?:)(\d+\.\d+\.\d+)\b")
# A comment has a subject. In place of a noun no clause stands.
CLAUSE = re.compile(r"\s*// (Of|Who|Whom|Whose|Whoever|What|Whatever|Those|That) "
                    r"(?!is,)")
OLD_FILES = re.compile(
    r"(^|/)(mesh|bare_mesh|part_mesh|lines|greeter|farewells?|errands|council|"
    r"dealt_rounds|way_trials|two_levels|host_collectives|looking|birth|placed|"
    r"wave|gathering|failure_judge|hang_judge|turn_queue|control_looks|places?)"
    r"(_test)?\.(h|cc)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


class Tree:
    """The files that git tracks or would add, by path from the root.

    `tracked` are those that it tracks, staged ones included.
    """

    def __init__(self, root, files=None):
        self.root = root
        self.violations = []
        if files is not None:
            self.files = self.tracked = files
            return
        self.tracked = self._git_files("--cached")
        self.files = self.tracked + self._git_files("--others",
                                                    "--exclude-standard")

    def _git_files(self, *options):
        listed = subprocess.run(
            ["git", "-C", self.root, "ls-files", *options],
            check=True, capture_output=True, text=True).stdout.splitlines()
        return [f for f in listed if os.path.exists(os.path.join(self.root, f))]

    def read(self, path):
        with open(os.path.join(self.root, path), "rb") as handle:
            return handle.read()

    def lines(self, path):
        return self.read(path).decode("utf-8", "replace").splitlines()

    def report(self, path, line, rule, what):
        self.violations.append(f"{path}:{line}: {rule}: {what}")


def sources(tree, endings=(".h", ".cc")):
    return [f for f in tree.files
            if f.startswith(SOURCE_FOLDERS) and f.endswith(endings)]


def check_top(tree):
    # A user's own program, which the README puts into a folder at the top, is
    # exempt until it is added to git.
    for name in sorted({f.split("/")[0] for f in tree.tracked}):
        if not name.startswith(".") and name not in TOP:
            tree.report(name, 1, "top", "not one of the fixed top-level names")


def check_readmes(tree):
    for folder in README_FOLDERS:
        if f"{folder}/README.md" not in tree.files:
            tree.report(folder, 1, "readme", "the folder has no README.md")


def allowed_includes(path):
    for prefix, allowed in MAY_INCLUDE:
        if path.startswith(prefix):
            extra = []
            if path.endswith(("_test.cc", "_benchmark.cc")) or "/testing/" in path:
                for folder, more in TEST_MAY.items():
                    if path.startswith(folder):
                        extra = more
            return ["base/"] + allowed + extra
    return [""]


def place(include):
    """The path in the tree of the file that an #include names."""
    if not include.startswith("muster/") or include.startswith("muster/v1/"):
        return include
    if include == "muster/version.h":
        return f"base/include/{include}"
    part = include.split("/")[1]
    return f"{part if part in ('base', 'dataplane') else 'client'}/include/{include}"


def check_includes(tree):
    for path in sources(tree):
        allowed = allowed_includes(path)
        for number, line in enumerate(tree.lines(path), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = place(match.group(1))
            if target.startswith(OURS) and not any(
                    target.startswith(a) for a in allowed):
                tree.report(path, number, "include",
                            f"this folder must not include {target}")
            for pattern, who in LIBRARIES:
                if re.match(pattern, target) and not re.match(who, path):
                    tree.report(path, number, "library",
                                f"only {who} may include {target}")


def check_guards(tree):
    for path in sources(tree, (".h", ".hpp")):
        name = re.sub(r"^(base|dataplane|client)/include/muster/", "", path)
        want = "MUSTER_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper() + "_"
        text = "\n".join(tree.lines(path))
        if f"#ifndef {want}\n#define {want}\n" not in text:
            tree.report(path, 1, "guard", f"the include guard must be {want}")


def check_words(tree):
    for path in tree.files:
        if path == "LICENSE" or path.endswith((".png", ".gz")):
            continue
        if b"\0" in tree.read(path)[:8000]:
            continue
        for number, line in enumerate(tree.lines(path), 1):
            if UNFINISHED.search(line):
                tree.report(path, number, "unfinished", line.strip()[:60])
            if FOREIGN_PATH.search(line):
                tree.report(path, number, "path",
                            "names a folder of some machine: " +
                            line.strip()[:60])


def check_old_words(tree):
    for path in sources(tree, (".h", ".cc", ".inc")):
        if OLD_FILES.search(path):
            tree.report(path, 1, "word", "the file has an old word's name")
        for number, line in enumerate(tree.lines(path), 1):
            # Without string literals and comments.
            code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
            match = OLD_WORDS.search(code)
            if match:
                tree.report(path, number, "word",
                            f"{match.group(0)} is an old word: the table in "
                            "CONTRIBUTING.md has today's")
            match = OF_FUNCTION.search(code)
            if match:
                tree.report(path, number, "word",
                            f"{match.group(0)} does not say whether it "
                            "converts, looks up or creates: To, Find, Get, Make, "
                            "Compute")


def check_comments(tree):
    for path in sources(tree, (".h", ".cc", ".inc")):
        inside = False
        for number, line in enumerate(tree.lines(path), 1):
            if not inside and CLAUSE.match(line):
                tree.report(path, number, "comment",
                            "begins with a clause in place of a noun")
            inside = line.lstrip().startswith("//")


def check_time(tree):
    for path in sources(tree):
        in_test = path.endswith("_test.cc") or path.startswith("tests/")
        in_core = path.startswith("coordinator/core/")
        for number, line in enumerate(tree.lines(path), 1):
            code = line.split("//")[0]
            if (in_test or in_core) and SLEEP.search(code):
                tree.report(path, number, "sleep",
                            "wait on observable state, not on time")
            if in_core and not path.endswith("_benchmark.cc") and CLOCK.search(code):
                tree.report(path, number, "clock",
                            "time comes into the core as an argument")


def check_readme_words(tree):
    total = 0
    for path in tree.files:
        if os.path.basename(path) != "README.md":
            continue
        count = len(tree.read(path).split())
        total += count
        most = ROOT_README_WORDS_MAX if path == "README.md" else README_WORDS_MAX
        if count > most:
            tree.report(path, 1, "words", f"{count} words, at most {most}")
    if total > ALL_WORDS_MAX:
        tree.report("README.md", 1, "words",
                    f"{total} words in all READMEs, at most {ALL_WORDS_MAX}")


def check_sizes(tree):
    for path in tree.files:
        data = tree.read(path)
        if path.endswith((".h", ".cc", ".py", ".sh", ".proto")):
            count = data.count(b"\n")
            if count > LINES_MAX:
                tree.report(path, count, "long",
                            f"{count} lines, at most {LINES_MAX}")
        if b"\0" in data[:8000] and len(data) > BINARY_BYTES_MAX:
            tree.report(path, 1, "binary", f"{len(data)} bytes")


def check_build_files(tree):
    builds = {}
    for path in tree.files:
        if os.path.basename(path) == "BUILD.bazel":
            builds[os.path.dirname(path)] = "\n".join(tree.lines(path))
    for path in sources(tree, (".h", ".cc", ".py", ".proto")):
        folder = os.path.dirname(path)
        while folder and folder not in builds:
            folder = os.path.dirname(folder)
        name = os.path.relpath(path, folder or ".")
        # The macros of base/test.bzl derive the file from the target's name.
        target = f'"{os.path.splitext(name)[0]}"'
        named = name.endswith(NAMED_BY_TARGET) and target in builds.get(folder, "")
        if name not in builds.get(folder, "") and not named:
            tree.report(path, 1, "build", "no BUILD.bazel names this file")


def check_protos(tree):
    for path in tree.files:
        if not path.endswith(".proto") or not path.startswith("proto/"):
            continue
        before = ""
        for number, line in enumerate(tree.lines(path), 1):
            if line.strip().startswith("rpc ") and not before.startswith("//"):
                tree.report(path, number, "proto", "an RPC without a comment")
            if line.strip():
                before = line.strip()


def check_version(tree):
    if VERSION_HEADER not in tree.files:
        return
    header = "\n".join(tree.lines(VERSION_HEADER))
    version = ".".join(re.findall(
        r"#define MUSTER_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    for path in tree.files:
        if not path.startswith("deploy/"):
            continue
        for number, line in enumerate(tree.lines(path), 1):
            match = IMAGE_VERSION.search(line)
            if match and match.group(1) != version:
                tree.report(path, number, "version",
                            f"muster/version.h says {version}")


CHECKS = [
    check_top, check_readmes, check_includes, check_guards, check_words,
    check_old_words, check_comments, check_readme_words, check_time, check_sizes, check_build_files, check_protos,
    check_version,
]


def run(tree):
    for check in CHECKS:
        check(tree)
    return tree.violations


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    here = os.path.dirname(os.path.realpath(__file__))
    parser.add_argument("--root", default=os.path.join(here, "..", ".."))
    violations = run(Tree(os.path.realpath(parser.parse_args().root)))
    for violation in violations:
        print(violation)
    print(f"tidy: {len(violations)} violations", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
