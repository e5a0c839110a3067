#!/usr/bin/env bash
# Opens a page that `Timeline::save_page` wrote in headless Chromium, hovers over it, zooms in and out, fails if its script failed,
# and takes pictures in light and dark: the whole page (light.png, dark.png), and memory, micro-batch and the last chart alone, 880
# pixels wide at double resolution, for a README (timeline-light.png, timeline-dark.png).
#
#     bash scripts/look-at-page.sh PAGE.html OUT_FOLDER [WIDTH HEIGHT]
#
# It needs Chromium (Debian: `apt-get install chromium`), or CHROMIUM set to its path. The page uses no network.
set -euo pipefail
page=$(realpath "${1:?a page}")
out=${2:?a folder for the pictures}
width=${3:-1280}
height=${4:-1500}
mkdir -p "$out"
chromium=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome)}
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT

look() {
    "$chromium" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --user-data-dir="$profile" \
        --window-size="$width,$height" "$@" 2>"$profile/log"
}

# Everything is drawn, and nothing was logged, such as an error of the script or a request that the page's policy blocks.
dom=$(look --enable-logging=stderr --v=0 --dump-dom "file://$page")
grep -q '<body data-drawn="yes"' <<<"$dom" || { echo "$page: its script did not come to the end" >&2; grep CONSOLE "$profile/log" >&2; exit 1; }
if grep CONSOLE "$profile/log" >&2; then exit 1; fi
if grep -Eo '(src|href)="?https?:[^" >]*' "$page" >&2; then echo "$page: it asks the network for something" >&2; exit 1; fi
for word in NaN undefined Infinity; do
    # In what is drawn, not in the script that draws it.
    if sed 's/<script.*<\/script>//' <<<"${dom//$'\n'/ }" | grep -Eo "<(path|line|rect|text|circle)[^>]*$word[^>]*>" | head -3 | grep . >&2; then
        echo "$page: $word is drawn" >&2
        exit 1
    fi
done
# A user hovers and zooms.
{ cat "$page"; echo '<script>'; cat "$(dirname "$0")/use-page.js"; echo '</script>'; } >"$profile/used.html"
used=$(look --dump-dom "file://$profile/used.html" | grep -Eo 'data-used="[^"]*"' | head -1)
[ "$used" = 'data-used="yes"' ] || { echo "$page: in use: ${used:-the script did not come to the end}" >&2; exit 1; }
in_theme() { sed "s|<html|& data-theme=\"$1\"|" "$2" >"$profile/$1.html"; }
for theme in light dark; do
    in_theme "$theme" "$page"
    look --screenshot="$out/$theme.png" "file://$profile/$theme.html" >/dev/null
    test -s "$out/$theme.png"
    echo "$out/$theme.png"
done
cmp -s "$out/light.png" "$out/dark.png" && { echo "$page: dark is as light" >&2; exit 1; }
style='header,#tiles,#detail,.columns,footer,#charts>:not(:nth-child(-n+2),:last-child){display:none!important} body{padding:12px 12px 0!important}'
sed "s|</style>|$style</style>|" "$page" >"$profile/picture.html"
width=880 height=${PICTURE_HEIGHT:-716}
for theme in light dark; do
    in_theme "$theme" "$profile/picture.html"
    look --force-device-scale-factor=2 --screenshot="$out/timeline-$theme.png" "file://$profile/$theme.html" >/dev/null
    echo "$out/timeline-$theme.png"
done
