#!/usr/bin/python3
"""Checks the configuration and the rules of deploy/prometheus: they are valid,
every alert fires when it should and only then, and has a runbook section.

Usage: prometheus_test.py; promtool is Debian's (package prometheus).
"""

import json
import os
import subprocess
import tempfile
import unittest

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
TESTS = os.path.join(HERE, "alerts_test.yml")


def load(path):
    with open(path, encoding="utf-8") as text:
        return yaml.safe_load(text)


def alert_names():
    groups = load(os.path.join(DEPLOY, "prometheus/rules/alerts.yml"))["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


class PrometheusTest(unittest.TestCase):

    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_configuration_is_valid(self):
        self.promtool("check", "config",
                      os.path.join(DEPLOY, "prometheus/prometheus.yml"))

    def test_alerts_fire_when_they_should_and_only_then(self):
        self.promtool("test", "rules", TESTS)

    def test_every_alert_is_shown_to_fire_and_not_to(self):
        fires, stays = set(), set()
        for test in load(TESTS)["tests"]:
            for case in test["alert_rule_test"]:
                (fires if case["exp_alerts"] else stays).add(case["alertname"])
        self.assertEqual(sorted(alert_names()), sorted(fires))
        self.assertEqual(sorted(alert_names()), sorted(stays))

    def test_every_alert_has_its_section_in_the_runbook(self):
        with open(os.path.join(DEPLOY, "ALERTS.md"), encoding="utf-8") as text:
            headings = [line[3:].strip() for line in text
                        if line.startswith("## Muster")]
        self.assertEqual(sorted(alert_names()), sorted(headings))
        for group in load(os.path.join(
                DEPLOY, "prometheus/rules/alerts.yml"))["groups"]:
            for rule in group["rules"]:
                self.assertEqual(
                    rule["annotations"]["runbook_url"],
                    f"deploy/ALERTS.md#{rule['alert'].lower()}")


def member(address, state="ALIVE", host="host"):
    return {"debug_address": address, "host": host,
            "state": "MEMBER_STATE_" + state}


class WorkerTargetsTest(unittest.TestCase):
    """Uses a fake musterctl with a given output."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "workers.json")
        self.musterctl = os.path.join(folder.name, "musterctl")

    def run_with(self, script):
        """Returns the exit status and the resulting file."""
        with open(self.musterctl, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\n" + script)
        os.chmod(self.musterctl, 0o755)
        done = subprocess.run(
            [os.path.join(DEPLOY, "prometheus/worker_targets"),
             f"--musterctl={self.musterctl}", f"--out={self.out}"],
            check=False, capture_output=True, text=True)
        return done.returncode, load(self.out)

    def test_present_members_become_targets_by_job(self):
        jobs = {"jobs": [{"job": "a"}, {"job": "ended"}]}
        members = {"members": [
            member("10.0.0.1:9400"), member("10.0.0.2:9400", "DISCONNECTED"),
            member("10.0.0.3:9400", "LOST"), member("10.0.0.4:9400", "LEFT"),
            member("0.0.0.0:9401"), member("[::]:9402"), member("")]}
        status, written = self.run_with(
            f"case \"$*\" in\n'jobs --json') echo '{json.dumps(jobs)}';;\n"
            f"'members a --json') echo '{json.dumps(members)}';;\n"
            "*) exit 1;;\nesac\n")
        self.assertEqual(status, 0)
        self.assertEqual(written, [{
            "labels": {"muster_job": "a"},
            "targets": ["10.0.0.1:9400", "10.0.0.2:9400", "host:9401",
                        "host:9402"]}])

    def test_targets_stay_when_the_coordinator_does_not_answer(self):
        before = [{"targets": ["10.0.0.1:9400"], "labels": {"muster_job": "a"}}]
        with open(self.out, "w", encoding="utf-8") as out:
            json.dump(before, out)
        self.assertEqual(self.run_with("exit 1\n"), (1, before))


if __name__ == "__main__":
    unittest.main()
