"""What can be said on the command line: commands, their arguments, and the options of the estimators.

Nothing here needs more than the standard library, so that ``--help`` answers at once.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any, NoReturn, cast

from fathomless import __version__
from fathomless.app.commands.flags import add_option, flag_of, group_of, nested_arguments, old_arguments
from fathomless.estimators.declaring import describe
from fathomless.estimators.options import ClassOptions, NoiseOptions
from fathomless.families.family import Family
from fathomless.families.registry import families, full_name, options
from fathomless.system.terminal import escape_control

__all__ = ["form", "parser"]

Command = Callable[[argparse.Namespace], int]

_DATA = "CSV, JSON lines (also compressed), Excel, Parquet or Feather; - reads standard input"
_FIRST = ("weights",)  # options of the networks that stand among those that matter most
_NESTED = "of another option, or of one of its choices"  # heading of the options of values
_THREADS = 1024  # more would only be slower, and systems have their limits
_ABOUT = """You bring the data; the posterior brings the network.

  fathomless fit houses.csv --target price --out runs/price
  fathomless predict runs/price new.csv --out predictions.csv
  fathomless evaluate runs/price test.csv
  fathomless report runs/price --open

fathomless COMMAND --help tells more."""


class _Parser(argparse.ArgumentParser):
    """Errors in one line, with the option that was perhaps meant."""

    old: Sequence[str] = ()  # flags of the version before, which are not suggested

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # here, where the command is known, rather than in the parser of all commands
            meant = _meant(
                unknown[0].partition("=")[0], [flag for flag in self._option_string_actions if flag not in self.old]
            )
            self.error(f"{' '.join(unknown)} was given, which is no argument of this command{meant}")
        return found, []

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += _meant(found[1], re.findall(r"[\w-]+", found[2]))
        self.exit(2, escape_control(f"{self.prog}: error: {' '.join(message.split())} (see {self.prog} --help)\n"))


def _meant(given: str, allowed: Sequence[str]) -> str:
    """Ask for the word that was perhaps meant: by initials, then by the beginnings of its words, then by its letters.

    Examples
    --------
    >>> _meant("--lr", ["--solver", "--learning-rate"]), _meant("--val-frac", ["--validation-fraction"])
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
    """Room for names and, in quiet, the defaults."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line; it sets `run` to one of the commands, by name."""
    parser = _Parser(prog="fathomless", description=_ABOUT, allow_abbrev=False, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"fathomless {__version__}")
    names = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _fit_parser(names, commands["fit"])
    predict = _command(names, "predict", commands["predict"], "predict the rows of a table", "RUN DATA [--out FILE]")
    _run_argument(predict)
    _data_arguments(predict)
    predict.add_argument(
        "--interval",
        type=_level,
        action="append",
        metavar="LEVEL",
        help="probability of the interval; may be repeated (default: 0.9)",
    )
    predict.add_argument("--key", metavar="COLUMN", help="column that names the rows, to stand first in the output")
    _unseen_argument(predict)
    predict.add_argument(
        "--out",
        type=_filled,
        default="-",
        metavar="FILE",
        help=".csv, .tsv, .jsonl (also .gz), .parquet, .feather or .xlsx; - is CSV on standard output (default: -)",
    )
    _compare_parser(names, commands["compare"])
    evaluate = _command(
        names, "evaluate", commands["evaluate"], "score a run on rows with known answers", "RUN DATA [--json]"
    )
    _run_argument(evaluate)
    _data_arguments(evaluate)
    _unseen_argument(evaluate)
    evaluate.add_argument(
        "--weight",
        metavar="COLUMN",
        help="column that says how often each row counts (default: that of the fit, if it is there)",
    )
    evaluate.add_argument("--json", action="store_true", help="print JSON")
    _explain_parser(names, commands["explain"])
    sample = _command(names, "sample", commands["sample"], "draw rows from a density", "RUN [--rows N] [--out FILE]")
    _run_argument(sample)
    sample.add_argument("--rows", type=_rows, default=1000, metavar="N", help="how many (default: 1000)")
    sample.add_argument("--seed", type=_whole, default=0, metavar="N", help="of the draws (default: 0)")
    sample.add_argument("--out", type=_filled, default="-", metavar="FILE", help="as of predict (default: -)")
    report = _command(names, "report", commands["report"], "write the page of a run", "RUN [--out FILE] [--open]")
    _run_argument(report)
    report.add_argument("--out", type=_filled, metavar="FILE", help="where to (default: RUN/report.html)")
    report.add_argument("--open", action="store_true", help="show it in the browser")
    _export_parser(names, commands["export"])
    cite = _command(names, "cite", commands["cite"], "say what to cite", "[RUN] [--bibtex]")
    cite.add_argument("folder", nargs="?", metavar="RUN", help="a run; all methods if left out")
    cite.add_argument("--bibtex", action="store_true", help="as BibTeX")
    _reproduce_parser(names, commands["reproduce"])
    demo = _command(names, "demo", commands["demo"], "fit a small real table and write its page", "[--out FOLDER]")
    demo.add_argument(
        "--out", type=_filled, default="fathomless-demo", metavar="FOLDER", help="where to (default: fathomless-demo)"
    )
    return parser


def _unseen_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unseen",
        choices=("error", "ignore"),
        help="what to do with categories that training did not see (default: as it was fitted)",
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
        names, "explain", run, "say which columns drive the predictions, and how", "RUN DATA [--column NAME] [--json]"
    )
    _run_argument(parser)
    _data_arguments(parser)
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME",
        help="follow this one, by partial dependence; may be repeated (default: the three that matter most)",
    )
    parser.add_argument("--rows", type=_rows, default=1000, metavar="N", help="of DATA, at most (default: 1000)")
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="of the shuffles (default: 0)")
    _unseen_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _export_parser(names: Any, run: Command) -> None:
    export = _command(names, "export", run, "write a run as one plain module", "RUN [--format NAME] [--out FILE]")
    _run_argument(export)
    export.add_argument(
        "--format", choices=("onnx", "torch"), default="onnx", help="for ONNX Runtime or PyTorch (default: onnx)"
    )
    export.add_argument(
        "--level",
        type=_level,
        action="append",
        metavar="P",
        help="probability of a quantile; may be repeated (default: 0.05, 0.5, 0.95)",
    )
    export.add_argument(
        "--out", type=_filled, metavar="FILE", help="where to (default: RUN/model.onnx or RUN/model.pt2)"
    )


def _compare_parser(names: Any, run: Command) -> None:
    parser = _command(
        names, "compare", run, "compare all methods on a table by cross-validation", "DATA --target COLUMN [options]"
    )
    _data_arguments(parser, threads=None)
    _target_arguments(parser)
    _keep_argument(parser)
    parser.add_argument("--key", metavar="COLUMN", help="column that names the rows: not used to predict")
    _groups_argument(parser)
    parser.add_argument(
        "--methods",
        type=_filled,
        metavar="A,B,C",
        help="of the structures of fit, and constant, linear, boosting (default: all that do not take too long)",
    )
    parser.add_argument("--folds", type=_folds, default=5, metavar="N", help="of the rows (default: 5)")
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="of folds and fits (default: 0)")
    parser.add_argument(
        "--jobs",
        type=_jobs,
        default=1,
        metavar="N",
        help="processes, of one thread each; -1 is one for each core (default: 1)",
    )
    parser.add_argument(
        "--out",
        type=_filled,
        metavar="FOLDER",
        help="where to; the same command goes on with what is done there (default: runs/compare-TARGET)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _reproduce_parser(names: Any, run: Command) -> None:
    parser = _command(
        names, "reproduce", run, "run an experiment of the papers, in a clone", "NAME [--full] [options] | --list"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="an experiment; --list names them")
    parser.add_argument("--list", action="store_true", help="name the experiments")
    parser.add_argument("--full", action="store_true", help="the experiment itself, not its small version")
    parser.add_argument(
        "--preset",
        default="default",
        choices=("default", "paper"),
        help="settings of this library, or of the paper (default: default)",
    )
    parser.add_argument(
        "--out",
        type=_filled,
        metavar="FOLDER",
        help="where to; a full run that was interrupted goes on there (default: reproduced/NAME-MODE-PRESET)",
    )
    parser.add_argument("--seed", type=_whole, default=0, metavar="N", help="of everything (default: 0)")
    parser.add_argument("--data", type=_filled, metavar="FOLDER", help="with the data sets (default: $FATHOMLESS_DATA)")
    parser.add_argument("--threads", type=_threads, default=1, metavar="N", help="of the processor (default: 1)")


def _run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="folder of a run, or of an estimator saved from Python")


def _data_arguments(parser: argparse.ArgumentParser, threads: str | None = "as many as the training used") -> None:
    parser.add_argument("data", metavar="DATA", help=_DATA)
    file = parser.add_argument_group("how the file is written")
    file.add_argument(
        "--delimiter",
        default="auto",
        metavar="CHARACTER",
        help="between the cells of CSV; auto finds , ; tab or | (default: auto)",
    )
    file.add_argument(
        "--decimal",
        default="auto",
        choices=("auto", ".", ","),
        metavar="MARK",
        help="decimal mark of CSV; auto finds . or , (default: auto)",
    )
    file.add_argument(
        "--dates",
        default="auto",
        choices=("auto", "day-first", "month-first"),
        help="what 03/04/2024 is; auto looks for a day above 12, and else leaves a column text (default: auto)",
    )
    file.add_argument(
        "--no-header",
        dest="header",
        action="store_false",
        help="the first row holds values: name columns column_1, ...",
    )
    file.add_argument(
        "--encoding", default="auto", metavar="NAME", help="of the text; auto is UTF-8, or UTF-16 (default: auto)"
    )
    if threads is not None:
        parser.add_argument("--threads", type=_threads, metavar="N", help=f"of the processor (default: {threads})")


def _target_arguments(table: Any) -> None:
    table.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="COLUMN",
        help="what to predict; repeat it for several numbers at once; a density has none",
    )
    table.add_argument(
        "--task",
        default="auto",
        choices=("auto", "classification", "regression", "density"),
        help="auto looks at the target; density models all columns, with --structure graph (default: auto)",
    )
    table.add_argument(
        "--drop", action="append", default=[], metavar="COLUMN", help="a column to leave out; may be repeated"
    )


def _keep_argument(table: Any) -> None:
    table.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column to predict from though it seems to only name the rows; may be repeated",
    )


def form(given: argparse.Namespace) -> dict[str, Any]:
    """Return how the table of a command is written."""
    return {name: vars(given)[name] for name in ("delimiter", "decimal", "dates", "header", "encoding")}


def _groups_argument(table: Any) -> None:
    table.add_argument(
        "--groups",
        metavar="COLUMN",
        help="column that says which rows belong together: they share a fold; not used to predict",
    )


def _row_arguments(table: Any) -> None:
    _keep_argument(table)
    _groups_argument(table)
    table.add_argument("--weight", metavar="COLUMN", help="column that says how often each row counts")
    table.add_argument(
        "--stream",
        action="store_true",
        help="read Parquet (a file, a folder, a pattern) in parts, in constant memory; done anyway if it is too large",
    )


def _watching_arguments(run: Any) -> None:
    run.add_argument(
        "--quiet", action="store_true", help="no progress bar and no summary; notes on the table and warnings stay"
    )
    run.add_argument("--log-json", action="store_true", help="print the progress as JSON, an object per line")
    run.add_argument("--tensorboard", action="store_true", help="write RUN/tensorboard")
    run.add_argument(
        "--threads", type=_threads, metavar="N", help="of the processor (default: 1 for a width below 256, else all)"
    )


def _listed(family: Family) -> str:
    """Return the name, the short name and the title of a family, for the help."""
    title = family.title if family.alias is None else f"{family.title} (short: {family.alias})"
    return textwrap.fill(f"  {family.name:<19}{title}", 78, subsequent_indent=" " * 21)


def _fit_parser(names: Any, run: Command) -> None:
    parser = _command(names, "fit", run, "fit a network to a table", "DATA --target COLUMN [options]")
    first = parser.add_argument_group("what matters most")
    _target_arguments(first)
    first.add_argument(
        "--key",
        metavar="COLUMN",
        help="column that names the rows: not used to predict, and written beside predictions",
    )
    first.add_argument(
        "--structure",
        default="depth",
        type=full_name,
        choices=tuple(families()),
        metavar="NAME",
        help="of the network, one of those below (default: depth)",
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
    for name in _FIRST:
        add_option(first, flag_of(name), name, declared[name], texts[name])
    first.add_argument(
        "--out", type=_filled, metavar="FOLDER", help="folder of the run (default: runs/TARGET, of a density runs/DATA)"
    )
    first.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="the same seed gives the same bytes (default: 0)"
    )
    again = first.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with an interrupted run; start it if there is none")
    again.add_argument("--overwrite", action="store_true", help="replace a run")
    _data_arguments(parser, threads=None)
    _row_arguments(parser.add_argument_group("the rows"))
    _watching_arguments(parser.add_argument_group("the run"))
    folded: dict[str, Any] = {}
    for name, found in declared.items():
        if name not in _FIRST:
            title = group_of(name, found)
            group = folded.setdefault(title, parser.add_argument_group(title))
            add_option(group, flag_of(name), name, found, texts[name])
    nested_arguments(folded.setdefault(_NESTED, parser.add_argument_group(_NESTED)))
    _fold(parser, folded)
    cast(_Parser, parser).old = old_arguments(parser, set(declared))


def _fold(parser: argparse.ArgumentParser, groups: Mapping[str, Any]) -> None:
    """Let ``--help`` only name the options of some groups, and ``--help-all`` explain them."""
    folded = []
    for group in groups.values():
        actions = group._group_actions
        folded.append((group, [(action, action.help) for action in actions]))
        group.description = textwrap.fill(
            " ".join(action.option_strings[0] for action in actions), 76, break_on_hyphens=False
        )
        for action in actions:
            action.help = argparse.SUPPRESS

    class All(argparse.Action):
        def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
            for group, actions in folded:
                group.description = None
                for action, text in actions:
                    action.help = text
            parser.print_help()
            parser.exit()

    parser.add_argument("--help-all", action=All, nargs=0, help="explain the options that are only named below as well")


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a whole number, 0 or more, is allowed")
    return value


def _rows(text: str) -> int:
    if not (value := _whole(text)):
        raise argparse.ArgumentTypeError(f"{text!r} was given; 1 or more rows are allowed")
    return value


def _jobs(text: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} was given; 1 or more processes are allowed, or -1 for all cores")
    return int(text)


def _folds(text: str) -> int:
    if (value := _whole(text)) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} was given; 2 or more folds are allowed")
    return value


def _threads(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= value <= _THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a whole number from 1 to {_THREADS} is allowed")
    return value


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} was given; a name is needed")
    return text


def _level(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} was given; a number between 0 and 1, such as 0.9, is allowed")
    return value
