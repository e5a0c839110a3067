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
  const evaluation = evaluations.find(one => at >= one.began && at <= one.ended);
  if (evaluation) {
    const rows = [['highest use', bytes(evaluation.peak)], ['largest micro-batch', digits(evaluation.most)], ['samples', digits(evaluation.samples)], ['time', time(evaluation.ended - evaluation.began)]];
    return showTip(event, `Evaluation · ${time(evaluation.began)} · ${clock(evaluation.began)}`, rows, []);
  }
  if (!count) return;
  const i = stepAt(at), rows = [];
  const limit = steps.limit[i], peak = steps.peak[i];
  if (peak !== null) rows.push(['highest use', bytes(peak) + (limit ? ` of ${bytes(limit)} (${(peak / limit * 100).toFixed(0)} %)` : '')]);
  if (steps.inUse[i] !== null) rows.push(['in use after', bytes(steps.inUse[i])]);
  if (steps.reserved[i] !== null) rows.push(['held by the pool', bytes(steps.reserved[i])]);
  rows.push(['micro-batches', `${digits(steps.micro[i])} of ${steps.least[i] === steps.most[i] ? '' : steps.least[i] + '–'}${steps.most[i]}`]);
  if (steps.fits[i] !== null) rows.push(['would fit', digits(steps.fits[i])]);
  if (steps.reason[i] !== null) rows.push(['why no more', steps.reason[i]]);
  if (steps.planned[i] !== null) rows.push(['expected', bytes(steps.planned[i])]);
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
