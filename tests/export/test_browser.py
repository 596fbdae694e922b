"""The example's page in a real browser: strokes on its canvas become the digit that they are."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_in_browser.py"
BROWSER = next(
    (found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

# The strokes of digits, as a hand draws them on a canvas of 256 x 256.
STROKES = {
    0: [
        [
            (128, 30),
            (70, 70),
            (60, 128),
            (75, 195),
            (128, 226),
            (180, 195),
            (196, 128),
            (180, 65),
            (128, 30),
        ]
    ],
    1: [[(95, 75), (135, 30), (135, 226)]],
    4: [[(140, 30), (70, 150), (200, 150)], [(155, 100), (155, 226)]],
    7: [[(60, 40), (196, 40), (120, 226)], [(95, 130), (190, 130)]],
}

# Draws in the page by pointer events, and says what it then shows.
VISITOR = """<!doctype html>
<title>A visitor</title><iframe id="page" src="index.html" width="600" height="900"></iframe>
<pre id="seen"></pre>
<script>
const strokes = STROKES, wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function visit() {
  const page = document.querySelector("#page");
  while (!page.contentDocument?.body?.dataset.ready) await wait(20);
  const inside = page.contentDocument, paper = inside.querySelector("#paper");
  const border = paper.getBoundingClientRect(), seen = {};
  const send = (kind, [x, y]) => paper.dispatchEvent(new page.contentWindow.PointerEvent(kind, {
    clientX: border.x + 1 + x, clientY: border.y + 1 + y, buttons: 1, bubbles: true,
  }));
  for (const [digit, lines] of Object.entries(strokes)) {
    inside.querySelector("#clear").click();
    for (const line of lines) {
      send("pointerdown", line[0]);
      line.slice(1).forEach((point) => send("pointermove", point));
    }
    seen[digit] = inside.querySelector("#digit").value;
  }
  inside.querySelector("#clear").click();
  seen.nothing = inside.querySelector("#digit").value;
  document.querySelector("#seen").textContent = JSON.stringify(seen);
}
visit();
</script>
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the example's files, and of the visitor's page."""
    folder = tmp_path_factory.mktemp("site")
    spec = importlib.util.spec_from_file_location("digits_in_browser", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    result = example.main(["--folder", str(folder), "--epochs", "12"])
    assert result.accuracy > 0.95
    assert [file.name for file in result.files] == ["classify.wasm", "classify.mjs", "index.html"]
    (folder / "visitor.html").write_text(VISITOR.replace("STROKES", json.dumps(STROKES)))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    Quiet.extensions_map[".mjs"] = "text/javascript"
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@needs_browser
def test_a_visitor_draws_digits(site: str, tmp_path: Path) -> None:
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [*command, f"{site}/visitor.html"], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout)
    assert found is not None, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    seen = json.loads(found[1])
    assert seen == {**{str(digit): str(digit) for digit in STROKES}, "nothing": ""}
