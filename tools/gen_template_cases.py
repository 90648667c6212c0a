#!/usr/bin/env python3
"""Writes tests/unit/template_cases.json: small templates and what jinja2 makes of them, so that the tests need no jinja2.

    /usr/bin/python3 tools/gen_template_cases.py > tests/unit/template_cases.json

jinja2 is set up as tests/e2e/check_templates.py does it. Needs jinja2 3.1 (Debian: python3-jinja2)."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "e2e"))
from check_templates import environment  # noqa: E402

VARS = {"s": "Hello World", "u": "Grüße 今天 ß", "e": "", "i": 7, "f": 2.5, "t": True, "no": None, "l": [3, 1, 2],
        "ls": ["b", "A", "c"], "d": {"b": 1, "a": 2, "C": [1]}, "ml": "one\n two\n\nthree\r\nfour", "h": "<b>&'\"</b>",
        "lo": [{"name": "Bob", "age": 3, "ok": True}, {"name": "alice", "age": 1}, {"name": "Eve", "age": 2}],
        "messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "Hi\n"},
                     {"role": "assistant", "content": "<think>hm</think>Yo", "tool_calls": [
                         {"function": {"name": "f", "arguments": {"x": [1, 2.0, None], "ö": "\"q\""}}}]}]}

EXPRESSIONS = """
1 + 2 * 3 - -4
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 / 2, 2 ** 10, 2 ** -1, -2 ** 2
7.5 // 2, -7.5 % 2, 1e16, 1e15, 0.1 + 0.2, 1.0, 1e-5, 0.0001, 123456789.0, 1_000, 0x1F, 0b11, 0o17
9223372036854775807
1 == 1.0, true == 1, 'a' < 'b', [1, 2] < [1, 3], 1 < 2 < 3, 1 < 3 < 2, none == none
'a' in 'abc', 2 in l, 'a' in d, 4 not in l
s and 0 or 'x', not s, e or none
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x']
'a' 'b' "c\\n\\t\\x41\\u00e9\\\\\\q"
s[0], s[-1], s[1:4], s[::-1], s[-3:], u[6:8], l[1:], l[::2], l[5:1:-2], s[20:]
d.a, d['a'], d.missing is defined, d.get('x'), d.get('x', 5), d.items()|list, d.keys()|list
l.0, lo[0].name, lo[1]['name'], lo[-1].age
undefined_thing
undefined_thing is defined, undefined_thing|default('x'), e|default('x'), e|default('x', true)
s|upper, s|lower, s|title, 'fOO bar'|capitalize, u|upper, 'x y-z (a)'|title
'  x '|trim, 'xxaxx'|trim('x'), s|length, u|length, l|length, d|length
l|first, l|last, l|sort, ls|sort, ls|sort(case_sensitive=true), l|sort(reverse=true), lo|sort(attribute='age')|map(attribute='name')|list
l|join, l|join(', '), lo|join('-', attribute='name'), l|sum, lo|sum(attribute='age'), l|min, l|max
lo|map(attribute='name')|list, ls|map('upper')|list, lo|map(attribute='ok', default='?')|list
lo|selectattr('ok')|list|length, lo|selectattr('age', 'gt', 1)|map(attribute='name')|join(' '), lo|rejectattr('ok', 'defined')|list|length
[1, 2, 3, 4]|select('odd')|list, [1, 2, 3]|reject('odd')|list, [0, 1, '', 'a']|select|list
d|dictsort, d|dictsort(true), {"x": "B", "y": "a"}|dictsort(false, "value"), {'b': 2, 'a': 1}|dictsort(by='value', reverse=true)
d|items|list, ['a', 'A', 'b']|unique|list, l|reverse|list, 'abc'|reverse, 'abc'|list
[1, 2, 3, 4, 5]|batch(2)|list, [1, 2, 3]|batch(2, 'x')|list, [1, 2, 3, 4, 5]|slice(2)|list
lo|groupby('age')|length, ['b', 'a']|sort|join
ml|indent, ml|indent(2, true), ml|indent(2, blank=true), ml|indent('> ', first=true)
'foo bar baz qux'|truncate(9), 'foo bar baz qux'|truncate(9, true), 'foo bar baz qux'|truncate(11), 'foo bar'|truncate(5, false, '!', 0)
s|replace('l', 'L'), s|replace('l', 'L', 1), s|replace('', '-'), 5|replace(5, 6)
'42'|int, '4x'|int, '4.7'|int, 'x'|int(9), '0x1f'|int(base=16), 4.9|int, true|int, '1e3'|float, 'x'|float, none|int
2.5|round, 3.5|round, 2.675|round(2), 42.55|round(1, 'floor'), 42.1|round(method='ceil'), 5|round, 1234|round(-2)
-3|abs, 'a b c'|wordcount, 'x'|center(5), 5|string ~ 5
h|e, h|escape|e, (h|safe) + '<', h|forceescape, 'a'|safe ~ '<'
'%s is %d or %.2f' % ('x', 3, 2.5), '%05d|%-5s|%5s|%+d|%x' % (42, 'ab', 'cd', 3, 255), '%%|%(a)s' % d, '%r' % 'x', '%s' % [1]
'{} {}'.format(1, 'a'), '{1}{0}'.format(1, 2), '{a:>5}|{b:<5}|{c:^5}|{d:05d}'.format(a=1, b='x', c='y', d=42), '{:.3f} {:,} {!r}'.format(1.5, 1234567, 'x'), '{{}}'.format(), '{0[a]} {0.a}'.format({'a': 1})|trim
'%s and %s'|format('a', 'b')
s.upper(), s.split(), s.split('o'), s.split('o', 1), s.rsplit(' ', 1), 'a,,b'.split(','), ml.splitlines(), ''.split(','), ''.split()
s.startswith('He'), s.endswith(('x', 'd')), s.find('o'), s.rfind('o'), s.find('zz'), s.count('l'), s.index('W')
'xax'.strip('x'), ' a '.lstrip() ~ '|', ' a '.rstrip() ~ '|', '\u00a0x\u2003'.strip(), s.partition(' '), s.rpartition('o'), 'a'.partition('x')
'a'.ljust(3) ~ '|', 'a'.rjust(3, '.'), 'ab'.center(5, '*'), '-7'.zfill(5), 'hello wORLD'.title(), 'aB'.swapcase(), 'ßa'.upper()
'abc'.isalpha(), '12'.isdigit(), 'a1'.isalnum(), ' '.isspace(), 'AB'.isupper(), 'ab'.islower(), ''.isalpha(), '½'.isnumeric(), 'x'.isprintable()
'abc'.removeprefix('a'), 'abc'.removesuffix('c'), ', '.join(['a', 'b']), s.replace('l', '1', 2)
d|tojson, l|tojson(indent=2), {'ö': 'é\\n\\u0001"', 'n': none, 'f': 1.0, 'l': []}|tojson, 'é😀'|tojson(ensure_ascii=true), d|tojson(separators=(',', ':'), sort_keys=true), {}|tojson(indent=4), (1, 2)|tojson, {1: 2, none: 3}|tojson
l, d, (1,), (), "it's", ['it\\'s', 'a"b', '\\n\\\\', 'é', '\\x07', '\\u200b'], {'a': {'b': none}}, range(3), 1.0, true
1 is odd, 2 is even, 6 is divisibleby 3, 's' is string, 1 is number, true is number, 1.5 is float, 1 is integer, true is integer, true is boolean
none is none, d is mapping, l is sequence, l is iterable, 's' is iterable, 1 is iterable, d is sequence, 'a' is lower, 'A' is upper, l is sameas l, true is sameas true
1 is eq 1, 1 is ne 2, 1 is lt 2, 3 is ge 3, 'a' is in 'abc', 5 is not string, s is not none
'x' if t else 'y', 'x' if e, ('a' if e else 'b' if no else 'c')
range(3)|list, range(1, 7, 2)|list, range(5, 0, -2)|list, range(10)[2:5]
dict(a=1, b=2), dict([('x', 1)]), dict({'a': 1}, b=2), namespace(x=1).x
cycler('a', 'b').next(), joiner(',')() ~ '|'
lo|length > 2 and lo[0].ok, [1, [2, [3]]], [] + [1] + l, (1, 2) + (3,), 'ab' * 3, [0] * 3
messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|first|trim
messages[-1].content.split('</think>')[-1].lstrip('\\n'), messages[2].tool_calls[0].function|tojson
messages[:-1]|length, messages[1:]|map(attribute='role')|join(','), messages|map('length')|list
'' is defined, not undefined_thing, undefined_thing ~ 'x', undefined_thing|list, undefined_thing|length, undefined_thing == undefined_other
l|string|length, (l|string)[1:2], 1.5|string, none|string, s|list|length
[3, 1]|sort|first, [true, 2, 0.5]|sort, 'b' > 'a', 'é' > 'z'
loop is defined, strftime_now is defined, raise_exception is callable
""".strip().split("\n")

ERRORS = """
undefined_thing.x
undefined_thing + 1
undefined_thing()
d.missing.x
none.x.y
1 + 'a'
'a' + 1
1 / 0
1 % 0
[1] < 1
1 < 'a'
l.append()
l.insert(0, 4)
(1, 2).append(3)
range(2).append(3)
d.update({'x': 1})
[1, 'a']|sort
undefined_thing|tojson
range(3)|map('nofilter')|list
1 is notest
s|nofilter
range(1000000)
raise_exception('no')
s.index('z')
none|length
1|list
{[1]: 2}
'%d' % 'x'
'%s %s' % ('a',)
'{} {}'.format(1)
s['a':]
dict(a=1, a=2)
1 if
(1
[1, 2
'abc
{{ 1 }}
1 +
""".strip().split("\n")

TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }},{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}\n{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for x in [] %}no{% else %}empty{% endfor %}",
    "{% for x in range(9) if x is odd %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% for x in l %}{% break %}{% else %}else after break{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in l if x != ns.n %}{% set ns.n = x %}{{ x }}{% set y = x %}{% endfor %}{{ ns.n }}{{ y is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x %}a{{ i }}b{% endset %}[{{ x }}]{% set y | upper | trim %} abc {% endset %}[{{ y }}]",
    "{% macro m(a, b=2, c=a) %}{{ a }},{{ b }},{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=5) }}{{ m() }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}",
    "{% macro m(x) %}<{{ caller(x, y=2) }}>{% endmacro %}{% call(a, y) m(1) %}{{ a }}{{ y }}{% endcall %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'set' %}{{ m() }}",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% filter upper %}x{{ s }}{% endfilter %}",
    "{% if false %}a{% elif i == 7 %}b{% else %}c{% endif %}{% if not t %}x{% endif %}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if t -%}\n  b\n  {%- endif -%}\nc\n", "a\n  {%+ if t +%}\n  b\n  {%+ endif +%}\nc\n",
    "  {{ i }}  \n  {{- i -}}  \n  x", "a {# c #} b\n  {# c #}\nd {#- c -#} e\n", "{% raw %}{{ x }} {% y %}{% endraw %}|\n{%- raw -%} {{ z }} {%- endraw -%} end",
    "x\r\ny\rz\n", "x\n\n", "{{ 'a\n b' }}", "{% generation %}x{{ i }}{% endgeneration %}{% block b %}y{% endblock %}", "{% print i, s %}",
    "{{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }}{{ '}}' }}{{ '%}' }}", "{{ [1, 2,] }}{{ (1, 2,) }}{{ {'a': 1,} }}",
    "{%- for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' }}{{ m.content | trim }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(found=false) -%}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if not ns.found and message.role == 'user' %}\n        {%- set ns.found = true %}{{ index }}\n    {%- endif %}\n{%- endfor %}",
    "{%- for m in messages if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function %}<tool>{{ f.name }}\n{% for k, v in f.arguments|items %}{{ k }}: {{ v if v is string else v|tojson }}\n{% endfor %}</tool>{% endfor %}{% endfor %}",
    "{% macro a() %}{% macro b() %}{{ i }}{% endmacro %}{{ b() }}{% endmacro %}{{ a() }}{{ b is defined }}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{{ l.append(4) }}{{ l }}{% set m = l %}{% set _ = m.append([5]) %}{{ l }}{% set c = l.copy() %}{% set _ = c.append(6) %}{{ l }}{{ c|length }}",
    "{% set q = namespace(ids=[]) %}{% for m in messages %}{% set _ = q.ids.append(m.role ~ ':' ~ q.ids|length) %}{% endfor %}{{ q.ids }}{{ q.ids[0] }}{% set q.ids = q.ids[1:] %}{{ q.ids|join(',') }}",
    "{% set a = [1] %}{% set b = a + [2] %}{% set d2 = {'x': a} %}{% set t = (a, a) %}{% set _ = a.append(3) %}{{ a }}{{ b }}{{ d2 }}{{ t }}{{ a|list is sameas a }}",
    "{% macro m(x, y=[]) %}{% set _ = y.append(x) %}{{ y }}{% endmacro %}{{ m(1) }}{{ m(2) }}{% for x in [[], []] %}{% set _ = x.append(loop.index) %}{{ x }}{% endfor %}",
    "{% set s2 = [1] %}{% for x in s2 %}{{ x }}{% if x < 5 %}{% set _ = s2.append(x + 1) %}{% endif %}{% endfor %}{{ s2 }}",
    # refused
    "{% if %}x{% endif %}", "{% if t %}x", "{% endif %}", "{% for %}{% endfor %}", "{% for x in l %}{% endif %}", "{% unknown %}", "{{ x", "{% set 1 = 2 %}",
    "{% break %}", "{# no end", "{% raw %} no end", "{% set x.y = 1 %}", "{% for a, b in l %}{% endfor %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ 1 }", "{% include 'x' %}",
    "{% macro m() %}{% endmacro %}{{ m(1) }}", "{% macro m() %}{% endmacro %}{{ m(x=1) }}", "{{ ] }}", "{{ (1] }}", "{{ a b }}", "{{ 1 is odd is even }}", "{{ m(a=1, 2) }}", "{{ x|3 }}", "{{ x. }}",
]


def main():
    env, cases = environment(), []
    for source in [f"{{{{ ({x},) }}}}" if "," in x else f"{{{{ {x} }}}}" for x in EXPRESSIONS] + \
                  [f"{{{{ {x} }}}}" for x in ERRORS] + TEMPLATES:
        try:
            text = env.from_string(source).render(**json.loads(json.dumps(VARS)), add_generation_prompt=True, eos_token="</s>")
            cases.append({"template": source, "text": text})
        except Exception:  # whatever a template may raise
            cases.append({"template": source, "text": None})
    wrong = [c["template"] for c in cases[:len(EXPRESSIONS)] if c["text"] is None]
    wrong += [c["template"] for c in cases[len(EXPRESSIONS):][:len(ERRORS)] if c["text"] is not None]
    if wrong:
        sys.exit("\n".join(["not what it was meant to be:"] + wrong))
    print("[" + json.dumps(VARS, ensure_ascii=False) + ",\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "]")


main()
