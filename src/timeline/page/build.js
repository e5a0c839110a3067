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
      for (const line of shown) html(keys, 'span', line.dots ? 'key dash' : 'key', line.name).style.setProperty('--c', `var(${line.colour})`);
      if (evaluations.length) html(keys, 'span', 'key box', 'evaluation').style.setProperty('--c', 'var(--evaluation)');
      if (limit) html(keys, 'span', 'key dash', 'limit').style.setProperty('--c', 'var(--limit)');
    } else if (shown.length > 1) {
      for (const line of shown) html(keys, 'span', line.dots ? 'key dash' : 'key', line.name).style.setProperty('--c', `var(${line.colour})`);
    } else if (shown.length) {
      const values = known(shown[0].value);
      html(keys, 'span', '', `last ${panel.unit(values.at(-1))}`);
    }
    if (panel.marks) buildKinds(html(box, 'div', 'keys'));
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
function badge(parent, glyph, colour) {
  html(parent, 'span', 'badge', glyph).style.setProperty('--c', `var(${colour})`);
}
function buildKinds(keys) {
  for (const kind of new Set(marks.map(mark => mark.kind))) {
    const [glyph, colour, meaning] = kindOf(kind), key = html(keys, 'span');
    badge(key, glyph, colour);
    key.append(meaning);
  }
  if (marks.length < 2) return;
  const key = html(keys, 'span');
  badge(key, '2', '--other');
  key.append('several, in the colour of the worst');
}
function buildMarks() {
  if (!marks.length) return;
  $('marks').hidden = false;
  const list = $('marks').querySelector('ol');
  for (const mark of marks.slice(-300).reverse()) {
    const item = html(list, 'li');
    html(item, 'time', '', time(mark.at)).title = clock(mark.at);
    html(item, 'span', 'step', 'step ' + mark.step);
    const text = html(item, mark.detail ? 'details' : 'div'), head = mark.detail ? html(text, 'summary') : text;
    badge(head, ...kindOf(mark.kind));
    head.append(mark.text);
    if (mark.detail) html(text, 'pre', '', mark.detail);
  }
  if (data.totals.marks > marks.length) html(list, 'li', '', `… and ${data.totals.marks - marks.length} earlier`);
}
build();
