#!/usr/bin/env python3
"""Engines by turns on one GGUF file: each keeps the model loaded and computes for a moment, then the next one does, so that
they meet the same moods of a shared machine. Those whose turn it isn't are stopped: the threads of some spin.

usage: turns.py MODEL [--rounds 8] [--prompt 512] [--decode 48] [--threads 2] NAME=PLAYER...

The first player is compared with the others. Players (tools/turns/player_*.c) are built so, LLAMA being a llama.cpp that
has been built, -DIK_LLAMA for ik_llama.cpp:

    cc -O2 -Iinclude tools/turns/player_moebius.c -o us -Lbuild -lmoebius -Wl,-rpath,$PWD/build
    cc -O2 -ILLAMA/include -ILLAMA/ggml/include tools/turns/player_llama.c -o them -LLLAMA/build/bin -lllama -lggml

A round is a prompt of each, then decoding after it, in four parts of each by turns. The first player that can measures the memory
in between. Prints each round, then medians, ranges, and the ratios of each round."""
import argparse
import os
import signal
import statistics
import subprocess


PARTS = 4  # of decoding in a round, by turns: a shared host's memory changes its speed within seconds


class Player:
    def __init__(self, path, model, threads, context):
        self.process = subprocess.Popen([os.path.abspath(path), model, str(threads), str(context)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{path}: does not play")
        self.process.send_signal(signal.SIGSTOP)

    def ask(self, *words):
        self.process.send_signal(signal.SIGCONT)
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        self.process.send_signal(signal.SIGSTOP)
        if not answer:
            raise SystemExit("a player gave up")
        return float(answer)


def spread(values):
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def play(args, players):
    names = list(players)
    meter = next((p for p in players.values() if p.ask("memory")), None)
    kinds = [(what, n) for what, n in (("prompt", args.prompt), ("decode", args.decode)) if n]
    speed = {(name, what): [] for name in names for what, n in kinds}
    for i in range(-1, args.rounds):  # the first is for warming up
        order = names[i % len(names):] + names[:i % len(names)]
        line = [f"{i + 1:3}"]
        for what, n in kinds:
            line.append(f"{what}" + (f", memory {meter.ask('memory'):.0f} GB/s:" if meter else ":"))
            took = dict.fromkeys(order, 0)
            for part in range(1 if what == "prompt" else PARTS):
                for name in order:
                    took[name] += players[name].ask(what, n if what == "prompt" else n // PARTS)
            for name in order:
                line.append(f"{name} {n / took[name]:.4g}")
                if i >= 0:
                    speed[name, what].append(n / took[name])
        print(*line, flush=True)
    for what, n in kinds:
        for name in names:
            print(f"{what} of {n}, {name}: {spread(speed[name, what])} tokens/s")
        for name in names[1:]:
            ratios = [a / b for a, b in zip(speed[names[0], what], speed[name, what])]
            print(f"{what} of {n}, {names[0]} to {name}: {spread(ratios)}, ahead in {sum(r > 1 for r in ratios)} of {len(ratios)} "
                  f"rounds, by 1.1 in {sum(r >= 1.1 for r in ratios)}")


def main():
    p = argparse.ArgumentParser(usage=__doc__, add_help=False)
    p.add_argument("model")
    p.add_argument("players", nargs="+")
    for name, value in (("rounds", 8), ("prompt", 512), ("decode", 48), ("threads", 2)):
        p.add_argument("--" + name, type=int, default=value)
    args = p.parse_args()
    args.decode -= args.decode % PARTS
    players = {}
    try:
        for player in args.players:
            name, path = player.split("=", 1)
            players[name] = Player(path, args.model, args.threads, args.prompt + args.decode + 16)
        play(args, players)
    finally:
        for player in players.values():
            player.process.kill()


if __name__ == "__main__":
    main()
