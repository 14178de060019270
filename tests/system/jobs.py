"""A galvani that runs in the background, for tests that do something to it."""

import os
import re
import subprocess
import time
import uuid
from pathlib import Path

import h5py

from conftest import Outcome, environment


def name_of(pid):
    return Path(f"/proc/{pid}/comm").read_text().strip()


def state_and_parent(pid):
    state, parent = re.search(r"\) (\S) (\d+)", Path(f"/proc/{pid}/stat").read_text()).groups()
    return state, int(parent)


def is_running(pid):
    try:
        return state_and_parent(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Job:
    """Starts a command line; its streams go to files in `directory`."""

    def __init__(self, directory, line):
        self.stdout, self.stderr = directory / "stdout", directory / "stderr"
        with open(self.stdout, "wb") as out, open(self.stderr, "wb") as err:
            self.mark = f"GALVANI_TEST_JOB={uuid.uuid4()}"
            marked = environment(**dict([self.mark.split("=")]))
            self.process = subprocess.Popen(line, stdout=out, stderr=err, env=marked)
        self.fault_at = time.monotonic()

    def wait_for(self, probe, seconds=60):
        """The first truthy value of probe() while the job runs."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            value = probe()
            if value:
                return value
            time.sleep(0.002)
        raise TimeoutError(f"what the test waits for did not come: {self.stderr.read_text()}")

    def rank(self, rank, watcher=False):
        """Process id of a rank that mpirun started, or of the process that watches it."""
        wanted = {self.mark.encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode()}

        def find():
            for entry in Path("/proc").iterdir():
                try:
                    pid = int(entry.name)
                    if not wanted.issubset((entry / "environ").read_bytes().split(b"\0")):
                        continue
                    if name_of(pid if watcher else state_and_parent(pid)[1]) == "galvani-watch":
                        return pid
                except (ValueError, OSError):
                    continue
            return None

        return self.wait_for(find)

    def send(self, pid, number):
        """Sends the signal that is the fault."""
        self.fault_at = time.monotonic()
        os.kill(pid, number)

    def end(self, timeout=60):
        """What it left; `seconds` count from the fault."""
        status = self.process.wait(timeout)
        seconds = time.monotonic() - self.fault_at
        return Outcome(status, self.stdout.read_text("utf-8", "replace"), self.stderr.read_text("utf-8", "replace"), seconds)

    def stop(self):
        self.process.kill()
        self.process.wait()


def tokens_in(path):
    """The generated tokens of a run file as a reader sees them, whoever may be writing."""
    try:
        with h5py.File(path, "r", libver="latest", swmr=True) as file:
            return list(file["/tokens/generated"][:])
    except OSError:
        return []
