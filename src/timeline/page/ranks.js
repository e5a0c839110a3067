// The ranks of a group: a lane for each, and what they waited for. Updates that were merged, or are too narrow, have their parts put together.
const lanes = data.ranks?.lanes ?? [];
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
