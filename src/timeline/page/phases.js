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
