#!/usr/bin/env python3
"""Official clients against `moebius serve`: clients/clients.mjs, which tools/bootstrap.sh fetches the clients for.
usage: test_clients.py MOEBIUS DEMO.gguf"""
import os
import shutil
import subprocess
import sys
import tempfile

from serving import Server

SKIPPED = 77  # Meson's
HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients")
MOEBIUS, DEMO = map(os.path.abspath, sys.argv[1:3])
TEMPLATE = ("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
            "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
            "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% if m.role == 'assistant' %}{{ eos_token }}"
            "{% endif %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")


def why_not():
    if not shutil.which("node"):
        return "there is no node"
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < 20:
        return f"node {version.strip()} is too old: expected 20"
    if not os.path.isdir(os.path.join(HERE, "node_modules", "openai")):
        return f"the clients are not there: npm ci --prefix {HERE}"
    return None


if why_not():
    print(f"skipped: {why_not()}")
    sys.exit(SKIPPED)
with tempfile.TemporaryDirectory() as tmp:
    code = 0
    for group, end in (("answers", ""), ("reasoning", "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}")):
        template = os.path.join(tmp, group)
        with open(template, "w", encoding="utf-8") as f:
            f.write(TEMPLATE + end)
        env = {**os.environ, "XDG_CACHE_HOME": tmp}
        with Server(MOEBIUS, "-m", DEMO, "--template", template, env=env) as s:
            code |= subprocess.run(["node", os.path.join(HERE, "clients.mjs"), f"http://127.0.0.1:{s.port}", group],
                                   timeout=200).returncode
sys.exit(code)
