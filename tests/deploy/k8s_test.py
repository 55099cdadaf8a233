#!/usr/bin/python3
"""Checks the rendered deploy/k8s: Kubernetes would accept the objects, they fit
together, and the programs understand their flags and variables.

Usage: k8s_test.py COORDINATOR MUSTER_RUN MUSTERCTL
kubectl, python3-kubernetes and python3-yaml are Debian's.
"""

import os
import re
import subprocess
import sys
import unittest

import k8s_schema
import manifests
from manifests import (ETCD, EXAMPLES, OPERATOR, OVERLAYS, container,
                       environment, job_spec, of_kind, only, pod_templates,
                       port_number, seconds)

COORDINATOR, MUSTER_RUN, MUSTERCTL = [
    os.path.abspath(path) for path in sys.argv[1:4]]
FOLDERS = OVERLAYS + [OPERATOR, ETCD] + EXAMPLES
# Variables of a pod that are no flags.
FIELDS = {"POD_NAME": "pod-0", "POD_NAMESPACE": "namespace"}


def selects(selector, labels):
    return selector.items() <= labels.items()


def worker_labels(objects):
    return job_spec(objects)["template"]["metadata"]["labels"]


class RenderedTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.rendered = {folder: manifests.render(folder) for folder in FOLDERS}
        cls.everything = [(folder, thing)
                          for folder, things in cls.rendered.items()
                          for thing in things]

    def templates(self, folders):
        for folder in folders:
            for template in pod_templates(self.rendered[folder]):
                yield folder, template

    def test_every_folder_is_looked_at(self):
        found = {os.path.relpath(folder, manifests.K8S)
                 for folder, _, files in os.walk(manifests.K8S)
                 if "kustomization.yaml" in files}
        self.assertEqual(found, set(FOLDERS))
        for folder, things in self.rendered.items():
            self.assertTrue(things, folder)

    def test_every_object_fits_its_schema(self):
        for folder, thing in self.everything:
            with self.subTest(folder=folder):
                k8s_schema.check(thing)
                self.assertEqual(thing["metadata"].get("namespace", "muster"),
                                 "muster")

    def test_the_schema_knows_wrong_objects(self):
        tls = self.rendered["overlays/tls"]
        stateful = only(of_kind(tls, "StatefulSet"))
        spec = stateful["spec"]["template"]["spec"]
        certificate = of_kind(tls, "Certificate")[0]
        job = only(of_kind(self.rendered["examples/indexed-job"], "Job"))
        wrong = {
            "there is no field replica": {
                **stateful, "spec": {**stateful["spec"], "replica": 1}},
            "`selector`, must not be `None`": {
                **stateful, "spec": {
                    k: v for k, v in stateful["spec"].items()
                    if k != "selector"}},
            "'30' is no int": {**stateful, "spec": {
                **stateful["spec"], "template": {"spec": {
                    **spec, "terminationGracePeriodSeconds": "30"}}}},
            "secretName is missing": {
                **certificate, "spec": {
                    k: v for k, v in certificate["spec"].items()
                    if k != "secretName"}},
            "there is no \\('apps/v2'": {**stateful, "apiVersion": "apps/v2"},
            "'Skip' is none of": {**job, "spec": {
                **job["spec"], "podFailurePolicy": {
                    "rules": [{"action": "Skip"}]}}},
        }
        for text, thing in wrong.items():
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                k8s_schema.check(thing)

    def test_pods_are_restricted(self):
        classes = {c["metadata"]["name"] for c in
                   of_kind(self.rendered["base"], "PriorityClass")}
        for folder, template in self.templates(FOLDERS):
            with self.subTest(folder):
                pod = template["spec"]
                self.assertFalse(pod["automountServiceAccountToken"])
                self.assertFalse(pod["enableServiceLinks"])
                self.assertEqual(pod["serviceAccountName"], "muster")
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertGreater(pod["securityContext"]["runAsUser"], 1000)
                self.assertEqual(pod["securityContext"]["seccompProfile"],
                                 {"type": "RuntimeDefault"})
                self.assertEqual(container(template)["securityContext"], {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]}})
                self.assertLessEqual(
                    {"memory", "ephemeral-storage"},
                    set(container(template)["resources"]["limits"]))
                self.assertIn(template["spec"]["priorityClassName"], classes)

    def test_volumes_and_ports_are_named_as_they_are(self):
        for folder, template in self.templates(FOLDERS):
            with self.subTest(folder):
                volumes = {v["name"] for v in template["spec"].get("volumes", [])}
                mounts = {m["name"] for m in container(template)["volumeMounts"]}
                volumes |= {v["metadata"]["name"]
                            for s in of_kind(self.rendered[folder], "StatefulSet")
                            for v in s["spec"].get("volumeClaimTemplates", [])}
                self.assertEqual(mounts, volumes)
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    get = container(template).get(probe, {}).get("httpGet")
                    if get:
                        self.assertEqual(port_number(template, get["port"]),
                                         2381 if folder == ETCD else 7071)

    def test_services_and_policies_select_pods(self):
        for folder in OVERLAYS:
            template = only(pod_templates(self.rendered[folder]))
            labels = template["metadata"]["labels"]
            stateful = only(of_kind(self.rendered[folder], "StatefulSet"))
            services = of_kind(self.rendered[folder], "Service")
            self.assertIn(stateful["spec"]["serviceName"],
                          [s["metadata"]["name"] for s in services])
            for service in services:
                self.assertTrue(selects(service["spec"]["selector"], labels))
                for port in service["spec"]["ports"]:
                    self.assertEqual(port_number(template, port["targetPort"]),
                                     port["port"])
            budget = only(of_kind(self.rendered[folder], "PodDisruptionBudget"))
            self.assertTrue(selects(budget["spec"]["selector"]["matchLabels"],
                                    labels))
            policies = {p["metadata"]["name"]: p["spec"] for p in
                        of_kind(self.rendered[folder], "NetworkPolicy")}
            self.assertTrue(selects(policies["muster-coordinator"][
                "podSelector"]["matchLabels"], labels))
            for example in EXAMPLES:
                worker = worker_labels(self.rendered[example])
                self.assertTrue(selects(policies["muster-worker"][
                    "podSelector"]["matchLabels"], worker))
                rule = policies["muster-coordinator"]["ingress"][0]
                self.assertTrue(selects(
                    rule["from"][0]["podSelector"]["matchLabels"], worker))

    def test_workers_are_reached_by_their_own_job_alone(self):
        everyones = {p["metadata"]["name"]: p["spec"] for p in of_kind(
            self.rendered["base"], "NetworkPolicy")}["muster-worker"]
        self.assertNotIn("ingress", everyones)
        instance = "app.kubernetes.io/instance"
        for example in EXAMPLES:
            with self.subTest(example):
                labels = worker_labels(self.rendered[example])
                policy = only(of_kind(self.rendered[example],
                                      "NetworkPolicy"))["spec"]
                allowed = only(only(policy["ingress"])["from"])
                for selector in (policy["podSelector"], allowed["podSelector"]):
                    self.assertTrue(selects(selector["matchLabels"], labels))
                    self.assertFalse(selects(selector["matchLabels"],
                                             {**labels, instance: "another"}))

    def test_disruptions_and_what_follows_a_failure_do_not_count(self):
        for example in EXAMPLES:
            with self.subTest(example):
                job = job_spec(self.rendered[example])
                disrupted, followed = job["podFailurePolicy"]["rules"]
                self.assertEqual(disrupted["onPodConditions"],
                                 [{"type": "DisruptionTarget", "status": "True"}])
                self.assertEqual(followed, {"action": "Ignore", "onExitCodes": {
                    "containerName": container(job["template"])["name"],
                    "operator": "In", "values": [75]}})
                # Kubernetes requires both of these with a policy.
                self.assertEqual(job["template"]["spec"]["restartPolicy"],
                                 "Never")
                self.assertEqual(job["podReplacementPolicy"], "Failed")
                thing = only(t for t in self.rendered[example]
                             if t["kind"] in ("Job", "JobSet"))
                self.assertGreater(thing["spec"]["ttlSecondsAfterFinished"], 0)
                if thing["kind"] == "Job":
                    self.assertEqual(disrupted["action"], "Ignore")
                    continue
                self.assertEqual(disrupted["action"], "FailJob")
                rule = only(thing["spec"]["failurePolicy"]["rules"])
                self.assertEqual(
                    (rule["action"], rule["onJobFailureReasons"]),
                    ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"]))

    def test_pods_of_a_job_are_spread_over_nodes(self):
        for example in EXAMPLES:
            template = job_spec(self.rendered[example])["template"]
            spread = only(template["spec"]["topologySpreadConstraints"])
            self.assertTrue(selects(spread["labelSelector"]["matchLabels"],
                                    template["metadata"]["labels"]), example)
            self.assertEqual(spread["topologyKey"], "kubernetes.io/hostname")

    def test_coordinators_flags_are_real_and_fit_the_ports(self):
        flags = manifests.flags_of(COORDINATOR)
        for folder, template in self.templates(OVERLAYS):
            with self.subTest(folder):
                self.assertEqual(container(template)["command"],
                                 ["muster-coordinator"])
                env = environment(template)
                for name in set(env) - set(FIELDS):
                    self.assertIn(
                        name.replace("MUSTER_COORDINATOR_", "").lower(), flags)
                for flag, port in (("LISTEN", "grpc"), ("HTTP_LISTEN", "http")):
                    number = env["MUSTER_COORDINATOR_" + flag].split(":")[1]
                    self.assertEqual(int(number), port_number(template, port))
                drain = re.search(r"default (\w+)$", flags["drain_timeout"])[1]
                self.assertGreater(
                    template["spec"]["terminationGracePeriodSeconds"],
                    seconds(drain))

    def test_workers_variables_are_real_and_fit_the_job(self):
        flags = manifests.flags_of(MUSTER_RUN)
        sdk = subprocess.run([MUSTERCTL, "help"], check=True, text=True,
                             capture_output=True).stdout
        for folder in EXAMPLES:
            with self.subTest(folder):
                job = job_spec(self.rendered[folder])
                template = job["template"]
                env = environment(template)
                for name in env:
                    option = name.replace("MUSTER_", "").lower()
                    self.assertTrue(option in flags or name in sdk or
                                    name == "MUSTER_HTTP_ADDRESS", name)
                self.assertEqual(int(env["MUSTER_NNODES"]), job["completions"])
                self.assertEqual(job["parallelism"], job["completions"])
                self.assertEqual(job["completionMode"], "Indexed")
                self.assertEqual(
                    env["MUSTER_NODE_RANK"], "metadata.annotations"
                    "['batch.kubernetes.io/job-completion-index']")
                ports = [(p["name"], p["containerPort"])
                         for p in container(template)["ports"]]
                base = int(env["MUSTER_METRICS_PORT_BASE"])
                self.assertEqual(ports, [
                    (f"metrics-{k}", base + k)
                    for k in range(int(env["MUSTER_NPROC_PER_NODE"]))])
                self.assertGreater(
                    template["spec"]["terminationGracePeriodSeconds"],
                    seconds(env["MUSTER_STOP_GRACE"]) + 10)
                self.assertEqual(env["MUSTER_RDZV_ENDPOINT"],
                                 "muster-coordinator:7070")

    def check_spread(self, stateful):
        """Each pod has a host of its own, and zones have as many as others."""
        spec = stateful["spec"]["template"]["spec"]
        labels = stateful["spec"]["template"]["metadata"]["labels"]
        apart = only(spec["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"])
        self.assertEqual(apart["topologyKey"], "kubernetes.io/hostname")
        spread = only(spec["topologySpreadConstraints"])
        self.assertEqual((spread["topologyKey"], spread["maxSkew"]),
                         ("topology.kubernetes.io/zone", 1))
        for selector in (apart["labelSelector"], spread["labelSelector"]):
            self.assertTrue(selects(selector["matchLabels"], labels))

    def check_budget(self, objects, stateful):
        budget = only(of_kind(objects, "PodDisruptionBudget"))["spec"]
        self.assertEqual(budget["maxUnavailable"], 1)
        self.assertTrue(selects(
            budget["selector"]["matchLabels"],
            stateful["spec"]["template"]["metadata"]["labels"]))

    def test_several_coordinators_need_nothing_of_their_own(self):
        objects = self.rendered["overlays/ha"]
        stateful = only(of_kind(objects, "StatefulSet"))
        self.assertEqual(stateful["spec"]["replicas"], 3)
        self.assertNotIn("volumeClaimTemplates", stateful["spec"])
        self.assertEqual(stateful["spec"]["updateStrategy"],
                         {"type": "RollingUpdate"})
        self.check_spread(stateful)
        self.check_budget(objects, stateful)
        env = environment(stateful["spec"]["template"])
        self.assertEqual(env["MUSTER_COORDINATOR_STORAGE"], "etcd")
        self.assertNotIn("MUSTER_COORDINATOR_STORAGE_PATH", env)
        ready = container(stateful["spec"]["template"])["readinessProbe"]
        self.assertEqual(ready["httpGet"]["path"], "/readyz")

    def test_clients_reach_each_of_several_coordinators_by_its_name(self):
        objects = self.rendered["overlays/ha"]
        stateful = only(of_kind(objects, "StatefulSet"))
        names = only(
            c["spec"]["dnsNames"] for c in of_kind(objects, "Certificate")
            if c["spec"]["secretName"] == "muster-coordinator-tls")
        namespace = stateful["metadata"]["namespace"]
        service = stateful["spec"]["serviceName"]
        self.assertIn(f"{service}.{namespace}.svc", names)
        for k in range(stateful["spec"]["replicas"]):
            advertised = environment(stateful["spec"]["template"], {
                "metadata.name": f"muster-coordinator-{k}",
                "metadata.namespace": namespace,
            })["MUSTER_COORDINATOR_ADVERTISE"]
            self.assertEqual(advertised, f"muster-coordinator-{k}.{service}."
                             f"{namespace}.svc:7070")
            self.assertIn("*." + advertised.split(":")[0].split(".", 1)[1],
                          names)

    def test_coordinators_find_the_members_of_etcd_and_may_call_them(self):
        coordinators = self.rendered["overlays/ha"]
        template = only(pod_templates(coordinators))
        etcd = only(of_kind(self.rendered[ETCD], "StatefulSet"))
        service = only(of_kind(self.rendered[ETCD], "Service"))
        members = [f"{etcd['metadata']['name']}-{k}.{service['metadata']['name']}"
                   for k in range(etcd["spec"]["replicas"])]
        self.assertEqual(etcd["spec"]["serviceName"],
                         service["metadata"]["name"])
        env = environment(template)
        self.assertEqual(env["MUSTER_COORDINATOR_ETCD_ENDPOINTS"],
                         ",".join(f"{name}:2379" for name in members))
        certificates = {c["spec"]["secretName"]: c["spec"] for c in
                        of_kind(self.rendered[ETCD], "Certificate")}
        self.assertLessEqual(set(members),
                             set(certificates["muster-etcd-tls"]["dnsNames"]))
        # No worker has a certificate that etcd accepts.
        client = certificates["muster-etcd-client-tls"]
        self.assertEqual(client["issuerRef"]["name"], "muster-etcd-authority")
        self.assertNotIn("muster-etcd-authority", {
            i["metadata"]["name"] for i in of_kind(coordinators, "Issuer")})
        volume = only(v for v in template["spec"]["volumes"]
                      if v["name"] == "etcd")
        self.assertIn(volume["secret"]["secretName"], certificates)

        labels = etcd["spec"]["template"]["metadata"]["labels"]
        allowed, dns = only(
            p["spec"]["egress"] for p in of_kind(coordinators, "NetworkPolicy")
            if p["metadata"]["name"] == "muster-coordinator-etcd")
        self.assertTrue(selects(
            only(allowed["to"])["podSelector"]["matchLabels"], labels))
        self.assertEqual(only(allowed["ports"])["port"], 2379)
        self.assertEqual({p["port"] for p in dns["ports"]}, {53})
        policy = only(of_kind(self.rendered[ETCD], "NetworkPolicy"))["spec"]
        self.assertTrue(selects(policy["podSelector"]["matchLabels"], labels))
        self.assertTrue(selects(
            only(policy["ingress"][0]["from"])["podSelector"]["matchLabels"],
            template["metadata"]["labels"]))

    def test_etcd_is_a_cluster_that_starts_and_does_not_fill(self):
        etcd = only(of_kind(self.rendered[ETCD], "StatefulSet"))
        template = etcd["spec"]["template"]
        self.check_spread(etcd)
        self.check_budget(self.rendered[ETCD], etcd)
        # A member waits for others, which must be started and found.
        self.assertEqual(etcd["spec"]["podManagementPolicy"], "Parallel")
        service = only(of_kind(self.rendered[ETCD], "Service"))["spec"]
        self.assertTrue(service["publishNotReadyAddresses"])
        text = subprocess.run(["etcd", "--help"], check=True, text=True,
                              capture_output=True).stdout
        known = set(re.findall(r"^  --([a-z-]+)", text, re.M))
        cluster = set()
        for k in range(etcd["spec"]["replicas"]):
            env = environment(template, {"metadata.name": f"muster-etcd-{k}"})
            cluster.add(env["ETCD_NAME"] + "=" +
                        env["ETCD_INITIAL_ADVERTISE_PEER_URLS"])
        self.assertEqual(cluster, set(env["ETCD_INITIAL_CLUSTER"].split(",")))
        for name in env:
            self.assertIn(name[len("ETCD_"):].replace("_", "-").lower(), known)
        mount = only(m for m in container(template)["volumeMounts"]
                     if m["name"] == "data")
        self.assertTrue(env["ETCD_DATA_DIR"].startswith(
            mount["mountPath"] + "/"))
        claim = only(etcd["spec"]["volumeClaimTemplates"])
        size = claim["spec"]["resources"]["requests"]["storage"]
        self.assertLess(2 * int(env["ETCD_QUOTA_BACKEND_BYTES"]),
                        int(size.replace("Gi", "")) * 2**30)
        self.assertNotEqual(env["ETCD_AUTO_COMPACTION_RETENTION"], "0")

    def test_gpus_are_as_many_as_ranks(self):
        for folder in ("examples/indexed-job-gpu", "examples/jobset-gpu"):
            template = job_spec(self.rendered[folder])["template"]
            self.assertEqual(
                str(container(template)["resources"]["limits"]["nvidia.com/gpu"]),
                environment(template)["MUSTER_NPROC_PER_NODE"])

    def test_certificates_are_those_that_pods_mount(self):
        tls = self.rendered["overlays/tls"]
        certificates = {c["spec"]["secretName"]: c["spec"]
                        for c in of_kind(tls, "Certificate")}
        issuers = {i["metadata"]["name"] for i in of_kind(tls, "Issuer")}
        for certificate in certificates.values():
            self.assertIn(certificate["issuerRef"]["name"], issuers)

        def secrets(template):
            return {v["secret"]["secretName"]
                    for v in template["spec"].get("volumes", [])
                    if "secret" in v}
        self.assertEqual(secrets(only(pod_templates(tls))),
                         {"muster-coordinator-tls", "muster-tokens"})
        worker = job_spec(self.rendered["examples/indexed-job"])["template"]
        self.assertEqual(secrets(worker), {"muster-client-tls", "muster-token"})
        self.assertLess({"muster-coordinator-tls", "muster-client-tls"},
                        set(certificates))
        host = environment(worker)["MUSTER_RDZV_ENDPOINT"].split(":")[0]
        self.assertIn(host, certificates["muster-coordinator-tls"]["dnsNames"])
        plain = job_spec(
            self.rendered["examples/indexed-job-development"])["template"]
        self.assertFalse(secrets(plain))
        self.assertNotIn("MUSTER_TLS_CA", environment(plain))

    def test_monitors_find_their_ports(self):
        objects = self.rendered[OPERATOR]
        service_monitor = only(of_kind(objects, "ServiceMonitor"))["spec"]
        found = [s for s in of_kind(self.rendered["base"], "Service")
                 if selects(service_monitor["selector"]["matchLabels"],
                            s["metadata"]["labels"])]
        ports = [p["name"] for p in only(found)["spec"]["ports"]]
        self.assertIn(only(service_monitor["endpoints"])["port"], ports)
        pod_monitor = only(of_kind(objects, "PodMonitor"))["spec"]
        watched = [e["port"] for e in pod_monitor["podMetricsEndpoints"]]
        for endpoint in pod_monitor["podMetricsEndpoints"]:
            self.assertEqual(
                [r["targetLabel"] for r in endpoint["relabelings"]],
                ["muster_job", "instance"])
        allowed = only(of_kind(objects, "NetworkPolicy"))["spec"][
            "ingress"][0]["ports"]
        for folder in EXAMPLES:
            template = job_spec(self.rendered[folder])["template"]
            self.assertTrue(selects(pod_monitor["selector"]["matchLabels"],
                                    template["metadata"]["labels"]))
            for port in container(template)["ports"]:
                self.assertIn(port["name"], watched)
                self.assertTrue(any(
                    p["port"] <= port["containerPort"] <= p.get(
                        "endPort", p["port"]) for p in allowed))

    @staticmethod
    def written_rules(*arguments):
        return subprocess.run(
            [os.path.join(manifests.K8S, "write_rules"), *arguments], check=True,
            capture_output=True, text=True).stdout

    def test_alerts_link_to_where_the_runbook_is_read(self):
        path, at = "runbook_url: deploy/", "https://git.example.com/muster/"
        written = self.written_rules(at)
        self.assertEqual(written.replace(at, ""), self.written_rules())
        self.assertNotIn(path, written)
        self.assertIn(f"runbook_url: {at}deploy/ALERTS.md#muster", written)

    def test_rules_are_those_of_prometheus(self):
        written = self.written_rules()
        path = os.path.join(manifests.K8S,
                            "overlays/prometheus-operator/rules.yaml")
        with open(path, encoding="utf-8") as there:
            self.assertEqual(there.read(), written,
                             f"deploy/k8s/write_rules >{path}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
