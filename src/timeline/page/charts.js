// Shared by the other parts: the record, formatting of numbers, and elements.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const { steps, evaluations, marks, notes, totals } = data, count = steps.began.length;
const $ = id => document.getElementById(id);
const known = values => values.filter(value => value !== null);
const most = values => known(values).reduce((a, b) => Math.max(a, b), -Infinity);
const final = list => list[list.length - 1];
const limit = final(known(steps.limit));

// Formatting of numbers. Times are in microseconds.
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
  return digits(value) + ' ' + units[unit];
}
function time(us) {
  if (us < 1e3) return us.toFixed(0) + ' µs';
  if (us < 1e6) return digits(us / 1e3) + ' ms';
  const s = us / 1e6, two = n => String(Math.floor(n)).padStart(2, '0');
  if (s < 120) return digits(s) + ' s';
  return s < 3600 ? Math.floor(s / 60) + ':' + two(s % 60) + ' min' : Math.floor(s / 3600) + ':' + two(s / 60 % 60) + ' h';
}
const clock = us => new Date(data.began + us / 1e3).toLocaleTimeString('en-GB');
const plural = (n, word) => digits(n) + ' ' + word + (n === 1 ? '' : 's');

// Elements.
function add(parent, element, text) {
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function svg(parent, name, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  return add(parent, element, text);
}
function html(parent, name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return add(parent, element, text);
}
// A word of a legend or a badge, with its colour.
function key(parent, className, text, colour) {
  html(parent, 'span', className, text).style.setProperty('--c', `var(${colour})`);
}
// A bar in a cell: a percentage and a colour for each of its parts, and a text behind it.
function bar(cell, className, parts, text) {
  const box = html(cell, 'span', className);
  for (const [width, colour] of parts) Object.assign(html(box, 'i').style, { width: width + '%', background: `var(${colour})` });
  cell.append(text);
}

// The charts over the whole run.
const LEFT = 76, RIGHT = 14, MARKS = 22, NOTES = 20;
const whole = [0, Math.max(final(steps.ended) ?? data.now, final(evaluations)?.ended ?? 0, final(marks)?.at ?? 0, final(notes)?.at ?? 0)];
let view = whole;
// Each kind of event: its glyph, its colour, and what it means. Red is out of memory, teal the micro-batch's size.
const kinds = {
  exhausted: ['×', '--limit', 'out of memory, retried'], failed: ['!', '--ink', 'step failed'],
  fault: ['!', '--ink', 'device lost'], grown: ['▴', '--batch', 'larger micro-batch'],
  shrunk: ['▾', '--batch', 'smaller micro-batch'],
  restarted: ['↻', '--other', 'batch begun again'], over_limit: ['−', '--other', 'update over the limit'],
  cut_checked: ['?', '--other', 'the loss depends on the cut'],
  continued_elsewhere: ['?', '--other', 'data from elsewhere than the saved run stopped'],
};
const kindOf = kind => kinds[kind] || ['·', '--other', kind];
const failures = ['fault', 'failed', 'exhausted'];

// The charts, with values of steps or of a series.
const rate = steps.busy.map((busy, i) => busy > 0 ? steps.samples[i] / busy * 1e6 : null);
const ceiling = values => Math.max(most(values) * 1.12, 0);
const panels = [{
  title: 'Memory', height: 270, format: bytes, isBytes: true, marks: true,
  top: Math.max(most(steps.limit) * 1.1, ceiling(steps.peak), ceiling(steps.reserved), ceiling(steps.in_use), ceiling(evaluations.map(one => one.peak)), 1),
  lines: [
    { name: 'held by the pool', value: steps.reserved, colour: '--held', fill: '--held-fill' },
    { name: 'highest use in a step', value: steps.peak, colour: '--memory', fill: '--memory-fill' },
    { name: 'in use between steps', value: steps.in_use, colour: '--kept' },
    { name: 'predicted', value: steps.predicted, colour: '--plan', isThin: true },
  ],
  empty: known(steps.peak).length || known(steps.in_use).length ? '' : 'Memory is not counted: give the trainer a DeviceMemory, and on the host install the TrackingAllocator.',
}, {
  title: 'Micro-batch', height: 118, unit: ' samples', strikes: true,
  lines: [
    { name: 'largest in a step', value: steps.most, colour: '--batch', fill: '--batch-fill' },
    { name: 'predicted to fit', value: steps.fits, colour: '--plan', isThin: true },
  ],
}, {
  title: 'Throughput', height: 118, unit: ' samples/s', strikes: true,
  lines: [{ name: 'samples a second', value: rate, colour: '--rate', fill: '--rate-fill' }],
}, ...data.numbers.map(series => ({
  title: series.name, height: 118, floats: true,
  lines: [{ name: series.name, at: series.at, value: series.value, colour: '--number' }],
}))];

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

// Empties a chart and gives its scales, and a group that is cut off at the chart's sides.
function frame(root, height, range, low, high, up, bottom) {
  const width = root.parentNode.clientWidth, right = width - RIGHT, clip = 'clip' + root.getAttribute('aria-label').replace(/\W/g, '');
  root.replaceChildren();
  root.setAttribute('viewBox', `0 0 ${width} ${height}`);
  root.setAttribute('height', height);
  const grid = svg(root, 'g');
  const x = at => LEFT + (at - range[0]) / (range[1] - range[0]) * (right - LEFT);
  root.place = x;
  root.timeAt = place => range[0] + Math.min(1, Math.max(0, (place - LEFT) / (right - LEFT))) * (range[1] - range[0]);
  const y = value => bottom - (value - low) / (high - low) * (bottom - up);
  const values = (format, isBytes) => {
    for (const tick of ticks(low, high, Math.max(3, height / 52), isBytes)) {
      svg(grid, 'line', { class: 'grid', x1: LEFT, x2: right, y1: y(tick), y2: y(tick) });
      svg(grid, 'text', { x: LEFT - 8, y: y(tick) + 4, 'text-anchor': 'end' }, format(tick));
    }
  };
  // Within a run, times count from the first one shown.
  const times = () => {
    for (const tick of ticks(0, range[1] - range[0], width / 120, false)) {
      const text = tick ? (range[0] ? '+' : '') + time(tick) : range[0] ? time(range[0]) : '0';
      svg(grid, 'text', { x: Math.min(x(range[0] + tick), right - 12), y: height - 3, 'text-anchor': 'middle' }, text);
    }
  };
  svg(svg(root, 'clipPath', { id: clip }), 'rect', { x: LEFT, y: 0, width: right - LEFT, height });
  const plot = svg(root, 'g', { 'clip-path': `url(#${clip})` });
  return { width, right, x, y, plot, values, times };
}

// The outline of a line's known values, and the area below it.
function path(line, x, y, baseline) {
  let stroke = '', fill = '', run = '', start;
  const close = () => { stroke += run; if (run) fill += `${run}V${baseline}H${start}Z`; run = ''; };
  const span = view[1] - view[0], began = line.at || steps.began, ended = line.at || steps.ended;
  line.value.forEach((value, i) => {
    if (value === null) return close();
    const a = began[i], b = ended[i], next = line.at ? b : Math.max(b, Math.min(began[i + 1] ?? b, b + (b - a) * .5));
    if (next < view[0] - span || a > view[1] + span) return;
    const place = x(a).toFixed(1), end = line.at ? '' : `H${x(next).toFixed(1)}`;
    if (!run) start = place;
    run += `${run ? 'L' : 'M'}${place},${y(value).toFixed(1)}${end}`;
  });
  close();
  return [stroke, fill];
}

function drawPanel(panel, isLast) {
  const root = panel.root, bottom = panel.height - 8, noteRow = panel.marks && marks.length ? MARKS : 8;
  const up = noteRow + (panel.marks && notes.length ? NOTES : 0);
  let low = 0, high = panel.top ?? Math.max(...panel.lines.map(line => ceiling(line.value)));
  if (panel.floats) {
    const { at, value } = panel.lines[0], shown = value.filter((_, i) => at[i] >= view[0] && at[i] <= view[1]);
    const least = shown.length ? Math.min(...shown) : 0, highest = shown.length ? Math.max(...shown) : 0;
    const room = (highest - least || Math.abs(highest) || 1) * .12;
    [low, high] = [least >= 0 ? Math.max(0, least - room) : least - room, highest + room];
  }
  if (!isFinite(high) || high <= low) high = low + 1;
  const { width, right, x, y, plot, values, times } = frame(root, panel.height + (isLast ? 20 : 0), view, low, high, up, bottom);
  if (!panel.empty) values(panel.format ?? digits, panel.isBytes);
  if (isLast) times();
  if (panel.marks) {
    if (limit) svg(plot, 'rect', { x: LEFT, y: up, width: right - LEFT, height: Math.max(0, y(limit) - up), style: 'fill:var(--over)' });
    for (const one of evaluations.filter(one => one.peak !== null)) {
      svg(plot, 'rect', { x: x(one.began), width: Math.max(x(one.ended) - x(one.began), 1), y: y(one.peak), height: Math.max(0, bottom - y(one.peak)), style: 'fill:var(--evaluation);opacity:.45' });
    }
  }
  for (const line of panel.lines) {
    if (!known(line.value).length) continue;
    const [stroke, fill] = path(line, x, y, bottom);
    if (line.fill) svg(plot, 'path', { d: fill, style: `fill:var(${line.fill})` });
    svg(plot, 'path', { d: stroke, class: line.isThin ? 'line thin' : 'line', style: `stroke:var(${line.colour})` });
  }
  if (panel.marks && limit) {
    svg(plot, 'path', { class: 'limit', d: path({ value: steps.limit }, x, y, bottom)[0] });
    svg(root, 'text', { x: right - 6, y: y(limit) - 6, 'text-anchor': 'end', style: 'fill:var(--limit);font-weight:600' }, 'limit ' + bytes(limit));
  }
  if (panel.empty) svg(root, 'text', { x: (LEFT + width) / 2, y: panel.height / 2, 'text-anchor': 'middle' }, panel.empty);
  const inView = marks.filter(mark => mark.at >= view[0] && mark.at <= view[1]);
  if (panel.strikes || panel.marks) {
    for (const mark of inView.filter(mark => failures.includes(mark.kind))) {
      svg(plot, 'line', { class: 'strike', x1: x(mark.at), x2: x(mark.at), y1: up, y2: bottom });
    }
  }
  drawNotes(root, plot, x, panel.marks ? noteRow + 13 : null, up, bottom, right);
  if (panel.marks) drawMarks(root, inView, x);
  svg(root, 'line', { class: 'axis', x1: LEFT, x2: right, y1: bottom, y2: bottom });
  panel.cursor = svg(root, 'line', { class: 'cursor', y1: up, y2: bottom, visibility: 'hidden' });
}

// The user's own notes: a line through each chart, with the text above the first one where there is room.
function drawNotes(root, plot, x, row, up, bottom, right) {
  const shown = notes.filter(note => note.at >= view[0] && note.at <= view[1]);
  let free = 0;
  shown.forEach(({ at, text }, i) => {
    const place = x(at), length = text.length * 7.6, next = shown[i + 1] ? x(shown[i + 1].at) : right;
    svg(plot, 'line', { class: 'note', x1: place, x2: place, y1: row === null ? up : row + 3, y2: bottom });
    const isLeft = place + length > next && place - length > free;
    if (row === null || place < free) return;
    svg(root, 'text', { class: 'note', x: place + (isLeft ? -3 : 3), y: row, 'text-anchor': isLeft ? 'end' : 'start' }, text);
    free = place + (isLeft ? 0 : length) + 12;
  });
}

// Marks that would cover each other become one that shows their number.
function drawMarks(root, shown, x) {
  const groups = [];
  for (const mark of shown) {
    const at = x(mark.at), group = final(groups);
    if (group && at - group.x < 15) group.marks.push(mark); else groups.push({ x: at, marks: [mark] });
  }
  for (const group of groups) {
    const [first] = group.marks, more = group.marks.length - 6;
    const worst = failures.map(kind => group.marks.find(mark => mark.kind === kind)).find(mark => mark) || first;
    const item = svg(root, 'g', { class: 'mark', transform: `translate(${group.x},10)` });
    const [glyph, colour] = kindOf(worst.kind);
    svg(item, 'circle', { r: 7.5, style: `fill:var(${colour})` });
    svg(item, 'text', { y: 3.5 }, group.marks.length > 1 ? Math.min(group.marks.length, 99) : glyph);
    const lines = group.marks.slice(0, 6).map(mark => `step ${mark.step}: ${mark.text}`);
    if (more > 0) lines.push(`and ${more} more`);
    item.addEventListener('pointermove', event => { event.stopPropagation(); showTip(event, time(first.at), [], lines); });
    item.addEventListener('pointerleave', hideTip);
  }
}

// Hovering and zooming.
const tip = $('tip');
// Each row is a name, a value and its format; unknown values are left out.
function showTip(event, title, rows, lines) {
  tip.replaceChildren();
  html(tip, 'b', '', title);
  const list = html(tip, 'dl');
  for (const [name, value, format = digits] of rows) {
    if (value === null || value === undefined) continue;
    html(list, 'dt', '', name);
    html(list, 'dd', '', format(value));
  }
  for (const line of lines) html(tip, 'p', '', line);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.min(event.clientX + 16, innerWidth - width - 8) + 'px';
  tip.style.top = Math.max(8, Math.min(event.clientY + 14, innerHeight - height - 8)) + 'px';
}
function hideTip() {
  tip.hidden = true;
  panels.forEach(panel => panel.cursor?.setAttribute('visibility', 'hidden'));
}
function describe(event, at, place) {
  for (const { cursor } of panels) for (const [name, value] of [['x1', place], ['x2', place], ['visibility', 'visible']]) cursor.setAttribute(name, value);
  const title = (name, began) => `${name} · ${time(began)} · ${clock(began)}`;
  const evaluation = evaluations.find(one => at >= one.began && at <= one.ended);
  if (evaluation) {
    const { began, ended, peak, most, samples } = evaluation;
    return showTip(event, title('Evaluation', began), [['highest use', peak, bytes], ['largest micro-batch', most], ['samples', samples], ['time', ended - began, time]], []);
  }
  if (!count) return;
  const i = Math.max(steps.began.filter(began => began <= at).length - 1, 0);
  const step = Object.fromEntries(Object.entries(steps).map(([name, column]) => [name, column[i]]));
  const ofLimit = step.limit ? ` of ${bytes(step.limit)} (${(step.peak / step.limit * 100).toFixed(0)} %)` : '';
  const sizes = step.least === step.most ? step.most : `${step.least}–${step.most}`;
  const rows = [
    ['highest use', step.peak, peak => bytes(peak) + ofLimit],
    ['in use after', step.in_use, bytes],
    ['held by the pool', step.reserved, bytes],
    ['micro-batches', step.micro_batches, number => `${digits(number)} of ${sizes}`],
    ['would fit', step.fits],
    ['why no more', step.reason, String],
    ['expected', step.predicted, bytes],
    ['throughput', rate[i], value => digits(value) + ' samples/s'],
    ['time', step.busy, time],
    ['waited for data', step.waited, time],
    ['did not fit', step.retries || null],
    ...data.numbers.map(series => [series.name, series.value[series.at.findIndex(when => when >= step.began)], value => digits(value, 4)]),
  ];
  const within = marks.filter(mark => mark.at >= step.began && mark.at <= step.ended).slice(0, 4).map(mark => mark.text);
  showTip(event, title(step.steps > 1 ? `Steps ${step.last - step.steps + 1}–${step.last}` : `Step ${step.last}`, step.began), rows, within);
}
function interact(root, apply, hover) {
  let from = null, box = null;
  const at = event => root.timeAt(event.clientX - root.getBoundingClientRect().left);
  const width = now => Math.abs(root.place(now) - root.place(from));
  root.addEventListener('pointerdown', event => {
    from = at(event); root.setPointerCapture(event.pointerId);
    box = svg(root, 'rect', { class: 'drag', y: 0, height: root.clientHeight, x: root.place(from), width: 0 });
  });
  root.addEventListener('pointermove', event => {
    const now = at(event);
    box?.setAttribute('x', root.place(Math.min(from, now)));
    box?.setAttribute('width', width(now));
    hover(event, now, root.place(now));
  });
  root.addEventListener('pointerup', event => {
    const now = at(event), isWide = from !== null && width(now) > 6, range = [Math.min(from, now), Math.max(from, now)];
    box?.remove();
    from = box = null;
    if (isWide) apply(range);
  });
  root.addEventListener('pointerleave', hideTip);
  root.addEventListener('dblclick', () => apply(null));
}
