#!/usr/bin/env python3
"""Checks the law of layers.txt: who may include whom. `--self-test` checks the checker.

Every #include "..." below src/ names room/file of the same room or of one that layers.txt allows; a header called
*_internal.h stays in its room; file names are unique, so that a name alone says which file is meant.
"""
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]*)"')
PUBLIC = {"moebius/moebius.h": "moebius.h"}


def read_law(path):
    """{room: allowed}, and complaints about the law itself: rooms may name only rooms above them in the file."""
    law, complaints = {}, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0]
        if not line.strip():
            continue
        room, arrow, allowed = line.partition("<-")
        if not arrow:
            complaints.append(f"{path.name}:{number}: expected ROOM <- ROOMS")
            continue
        for name in allowed.split():
            if name not in law and name not in PUBLIC.values():
                complaints.append(f"{path.name}:{number}: {name} is not a room above {room.strip()}")
        law[room.strip()] = set(allowed.split())
    return law, complaints


def check_include(root, law, room, included):
    """What is wrong with this include in this room, or None."""
    if included in PUBLIC:
        return None if PUBLIC[included] in law[room] else f"{room} may not include the public header"
    target, slash, name = included.partition("/")
    if not slash or target not in law:
        return "expected room/file, from src/"
    if target != room and target not in law[room]:
        return f"{room} may not include {target} (layers.txt)"
    if target != room and name.endswith("_internal.h"):
        return f"this header is internal to {target}"
    if not any((root / "src" / (included + made)).is_file() for made in ("", ".in")):
        return "there is no such file"
    return None


def check_tree(root):
    """All complaints about the tree at root."""
    law, complaints = read_law(root / "layers.txt")
    seen = {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".c", ".h", ".def"):
            continue
        where = path.relative_to(root)
        room = path.relative_to(root / "src").parts[0]
        if path.name in seen:
            complaints.append(f"{where}: {seen[path.name]} has the same name")
        seen[path.name] = where
        if room not in law:
            complaints.append(f"{where}: {room} is not in layers.txt")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            wrong = match and check_include(root, law, room, match[1])
            if wrong:
                complaints.append(f'{where}:{number}: "{match[1]}": {wrong}')
    return complaints


def self_test():
    """Plants one violation after the other into a tree that is in order; each must be the only complaint."""
    clean = {
        "layers.txt": "low <-\nhigh <- low moebius.h # the top\n",
        "src/low/low.h": "#include <stdio.h>\n",
        "src/low/low_internal.h": "",
        "src/high/high.h": '#include "low/low.h"\n#include "moebius/moebius.h"\n',
    }
    planted = {
        "upward": ("src/low/low.c", '#include "low/low.h"\n # include "high/high.h"\n'),
        "public header": ("src/low/low.c", '#include "moebius/moebius.h"\n'),
        "internal": ("src/high/high.c", '#include "low/low_internal.h"\n'),
        "without room": ("src/low/low.c", '#include "low.h"\n'),
        "missing": ("src/high/high.c", '#include "low/none.h"\n'),
        "same name": ("src/high/low.h", ""),
        "unknown room": ("src/attic/old.c", ""),
        "law looks up": ("layers.txt", "low <- high\nhigh <- low moebius.h\n"),
    }
    failed = 0
    for name, plant in {"clean": None, **planted}.items():
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in {**clean, **dict([plant] if plant else [])}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            complaints = check_tree(root)
        if len(complaints) != (1 if plant else 0):
            print(f"self-test: {name}: {complaints}")
            failed += 1
    return failed


def main():
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(1 if self_test() else 0)
    complaints = check_tree(pathlib.Path(__file__).resolve().parent.parent)
    print("\n".join(complaints) if complaints else "layers: in order")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
