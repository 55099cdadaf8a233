#!/usr/bin/env python3
"""Checks the tree with tidy.py, and tidy.py with violations."""

import os
import subprocess
import tempfile
import unittest

import tidy

def violations_of(files):
    """Runs all checks over a made-up tree {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as out:
                out.write(text)
        return tidy.run(tidy.Tree(root, sorted(files)))

def rules_of(path, text):
    """The rules that one file breaks."""
    return {v.split(": ")[1] for v in violations_of({path: text})
            if v.startswith(path)}

class TreeTest(unittest.TestCase):

    def test_the_tree_follows_every_rule(self):
        # Bazel's runfiles point into the clone; its real path is the root.
        here = os.path.dirname(os.path.realpath(__file__))
        root = os.path.realpath(os.path.join(here, "..", ".."))
        self.assertEqual(tidy.run(tidy.Tree(root)), [])

class RuleTest(unittest.TestCase):

    def test_old_words_are_refused_in_names_and_in_code(self):
        self.assertIn("word", rules_of("client/control/wave.cc", ""))
        self.assertIn("word", rules_of("dataplane/a.cc", "Council council;\n"))
        self.assertNotIn("word", rules_of(
            "dataplane/a.cc", '// Council\nSay("Council");\n'))
        self.assertIn("word", rules_of("client/tools/places.h", ""))
        for word in ("Place", "Outcome", "Origin", "Turn", "Settle", "looks"):
            self.assertIn("word", rules_of("client/a.cc", f"Use({word});\n"))

    def test_a_function_says_what_it_does(self):
        for line in ("int KeyOf(int rank);\n", "auto a = b.SizeOf<int>();\n"):
            self.assertIn("word", rules_of("client/a.cc", line))
        for line in ("EXPECT_THAT(a, AllOf(b, AnyOf(c)));\n",
                     "Collective::Of(kind);\n", "Say(\"KeyOf(rank)\");\n",
                     "// As KeyOf().\n"):
            self.assertNotIn("word", rules_of("client/a.cc", line))

    def test_a_comment_begins_with_a_noun(self):
        for line in ("// Of who polls.\n", "  // What peers read.\n"):
            self.assertIn("comment", rules_of("client/a.cc", line))
        for line in ("// The lease\n// of a member.\n", "// That is, none.\n"):
            self.assertNotIn("comment", rules_of("client/a.cc", line))

    def test_images_have_the_version(self):
        header = "".join(f"#define MUSTER_VERSION_{part} {number}\n" for part, number in
                         (("MAJOR", 1), ("MINOR", 2), ("PATCH", 3)))
        for tag, wrong in (("1.2.3", False), ("1.2.2", True)):
            found = violations_of({"base/include/muster/version.h": header,
                                   "deploy/a.yaml": f"newTag: {tag}\n"})
            self.assertEqual(any(": version:" in v for v in found), wrong)

    def test_readmes_are_short(self):
        self.assertIn("words", rules_of("client/README.md", "word " * 2501))
        self.assertNotIn("words", rules_of("client/README.md", "word " * 2500))
        self.assertIn("words", rules_of("README.md", "word " * 1501))

    def test_core_may_not_include_the_server(self):
        self.assertIn("include", rules_of(
            "coordinator/core/a.cc", '#include "coordinator/server/x.h"\n'))

    def test_dataplane_may_not_include_the_client(self):
        self.assertIn("include", rules_of(
            "dataplane/a.cc", '#include "muster/session.h"\n'))

    def test_only_one_client_file_embeds_the_coordinator(self):
        line = '#include "coordinator/server/server.h"\n'
        self.assertIn("include", rules_of("client/session.cc", line))
        self.assertNotIn("include", rules_of(
            "client/groups/embedded_coordinator.cc", line))

    def test_grpc_stays_out_of_public_headers(self):
        self.assertIn("library", rules_of(
            "client/session.h", "#include <grpcpp/grpcpp.h>\n"))

    def test_http_library_is_in_one_file(self):
        self.assertIn("library", rules_of(
            "worker/launcher/launcher.cc", "#include <httplib.h>\n"))
        self.assertNotIn("library", rules_of(
            "base/http_server.cc", "#include <httplib.h>\n"))

    def test_guard_is_the_path(self):
        good = "#ifndef MUSTER_CLIENT_A_H_\n#define MUSTER_CLIENT_A_H_\n#endif\n"
        self.assertNotIn("guard", rules_of("client/a.h", good))
        self.assertIn("guard", rules_of("client/b.h", good))

    def test_unfinished_words_are_found(self):
        self.assertIn("unfinished", rules_of(
            "client/a.cc", "// TO" + "DO: later\n"))

    def test_a_machines_path_is_found(self):
        self.assertIn("path", rules_of("client/a.cc", "// /ro" + "ot/x\n"))

    def test_sleep_in_a_test_is_found(self):
        self.assertIn("sleep", rules_of(
            "client/a_test.cc", "std::this_thread::sleep_for(1s);\n"))

    def test_clock_in_the_core_is_found(self):
        self.assertIn("clock", rules_of(
            "coordinator/core/a.cc", "auto t = std::chrono::steady_clock::now();\n"))

    def test_long_file_is_found(self):
        self.assertIn("long", rules_of("client/a.cc", "int x;\n" * 1501))

    def test_file_outside_build_is_found(self):
        files = {"client/a.cc": "", "client/BUILD.bazel": 'srcs = ["a.cc"]'}
        self.assertFalse([v for v in violations_of(files) if ": build:" in v])
        files["client/b.cc"] = ""
        self.assertTrue([v for v in violations_of(files) if ": build:" in v])

    def test_a_test_is_named_by_its_target(self):
        for name in ("a_test.cc", "a_test.py", "a_benchmark.cc"):
            files = {f"client/{name}": "",
                     "client/BUILD.bazel": f'name = "{name[:-3]}",'}
            self.assertFalse([v for v in violations_of(files) if ": build:" in v])
            files["client/BUILD.bazel"] = f'name = "b_{name[:-3]}",'
            self.assertTrue([v for v in violations_of(files) if ": build:" in v])

    def test_rpc_without_comment_is_found(self):
        self.assertIn("proto", rules_of(
            "proto/a.proto", "service S {\n  rpc Get(A) returns (B);\n}\n"))

    def test_foreign_top_level_name_is_found(self):
        self.assertIn("top", {v.split(": ")[1]
                              for v in violations_of({"util/a.cc": ""})})

    def test_a_top_level_name_counts_once_git_has_it(self):
        with tempfile.TemporaryDirectory() as root:
            def git(*arguments):
                subprocess.run(["git", "-C", root, *arguments], check=True,
                               capture_output=True)

            def top():
                return [v for v in tidy.run(tidy.Tree(root)) if ": top:" in v]

            git("init")
            os.mkdir(os.path.join(root, "hello"))
            with open(os.path.join(root, "hello", "hello.cc"), "w",
                      encoding="utf-8") as out:
                # The other rules apply to it as to all files.
                out.write("// " + "TO" + "DO\n")
            self.assertIn("hello/hello.cc", tidy.Tree(root).files)
            self.assertEqual(top(), [])
            self.assertIn("unfinished", {v.split(": ")[1] for v in tidy.run(
                tidy.Tree(root))})
            git("add", "hello")
            self.assertEqual(
                top(),
                ["hello:1: top: not one of the fixed top-level names"])

    def test_missing_readme_is_found(self):
        self.assertIn("readme", {v.split(": ")[1] for v in violations_of({})})

if __name__ == "__main__":
    unittest.main()
