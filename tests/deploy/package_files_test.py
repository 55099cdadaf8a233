#!/usr/bin/python3
"""Checks the files that packages add to the programs: manual pages, shell
completion, the service and its configuration.

Usage: package_files_test.py COORDINATOR MUSTER_RUN MUSTERCTL MUSTER_BENCH
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
COMPLETION = f"{DEPLOY}/completion/muster"
SERVICE = f"{DEPLOY}/systemd/muster-coordinator.service"
CONFIGURATION = f"{DEPLOY}/systemd/coordinator.conf"

# Prints what bash would offer. Arguments: the completion, the words.
ASK = r"""
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
ask() {
  local function=$(complete -p "$1")
  function=${function##*-F }
  COMPREPLY=()
  ${function%% *} "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
}
ask "$1"
if [[ $? -eq 124 ]]; then ask "$1"; fi
printf '%s\n' "${COMPREPLY[@]}"
"""


def output(*command, **more):
    return subprocess.run(command, check=True, text=True, timeout=60,
                          stdout=subprocess.PIPE, **more).stdout


class ManualPageTest(unittest.TestCase):

    def test_pages_have_all_options_and_render_without_warnings(self):
        with tempfile.TemporaryDirectory() as pages:
            output(f"{DEPLOY}/man/make_man.sh", FOLDER.name, pages)
            for program in PROGRAMS:
                page = f"{pages}/{program}.1"
                done = subprocess.run(
                    ["man", "--warnings", "--encoding=utf8", "--local-file", page],
                    check=True, capture_output=True, text=True,
                    env={**os.environ, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"})
                self.assertEqual(done.stderr, "")
                text = re.sub(".\b", "", done.stdout)
                with self.subTest(program):
                    self.check_page(program, text)

    def check_page(self, program, text):
        self.assertRegex(text, rf"NAME\n +{program} - \w.*\n\n"
                               rf"SYNOPSIS\n +{program} .*\n\nDESCRIPTION\n")
        help_text = output(PROGRAMS[program], "--help")
        options = set(re.findall(r"^  (--[\w-]+)", help_text, re.M))
        self.assertGreater(len(options), 4)
        # Each begins a line; its text follows there or on the next ones.
        self.assertEqual(options, set(re.findall(r"^ {7}(--[\w-]+)", text, re.M)))
        if "Exit status:" in help_text:
            self.assertIn("\nEXIT STATUS\n", text)


class CompletionTest(unittest.TestCase):

    @staticmethod
    def complete(*words):
        path = f"{FOLDER.name}:{os.environ['PATH']}"
        return output("bash", "--norc", "-c", ASK, "-", COMPLETION, *words,
                      env={**os.environ, "PATH": path}).split()

    def test_options_are_those_of_help(self):
        for program in ("muster-bench", "muster-coordinator", "muster-run"):
            help_text = output(PROGRAMS[program], "--help")
            options = set()
            for line in re.findall("^  -.*", help_text, re.M):
                options.update(re.findall(r"--[\w-]+", line))
            with self.subTest(program):
                self.assertGreater(len(options), 4)
                self.assertEqual(options, {
                    word.rstrip("=") for word in self.complete(program, "--")})

    def test_an_option_that_needs_a_value_ends_with_an_equals_sign(self):
        self.assertEqual(self.complete("muster-run", "--nno"), ["--nnodes="])
        self.assertEqual(self.complete("muster-run", "--stand"), ["--standalone"])

    def test_a_second_name_is_offered(self):
        self.assertEqual(self.complete("muster-bench", "--op"), ["--op="])

    def test_values_are_offered(self):
        self.assertEqual(self.complete("muster-bench", "--device", "="),
                         ["cpu", "cuda"])
        self.assertEqual(self.complete("muster-bench", "--place", "=", "b"),
                         ["both"])
        self.assertEqual(self.complete("muster-run", "--log-dir", "=", "-"), [])

    def test_operations_are_offered(self):
        self.assertEqual(self.complete("muster-bench", "all_to"),
                         ["all_to_all", "all_to_all_single"])

    def test_words_of_the_program_that_is_run_are_not_ours(self):
        self.assertEqual(self.complete("muster-run", "--", "train", "--"), [])

    def test_musterctl_completes_its_commands_and_options(self):
        self.assertEqual(self.complete("musterctl", "dia"), ["diagnose"])
        self.assertEqual(self.complete("musterctl", "kv", "se"), ["set"])
        self.assertEqual(self.complete("musterctl", "--coo"), ["--coordinator"])


class ServiceTest(unittest.TestCase):

    def test_systemd_accepts_the_unit(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = f"{folder}/muster-coordinator.service"
            with open(SERVICE, encoding="utf-8") as text:
                lines = text.read()
            program = re.search("^ExecStart=(.*)$", lines, re.M)[1]
            self.assertEqual(program, "/usr/bin/muster-coordinator")
            # No user and no manual page here.
            lines = lines.replace(program, PROGRAMS["muster-coordinator"])
            lines = re.sub("^Documentation=.*\n", "", lines, flags=re.M)
            with open(unit, "w", encoding="utf-8") as out:
                out.write(lines)
            done = subprocess.run(["systemd-analyze", "verify", unit], text=True,
                                  capture_output=True, check=False)
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_it_begins_after_an_etcd_of_the_host_and_ends_before_it(self):
        with open(SERVICE, encoding="utf-8") as text:
            after = re.search("^After=(.*)$", text.read(), re.M)[1].split()
        self.assertIn("etcd.service", after)

    def test_the_coordinator_knows_each_variable_of_its_configuration(self):
        help_text = output(PROGRAMS["muster-coordinator"], "--help")
        with open(CONFIGURATION, encoding="utf-8") as text:
            lines = text.read()
        variables = dict(re.findall(r"^#?(MUSTER_\w+)=(.*)$", lines, re.M))
        self.assertGreater(len(variables), 4)
        self.assertIn("MUSTER_COORDINATOR_ETCD_ENDPOINTS", variables)
        for variable in variables:
            option = variable.replace("MUSTER_COORDINATOR_", "--").lower()
            self.assertIn(f"\n  {option}\n", help_text)
        # The service may write below its StateDirectory alone.
        self.assertTrue(variables["MUSTER_COORDINATOR_STORAGE_PATH"].startswith(
            "/var/lib/muster/"))


if __name__ == "__main__":
    PROGRAMS = {os.path.basename(path): os.path.abspath(path)
                for path in sys.argv[1:5]}
    FOLDER = tempfile.TemporaryDirectory()
    for each in PROGRAMS.values():
        shutil.copy(each, FOLDER.name)
    unittest.main(argv=sys.argv[:1])
