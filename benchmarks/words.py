"""Counts of words and forms in the source code, the documents and an HTML page of a run.

``python benchmarks/words.py [--root CLONE] [--page report.html]`` prints a table. With another clone as root, it counts
an earlier version; no module of the library is imported.
"""

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

#: First words of docstrings that are neither a noun phrase nor an imperative.
OPENINGS = ("what", "how", "where", "whether", "who", "whose", "when", "which", "why")
#: Names that have a standard term in their place.
REPLACED = (
    *(
        "Looks",
        "looks",
        "Held",
        "Densities",
        "kinds",
        "vary",
        "put_to_rest",
        "wake",
        "side_by_side",
        "hand_out",
        "Blocks",
    ),
    *("Together", "worth", "bars", "best_on_path", "weighed", "concluded", "for_average", "bear", "bury", "newborn"),
    *("goes_on", "heat", "told", "Recipe", "Case", "examine"),
)
#: Locals that say nothing of the value.
VAGUE = ("found", "own", "one", "each", "told")
#: Modules that every family may have.
PARALLEL = {"__init__", "model", "options", "networks", "report", "plots", "estimator", "deploy"}
_IRREGULAR = "held|told|found|left|kept|drawn|given|built|made|said|seen|sent|taken|written|split_up"
_PARTICIPLE = re.compile(rf"(\w+(ed|ing)|{_IRREGULAR})$")
_VERBS = {
    "feed",
    "seed",
    "need",
    "embed",
    "speed",
    "bring",
    "string",
    "ping",
    "exceed",
    "proceed",
    "spread",
    "shed",
    "wed",
}
MOST = 35  # words of a sentence


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--page", type=Path, help="HTML page of a run")
    given = parser.parse_args()
    for name, value in counts(given.root).items():
        print(f"{name:66} {value}")
    if given.page:
        sentences = list(sentences_of(page_text(given.page.read_text(encoding="utf-8"))))
        print(f"{'sentences of the page; of more than 35 words':66} {len(sentences)}; {long(sentences)}")


def counts(root: Path) -> dict[str, object]:
    """Return the counts of a clone, by name."""
    totals: Counter[str] = Counter()
    openings: Counter[str] = Counter()
    stems = defaultdict(list)
    source = root / "src" / "fathomless"
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        totals["lines"] += text.count("\n")
        totals["comments"] += sum(line.lstrip().startswith("#") for line in text.splitlines())
        stems[path.stem].append(path)
        for node in ast.walk(ast.parse(text)):
            _count(node, totals, openings)
    shared = sum(len(paths) for stem, paths in stems.items() if len(paths) > 1 and stem not in PARALLEL)
    documents = [*sorted((root / "docs").rglob("*.md")), root / "README.md"]
    documents = [path for path in documents if not {"_build", "jupyter_execute", "changelog.md"} & set(path.parts)]
    sentences = [one for path in documents for one in sentences_of(document_text(path.read_text(encoding="utf-8")))]
    return {
        "lines of the library": totals["lines"],
        "comment lines per 100 lines": round(100 * totals["comments"] / totals["lines"], 2),
        "docstrings": totals["docstrings"],
        "docstrings that open with What, How, Where, Whether, ...": sum(openings.values()),
        "  of these": ", ".join(f"{word} {count}" for word, count in openings.most_common()),
        "functions named by a participle": totals["participles"],
        "names of the table of words": totals["replaced"],
        "locals and arguments found, own, one, each, told": totals["vague"],
        "modules that share their name with another one": shared,
        "assignments of several values to several names": totals["tuples"],
        "nested conditional expressions": totals["nested"],
        "sentences of documents; of more than 35 words": f"{len(sentences)}; {long(sentences)}",
    }


def _count(node: ast.AST, totals: Counter[str], openings: Counter[str]) -> None:
    """Add what one node of a syntax tree contributes."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
        totals["docstrings"] += 1
        first = re.split(r"\W", text.lstrip(), maxsplit=1)[0].lower()
        if first in OPENINGS:
            openings[first.capitalize()] += 1
    if isinstance(node, ast.FunctionDef):
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        first = node.name.strip("_").split("_")[0]
        totals["participles"] += bool(_PARTICIPLE.match(first)) and first not in _VERBS and not is_property
    name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", getattr(node, "name", None))))
    totals["replaced"] += name in REPLACED
    bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    totals["vague"] += bound or (isinstance(node, ast.arg) and node.arg in VAGUE)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        totals["tuples"] += isinstance(node.value, ast.Tuple)
    if isinstance(node, ast.IfExp):
        inner = (below for child in ast.iter_child_nodes(node) for below in ast.walk(child))
        totals["nested"] += any(isinstance(below, ast.IfExp) for below in inner)


def document_text(text: str) -> str:
    """Return the prose of a Markdown document: without code, tables, formulas and generated blocks."""
    text = re.sub(r"^(```|~~~).*?^\1", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"\$\$.*?\$\$", "x", text, flags=re.S)
    lines = ["" if line.lstrip().startswith(("|", "#", ":", "<")) else line for line in text.splitlines()]
    lines = [re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", line) for line in lines]
    return "\n".join(lines)


class _Prose(HTMLParser):
    """Text of paragraphs, captions and list items of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.skipped = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.skipped += tag in ("style", "script", "svg", "table", "pre")
        if tag in ("p", "li", "figcaption", "dd", "dt", "h1", "h2", "h3", "div"):
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self.skipped -= tag in ("style", "script", "svg", "table", "pre")

    def handle_data(self, data: str) -> None:
        if not self.skipped:
            self.parts.append(data)


def page_text(html: str) -> str:
    """Return the prose of an HTML page, without tables and pictures."""
    parser = _Prose()
    parser.feed(html)
    return "".join(parser.parts)


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of plain text."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[(])", " ".join(paragraph.split())):
            if sentence:
                yield sentence


def long(sentences: list[str]) -> int:
    """Return the number of sentences with more than 35 words."""
    return sum(len(sentence.split()) > MOST for sentence in sentences)


if __name__ == "__main__":
    main()
