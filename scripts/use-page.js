// What somebody does with a page: hovers everywhere, zooms in, goes back, changes the theme. `look-at-page.sh` appends it, and
// reads from the body what came of it.
'use strict';
(() => {
  const wrong = [];
  const expect = (holds, what) => { if (!holds) wrong.push(what); };
  addEventListener('error', event => wrong.push(event.message));
  Element.prototype.setPointerCapture = () => {}; // there is no real pointer to capture
  const send = (target, type, clientX, clientY) =>
    target.dispatchEvent(new PointerEvent(type, { clientX, clientY, bubbles: true, pointerId: 1 }));
  const drawn = () => {
    const odd = [...document.querySelectorAll('svg *')].filter(shape => [...shape.attributes].some(({ value }) => /NaN|Infinity|undefined/.test(value)));
    expect(!odd.length, `${odd.length} shapes have no place`);
  };
  const isEmpty = !JSON.parse(document.getElementById('data').textContent).steps.began.length;
  const tip = document.getElementById('tip'), whole = document.getElementById('whole');
  for (const root of document.querySelectorAll('#rank-lanes svg, #charts svg, #lanes svg')) {
    const name = root.getAttribute('aria-label'), { left, top, width } = root.getBoundingClientRect();
    const hover = () => {
      for (let part = 0.1; part < 1; part += 0.1) {
        send(root, 'pointermove', left + width * part, top + 20);
        expect(tip.hidden || tip.textContent.length > 20, `${name}: an empty tip`);
        expect(!/NaN|undefined|Infinity/.test(tip.textContent), `${name}: ${tip.textContent}`);
      }
    };
    hover();
    expect(isEmpty || !tip.hidden, `${name}: no tip`);
    for (const [from, to] of [[0.2, 0.9], [0.8, 0.9]]) {
      send(root, 'pointerdown', left + width * from, top + 20);
      send(root, 'pointermove', left + width * to, top + 20);
      send(root, 'pointerup', left + width * to, top + 20);
      expect(!whole.hidden, `${name}: no way back from a zoom`);
      drawn();
      hover();
    }
    send(root, 'dblclick', left + 20, top + 20);
    drawn();
    send(root, 'pointerleave', 0, 0);
    expect(tip.hidden, `${name}: the tip stays`);
  }
  const theme = () => getComputedStyle(document.body).backgroundColor;
  const before = theme();
  document.getElementById('theme').click();
  expect(theme() !== before, 'the theme does not change');
  document.body.dataset.used = wrong.length ? wrong.join('; ') : 'yes';
})();
