#!/usr/bin/env python3
"""Tests the client of etcd against etcd itself, and the model beside it.

Usage: etcd_client_test.py ETCD_SHELL MODEL_ETCD_TEST COORDINATOR MUSTERCTL
"""

import os
import signal
import subprocess
import sys
import time
import unittest

from etcd_cluster import Cluster
from processes import Processes, wait_until

SHELL, MODEL_TEST, COORDINATOR, MUSTERCTL = sys.argv[1:5]
# EtcdOptions::request_timeout.
REQUEST_TIMEOUT_S = 5


class Authority:
    """A certificate authority and the files that it issues."""

    def __init__(self, folder, name):
        self.folder = f"{folder}/{name}"
        os.mkdir(self.folder)
        self.ca = f"{self.folder}/ca.pem"
        self.openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes",
                     "-keyout", f"{self.folder}/ca.key", "-out", self.ca,
                     "-subj", f"/CN={name}", "-days", "2")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True,
                       capture_output=True)

    def issue(self, name, names="IP:127.0.0.1,DNS:localhost"):
        """The (certificate, key) files of a new identity."""
        base = f"{self.folder}/{name}"
        with open(f"{base}.ext", "w", encoding="ascii") as extension:
            extension.write(f"subjectAltName={names}\n"
                            "extendedKeyUsage=serverAuth,clientAuth\n")
        self.openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout",
                     f"{base}.key", "-out", f"{base}.csr", "-subj",
                     f"/CN={name}")
        self.openssl("x509", "-req", "-in", f"{base}.csr", "-CA", self.ca,
                     "-CAkey", f"{self.folder}/ca.key", "-CAcreateserial",
                     "-out", f"{base}.pem", "-days", "2", "-extfile",
                     f"{base}.ext")
        return f"{base}.pem", f"{base}.key"


class Shell:
    """A client that executes a line at a time."""

    def __init__(self, etcd, **options):
        options = {"endpoints": ",".join(etcd.endpoints), **options}
        # Ends when its stdin does, at the latest with this process.
        self.process = subprocess.Popen(
            [SHELL, *(f"{name}={value}" for name, value in options.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def __call__(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().rstrip("\n").rstrip()


def secure(authority, name="etcd", **names):
    """What a Cluster needs to serve, and ask for, the authority's files."""
    certificate, key = authority.issue(name, **names)
    return ([f"--cert-file={certificate}", f"--key-file={key}",
             "--client-cert-auth", f"--trusted-ca-file={authority.ca}"],
            [f"--cacert={authority.ca}", f"--cert={certificate}",
             f"--key={key}"])


class EtcdClientTest(unittest.TestCase):

    def setUp(self):
        self.processes = Processes()
        self.addCleanup(self.processes.__exit__)

    def authority(self, name):
        return Authority(self.processes.folder.name, name)

    def identity(self, authority, name="client"):
        certificate, key = authority.issue(name)
        return {"ca": authority.ca, "cert": certificate, "key": key}

    def test_the_model_answers_as_etcd_does(self):
        etcd = Cluster(self.processes, size=1)
        done = subprocess.run(
            [MODEL_TEST, "--gtest_filter=Conformance*"],
            env={**os.environ, "ETCD_ENDPOINT": etcd.endpoints[0]},
            capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("Running 0 tests", done.stdout)

    def test_tls_with_certificates_of_both(self):
        authority = self.authority("ours")
        etcd = Cluster(self.processes, tls=secure(authority))
        with Shell(etcd, **self.identity(authority)) as shell:
            self.assertEqual(shell("put key value"), "OK")
            self.assertEqual(shell("get key"), "OK value")
            lease = shell("grant 60").split()[1]
            self.assertEqual(shell(f"keep {lease} 5000"), "OK")

    def test_a_coordinator_keeps_jobs_in_an_etcd_with_tls(self):
        authority = self.authority("ours")
        etcd = Cluster(self.processes, size=1, tls=secure(authority))
        files = self.identity(authority)
        coordinator = self.processes.start(
            [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=",
             "--storage=etcd", "--etcd_endpoints=" + ",".join(etcd.endpoints),
             *(f"--etcd_{name}={path}" for name, path in files.items())])
        address = coordinator.wait_for_line(
            r"^listening grpc=(\S+)").group(1)
        for command, output in ((["set", "key", "value"], None),
                                (["get", "key"], "value")):
            done = subprocess.run(
                [MUSTERCTL, "kv", *command, "--job=demo",
                 f"--coordinator={address}", "--timeout=60s"],
                capture_output=True, text=True, timeout=90, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            if output:
                self.assertEqual(done.stdout.strip(), output)

    def test_an_authority_that_did_not_sign_etcds_certificate(self):
        authority = self.authority("ours")
        etcd = Cluster(self.processes, size=1, tls=secure(authority))
        files = self.identity(authority)
        files["ca"] = self.authority("another").ca
        with Shell(etcd, **files) as shell:
            answer = shell("get key")
        self.assertRegex(answer, f"^UNAVAILABLE: etcd at {etcd.endpoints[0]}: ")
        self.assertIn("certificate verify failed", answer)

    def test_a_certificate_of_another_host(self):
        authority = self.authority("ours")
        etcd = Cluster(self.processes, size=1,
                       tls=secure(authority, names="DNS:elsewhere"))
        with Shell(etcd, **self.identity(authority)) as shell:
            self.assertRegex(shell("get key"), "^UNAVAILABLE: ")

    def test_no_certificate_where_etcd_asks_for_one(self):
        authority = self.authority("ours")
        etcd = Cluster(self.processes, size=1, tls=secure(authority))
        with Shell(etcd, ca=authority.ca) as shell:
            self.assertRegex(shell("get key"), "^UNAVAILABLE: ")

    def test_files_that_are_replaced_are_used_for_new_connections(self):
        old, new = self.authority("old"), self.authority("new")
        etcd = Cluster(self.processes, size=1, tls=secure(old))
        files = self.identity(old)
        with Shell(etcd, **files) as shell:
            self.assertEqual(shell("put key value"), "OK")
            # A restart, because etcd does not read its authorities again.
            for name, path in self.identity(new).items():
                os.replace(path, files[name])
            etcd.tls = secure(new)
            etcd.restart(0)
            etcd.wait()
            wait_until(lambda: shell("get key") == "OK value",
                       "the client uses the new files")

    def enable_users(self, etcd):
        for command in (["user", "add", "root:secret"],
                        ["user", "grant-role", "root", "root"],
                        ["auth", "enable"]):
            done = etcd.ctl(*command)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_token_that_was_not_used_for_long_is_renewed(self):
        etcd = Cluster(self.processes, size=1,
                       flags=["--auth-token-ttl=1", "--logger=zap"])
        self.enable_users(etcd)
        with Shell(etcd, user="root:secret") as shell:
            self.assertEqual(shell("put key value"), "OK")
            etcd.members[0].wait_for_line("deleted a simple token")
            self.assertEqual(shell("put key value"), "OK")

    def test_a_token_is_renewed_after_a_change_of_users_and_a_restart(self):
        etcd = Cluster(self.processes, size=1)
        self.enable_users(etcd)
        with Shell(etcd, user="root:secret") as shell:
            self.assertEqual(shell("put key value"), "OK")
            done = etcd.ctl("--user=root:secret", "user", "add", "b:secret")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(shell("put key value"), "OK")
            # A member's tokens end with it.
            etcd.restart(0)
            etcd.wait("--user=root:secret")
            self.assertEqual(shell("put key value"), "OK")

    def test_a_wrong_password(self):
        etcd = Cluster(self.processes, size=1)
        self.enable_users(etcd)
        with Shell(etcd, user="root:wrong") as shell:
            self.assertRegex(shell("get key"),
                             "^INVALID_ARGUMENT: .*authentication failed")

    def test_a_member_that_answers_nothing_costs_a_moment(self):
        etcd = Cluster(self.processes)
        with Shell(etcd) as shell:
            lease = shell("grant 60").split()[1]
            etcd.members[0].signal(signal.SIGSTOP)
            before = time.monotonic()
            # If it was the leader, the others elect one.
            wait_until(lambda: shell(f"keep {lease} 500") == "OK",
                       "another member answers")
            kept = time.monotonic()
            self.assertEqual(shell("put key value"), "OK")
            put = time.monotonic()
            etcd.members[0].signal(signal.SIGCONT)
            # Less than a request to the silent member would take.
            self.assertLess(kept - before, REQUEST_TIMEOUT_S)
            self.assertLess(put - kept, REQUEST_TIMEOUT_S)

    def test_a_leader_that_is_killed(self):
        etcd = Cluster(self.processes)
        with Shell(etcd) as shell:
            for i in range(3):
                etcd.members[i].kill()
                wait_until(lambda: shell(f"put key {i}") == "OK",
                           "another leader is elected")
                etcd.members[i] = etcd.start(i)
                etcd.wait()
                self.assertEqual(shell("get key"), f"OK {i}")

    def test_leases(self):
        etcd = Cluster(self.processes, size=1)
        with Shell(etcd) as shell:
            lease = shell("grant 60").split()[1]
            self.assertEqual(shell(f"keep {lease} 5000"), "OK")
            self.assertEqual(shell(f"revoke {lease}"), "OK")
            self.assertRegex(shell(f"keep {lease} 5000"), "^NOT_FOUND: ")
            self.assertRegex(shell(f"revoke {lease}"), "^NOT_FOUND: ")

    def test_requests_that_are_too_large(self):
        etcd = Cluster(self.processes, size=1)
        with Shell(etcd) as shell:
            self.assertEqual(shell("fill key 1500000"), "OK")
            # Refused by etcd, and by its transport.
            for size in (1_600_000, 16_000_000):
                self.assertRegex(shell(f"fill key {size}"),
                                 "^INVALID_ARGUMENT: ")

    def test_an_etcd_without_space(self):
        etcd = Cluster(self.processes, size=1,
                       flags=["--quota-backend-bytes=200000"])
        with Shell(etcd) as shell:
            self.assertEqual(shell("put key value"), "OK")
            while "NOSPACE" not in etcd.ctl("alarm", "list").stdout:
                shell("fill filler 100000")
            self.assertRegex(shell("put key value"), "^RESOURCE_EXHAUSTED: ")
            self.assertRegex(shell("grant 60"), "^RESOURCE_EXHAUSTED: ")
            self.assertEqual(shell("get key"), "OK value")
            etcd.ctl("del", "filler")
            etcd.make_space()
            self.assertEqual(shell("put key value"), "OK")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
