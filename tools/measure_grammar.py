#!/usr/bin/env python3
"""Holds `moebius grammar` against a folder of schemas with instances, such as MaskBench's maskbench/data.

usage: tools/measure_grammar.py build/moebius FOLDER [-m VOCAB.gguf] [--every N] [--judge]

Each file is JSON: {"schema": ..., "tests": [{"valid": BOOL, "data": ...}]}. Prints how many schemas are enforced whole and, of
these, each valid instance that is refused and each invalid one that is accepted; how long compiling took and, with a
vocabulary, masks. --judge: Python's jsonschema (python3-jsonschema) says what is valid, with its checks of formats.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

# A line of --check is an instance: none of these has line ends.
STYLES = ({}, {"ensure_ascii": False}, {"separators": (",", ":")})


def judge(schema):
    import jsonschema
    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid


def run(program, model, schema, lines):
    with tempfile.TemporaryDirectory() as folder:
        schema_path, lines_path = pathlib.Path(folder, "schema.json"), pathlib.Path(folder, "lines")
        schema_path.write_text(json.dumps(schema))
        lines_path.write_text("".join(line + "\n" for line in lines))
        command = [program, "grammar", "--json", "--schema", schema_path, "--check", lines_path]
        done = subprocess.run(command + (["-m", model] if model else []), capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else {"enforced_whole": False, "error": done.stderr}


def percentile(values, share):
    return sorted(values)[int(share * (len(values) - 1))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-m", dest="model")
    parser.add_argument("--every", type=int, default=1, help="look at each N-th file")
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    n_schema = n_compile = n_valid = n_invalid = n_refused = n_accepted = 0
    compile_us, masks = [], []
    for path in sorted(options.folder.glob("*.json"))[::options.every]:
        case = json.loads(path.read_text())
        tests = case.get("tests", [])
        texts = [json.dumps(t["data"], **STYLES[i % len(STYLES)]) for i, t in enumerate(tests)]
        report = run(options.program, options.model, case["schema"], texts)
        n_schema += 1
        if not report["enforced_whole"]:
            continue
        n_compile += 1
        compile_us.append(report["compile_us"])
        if "mask_us" in report:
            masks.append(report["mask_us"])
        is_valid = judge(case["schema"]) if options.judge else None
        for test, found in zip(tests, report["instances"]):
            valid = is_valid(test["data"]) if is_valid else test["valid"]
            n_valid += valid
            n_invalid += not valid
            if valid and not found["accepted"]:
                n_refused += 1
                print(f"{path.name}: refused at byte {found['byte']}: {json.dumps(test['data'])[:100]}")
            if found["accepted"] and not valid:
                n_accepted += 1
                print(f"{path.name}: accepted: {json.dumps(test['data'])[:100]}")
    print(f"{n_compile} of {n_schema} schemas compile; {n_refused} of {n_valid} valid instances refused; "
          f"{n_accepted} of {n_invalid} invalid ones accepted")
    if compile_us:
        print(f"compiling: median {statistics.median(compile_us):.0f} us, p99 {percentile(compile_us, 0.99):.0f} us")
    if masks:
        n = sum(m["n"] for m in masks)
        slow = sum(m["n_above_1ms"] for m in masks)
        print(f"masks: {n}, mean {sum(m['n'] * m['mean'] for m in masks) / n:.1f} us; {slow} take more than 1 ms "
              f"({slow / n:.2%})")
    return 1 if n_accepted or n_refused > 0.005 * n_valid else 0


if __name__ == "__main__":
    sys.exit(main())
