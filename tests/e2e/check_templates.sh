#!/bin/sh
# Compares our chat templates with jinja2 on llama.cpp's collection of real ones, models/templates/*.jinja, and checks that
# their prompts' special tokens come from them alone, and that calls that they write are read back (tests/e2e/call_cases,
# built beside MOEBIUS).
#
#   check_templates.sh MOEBIUS [FOLDER]
#
# Without a folder of templates, llama.cpp's sources are fetched as for check_vocabs.sh. Needs Python with jinja2
# (Debian: python3-jinja2), the system's when there are several.
set -eu

[ $# -ge 1 ] || { echo "usage: $0 MOEBIUS [FOLDER]" >&2; exit 2; }
here=$(dirname "$0")
. "$here/llama_sources.sh"
folder=${2:-$(llama_sources "$(dirname "$1")/tests/e2e/vocabs-cache")/models/templates}
"$(dirname "$1")/tests/e2e/call_cases" "$folder"/*.jinja
for python in python3 /usr/bin/python3; do
    "$python" -c 'import jinja2' 2>/dev/null || continue
    "$python" "$here/check_templates.py" "$1" "$folder"
    exec "$python" "$here/check_prompts.py" "$1" "$folder"
done
echo "$0: no Python with jinja2 (Debian: apt-get install python3-jinja2)" >&2
exit 1
