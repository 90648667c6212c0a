#!/usr/bin/env python3
"""moebius grammar, and answers that follow schemas and grammars. usage: test_grammar_command.py MOEBIUS DEMO_MODEL"""
import json
import pathlib
import re
import sys
import tempfile

from run_functions import program_runner, run_functions

MOEBIUS, DEMO = sys.argv[1:3]
run, fails = program_runner(MOEBIUS)
FOLDER = tempfile.TemporaryDirectory()
SCHEMA = {"type": "object", "required": ["name", "age", "kind"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 3, "maximum": 99},
    "kind": {"enum": ["cat", "dog"]}}}


def file(name, text):
    path = pathlib.Path(FOLDER.name, name)
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_a_report_says_what_compiles_and_what_is_accepted():
    schema = file("schema", {**SCHEMA, "properties": {**SCHEMA["properties"], "u": {"uniqueItems": True}}})
    lines = file("lines", '{"name": "Tom", "age": 4, "kind": "cat"}\n{"name": "Tom", "age": 2}\n')
    done = run("grammar", "--json", "--schema", schema, "--check", lines, "-m", DEMO, code=8)
    report = json.loads(done.stdout)
    assert report["compiles"] is True and report["enforced_whole"] is False
    assert report["unenforced"] == [{"keyword": "uniqueItems", "pointer": "/properties/u/uniqueItems"}]
    assert report["instances"] == [{"accepted": True, "byte": None}, {"accepted": False, "byte": 24}], report
    masks = report["mask_us"]
    assert masks["n"] > 0 and masks["mean"] > 0 and masks["p99"] > 0 and report["compile_us"] > 0
    assert 0 <= masks["n_above_1ms"] <= masks["n"]
    assert b"1 of 2 texts are refused" in done.stderr
    assert run("grammar", "--regex", "a+").stdout == b"compiles\n"


def test_what_is_wrong_is_an_error_with_its_place():
    wrong = file("wrong", {"properties": {"a": {"type": "text"}}})
    fails(4, "grammar", "--schema", wrong, says=["/properties/a: type must be"])
    report = json.loads(run("grammar", "--json", "--schema", wrong, code=4).stdout)
    assert report["compiles"] is report["enforced_whole"] is False and "type must be" in report["error"]
    fails(5, "grammar", "--strict", "--schema", file("unique", {"uniqueItems": True}), says=["uniqueItems can't be enforced"])
    fails(4, "grammar", "--gbnf", file("rules", 'root ::= "a"\nb ::= c'), says=["line 2: there is no rule c"])
    fails(2, "grammar", says=["--schema FILE"])
    fails(2, "generate", "-m", DEMO, "-p", "x", "-j", "{}", "--grammar", "root ::= .", says=["choose one"])


def test_answers_follow_schemas_and_grammars():
    for seed in range(4):
        out = run("generate", "-m", DEMO, "-p", "Once", "-n", "200", "--seed", seed, "-j", json.dumps(SCHEMA)).stdout
        answer = json.loads(out)
        assert set(answer) == {"name", "age", "kind"} and answer["kind"] in ("cat", "dog"), out
        assert 3 <= answer["age"] <= 99 and answer["age"] == int(answer["age"]) and len(answer["name"]) <= 12, out
    rules = file("rules", 'root ::= "The " [a-z]+ (" " [a-z]+){2,4} "."')
    out = run("generate", "-m", DEMO, "-p", "Once", "-n", "60", "--temp", "0", "--grammar-file", rules).stdout
    assert re.fullmatch(rb"The [a-z]+( [a-z]+){2,4}\.\n", out), out
    out = run("chat", "-m", DEMO, "-n", "80", "-j", '{"enum": ["yes", "no"]}', input=b"Hello\nAgain\n").stdout
    assert len(re.findall(rb'"(?:yes|no)"', out)) == 2, out


def test_what_is_wrong_is_said_before_the_model_is_loaded():
    assert b"plan:" in run("generate", "-m", DEMO, "-p", "x", "-n", "1", "--grammar", "root ::= .").stderr
    rules = str(file("unknown-rule", "root ::= b"))
    for command in ("generate", "-m", DEMO, "-p", "x"), ("chat", "-m", DEMO):
        assert "plan:" not in fails(4, *command, "-j", '{"type": 5}', says=["type must be"])
        assert "plan:" not in fails(4, *command, "--grammar", "root ::= b", says=["there is no rule b"])
        assert "plan:" not in fails(4, *command, "--grammar-file", rules, says=[rules, "there is no rule b"])
    assert "plan:" not in fails(2, "generate", "-m", DEMO, "--tokens", "1,x", says=['"x" is not a token id'])


def test_answers_that_fit_anyway_stay_as_they_are():
    command = ["generate", "-m", DEMO, "-p", "Once upon a time", "-n", "40", "--ids", "--seed", "5"]
    assert run(*command).stdout == run(*command, "--grammar", "root ::= [^~]*").stdout


run_functions(globals())
