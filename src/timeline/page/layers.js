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
