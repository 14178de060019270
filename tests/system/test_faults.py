"""Faults injected into running jobs: ranks that are killed or stopped, signals, full disks, read errors. All ranks end within seconds,
with one message and the documented status, and the run file opens and holds every step that a reader had seen."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import pytest

from conftest import GALVANI, NANO, command, galvani
from jobs import Job, is_running, tokens_in

USAGE, INPUT, MEMORY, DEVICE, INTERRUPTED = 2, 3, 4, 5, 130
END_S = 5  # from the fault to the end of mpirun, which takes two seconds for itself
RANKS = 4


@pytest.fixture
def start_run(nano_shards, tmp_path):
    """A function that starts a long run of nano; the prompt is `n_prompt` ids. Returns the job and the path of its run file."""
    jobs = []

    def start(*more, ranks=RANKS, n_prompt=4, max_new=4000):
        prompt, out = tmp_path / "prompt.txt", tmp_path / "run.h5"
        prompt.write_text(" ".join(str(10 + i % 900) for i in range(n_prompt)))
        words = ("--tokens-file", prompt, "--max-new", max_new, "--ignore-eos", "--out", out, *more)
        jobs.append(Job(tmp_path, command(ranks, "run", "--model", nano_shards(ranks or 1), *words)))
        return jobs[-1], out

    yield start
    for job in jobs:
        job.stop()


def loading(job, rank):
    """Process id of the rank once it has its shard open."""
    pid = job.rank(rank)

    def has_shard():
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if f"model.rank{rank}of" in os.readlink(link):
                    return pid
            except FileNotFoundError:
                continue
        return None

    return job.wait_for(has_shard)


def decoding(job, out):
    """The tokens of a run that has begun to decode, as flushed so far."""

    def seen():
        tokens = tokens_in(out)
        return tokens if len(tokens) >= 8 else None

    return job.wait_for(seen)


def start_prefill(start_run):
    """A run that is in a long prefill."""
    job, out = start_run("--prefill-chunk", 4, n_prompt=4000, max_new=50)
    job.wait_for(out.exists)
    time.sleep(0.2)
    return job, out


def check_end(done, status, *fragments, seconds=END_S):
    assert done.status == status, f"status {done.status}: {done.stderr}"
    assert len(done.messages()) == 1, done.stderr
    for fragment in fragments:
        assert fragment in done.messages()[0], done.messages()[0]
    assert done.seconds < seconds


def check_file(out, seen):
    """Opens for any reader and holds what was seen before the fault."""
    kept = tokens_in(out)
    assert kept[: len(seen)] == seen
    with h5py.File(out, "r", libver="latest", swmr=True) as file:
        assert file.attrs["format"] == "galvani-run"
        for name in ("start_ns", "wall_ns", "device_ns"):
            assert len(file["/steps"][name]) >= len(kept)
    assert galvani(0, "inspect", out).status == 0


def check_stopped_by_signal(out):
    with h5py.File(out, "r") as file:
        assert file.attrs["complete"] == 1 and file.attrs["stop_reason"] == "signal"


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_killed_while_loading(start_run, rank):
    job, _ = start_run()
    job.send(loading(job, rank), signal.SIGKILL)
    check_end(job.end(), DEVICE, f"rank {rank} ", "killed by signal 9")


@pytest.mark.parametrize("rank", [0, 3])
def test_rank_killed_in_prefill(start_run, rank):
    job, out = start_prefill(start_run)
    job.send(job.rank(rank), signal.SIGKILL)
    check_end(job.end(), DEVICE, f"rank {rank} ", "killed by signal 9")
    assert tokens_in(out) == []
    check_file(out, [])


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_killed_in_decode(start_run, rank):
    job, out = start_run()
    seen = decoding(job, out)
    job.send(job.rank(rank), signal.SIGKILL)
    check_end(job.end(), DEVICE, f"rank {rank} ", "killed by signal 9")
    check_file(out, seen)


def test_watcher_killed(start_run):
    """Then nobody is left to give mpirun a better status than the signal's."""
    job, out = start_run()
    seen = decoding(job, out)
    job.send(job.rank(1, watcher=True), signal.SIGKILL)
    done = job.end()
    assert done.status == 128 + signal.SIGKILL and done.seconds < END_S
    check_file(out, seen)


@pytest.mark.parametrize("is_watcher", [False, True])
def test_stalled_rank(start_run, is_watcher):
    limit = 2
    job, out = start_run("--stall-limit", limit)
    seen = decoding(job, out)
    job.send(job.rank(2, watcher=is_watcher), signal.SIGSTOP)
    done = job.end()
    check_end(done, DEVICE, "rank 2", "stopped for 2 s", seconds=limit + 1 + END_S)
    assert done.seconds >= limit
    check_file(out, seen)


def test_a_pause_within_the_limit_is_no_stall(start_run):
    job, out = start_run("--stall-limit", 10, max_new=40)
    decoding(job, out)
    pid = job.rank(2)
    job.send(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    assert job.end().status == 0
    assert len(tokens_in(out)) == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_watcher", [False, True])
def test_signal_to_rank_0(start_run, number, is_watcher):
    job, out = start_run()
    seen = decoding(job, out)
    job.send(job.rank(0, watcher=is_watcher), number)
    check_end(job.end(), INTERRUPTED, f"signal {number.value}", "tokens")
    check_file(out, seen)
    check_stopped_by_signal(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_mpirun(start_run, number):
    """mpirun passes on SIGTERM, ends with a status of its own, and may drop what the ranks say last; the run file is whole."""
    job, out = start_run()
    seen = decoding(job, out)
    job.send(job.process.pid, number)
    done = job.end()
    assert done.status != 0 and done.seconds < END_S
    assert len(done.messages()) <= 1 and "signal" in done.stderr
    check_file(out, seen)
    check_stopped_by_signal(out)


def test_usr1_to_mpirun(start_run):
    """This one mpirun passes on and otherwise leaves alone."""
    job, out = start_run()
    seen = decoding(job, out)
    job.send(job.process.pid, signal.SIGUSR1)
    check_end(job.end(), INTERRUPTED, f"signal {signal.SIGUSR1.value}", "tokens")
    check_file(out, seen)
    check_stopped_by_signal(out)


def test_signal_while_loading(start_run):
    job, _ = start_run()
    job.send(loading(job, 1), signal.SIGTERM)
    check_end(job.end(), INTERRUPTED, "signal 15")


def test_signal_in_prefill(start_run):
    job, out = start_prefill(start_run)
    job.send(job.rank(0), signal.SIGTERM)
    check_end(job.end(), INTERRUPTED, "signal 15")
    check_file(out, [])
    check_stopped_by_signal(out)


def test_a_rerun_redoes_the_request_that_a_signal_cut(nano_shards, tmp_path):
    requests, out = tmp_path / "r.jsonl", tmp_path / "out"
    lengths = {"a": 20, "b": 400, "c": 20}
    lines = [{"id": name, "tokens": [5, 6, 7], "max_new": n, "ignore_eos": True} for name, n in lengths.items()]
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = command(2, "run", "--model", nano_shards(2), "--requests", requests, "--out", out)
    job = Job(tmp_path, line)
    decoding(job, out / "b.h5")
    job.send(job.rank(0), signal.SIGTERM)
    check_end(job.end(), INTERRUPTED, "signal 15")
    check_stopped_by_signal(out / "b.h5")
    assert not (out / "c.h5").exists()
    first = (out / "a.h5").stat().st_mtime_ns
    assert Job(tmp_path, line).end().status == 0
    assert (out / "a.h5").stat().st_mtime_ns == first
    for name, n in lengths.items():
        assert len(tokens_in(out / f"{name}.h5")) == n


@pytest.mark.parametrize("ranks", [0, 2])
def test_signal_while_sharding(tmp_path, ranks):
    """What was written stays, and the next run goes on with it."""
    out = tmp_path / "out"
    line = command(ranks, "shard", "--checkpoint", NANO, "--out", out, "--tp", 2, "--quiet")
    for _ in range(5):  # a conversion of nano takes a fraction of a second, and may end before the signal comes
        shutil.rmtree(out, ignore_errors=True)
        job = Job(tmp_path, line)
        job.wait_for(lambda: list(out.glob("*.partial")))
        job.send(job.rank(0) if ranks else job.process.pid, signal.SIGTERM)
        done = job.end()
        if done.status != 0:
            break
    check_end(done, INTERRUPTED, "signal 15")
    assert list(out.glob("*.partial")) and not list(out.glob("*.h5"))
    assert Job(tmp_path, line).end().status == 0
    assert len(list(out.glob("*.h5"))) == 2 and not list(out.glob("*.partial"))


def test_signal_without_mpirun(start_run):
    job, out = start_run(ranks=0)
    decoding(job, out)
    job.send(job.process.pid, signal.SIGINT)
    check_end(job.end(), INTERRUPTED, "signal 2")
    check_stopped_by_signal(out)


def test_mpirun_killed(start_run):
    """The ranks end by themselves, and the file holds what it held."""
    job, out = start_run()
    seen = decoding(job, out)
    pids = [job.rank(rank) for rank in range(RANKS)]
    job.send(job.process.pid, signal.SIGKILL)
    job.end()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() - job.fault_at < END_S
        time.sleep(0.05)
    check_file(out, seen)


@contextmanager
def small_disk(directory, size):
    """A file system of its own at `directory`, of that many bytes."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "galvani-test", directory]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_disk_full_while_writing_the_run_file(nano_shards, tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        out = disk / "run.h5"
        words = ("--tokens", "1,2,3", "--max-new", 3000, "--ignore-eos", "--logits", "--out", out)
        done = galvani(RANKS, "run", "--model", nano_shards(RANKS), *words)
        check_end(done, DEVICE, "run.h5", "No space left", seconds=60)
        assert len(tokens_in(out)) > 0
        check_file(out, [])


def test_limit_on_file_sizes(nano_shards, tmp_path):
    """`ulimit -f` of a shell or a batch job, which kills whoever does not expect it."""
    out = tmp_path / "run.h5"
    words = ("--tokens", "1,2,3", "--max-new", 3000, "--ignore-eos", "--logits", "--out", out)
    line = command(0, "run", "--model", nano_shards(1), *words)
    done = Job(tmp_path, ["prlimit", f"--fsize={6 << 20}", *line]).end()
    check_end(done, DEVICE, "run.h5", "File too large", seconds=60)
    assert len(tokens_in(out)) > 0
    check_file(out, [])


def test_disk_full_at_the_start(nano_shards, tmp_path):
    with small_disk(tmp_path / "disk", 8192) as disk:
        words = ("--tokens", "1,2,3", "--out", disk / "run.h5")
        done = galvani(RANKS, "run", "--model", nano_shards(RANKS), *words)
        check_end(done, DEVICE, "run.h5", seconds=60)


@pytest.mark.parametrize("ranks", [0, 2])
def test_disk_full_while_sharding(tmp_path, ranks):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        done = galvani(ranks, "shard", "--checkpoint", NANO, "--out", disk / "out", "--tp", 2, "--quiet")
        check_end(done, DEVICE, "No space left", seconds=60)
        assert not list((disk / "out").glob("*.h5"))


@contextmanager
def failing_disk(directory, source):
    """A read-only file system that holds copies of the files in `source`, and whose device ends early: reads beyond give EIO."""
    image, small, large = directory.with_suffix(".img"), 28 << 20, 64 << 20
    directory.mkdir()
    with open(image, "wb") as file:
        file.truncate(large)

    def run(*words):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    if not shutil.which("mkfs.ext2") or not run("mkfs.ext2", "-q", "-b", "1024", image) or not run("mount", "-o", "loop", image, directory):
        pytest.skip("an image of a file system cannot be made or mounted here")
    try:
        for path in sorted(source.iterdir()):
            shutil.copy(path, directory)
        run("umount", directory)
        assert run("mount", "-o", "loop,ro", image, directory)
        os.truncate(image, small)
        yield directory
    finally:
        run("umount", "-l", directory)


def test_read_error(nano_shards, tmp_path):
    with failing_disk(tmp_path / "model", nano_shards(2)) as model:
        with pytest.raises(OSError):
            (model / "model.rank1of2.h5").read_bytes()
        done = galvani(2, "run", "--model", model, "--tokens", "1")
        check_end(done, INPUT, "rank 1: ", "model.rank1of2.h5", "Input/output error", seconds=60)


def test_one_rank_has_no_memory(start_run, nano_shards, tmp_path):
    """`prlimit` starts rank 1 with 30 MB less address space than a run with this prefill chunk takes, of which its buffers are 60."""
    job, out = start_run("--prefill-chunk", 4000, ranks=2)
    decoding(job, out)
    taken = int(re.search(r"VmPeak:\s+(\d+) kB", Path(f"/proc/{job.rank(1)}/status").read_text()).group(1)) << 10
    job.stop()
    words = [str(GALVANI), "run", "--model", str(nano_shards(2)), "--tokens", "1", "--max-new", "4000", "--prefill-chunk", "4000"]
    job = Job(tmp_path, [*command(1, *words[1:]), ":", "-np", "1", "prlimit", f"--as={taken - (30 << 20)}", *words])
    check_end(job.end(), MEMORY, "rank 1: ", "memory", seconds=60)


def test_one_rank_lacks_its_config(nano_shards, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    words = [str(GALVANI), "run", "--model", str(nano_shards(2)), "--tokens", "1", "--max-new", "2", "--config"]
    job = Job(tmp_path, [*command(1, *words[1:]), tmp_path / "a.json", ":", "-np", "1", *words, tmp_path / "b.json"])
    check_end(job.end(), USAGE, "rank 1: ", "b.json", seconds=60)


def test_one_rank_has_another_command(nano_shards, tmp_path):
    """It fails where the others do not look for a failure; they must not wait for it."""
    words = command(1, "run", "--model", nano_shards(2), "--tokens", "1")
    job = Job(tmp_path, [*words, ":", "-np", "1", str(GALVANI), "fly"])
    check_end(job.end(), 2, "fly", seconds=60)


def test_shard_is_a_directory(nano_shards, tmp_path):
    model = shutil.copytree(nano_shards(2), tmp_path / "model")
    (model / "model.rank1of2.h5").unlink()
    (model / "model.rank1of2.h5").mkdir()
    done = galvani(2, "run", "--model", model, "--tokens", "1")
    check_end(done, INPUT, "model.rank1of2.h5", seconds=60)
