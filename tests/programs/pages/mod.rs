//! README and the book, docs/: links, form, and the tutorial as a reader follows it.

mod form;
mod links;
mod page;
mod ports;
mod readme;
mod tasks;
#[cfg(unix)]
mod tutorial;
