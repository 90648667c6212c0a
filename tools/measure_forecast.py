#!/usr/bin/env python3
"""Compares what moebius plan forecasts with what moebius bench measures, on models that calibration has not seen.

    tools/measure_forecast.py build/moebius DIR --text F --learn A.gguf B.gguf --check C.gguf D.gguf
    tools/measure_forecast.py build/moebius DIR --text F --learn A.gguf B.gguf --check C.gguf D.gguf --slow 254:0

Each model's routing is profiled with the beginning of a text, and runs use a later part of it. The models of --learn
run in a few ways, whose receipts are what forecasts rest on; those of --check run in ways of their own and leave none.
DIR keeps the probe, receipts, prepared stores and what was measured: what is there is not measured again, so that
forecasts alone can be made anew. --slow DEVICE (MAJOR:MINOR of the models' drive) adds runs whose reads are throttled,
as root, through version 1 of control groups. Prints a CSV, then a summary. Nothing else should run meanwhile; a run
beside which the units were slower than the probe's by a tenth, or memory changed by a fifth, as on a shared host, is made
again, ten runs at most, and leaves no receipt. So is a run of --check beside which memory, or the drive, was faster or
slower by a fifth than beside the runs of --learn, of which the forecast is; what never met the machine as it is forecast
to be is left out, and counted. Needs Python's standard library only.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SLOW_BYTES_PER_S = 400_000_000
MOST_RUNS, PAUSE_S = 10, 10
DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "llama-stories-moe-27m-Q8_0.gguf")
SLOW_GROUP = "/sys/fs/cgroup/blkio/moebius_slow"

# What calibration sees: threads, tokens in the context, texts, memory as a share of the model, prompt.
LEARN = [
    dict(threads=2, prompt=512), dict(threads=1, prompt=512), dict(threads=2, prompt=512, depth=2048),
    dict(threads=2, texts=8, prompt=128), dict(threads=2, texts=3, prompt=128),
    dict(threads=2, prompt=2048), dict(threads=2, ram=0.75, prompt=512), dict(threads=2, ram=0.4, prompt=512),
    dict(threads=2, ram=0.6, prompt=128, texts=4),
]
# What is forecast.
CHECK = [
    dict(threads=2, prompt=300), dict(threads=1, prompt=300), dict(threads=2, prompt=700, depth=4000),
    dict(threads=1, prompt=256, depth=1000), dict(threads=2, texts=8, prompt=200), dict(threads=2, texts=2, prompt=200),
    dict(threads=2, ram=0.8, prompt=400), dict(threads=2, ram=0.65, prompt=400), dict(threads=2, ram=0.5, prompt=400),
    dict(threads=2, ram=0.65, prompt=400, store=True),
]
# Bytes of the text that profiles see, and where that begins which runs use.
PROFILED_BYTES, RUN_FROM = 20_000, 100_000
TO_FIRST = [dict(threads=2, prompt=2000, decode=0), dict(threads=2, prompt=8000, decode=0)]
SLOW = [dict(threads=2, ram=0.5, prompt=256, slow=True)]


class Bench:
    def __init__(self, args):
        self.moebius, self.dir = args.moebius, os.path.abspath(args.dir)
        os.makedirs(self.dir, exist_ok=True)
        self.kept = os.path.join(self.dir, "measured.json")
        self.measured = json.load(open(self.kept)) if os.path.exists(self.kept) else {}
        self.env = dict(os.environ, XDG_CACHE_HOME=self.dir)
        self.slow_device = args.slow
        self.n_disturbed = 0
        with open(args.text, "rb") as f:
            text = f.read(RUN_FROM + 400_000)
        self.profiled, self.used = os.path.join(self.dir, "profiled.txt"), os.path.join(self.dir, "used.txt")
        for path, part in (self.profiled, text[:PROFILED_BYTES]), (self.used, text[RUN_FROM:]):
            with open(path, "wb") as f:
                f.write(part)

    def run(self, *args, slow=False):
        def enter():
            with open(f"{SLOW_GROUP}/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))
        if slow:
            os.makedirs(SLOW_GROUP, exist_ok=True)
            with open(f"{SLOW_GROUP}/blkio.throttle.read_bps_device", "w") as f:
                f.write(f"{self.slow_device} {SLOW_BYTES_PER_S}")
        p = subprocess.run([self.moebius, *map(str, args)], env=self.env, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, preexec_fn=enter if slow else None)
        if p.returncode not in (0, 20, 21):  # a plan that is refused, a gate that says hold
            sys.exit(f"{' '.join(map(str, args))}: exit {p.returncode}\n{p.stderr.decode()[-1000:]}")
        return p.stdout.decode()

    def flags(self, model, how):
        """The options that bench and plan share."""
        out = ["-m", model, "-t", how["threads"], "--texts", how.get("texts", 1)]
        if "ram" in how:
            out += ["--ram", f"{int(how['ram'] * os.path.getsize(model)) >> 20}M"]
        if how.get("store"):
            out += ["--store", self.store(model)]
        return out

    def profile(self, model):
        mark = os.path.join(self.dir, os.path.basename(model) + ".profiled")
        if not os.path.exists(mark):
            self.run("profile", "-m", model, "-f", self.profiled, "--gate")
            open(mark, "w").close()

    def store(self, model):
        path = os.path.join(self.dir, os.path.basename(model) + ".store")
        if not os.path.exists(path):
            self.run("prepare", model, "--to", path)
        return path

    def machine(self, model, slow):
        """The usual one is where the program keeps it, as the ceilings of receipts come from there."""
        path = os.path.join(self.dir, "slow.json" if slow else "moebius/machine.json")
        if not os.path.exists(path):
            self.run("probe", "-m", model, "--gpus", "none", *(["-o", path] if slow else []), slow=slow)
        return path

    def units_per_s(self, threads):
        """What so many threads' units do in a second, as the probe found."""
        with open(os.path.join(self.dir, "moebius/machine.json"), encoding="utf-8") as f:
            machine = json.load(f)
        return machine["thread_int8_per_s" if threads == 1 else "int8_per_s"]

    def memory_per_s(self, threads):
        """What so many threads read from memory in a second, in the median of the receipts."""
        with open(os.path.join(self.dir, "moebius/receipts.jsonl"), encoding="utf-8") as f:
            receipts = [json.loads(line) for line in f]
        return statistics.median(r["memory"] for r in receipts if r["threads"] == threads)

    def drive_per_s(self):
        """What the drive gave in the median of the receipts."""
        with open(os.path.join(self.dir, "moebius/receipts.jsonl"), encoding="utf-8") as f:
            receipts = [json.loads(line) for line in f]
        return statistics.median(r["drive"] for r in receipts if "drive" in r)

    def memory_now(self, threads):
        """What so many threads read from memory in a second, as a run on the demo model finds."""
        out = self.run("bench", "-m", DEMO, "-t", threads, "-p", 1, "-n", 1, "-r", 1, "--cold", "--no-receipt", "--json")
        return json.loads(out)["roof_mean"]["read_bytes_per_s"]

    def is_usual(self, j, around, how, is_check):
        """Whether the machine was as what is forecast takes it to be; around: memory before and after the run."""
        rates = [*around, *(j[f"roof_{of}"]["read_bytes_per_s"] for of in ("least", "mean"))]
        if j["roof_least"]["int8_per_s"] <= 0.9 * self.units_per_s(how["threads"]) or min(rates) < 0.8 * max(rates):
            return False
        if not is_check:
            return True
        if j["drive_bytes_per_s"] and not how.get("slow") and abs(j["drive_bytes_per_s"] / self.drive_per_s() - 1) > 0.2:
            return False
        return all(abs(rate / self.memory_per_s(how["threads"]) - 1) <= 0.2 for rate in rates)

    def measure(self, model, how, is_check=False):
        """Decode and prefill in tokens a second, of all texts."""
        key = f"{os.path.basename(model)} {json.dumps(how, sort_keys=True)}"
        if key not in self.measured:
            self.measured[key] = self.bench(model, how, is_check)
            with open(self.kept, "w") as f:
                json.dump(self.measured, f, indent=1)
        return self.measured[key]

    def bench(self, model, how, is_check):
        rounds = 3 if "ram" in how else 2 if how.get("decode", 1) else 1  # the first prompt finds empty slots
        receipts = os.path.join(self.dir, "moebius/receipts.jsonl")
        for left in reversed(range(MOST_RUNS)):
            n_bytes = os.path.getsize(receipts) if os.path.exists(receipts) else 0
            before = self.memory_now(how["threads"])
            out = self.run("bench", *self.flags(model, how), "--cold", "--tokens-from", self.used, "-p", how["prompt"], "-d", how.get("depth", 0),
                           "-n", how.get("decode", 48), "-r", rounds, "--json", *(["--no-receipt"] if is_check else []),
                           slow=how.get("slow", False))
            j = json.loads(out)
            is_usual = self.is_usual(j, (before, self.memory_now(how["threads"])), how, is_check)
            if is_usual or left == 0:
                return dict({p: j[p]["tok_per_s"] for p in ("decode", "prefill") if j.get(p)}, is_usual=is_usual)
            self.n_disturbed += 1
            if os.path.exists(receipts):
                os.truncate(receipts, n_bytes)
            time.sleep(PAUSE_S)

    def plan(self, model, how):
        n_decode = how.get("decode", 48)
        depth = how.get("depth", 0) + how["prompt"] + n_decode // 2
        flags = self.flags(model, how)
        machine = ["--machine", self.machine(model, True)] if how.get("slow") else []
        return json.loads(self.run("plan", *flags, "--ctx", max(256, how.get("depth", 0) + how["prompt"] + n_decode),
                                   "--depth", depth, *machine,
                                   "--receipts", os.path.join(self.dir, "moebius/receipts.jsonl"), "--json",
                                   "--prompt", how["prompt"]))


def row(model, how, what, forecast, measured, is_usual):
    """A line of the table; None: nothing was forecast, or of another machine than was met."""
    if not forecast or not is_usual:
        return None
    low, mid, high = forecast["low"], forecast["mid"], forecast["high"]
    return dict(model=os.path.basename(model), settings=" ".join(f"{k}={v}" for k, v in sorted(how.items())),
                what=what, low=low, forecast=mid, high=high, measured=measured, error=mid / measured - 1,
                inside=low <= measured <= high, half_band=(high - low) / 2 / mid)


def decode_rows(bench, models, hows):
    for model in models:
        for how in hows:
            measured, plan = bench.measure(model, how, is_check=True), bench.plan(model, how)
            yield row(model, how, "decode", plan["forecast"]["decode"], measured["decode"], measured["is_usual"])
            if "depth" not in how:
                yield row(model, how, "prefill", plan["forecast"]["prefill"], measured["prefill"],
                          measured["is_usual"])


def first_rows(bench, models):
    for model in models:
        for how in TO_FIRST:
            measured, plan = bench.measure(model, how, is_check=True), bench.plan(model, how)
            s = next(p["forecast_s"] for p in plan["prompts"] if p["tokens"] == how["prompt"])
            yield row(model, how, "first", s, how["prompt"] / measured["prefill"], measured["is_usual"])


def show(rows):
    print("model,settings,what,low,forecast,high,measured,error,inside,half_band")
    for r in rows:
        print(f"{r['model']},{r['settings']},{r['what']},{r['low']:.4g},{r['forecast']:.4g},{r['high']:.4g},"
              f"{r['measured']:.4g},{r['error']:+.3f},{int(r['inside'])},{r['half_band']:.3f}")
    for what in ("decode", "prefill", "first"):
        some = [r for r in rows if r["what"] == what]
        if some:
            print(f"# {what}: {sum(r['inside'] for r in some)} of {len(some)} inside the band, median error "
                  f"{statistics.median(abs(r['error']) for r in some):.1%}, widest band +-{max(r['half_band'] for r in some):.0%}")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("moebius")
    ap.add_argument("dir")
    ap.add_argument("--text", required=True)
    ap.add_argument("--learn", nargs="+", required=True)
    ap.add_argument("--check", nargs="+", required=True)
    ap.add_argument("--slow")
    args = ap.parse_args()
    bench = Bench(args)
    bench.machine(args.learn[0], False)
    for model in args.learn + args.check:
        bench.profile(model)
    for model in args.learn:
        for how in LEARN:
            bench.measure(model, how)
    rows = [*decode_rows(bench, args.check, CHECK + (SLOW if args.slow else [])), *first_rows(bench, args.check[:1])]
    show([r for r in rows if r])
    print(f"# {bench.n_disturbed} runs were disturbed and made again, {sum(not r for r in rows)} lines are left out")


if __name__ == "__main__":
    main()
