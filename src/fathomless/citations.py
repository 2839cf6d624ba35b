"""What to cite: the software, and the paper of the method that was used."""

from dataclasses import dataclass

import fathomless

__all__ = ["SOFTWARE", "Reference", "of_structure"]


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
    where : str
        Conference, or what else the entry needs, as "field = text".
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


SOFTWARE = Reference(
    "fathomless",
    "misc",
    ("{The fathomless developers}",),
    "fathomless: Bayesian neural networks whose structure is a random variable",
    None,
    "note",
    f"Version {fathomless.__version__}",
)

_ICML, _NEURIPS = "International Conference on Machine Learning", "Advances in Neural Information Processing Systems"
_PAPERS: dict[str, tuple[Reference, ...]] = {
    "depth": (
        Reference(
            "nazaret2022variational",
            "inproceedings",
            ("Achille Nazaret", "David Blei"),
            "Variational Inference for Infinitely Deep Neural Networks",
            2022,
            "booktitle",
            _ICML,
        ),
    ),
    "sparse": (
        Reference(
            "skaaretlund2023sparsifying",
            "article",
            ("Lars Skaaret-Lund", "Geir Storvik", "Aliaksandr Hubin"),
            "Sparsifying Bayesian Neural Networks with Latent Binary Variables and Normalizing Flows",
            2023,
            "journal",
            "arXiv preprint arXiv:2305.03395",
        ),
    ),
    "finite": (),
    "dun": (
        Reference(
            "antoran2020depth",
            "inproceedings",
            ("Javier Antorán", "James Allingham", "José Miguel Hernández-Lobato"),
            "Depth Uncertainty in Neural Networks",
            2020,
            "booktitle",
            _NEURIPS,
        ),
    ),
    "dropout": (
        Reference(
            "gal2016dropout",
            "inproceedings",
            ("Yarin Gal", "Zoubin Ghahramani"),
            "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
            2016,
            "booktitle",
            _ICML,
        ),
    ),
    "meanfield": (
        Reference(
            "blundell2015weight",
            "inproceedings",
            ("Charles Blundell", "Julien Cornebise", "Koray Kavukcuoglu", "Daan Wierstra"),
            "Weight Uncertainty in Neural Networks",
            2015,
            "booktitle",
            _ICML,
        ),
    ),
    "ensemble": (
        Reference(
            "lakshminarayanan2017simple",
            "inproceedings",
            ("Balaji Lakshminarayanan", "Alexander Pritzel", "Charles Blundell"),
            "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
            2017,
            "booktitle",
            _NEURIPS,
        ),
    ),
}


def of_structure(kind: str | None = None) -> tuple[Reference, ...]:
    """Return what to cite for a family ("depth", "dun", ...), or for all of them: the software first.

    Examples
    --------
    >>> [reference.year for reference in of_structure("depth")]
    [None, 2022]
    """
    papers = _PAPERS.values() if kind is None else [_PAPERS[kind]]
    return (SOFTWARE, *(paper for each in papers for paper in each))
