// Shared by the other parts: the record, formatting of numbers, and elements.
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const { steps, evaluations, marks, notes, totals } = data, count = steps.began.length;
const $ = id => document.getElementById(id);
const known = values => values.filter(value => value !== null);
const most = values => known(values).reduce((a, b) => Math.max(a, b), -Infinity);
const final = list => list[list.length - 1];
const limit = final(known(steps.limit));

// Formatting of numbers. Times are in microseconds.
const digits = (value, n = 3) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return value.toLocaleString('en', { maximumFractionDigits: size >= 1000 ? 0 : Math.max(0, n - 1 - Math.floor(Math.log10(size || 1))) });
};
function bytes(value) {
  if (value === null || value === undefined || !isFinite(value)) return 'n/a';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < 4) { value /= 1024; unit++; }
  return digits(value) + ' ' + units[unit];
}
function time(us) {
  if (us < 1e3) return us.toFixed(0) + ' µs';
  if (us < 1e6) return digits(us / 1e3) + ' ms';
  const s = us / 1e6, two = n => String(Math.floor(n)).padStart(2, '0');
  if (s < 120) return digits(s) + ' s';
  return s < 3600 ? Math.floor(s / 60) + ':' + two(s % 60) + ' min' : Math.floor(s / 3600) + ':' + two(s / 60 % 60) + ' h';
}
const clock = us => new Date(data.began + us / 1e3).toLocaleTimeString('en-GB');
const plural = (n, word) => digits(n) + ' ' + word + (n === 1 ? '' : 's');

// Elements.
function add(parent, element, text) {
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}
function svg(parent, name, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  return add(parent, element, text);
}
function html(parent, name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return add(parent, element, text);
}
// A word of a legend or a badge, with its colour.
function key(parent, className, text, colour) {
  html(parent, 'span', className, text).style.setProperty('--c', `var(${colour})`);
}
// A bar in a cell: a percentage and a colour for each of its parts, and a text behind it.
function bar(cell, className, parts, text) {
  const box = html(cell, 'span', className);
  for (const [width, colour] of parts) Object.assign(html(box, 'i').style, { width: width + '%', background: `var(${colour})` });
  cell.append(text);
}
