#!/usr/bin/python3
"""Runs containers of deploy/k8s as processes: a coordinator and its workers
start with the commands and variables of their pods, wait for a name that DNS
does not know yet, answer their probes, and end within their pods' grace.

Usage: k8s_run_test.py COORDINATOR MUSTER_RUN TRAIN
Needs root or a user namespace, for an /etc/hosts of the pods' own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import manifests
from manifests import container, environment, job_spec, only, pod_templates

sys.path.insert(0, os.path.join(manifests.HERE, "..", "end2end"))
from processes import Processes, fetch, metric, wait_until  # pylint: disable=C0413

COORDINATOR, MUSTER_RUN, TRAIN = [
    os.path.abspath(path) for path in sys.argv[1:4]]
SECONDS = 120
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


# A fake kubectl: makes the folder of a Secret, and checks that applied files
# exist.
KUBECTL = """#!/bin/bash
case "$*" in
"apply -f "*) test -f "$3" ;;
"-n muster create secret generic "*" --from-file="*)
  file=${7#--from-file=}
  mkdir "$SECRETS/$6" && cp "${file#*=}" "$SECRETS/$6/${file%%=*}" ;;
*) exit 1 ;;
esac
"""


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def with_hosts(path, command):
    """`command` with the file at `path` as /etc/hosts: the pods' DNS."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--mount", *as_root, "sh", "-c",
            'mount --bind "$0" /etc/hosts && exec "$@"', path, *command]


def write_secrets(folder, dns_names):
    """Makes folders with the contents of the Secrets of the overlay tls.

    One authority signs both certificates, as cert-manager's issuer does.
    """
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", "-days", "9", *new, "-subj", "/CN=authority",
            "-keyout", "ca.key", "-out", "ca.crt")
    for name, usage in (("muster-coordinator-tls", "serverAuth"),
                        ("muster-client-tls", "clientAuth")):
        secret = os.path.join(folder, name)
        os.mkdir(secret)
        openssl(secret, "req", "-new", *new, "-subj", f"/CN={name}",
                "-keyout", "tls.key", "-out", "request")
        with open(f"{secret}/names", "w", encoding="utf-8") as out:
            out.write("subjectAltName=" +
                      ",".join("DNS:" + each for each in dns_names) +
                      f"\nextendedKeyUsage={usage}")
        openssl(secret, "x509", "-req", "-days", "9", "-in", "request",
                "-CA", "../ca.crt", "-CAkey", "../ca.key", "-CAcreateserial",
                "-extfile", "names", "-out", "tls.crt")
        os.link(f"{folder}/ca.crt", f"{secret}/ca.crt")
    create_tokens(folder)


def create_tokens(folder):
    """The Secrets of the walk in deploy/README.md, as folders."""
    with open(os.path.join(manifests.K8S, "../README.md"),
              encoding="utf-8") as text:
        walk = only(block for block in re.findall(
            r"^```sh\n(.*?)^```$", text.read(), re.MULTILINE | re.DOTALL)
                    if "create secret" in block)
    os.mkdir(f"{folder}/bin")
    with open(f"{folder}/bin/kubectl", "w", encoding="utf-8") as out:
        out.write(KUBECTL)
    os.chmod(out.name, 0o755)
    subprocess.run(
        ["bash", "-e", "-c", walk], check=True,
        cwd=os.path.join(manifests.K8S, "../.."),
        env={**os.environ, "HOME": folder, "SECRETS": folder,
             "PATH": f"{folder}/bin:{os.environ['PATH']}"})


def mounted(template, env, folder):
    """`env` with paths of Secrets replaced by those under `folder`."""
    volumes = {v["name"]: v["secret"]["secretName"]
               for v in template["spec"].get("volumes", []) if "secret" in v}
    for mount in container(template)["volumeMounts"]:
        if mount["name"] in volumes:
            env = {k: v.replace(mount["mountPath"],
                                f"{folder}/{volumes[mount['name']]}")
                   for k, v in env.items()}
    return env


class RunTest(unittest.TestCase):

    def start_process(self, processes, overlay):
        """The coordinator of an overlay, and its pods' template."""
        folder = processes.folder.name
        template = only(pod_templates(manifests.render(overlay)))
        env = mounted(template, environment(template), folder)
        # Everything is as in the pod, except its ports and volume.
        for name in ("LISTEN", "HTTP_LISTEN"):
            env["MUSTER_COORDINATOR_" + name] = re.sub(
                r":\d+$", ":0", env["MUSTER_COORDINATOR_" + name])
        env["MUSTER_COORDINATOR_STORAGE_PATH"] = f"{folder}/db"
        return processes.start([COORDINATOR], env), template

    def start_coordinator(self, processes, overlay):
        """(program, its pods' template, grpc and http address)."""
        program, template = self.start_process(processes, overlay)
        ports = program.wait_for_line(r"^listening grpc=\S+:(\d+) http=\S+:(\d+)")
        return program, template, *(f"127.0.0.1:{p}" for p in ports.groups())

    def start_workers(self, processes, example, grpc):
        """Starts one process per pod; returns them and the pods' template.

        The coordinator's name resolves once each has asked for it in vain.
        """
        folder = processes.folder.name
        job = job_spec(manifests.render(example))
        template = job["template"]
        programs = f"{folder}/programs"
        os.mkdir(programs)
        os.symlink(MUSTER_RUN, f"{programs}/muster-run")
        # Runs until it is stopped; the image's own program ends by itself.
        with open(f"{programs}/train_fashion_mnist", "w",
                  encoding="utf-8") as out:
            out.write(f"#!/bin/sh\nexec {TRAIN} --epochs=100000 "
                      "--hidden_units=16\n")
        os.chmod(out.name, 0o755)
        hosts = shutil.copy("/etc/hosts", f"{folder}/hosts")
        pods = []
        for index in range(job["completions"]):
            env = environment(template, {INDEX: str(index),
                                         "status.podIP": self.pod_ip(index)})
            env = mounted(template, env, folder)
            host = env["MUSTER_RDZV_ENDPOINT"].split(":")[0]
            env["MUSTER_RDZV_ENDPOINT"] = f"{host}:{grpc.split(':')[1]}"
            env["PATH"] = f"{programs}:{os.environ['PATH']}"
            worker = container(template)
            pods.append(processes.start(with_hosts(
                hosts, [*worker["command"], *worker["args"]]), env))
        for pod in pods:
            pod.wait_for_line(
                f"coordinator not reached: .*cannot resolve .*{host}", SECONDS)
        with open(hosts, "a", encoding="utf-8") as out:
            out.write(f"127.0.0.1 {host}\n")
        return pods, template

    @staticmethod
    def pod_ip(index):
        """An address of the pod alone, so that pods may use equal ports."""
        run = os.getpid()
        return f"127.{run // 250 % 250 + 1}.{run % 250 + 1}.{index + 1}"

    def check_runs(self, overlay, example, dns_names):
        with Processes() as processes:
            write_secrets(processes.folder.name, dns_names)
            coordinator, front, grpc, http = self.start_coordinator(
                processes, overlay)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = container(front)[probe]["httpGet"]["path"]
                wait_until(lambda p=path: fetch(http, p), probe, SECONDS)

            pods, template = self.start_workers(processes, example, grpc)
            port = container(template)["ports"][0]["containerPort"]
            for index, _ in enumerate(pods):
                wait_until(
                    lambda at=f"{self.pod_ip(index)}:{port}": metric(
                        at, "muster_dataplane_collectives_total") > 10,
                    f"the rank of pod {index} trains", SECONDS)
                self.assertEqual(metric(f"{self.pod_ip(index)}:{port}",
                                        "muster_worker_rank"), index)

            # Ends the pods as Kubernetes does.
            for pod in pods:
                pod.signal(signal.SIGTERM)
            self.check_ends(pods, template, 128 + signal.SIGTERM)
            coordinator.signal(signal.SIGTERM)
            self.check_ends([coordinator], front, 0)

    def check_ends(self, programs, template, status):
        grace = template["spec"]["terminationGracePeriodSeconds"]
        end = time.monotonic() + grace
        for program in programs:
            self.assertEqual(program.wait(max(0.1, end - time.monotonic())),
                             status, program.stderr)

    def test_the_tls_overlay_serves_the_indexed_job(self):
        certificate = only(
            thing for thing in manifests.render("overlays/tls")
            if thing["kind"] == "Certificate" and
            thing["metadata"]["name"] == "muster-coordinator")
        self.check_runs("overlays/tls", "examples/indexed-job",
                        certificate["spec"]["dnsNames"])

    def test_the_development_overlay_serves_the_job_without_tls(self):
        self.check_runs("overlays/development",
                        "examples/indexed-job-development", ["unused"])

    def test_the_base_alone_refuses_to_listen(self):
        with Processes() as processes:
            program, _ = self.start_process(processes, "base")
            self.assertNotEqual(program.wait(SECONDS), 0)
            self.assertIn("--insecure", program.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
