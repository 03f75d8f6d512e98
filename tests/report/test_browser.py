"""The page in a real browser: no console message, tables present, dark mode, 380 px without sideways scroll.

Needs Chromium: ``apt-get install chromium`` on Debian and Ubuntu. Without it these tests skip and say so.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from momentum_transfer.core.records import make_record
from momentum_transfer.report.page import build, render_html
from momentum_transfer.report.read_inputs import read_runs
from momentum_transfer.report.reference import load_tables, published

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=8000 --dump-dom"
)

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium; get it with: apt-get install chromium")

#: Shows the page in two frames, wide and narrow, and writes down what they look like.
PROBE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><pre id="seen"></pre>
<iframe id="wide" src="report.html" style="width:1280px;height:900px"></iframe>
<iframe id="narrow" src="report.html" style="width:380px;height:900px"></iframe>
<script>
addEventListener("load", () => {
  const look = (name) => {
    const frame = document.getElementById(name), page = frame.contentDocument, root = page.documentElement;
    const style = (element) => frame.contentWindow.getComputedStyle(element);
    return {
      width: root.clientWidth, content: root.scrollWidth, tables: page.querySelectorAll("table").length,
      headings: [...page.querySelectorAll("h2")].map((h) => h.textContent),
      images: [...page.images].every((image) => image.naturalWidth > 0), count: page.images.length,
      plots: [...page.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect().width),
      paper: style(page.body).backgroundColor, ink: style(page.body).color,
      plotInk: style(page.querySelector("svg text")).fill,
      unnamed: page.querySelectorAll("svg:not([aria-label])").length,
    };
  };
  document.getElementById("seen").textContent = JSON.stringify({wide: look("wide"), narrow: look("narrow")});
});
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A folder with a page of long names and wide tables, served on this machine."""
    folder = tmp_path_factory.mktemp("site")
    run = folder / "momentum2_with_a_rather_long_name_of_its_own"
    (run / "visuals").mkdir(parents=True)
    Image.new("RGB", (300, 200), "navy").save(run / "visuals" / "scene.png")
    (run / "metrics.jsonl").write_text("\n".join(json.dumps({"step": i, "loss": 3 - i / 9}) for i in range(9)))
    records = []
    for name, base in ((run.name, 60.0), ("random_init", 10.0), ("pixels", 20.0)):
        checkpoint = {"name": name, "sha256": "0123456789abcdef" * 4}
        for k in (1, 2, 4, 8, 16):
            for trial in range(3):
                more = {"protocol": "imagenet/heldout", "dataset": "digits", "engine": "scikit-learn", "trial": trial}
                records.append(make_record(f"svm/k={k}", "top1", base + k + trial, checkpoint=checkpoint, **more))
        for metric in ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100"):
            records.append(
                make_record("coco/bbox", metric, base / 2, checkpoint=checkpoint, dataset="a_long_data_name")
            )
    report = build(
        records, runs=read_runs([run]), reference=published(load_tables()), problems=["/a/long/path/" * 20],
        command="python tools/report.py " + "x" * 300,
    )  # fmt: skip
    (folder / "report.html").write_text(render_html(report), encoding="utf-8")
    (folder / "probe.html").write_text(PROBE, encoding="utf-8")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def browse(address: str, tmp_path: Path, *flags: str) -> tuple[str, list[str]]:
    """The page as the browser made it, and its console messages."""
    command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}", *flags, address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return ended.stdout, re.findall(r"CONSOLE.*", ended.stderr)


def look(site: tuple[str, Path], tmp_path: Path, *flags: str) -> dict:
    page, console = browse(f"{site[0]}/probe.html", tmp_path, *flags)
    assert console == []
    seen = re.search(r'<pre id="seen">(.+?)</pre>', page)
    assert seen, page[:500]
    return json.loads(seen.group(1).replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


def brightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_light_page_is_whole_at_1280_and_at_380_px_without_sideways_scroll(site, tmp_path: Path):
    seen = look(site, tmp_path, "--blink-settings=preferredColorScheme=1")
    for view in (seen["wide"], seen["narrow"]):
        assert view["tables"] == 5
        assert view["headings"][:3] == ["Summary", "Task by task", "Detections on held-out scenes"]
        assert view["count"] == 1
        assert view["images"]
        assert view["unnamed"] == 0
        assert view["content"] <= view["width"], "the page scrolls sideways"
        assert len(view["plots"]) == 4
        assert all(100 < width <= view["width"] for width in view["plots"])
    assert seen["narrow"]["width"] <= 380
    assert brightness(seen["wide"]["paper"]) > 200 > 100 > brightness(seen["wide"]["ink"])


def test_dark_page_is_dark_and_its_plots_follow(site, tmp_path: Path):
    seen = look(site, tmp_path, "--blink-settings=preferredColorScheme=0")["wide"]
    assert brightness(seen["paper"]) < 60
    assert brightness(seen["ink"]) > 180
    assert brightness(seen["plotInk"]) > 120


def test_the_probe_hears_a_page_that_complains(site, tmp_path: Path):
    broken = (site[1] / "report.html").read_text(encoding="utf-8").replace("</body>", "<script>1</script></body>")
    (site[1] / "broken.html").write_text(broken, encoding="utf-8")
    _, console = browse(f"{site[0]}/broken.html", tmp_path)
    assert any("Content Security Policy" in line for line in console)
