//! The book, docs/: its links, its form, and the tutorial as a reader follows it.

mod form;
mod links;
mod page;
#[cfg(unix)]
mod tutorial;
