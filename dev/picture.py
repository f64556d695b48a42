"""Draw a terminal's transcript as an SVG picture: `script -c "make demo" demo.txt; python dev/picture.py demo.txt demo.svg`.

What a live line was drawn over by is gone, as on the terminal. `--until TEXT` ends the picture before the line that begins
so.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 8.4, 19, 16
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NOISE = re.compile(r"^Script (started|done)|^make\[?\d*\]?:")


def main() -> int:
    """Read, clean, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("transcript", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--command", default="make demo", help="what was typed")
    parser.add_argument("--until", default="What to look at next", help="the first line that is left out")
    arguments = parser.parse_args()
    lines = shown(arguments.transcript.read_bytes().decode(errors="replace"), arguments.until)
    arguments.picture.write_text(drawn([f"$ {arguments.command}", *lines]))
    return 0


def shown(transcript: str, until: str) -> list[str]:
    """The lines as they stood on the terminal in the end."""
    lines = []
    for line in transcript.replace("\r\n", "\n").split("\n"):
        if line.startswith(until):
            break
        text = ESCAPES.sub("", line.rpartition("\r")[2]).rstrip()
        if not NOISE.match(text) and (text or (lines and lines[-1])):
            lines.append(text)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def drawn(lines: list[str]) -> str:
    """The picture."""
    width = round(max(map(len, lines)) * WIDTH + 2 * MARGIN)
    height = round(len(lines) * HEIGHT + 2 * MARGIN)
    rows = [
        f'<text x="{MARGIN}" y="{MARGIN + HEIGHT * number + 14}" xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    ]
    style = "font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, monospace; fill: #d7dae0"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{style}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#1e2127"/>',
            *rows,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
