"""Print a warning for files with more than 800 lines, since a file should have one theme. Run by ``make lint``."""

from pathlib import Path

CLONE = Path(__file__).parents[2]
MOST = 800


def main() -> None:
    """Print one line for each long file."""
    for folder in ("src", "tests", "experiments", "benchmarks"):
        for path in sorted((CLONE / folder).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > MOST:
                print(
                    f"warning: {path.relative_to(CLONE)} has {lines} lines (guideline: {MOST}); does it have one theme?"
                )


if __name__ == "__main__":
    main()
