#!/usr/bin/env python3
"""Uses the page of `kvfs web` in a headless Chromium as a person would, and takes pictures of it
and of `kvfs top`.

    scripts/web_screenshots.py --kvfs target/release/kvfs [--images docs/images]

A store is made, mounted and filled; the page must show it, keep out who has no token, show a
transaction with hostile names as text, and commit and abort when the buttons are pressed. Any error
in the page's console fails it. Without Chromium (Debian's `chromium`) it says so and ends with 0;
--need-browser makes that an error.
"""

import argparse
import base64
import html
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 30


class Browser:
    """Chromium, driven by its DevTools protocol over a pair of pipes:
    messages of JSON that end in NUL."""

    def __init__(self, program, profile):
        down_read, self.down = os.pipe()
        self.up, up_write = os.pipe()

        def place():
            # The protocol is on the descriptors 3 and 4. They may be among these four.
            a, b = os.dup(down_read), os.dup(up_write)
            spare_a, spare_b = os.dup(a), os.dup(b)
            os.dup2(spare_a, 3)
            os.dup2(spare_b, 4)

        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            [program, *flags],
            preexec_fn=place,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down_read)
        os.close(up_write)
        self.number, self.rest, self.session, self.errors = 0, b"", None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def message(self):
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.up], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser says nothing")
            piece = os.read(self.up, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.down, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if message.get("method") == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            if (
                message.get("method") == "Log.entryAdded"
                and message["params"]["entry"]["level"] == "error"
            ):
                entry = message["params"]["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def run(self, script):
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script, what):
        deadline = time.monotonic() + PATIENCE
        while not self.run(script):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited in vain until {what}; the page says: "
                    f"{self.run('document.body.innerText')[:2000]}"
                )
            time.sleep(0.1)

    def go(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until(
            "document.readyState === 'complete' && location.protocol === 'http:'",
            f"{url} is loaded",
        )

    def look(self, scheme, width=1180, height=900):
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def end(self):
        try:
            self.session = None
            self.call("Browser.close")
        except (EOFError, OSError, TimeoutError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def fill(kvfs, mnt):
    """Files of several ages, some of them gone again, keys, snapshots,
    and two open transactions."""
    run = lambda *words, **more: (
        subprocess.run(
            [kvfs, *map(str, words)], check=True, capture_output=True, text=True, **more
        ).stdout
    )
    for n in range(12):
        directory = mnt / f"part-{n}"
        directory.mkdir()
        for f in range(4):
            (directory / f"data-{f}.bin").write_bytes(os.urandom(4 << 20))
        if n % 3 == 2:
            shutil.rmtree(mnt / f"part-{n - 1}")
        if n in (4, 8):
            run("snapshot", "create", mnt, f"after-part-{n}")
    (mnt / "report.txt").write_text("spring\nsummer\n")
    for n in range(400):
        (mnt / "part-0" / f"note-{n}.txt").write_text(f"note {n}\n" * 20)
    commands = "".join(f"SET price:{n} {n * 7}\n" for n in range(3000))
    socket = json.loads(run("stat", mnt, "--json"))["daemon"]["socket"]
    if shutil.which("redis-cli"):
        subprocess.run(
            ["redis-cli", "-s", socket], input=commands, text=True, check=True, capture_output=True
        )
    run("kv", "put", mnt, "price:1", "8")
    run("clone", "create", mnt, "after-part-8", "trial")
    good = run("txn", "begin", "--label", "spring prices", mnt).strip()
    inside = mnt / ".kvfs" / "txn" / good
    (inside / "report.txt").write_text("spring\nautumn\nwinter\n")
    shutil.rmtree(inside / "part-3")
    (inside / "part-0").rename(inside / "archive")
    (inside / "prices.csv").write_text("apple,120\npear,90\n")
    run("kv", "put", inside, "price:apple", "120")
    run("kv", "del", inside, "price:2")
    bad = run(
        "txn", "begin", "--label", "<b>bold</b> <img src=x onerror='window.hacked=1'>", mnt
    ).strip()
    inside = mnt / ".kvfs" / "txn" / bad
    for name in ("<img src=x onerror='window.hacked=1'>", "<script>window.hacked=1", "a\u202eb"):
        (inside / name.replace("/", "")).write_text("<svg onload='window.hacked=1'>\n")
    return good, bad


def click(browser, script):
    browser.run(f"({script}).click()")


def use(browser, url, mnt, good, bad, images):
    page = url.split("#")[0]
    browser.go(page)
    browser.until(
        "document.getElementById('status').textContent.includes('token')",
        "it says that the token is missing",
    )
    # The browser notes the 401; that is no error of the page.
    browser.errors.clear()

    browser.look("light")
    browser.go(url)
    browser.until("document.getElementById('status').textContent === 'live'", "the page is live")
    assert browser.run("location.href") == page, "the token has left the address"
    assert browser.run("document.cookie") == "", "no cookie is set"
    browser.until(
        "document.querySelectorAll('#transactions tbody tr').length === 2",
        "both transactions are listed",
    )
    browser.until(
        "document.querySelectorAll('#snapshots tbody tr').length === 3",
        "snapshots and the clone are listed",
    )
    browser.until("document.querySelectorAll('#levels tbody tr').length > 2", "levels are listed")
    browser.until(
        "cells.length > 10 && cells.some((cell) => cell.used) && layout !== null", "zones are drawn"
    )
    used = browser.run(
        "(() => { const c = document.getElementById('map'), d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const seen = new Set();"
        "for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i+1] << 8 | d[i+2]); "
        "return seen.size; })()"
    )
    assert used > 4, f"the map has {used} colours"
    browser.run(
        "byId('map').dispatchEvent(new MouseEvent('mousemove', "
        "{clientX: byId('map').getBoundingClientRect().x + 3,"
        " clientY: byId('map').getBoundingClientRect().y + 3}))"
    )
    browser.until(
        "document.getElementById('zone').textContent === 'zone 0: the superblocks'",
        "a zone is described",
    )
    for n in range(240):
        (mnt / f"log-{n % 30}").write_text(f"line {n}\n" * (n % 50))
        time.sleep(0.04)
    browser.until("past.get('requests').some((rate) => rate > 0)", "rates are shown")
    browser.picture(images / "web-light.png")
    click(browser, "document.querySelector('input[value=purpose]')")
    browser.look("dark")
    time.sleep(1.5)
    browser.picture(images / "web-dark.png")

    row = lambda id: (
        "[...document.querySelectorAll('#transactions tbody tr')].find((r) => "
        f"r.firstChild.textContent === '{id}')"
    )
    assert "<b>bold</b>" in browser.run(f"{row(bad)}.textContent"), "a label is text"
    click(browser, f"{row(bad)}.querySelector('button')")
    browser.until(
        "document.querySelectorAll('#review-lines div').length === 3",
        "the hostile names are listed",
    )
    assert (
        browser.run(
            "document.querySelectorAll('#review img, #review script, #transactions img, "
            "#review svg').length"
        )
        == 0
    )
    click(browser, "byId('contents')")
    browser.until(
        "byId('review-lines').textContent.includes('<svg onload')", "the contents are shown"
    )
    assert browser.run("window.hacked") is None, "nothing of a name has run"
    click(browser, "byId('abort')")
    assert browser.run("byId('review').open"), "abort asks once more"
    click(browser, "byId('abort')")
    browser.until("!byId('review').open", "it is aborted")
    browser.until("document.querySelectorAll('#transactions tbody tr').length === 1", "one is left")

    click(browser, f"{row(good)}.querySelector('button')")
    browser.until(
        "document.querySelectorAll('#review-lines div').length >= 6 && !byId('commit').disabled",
        "the review is there",
    )
    browser.picture(images / "web-review-dark.png")
    browser.look("light")
    time.sleep(0.3)
    browser.picture(images / "web-review.png")
    (mnt / ".kvfs" / "txn" / good / "late").write_text("late\n")
    click(browser, "byId('commit')")
    browser.until(
        "byId('review-error').textContent.includes('has changed since')",
        "what was not shown is not committed",
    )
    # The browser notes the 409.
    browser.errors.clear()
    click(browser, "byId('again')")
    browser.until(
        "byId('review-lines').textContent.includes('late') && !byId('commit').disabled",
        "it is shown again",
    )
    click(browser, "byId('commit')")
    browser.until("!byId('review').open", "it is committed")
    assert (
        (mnt / "late").read_text() == "late\n"
        and (mnt / "archive").is_dir()
        and not (mnt / "part-3").exists()
    )
    browser.until(
        "document.getElementById('transactions').textContent === 'none is open'", "none is left"
    )
    assert not browser.errors, browser.errors


# Of the sixteen colours of a terminal those that kvfs top uses.
COLOURS = {
    0: "#222",
    1: "#e06c75",
    2: "#7fc47f",
    3: "#e5c05b",
    4: "#6f9eff",
    6: "#56c5cf",
    7: "#b5bcc6",
    8: "#7a8594",
}


def page_of_terminal(text):
    """What a terminal shows, with its colours, as a page."""
    out, style = [], {}
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        if not part.startswith("\x1b["):
            shown = ";".join(f"{name}:{value}" for name, value in style.items())
            out.append(f'<span style="{shown}">{html.escape(part)}</span>')
            continue
        codes = iter([int(code or 0) for code in part[2:-1].split(";")])
        for code in codes:
            if code == 0:
                style = {}
            elif code == 1:
                style["font-weight"] = "bold"
            elif code == 39:
                style.pop("color", None)
            elif code == 38 and next(codes, 0) == 5:
                style["color"] = COLOURS.get(next(codes, 7), "#e4eaf0")
            elif 30 <= code <= 37 or 90 <= code <= 97:
                style["color"] = COLOURS.get(code % 10 + (8 if code >= 90 else 0), "#e4eaf0")
    return (
        "<meta charset=utf-8><body style='margin:0;background:#14181d;color:#e4eaf0'>"
        "<pre style='margin:14px;font:13px/1.2 \"DejaVu Sans Mono\",monospace'>"
        + "".join(out)
        + "</pre>"
    )


def picture_of_top(browser, kvfs, mnt, images):
    """`kvfs top` in a terminal of tmux, while files are written and read."""
    if not shutil.which("tmux"):
        print("SKIPPED: no picture of kvfs top without tmux")
        return
    tmux = ["tmux", "-L", f"kvfs-{os.getpid()}"]
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "110", "-y", "36", f"exec {kvfs} top {mnt} -i 0.5"],
        check=True,
    )
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < 12:
            for n in range(20):
                (mnt / f"busy-{n}").write_bytes(os.urandom(64 << 10))
                (mnt / f"busy-{n}").read_bytes()
            time.sleep(0.02)
        text = subprocess.run(
            [*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True
        ).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    assert "Operations" in text and "requests/s" in text, text
    page = base64.b64encode(page_of_terminal(text).encode()).decode()
    browser.look("dark", 920, 600)
    browser.call("Page.navigate", url=f"data:text/html;base64,{page}")
    browser.until("document.querySelectorAll('span').length > 10", "the terminal is shown")
    browser.picture(images / "top.png")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kvfs", default="target/release/kvfs")
    parser.add_argument(
        "--images", type=Path, help="where the pictures go; without it they are thrown away"
    )
    parser.add_argument("--need-browser", action="store_true")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        print("SKIPPED: there is no chromium here (Debian: apt-get install chromium)")
        return 1 if arguments.need_browser else 0
    kvfs = os.path.abspath(arguments.kvfs)
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        mnt, store = place / "work", place / "my.kvfs"
        images = arguments.images or place / "images"
        images.mkdir(parents=True, exist_ok=True)
        mnt.mkdir()
        subprocess.run([kvfs, "create", store, "--size", "4G"], check=True, capture_output=True)
        subprocess.run([kvfs, "mount", store, mnt], check=True, capture_output=True)
        page, browser = None, None
        try:
            good, bad = fill(kvfs, mnt)
            page = subprocess.Popen([kvfs, "web", mnt, "--json"], stdout=subprocess.PIPE, text=True)
            url = json.loads(page.stdout.readline())["url"]
            browser = Browser(program, place / "profile")
            use(browser, url, mnt, good, bad, images)
            subprocess.run(
                [kvfs, "txn", "begin", "--label", "nightly build", mnt],
                check=True,
                capture_output=True,
            )
            picture_of_top(browser, kvfs, mnt, images)
        finally:
            if browser:
                browser.end()
            if page:
                page.terminate()
                page.wait()
            subprocess.run([kvfs, "umount", "--force", mnt], check=False)
    print("the page shows the store, keeps out who has no token, and commits what was shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
