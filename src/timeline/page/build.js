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
function buildTiles() {
  const [peak, unit] = bytes(totals.peak).split(' '), busy = steps.busy.reduce((a, b) => a + b, 0);
  tile('Highest use', peak, unit === 'n/a' ? '' : unit, limit ? `${(totals.peak / limit * 100).toFixed(1)} % of the limit, ${bytes(limit)}` : 'no limit', limit ? totals.peak / limit : undefined);
  if (count) {
    const last = final(steps.most), span = final(steps.ended) - steps.began[0], waits = known(steps.waited);
    tile('Micro-batch', digits(last), last === 1 ? 'sample' : 'samples', `began at ${digits(steps.least[0])}, at most ${digits(most(steps.most))}`);
    tile('Throughput', digits(totals.samples / busy * 1e6), 'samples/s', `${(busy / span * 100).toFixed(0)} % of the time in steps${waits.length ? `, ${(waits.reduce((a, b) => a + b, 0) / span * 100).toFixed(0)} % waiting for data` : ''}`);
  }
  tile('Work', digits(totals.steps), totals.steps === 1 ? 'step' : 'steps', `${plural(totals.samples, 'sample')}, ${digits(totals.samples ? totals.recomputed / totals.samples * 100 : 0)} % computed again`);
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
