"""References to cite: the one of the software, and the class for those of the families."""

from dataclasses import dataclass

from fathomless.system.version import __version__

__all__ = ["ICML", "NEURIPS", "SOFTWARE", "Reference"]


@dataclass(frozen=True)
class Reference:
    """A work to cite.

    Attributes
    ----------
    key, kind : str
        Key and type of the BibTeX entry.
    authors : tuple of str
        "Given Family", or the name of a group in braces.
    title : str
        Title.
    year : int or None
        Year of publication.
    field, where : str
        Field of the BibTeX entry for the place of publication or a note, and its content.
    """

    key: str
    kind: str
    authors: tuple[str, ...]
    title: str
    year: int | None
    field: str
    where: str

    def text(self) -> str:
        """Return one line of plain text."""
        authors = " and ".join(self.authors).strip("{}")
        year = "" if self.year is None else f", {self.year}"
        return f"{authors}. {self.title}. {self.where}{year}."

    def bibtex(self) -> str:
        """Return a BibTeX entry."""
        lines = [f"author = {{{' and '.join(self.authors)}}}", f"title = {{{self.title}}}"]
        lines += [] if self.year is None else [f"year = {{{self.year}}}"]
        lines += [f"{self.field} = {{{self.where}}}"]
        return f"@{self.kind}{{{self.key},\n  " + ",\n  ".join(lines) + "\n}"


ICML = "International Conference on Machine Learning"  #: where papers appeared
NEURIPS = "Advances in Neural Information Processing Systems"  #: where papers appeared

#: The reference of fathomless itself.
SOFTWARE = Reference(
    "fathomless",
    "misc",
    ("{The fathomless developers}",),
    "fathomless: Bayesian neural networks whose structure is a random variable",
    None,
    "note",
    f"Version {__version__}",
)
