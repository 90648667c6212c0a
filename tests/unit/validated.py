#!/usr/bin/env python3
"""Runs a test with Khronos's validation layer, which prints what it finds, or without it where it isn't installed. Exits as the
test does, or with 1 when there was something.

usage: validated.py PROGRAM [ARG...]"""
import glob
import os
import subprocess
import sys

LAYER = "VK_LAYER_KHRONOS_validation"


def is_installed():
    folders = [os.path.join(p, "vulkan", "explicit_layer.d") for p in ("/usr/share", "/usr/local/share", "/etc")]
    return any(LAYER in open(f, encoding="utf-8").read() for d in folders for f in glob.glob(os.path.join(d, "*.json")))


def main():
    layers = {"VK_INSTANCE_LAYERS": LAYER} if is_installed() else {}
    if not layers:
        print(f"{LAYER} is not installed")
    done = subprocess.run(sys.argv[1:], env={**os.environ, **layers}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    print(done.stdout)
    found = [line for line in done.stdout.splitlines() if "VUID-" in line or "Validation Error" in line]
    print(f"the validation layer found {len(found)} errors")
    return done.returncode or (1 if found else 0)


sys.exit(main())
