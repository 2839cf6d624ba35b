"""HTML parsed to a list of elements, for tests of pages."""

import re
from html.parser import HTMLParser


class Tree(HTMLParser):
    """Parser to elements with their attributes, texts and ancestors; tags must be closed in order."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[dict] = []
        self.elements: list[dict] = []
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {[e['tag'] for e in self.open]}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute of {tag} is repeated: {names}"
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "in": [e["tag"] for e in self.open]}
        self.elements.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open, f"{tag} is closed but was not open"
        assert self.open[-1]["tag"] == tag, f"{tag} is closed where {self.open[-1]['tag']} is open"
        self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags: str) -> list[dict]:
        return [element for element in self.elements if element["tag"] in tags]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", self.all("main")[0]["text"].replace("\xa0", " "))
