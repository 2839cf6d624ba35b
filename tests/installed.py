"""Simulated installed packages: a folder on the path with the metadata that pip writes."""

from pathlib import Path


def installed(folder: Path, name: str = "toy", **entries: str) -> Path:
    """Write the metadata of a package with these entry points for families to `folder`, and return it."""
    info = folder / f"{name}-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0\n", encoding="utf-8")
    lines = ["[fathomless.families]", *(f"{entry} = {place}" for entry, place in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
