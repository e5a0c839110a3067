#!/usr/bin/env python3
"""Follows the links between the pages of a built book or of rustdoc's output, files and headings alike.

    python3 scripts/check-links.py target/book target/doc/candle_headroom/_documentation

Links to other sites, and to lines of rustdoc's copies of the sources, are not followed.
"""

import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, text = set(), [], path.read_text()
        # As in src/documentation.rs.
        self.hides_pictures = "<style>picture, picture + p { display: none }</style>" in text
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("id"):
            self.ids.add(attributes["id"])
        name = {"a": "href"} if self.hides_pictures else {"a": "href", "img": "src", "source": "srcset"}
        name = name.get(tag)
        if name and attributes.get(name):
            self.links.append(attributes[name])


def main():
    pages, broken, followed = {}, [], 0

    def page(path):
        if path not in pages:
            pages[path] = Page(path)
        return pages[path]

    for root in map(pathlib.Path, sys.argv[1:]):
        files = [path for path in sorted(root.rglob("*.html")) if path.name != "toc.html"]
        if not files:
            sys.exit(f"{root}: no pages")
        for path in files:
            for link in page(path).links:
                address = urllib.parse.urlsplit(link)
                if address.scheme or address.netloc or address.path.endswith(".rs.html"):
                    continue
                followed += 1
                target = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
                if target.is_dir():
                    target /= "index.html"
                anchor = urllib.parse.unquote(address.fragment)
                if not target.exists():
                    broken.append(f"{path}: {link}: no such file")
                elif anchor and target.suffix == ".html" and anchor not in page(target).ids:
                    broken.append(f"{path}: {link}: no such heading")
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{followed} links, {len(broken)} broken")
    sys.exit(bool(broken))


main()
