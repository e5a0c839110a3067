'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const steps = data.steps, phases = data.phases, marks = data.marks, count = steps.began.length;
const $ = id => document.getElementById(id);
const known = values => values.filter(value => value !== null);
const most = values => known(values).reduce((a, b) => Math.max(a, b), -Infinity);

// Numbers as people read them.
const trim = text => text.includes('.') ? text.replace(/\.?0+$/, '') : text;
const digits = (value, n = 3) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString('en', { maximumFractionDigits: size >= 1000 ? 0 : Math.max(0, n - 1 - Math.floor(Math.log10(size || 1))) });
};
function bytes(value) {
  if (value === null || value === undefined || !isFinite(value)) return 'n/a';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit++; }
  return trim(value.toFixed(value < 10 && unit ? 2 : value < 100 && unit ? 1 : 0)) + ' ' + units[unit];
}
function time(ms) {
  if (ms < 1) return trim((ms * 1000).toFixed(0)) + ' µs';
  if (ms < 1000) return trim(ms.toFixed(ms < 10 ? 2 : 1)) + ' ms';
  const s = ms / 1000;
  if (s < 120) return trim(s.toFixed(s < 10 ? 2 : 1)) + ' s';
  const two = n => String(Math.floor(n)).padStart(2, '0');
  return s < 3600 ? Math.floor(s / 60) + ':' + two(s % 60) + ' min' : Math.floor(s / 3600) + ':' + two(s / 60 % 60) + ' h';
}
const clock = ms => new Date(data.began + ms).toLocaleTimeString('en-GB');
const plural = (n, word) => digits(n) + ' ' + word + (n === 1 ? '' : word.endsWith('h') ? 'es' : 's');

// Elements.
const NS = 'http://www.w3.org/2000/svg';
function svg(parent, name, attributes, text) {
  const element = document.createElementNS(NS, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function html(parent, name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// Ticks at round numbers; round in powers of two for bytes.
function ticks(low, high, about, isBytes) {
  const raw = (high - low) / about;
  if (!(raw > 0)) return [low];
  const base = isBytes ? 2 ** Math.floor(Math.log2(raw)) : 10 ** Math.floor(Math.log10(raw));
  const step = base * (isBytes ? [1, 2] : [1, 2, 5, 10]).find(factor => base * factor >= raw * .99);
  const list = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high * 1.0001; tick += step) list.push(tick);
  return list;
}

const LEFT = 76, RIGHT = 14, MARKS = 22;
const whole = count ? [Math.min(steps.began[0], 0), steps.ended[count - 1]] : [0, Math.max(data.now, 1)];
if (marks.length) whole[1] = Math.max(whole[1], marks[marks.length - 1].at);
let view = whole.slice();
const colours = { exhausted: '--exhausted', failed: '--failed', grown: '--grown', shrunk: '--shrunk', restarted: '--shrunk', 'over limit': '--shrunk' };
const glyphs = { exhausted: '×', failed: '!', grown: '▴', shrunk: '▾', restarted: '↻', 'over limit': '−' };
const colour = kind => `var(${colours[kind] || '--other'})`;

// What a chart shows: rows of steps, or series of their own.
const rate = steps.busy.map((busy, i) => busy > 0 ? steps.samples[i] / busy * 1000 : null);
const hasMemory = known(steps.peak).length || known(steps.inUse).length;
const ceiling = values => Math.max(most(values) * 1.12, 0);
const panels = [{
  title: 'Memory', height: 270, unit: bytes, isBytes: true, marks: true, limit: steps.limit,
  top: () => Math.max(most(steps.limit) * 1.1, ceiling(steps.peak), ceiling(steps.reserved), ceiling(steps.inUse), 1),
  lines: [
    { name: 'held by the pool', value: steps.reserved, colour: '--held', fill: '--held-fill' },
    { name: 'highest use in a step', value: steps.peak, colour: '--memory', fill: '--memory-fill' },
    { name: 'in use between steps', value: steps.inUse, colour: '--batch', thin: true },
  ],
  empty: hasMemory ? '' : 'Nobody counts memory here: give the trainer a DeviceMemory, and on the host install the TrackingAllocator.',
}, {
  title: 'Micro-batch', height: 118, unit: value => plural(value, 'sample'), strikes: true,
  lines: [{ name: 'largest', value: steps.most, colour: '--batch', fill: '--batch-fill' }],
}, {
  title: 'Throughput', height: 118, unit: value => digits(value) + ' samples/s', strikes: true,
  lines: [{ name: 'samples a second', value: rate, colour: '--rate', fill: '--rate-fill' }],
}, ...data.numbers.filter(series => series.at.length).map(series => ({
  title: series.name, height: 118, unit: value => digits(value), floats: true,
  lines: [{ name: series.name, at: series.at, value: series.value, colour: '--number' }],
}))];

function path(line, x, y, baseline) {
  let stroke = '', fill = '', start = null, end = null;
  const close = () => { if (start !== null) fill += `L${end},${baseline}L${start},${baseline}Z`; start = null; };
  line.value.forEach((value, i) => {
    if (value === null) return close();
    const a = line.at ? line.at[i] : steps.began[i], b = line.at ? line.at[i] : steps.ended[i];
    const next = line.at ? b : Math.max(b, Math.min(steps.began[i + 1] ?? b, b + (b - a) * .5));
    if (next < view[0] - (view[1] - view[0]) || a > view[1] + (view[1] - view[0])) return;
    const px = x(a).toFixed(1), qx = x(next).toFixed(1), py = y(value).toFixed(1);
    const move = start === null ? 'M' : 'L';
    stroke += `${move}${px},${py}` + (line.at ? '' : `H${qx}`);
    fill += `${move}${px},${py}L${qx},${py}`;
    if (start === null) start = px;
    end = qx;
  });
  close();
  return [stroke, fill];
}

function axes(root, width, height, x0, y, low, high, unit, isBytes, isLast, range, format) {
  for (const tick of ticks(low, high, Math.max(3, height / 52), isBytes)) {
    svg(root, 'line', { class: 'grid', x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) });
    svg(root, 'text', { x: LEFT - 8, y: y(tick) + 4, 'text-anchor': 'end' }, format(tick));
  }
  if (!isLast) return;
  const span = range[1] - range[0];
  for (const tick of ticks(range[0], range[1], width / 120, false)) {
    svg(root, 'text', { x: Math.min(x0(tick), width - RIGHT - 12), y: height - 3, 'text-anchor': 'middle' },
      tick === 0 ? '0' : span < 5 ? '+' + time(tick - range[0]) : time(tick));
  }
}

function drawPanel(panel, isLast) {
  const { box, root } = panel, width = box.clientWidth, height = panel.height + (isLast ? 20 : 0);
  root.replaceChildren();
  root.setAttribute('viewBox', `0 0 ${width} ${height}`);
  root.setAttribute('height', height);
  const up = panel.marks && marks.length ? MARKS : 8, bottom = panel.height - 8;
  let low = 0, high = panel.top ? panel.top() : ceiling(panel.lines[0].value);
  if (panel.floats) {
    const shown = panel.lines[0].value.filter((_, i) => panel.lines[0].at[i] >= view[0] && panel.lines[0].at[i] <= view[1]);
    const least = Math.min(...shown), highest = Math.max(...shown), room = (highest - least || Math.abs(highest) || 1) * .12;
    [low, high] = [least >= 0 ? Math.max(0, least - room) : least - room, highest + room];
  }
  if (!isFinite(high) || high <= low) high = low + 1;
  const x = at => LEFT + (at - view[0]) / (view[1] - view[0]) * (width - LEFT - RIGHT);
  const y = value => bottom - (value - low) / (high - low) * (bottom - up);
  axes(root, width, height, x, y, low, high, panel.unit, panel.isBytes, isLast, view, panel.isBytes ? bytes : digits);
  const clip = 'clip' + panel.index;
  svg(svg(root, 'clipPath', { id: clip }), 'rect', { x: LEFT, y: 0, width: width - LEFT - RIGHT, height });
  const plot = svg(root, 'g', { 'clip-path': `url(#${clip})` });
  if (panel.limit && known(panel.limit).length) {
    const last = known(panel.limit).at(-1);
    svg(plot, 'rect', { x: LEFT, y: up, width: width - LEFT - RIGHT, height: Math.max(0, y(last) - up), style: 'fill:var(--over)' });
  }
  for (const line of panel.lines) {
    if (!known(line.value).length) continue;
    const [stroke, fill] = path(line, x, y, bottom);
    if (line.fill) svg(plot, 'path', { d: fill, style: `fill:var(${line.fill})` });
    svg(plot, 'path', { d: stroke, fill: 'none', 'stroke-width': line.thin ? 1.3 : 1.7, 'stroke-linejoin': 'round', style: `stroke:var(${line.colour})` });
  }
  if (panel.limit && known(panel.limit).length) {
    svg(plot, 'path', { class: 'limit', d: path({ value: panel.limit }, x, y, bottom)[0] });
    const last = known(panel.limit).at(-1);
    svg(root, 'text', { x: width - RIGHT - 6, y: y(last) - 6, 'text-anchor': 'end', style: 'fill:var(--limit);font-weight:600' }, 'limit ' + bytes(last));
  }
  if (panel.empty) svg(root, 'text', { x: (LEFT + width) / 2, y: panel.height / 2, 'text-anchor': 'middle' }, panel.empty);
  const inView = marks.filter(mark => mark.at >= view[0] && mark.at <= view[1]);
  if (panel.strikes || panel.marks) {
    for (const mark of inView.filter(mark => mark.kind === 'exhausted' || mark.kind === 'failed')) {
      svg(plot, 'line', { class: 'strike', x1: x(mark.at), x2: x(mark.at), y1: up, y2: bottom });
    }
  }
  if (panel.marks) drawMarks(root, inView, x);
  svg(root, 'line', { class: 'axis', x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom });
  panel.cursor = svg(root, 'line', { class: 'cursor', y1: up, y2: bottom, visibility: 'hidden' });
}

// Marks that would cover each other become one with their number.
function drawMarks(root, shown, x) {
  const groups = [];
  for (const mark of shown) {
    const at = x(mark.at), group = groups.at(-1);
    if (group && at - group.x < 15) group.marks.push(mark); else groups.push({ x: at, marks: [mark] });
  }
  for (const group of groups) {
    const worst = group.marks.find(mark => mark.kind === 'failed') || group.marks.find(mark => mark.kind === 'exhausted') || group.marks[0];
    const item = svg(root, 'g', { class: 'mark', transform: `translate(${group.x},10)` });
    svg(item, 'circle', { r: 7.5, style: `fill:${colour(worst.kind)}` });
    svg(item, 'text', { y: 3.5 }, group.marks.length > 1 ? Math.min(group.marks.length, 99) : glyphs[worst.kind] || '·');
    const lines = group.marks.slice(0, 6).map(mark => `step ${mark.step}: ${mark.text}`);
    if (group.marks.length > 6) lines.push(`and ${group.marks.length - 6} more`);
    item.addEventListener('pointermove', event => { event.stopPropagation(); showTip(event, time(group.marks[0].at), [], lines); });
    item.addEventListener('pointerleave', hideTip);
  }
}

// Hovering and zooming.
const tip = $('tip');
function showTip(event, title, rows, lines) {
  tip.replaceChildren();
  html(tip, 'b', '', title);
  const list = html(tip, 'dl');
  for (const [name, value] of rows) { html(list, 'dt', '', name); html(list, 'dd', '', value); }
  for (const line of lines) html(tip, 'p', '', line);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 16, innerWidth - width - 8) + 'px';
  tip.style.top = Math.max(8, Math.min(event.clientY + 14, innerHeight - height - 8)) + 'px';
}
function hideTip() {
  tip.hidden = true;
  panels.forEach(panel => panel.cursor && panel.cursor.setAttribute('visibility', 'hidden'));
}
function stepAt(at) {
  let low = 0, high = count - 1;
  while (low < high) { const middle = (low + high + 1) >> 1; if (steps.began[middle] <= at) low = middle; else high = middle - 1; }
  return low;
}
function describe(event, at) {
  if (!count) return;
  const i = stepAt(at), rows = [];
  const limit = steps.limit[i], peak = steps.peak[i];
  if (peak !== null) rows.push(['highest use', bytes(peak) + (limit ? ` of ${bytes(limit)} (${(peak / limit * 100).toFixed(0)} %)` : '')]);
  if (steps.inUse[i] !== null) rows.push(['in use after', bytes(steps.inUse[i])]);
  if (steps.reserved[i] !== null) rows.push(['held by the pool', bytes(steps.reserved[i])]);
  rows.push(['micro-batches', `${digits(steps.micro[i])} of ${steps.least[i] === steps.most[i] ? '' : steps.least[i] + '–'}${steps.most[i]}`]);
  if (rate[i] !== null) rows.push(['throughput', digits(rate[i]) + ' samples/s']);
  rows.push(['time', time(steps.busy[i])]);
  if (steps.retries[i]) rows.push(['did not fit', digits(steps.retries[i])]);
  for (const series of data.numbers) {
    const j = series.at.findIndex(when => when >= steps.began[i]);
    if (j >= 0) rows.push([series.name, digits(series.value[j], 4)]);
  }
  const within = marks.filter(mark => mark.at >= steps.began[i] && mark.at <= steps.ended[i]).slice(0, 4).map(mark => mark.text);
  const title = steps.steps[i] > 1 ? `Steps ${steps.last[i] - steps.steps[i] + 1}–${steps.last[i]}` : `Step ${steps.last[i]}`;
  showTip(event, `${title} · ${time(steps.began[i])} · ${clock(steps.began[i])}`, rows, within);
}
function interact(root, range, apply, hover) {
  let from = null, box = null;
  const at = event => {
    const bounds = root.getBoundingClientRect();
    const share = (event.clientX - bounds.left - LEFT) / (bounds.width - LEFT - RIGHT);
    return range()[0] + Math.min(1, Math.max(0, share)) * (range()[1] - range()[0]);
  };
  const place = when => LEFT + (when - range()[0]) / (range()[1] - range()[0]) * (root.clientWidth - LEFT - RIGHT);
  root.addEventListener('pointerdown', event => {
    from = at(event); root.setPointerCapture(event.pointerId);
    box = svg(root, 'rect', { class: 'drag', y: 0, height: root.clientHeight, x: place(from), width: 0 });
  });
  root.addEventListener('pointermove', event => {
    const now = at(event);
    if (box) { box.setAttribute('x', place(Math.min(from, now))); box.setAttribute('width', Math.abs(place(now) - place(from))); }
    hover(event, now, place(now));
  });
  root.addEventListener('pointerup', event => {
    const now = at(event);
    if (box) box.remove();
    if (from !== null && Math.abs(place(now) - place(from)) > 6) apply([Math.min(from, now), Math.max(from, now)]);
    from = box = null;
  });
  root.addEventListener('pointerleave', hideTip);
  root.addEventListener('dblclick', () => apply(null));
}

// The latest phases: what ran when, and memory with it.
const phaseCount = phases.began.length;
let first = phaseCount - 1;
while (first > 0 && phaseCount - first < 240 && phases.step[phaseCount - 1] - phases.step[first - 1] < 3) first--;
const wholeDetail = phaseCount ? [phases.began[Math.max(first, 0)], phases.ended[phaseCount - 1]] : [0, 1];
let detail = wholeDetail.slice();
const lanes = { box: $('lanes'), root: null };
function drawDetail() {
  const root = lanes.root, width = lanes.box.clientWidth, height = 214, up = 10, bottom = 132;
  root.replaceChildren();
  root.setAttribute('viewBox', `0 0 ${width} ${height}`);
  root.setAttribute('height', height);
  const x = at => LEFT + (at - detail[0]) / (detail[1] - detail[0]) * (width - LEFT - RIGHT);
  const limit = known(steps.limit).at(-1), shown = i => phases.ended[i] >= detail[0] && phases.began[i] <= detail[1];
  const high = Math.max(ceiling(phases.peak.filter((_, i) => shown(i))), ceiling(phases.inUse.filter((_, i) => shown(i))), limit ? limit * 1.12 : 0, 1);
  const y = value => bottom - value / high * (bottom - up);
  if (known(phases.inUse).length) axes(root, width, height, x, y, 0, high, bytes, true, false, detail, bytes);
  for (const tick of ticks(0, detail[1] - detail[0], width / 130, false)) {
    svg(root, 'text', { x: x(tick + detail[0]), y: height - 4, 'text-anchor': 'middle' }, tick ? '+' + time(tick) : time(detail[0]));
  }
  svg(svg(root, 'clipPath', { id: 'clipDetail' }), 'rect', { x: LEFT, y: 0, width: width - LEFT - RIGHT, height });
  const plot = svg(root, 'g', { 'clip-path': 'url(#clipDetail)' });
  let line = '', lastStep = null, before = null;
  for (let i = 0; i < phaseCount; i++) {
    if (!shown(i)) { before = phases.inUse[i]; continue; }
    const a = x(phases.began[i]), b = Math.max(x(phases.ended[i]), a + .6), tint = `fill:var(--p${phases.phase[i]})`;
    svg(plot, 'rect', { class: phases.ok[i] ? 'phase' : 'phase bad', x: a, width: b - a, y: 144, height: 30, rx: b - a > 6 ? 2 : 0, style: tint });
    const peak = phases.peak[i] ?? phases.inUse[i];
    if (peak !== null) {
      svg(plot, 'rect', { x: a, width: b - a, y: y(peak), height: Math.max(0, bottom - y(peak)), style: tint + ';opacity:.3' });
      line += `${line ? 'L' : 'M'}${a.toFixed(1)},${y(before ?? phases.inUse[i]).toFixed(1)}L${b.toFixed(1)},${y(phases.inUse[i]).toFixed(1)}`;
    }
    before = phases.inUse[i];
    if (phases.step[i] !== lastStep) {
      lastStep = phases.step[i];
      svg(plot, 'line', { class: 'axis', x1: a, x2: a, y1: 144, y2: 190 });
      svg(plot, 'text', { x: a + 4, y: 188 }, 'step ' + lastStep);
    }
  }
  if (line) svg(plot, 'path', { d: line, fill: 'none', 'stroke-width': 1.5, style: 'stroke:var(--ink)' });
  if (limit) svg(plot, 'path', { class: 'limit', d: `M${LEFT},${y(limit)}H${width - RIGHT}` });
  svg(root, 'line', { class: 'axis', x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom });
}
function describePhase(event, at) {
  let i = phases.began.findIndex((began, j) => at >= began && at <= phases.ended[j]);
  if (i < 0) return hideTip();
  const rows = [['time', time(phases.ended[i] - phases.began[i])]];
  if (phases.inUse[i] !== null) rows.push(['in use at its end', bytes(phases.inUse[i])]);
  if (phases.peak[i] !== null) rows.push(['highest so far', bytes(phases.peak[i])]);
  if (!phases.ok[i]) rows.push(['result', 'failed']);
  showTip(event, `${data.phaseNames[phases.phase[i]]}, step ${phases.step[i]}`, rows, []);
}

function draw() {
  panels.forEach((panel, i) => drawPanel(panel, i === panels.length - 1));
  if (phaseCount) drawDetail();
  $('whole').hidden = view[0] === whole[0] && view[1] === whole[1] && detail[0] === wholeDetail[0] && detail[1] === wholeDetail[1];
}

// The page around it.
function tile(name, value, unit, more, share) {
  const box = html($('tiles'), 'div', 'tile');
  html(box, 'div', 'name', name);
  const number = html(box, 'div', 'value', value);
  if (unit) html(number, 'small', '', ' ' + unit);
  html(box, 'div', 'more', more);
  if (share !== undefined && isFinite(share)) {
    const bar = html(html(box, 'div', 'bar'), 'i', share > 1 ? 'over' : '');
    bar.style.width = Math.min(100, share * 100) + '%';
  }
}
function build() {
  const end = count ? steps.ended[count - 1] : data.now, totals = data.totals;
  const busy = steps.busy.reduce((a, b) => a + b, 0), limit = known(steps.limit).at(-1);
  $('when').textContent = new Date(data.began).toLocaleString('en-GB', { dateStyle: 'long', timeStyle: 'medium' }) + ' · ' + time(end) + ' · candle-headroom ' + data.version;
  const [peak, unit] = bytes(totals.peak).split(' ');
  tile('Highest use', peak, unit === 'n/a' ? '' : unit, limit ? `${(totals.peak / limit * 100).toFixed(1)} % of the limit, ${bytes(limit)}` : 'no limit', limit ? totals.peak / limit : undefined);
  if (count) {
    const last = steps.most[count - 1], begin = steps.least[0];
    tile('Micro-batch', digits(last), last === 1 ? 'sample' : 'samples', `began at ${digits(begin)}, at most ${digits(most(steps.most))}`);
    tile('Throughput', digits(totals.samples / busy * 1000), 'samples/s', `${(busy / (end - steps.began[0]) * 100).toFixed(0)} % of the time in steps`);
  }
  tile('Work', digits(totals.steps), totals.steps === 1 ? 'step' : 'steps', plural(totals.samples, 'sample') + `, ${digits(totals.samples ? totals.recomputed / totals.samples * 100 : 0)} % computed again`);
  tile('Did not fit', digits(totals.exhaustions), totals.exhaustions === 1 ? 'time' : 'times', totals.failures ? plural(totals.failures, 'step') + ' failed' : totals.exhaustions ? 'no step was lost' : 'memory never ran out');
  for (const [index, panel] of panels.entries()) {
    panel.index = index;
    const box = html($('charts'), 'div', 'panel');
    const head = html(box, 'div', 'head');
    html(head, 'h2', '', panel.title);
    const keys = html(head, 'div', 'keys');
    const shown = panel.lines.filter(line => known(line.value).length);
    if (panel.marks) {
      for (const line of shown) html(keys, 'span', 'key', line.name).style.setProperty('--c', `var(${line.colour})`);
      if (limit) html(keys, 'span', 'key dash', 'limit').style.setProperty('--c', 'var(--limit)');
    } else if (shown.length) {
      const values = known(shown[0].value);
      html(keys, 'span', '', `last ${panel.unit(values.at(-1))}`);
    }
    panel.box = html(box, 'div');
    panel.root = svg(panel.box, 'svg', { role: 'img', 'aria-label': panel.title + ' over time' });
    interact(panel.root, () => view, range => { view = range || whole.slice(); draw(); }, (event, at, place) => {
      panels.forEach(other => { other.cursor.setAttribute('x1', place); other.cursor.setAttribute('x2', place); other.cursor.setAttribute('visibility', 'visible'); });
      describe(event, at);
    });
  }
  buildDetail();
  buildMarks();
  const theme = $('theme'), root = document.documentElement;
  if (['#dark', '#light'].includes(location.hash)) root.dataset.theme = location.hash.slice(1);
  theme.onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  };
  $('whole').onclick = () => { view = whole.slice(); detail = wholeDetail.slice(); draw(); };
  addEventListener('resize', draw);
  draw();
  document.body.dataset.drawn = 'yes';
}
function buildDetail() {
  if (!phaseCount) return;
  $('detail').hidden = $('phases').hidden = false;
  lanes.root = svg(lanes.box, 'svg', { role: 'img', 'aria-label': 'The latest phases, with memory' });
  interact(lanes.root, () => detail, range => { detail = range || wholeDetail.slice(); draw(); }, describePhase);
  const table = $('phases').querySelector('table'), head = html(table, 'tr');
  for (const [name, className] of [['phase', ''], ['time', ''], ['each', 'n'], ['highest memory', 'n']]) html(head, 'th', className, name);
  const all = data.phaseTotals.reduce((sum, total) => sum + total.time, 0), highest = most(data.phaseTotals.map(total => total.peak));
  data.phaseTotals.forEach((total, i) => {
    if (!total.count) return;
    html($('legend'), 'span', 'key box', data.phaseNames[i]).style.setProperty('--c', `var(--p${i})`);
    const row = html(table, 'tr');
    row.style.setProperty('--c', `var(--p${i})`);
    html(html(row, 'td'), 'span', 'key box', data.phaseNames[i]);
    const share = html(row, 'td');
    html(html(share, 'span', 'share'), 'i').style.width = total.time / all * 100 + '%';
    share.append(`${time(total.time)} (${(total.time / all * 100).toFixed(0)} %)`);
    html(row, 'td', 'n', time(total.time / total.count));
    html(row, 'td', total.peak === highest && highest > 0 ? 'n top' : 'n', bytes(total.peak));
  });
}
function buildMarks() {
  if (!marks.length) return;
  $('marks').hidden = false;
  const kinds = new Map();
  for (const mark of marks) kinds.set(mark.kind, (kinds.get(mark.kind) || 0) + 1);
  for (const [kind, number] of kinds) html($('kinds'), 'span', 'key box', `${number} ${kind}`).style.setProperty('--c', colour(kind));
  const list = $('marks').querySelector('ol');
  for (const mark of marks.slice(-300).reverse()) {
    const item = html(list, 'li');
    item.style.setProperty('--c', colour(mark.kind));
    html(item, 'time', '', time(mark.at)).title = clock(mark.at);
    html(item, 'span', 'step', 'step ' + mark.step);
    const text = html(item, mark.detail ? 'details' : 'div'), head = mark.detail ? html(text, 'summary') : text;
    html(head, 'span', 'dot');
    head.append(mark.text);
    if (mark.detail) html(text, 'pre', '', mark.detail);
  }
  if (data.totals.marks > marks.length) html(list, 'li', '', `… and ${data.totals.marks - marks.length} earlier`);
}
build();
