#!/usr/bin/env python3
"""What the compiler and the linker were asked to do against exploits (meson.build), found in what they built.

usage: test_hardening.py release|sanitized MOEBIUS LIBMOEBIUS.so LIBRARY.a...

Each function below is one test; a failed assertion names itself."""
import glob
import re
import subprocess
import sys

from run_functions import run_functions

BUILD, MOEBIUS, LIBMOEBIUS, *ARCHIVES = sys.argv[1:]
LINKED = [MOEBIUS, LIBMOEBIUS]

# In the notes of every object file, by machine as readelf calls it.
CONTROL_FLOW = {"Advanced Micro Devices X86-64": "IBT, SHSTK", "AArch64": "BTI, PAC"}


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], capture_output=True, text=True, check=True).stdout


def imports(path):
    return set(re.findall(r" UND (\w+)", readelf("--dyn-syms", path)))


def test_the_program_can_be_loaded_anywhere():
    assert re.search(r"\(FLAGS_1\).* PIE\b", readelf("-d", MOEBIUS))
    assert re.search(r"Type: +DYN ", readelf("-h", MOEBIUS))


def test_tables_of_functions_are_bound_at_start_and_then_read_only():
    for path in LINKED:
        assert re.search(r"\(FLAGS\).*\bBIND_NOW\b|\(FLAGS_1\).*\bNOW\b", readelf("-d", path)), path
        assert re.search(r"^ +GNU_RELRO ", readelf("-l", path), re.M), path


def test_stacks_are_not_executable():
    for path in LINKED:
        assert re.search(r"^ +GNU_STACK .* RW ", readelf("-l", path), re.M), path


def test_functions_with_arrays_check_their_stack():
    for path in LINKED:
        assert "__stack_chk_fail" in imports(path), path


def test_the_c_library_checks_sizes():
    if BUILD != "release":
        return
    for path in LINKED:
        assert {"__snprintf_chk", "__vsnprintf_chk"} <= imports(path), (path, imports(path))


def test_every_object_file_marks_where_jumps_may_land():
    note = CONTROL_FLOW.get(re.search(r"Machine: +(.*)", readelf("-h", MOEBIUS))[1])
    objects = ARCHIVES + glob.glob(MOEBIUS + ".p/*.o")
    assert len(objects) > len(ARCHIVES)
    for path in objects if note else []:
        n_object = readelf("-h", path).count("ELF Header:")
        assert n_object and readelf("-n", path).count(note) == n_object, path


run_functions(globals())
