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
