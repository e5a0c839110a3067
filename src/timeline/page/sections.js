// The phases of the latest steps: what ran when, and memory with it. Recomputation is a part of the backward pass around it.
const phases = data.phases.filter(phase => final(data.phases).step - phase.step < 3).sort((a, b) => a.began - b.began || b.ended - a.ended);
const wholeDetail = phases.length ? [phases[0].began, most(phases.map(phase => phase.ended))] : [0, 1];
let detail = wholeDetail, detailRoot = null;
const colourOf = phase => `--${phase}, var(--other)`;
function drawDetail() {
  const shown = phases.filter(phase => phase.ended >= detail[0] && phase.began <= detail[1]), bottom = 132;
  const high = Math.max(ceiling(shown.map(phase => phase.memory.peak)), ceiling(shown.map(phase => phase.memory.in_use)), (limit ?? 0) * 1.12, 1);
  const { right, x, y, plot, values, times } = frame(detailRoot, 214, detail, 0, high, 10, bottom);
  if (known(phases.map(phase => phase.memory.in_use)).length) values(bytes, true);
  times();
  let line = '', lastStep = null, before = phases[phases.indexOf(shown[0]) - 1]?.memory.in_use;
  for (const { began, ended, phase, step, succeeded, memory } of shown) {
    const a = x(began), width = Math.max(x(ended) - a, .6), tint = `fill:var(${colourOf(phase)})`;
    svg(plot, 'rect', { class: succeeded ? 'phase' : 'phase bad', x: a, width, y: 144, height: 30, rx: width > 6 ? 2 : 0, style: tint });
    const peak = memory.peak ?? memory.in_use;
    if (peak !== null && phase !== 'recompute') {
      svg(plot, 'rect', { x: a, width, y: y(peak), height: Math.max(0, bottom - y(peak)), style: tint + ';opacity:.3' });
      line += `${line ? 'L' : 'M'}${a.toFixed(1)},${y(before ?? memory.in_use).toFixed(1)}L${(a + width).toFixed(1)},${y(memory.in_use).toFixed(1)}`;
    }
    if (phase !== 'recompute') before = memory.in_use;
    if (step !== lastStep) {
      lastStep = step;
      svg(plot, 'line', { class: 'axis', x1: a, x2: a, y1: 144, y2: 190 });
      svg(plot, 'text', { x: a + 4, y: 188 }, 'step ' + step);
    }
  }
  if (line) svg(plot, 'path', { d: line, class: 'line', style: 'stroke:var(--ink)' });
  if (limit) svg(plot, 'path', { class: 'limit', d: `M${LEFT},${y(limit)}H${right}` });
  svg(detailRoot, 'line', { class: 'axis', x1: LEFT, x2: right, y1: bottom, y2: bottom });
}
function describePhase(event, at) {
  const found = phases.findLast(({ began, ended }) => at >= began && at <= ended);
  if (!found) return hideTip();
  const { began, ended, phase, step, succeeded, memory } = found;
  const rows = [['time', ended - began, time], ['in use at its end', memory.in_use, bytes], ['highest so far', memory.peak, bytes], ['result', succeeded ? null : 'failed', String]];
  showTip(event, `${phase}, step ${step}`, rows, []);
}

// The ranks of a group: a lane for each, and what they waited for. Updates that were merged, or are too narrow, have their parts put together.
const lanes = data.ranks?.lanes ?? [];
for (const lane of lanes) for (const name of ['total', 'computing', 'loading', 'waiting', 'reducing']) lane[name] = lane[name].secs * 1e6 + lane[name].nanos / 1e3;
const NARROW = 12, LANE = lanes.length <= 8 ? 26 : lanes.length <= 24 ? 16 : 9, UP = 8;
let rankRoot = null;
// A lane's parts in their order: a lane's total, an update's part, and the colour.
const parts = [['loading', 'loaded', '--load'], ['computing', 'computed', '--forward'], ['waiting', 'waited', '--wait'], ['reducing', 'reduced', '--reduce']];

function drawRanks() {
  const bottom = UP + lanes.length * LANE, { x, plot, times } = frame(rankRoot, bottom + 24, view, 0, 1, UP, bottom);
  times();
  const every = LANE > 12 ? 1 : 8;
  lanes.forEach((lane, rank) => {
    const top = UP + rank * LANE, height = LANE - (LANE > 12 ? 5 : 2), shapes = parts.map(() => '');
    let failed = '';
    if (rank % every === 0) svg(rankRoot, 'text', { x: LEFT - 8, y: top + height / 2 + 4, 'text-anchor': 'end' }, 'rank ' + rank);
    const bar = (from, to) => {
      const a = x(from), b = x(to);
      return b - a < .05 || b < 0 || a > 1e5 ? '' : `M${a.toFixed(1)},${top}H${b.toFixed(1)}v${height}H${a.toFixed(1)}Z`;
    };
    let began = null, ended, sums;
    // Batches are loaded first; the others are waited for last.
    const close = () => {
      const [loaded, computed, waited, reduced] = sums, reduce = ended - reduced, wait = reduce - waited;
      [[began, began + loaded], [wait - computed, wait], [wait, reduce], [reduce, ended]].forEach(([from, to], part) => { shapes[part] += bar(Math.max(from, began), to); });
      began = null;
    };
    lane.ended.forEach((end, i) => {
      if (end + lane.shift < view[0] || lane.began[i] + lane.shift > view[1]) return;
      if (began === null) [began, sums] = [lane.began[i] + lane.shift, parts.map(() => 0)];
      ended = end + lane.shift;
      parts.forEach(([, part], n) => { sums[n] += lane[part][i]; });
      if (lane.retries[i]) failed += `M${x(ended - lane.reduced[i] - lane.waited[i]).toFixed(1)},${top}v${height}`;
      if (x(ended) - x(began) >= NARROW) close();
    });
    if (began !== null) close();
    svg(plot, 'rect', { x: LEFT, y: top, width: 1e5, height, style: 'fill:var(--grid)' });
    shapes.forEach((d, part) => { if (d) svg(plot, 'path', { d, style: `fill:var(${parts[part][2]})` }); });
    if (failed) svg(plot, 'path', { d: failed, style: 'stroke:var(--limit);stroke-width:2' });
  });
}
function describeRank(event, at) {
  const place = event.clientY - rankRoot.getBoundingClientRect().top, rank = Math.min(Math.max(Math.floor((place - UP) / LANE), 0), lanes.length - 1);
  const lane = lanes[rank], i = lane.ended.findIndex((end, i) => at >= lane.began[i] + lane.shift && at <= end + lane.shift);
  const share = us => `${time(us)}${lane.total ? ` (${(us / lane.total * 100).toFixed(0)} %)` : ''}`;
  if (i < 0) return showTip(event, `rank ${rank} on ${lane.host}, the whole run`, parts.map(([name]) => [name, lane[name], share]), []);
  const last = lane.updates.slice(0, i + 1).reduce((a, b) => a + b, 0), first = last - lane.updates[i] + 1;
  const rows = parts.map(([name, part]) => [name, lane[part][i], time]);
  const title = `rank ${rank} on ${lane.host}, update${first < last ? `s ${first}–${last}` : ' ' + last}`;
  showTip(event, title, [...rows, ['did not fit', lane.retries[i] || null]], []);
}
function buildRanks() {
  $('ranks').hidden = $('of-rank').hidden = false;
  $('slowest').textContent = `${lanes.length} ranks: ${data.ranks.sentence}`;
  const keys = $('ranks').querySelector('.keys'), table = $('ranks').querySelector('table');
  for (const [name, , colour] of parts) key(keys, 'key box', name === 'loading' ? 'waiting for data' : name, colour);
  if (lanes.some(lane => lane.exhaustions)) key(keys, 'key', 'out of memory', '--limit');
  rankRoot = svg($('rank-lanes'), 'svg', { role: 'img', 'aria-label': 'What each rank did over time' });
  interact(rankRoot, range => { view = range || whole; draw(); }, describeRank);
  lanes.forEach((lane, rank) => {
    const row = html(table, 'tr'), cell = (text, className = 'n') => html(row, 'td', className, text);
    const share = value => lane.total ? Math.max(value, 0) / lane.total * 100 : 0;
    cell(`${rank} on ${lane.host}`, '');
    bar(cell(undefined, ''), 'share wide', parts.map(([name, , colour]) => [share(lane[name]), colour]), time(lane.total));
    const rest = lane.total - parts.reduce((sum, [name]) => sum + lane[name], 0);
    for (const value of [lane.computing, lane.loading, lane.waiting, lane.reducing, rest]) cell(share(value).toFixed(0) + ' %');
    cell(lane.exhaustions ? `${digits(lane.exhaustions)} ×` : '–');
    cell(bytes(lane.peak));
  });
}

// Which layers held the memory when the use of a step was highest, the largest first.
function buildLayers(layers) {
  $('layers').hidden = false;
  $('layers-of').textContent = layers.title;
  const table = $('layers').querySelector('table'), share = value => layers.peak ? (value ?? 0) / layers.peak * 100 : 0;
  let sum = 0;
  for (const { name, is_layer, at_peak, held, calls, time: own } of layers.rows) {
    const row = html(table, 'tr'), cell = (text, className = 'n') => html(row, 'td', className, text);
    cell(name, is_layer ? '' : 'other');
    const part = [share(at_peak), is_layer ? '--memory' : '--held'];
    bar(cell(undefined, ''), 'share wide', [part], `${bytes(at_peak)} (${share(at_peak).toFixed(1)} %)`);
    sum += at_peak ?? 0;
    cell(share(sum).toFixed(0) + ' %');
    cell(held === null ? '' : bytes(held));
    cell(calls ? digits(calls) : '');
    cell(calls ? time(own) : '');
  }
}

// The page around the charts.
function draw() {
  panels.forEach((panel, i) => drawPanel(panel, i === panels.length - 1));
  if (lanes.length) drawRanks();
  if (phases.length) drawDetail();
  $('whole').hidden = view === whole && detail === wholeDetail;
}
function tile(name, value, unit, more, share) {
  const box = html($('tiles'), 'div', 'tile');
  html(box, 'div', 'name', name);
  const number = html(box, 'div', 'value', value);
  if (unit) html(number, 'small', '', ' ' + unit);
  html(box, 'div', 'more', more);
  if (share !== undefined && isFinite(share)) {
    html(html(box, 'div', 'bar'), 'i', share > 1 ? 'over' : '').style.width = Math.min(100, share * 100) + '%';
  }
}
// Samples a second by the size of micro-batches, the fastest first. The first step of a size is slow: it allocates.
function ratesBySize() {
  const sums = new Map();
  for (let i = 0; i < count; i++) {
    if (steps.retries[i]) continue;
    const sum = sums.get(steps.most[i]);
    if (!sum) sums.set(steps.most[i], { samples: 0, busy: 0 });
    else { sum.samples += steps.samples[i]; sum.busy += steps.busy[i]; }
  }
  return [...sums].filter(([, sum]) => sum.busy > 0).map(([size, sum]) => ({ size, rate: sum.samples / sum.busy * 1e6 })).sort((a, b) => b.rate - a.rate);
}
function buildTiles() {
  const [peak, unit] = bytes(totals.peak).split(' '), busy = steps.busy.reduce((a, b) => a + b, 0);
  tile('Highest use', peak, unit === 'n/a' ? '' : unit, limit ? `${(totals.peak / limit * 100).toFixed(1)} % of the limit, ${bytes(limit)}` : 'no limit', limit ? totals.peak / limit : undefined);
  if (count) {
    const last = final(steps.most), span = final(steps.ended) - steps.began[0], waits = known(steps.waited);
    tile('Micro-batch', digits(last), last === 1 ? 'sample' : 'samples', `began at ${digits(steps.least[0])}, at most ${digits(most(steps.most))}`);
    tile('Throughput', digits(totals.samples / busy * 1e6), 'samples/s', `${(busy / span * 100).toFixed(0)} % of the time in steps${waits.length ? `, ${(waits.reduce((a, b) => a + b, 0) / span * 100).toFixed(0)} % waiting for data` : ''}`);
    const rates = ratesBySize(), [fastest, ...others] = rates;
    if (others.length) tile('Fastest', digits(fastest.size), fastest.size === 1 ? 'sample' : 'samples', rates.slice(0, 4).map(({ size, rate }) => `${digits(rate)} samples/s with ${digits(size)}`).join(', '));
  }
  tile('Work', digits(totals.steps), totals.steps === 1 ? 'step' : 'steps', `${plural(totals.samples, 'sample')}, ${digits(totals.samples ? totals.samples_retried / totals.samples * 100 : 0)} % computed again`);
  tile('Did not fit', digits(totals.exhaustions), totals.exhaustions === 1 ? 'time' : 'times', totals.failures ? plural(totals.failures, 'step') + ' failed' : totals.exhaustions ? 'no step was lost' : 'memory never ran out');
}
function buildPanel(panel) {
  const box = html($('charts'), 'div', 'panel'), head = html(box, 'div', 'head');
  html(head, 'h2', '', panel.title);
  const keys = html(head, 'div', 'keys'), shown = panel.lines.filter(line => known(line.value).length);
  if (panel.marks || shown.length > 1) {
    for (const line of shown) key(keys, line.isThin ? 'key dash' : 'key', line.name, line.colour);
  } else if (shown.length) {
    html(keys, 'span', '', 'last ' + digits(final(known(shown[0].value))) + (panel.unit ?? ''));
  }
  if (panel.marks) {
    if (evaluations.length) key(keys, 'key box', 'evaluation', '--evaluation');
    if (limit) key(keys, 'key dash', 'limit', '--limit');
    buildKinds(html(box, 'div', 'keys'));
  }
  panel.root = svg(html(box, 'div'), 'svg', { role: 'img', 'aria-label': panel.title + ' over time' });
  interact(panel.root, range => { view = range || whole; draw(); }, describe);
}
function buildDetail() {
  $('detail').hidden = $('phases').hidden = false;
  detailRoot = svg($('lanes'), 'svg', { role: 'img', 'aria-label': 'The latest phases, with memory' });
  interact(detailRoot, range => { detail = range || wholeDetail; draw(); }, describePhase);
  const table = $('phases').querySelector('table');
  const all = totals.phases.reduce((sum, total) => sum + total.time, 0), highest = most(totals.phases.map(total => total.peak));
  for (const total of totals.phases) {
    const row = html(table, 'tr'), colour = colourOf(total.phase), share = all ? total.time / all * 100 : 0;
    key($('legend'), 'key box', total.phase, colour);
    key(html(row, 'td'), 'key box', total.phase, colour);
    bar(html(row, 'td'), 'share', [[share, colour]], `${time(total.time)} (${share.toFixed(0)} %)`);
    html(row, 'td', 'n', time(total.time / total.count));
    html(row, 'td', total.peak === highest && highest > 0 ? 'n top' : 'n', bytes(total.peak));
  }
}
function badge(parent, kind) {
  const [glyph, colour, meaning] = kindOf(kind);
  key(parent, 'badge', glyph, colour);
  return meaning;
}
function buildKinds(keys) {
  for (const kind of new Set(marks.map(mark => mark.kind))) {
    const item = html(keys, 'span');
    item.append(badge(item, kind));
  }
  if (marks.length < 2) return;
  const item = html(keys, 'span');
  key(item, 'badge', '2', '--other');
  item.append('several, in the colour of the worst');
}
function buildMarks() {
  $('marks').hidden = false;
  const list = $('marks').querySelector('ol');
  for (const mark of marks.slice(-300).reverse()) {
    const item = html(list, 'li');
    html(item, 'time', '', time(mark.at)).title = clock(mark.at);
    html(item, 'span', 'step', 'step ' + mark.step);
    const text = html(item, mark.detail ? 'details' : 'div'), head = mark.detail ? html(text, 'summary') : text;
    badge(head, mark.kind);
    head.append(mark.text);
    if (mark.detail) html(text, 'pre', '', mark.detail);
  }
  if (totals.marks > marks.length) html(list, 'li', '', `… and ${totals.marks - marks.length} earlier`);
}

const theme = document.documentElement.dataset;
$('theme').onclick = () => {
  const isDark = theme.theme ? theme.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  theme.theme = isDark ? 'light' : 'dark';
};
$('whole').onclick = () => { view = whole; detail = wholeDetail; draw(); };
$('when').textContent = `${new Date(data.began).toLocaleString('en-GB', { dateStyle: 'long', timeStyle: 'medium' })} · ${time(final(steps.ended) ?? data.now)} · candle-headroom ${data.version}`;
if (lanes.length) buildRanks();
buildTiles();
panels.forEach(buildPanel);
if (phases.length) buildDetail();
if (data.layers) buildLayers(data.layers);
if (marks.length) buildMarks();
addEventListener('resize', draw);
draw();
document.body.dataset.drawn = 'yes';
