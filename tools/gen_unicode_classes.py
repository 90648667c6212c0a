#!/usr/bin/env python3
"""Writes src/tokenizer/unicode_classes.def: the general categories that split patterns name.

The version is the one that the GGUF field tokenises by; Python 3.13 has it:

    python3.13 tools/gen_unicode_classes.py > src/tokenizer/unicode_classes.def
"""
import sys
import unicodedata

VERSION = "15.1.0"
PER_LINE = 5

if unicodedata.unidata_version != VERSION:
    sys.exit(f"this Python has Unicode {unicodedata.unidata_version}, need {VERSION}")

starts = []
for code in range(0x110000):
    major = unicodedata.category(chr(code))[0]
    major = major if major in "LMNPS" else "OTHER"
    if not starts or starts[-1][1] != major:
        starts.append((code, major))

print(f"""/* CLASS(first code point, general category): runs up to the next entry's first code point.
 * L letters, M marks, N numbers, P punctuation, S symbols, OTHER all else, unassigned ones included.
 * Unicode {VERSION}; written by tools/gen_unicode_classes.py. */
/* clang-format off */""")
for i in range(0, len(starts), PER_LINE):
    print(" ".join(f"CLASS(0x{code:04X}, {major})" for code, major in starts[i : i + PER_LINE]))
print("/* clang-format on */")
