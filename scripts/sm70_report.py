"""Compiles CUDA sources for sm_70 and prints what each kernel takes: sm70_report.py NVCC SOURCE...

A kernel that spills registers or needs a stack frame fails the report, as does a source that does not compile.
"""

import os
import re
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"Compiling entry function '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def compile_source(nvcc, source, directory):
    command = [nvcc, "-std=c++17", "-O3", "-arch=sm_70", "-Xptxas", "-v", "-Isrc", "-Ikernels", "-c", source]
    compiler = next((c for c in ("g++-12", "g++-11") if subprocess.run(["which", c], capture_output=True).returncode == 0), None)
    if compiler:  # CUDA 12 refuses newer ones
        command += ["-ccbin", compiler]
    command += ["-o", os.path.join(directory, "kernel.o")]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{source} does not compile for sm_70:\n{result.stderr}")
    return result.stderr


def demangle(names):
    result = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True)
    plain = [re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", n) for n in result.stdout.split("\n")]
    return dict(zip(names, plain))


def kernels_of(report):
    """(mangled name, registers, stack bytes, spilled bytes, static shared bytes) of each kernel."""
    name, frame = None, (0, 0, 0)
    for line in report.splitlines():
        if match := ENTRY.search(line):
            name = match.group(1)
        elif match := FRAME.search(line):
            frame = tuple(int(x) for x in match.groups())
        elif (match := USED.search(line)) and name:
            yield name, int(match.group(1)), frame[0], frame[1] + frame[2], int(match.group(2) or 0)
            name = None


def main():
    nvcc, sources = sys.argv[1], sys.argv[2:]
    n_kernels, bad = 0, []
    print(f"{'registers':>9} {'stack':>6} {'spills':>6} {'shared':>6}  kernel")
    with tempfile.TemporaryDirectory() as directory:
        for source in sources:
            kernels = list(kernels_of(compile_source(nvcc, source, directory)))
            names = demangle([k[0] for k in kernels])
            print(source)
            for name, registers, stack, spills, shared in kernels:
                print(f"{registers:9} {stack:6} {spills:6} {shared:6}  {names[name]}")
                n_kernels += 1
                if stack or spills:
                    bad.append(names[name])
    print(f"{n_kernels} kernels for sm_70, {len(bad)} with spills or a stack frame (shared memory: static bytes)")
    if bad:
        sys.exit("spills or a stack frame: " + ", ".join(bad))


if __name__ == "__main__":
    main()
