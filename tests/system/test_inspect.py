"""galvani inspect on shards, directories of shards, checkpoints and safetensors files, whole and damaged."""

import re
import shutil

import h5py
import numpy as np

from conftest import GOLDEN, galvani

CHECKPOINT = GOLDEN / "mixed" / "checkpoint"


def flip_byte_of(path, dataset, back=1):
    """Turns a byte round near the end of a dataset's data."""
    with h5py.File(path, "r") as file:
        at = file[dataset].id.get_offset() + file[dataset].id.get_storage_size() - back
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


def test_shard_directory(golden_shards, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(golden_shards("mixed", 2), model)
    done = galvani(0, "inspect", model, "--verify")
    assert done.status == 0, done.stderr
    assert "for 2 ranks" in done.stdout and "8 layers (6 GDN, 2 QSA, 1 with PLE)" in done.stdout
    assert len(re.findall(r"^rank \d ", done.stdout, re.M)) == 2
    assert len(re.findall(r"^verified ", done.stdout, re.M)) == 2

    # A flipped bit is found by its digest, which names rank and tensor; without --verify it is not looked for.
    flip_byte_of(model / "model.rank1of2.h5", "/layers/03/qsa/k_proj")
    assert galvani(0, "inspect", model).status == 0
    done = galvani(0, "inspect", model, "--verify")
    assert done.status == 3 and len(done.messages()) == 1
    assert "model.rank1of2.h5" in done.stderr and "layers/03/qsa/k_proj" in done.stderr

    (model / "model.rank1of2.h5").unlink()
    done = galvani(0, "inspect", model)
    assert done.status == 3 and "model.rank1of2.h5" in done.stderr


def test_shard_file(golden_shards, tmp_path):
    path = golden_shards("mixed", 2) / "model.rank0of2.h5"
    done = galvani(0, "inspect", path)
    assert done.status == 0, done.stderr
    # The table's lines: how many, of which shape, under which name.
    lines = [line.split() for line in done.stdout.splitlines()]
    shown = {line[-1]: int(line[0]) for line in lines if line and line[-1].startswith("/")}
    counted = {}

    def count(name, item):
        if isinstance(item, h5py.Dataset):
            pattern = re.sub(r"/\d+/", "/*/", "/" + name)
            counted[pattern] = counted.get(pattern, 0) + 1

    with h5py.File(path, "r") as file:
        file.visititems(count)
        embed = file["/embed"].shape
    assert shown == counted
    assert re.search(rf"BF16 +\[{embed[0]}, {embed[1]}\] +/embed$", done.stdout, re.M)

    half = tmp_path / "model.rank0of2.h5"
    half.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    done = galvani(0, "inspect", half)
    assert done.status == 3 and "model.rank0of2.h5" in done.stderr


def test_checkpoint(tmp_path):
    done = galvani(0, "inspect", CHECKPOINT)
    assert done.status == 0, done.stderr
    assert re.search(r"^text tower +1739 tensors", done.stdout, re.M)
    assert re.search(r"^MTP +31 tensors", done.stdout, re.M)
    assert re.search(r"^vision +333 tensors", done.stdout, re.M)
    assert "experts NVFP4, PLE table F8_E4M3" in done.stdout
    assert re.search(r"128 .* model\.language_model\.layers\.\*\.mlp\.experts\.\*\.gate_proj\.weight$", done.stdout, re.M)

    # Without one of its files it is not whole.
    copy = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, copy)
    (copy / "model-plefp8-scale.safetensors").unlink()
    done = galvani(0, "inspect", copy)
    assert done.status == 3 and "model-plefp8-scale.safetensors" in done.stderr


def test_safetensors_file(tmp_path):
    path = CHECKPOINT / "model-plefp8-scale.safetensors"
    done = galvani(0, "inspect", path)
    assert done.status == 0 and "ngram_embedding.weight_scale" in done.stdout
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(np.uint64(1 << 40).tobytes() + b"{}")
    done = galvani(0, "inspect", broken)
    assert done.status == 3 and "broken.safetensors" in done.stderr


def test_a_damaged_run_file_gives_a_status(nano_shards, tmp_path):
    """HDF5 1.10 crashes on some damaged global heaps, where the attributes' texts lie."""
    run, damaged = tmp_path / "run.h5", tmp_path / "damaged.h5"
    assert galvani(1, "run", "--model", nano_shards(1), "--prompt", "x", "--max-new", 2, "--out", run).status == 0
    content = run.read_bytes()
    heap = content.index(b"GCOL")
    statuses = set()
    for offset in range(heap, heap + 160, 3):
        damaged.write_bytes(content[:offset] + bytes([content[offset] ^ 0x80]) + content[offset + 1 :])
        statuses.add(galvani(0, "inspect", damaged).status)
    assert statuses <= {0, 3} and 3 in statuses
