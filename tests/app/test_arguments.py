"""What can be said on the command line, and what is answered to what cannot."""

import argparse
import copy
import re
import subprocess
import sys
from dataclasses import Field
from typing import Any

import pytest

from fathomless.app.commands.arguments import parser
from fathomless.app.commands.flags import check_options, flag_of
from fathomless.estimators.declaring import nested_options
from fathomless.estimators.options import options_of
from fathomless.estimators.renamed import Moved, moved_options
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.families.family import Family
from fathomless.families.registry import families

COMMANDS = [
    "fit",
    "predict",
    "serve",
    "evaluate",
    "compare",
    "explain",
    "sample",
    "impute",
    "report",
    "export",
    "cite",
    "reproduce",
    "demo",
]
PARSER = parser({name: lambda given: 0 for name in COMMANDS})
FIT = ["fit", "data.csv", "--target", "price"]
KINDS = (UnboundedDepthClassifier, UnboundedDepthRegressor)
BOTH = {option.name: option for kind in KINDS for option in options_of(kind)}
NESTED = {
    name: copy.copy(inner)
    for kind in KINDS
    for name, option, key, inner in nested_options(options_of(kind))
    if inner.name != option.metadata["values"][key].plain  # which is the flag of the option itself
}
for nested, inner in NESTED.items():  # as the others, by the names of set_params
    inner.name = nested
OPTIONS = [option for option in (BOTH | NESTED).values() if option.metadata["kind"] != "object"]


def parsed(*words: str) -> argparse.Namespace:
    return PARSER.parse_args(words)


def options(*words: str) -> dict[str, Any]:
    """Parse the words after a fit; return the options of the estimator."""
    found = vars(parsed(*FIT, *words))
    asked = {name.removeprefix("option_"): value for name, value in found.items() if name.startswith("option_")}
    return {name.rpartition(".")[2]: value for name, value in asked.items()}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that is said of words that are not allowed."""
    with pytest.raises(SystemExit) as stop:
        parsed(*words)
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    return captured.err.rstrip()


def help_of(capsys: pytest.CaptureFixture[str], *words: str, all_: bool = False) -> str:
    with pytest.raises(SystemExit) as stop:
        parsed(*words, "--help-all" if all_ else "--help")
    captured = capsys.readouterr()
    assert (stop.value.code, captured.err) == (0, "")
    return captured.out


def flag(option: "Field[Any]") -> str:
    return flag_of(option.name)


def name_of(value: Any) -> str:
    return flag(value) if isinstance(value, Field) else str(value)


# ------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = help_of(capsys, *[command] * bool(command))
    assert max(map(len, text.splitlines())) <= int(columns)
    assert text.startswith(f"usage: fathomless {command}".strip())
    assert "==" not in text  # as in "==SUPPRESS=="
    assert "%(" not in text
    assert "`" not in text


def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "fathomless", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fathomless ")


def test_help_needs_neither_torch_nor_numpy_nor_pyarrow() -> None:
    code = (
        "import contextlib, io, sys\n"
        "from fathomless.app.cli import main\n"
        f"for words in [[], *([name] for name in {COMMANDS})]:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "        assert main([*words, '--help']) == 0 and 'usage' in said.getvalue()\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sklearn', 'scipy', 'matplotlib', 'jinja2', 'safetensors', 'tqdm'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_what_help_all_explains(capsys: pytest.CaptureFixture[str]) -> None:
    brief, whole = help_of(capsys, "fit"), help_of(capsys, "fit", all_=True)
    assert len(brief.splitlines()) < 150
    assert brief.index("--target") < brief.index("--structure") < brief.index("--decimal") < brief.index("--epochs")
    for name in sorted(set(re.findall(r"--[a-z][-a-z0-9.]*[a-z0-9]", whole)) - {"--help-all"}):
        if f"\n  {name}" in whole:
            assert re.search(rf"(^|\s){re.escape(name)}($|[\s,])", brief), name


def test_every_option_of_an_estimator_is_offered_unless_only_python_can_give_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of(capsys, "fit", all_=True)
    offered = {option.name for option in OPTIONS if re.search(rf"^  {flag(option)}[ ,]", text, re.MULTILINE)}
    for option in (BOTH | NESTED).values():
        assert (option.name in offered) == (option.metadata["kind"] != "object"), option.name
    assert {"weights__chains", "structure_from__initial_depth"} <= offered
    assert not re.search(r"--(leapfrogs|initial-depth)\b", text)  # the version before had them


@pytest.mark.parametrize("option", OPTIONS, ids=name_of)
def test_the_default_that_help_shows_is_that_of_the_estimators(
    capsys: pytest.CaptureFixture[str], option: "Field[Any]"
) -> None:
    text = " ".join(help_of(capsys, "fit", all_=True).split())
    shown = re.search(rf" {flag(option)}[ ,].*?\(default: (.*?)\)", text)
    assert shown, flag(option)
    default = option.default
    if option.metadata["kind"] == "flag":
        assert shown[1] == ("yes" if default else "no")
    else:  # what is shown can be given, and means the default
        assert options(f"{flag(option)}={shown[1]}") == {option.name: default}


def test_a_fit_without_options_is_that_of_the_default_estimator() -> None:
    assert options() == {}
    given = parsed(*FIT)
    assert (given.seed, given.task, given.structure, given.out, given.threads) == (0, "auto", "depth", None, None)


# ---------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("family", "old", "place"),
    [
        pytest.param(family, old, place, id=f"{family.name}-{old}")
        for family in families().values()
        for old, place in moved_options(family.options).items()
    ],
)
def test_old_flags_take_what_they_took(family: Family, old: str, place: Moved) -> None:
    nested = {name: inner for name, _, _, inner in nested_options(options_of(family.options))}
    allowed = nested[place.nested].metadata
    if allowed["kind"] == "object":
        return
    texts: dict[str, Any] = {name: name for name in allowed["names"]}
    for text, value in (texts or {"7": 7}).items():
        assert options(f"--{old.replace('_', '-')}", text, "--structure", family.name) == {old: value}


@pytest.mark.parametrize("option", OPTIONS, ids=name_of)
def test_every_option_takes_what_its_declaration_allows(option: "Field[Any]") -> None:
    kind, least = option.metadata["kind"], option.metadata["least"]
    for name in option.metadata["names"]:
        assert options(flag(option), name) == {option.name: name}
    for special in option.metadata["special"]:
        if not isinstance(special, type):
            assert options(flag(option), "none" if special is None else special) == {option.name: special}
    match kind:
        case "whole":
            (value,) = options(flag(option), str(int(least))).values()
            assert (type(value), value) == (int, least)
        case "real":
            (value,) = options(flag(option), "1e-3").values()
            assert (type(value), value) == (float, 0.001)
        case "flag":
            assert options(flag(option)) == {option.name: True}
            assert options(flag(option).replace("--", "--no-")) == {option.name: False}
        case "order":
            assert options(flag(option)) == {option.name: True}
            assert options(flag(option), "low,high") == {option.name: ["low", "high"]}
        case "text":
            assert options(flag(option), "any thing") == {option.name: "any thing"}
        case "lists":
            assert options(flag(option), "width=8,16 weight_prior=0.5,columns") == {
                option.name: {"width": [8, 16], "weight_prior": [0.5, "columns"]}
            }


def test_a_law_over_depth_may_be_a_number() -> None:
    assert options("--depth-law", "3") == {"depth_law": 3}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (option, text)
        for option in OPTIONS
        for text in ("bogus", "", "1.5", "ten", "1,5", "None", "a=1 a=2", "a=1,", "=1")
        if (option.metadata["kind"], text) not in (("real", "1.5"), ("order", "1,5"))
        and option.metadata["kind"] != "text"
    ],
    ids=name_of,
)
def test_what_an_option_cannot_be_is_refused_with_what_it_can_be(
    capsys: pytest.CaptureFixture[str], option: "Field[Any]", text: str
) -> None:
    said = refusal(capsys, *FIT, f"{flag(option)}={text}")
    assert said.startswith("fathomless fit: error: argument ")
    assert said.endswith(" (see fathomless fit --help)")
    assert flag(option) in said
    assert repr(text) in said
    for allowed in option.metadata["names"]:
        assert allowed in said
    assert ("a whole number" in said) == (
        option.metadata["kind"] == "whole" or option.name in ("depth_law", "candidates")
    )
    assert ("a number" in said) == (option.metadata["kind"] == "real")


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.metadata["kind"] not in ("flag", "order")], ids=name_of
)
def test_an_option_without_its_value_is_refused(capsys: pytest.CaptureFixture[str], option: "Field[Any]") -> None:
    assert f"argument {flag(option)}: expected one argument" in refusal(capsys, *FIT, flag(option))


# ------------------------------------------------------------------------------------------ other arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "fathomless: error: the following arguments are required: COMMAND (see fathomless --help)"),
        (["fot"], "fathomless: error: argument COMMAND: invalid choice: 'fot' (choose from "),
        (["fot"], "; did you mean fit? (see fathomless --help)"),
        ([*FIT, "--structure", "dept"], "; did you mean depth?"),
        (["compare", "data", "--target", "x", "--jobs", "0"], "argument --jobs: '0' was given; 1 or more processes"),
        (
            ["compare", "data", "--target", "x", "--minutes", "nan"],
            "argument --minutes: 'nan' was given; a positive number",
        ),
        ([*FIT, "--na", "a,,b"], "argument --na: 'a,,b' was given; words with commas between them are allowed"),
        (["fit"], "fathomless fit: error: the following arguments are required: DATA (see fathomless fit -"),
        (["sample"], "fathomless sample: error: the following arguments are required: RUN"),
        (["sample", "run", "--rows", "0"], "argument --rows: '0' was given; 1 or more rows are allowed"),
        (["serve", "run", "--port", "65536"], "argument --port: '65536' was given; a whole number from 0 to 65535 is"),
        (["serve", "run", "--max-rows", "0"], "argument --max-rows: '0' was given; 1 or more rows are allowed"),
        (
            ["sample", "run", "--rows", "x"],
            "argument --rows: 'x' was given; 1 or more rows are allowed, a whole number",
        ),
        (["impute", "run", "data", "--draws", "0"], "argument --draws: '0' was given; 1 or more draws are allowed"),
        (["serve", "run", "--port", "x"], "argument --port: 'x' was given; a whole number from 0 to 65535 is allowed"),
        (["explain", "run", "data", "--row", "0"], "argument --row: '0' was given; rows are counted from 1: give a"),
        (
            ["explain", "run", "data", "--row", "1.5"],
            "argument --row: '1.5' was given; rows are counted from 1: give a",
        ),
        ([*FIT, "--ordinal", '"so, so",'], "separated by commas, in double quotes if they contain a comma"),
        ([*FIT, "--ordinal", '"so, so'], "separated by commas, in double quotes if they contain a comma"),
        (["predict", "run"], "fathomless predict: error: the following arguments are required: DATA"),
        (["evaluate"], "fathomless evaluate: error: the following arguments are required: RUN, DATA"),
        (["report"], "fathomless report: error: the following arguments are required: RUN"),
        (["cite", "a", "b"], "fathomless cite: error: b was given, which is no argument of this command"),
        (["demo", "there"], "fathomless demo: error: there was given, which is no argument of this command"),
        ([*FIT, "--widht", "8"], "--widht 8 was given, which is no argument of this command; did you mean --width?"),
        ([*FIT, "--widht=8"], "--widht=8 was given, which is no argument of this command; did you mean --width?"),
        ([*FIT, "--epoch", "8"], "did you mean --epochs?"),
        ([*FIT, "--targ", "x"], "did you mean --target?"),  # and not taken for it
        ([*FIT, "--lr", "1"], "--lr 1 was given, which is no argument of this command; did you mean --learning-rate?"),
        ([*FIT, "--learning_rate=1"], "did you mean --learning-rate?"),
        ([*FIT, "--val-frac", "0.1"], "did you mean --validation-fraction?"),
        ([*FIT, "-t", "x"], "did you mean --target?"),
        (["predict", "run", "data", "-o", "x"], "did you mean --out?"),
        (["pred"], "did you mean predict?"),
        ([*FIT, "--zzz"], "--zzz was given, which is no argument of this command (see"),
        (["predict", "run", "data", "--intervall", "0.9"], "did you mean --interval?"),
        ([*FIT, "--resume", "--overwrite"], "argument --overwrite: not allowed with argument --resume"),
        ([*FIT, "--task", "guess"], "argument --task: invalid choice: 'guess' (choose from "),
        ([*FIT, "--structure", "width"], "argument --structure: invalid choice: 'width' (choose from "),
        ([*FIT, "--decimal", ";"], "argument --decimal: invalid choice: ';' (choose from "),
        (["predict", "run", "data", "--unseen", "drop"], "argument --unseen: invalid choice: 'drop' (choose from "),
        *(
            ([*FIT, "--seed", text], f"argument --seed: {text!r} was given; a whole number, 0 or more, is allowed")
            for text in ("-1", "1.0", "x", "", str(2**63))
        ),
        *(
            ([*FIT, "--threads", text], f"--threads: {text!r} was given; a whole number from 1 to 1024 is allowed")
            for text in ("0", "-1", "1.0", "x", "", "1025", "9" * 30, "²")
        ),
        *(
            (["predict", "run", "data", "--interval", text], f"{text!r} was given; a number between 0 and 1, such as")
            for text in ("0", "1", "90", "-0.5", "abc", "nan", "inf", "0,9", "")
        ),
        *(
            ([*words, "--out", text], f"argument --out: {text!r} was given; a name is needed")
            for words in (FIT, ["predict", "run", "data"], ["report", "run"], ["demo"])
            for text in ("", " ")
        ),
    ],
    ids=lambda v: " ".join(v)[-30:] if isinstance(v, list) else "",
)
def test_what_cannot_be_said_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refusal(capsys, *words)


def test_arguments_may_stand_in_any_order() -> None:
    given = parsed("fit", "--target", "a", "--drop", "b", "data.csv", "--target", "c", "--drop", "d")
    assert (given.data, given.target, given.drop) == ("data.csv", ["a", "c"], ["b", "d"])


def test_runs_may_stand_before_and_after_options() -> None:
    for words in ("a b --on t --json", "--on t a --json b", "a --on t b --json", "a --on t --json b"):
        given = parsed("compare", *words.split())
        assert (given.data, given.on, given.json) == (["a", "b"], "t", True)


def test_words_after_an_unknown_option_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--off b was given, which is no argument of this command" in refusal(capsys, "compare", "a", "--off", "b")


def test_repeated_arguments_do_not_stay_for_the_next_command_line() -> None:
    assert parsed(*FIT, "--drop", "a").drop == ["a"]
    assert parsed(*FIT).drop == []


@pytest.mark.parametrize("text", ["0", "9223372036854775807"])
def test_seeds_go_up_to_what_generators_take(text: str) -> None:
    assert parsed(*FIT, "--seed", text).seed == int(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_comes_with_what_runs_it(command: str) -> None:
    commands = {name: (lambda given, code=code: code) for code, name in enumerate(COMMANDS)}
    needed = {
        "fit": ["data", "--target", "y"],
        "predict": ["run", "data"],
        "serve": ["run"],
        "evaluate": ["run", "data"],
        "compare": ["data", "--target", "y"],
        "explain": ["run", "data"],
        "sample": ["run"],
        "impute": ["run", "data"],
        "report": ["r"],
        "export": ["r"],
    }
    given = parser(commands).parse_args([command, *needed.get(command, [])])
    assert given.run(given) == COMMANDS.index(command)


def test_flags_of_renamed_options_take_what_they_took() -> None:
    assert options("--head", "bayes") == {"head": "bayes"}
    found, said = check_options({"head": "bayes"}, families()["depth"], "regression")
    assert found == {"last_layer": "conjugate"}
    assert said == ["--head is deprecated; use --last-layer"]


@pytest.mark.parametrize(("alias", "name"), [("dun", "depth-uncertainty"), ("mvg", "matrix-normal")])
def test_short_names_of_structures_are_accepted(alias: str, name: str) -> None:
    assert parsed(*FIT, "--structure", alias).structure == name
