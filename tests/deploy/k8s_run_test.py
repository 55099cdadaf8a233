#!/usr/bin/python3
"""Runs containers of deploy/k8s as processes: coordinators, members of etcd and
workers start with the commands and variables of their pods, wait for a name that
DNS does not know yet, answer their probes, and end within their pods' grace.

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
from manifests import (container, environment, job_spec, of_kind, only,
                       pod_templates)

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


def write_secrets(folder, objects):
    """Makes folders with the contents of the Secrets: those of the Certificates
    among the objects, as cert-manager does, and of the tokens."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usages = {"server auth": "serverAuth", "client auth": "clientAuth"}
    for spec in (c["spec"] for c in of_kind(objects, "Certificate")):
        secret = os.path.join(folder, spec["secretName"])
        if spec.get("isCA"):
            os.mkdir(secret)
            openssl(secret, "req", "-x509", "-days", "9", *new, "-subj",
                    f"/CN={spec['commonName']}", "-keyout", "tls.key",
                    "-out", "tls.crt")
    for spec in (c["spec"] for c in of_kind(objects, "Certificate")):
        if spec.get("isCA"):
            continue
        secret = os.path.join(folder, spec["secretName"])
        issuer = only(i["spec"] for i in of_kind(objects, "Issuer")
                      if i["metadata"]["name"] == spec["issuerRef"]["name"])
        authority = os.path.join(folder, issuer["ca"]["secretName"])
        os.mkdir(secret)
        openssl(secret, "req", "-new", *new, "-subj",
                f"/CN={spec['commonName']}", "-keyout", "tls.key",
                "-out", "request")
        with open(f"{secret}/extensions", "w", encoding="utf-8") as out:
            out.write("extendedKeyUsage=" +
                      ",".join(usages[usage] for usage in spec["usages"]))
            if "dnsNames" in spec:
                out.write("\nsubjectAltName=" + ",".join(
                    "DNS:" + name for name in spec["dnsNames"]))
        openssl(secret, "x509", "-req", "-days", "9", "-in", "request",
                "-CA", f"{authority}/tls.crt", "-CAkey", f"{authority}/tls.key",
                "-CAcreateserial", "-extfile", "extensions", "-out", "tls.crt")
        os.link(f"{authority}/tls.crt", f"{secret}/ca.crt")
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

    def start_pods(self, processes, hosts, stateful, first):
        """Starts a process for each pod of a StatefulSet, whose addresses are
        those from pod_ip(first), and makes their names known. Only paths of
        volumes and the addresses are not those of pods."""
        folder = processes.folder.name
        template = stateful["spec"]["template"]
        namespace = stateful["metadata"]["namespace"]
        names = [f"{stateful['metadata']['name']}-{k}"
                 for k in range(stateful["spec"]["replicas"])]
        with open(hosts, "a", encoding="utf-8") as out:
            for k, name in enumerate(names):
                service = f"{name}.{stateful['spec']['serviceName']}"
                out.write(f"{self.pod_ip(first + k)} {service} "
                          f"{service}.{namespace}.svc\n")
        programs = []
        for k, name in enumerate(names):
            env = mounted(template, environment(
                template, {"metadata.name": name,
                           "metadata.namespace": namespace}), folder)
            env = {key: value.replace("0.0.0.0", self.pod_ip(first + k))
                   .replace("/var/lib/etcd/", f"{folder}/{name}/")
                   for key, value in env.items()}
            command = container(template)["command"]
            if command == ["muster-coordinator"]:
                command = [COORDINATOR]
            programs.append(processes.start(with_hosts(hosts, command), env))
        return programs

    def start_workers(self, processes, example, grpc, addresses=("127.0.0.1",)):
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
        hosts = f"{folder}/hosts"
        if not os.path.exists(hosts):
            shutil.copy("/etc/hosts", hosts)
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
            out.writelines(f"{address} {host}\n" for address in addresses)
        return pods, template

    @staticmethod
    def pod_ip(index):
        """An address of the pod alone, so that pods may use equal ports."""
        run = os.getpid()
        return f"127.{run // 250 % 250 + 1}.{run % 250 + 1}.{index + 1}"

    def check_runs(self, overlay, example):
        with Processes() as processes:
            write_secrets(processes.folder.name, manifests.render(overlay))
            coordinator, front, grpc, http = self.start_coordinator(
                processes, overlay)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = container(front)[probe]["httpGet"]["path"]
                wait_until(lambda p=path: fetch(http, p), probe, SECONDS)

            pods, template = self.start_workers(processes, example, grpc)
            self.wait_until_training(pods, template)
            self.end(pods, template, 128 + signal.SIGTERM)
            self.end([coordinator], front, 0)

    def wait_until_training(self, pods, template):
        """Each rank completes ten more collectives."""
        port = container(template)["ports"][0]["containerPort"]
        for index, _ in enumerate(pods):
            at = f"{self.pod_ip(index)}:{port}"

            def collectives(at=at):
                return metric(at, "muster_dataplane_collectives_total")
            before = wait_until(collectives, f"pod {index} trains", SECONDS)
            wait_until(lambda: collectives() > before + 10,
                       f"the rank of pod {index} trains", SECONDS)
            self.assertEqual(metric(at, "muster_worker_rank"), index)

    def end(self, programs, template, status):
        """Ends the pods as Kubernetes does."""
        for program in programs:
            program.signal(signal.SIGTERM)
        self.check_ends(programs, template, status)

    def check_ends(self, programs, template, status):
        grace = template["spec"]["terminationGracePeriodSeconds"]
        end = time.monotonic() + grace
        for program in programs:
            self.assertEqual(program.wait(max(0.1, end - time.monotonic())),
                             status, program.stderr)

    def test_the_tls_overlay_serves_the_indexed_job(self):
        self.check_runs("overlays/tls", "examples/indexed-job")

    def test_the_ha_overlay_serves_the_job_with_one_coordinator_less(self):
        with Processes() as processes:
            overlay = manifests.render("overlays/ha")
            etcd = manifests.render(manifests.ETCD)
            write_secrets(processes.folder.name, overlay + etcd)
            hosts = shutil.copy("/etc/hosts", f"{processes.folder.name}/hosts")
            members = self.start_pods(
                processes, hosts, only(of_kind(etcd, "StatefulSet")), first=10)
            stateful = only(of_kind(overlay, "StatefulSet"))
            coordinators = self.start_pods(processes, hosts, stateful, first=20)
            addresses = [self.pod_ip(20 + k) for k in range(len(coordinators))]
            template = stateful["spec"]["template"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                path = container(template)[probe]["httpGet"]["path"]
                for address in addresses:
                    wait_until(lambda p=path, at=address: fetch(
                        f"{at}:7071", p), probe, SECONDS)
            for k, _ in enumerate(members):
                wait_until(lambda at=k: fetch(f"{self.pod_ip(10 + at)}:2381",
                                              "/health"), "etcd", SECONDS)

            pods, workers = self.start_workers(
                processes, "examples/indexed-job", ":7070", addresses)
            self.wait_until_training(pods, workers)

            def streams():
                return [metric(f"{a}:7071", "muster_coordinator_sessions")
                        for a in addresses]
            before = streams()
            self.assertGreaterEqual(sum(before), len(pods))
            busiest = before.index(max(before))
            coordinators.pop(busiest).kill()
            addresses.pop(busiest)
            wait_until(lambda: sum(streams()) >= sum(before),
                       "the others have its streams", SECONDS)
            self.wait_until_training(pods, workers)
            self.end(pods, workers, 128 + signal.SIGTERM)
            self.end(coordinators, template, 0)

    def test_the_development_overlay_serves_the_job_without_tls(self):
        self.check_runs("overlays/development",
                        "examples/indexed-job-development")

    def test_the_base_alone_refuses_to_listen(self):
        with Processes() as processes:
            program, _ = self.start_process(processes, "base")
            self.assertNotEqual(program.wait(SECONDS), 0)
            self.assertIn("--insecure", program.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
