"""What the documents name must be there: files of the tree, rooms in the tour, routes and options of the program."""

import re

from conftest import ROOT, galvani

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CUDA = (ROOT / "docs" / "cuda.md").read_text()


def test_named_files_exist():
    for document in DOCUMENTS:
        named = re.findall(r"`((?:src|kernels|tests|scripts|docs|configs|results)/[\w./*-]+)`", document.read_text())
        for path in named:
            assert any(ROOT.glob(path.rstrip("/"))), f"{document.name} names {path}"


def test_the_tour_has_every_room():
    tour = (ROOT / "docs" / "tour.md").read_text()
    for parent in ("src", "kernels"):
        for room in (ROOT / parent).iterdir():
            assert not room.is_dir() or f"`{parent}/{room.name}/" in tour, f"docs/tour.md lacks {parent}/{room.name}"


def test_every_route_is_described():
    told = galvani(0, "run", "--model", "synthetic:nano", "--tokens", "1", "--backend", "cpu", "--route", "none=off").stderr
    routes = told.split("there are: ")[1].split()
    described = re.findall(r"^\| `(\w+)` \|", CUDA, re.MULTILINE)
    assert sorted(route.rstrip(",") for route in routes) == sorted(described)


def test_options_of_the_examples_exist():
    commands = "shard run bench microbench model inspect trace".split()
    helps = {command: galvani(0, command, "--help").stdout for command in commands}
    for document in DOCUMENTS:
        for command, words in re.findall(r"^    .*galvani (\w+)(.*)$", document.read_text(), re.MULTILINE):
            for option in re.findall(r"(?<=\s)--[a-z-]+", words):
                assert option + " " in helps[command], f"{document.name}: galvani {command} {option}"
