#!/usr/bin/python3
"""Evaluates every query of the dashboards and every rule on a real Prometheus,
which watches a real coordinator and a real job: no result is empty, and every
metric is exported. The coordinator is a fleet of one, with a real etcd.

Usage: dashboards_test.py COORDINATOR MUSTER_RUN MUSTERCTL TRAIN VERBS
"""

import glob
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "end2end"))
from processes import Processes, free_port, metric, wait_until  # pylint: disable=C0413

COORDINATOR, MUSTER_RUN, MUSTERCTL, TRAIN, VERBS = [
    os.path.abspath(path) for path in sys.argv[1:6]]
DEPLOY = os.path.join(HERE, "..", "..", "deploy")
# Far more than any step takes on a working machine.
SECONDS = 120
# Values for Grafana's own variables: longer than the test, so that single
# events remain visible.
INTERVALS = {"$__rate_interval": "5m", "$__range": "5m"}
METRIC = re.compile(r"\b(?:muster|process|instance:|job:)_?[a-z][a-z0-9_:]*")
# Labels that begin like metrics.
LABELS = {"muster_job"}


def dashboards():
    paths = sorted(glob.glob(os.path.join(DEPLOY, "grafana/dashboards/*.json")))
    assert len(paths) == 3, paths
    for path in paths:
        with open(path, encoding="utf-8") as text:
            yield os.path.basename(path), json.load(text)


def metrics_of(expression):
    """The names of metrics in it, without labels and strings."""
    bare = re.sub(r"\{[^}]*\}|\((?:[a-z_]+, )*[a-z_]+\) ?(?=\(|group_left)|"
                  r"group_left \([a-z_]+\)", " ", expression)
    return {name for name in METRIC.findall(bare)} - LABELS


class Prometheus:
    """The API of a running Prometheus."""

    def __init__(self, address):
        self._base = f"http://{address}/api/v1/"

    def _get(self, path, **arguments):
        with urllib.request.urlopen(
                self._base + path + "?" + urllib.parse.urlencode(arguments),
                timeout=30) as reply:
            return json.load(reply)["data"]

    def names(self):
        return set(self._get("label/__name__/values"))

    def label_values(self, metric, label):
        return self._get(f"label/{label}/values", **{"match[]": metric})

    def rules(self):
        return [rule for group in self._get("rules")["groups"]
                for rule in group["rules"]]

    def finite(self, expression):
        """The number of samples that a panel can draw now."""
        try:
            result = self._get("query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # It is not ready yet.
                raise
            raise AssertionError(
                f"{expression}: {error.read().decode()}") from error
        return sum(math.isfinite(float(each["value"][1])) for each in result)


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def secure(folder):
    """Makes a certificate and a token that expire.

    Returns (flags, clients' environment)."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", "-days", "90", *key, "-subj", "/CN=muster",
            "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "extendedKeyUsage=serverAuth", "-keyout", "key.pem",
            "-out", "cert.pem")
    with open(os.path.join(folder, "token"), "w", encoding="utf-8") as out:
        out.write("of-a-test")
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ",
                         time.gmtime(time.time() + 30 * 86400))
    with open(os.path.join(folder, "tokens"), "w", encoding="utf-8") as out:
        out.write(hashlib.sha256(b"of-a-test").hexdigest() +
                  f" admin * expires={ends}\n")
    return ([f"--tls_cert={folder}/cert.pem", f"--tls_key={folder}/key.pem",
             f"--token_file={folder}/tokens"],
            {"MUSTER_TLS_CA": f"{folder}/cert.pem",
             "MUSTER_TOKEN_FILE": f"{folder}/token"})


def configure(folder, http):
    """Copies deploy/prometheus, set to scrape this coordinator every second."""
    shutil.copytree(os.path.join(DEPLOY, "prometheus"), folder)
    path = os.path.join(folder, "prometheus.yml")
    with open(path, encoding="utf-8") as text:
        configuration = text.read()
    faster = re.sub(r"(_interval): 15s", r"\1: 1s", configuration)
    assert faster.count(": 1s") == 3, configuration
    with open(path, "w", encoding="utf-8") as out:
        out.write(faster)
    with open(os.path.join(folder, "targets/coordinators.yml"), "w",
              encoding="utf-8") as out:
        out.write(f"- targets: ['{http}']\n")
    return path


class DashboardsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.processes = Processes()
        cls.addClassCleanup(cls.processes.__exit__)
        folder = cls.processes.folder.name
        flags, env = secure(folder)
        etcd = f"127.0.0.1:{free_port()}"
        _, grpc, http = cls.processes.coordinator(
            COORDINATOR, "--storage=etcd", f"--etcd_endpoints={etcd}", *flags)
        env["MUSTER_COORDINATOR"] = grpc
        config = configure(f"{folder}/prometheus", http)
        address = f"127.0.0.1:{free_port()}"
        cls.processes.start([
            "prometheus", f"--config.file={config}",
            f"--web.listen-address={address}",
            f"--storage.tsdb.path={folder}/series"])
        cls.prometheus = Prometheus(address)
        wait_until(lambda: cls.prometheus.finite("muster_coordinator_jobs"),
                   "Prometheus has read the coordinator", SECONDS)
        # There is no etcd yet, so there are errors.
        wait_until(lambda: cls.prometheus.finite(
            "muster_coordinator_etcd_errors_total"),
                   "Prometheus has read an error", SECONDS)
        cls.start_etcd(etcd)
        wait_until(lambda: metric(
            http, "muster_coordinator_shards_owned") == 64,
                   "the coordinator has its jobs", SECONDS)
        # From here on counts must grow.
        cls.start_jobs(grpc, env, f"{folder}/prometheus/targets/workers.json")
        # The values of the dashboards' variables.
        wait_until(lambda: cls.prometheus.finite(
            'muster_dataplane_collectives_total'
            '{muster_job="training", op="all_reduce"}'),
                   "Prometheus has read the workers", SECONDS)

    @classmethod
    def start_etcd(cls, address):
        peer = f"http://127.0.0.1:{free_port()}"
        cls.processes.start([
            "etcd", f"--data-dir={cls.processes.folder.name}/etcd",
            f"--listen-client-urls=http://{address}",
            f"--advertise-client-urls=http://{address}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}"])

    @classmethod
    def start_jobs(cls, grpc, env, targets):
        run = [MUSTER_RUN, f"--rdzv-endpoint={grpc}"]
        cls.processes.start([*run, "--rdzv-id=training", "--nproc-per-node=2",
                             "--", TRAIN, "--epochs=100000",
                             "--hidden_units=16"], env)
        verbs = cls.processes.start([*run, "--rdzv-id=verbs",
                                     "--nproc-per-node=4", "--", VERBS], env)
        cls.processes.start([
            os.path.join(DEPLOY, "prometheus/worker_targets"),
            f"--musterctl={MUSTERCTL}", f"--out={targets}", "--interval=1"], env)
        assert verbs.wait(SECONDS) == 0, verbs.stderr

        # Requests must go on, without success, as long as Prometheus scrapes.
        cls.asking = threading.Event()
        def ask():
            while not cls.asking.wait(1):
                subprocess.run([MUSTERCTL, "members", "nobody"], check=False,
                               capture_output=True,
                               env={**os.environ, **env})
        asker = threading.Thread(target=ask)
        asker.start()
        cls.addClassCleanup(asker.join)
        cls.addClassCleanup(cls.asking.set)

    def wait_for_samples(self, queries):
        """Waits until each of {what: expression} has a sample to draw."""
        left = dict(queries)

        def all_answered():
            for what in [w for w, e in left.items()
                         if self.prometheus.finite(e)]:
                del left[what]
            return not left
        try:
            wait_until(all_answered, "all have samples", SECONDS)
        except AssertionError:
            self.fail("without a sample: " + "".join(
                f"\n{what}: {expression}" for what, expression in left.items()))

    def variables(self, dashboard):
        """A regular expression per variable that matches all its values."""
        values = {}
        for variable in dashboard["templating"]["list"]:
            name = variable["name"]
            if variable["type"] == "datasource":
                self.assertEqual(name, "datasource")
                continue
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)",
                                         variable["query"]).groups()
            metric = self.put_in(metric, values)
            found = self.prometheus.label_values(metric, label)
            self.assertTrue(found, f"${name} has no value")
            if "training" in found:
                found = ["training"]  # The other job is over.
            values[name] = "|".join(found)
        return values

    def put_in(self, expression, values):
        for name, value in {**INTERVALS,
                            **{f"${k}": v for k, v in values.items()}}.items():
            expression = expression.replace(name, value)
        self.assertNotIn("$", expression)
        return expression

    def test_no_panel_is_empty(self):
        queries = {}
        for name, dashboard in dashboards():
            values = self.variables(dashboard)
            for panel in dashboard["panels"]:
                self.assertTrue(panel["targets"], panel["title"])
                for target in panel["targets"]:
                    what = f"{name}, {panel['title']}, {target['refId']}"
                    queries[what] = self.put_in(target["expr"], values)
        self.assertGreater(len(queries), 40)
        self.wait_for_samples(queries)

    def test_recording_rules_have_samples_and_alerts_are_evaluated(self):
        rules = self.prometheus.rules()
        self.wait_for_samples({r["name"]: r["name"] for r in rules
                               if r["type"] == "recording"})
        wait_until(lambda: all(r["health"] != "unknown"
                               for r in self.prometheus.rules()),
                   "every rule was evaluated", SECONDS)
        for rule in self.prometheus.rules():
            self.assertEqual(rule["health"], "ok", rule)

    def test_every_metric_that_is_asked_for_is_exported(self):
        asked = set()
        for _, dashboard in dashboards():
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    asked |= metrics_of(target["expr"])
        for rule in self.prometheus.rules():
            asked |= metrics_of(rule["query"])
        self.assertGreater(len(asked), 30)
        self.assertIn("muster_dataplane_collectives_total", asked)
        wait_until(lambda: asked <= self.prometheus.names(),
                   "every metric is there", SECONDS)

    def test_panels_are_where_they_are_seen(self):
        for name, dashboard in dashboards():
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)), name)
            taken = set()
            for panel in dashboard["panels"]:
                at = panel["gridPos"]
                self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                         for y in range(at["y"], at["y"] + at["h"])}
                self.assertFalse(cells & taken, panel["title"])
                taken |= cells


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
