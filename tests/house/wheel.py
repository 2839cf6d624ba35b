"""Check the contents of a wheel: one package with types, no other folders, no experiments, and a small size."""

import sys
import zipfile
from pathlib import Path

LIMIT = 1_200_000  # bytes; five families, their pages and serving, no experiments and no data


def main(path: str) -> None:
    names = zipfile.ZipFile(path).namelist()
    top = sorted({name.split("/")[0] for name in names})
    extra = [name for name in top if name != "fathomless" and not name.endswith(".dist-info")]
    extra += [name for name in names if "experiments" in name]
    size = Path(path).stat().st_size
    if extra or "fathomless/py.typed" not in names or size > LIMIT:
        typed = "fathomless/py.typed" in names
        sys.exit(f"{path}: top-level names {top}, stray {extra}, {size} bytes (limit {LIMIT}), py.typed {typed}")
    print(f"{Path(path).name}: {', '.join(top)}; {len(names)} files, {size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
