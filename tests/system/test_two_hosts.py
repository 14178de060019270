"""Ranks on two hosts: two network namespaces with a cable between them, each with a host name of its own. Open MPI starts its daemon on
the second through a script in place of ssh. Nothing outside the two namespaces is reached."""

import os
import shutil
import signal
import subprocess

import h5py
import numpy as np
import pytest

from conftest import GALVANI, galvani
from jobs import Job, tokens_in

DEVICE = 5
CLOCK_S = 5000
NEAR, FAR = "10.213.0.1", "10.213.0.2"


class Hosts:
    """Two namespaces, named after this process."""

    def __init__(self, directory):
        self.near, self.far = f"galvani-{os.getpid()}-a", f"galvani-{os.getpid()}-b"
        self.agent = directory / "agent"
        # Like another machine's, the second host's clock counts from another beginning.
        clock = ["--time", "--monotonic", str(CLOCK_S), "--fork"]
        has_clock = subprocess.run(["unshare", *clock, "true"], capture_output=True, check=False).returncode == 0
        self.clock_s = CLOCK_S if has_clock else 0
        own = ["unshare", "--uts", *(clock if has_clock else [])]
        # As ssh is called: the host, then a command line for its shell.
        self.agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {self.far} {" ".join(own)} sh -c "hostname host-b; $*"\n')
        self.agent.chmod(0o755)

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def make(self):
        for name in (self.near, self.far):
            self.ip("netns", "add", name)
        self.ip("link", "add", "cable", "netns", self.near, "type", "veth", "peer", "name", "cable", "netns", self.far)
        for name, address in ((self.near, NEAR), (self.far, FAR)):
            self.ip("-n", name, "addr", "add", f"{address}/30", "dev", "cable")
            for device in ("lo", "cable"):
                self.ip("-n", name, "link", "set", device, "up")

    def remove(self):
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def cut(self):
        self.ip("-n", self.near, "link", "set", "cable", "down")

    def sent_bytes(self):
        words = ["ip", "netns", "exec", self.near, "cat", "/sys/class/net/cable/statistics/tx_bytes"]
        return int(subprocess.run(words, capture_output=True, check=True).stdout)

    def start(self, directory, ranks, *words, mpirun=()):
        """galvani on `ranks` ranks, half of them on each host."""
        shell = ["ip", "netns", "exec", self.near, "unshare", "--uts", "sh", "-c", 'hostname host-a; exec "$@"', "sh"]
        launch = ["mpirun", "-q", "--bind-to", "none", "-np", str(ranks), "--host", f"{NEAR}:{ranks // 2},{FAR}:{ranks // 2}"]
        launch += ["--mca", "plm_rsh_agent", str(self.agent), *mpirun]
        return Job(directory, [*shell, *launch, str(GALVANI), *[str(word) for word in words]])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("ip (iproute2) or unshare not found")
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"no network namespaces can be made here: {error.stderr.decode().strip()}")
    yield made
    made.remove()


@pytest.mark.parametrize("ranks, case", [(4, None), (8, "tp8")])
def test_two_hosts_compute_what_one_does(hosts, nano_shards, golden_shards, tmp_path, ranks, case):
    """The same bits: sums are added in rank order wherever the ranks are."""
    model = golden_shards(case, ranks) if case else nano_shards(ranks)
    outs = [tmp_path / "two.h5", tmp_path / "one.h5"]
    words = ("run", "--model", model, "--tokens", "5,6,7,8", "--max-new", 16, "--ignore-eos", "--logits", "--trace", "ops", "--out")
    before = hosts.sent_bytes()
    done = hosts.start(tmp_path, ranks, *words, outs[0]).end()
    assert done.status == 0, done.stderr
    assert hosts.sent_bytes() - before > 100000
    assert galvani(ranks, *words, outs[1]).status == 0
    with h5py.File(outs[0], "r") as two, h5py.File(outs[1], "r") as one:
        half = ranks // 2
        assert two.attrs["rank_hosts"] == ",".join(["host-a"] * half + ["host-b"] * half)
        assert np.array_equal(two["/tokens/generated"][:], one["/tokens/generated"][:])
        assert np.array_equal(two["/sampling/logits"][:], one["/sampling/logits"][:])
        check_clocks(two, ranks, hosts.clock_s)


def check_clocks(run, ranks, clock_s):
    """All ranks' operators lie in their steps on one clock, but for ranks that the machine lets wait for a core."""
    for when in ("start", "end"):
        clocks = run["/clocks"][when][:]
        assert len(clocks) == ranks and (clocks["round_trip_ns"][1:] > 0).all() and (clocks["round_trip_ns"] < 1e8).all()
        assert (clocks["offset_ns"][: ranks // 2] == 0).all()
        assert np.allclose(clocks["offset_ns"][ranks // 2 :], clock_s * 1e9, atol=1e8)
    ops, start, wall = run["/ops"][:], run["/steps/start_ns"][:], run["/steps/wall_ns"][:]
    for rank in range(ranks):
        mine = ops[ops["rank"] == rank]
        begins, ends = start[mine["step"]] - 1e6, (start + wall)[mine["step"]] + 1e6
        assert np.mean((mine["start_ns"] >= begins) & (mine["start_ns"] + mine["dur_ns"] <= ends)) > 0.9


def start_long_run(hosts, model, directory, **more):
    out = directory / "run.h5"
    words = ("run", "--model", model, "--tokens", "5,6,7", "--max-new", 4000, "--ignore-eos", "--out", out)
    job = hosts.start(directory, 4, *words, **more)

    def seen():
        tokens = tokens_in(out)
        return tokens if len(tokens) >= 8 else None

    return job, out, job.wait_for(seen)


def test_rank_killed_on_the_other_host(hosts, nano_shards, tmp_path):
    job, out, seen = start_long_run(hosts, nano_shards(4), tmp_path)
    job.send(job.rank(3), signal.SIGKILL)
    done = job.end()
    assert done.status == DEVICE, done.stderr
    assert len(done.messages()) == 1 and "rank 3 on host-b was killed by signal 9" in done.messages()[0], done.stderr
    assert done.seconds < 6  # mpirun takes its two seconds on each host
    assert tokens_in(out)[: len(seen)] == seen


def test_cable_cut(hosts, nano_shards, tmp_path):
    """Open MPI finds out by its own keep-alives, whose times docs/cluster.md shortens in this way; its status is its own."""
    keep_alive = ["--mca", "oob_tcp_keepalive_time", "5", "--mca", "oob_tcp_keepalive_intvl", "2", "--mca", "oob_tcp_keepalive_probes", "3"]
    job, out, seen = start_long_run(hosts, nano_shards(4), tmp_path, mpirun=keep_alive)
    hosts.cut()
    done = job.end()
    assert done.status != 0
    assert tokens_in(out)[: len(seen)] == seen
