"""Fixtures of the system tests: they drive build/galvani as a user does and read what it leaves with h5py and numpy."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GALVANI = ROOT / "build" / "galvani"
NANO = ROOT / "tests" / "models" / "nano"
GOLDEN = ROOT / "tests" / "golden"


@dataclass
class Outcome:
    """What a finished command left: exit status, both streams, wall time in seconds."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    def messages(self):
        """The error messages among the lines of stderr."""
        return [line for line in self.stderr.splitlines() if "galvani: error:" in line]


def command(ranks, *words):
    """The command line that starts galvani on `ranks` ranks; 0 starts it without mpirun."""
    launcher = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
    return launcher + [str(GALVANI)] + [str(word) for word in words]


def environment(**extra):
    """The environment for it; Open MPI must be told that root may run it."""
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **extra}


def galvani(ranks, *words, stdin=None, timeout=120, address_space=None, **extra):
    """Runs galvani to its end. `stdin` is bytes, `address_space` a limit in bytes; `extra` are environment variables."""
    limits = ["prlimit", f"--as={address_space}"] if address_space else []
    start = time.monotonic()
    done = subprocess.run(
        limits + command(ranks, *words),
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env=environment(**extra),
        check=False,
    )
    seconds = time.monotonic() - start
    return Outcome(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"), seconds)


def shard(checkpoint, out, tp, *more):
    """Converts a checkpoint and insists that it works."""
    done = galvani(0, "shard", "--checkpoint", checkpoint, "--out", out, "--tp", tp, "--quiet", *more)
    assert done.status == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def nano_shards(tmp_path_factory):
    """A function from T to a directory of nano's shards for T ranks, converted once a session."""
    made = {}

    def get(tp):
        if tp not in made:
            made[tp] = shard(NANO, tmp_path_factory.mktemp(f"nano{tp}"), tp)
        return made[tp]

    return get


@pytest.fixture(scope="session")
def golden_shards(tmp_path_factory):
    """A function from a golden case's name and T to a directory of its shards."""
    made = {}

    def get(case, tp):
        if (case, tp) not in made:
            made[case, tp] = shard(GOLDEN / case / "checkpoint", tmp_path_factory.mktemp(f"{case}{tp}"), tp)
        return made[case, tp]

    return get


@pytest.fixture(scope="session")
def quality_gate():
    """nano's gate: prompts with the oracle's greedy answers."""
    return json.loads((NANO / "quality_gate.json").read_text())
