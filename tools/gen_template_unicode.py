#!/usr/bin/env python3
"""Writes src/template/tmpl_unicode.def: what Python's str methods know of characters, by asking Python itself.

Any Python with the version below, such as Debian 12's:

    /usr/bin/python3 tools/gen_template_unicode.py > src/template/tmpl_unicode.def
"""
import sys
import unicodedata

VERSION = "14.0.0"
PER_LINE = 6

if unicodedata.unidata_version != VERSION:
    sys.exit(f"this Python has Unicode {unicodedata.unidata_version}, need {VERSION}")

TESTS = [str.isalpha, str.isdecimal, str.isdigit, str.isnumeric, str.isprintable, str.isupper, str.islower, str.isspace]


def lines(entries):
    for i in range(0, len(entries), PER_LINE):
        print(" ".join(entries[i:i + PER_LINE]))


def mapping_runs(convert):
    """(first, last, step, delta) of the characters that `convert` maps to one other character."""
    runs = []
    for code in range(0x110000):
        to = convert(chr(code))
        if len(to) != 1 or ord(to) == code:
            continue
        delta = ord(to) - code
        if runs and runs[-1][3] == delta and code - runs[-1][1] <= 2 and \
                (runs[-1][0] == runs[-1][1] or runs[-1][2] == code - runs[-1][1]):
            runs[-1][2] = code - runs[-1][1]
            runs[-1][1] = code
        else:
            runs.append([code, code, 1, delta])
    return runs


flags = []
for code in range(0x110000):
    now = sum(1 << i for i, test in enumerate(TESTS) if test(chr(code)))
    if not flags or flags[-1][1] != now:
        flags.append((code, now))

print(f"""/* CODES(first code point, properties) runs up to the next entry's; properties as in enum code_property.
 * UPPER(first, last, step, delta), LOWER: mappings to one character. UPPER_MANY(code, "text"): to several.
 * Unicode {VERSION}; written by tools/gen_template_unicode.py. */
/* clang-format off */
#ifdef CODES""")
lines([f"CODES(0x{code:04X}, {value})" for code, value in flags])
print("#endif\n#ifdef UPPER")
lines([f"UPPER(0x{a:04X}, 0x{b:04X}, {s}, {d})" for a, b, s, d in mapping_runs(str.upper)])
print("#endif\n#ifdef LOWER")
lines([f"LOWER(0x{a:04X}, 0x{b:04X}, {s}, {d})" for a, b, s, d in mapping_runs(str.lower)])
print("#endif\n#ifdef UPPER_MANY")
many = [(c, chr(c).upper()) for c in range(0x110000) if len(chr(c).upper()) > 1]
lines([f'UPPER_MANY(0x{c:04X}, "' + "".join(f"\\x{b:02x}" for b in t.encode()) + '")' for c, t in many])
print("#endif\n/* clang-format on */")
