"""make install: the program runs from where it was put, and the manual page and the completion know every option of --help."""

import re
import shutil
import subprocess

import pytest

from conftest import ROOT, environment, galvani


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The directory that stands for / and holds the installation."""
    root = tmp_path_factory.mktemp("root")
    make = ["make", "-s", "-C", ROOT, "install", "PREFIX=/opt/galvani", f"DESTDIR={root}"]
    if "/cuda/" not in str((ROOT / "build" / "galvani").resolve()):
        make.append("CUDA=0")
    done = subprocess.run(make, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "opt" / "galvani"


def options_of(command):
    return set(re.findall(r"^  (--[a-z-]+)", galvani(0, command, "--help").stdout, re.MULTILINE))


@pytest.fixture(scope="module")
def commands():
    found = re.findall(r"^  ([a-z]+) ", galvani(0, "--help").stdout, re.MULTILINE)
    assert len(found) >= 5
    return found


def test_program(installed):
    done = subprocess.run([installed / "bin" / "galvani", "--version"], capture_output=True, check=True)
    names = [line.split()[0] for line in done.stdout.decode().splitlines()]
    assert names[:2] == ["galvani", "MPI"]
    assert {"HDF5", "jansson", "PCRE2", "utf8proc", "xxHash", "OpenSSL", "cairo", "CUDA"} <= set(names)
    words = [installed / "bin" / "galvani", "run", "--model", "synthetic:nano", "--tokens", "1", "--max-new", "2"]
    done = subprocess.run(words, capture_output=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr


def test_manual_page(installed, commands):
    page = installed / "share" / "man" / "man1" / "galvani.1"
    text = page.read_text().replace("\\-", "-")
    for command in commands:
        section = text.split(f".SH GALVANI {command.upper()}\n")[1].split("\n.SH ")[0]
        assert set(re.findall(r"^\.B (--[a-z-]+)", section, re.MULTILINE)) == options_of(command), command
    if shutil.which("groff"):
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", page], capture_output=True, check=True)
        assert not done.stderr and "EXIT STATUS" in re.sub(r".\x08", "", done.stdout.decode())


def complete(installed, line):
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"source {installed}/share/bash-completion/completions/galvani; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
    script += '_galvani; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    return set(done.stdout.decode().split())


def test_completion(installed, commands):
    assert complete(installed, "galvani ") == set(commands)
    assert complete(installed, "galvani --") == {"--help", "--version"}
    for command in commands:
        assert complete(installed, f"galvani {command} --") == options_of(command)
    assert complete(installed, "galvani run --backend ") == {"auto", "cpu", "cuda"}
    assert complete(installed, "galvani run --think o") == {"on", "off"}
    assert complete(installed, "galvani trace pl") == {"plot"}
    assert complete(installed, "galvani run --model ") == set()


def test_uninstall_leaves_nothing(installed):
    subprocess.run(["make", "-s", "-C", ROOT, "uninstall", "CUDA=0", "PREFIX=/opt/galvani", f"DESTDIR={installed.parents[1]}"], check=True)
    assert not [path for path in installed.rglob("*") if path.is_file()]
