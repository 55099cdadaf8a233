#!/usr/bin/python3
"""Builds and runs the image: the shell blocks without a registry in "The image"
of deploy/README.md run unchanged; then the image runs with a read-only root
file system.

    apt-get install buildah debootstrap
    bazel run --config=opt //tests/deploy:image_test

Run it as root, with access to the distribution's packages and port 7070 free.
Takes three minutes, and as long as ./dev package takes. The images stay.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# Simulates a container that is started with --read-only and a tmpfs on /tmp, as
# in deploy/k8s. Arguments: its root, its volume, a program.
READ_ONLY = r"""
root=$1 volume=$2; shift 2
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$volume" "$root/var/lib/muster"
exec chroot --userspec=10001:10001 "$root" "$@"
"""
# Uses any free port, which the coordinator's output names.
SERVES_A_JOB = r"""
touch /written 2>/dev/null && { echo "the root can be written to"; exit 1; }
muster-coordinator --listen=127.0.0.1:0 --http_listen= --storage=rocksdb \
    --storage_path=/var/lib/muster/db 2>/tmp/log &
until address=$(sed -n "s/.* grpc=\([^ ]*\).*/\1/p" /tmp/log | tail -n 1)
    [ -n "$address" ]; do kill -0 $! || { cat /tmp/log; exit 1; }; done
muster-run --rdzv-endpoint=$address --rdzv-id=try --nproc-per-node=2 -- \
    muster-bench all_reduce --maxbytes=64K || exit 1
kill $!
wait $!
"""


def blocks(readme):
    """The section's blocks for building without a registry."""
    with open(readme, encoding="utf-8") as file:
        section = file.read().split("\n## The image\n")[1].split("\n## ")[0]
    section = section.split("**Without a registry for the base**")[1]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)


class ImageTest(unittest.TestCase):

    def sh(self, script, *arguments, **more):
        done = subprocess.run(["bash", "-e", "-c", script, "image_test",
                               *arguments], stdout=subprocess.PIPE, text=True,
                              check=False, **more)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_it_is_built_and_runs_without_rights(self):
        for program in ("buildah", "debootstrap"):
            self.assertTrue(shutil.which(program), f"there is no {program}")
        top = os.environ["BUILD_WORKSPACE_DIRECTORY"]
        base, build, attempt = blocks(f"{top}/deploy/README.md")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        out = self.sh(
            f"cd {folder.name}\n{base}\ncd {top}\n{build}\n{attempt}\n"
            "kill %1; wait %1 || true\n"
            "echo user $(buildah run $container -- id -u)\n"
            "echo size $(buildah images --format '{{.Size}}'"
            " localhost/muster)\n"
            "buildah inspect --type image localhost/muster |"
            " grep -o 'org.opencontainers.image.revision\": \"[0-9a-f]*'\n"
            "echo container $container\n"
            "echo root $(buildah mount $container)\n")
        said = dict(re.findall(r"^(user|size|container|root) (.*)$", out, re.M))
        self.addCleanup(subprocess.run, ["buildah", "rm", said["container"]],
                        check=True)
        self.assertIn("# all results are right", out)
        self.assertEqual(said["user"], "10001")
        self.assertRegex(out, 'image.revision": "[0-9a-f]{40}')
        megabytes = re.fullmatch(r"(\d+) MB", said["size"])
        self.assertTrue(megabytes and int(megabytes.group(1)) < 200,
                        said["size"])
        volume = f"{folder.name}/volume"
        os.mkdir(volume)
        os.chown(volume, 10001, 10001)
        out = self.sh('exec unshare --mount bash -e -c "$@"', READ_ONLY, "-",
                      said["root"], volume, "bash", "-c", SERVES_A_JOB)
        self.assertIn("# all results are right", out)


if __name__ == "__main__":
    if "BUILD_WORKSPACE_DIRECTORY" not in os.environ:
        sys.exit("bazel run //tests/deploy:image_test; bazel test hides the "
                 "clone that the image is built from")
    unittest.main(verbosity=2)
