#!/usr/bin/python3
"""The configuration and the rules of deploy/prometheus: they are valid, every
alert is shown to fire and not to, and has a section in the runbook.

Usage: prometheus_test.py; promtool is Debian's (package prometheus).
"""

import os
import subprocess
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
        with open(os.path.join(DEPLOY, "README.md"), encoding="utf-8") as text:
            headings = [line[4:].strip() for line in text
                        if line.startswith("### Muster")]
        self.assertEqual(sorted(alert_names()), sorted(headings))
        for group in load(os.path.join(
                DEPLOY, "prometheus/rules/alerts.yml"))["groups"]:
            for rule in group["rules"]:
                self.assertEqual(
                    rule["annotations"]["runbook_url"],
                    f"deploy/README.md#{rule['alert'].lower()}")


if __name__ == "__main__":
    unittest.main()
