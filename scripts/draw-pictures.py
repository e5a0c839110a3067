#!/usr/bin/env python3
"""Draws the pictures of the book into docs/img, each one light and dark, in the colours of a run's page.

    python3 scripts/draw-pictures.py                             # step, gpu-memory and checkpointing, which are schematic; doctor;
                                                                 # and README's picture for docs.rs, from timeline-light.png
    python3 scripts/draw-pictures.py flame-graph layers.folded   # which the program in docs/how-to/which-layer.md writes
    python3 scripts/draw-pictures.py run-page page.html
    python3 scripts/draw-pictures.py ranks ranks.html

`doctor` is the report of tests/environment/golden on a container without NVIDIA's runtime, as a terminal shows it. The pages, whose
pictures need Chromium or CHROMIUM set to its path, are from these commands; the second one needs train_text with the feature `mpi`:

    cargo run --example timeline -- page.html
    RAYON_NUM_THREADS=1 mpirun --oversubscribe --bind-to none \\
        -n 2 target/debug/examples/train_text --ranks --batch 48 --steps 8 --report ranks : \\
        -n 1 target/debug/examples/train_text --ranks --batch 48 --steps 8 --report ranks --budget 8MiB

README's timeline-light.png and timeline-dark.png are by scripts/look-at-page.sh from the first page. All PNGs then got 200 colours.
"""

import base64
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs/img"
REPORT = ROOT / "crates/environment/tests/environment/golden/container_without_runtime.txt"
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif"
MONO = "ui-monospace,'Cascadia Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
WIDTH = 880
DARK = "#1b2130"  # letters on colours that are light in both themes


def palettes():
    """The colours of a run's page by their names: light and dark."""
    style = (ROOT / "src/timeline/page/page.css").read_text()
    found = re.findall(r"--([\w-]+): var\(--light, (#\w+)\) var\(--dark, (#\w+)\)", style)
    return {"light": {name: light for name, light, _ in found}, "dark": {name: dark for name, _, dark in found}}


class Drawing:
    """Shapes in an SVG. Colours are names of the palette."""

    def __init__(self, height, palette):
        self.height, self.palette, self.shapes = height, palette, []

    def shape(self, name, text=None, **attributes):
        written = ""
        for key, value in attributes.items():
            value = self.palette.get(value, value) if key in ("fill", "stroke") else value
            value = round(value, 1) if isinstance(value, float) else value
            written += f' {key.replace("_", "-")}="{value}"'
        self.shapes.append(f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text)}</{name}>")

    def box(self, x, y, width, height, fill, **attributes):
        self.shape("rect", x=x, y=y, width=width, height=height, fill=fill, **attributes)

    def line(self, points, stroke, width=1.7, fill="none", **attributes):
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shape("path", d=path, fill=fill, stroke=stroke, stroke_width=width, stroke_linejoin="round", **attributes)

    def area(self, points, bottom, fill, stroke):
        self.line([(points[0][0], bottom), *points, (points[-1][0], bottom)], "none", fill=fill)
        self.line(points, stroke)

    def text(self, x, y, text, fill="soft", **attributes):
        self.shape("text", text, x=x, y=y, fill=fill, **attributes)

    def centred(self, x, y, lines, fill="soft", **attributes):
        for i, line in enumerate(lines):
            self.text(x, y + 4.5 + 15 * (i - (len(lines) - 1) / 2), line, fill, text_anchor="middle", **attributes)

    def number(self, x, y, number):
        self.shape("circle", cx=x, cy=y, r=9.5, fill="ink")
        self.centred(x, y - 0.5, [str(number)], "card", font_size=12, font_weight=700)

    def keys(self, x, y, keys, gap=22):
        """A legend in one line. The widths of its words are estimated."""
        for fill, word in keys:
            self.box(x, y - 10, 11, 11, fill, rx=2)
            self.text(x + 17, y, word)
            x += 17 + 7.1 * len(word) + gap

    def save(self, path):
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}" font-family="{SANS}" font-size="13"'
        card = '<rect x=".5" y=".5" width="%d" height="%d" rx="12" fill="%s" stroke="%s"/>'
        card %= WIDTH - 1, self.height - 1, self.palette["card"], self.palette["line"]
        path.write_text("\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', card, *self.shapes, "</svg>\n"]))


class Course:
    """Memory over time, above a line, with the phases that use it."""

    def __init__(self, x, bottom, use):
        self.x, self.bottom, self.curve, self.phases = x, bottom, [(x, bottom - use)], []

    def go(self, width, phase, *uses):
        """A phase, at the end of whose equal parts these are in use."""
        self.phases.append((self.x, width, phase))
        for use in uses:
            self.x += width / len(uses)
            self.jump(use)

    def jump(self, use):
        self.curve.append((self.x, self.bottom - use))


def step(palette):
    """A step of 256 samples. Another part of the program takes memory while the third micro-batch runs."""
    drawing = Drawing(524, palette)
    # Of the memory: its zero, its limit, what is always in use, what is taken, and the activations of 64 samples.
    bottom, top, base, taken, size = 254, 84, 36, 62, 110
    left, held, boxes, gradient = 128, base, [], []
    course = Course(left, bottom, base)

    def micro_batch(first, samples):
        width, grown = 140 * samples / 64, size * samples / 64
        boxes.append((course.x, width, first, samples))
        course.go(0.35 * width, "forward", held + 0.6 * grown)
        course.go(0.61 * width, "backward", held + grown, held + 0.97 * grown, held + 0.94 * grown)
        course.jump(held)
        course.go(0.04 * width, "accumulate", held)
        gradient.append((course.x, first + samples))

    micro_batch(0, 64)
    micro_batch(64, 64)
    fails = course.x
    boxes.append((fails, 76, 128, 64))
    course.go(24, "forward", held + 0.3 * size)
    halfway, held = course.x, held + taken
    course.jump(held + 0.3 * size)
    course.go(25, "forward", held + 0.6 * size)
    course.go(27, "backward", bottom - top)
    failed, again = course.x, course.x + 42
    course.jump(held)
    course.go(again - failed, "grid", held)
    for first in range(128, 256, 32):
        micro_batch(first, 32)
    update, end = course.x, course.x + 58
    course.go(end - update, "optimizer", held)

    for y, word in ((41, "samples"), (160, "memory"), (284, "phase"), (328, "samples in"), (343, "the gradient"), (386, "parameters")):
        drawing.text(16, y, word)
    for at, width, first, samples in boxes:
        fill, stroke, ink = ("over", "limit", "limit") if at == fails else ("batch-fill", "batch", "ink")
        drawing.box(at + 1, 24, width - 2, 26, fill, stroke=stroke, rx=4)
        drawing.centred(at + width / 2, 37, [f"{first}..{first + samples}"], ink, font_size=12)
    drawing.area(course.curve, bottom, "memory-fill", "memory")
    drawing.box(left, bottom - base, end - left, base, "held")
    drawing.box(halfway, bottom - base - taken, end - halfway, taken, "other")
    drawing.text(left + 10, bottom - 14, "parameters, gradients, optimizer state", "ink")
    drawing.text(halfway + 12, bottom - base - 27, "taken by another part of the program", "card")
    drawing.line([(left, top), (end, top)], "limit", 1.5, stroke_dasharray="6 4")
    drawing.text(left, top - 7, "limit", "limit", font_weight=600)
    for at, width, phase in course.phases:
        drawing.box(at, 268, width, 24, phase)
    drawing.box(fails, 268, failed - fails, 24, "none", stroke="limit", stroke_width=1.6)
    steps = [(left, 354)]
    for at, samples in [*gradient, (end, 0)]:
        steps += [(at, steps[-1][1]), (at, 354 - samples / 8)]
        drawing.text(at + 4, steps[-1][1] - 5, str(samples or ""), "ink", font_size=12)
    drawing.area(steps, 354, "batch-fill", "batch")
    drawing.box(left, 370, update - left, 24, "grid", rx=4)
    drawing.text(left + 10, 386, "as before the step")
    drawing.box(update + 1, 370, end - update - 1, 24, "optimizer", rx=4)
    keys = [("forward", "forward"), ("backward", "backward"), ("accumulate", "gradient added"), ("optimizer", "update")]
    drawing.keys(left, 421, keys + [("memory-fill", "activations, temporary tensors")])
    for number, (at, y, sentence) in enumerate((
        (failed, top, "Memory runs out in the backward pass of samples 128..192."),
        ((failed + again) / 2, 280, "Only this micro-batch is dropped. The device is synchronized, and the pool trimmed."),
        ((again + update) / 2, 66, "The same samples are computed again, in smaller micro-batches. The gradient of 0..128 stays."),
        ((update + end) / 2, 382, "One update, with the mean gradient of all 256 samples."),
    ), 1):
        drawing.number(at, y, number)
        drawing.number(left + 9, 421 + 22 * number, number)
        drawing.text(left + 28, 425.5 + 22 * number, sentence, "ink")
    return drawing


def gpu_memory(palette):
    """What a limit counts, and what `stats()` calls the parts of a GPU's memory."""
    drawing = Drawing(248, palette)
    left, tensors, reserved, limit, others, context, end, top, height = 16, 226, 316, 456, 604, 734, 864, 94, 64
    for a, b, fill, ink, *lines in (
        (left, tensors, "memory", "card", "candle's tensors"),
        (tensors, reserved, "held", "ink", "kept", "for reuse"),
        (reserved, limit, "memory-fill", "ink", "may be taken", "when needed"),
        (limit, others, "grid", "soft", "not for", "this program"),
        (others, context, "plan", "card", "other", "processes"),
        (context, end, "kept", "card", "CUDA context,", "cuBLAS, …"),
    ):
        drawing.box(a, top, b - a, height, fill, stroke="card")
        drawing.centred((a + b) / 2, top + height / 2, lines, ink, font_weight=600)
    drawing.line([(limit, top - 30), (limit, top + height + 4)], "limit", 1.6, stroke_dasharray="6 4")

    def span(a, b, y, name, tick, colour="soft", more=""):
        drawing.line([(a + 2, y + tick), (a + 2, y), (b - 2, y), (b - 2, y + tick)], colour, 1.4)
        drawing.centred((a + b) / 2, y - 13 if tick > 0 else y + 13, [name], colour, font_family=MONO)
        drawing.centred((a + b) / 2, y + 31, [more], font_size=12)

    below = top + height + 12
    for x, words in ((left, "The pool"), (others, "Outside of the pool")):
        drawing.text(x, 30, words, "ink", font_weight=600)
    span(left, limit, 64, "limit", 7, "limit")
    span(others, end, 64, "unaccounted", 7)
    span(left, tensors, below, "in_use", -7)
    span(left, reserved, below + 40, "reserved", -7)
    span(reserved, others, below, "free", -7, more="another process may take it first")
    return drawing


def checkpointing(palette):
    """Memory over the time of a micro-batch of four blocks: a block's forward pass takes 1, its backward pass 2."""
    drawing = Drawing(406, palette)
    left, unit, block, inputs, base = 24, 47, 24, 4, 26
    for title, top, bottom, is_stored in (("Stored", 26, 180, True), ("Computed again in the backward pass", 244, 340, False)):
        level, course = base, Course(left, bottom, base)
        for number in (1, 2, 3, 4):
            level += block if is_stored else inputs
            course.go(unit, ("forward", number), *([level] if is_stored else [level + 0.5 * block, level]))
        for number in (4, 3, 2, 1):
            inner = level if is_stored else level + block
            if not is_stored:
                course.go(unit, ("recompute", number), inner)
            course.go(2 * unit, ("backward", number), inner + 14, inner + 3)
            course.jump(base if number == 1 else level)
        peak = min(y for _, y in course.curve)
        drawing.text(left, top, title, "ink", font_weight=600, font_size=14)
        drawing.area(course.curve, bottom, "memory-fill", "memory")
        drawing.box(left, bottom - base, course.x - left, base, "held")
        drawing.text(left + 10, bottom - 9, "parameters, gradients, optimizer state", "ink")
        drawing.line([(left, peak), (WIDTH - 24, peak)], "faint", 1, stroke_dasharray="3 3")
        drawing.text(WIDTH - 24, peak - 6, "highest use", text_anchor="end")
        for at, width, (name, number) in course.phases:
            drawing.box(at, bottom + 8, width, 22, name, stroke="card")
            drawing.centred(at + width / 2, bottom + 19, [str(number)], "card" if name == "backward" else DARK)
    keys = [("forward", "forward of a block"), ("recompute", "forward again"), ("backward", "backward of a block")]
    drawing.keys(left, 393, keys + [("memory-fill", "activations, temporary tensors")])
    return drawing


def doctor(palette):
    """The report as a terminal shows it: the severity has a colour."""
    colours = {"failure": ("limit", 700), "warning": ("wait", 400), "note": ("batch", 400), "ok": ("rate", 400)}
    lines = ["$ headroom doctor", *REPORT.read_text().splitlines()]
    drawing = Drawing(17 * len(lines) + 30, palette)

    def put(line, indent, y, colour, weight=400):
        width = 7.22 * len(line)  # of the letters, whichever font there is
        drawing.text(22 + 7.22 * indent, y, line, colour, font_family=MONO, font_size=12, font_weight=weight, textLength=width)

    for i, line in enumerate(lines):
        severity, y = line.split(" ")[0], 30 + 17 * i
        if severity in colours:
            put(severity, 0, y, *colours[severity])
            line = " " * len(severity) + line[len(severity) :]
        # Between columns there are two spaces or more.
        for column in re.finditer(r"\S+(?: \S+)*", line):
            put(column[0], column.start(), y, "ink")
    return drawing


def flame_graph(palette, folded):
    """Folded stacks: each frame on the one around it, the widest first."""
    sizes, row, narrow = collections.Counter(), 34, []
    for line in folded.read_text().splitlines():
        stack, size = line.rsplit(" ", 1)
        frames = ("highest use", *stack.split(";"))
        sizes.update({frames[: depth + 1]: int(size) for depth in range(len(frames))})
    drawing = Drawing(row * max(map(len, sizes)) + 70, palette)
    scale = (WIDTH - 32) / max(sizes.values())

    def draw(frames, x):
        depth, width = len(frames), sizes[frames] * scale
        y, name, size = drawing.height - 16 - row * depth, frames[-1], f"{sizes[frames] / 2**20:.1f} MiB"
        fill = name if name in ("forward", "backward") else ("plan", "held", "memory")[min(depth, 3) - 1]
        ink = DARK if fill == "forward" else "card"
        drawing.box(x, y, width, row, fill, stroke="card", rx=3)
        if width > 7.4 * len(name + size) + 16:
            drawing.centred(x + width / 2, y + row / 2, [f"{name} {size}"], ink)
        elif width > 50:
            drawing.centred(x + width / 2, y + row / 2, [name, size], ink, font_size=12)
        else:
            narrow.append((x + width / 2, y, f"{name} {size}"))
        for inner in sorted((inner for inner in sizes if inner[:-1] == frames), key=lambda inner: (-sizes[inner], inner)):
            draw(inner, x)
            x += sizes[inner] * scale

    draw(("highest use",), 16)
    for i, (x, y, label) in enumerate(narrow):
        # Left of the line above the frame, each one higher than the one before.
        drawing.line([(x, y), (x, y - 14 - 20 * i), (x - 6, y - 14 - 20 * i)], "faint", 1)
        drawing.text(x - 10, y - 10 - 20 * i, label, text_anchor="end", font_size=12)
    return drawing


# Where the numbers of the run page go: an element, and a place in it, in parts of its width and height.
CALLS = [("#tiles .tile", 0.9, 0.21), ("#charts>*", 0.61, 0.128), ("#charts text.note", 1.09, 0.5), ("#charts>*", 0.075, 0.346)]
CALLS += [("#charts>*", 0.55, 0.46), ("#charts>:nth-child(2)", 0.55, 0.3), ("#charts>:last-child", 0.2, 0.13)]
CALLS += [("#detail", 0.2, 0.09), ("#marks", 0.2, 0.1)]
CALL_SCRIPT = """
for (const [i, [selector, across, down]] of CALLS.entries()) {
  const box = document.querySelector(selector).getBoundingClientRect(), call = document.createElement('b');
  call.textContent = i + 1;
  call.style.cssText = `position:absolute;left:${box.left + across * box.width - 12}px;top:${box.top + down * box.height - 12}px;`
    + 'width:24px;height:24px;border-radius:50%;background:var(--evaluation);color:var(--card);text-align:center;line-height:24px';
  document.body.append(call);
}
"""


def screenshots(name, page, style, width, height, calls=()):
    """Pictures of a page that a run wrote."""
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    style += "#theme,footer{display:none!important} body{padding:14px 14px 2px!important}</style>"
    html = pathlib.Path(page).read_text().replace("</style>", style, 1)
    html += f"<script>const CALLS = {[list(call) for call in calls]};{CALL_SCRIPT}</script>"
    for theme in ("light", "dark"):
        with tempfile.TemporaryDirectory() as folder:
            themed, picture = pathlib.Path(folder, "page.html"), IMAGES / f"{name}-{theme}.png"
            themed.write_text(html.replace("<html", f'<html data-theme="{theme}"', 1))
            command = f"--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --user-data-dir={folder}/profile"
            command += f" --force-device-scale-factor=1.4 --window-size={width},{height} --screenshot={picture}"
            subprocess.run([chromium, *command.split(), themed.as_uri()], check=True, stderr=subprocess.DEVNULL)


def main():
    match sys.argv[1:]:
        case []:
            drawings = {"step": step, "gpu-memory": gpu_memory, "checkpointing": checkpointing, "doctor": doctor}
            data = base64.b64encode((IMAGES / "timeline-light.png").read_bytes()).decode()
            alt = "Memory of a run over time: it stays under its limit of 40 MiB while a cache takes 24 of them and returns them"
            picture = f'<img width="{WIDTH}" alt="{alt}" src="data:image/png;base64,{data}">\n'
            (ROOT / "src/documentation/picture.html").write_text(picture)
        case ["flame-graph", folded]:
            drawings = {"flame-graph": lambda palette: flame_graph(palette, pathlib.Path(folded))}
        case ["run-page", page]:
            style = "#marks .scroll{max-height:160px;overflow:hidden} #charts>:nth-child(3),#phases{display:none}"
            return screenshots("run-page", page, style, 1180, 1428, CALLS)
        case ["ranks", page]:
            return screenshots("ranks", page, "#of-rank,#tiles,#charts,#detail,.columns{display:none!important}", 880, 412)
        case _:
            sys.exit(__doc__)
    for theme, palette in palettes().items():
        for name, draw in drawings.items():
            draw(palette).save(IMAGES / f"{name}-{theme}.svg")


if __name__ == "__main__":
    main()
