"""scripts/galvani.sbatch under a Slurm of this test's own: a controller and two nodes, all on this host. Each node has name and mounts
of its own, so that they pass for two hosts."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import h5py
import pytest

from conftest import GALVANI, ROOT, environment, galvani
from jobs import is_running, tokens_in

DEVICE = 5
CONFIG = """
ClusterName=galvani-test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 State=UNKNOWN
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Slurm:
    """The daemons, and the commands that talk to them."""

    def __init__(self, directory):
        self.directory = directory
        self.daemons = []
        loopback = {"OMPI_MCA_btl_tcp_if_include": "lo"}
        self.environment = environment(SLURM_CONF=str(directory / "slurm.conf"), **loopback)

    def start(self):
        directory = self.directory
        for name in ("state", "tmp", "tmp-node1", "tmp-node2"):
            (directory / name).mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        text = CONFIG.format(host=socket.gethostname(), directory=directory, ports=free_ports(3))
        (directory / "slurm.conf").write_text(text)
        (directory / "mpi.conf").write_text(f"PMIxCliTmpDirBase={directory}/tmp\n")
        munge = [f"--{name}={directory}/munge.{end}" for name, end in (("socket", "socket"), ("key-file", "key"), ("log-file", "log"),
                                                                       ("pid-file", "pid"), ("seed-file", "seed"))]  # fmt: skip
        self.daemon("munged", "--force", "--foreground", *munge)
        self.daemon("slurmctld", "-D")
        for node in ("node1", "node2"):
            own = f"mount --bind {directory}/tmp-{node} {directory}/tmp && hostname {node} && exec slurmd -D -N {node}"
            self.daemon("unshare", "--mount", "--uts", "sh", "-c", own)
        end = time.monotonic() + 30
        while self.command("sinfo", "-h", "-o", "%T %D", check=False) != "idle 2":
            if time.monotonic() > end:
                logs = "".join(path.read_text("utf-8", "replace")[-2000:] for path in directory.glob("*.log"))
                pytest.skip(f"Slurm's daemons do not get ready here: {logs}")
            time.sleep(0.2)

    def daemon(self, *words):
        with open(self.directory / f"{words[0]}.out", "ab") as out:
            self.daemons.append(subprocess.Popen(words, stdout=out, stderr=out, env=self.environment, start_new_session=True))

    def command(self, *words, check=True):
        done = subprocess.run(words, capture_output=True, env=self.environment, cwd=ROOT, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def stop(self):
        self.command("scancel", "--user=root", check=False)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()

    def submit(self, log, *words, **variables):
        """Submits scripts/galvani.sbatch; returns the job's number. `variables` are given to the script."""
        export = ",".join(["--export=ALL", *(f"{name}={value}" for name, value in variables.items())])
        return self.command("sbatch", "--parsable", f"--output={log}", export, *[str(word) for word in words])

    def job(self, number):
        """What the controller knows of a job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.command("scontrol", "show", "job", number)))

    def wait(self, number, *states, seconds=60):
        end = time.monotonic() + seconds
        while self.job(number)["JobState"] not in states:
            assert time.monotonic() < end, self.job(number)
            time.sleep(0.1)
        return self.job(number)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    needed = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
    missing = [name for name in needed if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found; bash scripts/deps.sh --slurm installs Slurm")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons need root")
    instance = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        instance.start()
        yield instance
    finally:
        instance.stop()


SCRIPT = ROOT / "scripts" / "galvani.sbatch"


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_bundled_model_on_four_ranks(slurm, tmp_path, launcher):
    """As a user's first job: no arguments, and a run file in the directory that it was submitted from."""
    log = tmp_path / "log"
    number = slurm.submit(log, SCRIPT, LAUNCHER=launcher)
    out = ROOT / f"galvani-{number}.h5"
    try:
        job = slurm.wait(number, "COMPLETED", "FAILED")
        assert job["JobState"] == "COMPLETED", log.read_text()
        assert "6 times 7 is 42" in log.read_text()
        with h5py.File(out, "r") as file:
            attributes = dict(file.attrs)
        assert attributes["tp_size"] == 4 and attributes["complete"] == 1
        assert attributes["slurm_job_id"] == number and attributes["slurm_nodelist"] == "node1"
        assert attributes["slurm_ntasks"] == "4" and attributes["rank_hosts"] == ",".join(["node1"] * 4)
        report = galvani(0, "trace", "report", out)
        assert report.status == 0 and "rank 3" in report.stdout, report.stderr
    finally:
        out.unlink(missing_ok=True)


def test_two_nodes(slurm, nano_shards, tmp_path):
    out, alone = tmp_path / "run.h5", tmp_path / "alone.h5"
    words = ("--model", nano_shards(4), "--prompt", "Once upon a time", "--max-new", 16, "--ignore-eos", "--out")
    number = slurm.submit(tmp_path / "log", "--nodes=2", "--ntasks-per-node=2", SCRIPT, *words, out)
    job = slurm.wait(number, "COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert galvani(4, "run", *words, alone).status == 0
    with h5py.File(out, "r") as file:
        assert file.attrs["rank_hosts"] == "node1,node1,node2,node2" and file.attrs["slurm_nnodes"] == "2"
    assert tokens_in(out) == tokens_in(alone)


def write_requests(path, n, max_new):
    lines = [{"id": f"r{i}", "tokens": [5, 6, 7 + i], "max_new": max_new, "ignore_eos": True} for i in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_array_shares_the_requests(slurm, nano_shards, tmp_path):
    requests, out = write_requests(tmp_path / "requests.jsonl", 5, 4), tmp_path / "out"
    words = ("--model", nano_shards(2), "--requests", requests, "--out", out)
    number = slurm.submit(tmp_path / "log-%a", "--array=0-2", "--ntasks-per-node=2", SCRIPT, *words)
    for task in range(3):
        assert slurm.wait(f"{number}_{task}", "COMPLETED", "FAILED")["JobState"] == "COMPLETED"
    tasks = {}
    for i in range(5):
        with h5py.File(out / f"r{i}.h5", "r") as file:
            assert file.attrs["slurm_array_job_id"] == number
            tasks[i] = file.attrs["slurm_array_task_id"]
    assert tasks == {0: "0", 1: "1", 2: "2", 3: "0", 4: "1"}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_time_limit_and_requeue(slurm, nano_shards, tmp_path, launcher):
    """The signal before the time limit ends the request at work with a whole file; the job comes back and does the rest."""
    requests, out = write_requests(tmp_path / "requests.jsonl", 3, 300), tmp_path / "out"
    words = ("--model", nano_shards(2), "--requests", requests, "--out", out)
    number = slurm.submit(tmp_path / "log", "--ntasks-per-node=2", SCRIPT, *words, LAUNCHER=launcher)
    slurm.wait(number, "RUNNING")
    end = time.monotonic() + 30
    while len(tokens_in(out / "r0.h5")) < 5:
        assert time.monotonic() < end, (tmp_path / "log").read_text()
        time.sleep(0.02)
    slurm.command("scancel", "--batch", "--signal=TERM", number)
    slurm.wait(number, "PENDING")
    done = sorted(path.name for path in out.glob("r*.h5"))
    assert len(done) < 3
    with h5py.File(out / done[-1], "r") as file:
        assert file.attrs["complete"] == 1 and file.attrs["stop_reason"] == "signal"
    # Slurm would wait two minutes before it starts the job again; a node refuses it in the second in which it ended.
    time.sleep(2)
    slurm.command("scontrol", "update", f"JobId={number}", "StartTime=now")
    job = slurm.wait(number, "COMPLETED", "FAILED")
    assert job["JobState"] == "COMPLETED", (job, (tmp_path / "log").read_text())
    for i in range(3):
        assert len(tokens_in(out / f"r{i}.h5")) == 300
    with h5py.File(out / "r2.h5", "r") as file:
        assert file.attrs["slurm_restart_count"] == "1"


def ranks_of(number):
    """Process ids of a job's ranks, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            variables = dict(item.split(b"=", 1) for item in (entry / "environ").read_bytes().split(b"\0") if b"=" in item)
            if (entry / "comm").read_text() == "galvani\n" and variables.get(b"SLURM_JOB_ID") == number.encode():
                found[int(variables[b"SLURM_PROCID"])] = int(entry.name)
        except (OSError, KeyError):
            continue
    return found


def test_a_killed_rank_ends_the_job(slurm, nano_shards, tmp_path):
    out = tmp_path / "run.h5"
    words = ("--model", nano_shards(4), "--tokens", "1,2,3", "--max-new", 4000, "--ignore-eos", "--out", out)
    number = slurm.submit(tmp_path / "log", SCRIPT, *words)
    end = time.monotonic() + 30
    while len(tokens_in(out)) < 5:
        assert time.monotonic() < end, (tmp_path / "log").read_text()
        time.sleep(0.02)
    seen, ranks = tokens_in(out), ranks_of(number)
    assert sorted(ranks) == [0, 1, 2, 3]
    start = time.monotonic()
    os.kill(ranks[2], signal.SIGKILL)
    while any(is_running(pid) for pid in ranks.values()):
        assert time.monotonic() - start < 10
        time.sleep(0.05)
    job = slurm.wait(number, "FAILED")
    assert job["ExitCode"] == f"{DEVICE}:0"
    messages = [line for line in (tmp_path / "log").read_text().splitlines() if "galvani: error:" in line]
    assert len(messages) == 1 and "rank 2 on node1 was killed by signal 9" in messages[0]
    assert tokens_in(out)[: len(seen)] == seen


def test_one_message_for_all_tasks(slurm):
    done = subprocess.run(["srun", "--mpi=pmix", "-n", "3", str(GALVANI), "fly"], capture_output=True, env=slurm.environment, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().count("galvani: error:") == 1
