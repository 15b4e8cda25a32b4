"""Runs scripts/install_dependencies.sh among stand-ins for apt-get, dpkg-query, sudo and id that log what they are asked.

usage: install_dependencies_test.py; the environment variable FUSEGRAD_SOURCE_DIR names the source tree.
"""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(os.environ["FUSEGRAD_SOURCE_DIR"]) / "scripts/install_dependencies.sh"


class InstallDependenciesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = Path(folder.name)
        self.log = self.bin / "log"
        self.log.touch()
        for tool in ["bash", "env"]:
            (self.bin / tool).symlink_to(shutil.which(tool))

    def stand_in(self, name, body):
        """A command that logs its call and then runs `body`."""
        tool = self.bin / name
        tool.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "{self.log}"\n{body}\n', encoding="utf-8")
        tool.chmod(0o755)

    def debian(self, missing=(), root=True, sudo=False):
        """A Debian system on which the packages `missing` are not installed."""
        cases = "".join(f'*" {package}") exit 1 ;; ' for package in missing)
        self.stand_in("dpkg-query", f'case " $*" in {cases}*) printf installed ;; esac')
        self.stand_in("apt-get", "")
        self.stand_in("id", f"echo {0 if root else 1000}")
        if sudo:
            self.stand_in("sudo", '"$@"')

    def run_script(self, *arguments):
        done = subprocess.run([self.bin / "bash", SCRIPT, *arguments], env={"PATH": str(self.bin)},
                              capture_output=True, text=True, check=False)
        calls = [line for line in self.log.read_text(encoding="utf-8").splitlines() if not line.startswith(("dpkg", "id "))]
        return done, calls

    def test_calls_nothing_where_all_is_installed(self):
        self.debian(root=False)
        for what in ["build", "test", "check"]:
            done, calls = self.run_script(what)
            self.assertEqual((done.returncode, done.stdout, done.stderr, calls), (0, "", "", []))

    def test_installs_what_is_missing_and_nothing_else(self):
        self.debian(missing=["libeigen3-dev", "libgmock-dev"])
        done, calls = self.run_script("test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls, ["apt-get -qq update",
                                 "apt-get -qq install --yes --no-install-recommends libeigen3-dev libgmock-dev"])

    def test_a_build_needs_no_test_library(self):
        self.debian(missing=["libgmock-dev", "libdnnl-dev", "clang-tidy"])
        done, calls = self.run_script("build")
        self.assertEqual((done.returncode, calls), (0, []))

    def test_uses_sudo_for_other_users(self):
        self.debian(missing=["cmake"], root=False, sudo=True)
        done, calls = self.run_script("build")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call for call in calls if call.startswith("sudo")],
                         ["sudo apt-get -qq update",
                          "sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends cmake"])

    def test_says_what_to_do_without_root_and_sudo(self):
        self.debian(missing=["cmake", "zlib1g-dev"], root=False)
        done, calls = self.run_script("build")
        self.assertEqual((done.returncode, calls), (1, []))
        self.assertIn("apt-get install --no-install-recommends cmake zlib1g-dev", done.stderr)

    def test_fails_if_apt_fails(self):
        self.debian(missing=["cmake"])
        self.stand_in("apt-get", "exit 100")
        done, _ = self.run_script("build")
        self.assertNotEqual(done.returncode, 0)

    def test_names_the_packages_on_other_systems(self):
        done, calls = self.run_script("build")
        self.assertEqual((done.returncode, calls), (0, []))
        self.assertIn("libeigen3-dev", done.stderr)

    def test_refuses_an_unknown_purpose(self):
        self.debian()
        for arguments in [[], ["all"]]:
            done, calls = self.run_script(*arguments)
            self.assertEqual((done.returncode, calls), (2, []))
            self.assertIn("usage", done.stderr)


if __name__ == "__main__":
    unittest.main()
