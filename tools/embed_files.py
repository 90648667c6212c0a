#!/usr/bin/env python3
"""Writes a C file that holds text files, in the form of server/page.h.
usage: embed_files.py OUTPUT.c FILE..."""
import hashlib
import os
import sys

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PIECE = 100  # bytes in a line


def literal(data):
    """A C string, in octal where a byte is no plain character."""
    return "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in data)


def main(output, *paths):
    rows = []
    with open(output, "w", encoding="ascii") as out:
        out.write('/* Made by tools/embed_files.py. */\n#include "server/page.h"\n')
        for i, path in enumerate(paths):
            with open(path, "rb") as f:
                data = f.read()
            data.decode("utf-8")
            if b"\0" in data:
                sys.exit(f"embed_files.py: {path}: expected a text without zero bytes")
            kind = TYPES[os.path.splitext(path)[1]]
            lines = "\n".join(f'    "{literal(data[k:k + PIECE])}"' for k in range(0, len(data), PIECE)) or '    ""'
            etag = hashlib.sha256(data).hexdigest()[:32]
            out.write(f"\nstatic const char file_{i}[] =\n{lines};\n")
            rows.append(f'    {{"{os.path.basename(path)}", "{kind}; charset=utf-8", "\\"{etag}\\"", file_{i}, {len(data)}}},\n')
        out.write("\nconst struct page_file page_files[] = {\n" + "".join(rows) + "};\n")
        out.write("const size_t page_n_files = sizeof page_files / sizeof *page_files;\n")


main(*sys.argv[1:])
