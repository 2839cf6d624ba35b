"""Parser of the command line: commands, their arguments, and the options of the estimators.

This module needs only the standard library, so that ``--help`` is fast.
"""

import argparse
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any, NoReturn, cast

from fathomless import __version__
from fathomless.app.commands.flags import add_nested_arguments, add_old_arguments, add_option, flag_of, group_of
from fathomless.estimators.declaring import describe
from fathomless.estimators.options import ClassOptions, NoiseOptions
from fathomless.families.family import Family
from fathomless.families.registry import families, full_name, options
from fathomless.system.errors import DataError
from fathomless.system.terminal import escape_control

__all__ = ["form", "parser", "refuse_other_form"]

Command = Callable[[argparse.Namespace], int]

_DATA = "CSV, JSON lines (also compressed), Excel, Parquet or Feather; - reads standard input"
_FIRST = ("weights",)  # options of the estimators in the first group
_NESTED = "nested options, with the option or choice they belong to"  # heading of the options of values
_THREADS = 1024  # maximum: more threads are slower, and systems limit their number
_ABOUT = """Bayesian neural networks for tables: fit, predict with uncertainty, evaluate.

  fathomless fit houses.csv --target price --out runs/price
  fathomless predict runs/price new.csv --out predictions.csv
  fathomless evaluate runs/price test.csv
  fathomless report runs/price --open

fathomless COMMAND --help describes a command."""


class _Parser(argparse.ArgumentParser):
    """Parser that reports errors in one line, with a suggestion for a misspelt option."""

    old: Sequence[str] = ()  # deprecated flags, which are not suggested

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if not any(word.startswith("-") for word in unknown):  # argparse takes only the first of several sequences
            repeated = [action.dest for action in self._actions if action.nargs == "+" and not action.option_strings]
            if repeated:
                getattr(known, repeated[0]).extend(unknown)
                unknown = []
        if unknown:  # reported here, where the command is known, not by the parser of all commands
            flags = [flag for flag in self._option_string_actions if flag not in self.old]
            suggestion = _suggest(unknown[0].partition("=")[0], flags)
            self.error(f"{' '.join(unknown)} was given, which is no argument of this command{suggestion}")
        return known, []

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += _suggest(choice[1], re.findall(r"[\w-]+", choice[2]))
        self.exit(2, escape_control(f"{self.prog}: error: {' '.join(message.split())} (see {self.prog} --help)\n"))


def _suggest(given: str, allowed: Sequence[str]) -> str:
    """Suggest a word: one with these initials, else one whose parts begin so, else one with similar letters.

    Examples
    --------
    >>> _suggest("--lr", ["--solver", "--learning-rate"]), _suggest("--val-frac", ["--validation-fraction"])
    ('; did you mean --learning-rate?', '; did you mean --validation-fraction?')
    """
    from difflib import get_close_matches

    parts = given.strip("-").lower().replace("_", "-").split("-")
    alike = [word for word in allowed if word.startswith("-") == given.startswith("-") and parts[0]]
    words = {word: word.lstrip("-").split("-") for word in alike}
    initials = [word for word in alike if parts == ["".join(part[:1] for part in words[word])]]
    begun = [word for word in alike if len(parts) <= len(words[word]) and all(map(str.startswith, words[word], parts))]
    near = initials or begun or get_close_matches(given, allowed, n=1)
    return f"; did you mean {near[0]}?" if near else ""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Formatter with a wider column for the names of options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line; it sets `run` to the function of the command."""
    parser = _Parser(prog="fathomless", description=_ABOUT, allow_abbrev=False, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"fathomless {__version__}")
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _fit_parser(names, commands["fit"])
    _predict_parser(names, commands["predict"])
    _serve_parser(names, commands["serve"])
    _compare_parser(names, commands["compare"])
    evaluate = _command(
        names, "evaluate", commands["evaluate"], "score a run on rows with known targets", "RUN DATA [--json]"
    )
    _run_argument(evaluate)
    _data_arguments(evaluate)
    _new_value_arguments(evaluate)
    _column_arguments(evaluate)
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    _explain_parser(names, commands["explain"])
    _sample_parser(names, commands["sample"])
    _impute_parser(names, commands["impute"])
    report = _command(names, "report", commands["report"], "write the HTML page of a run", "RUN [--out FILE] [--open]")
    _run_argument(report)
    report.add_argument("--out", type=_name, metavar="FILE", help="output file (default: RUN/report.html)")
    report.add_argument("--open", action="store_true", help="open the page in the browser")
    _export_parser(names, commands["export"])
    cite = _command(names, "cite", commands["cite"], "print the references to cite", "[RUN] [--bibtex]")
    cite.add_argument("folder", nargs="?", metavar="RUN", help="folder of a run (default: references of all methods)")
    cite.add_argument("--bibtex", action="store_true", help="print BibTeX")
    _reproduce_parser(names, commands["reproduce"])
    demo = _command(names, "demo", commands["demo"], "fit a small real table and write its page", "[--out FOLDER]")
    demo.add_argument(
        "--out",
        type=_name,
        default="fathomless-demo",
        metavar="FOLDER",
        help="output folder (default: fathomless-demo)",
    )
    return parser


def _sample_parser(names: Any, run: Command) -> None:
    parser = _command(names, "sample", run, "sample rows from a density", "RUN [--rows N] [--out FILE]")
    _run_argument(parser)
    parser.add_argument(
        "--rows", type=_counted(1, "rows"), default=1000, metavar="N", help="number of rows (default: 1000)"
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of the samples (default: 0)")
    parser.add_argument(
        "--out", type=_name, default="-", metavar="FILE", help="output file, formats as for predict (default: -)"
    )


def _impute_parser(names: Any, run: Command) -> None:
    parser = _command(names, "impute", run, "fill in missing cells of a table by a density", "RUN DATA [--draws N]")
    _run_argument(parser)
    _data_arguments(parser, None)
    parser.add_argument(
        "--draws",
        type=_counted(1, "draws"),
        metavar="N",
        help="draws of the missing cells, as repeated rows with a first column draw (default: conditional means)",
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument(
        "--out", type=_name, default="-", metavar="FILE", help="output file, formats as for predict (default: -)"
    )


def _column_arguments(parser: Any) -> None:
    parser.add_argument(
        "--weight",
        metavar="COLUMN",
        help="column of sample weights (default: that of the fit, if the table has it)",
    )
    parser.add_argument(
        "--censored",
        metavar="COLUMN",
        help="column of the kinds of censored rows (default: that of the fit, if the table has it)",
    )


def _new_value_arguments(parser: Any) -> None:
    parser.add_argument(
        "--unseen",
        choices=("error", "ignore"),
        help="treatment of levels that the training table does not have: encoded as none of its levels, with a note, "
        "or an error (default: ignore, but error if the fit had --unseen error)",
    )
    parser.add_argument(
        "--missing",
        choices=("impute", "error"),
        help="treatment of missing values in columns that had none in the training table: the mean of that table and a "
        "note, or an error (default: impute, but error for densities and if the fit had --missing error)",
    )


def _command(names: Any, name: str, run: Command, text: str, usage: str) -> argparse.ArgumentParser:
    prog = f"fathomless {name}"
    parser = cast(
        argparse.ArgumentParser,
        names.add_parser(
            name,
            prog=prog,
            help=text,
            usage=f"{prog} {usage}",
            description=f"{text[0].upper()}{text[1:]}.",
            allow_abbrev=False,
            formatter_class=_Help,
        ),
    )
    parser.set_defaults(run=run)
    return parser


def _explain_parser(names: Any, run: Command) -> None:
    parser = _command(
        names,
        "explain",
        run,
        "compute importance, partial dependence, or contributions to single predictions",
        "RUN DATA [--row N] [--of spread] [--json]",
    )
    _run_argument(parser)
    _data_arguments(parser)
    parser.add_argument(
        "--of",
        choices=("score", "spread", "linear"),
        default="score",
        help="explain the log-likelihood and the average prediction (score, needs known targets), or the uncertainty "
        "of predictions (spread, needs none): the standard deviation of numbers, the entropy of classes; with --row "
        "also the outputs of piecewise linear networks, exactly (linear) (default: score)",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME",
        help="column for partial dependence; may be repeated (default: the three most important)",
    )
    parser.add_argument(
        "--row",
        action="append",
        type=_row,
        default=[],
        metavar="N",
        help="row of DATA, counted from 1, whose prediction or spread is divided among the columns, in comparison with "
        "the other rows; may be repeated; needs no targets",
    )
    parser.add_argument(
        "--rows",
        type=_counted(1, "rows"),
        default=1000,
        metavar="N",
        help="maximum number of rows of DATA to use (default: 1000)",
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of the permutations (default: 0)")
    _new_value_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _export_parser(names: Any, run: Command) -> None:
    export = _command(
        names, "export", run, "export a run for ONNX Runtime or PyTorch", "RUN [--format NAME] [--out FILE]"
    )
    _run_argument(export)
    export.add_argument(
        "--format",
        choices=("onnx", "torch"),
        default="onnx",
        help="format: ONNX, or an exported PyTorch program (default: onnx)",
    )
    export.add_argument(
        "--level",
        type=_level,
        action="append",
        metavar="P",
        help="level of a quantile output; may be repeated (default: 0.05, 0.5, 0.95)",
    )
    export.add_argument("--out", type=_name, metavar="FILE", help="output file (default: RUN/model.onnx or .pt2)")


def _predict_parser(names: Any, run: Command) -> None:
    """Add the command `predict`."""
    predict = _command(names, "predict", run, "predict the rows of a table", "RUN DATA [--out FILE]")
    _run_argument(predict)
    _data_arguments(predict)
    predict.add_argument(
        "--interval",
        type=_level,
        action="append",
        metavar="LEVEL",
        help="level of a prediction interval; may be repeated (default: 0.9)",
    )
    predict.add_argument(
        "--guarantee",
        choices=("marginal", "group"),
        help="conformal intervals, whose coverage is guaranteed over all rows (marginal), or over the rows of each "
        "category of the column --by (group); by default there is no guarantee",
    )
    predict.add_argument("--by", metavar="COLUMN", help="column of categories for --guarantee group")
    predict.add_argument(
        "--key", metavar="COLUMN", help="column with the names of the rows; first column of the output"
    )
    _new_value_arguments(predict)
    predict.add_argument(
        "--out",
        type=_name,
        default="-",
        metavar="FILE",
        help=".csv, .tsv, .jsonl (also .gz), .parquet, .feather or .xlsx; - is CSV on standard output (default: -)",
    )
    predict.add_argument(
        "--ood",
        action="store_true",
        help="column ood_p: p-value of each row for the hypothesis that it is from the distribution of the training "
        "rows; predictions of rows with small values are extrapolations",
    )


def _serve_parser(names: Any, run: Command) -> None:
    serve = _command(names, "serve", run, "predict rows over HTTP, in JSON", "RUN [--port N] [options]")
    _run_argument(serve)
    serve.add_argument(
        "--host",
        type=_name,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen at; 0.0.0.0 is all addresses of the machine (default: 127.0.0.1, this machine alone)",
    )
    serve.add_argument(
        "--port", type=_port, default=8000, metavar="N", help="port to listen at; 0 is a free one (default: 8000)"
    )
    serve.add_argument(
        "--max-rows",
        type=_counted(1, "rows"),
        default=10_000,
        metavar="N",
        help="maximum rows of a request (default: 10000)",
    )
    _new_value_arguments(serve)
    _threads_argument(serve)


def _compare_parser(names: Any, run: Command) -> None:
    parser = _command(
        names,
        "compare",
        run,
        "compare all methods on a table by cross-validation, or runs on new rows",
        "DATA --target COLUMN | RUN RUN ... --on DATA [options]",
    )
    parser.add_argument("data", nargs="+", metavar="DATA", help=f"{_DATA}. With --on, folders of two or more runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    methods = parser.add_argument_group("comparison of methods")
    _method_arguments(methods)
    runs = parser.add_argument_group("comparison of runs")
    runs.add_argument("--on", type=_name, metavar="DATA", help="rows with known targets on which runs are compared")
    _column_arguments(runs)
    _new_value_arguments(runs)
    _threads_argument(runs)
    _form_arguments(parser)
    flags = {
        of_runs: [(action.option_strings[0], action.dest, action.default) for action in group._group_actions]
        for of_runs, group in ((True, runs), (False, methods))
    }
    parser.set_defaults(flags_of=flags)


def refuse_other_form(given: argparse.Namespace) -> None:
    """Raise an error if ``compare`` has options of methods with ``--on``, or options of runs without it.

    Raises
    ------
    DataError
        For the first such option.
    """
    of_runs = given.on is not None
    for flag, name, default in given.flags_of[not of_runs]:
        if vars(given)[name] != default:
            form = f"with --on {given.on}" if of_runs else "without --on"
            remedy = "leave it out" if of_runs else "leave it out, or give runs and --on DATA"
            raise DataError(
                f"{flag} was given {form}; it is for a comparison of {'methods' if of_runs else 'runs'}: {remedy}"
            )


def _method_arguments(parser: Any) -> None:
    """Add the options of a comparison of methods."""
    _target_arguments(parser)
    _keep_argument(parser)
    parser.add_argument("--key", metavar="COLUMN", help="column with the names of the rows; not used as a feature")
    _groups_argument(parser)
    parser.add_argument(
        "--methods",
        type=_name,
        metavar="A,B,C",
        help="methods: structures of fit, depth-neighbors (regression), depth-trees, constant, linear, boosting "
        "(default: all, without those that take very long)",
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help="time after which no fit is started; constant, linear, boosting and depth are first (default: no limit)",
    )
    parser.add_argument(
        "--folds", type=_counted(2, "folds"), default=5, metavar="N", help="number of folds (default: 5)"
    )
    parser.add_argument(
        "--order",
        choices=("random", "forward"),
        default="random",
        help="order of the folds; forward is for rows in the order of time, and predicts each block of rows after a "
        "fit to the rows before it (default: random)",
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of folds and fits (default: 0)")
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=1,
        metavar="N",
        help="number of processes with one thread each; -1 for one per core (default: 1)",
    )
    parser.add_argument(
        "--out",
        type=_name,
        metavar="FOLDER",
        help="output folder; the same command resumes a comparison there (default: runs/compare-TARGET)",
    )


def _reproduce_parser(names: Any, run: Command) -> None:
    parser = _command(
        names,
        "reproduce",
        run,
        "run an experiment of the papers (needs a clone of the repository)",
        "NAME [--full] [options] | --list",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of an experiment, see --list")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    parser.add_argument("--full", action="store_true", help="run the full experiment, not its small version")
    parser.add_argument(
        "--preset",
        default="default",
        choices=("default", "paper"),
        help="settings of this library, or of the paper (default: default)",
    )
    parser.add_argument(
        "--out",
        type=_name,
        metavar="FOLDER",
        help="output folder; an interrupted full run resumes there (default: reproduced/NAME-MODE-PRESET)",
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of the experiment (default: 0)")
    parser.add_argument(
        "--data", type=_name, metavar="FOLDER", help="folder of the data sets (default: $FATHOMLESS_DATA)"
    )
    parser.add_argument("--threads", type=_threads, default=1, metavar="N", help="number of CPU threads (default: 1)")


def _run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="folder of a run, or of an estimator saved from Python")


def _data_arguments(parser: argparse.ArgumentParser, threads: str | None = "as in the training") -> None:
    parser.add_argument("data", metavar="DATA", help=_DATA)
    _form_arguments(parser)
    if threads is not None:
        _threads_argument(parser, threads)


def _form_arguments(parser: argparse.ArgumentParser) -> None:
    file = parser.add_argument_group("file format")
    file.add_argument(
        "--delimiter",
        default="auto",
        metavar="CHARACTER",
        help="delimiter of CSV; auto detects , ; tab or | (default: auto)",
    )
    file.add_argument(
        "--decimal",
        default="auto",
        choices=("auto", ".", ","),
        metavar="MARK",
        help="decimal mark of CSV; auto detects . or , (default: auto)",
    )
    file.add_argument(
        "--dates",
        default="auto",
        choices=("auto", "day-first", "month-first"),
        help="order in dates such as 03/04/2024; auto needs a day above 12 (default: auto)",
    )
    file.add_argument(
        "--no-header",
        dest="header",
        action="store_false",
        help="the first row contains values; columns are named column_1, ...",
    )
    file.add_argument(
        "--encoding", default="auto", metavar="NAME", help="text encoding; auto is UTF-8 or UTF-16 (default: auto)"
    )
    file.add_argument(
        "--na",
        dest="missing_words",
        action="extend",
        type=_words,
        default=[],
        metavar="A,B,C",
        help="further words for missing values",
    )


def _threads_argument(parser: Any, threads: str = "as in the training") -> None:
    parser.add_argument("--threads", type=_threads, metavar="N", help=f"number of CPU threads (default: {threads})")


def _target_arguments(table: Any) -> None:
    table.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to predict; may be repeated for several numeric targets; not for a density",
    )
    table.add_argument(
        "--task",
        default="auto",
        choices=("auto", "classification", "regression", "density"),
        help="auto depends on the target; density models all columns, with --structure graph (default: auto)",
    )
    table.add_argument("--drop", action="append", default=[], metavar="COLUMN", help="column to drop; may be repeated")


def _keep_argument(table: Any) -> None:
    table.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="column to use as a feature although it looks like an identifier; may be repeated",
    )


def form(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the file format."""
    names = ("delimiter", "decimal", "dates", "header", "encoding")
    return {**{name: vars(given)[name] for name in names}, "missing": tuple(dict.fromkeys(given.missing_words))}


def _groups_argument(table: Any) -> None:
    table.add_argument(
        "--groups",
        metavar="COLUMN",
        help="column of groups: rows of a group share a fold; not used as a feature",
    )


def _row_arguments(table: Any) -> None:
    _keep_argument(table)
    _groups_argument(table)
    table.add_argument("--weight", metavar="COLUMN", help="column of sample weights (number of times each row counts)")
    table.add_argument(
        "--censored",
        metavar="COLUMN",
        help="column that says if the target of a row is known: exact, right (it is above the given value) or left "
        "(below), or 0 for exact and 1 for right; not used as a feature",
    )
    table.add_argument(
        "--stream",
        action="store_true",
        help="read Parquet (a file, a folder, a pattern) in parts, in constant memory; automatic for tables that do "
        "not fit in memory",
    )


def _progress_arguments(run: Any) -> None:
    run.add_argument(
        "--quiet", action="store_true", help="print no progress bar and no summary, only notes and warnings"
    )
    run.add_argument("--log-json", action="store_true", help="print progress as JSON, one object per line")
    run.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs to RUN/tensorboard")
    run.add_argument(
        "--threads",
        type=_threads,
        metavar="N",
        help="number of CPU threads (default: 1 for a width below 256, otherwise all)",
    )


def _listed(family: Family) -> str:
    """Return the name, the short name and the title of a family, for the help."""
    title = family.title if family.alias is None else f"{family.title} (or {family.alias})"
    return textwrap.fill(f"  {family.name:<19}{title}", 78, subsequent_indent=" " * 21)


def _fit_parser(names: Any, run: Command) -> None:
    parser = _command(names, "fit", run, "fit a network to a table", "DATA --target COLUMN [options]")
    first = parser.add_argument_group("main options")
    _target_arguments(first)
    first.add_argument(
        "--key",
        metavar="COLUMN",
        help="column with the names of the rows; not used as a feature, copied to the predictions",
    )
    first.add_argument(
        "--structure",
        default="depth",
        type=full_name,
        choices=tuple(families()),
        metavar="NAME",
        help="structure of the network, see the list below (default: depth)",
    )
    parser.epilog = "structures:\n" + "\n".join(_listed(one) for one in families().values())
    declared: dict[str, dict[str, Field[Any]]] = {}  # option -> structure -> its declaration there
    texts: dict[str, str] = {}
    for structure, family in families().items():
        for group in (family.options, NoiseOptions, ClassOptions):
            texts.update({name: text for name, (_, text) in describe(group).items() if name not in texts})
        for name, option in {**options(family, "classification"), **options(family, "regression")}.items():
            if option.metadata["kind"] != "object":
                declared.setdefault(name, {})[structure] = option
    _preset_argument(first)
    for name in _FIRST:
        add_option(first, flag_of(name), name, declared[name], texts[name])
    first.add_argument(
        "--out",
        type=_name,
        metavar="FOLDER",
        help="folder of the run (default: runs/TARGET, for a density runs/DATA)",
    )
    first.add_argument(
        "--seed",
        type=_whole,
        default=0,
        metavar="N",
        help="seed of the fit; the same seed gives the same bytes (default: 0)",
    )
    again = first.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true", help="resume an interrupted run; start a new one if there is none"
    )
    again.add_argument("--overwrite", action="store_true", help="replace an existing run")
    _data_arguments(parser, threads=None)
    _row_arguments(parser.add_argument_group("rows"))
    _progress_arguments(parser.add_argument_group("progress and threads"))
    collapsed: dict[str, Any] = {}
    for name, by_structure in declared.items():
        if name not in _FIRST:
            title = group_of(name, by_structure)
            group = collapsed.setdefault(title, parser.add_argument_group(title))
            add_option(group, flag_of(name), name, by_structure, texts[name])
    add_nested_arguments(collapsed.setdefault(_NESTED, parser.add_argument_group(_NESTED)))
    _collapse(parser, collapsed)
    cast(_Parser, parser).old = add_old_arguments(parser, set(declared))


def _preset_argument(parser: Any) -> None:
    parser.add_argument(
        "--preset",
        choices=tuple(dict.fromkeys(name for family in families().values() for name in family.presets)),
        help="options for first results or for the best predictions, with --structure depth",
    )


def _collapse(parser: argparse.ArgumentParser, groups: Mapping[str, Any]) -> None:
    """Make ``--help`` list only the names of the options of some groups, and ``--help-all`` their texts."""
    collapsed = []
    for group in groups.values():
        actions = group._group_actions
        collapsed.append((group, [(action, action.help) for action in actions]))
        group.description = textwrap.fill(
            " ".join(action.option_strings[0] for action in actions), 76, break_on_hyphens=False
        )
        for action in actions:
            action.help = argparse.SUPPRESS

    class All(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
            for group, actions in collapsed:
                group.description = None
                for action, text in actions:
                    action.help = text
            parser.print_help()
            parser.exit()

    parser.add_argument("--help-all", action=All, nargs=0, help="also describe the options that are only listed below")


def _whole(text: str) -> int:
    return _within(text, 0, 2**63 - 1, "a whole number, 0 or more, is allowed")


def _counted(least: int, things: str) -> Callable[[str], int]:
    """Return a function that reads a number of things."""

    def read(text: str) -> int:
        return _within(text, least, 2**63 - 1, f"{least} or more {things} are allowed, a whole number")

    return read


def _within(text: str, least: int, most: int, allowed: str) -> int:
    """Return a whole number within bounds; the message on others ends with what is allowed."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} was given; {allowed}")
    return value


def _row(text: str) -> int:
    """Return the number of a row."""
    return _within(text, 1, 2**63 - 1, "rows are counted from 1: give a whole number, 1 for the first row of the table")


def _port(text: str) -> int:
    return _within(text, 0, 65535, "a whole number from 0 to 65535 is allowed")


def _jobs(text: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} was given; 1 or more processes are allowed, or -1 for all cores")
    return int(text)


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} was given; words with commas between them are allowed")
    return words


def _number(text: str) -> float:
    """Return a number, or NaN for other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _minutes(text: str) -> float:
    if not 0.0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a positive number of minutes is allowed")
    return value


def _threads(text: str) -> int:
    return _within(text, 1, _THREADS, f"a whole number from 1 to {_THREADS} is allowed")


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} was given; a name is needed")
    return text


def _level(text: str) -> float:
    if not 0.0 < (value := _number(text)) < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a number between 0 and 1, such as 0.9, is allowed")
    return value
