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
