#!/usr/bin/env python3
"""What cache-aware routing costs and saves: the figures and pictures of docs/car.md.

usage: measure_car.py quality MOEBIUS MODEL OUT.csv CHUNKS PERCENT TEXT...   perplexity against exact routing, by
       setting, with PERCENT of the experts in memory
       measure_car.py speed MOEBIUS MODEL OUT.csv TEXT [OPTION...]   a round of decoding by setting that goes on from TEXT; OPTIONs are
       moebius's
       measure_car.py draw QUALITY.csv SPEED.csv FOLDER              the pictures

Settings are run one after the other. A file that exists is added to: quality leaves out what it has, and of several rounds
of speed the middle counts."""
import csv
import json
import math
import os
import re
import subprocess
import sys
import tempfile

THRESHOLDS = ["0.35", "0.5", "0.7", "0.9"]
WAYS = {"plain": [], "damp": ["--car-damp"], "warm-up": ["--car-warmup", "320"],
        "backfill": ["--backfill", "4"]}
QUALITY = ["text", "budget", "way", "threshold", "ppl", "exact", "ratio", "ratio_error", "divergence", "divergence_error",
           "same", "same_error", "substituted", "mean_ratio", "found", "found_without"]
SPEED = ["way", "threshold", "tok_per_s", "substituted", "mean_ratio", "found", "found_without", "read_gb"]


def append(path, columns, row):
    is_new = not os.path.exists(path)
    with open(path, "a", newline="") as f:
        w = csv.DictWriter(f, columns, lineterminator="\n")
        if is_new:
            w.writeheader()
        w.writerow(row)
    print(" ".join(str(row[c]) for c in columns), flush=True)


def found_in(stderr):
    m = re.search(r"decode: ([\d.]+)% substituted at ([\d.]+) of the score, ([\d.]+)% found, ([\d.]+)% without", stderr)
    return dict(zip(["substituted", "mean_ratio", "found", "found_without"], m.groups() if m else ["0", "1", "", ""]))


def quality(moebius, model, path, chunks, budget, *texts):
    done = {(r["text"], r["budget"], r["way"], r["threshold"]) for r in (rows_of(path) if os.path.exists(path) else [])}
    for text in texts:
        for way, options in WAYS.items():
            for x in THRESHOLDS:
                if (os.path.basename(text), budget, way, x) in done:
                    continue
                r = subprocess.run([moebius, "ppl", "-m", model, "-f", text, "--chunks", chunks, "--expert-ram",
                                    budget + "%", "--cold", "--car", x, *options, "--deterministic", "--against"],
                                   capture_output=True, text=True, check=True)
                m = re.search(r"perplexity ([\d.]+) .*\nagainst ([\d.]+) .*ratio ([\d.]+) \+- ([\d.]+), divergence "
                              r"([\d.]+) \+- ([\d.]+), .*token ([\d.]+)% \+- ([\d.]+)%", r.stdout)
                row = dict(zip(QUALITY[4:12], m.groups()), **found_in(r.stderr))
                row.update(text=os.path.basename(text), budget=budget, way=way, threshold=x)
                append(path, QUALITY, row)


def speed(moebius, model, path, text, *options):
    settings = [("off", "1", [])] + [(way, x, more) for way, more in WAYS.items() for x in THRESHOLDS]
    with tempfile.TemporaryDirectory() as folder:
        for way, x, more in settings:
            if way == "warm-up":
                more = ["--car-warmup", str(s["prefill"]["n_tok"] + 16)]  # a quarter of the 64
            stats = os.path.join(folder, "stats.json")
            subprocess.run([moebius, "generate", "-m", model, "-f", text, "-n", "64", "--temp", "0", "--ignore-eos", "--ids",
                            "--cold", "--car", x, *more, "--stats-json", stats, *options], capture_output=True, check=True)
            with open(stats) as f:
                s = json.load(f)
            e, car = s["experts"], s["car"]
            n = e["n_decode_hit"] + e["n_decode_miss"]
            append(path, SPEED, {"way": way, "threshold": x,
                                 "tok_per_s": f"{s['decode']['n_tok'] / s['decode']['s']:.2f}",
                                 "substituted": f"{100 * car['n_substituted'] / n:.1f}",
                                 "mean_ratio": f"{car['mean_ratio']:.3f}",
                                 "found": f"{100 * e['n_decode_hit'] / n:.1f}",
                                 "found_without": f"{100 * car['n_decode_hit_without'] / n:.1f}",
                                 "read_gb": f"{e['read_bytes'] / 1e9:.2f}"})


# ---- pictures ----

COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94"]


class Plot:
    """A chart of lines: x and y are functions from values to 0..1."""

    def __init__(self, title, x_label, y_label, x, y, x_ticks, y_ticks):
        self.x, self.y, self.n = x, y, 0
        self.out = [f'<text x="30" y="22" font-size="14">{title}</text>',
                    f'<text x="300" y="372" text-anchor="middle">{x_label}</text>',
                    f'<text x="16" y="190" text-anchor="middle" transform="rotate(-90 16 190)">{y_label}</text>']
        for t, label in x_ticks:
            self.out.append(f'<path d="M{self.px(t)} 340v5" stroke="#888"/>'
                            f'<text x="{self.px(t)}" y="357" text-anchor="middle">{label}</text>')
        for t, label in y_ticks:
            self.out.append(f'<path d="M60 {self.py(t)}h480" stroke="#ddd"/>'
                            f'<text x="54" y="{self.py(t) + 4:.1f}" text-anchor="end">{label}</text>')

    def px(self, v):
        return round(60 + 480 * self.x(v), 1)

    def py(self, v):
        return round(340 - 300 * self.y(v), 1)

    def line(self, name, points, colour, dashed=False):
        self.n += 1
        path = " ".join(f"{self.px(x)},{self.py(y)}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        self.out += [f'<circle cx="{self.px(x)}" cy="{self.py(y)}" r="3" fill="{colour}"/>' for x, y in points]
        y = 40 + 18 * self.n
        self.out.append(f'<path d="M556 {y - 4}h24" stroke="{colour}" stroke-width="2"{dash}/>'
                        f'<text x="586" y="{y}">{name}</text>')

    def save(self, path):
        with open(path, "w") as f:
            f.write('<svg xmlns="http://www.w3.org/2000/svg" width="760" height="385" font-family="sans-serif" '
                    'font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(self.out) + "\n</svg>\n")


def rows_of(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def draw(quality_csv, speed_csv, folder):
    rows = rows_of(quality_csv)
    ticks = [(float(x), x) for x in THRESHOLDS]
    p = Plot("Divergence from the model's own predictions", "threshold", "nats a token",
             lambda v: (v - 0.3) / 0.65, lambda v: math.log10(v / 0.01) / math.log10(20), ticks, [(v, str(v)) for v in (0.01, 0.02, 0.05, 0.1, 0.2)])
    for text, colour in zip(dict.fromkeys(r["text"] for r in rows), COLOURS):
        for budget in ("25", "50"):
            points = [(float(r["threshold"]), float(r["divergence"])) for r in rows
                      if (r["text"], r["budget"], r["way"]) == (text, budget, "plain")]
            p.line(f"{text.split('.')[0]}, {budget}% in memory", points, colour, budget == "50")
    p.save(os.path.join(folder, "car-divergence.svg"))

    rows = rows_of(speed_csv)
    rounds = {}
    for r in rows:
        rounds.setdefault((r["way"], r["threshold"]), []).append(float(r["tok_per_s"]))
    middle = {k: sorted(v)[len(v) // 2] for k, v in rounds.items()}
    top = max(middle.values()) * 1.15
    p = Plot("Decoding, 12 layers of a Qwen3-30B-A3B shape", "threshold", "tokens a second",
             lambda v: (v - 0.3) / 0.75, lambda v: v / top, ticks + [(1, "off")],
             [(v, f"{v:g}") for v in range(0, int(top) + 1, 5)])
    for (way, options), colour in zip(WAYS.items(), COLOURS):
        name = " ".join(options[:1]) or "--car alone"
        p.line(name, [(float(x), middle[way, x]) for x in THRESHOLDS] + [(1, middle["off", "1"])], colour)
    p.save(os.path.join(folder, "car-speed.svg"))


if __name__ == "__main__":
    commands = {"quality": quality, "speed": speed, "draw": draw}
    if len(sys.argv) < 5 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
