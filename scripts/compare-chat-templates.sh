#!/usr/bin/env bash
# Renders conversations with chat templates of published models, by transformers and by `headroom-finetune`, and compares the texts:
#
#     bash scripts/compare-chat-templates.sh
#
# It needs python3 with pip. The templates come with the package trl, in a folder that goes away: none of them is in this repository.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip install --quiet --target "$work/packages" jinja2 transformers==5.23.0
python3 -m pip install --quiet --no-deps --target "$work/packages" trl==1.16.0
PYTHONPATH="$work/packages" python3 - "$work" <<'EOF'
import json, pathlib, shutil, sys

import importlib.util
from transformers.utils.chat_template_utils import render_jinja_template

work = pathlib.Path(sys.argv[1])
templates = pathlib.Path(importlib.util.find_spec("trl").submodule_search_locations[0]) / "chat_templates"
user, answer = {"role": "user", "content": " What is the capital of Peru? "}, {"role": "assistant", "content": "Lima."}
system = {"role": "system", "content": "Answer in a word: \"yes\" <b>."}
thought = {"role": "assistant", "content": "<think>\nPeru…\n</think>\n\nLima."}
call = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "capital", "arguments": {"of": "Perú", "year": 2026}}}]}
result = {"role": "tool", "content": "Lima"}
tools = [{"type": "function", "function": {"name": "capital", "description": "A country's capital", "parameters": {
    "type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}}}]
conversations = [
    ([user], None), ([user, answer], None), ([system, user, answer], None), ([user, answer, user, answer], None),
    ([system, user, thought, user, answer, user], None), ([user, user], None), ([answer], None), ([{"role": "narrator", "content": "."}], None),
    ([user, call, result, answer], tools), ([system, user, call, result, answer, user], tools)]
settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
cases = []
# Texts alone: pictures are not trained on here.
for path in sorted(templates.glob("*.jinja")):
    if any(word in path.name for word in ("_vl", "vlm", "llava", "idefics", "diffusion")):
        continue
    source = path.read_text()
    # Today's date is no part of what is trained on here, so templates write the date that they have by default.
    if "strftime_now" in source and "strftime_now is defined" not in source:
        continue
    shutil.copy(path, work)
    hidden = source.replace("strftime_now is defined", "false")
    for messages, given in conversations:
        for asks in (False, True):
            try:
                rendered, _ = render_jinja_template(
                    [messages], tools=given, chat_template=hidden, add_generation_prompt=asks, **settings)
                text = rendered[0]
            except Exception:
                text = None
            cases.append({"template": path.name, "settings": settings, "messages": messages, "tools": given,
                          "add_generation_prompt": asks, "text": text})
(work / "cases.json").write_text(json.dumps(cases))
print(f"{len({case['template'] for case in cases})} templates, {len(cases)} texts")
EOF
HEADROOM_CHAT_TEMPLATES=$work cargo test --quiet --locked ${HEADROOM_FEATURES:+--features "$HEADROOM_FEATURES"} --bin finetune -- --ignored --nocapture as_transformers
