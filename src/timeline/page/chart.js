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

const LEFT = 76, RIGHT = 14, MARKS = 22, NOTES = 20;
const whole = count ? [Math.min(steps.began[0], 0), steps.ended[count - 1]] : [0, Math.max(data.now, 1)];
const evaluations = data.evaluations;
if (evaluations.length) whole[1] = Math.max(whole[1], evaluations.at(-1).ended);
for (const last of [marks.at(-1), data.notes.at(-1)]) if (last) whole[1] = Math.max(whole[1], last.at);
let view = whole.slice();
// Each kind of event: its glyph, its colour, and what it means. Red is out of memory, teal the micro-batch's size.
const kinds = {
  exhausted: ['×', '--limit', 'out of memory, retried'], failed: ['!', '--ink', 'step failed'],
  fault: ['!', '--ink', 'device lost'], grown: ['▴', '--batch', 'larger micro-batch'],
  shrunk: ['▾', '--batch', 'smaller micro-batch'], paced: ['»', '--batch', 'other size, for speed'],
  restarted: ['↻', '--other', 'batch begun again'], over_limit: ['−', '--other', 'update over the limit'],
};
const kindOf = kind => kinds[kind] || ['·', '--other', kind];

// What a chart shows: rows of steps, or series of their own.
const rate = steps.busy.map((busy, i) => busy > 0 ? steps.samples[i] / busy * 1000 : null);
const hasMemory = known(steps.peak).length || known(steps.inUse).length;
const ceiling = values => Math.max(most(values) * 1.12, 0);
const panels = [{
  title: 'Memory', height: 270, unit: bytes, isBytes: true, marks: true, limit: steps.limit,
  top: () => Math.max(most(steps.limit) * 1.1, ceiling(steps.peak), ceiling(steps.reserved), ceiling(steps.inUse), ceiling(evaluations.map(one => one.peak)), 1),
  lines: [
    { name: 'held by the pool', value: steps.reserved, colour: '--held', fill: '--held-fill' },
    { name: 'highest use in a step', value: steps.peak, colour: '--memory', fill: '--memory-fill' },
    { name: 'in use between steps', value: steps.inUse, colour: '--kept' },
    { name: 'predicted', value: steps.planned, colour: '--plan', thin: true, dots: true },
  ],
  empty: hasMemory ? '' : 'Memory is not counted: give the trainer a DeviceMemory, and on the host install the TrackingAllocator.',
}, {
  title: 'Micro-batch', height: 118, unit: value => plural(value, 'sample'), strikes: true,
  lines: [
    { name: 'largest in a step', value: steps.most, colour: '--batch', fill: '--batch-fill' },
    { name: 'predicted to fit', value: steps.fits, colour: '--plan', thin: true, dots: true },
  ],
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
  const noteRow = panel.marks && marks.length ? MARKS : 8, bottom = panel.height - 8;
  const up = noteRow + (panel.marks && data.notes.length ? NOTES : 0);
  let low = 0, high = panel.top ? panel.top() : Math.max(...panel.lines.map(line => ceiling(line.value)));
  if (panel.floats) {
    const shown = panel.lines[0].value.filter((_, i) => panel.lines[0].at[i] >= view[0] && panel.lines[0].at[i] <= view[1]);
    const all = shown.length ? shown : [0], least = Math.min(...all), highest = Math.max(...all), room = (highest - least || Math.abs(highest) || 1) * .12;
    [low, high] = [least >= 0 ? Math.max(0, least - room) : least - room, highest + room];
  }
  if (!isFinite(high) || high <= low) high = low + 1;
  const x = at => LEFT + (at - view[0]) / (view[1] - view[0]) * (width - LEFT - RIGHT);
  const y = value => bottom - (value - low) / (high - low) * (bottom - up);
  if (!panel.empty || isLast) axes(root, width, height, x, y, low, high, panel.unit, panel.isBytes, isLast, view, panel.empty ? () => '' : panel.isBytes ? bytes : digits);
  const clip = 'clip' + panel.index;
  svg(svg(root, 'clipPath', { id: clip }), 'rect', { x: LEFT, y: 0, width: width - LEFT - RIGHT, height });
  const plot = svg(root, 'g', { 'clip-path': `url(#${clip})` });
  if (panel.limit && known(panel.limit).length) {
    const last = known(panel.limit).at(-1);
    svg(plot, 'rect', { x: LEFT, y: up, width: width - LEFT - RIGHT, height: Math.max(0, y(last) - up), style: 'fill:var(--over)' });
  }
  if (panel.marks) {
    for (const one of evaluations.filter(one => one.peak !== null)) {
      svg(plot, 'rect', { x: x(one.began), width: Math.max(x(one.ended) - x(one.began), 1), y: y(one.peak), height: Math.max(0, bottom - y(one.peak)), style: 'fill:var(--evaluation);opacity:.45' });
    }
  }
  for (const line of panel.lines) {
    if (!known(line.value).length) continue;
    const [stroke, fill] = path(line, x, y, bottom);
    if (line.fill) svg(plot, 'path', { d: fill, style: `fill:var(${line.fill})` });
    svg(plot, 'path', { d: stroke, fill: 'none', 'stroke-width': line.thin ? 1.3 : 1.7, 'stroke-linejoin': 'round', 'stroke-dasharray': line.dots ? '1.5 3' : 'none', style: `stroke:var(${line.colour})` });
  }
  if (panel.limit && known(panel.limit).length) {
    svg(plot, 'path', { class: 'limit', d: path({ value: panel.limit }, x, y, bottom)[0] });
    const last = known(panel.limit).at(-1);
    svg(root, 'text', { x: width - RIGHT - 6, y: y(last) - 6, 'text-anchor': 'end', style: 'fill:var(--limit);font-weight:600' }, 'limit ' + bytes(last));
  }
  if (panel.empty) svg(root, 'text', { x: (LEFT + width) / 2, y: panel.height / 2, 'text-anchor': 'middle' }, panel.empty);
  const inView = marks.filter(mark => mark.at >= view[0] && mark.at <= view[1]);
  if (panel.strikes || panel.marks) {
    for (const mark of inView.filter(mark => ['exhausted', 'failed', 'fault'].includes(mark.kind))) {
      svg(plot, 'line', { class: 'strike', x1: x(mark.at), x2: x(mark.at), y1: up, y2: bottom });
    }
  }
  drawNotes(root, plot, x, panel.marks ? noteRow + 13 : null, up, bottom, width - RIGHT);
  if (panel.marks) drawMarks(root, inView, x);
  svg(root, 'line', { class: 'axis', x1: LEFT, x2: width - RIGHT, y1: bottom, y2: bottom });
  panel.cursor = svg(root, 'line', { class: 'cursor', y1: up, y2: bottom, visibility: 'hidden' });
}

// The user's own notes: a line through each chart, with the text above the first one where there is room.
function drawNotes(root, plot, x, row, up, bottom, right) {
  const shown = data.notes.filter(note => note.at >= view[0] && note.at <= view[1]);
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
    const at = x(mark.at), group = groups.at(-1);
    if (group && at - group.x < 15) group.marks.push(mark); else groups.push({ x: at, marks: [mark] });
  }
  for (const group of groups) {
    const worst = ['fault', 'failed', 'exhausted'].map(kind => group.marks.find(mark => mark.kind === kind)).find(mark => mark) || group.marks[0];
    const item = svg(root, 'g', { class: 'mark', transform: `translate(${group.x},10)` });
    svg(item, 'circle', { r: 7.5, style: `fill:var(${kindOf(worst.kind)[1]})` });
    svg(item, 'text', { y: 3.5 }, group.marks.length > 1 ? Math.min(group.marks.length, 99) : kindOf(worst.kind)[0]);
    const lines = group.marks.slice(0, 6).map(mark => `step ${mark.step}: ${mark.text}`);
    if (group.marks.length > 6) lines.push(`and ${group.marks.length - 6} more`);
    item.addEventListener('pointermove', event => { event.stopPropagation(); showTip(event, time(group.marks[0].at), [], lines); });
    item.addEventListener('pointerleave', hideTip);
  }
}
