"""The report's HTML: escaped, alone, and built so that anyone can find their way through it."""

from datetime import UTC, datetime
from html.parser import HTMLParser

from scene_pipeline.pictures.report import Figure, Page, Paragraph, Section, Table, write_page

MADE = datetime(2024, 6, 16, 9, 30, tzinfo=UTC)
HOSTILE = """</td><script>alert('x')</script>"&<img src=x onerror=alert(1)>"""


class Reader(HTMLParser):
    """Collects elements and refuses tags that are not closed in order."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(*sections: Section) -> Reader:
    return Reader(write_page(Page("Region fiji", "All is well.", MADE, sections)))


def test_texts_from_outside_stay_texts() -> None:
    read = Reader(
        write_page(
            Page(
                HOSTILE,
                HOSTILE,
                MADE,
                [
                    Section(
                        HOSTILE,
                        [
                            Paragraph(HOSTILE, HOSTILE),
                            Table(HOSTILE, [HOSTILE], [[HOSTILE]]),
                            Figure("<svg/>", HOSTILE),
                        ],
                    )
                ],
            )
        )
    )
    assert read.find("script") == []
    assert [image["alt"] for image in read.find("img")] == [HOSTILE]
    assert all("onerror" not in attributes for _, attributes in read.elements)
    assert read.words.count(HOSTILE) >= 8


def test_nothing_is_fetched() -> None:
    read = page(Section("Map", [Figure("<svg/>", "a map")]))
    sources = [a[name] for _, a in read.elements for name in ("src", "href") if name in a]
    assert sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    policies = [m["content"] for m in read.find("meta") if "http-equiv" in m]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert read.find("script") == []


def test_every_part_is_linked_and_what_needs_a_person_is_marked_in_words_too() -> None:
    read = page(Section("Fine", [Paragraph("ok")]), Section("Broken", [], attention=True))
    targets = [link["href"] for link in read.find("a")]
    names = [a["id"] for _, a in read.elements if "id" in a]
    assert len(names) == len(set(names))
    assert {target[1:] for target in targets} <= set(names)
    labelled = [section["aria-labelledby"] for section in read.find("section")]
    assert labelled == ["part-1", "part-2"]
    assert sum("\N{WARNING SIGN}" in words for words in read.words) == 2  # link and heading
    assert [len(read.find(tag)) for tag in ("h1", "h2", "main", "nav")] == [1, 2, 1, 1]


def test_a_columns_numbers_share_their_decimals_and_stand_right() -> None:
    rows = [["a", 1200, 9.854, None], ["b", 3, 88.4, 0.5], ["c", None, 0.0, 0.25]]
    read = page(Section("T", [Table("numbers", ["name", "count", "big", "small"], rows)]))
    cells = read.find("td")
    assert [cell.get("class") for cell in cells[:4]] == [None, "number", "number", "number"]
    words = [word for word in read.words if word.strip()]
    for shown in ("1,200", "9.9", "88.4", "0.0", "0.50", "0.25"):
        assert shown in words, shown
    assert "None" not in words


def test_a_wide_table_becomes_a_list_on_a_phone_and_stays_a_table_to_a_reader() -> None:
    wide = Table("wide", list("abcde"), [[1, 2, 3, 4, 5]])
    chatty = Table("chatty", ["a", "b"], [["x" * 60, "y"]])
    narrow = Table("narrow", ["a", "b"], [["x", "y"]])
    read = page(Section("T", [wide, chatty, narrow]))
    assert [table["class"] for table in read.find("table")] == ["wide", "wide", "narrow"]
    assert {a.get("role") for a in read.find("td")} == {"cell"}
    assert {a.get("role") for a in read.find("table")} == {"table"}
    assert [a["data-column"] for a in read.find("td")][:5] == list("abcde")


def test_instants_say_their_zone() -> None:
    read = page(Section("T", [Table("t", ["at"], [[MADE]])]))
    assert "2024-06-16 09:30 UTC" in read.words
