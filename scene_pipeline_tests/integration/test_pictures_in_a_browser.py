"""Every kind of picture as a browser lays it out: fonts are measured there, not guessed."""

import json
from pathlib import Path

import pytest

from scene_pipeline.pictures import markdown_image
from scene_pipeline_tests.services.browser import Browser
from scene_pipeline_tests.unit.picture_samples import sample_pictures

PICTURES = sample_pictures()

# Every text's box in the picture's units, and the view box.
MEASURE = """(() => {
  const svg = document.querySelector('svg'), view = svg.viewBox.baseVal;
  const boxes = [...svg.querySelectorAll('text')].map(t => {
    const b = t.getBBox();
    return {words: t.textContent, size: getComputedStyle(t).fontSize,
            left: b.x, top: b.y, right: b.x + b.width, bottom: b.y + b.height};
  });
  return JSON.stringify({width: view.width, height: view.height, boxes});
})()"""


@pytest.mark.browser
@pytest.mark.parametrize("name", list(PICTURES))
def test_words_are_whole_and_do_not_cover_each_other(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset='utf-8'>{PICTURES[name]}")
    browser.open(page.as_uri())
    measured = json.loads(browser.wait_for(MEASURE))
    boxes = measured["boxes"]
    assert len(boxes) >= 5
    for box in boxes:
        assert box["left"] >= 0, box
        assert box["top"] >= 0, box
        assert box["right"] <= measured["width"], box
        assert box["bottom"] <= measured["height"], box
        assert float(box["size"].removesuffix("px")) >= 10, box
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            across = min(one["right"], other["right"]) - max(one["left"], other["left"])
            down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
            assert across <= 1 or down <= 4, (one["words"], other["words"])


@pytest.mark.browser
def test_a_markdown_image_has_its_size_and_its_words(browser: Browser, tmp_path: Path) -> None:
    markdown = markdown_image(PICTURES["day"], "Coverage of a day")
    source = markdown[markdown.index("(") + 1 : -1]
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><img alt='Coverage of a day' src='{source}'>")
    browser.open(page.as_uri())
    assert browser.wait_for("document.images[0].complete && document.images[0].naturalWidth") == 640
    assert browser.complaints() == []
