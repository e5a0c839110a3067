//! The text of a module, split into functions and variables.

use super::decode;
use super::globals::{Globals, variable};
use super::kernel::{Kernel, Param};
use super::token;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The text of a function or an entry.
#[derive(Clone, Debug)]
pub struct Function {
    pub entry: bool,
    /// From the directives before its name up to the body.
    header: Range<usize>,
    /// Without the braces.
    body: Range<usize>,
}

/// Parsed PTX. Entries are decoded at their first use.
pub struct Module {
    text: String,
    functions: HashMap<String, Function>,
    order: Vec<String>,
    globals: Arc<Globals>,
    /// The unsized shared arrays, which all name the dynamic shared memory, and their alignments.
    dynamic: Vec<(String, usize)>,
    /// The other shared arrays outside kernels, which several of them name: alignments and bytes. Each block has its own.
    arrays: HashMap<String, (usize, usize)>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("entries", &self.order)
            .finish_non_exhaustive()
    }
}

impl Module {
    /// Splits the text. Function bodies are not parsed.
    pub fn parse(text: &str) -> Result<Module, String> {
        let text = text.trim_end_matches('\0');
        let (mut functions, mut order) = (HashMap::new(), Vec::new());
        let (mut variables, mut dynamic) = (Vec::new(), Vec::new());
        let mut arrays = HashMap::new();
        let mut at = 0;
        while let Some(item) = next_item(text, &mut at)? {
            let header = token::tokens(&text[item.header.clone()]);
            let is = |word: &str| header.contains(&word);
            if is(".section") {
                continue;
            }
            if is(".entry") || is(".func") {
                let (Some(body), Some(name)) = (item.body, function_name(&header)) else {
                    continue;
                };
                let entry = is(".entry");
                if entry {
                    order.push(name.to_owned());
                }
                functions.insert(
                    name.to_owned(),
                    Function {
                        entry,
                        header: item.header,
                        body,
                    },
                );
            } else if is(".shared") {
                let (found, _) = variable(&header)?;
                let name = found.name.to_owned();
                match found.count {
                    Some(count) => {
                        arrays.insert(name, (found.align, found.kind.bytes() * count));
                    }
                    None => dynamic.push((name, found.align)),
                }
            } else if is(".global") || is(".const") {
                variables.push(&text[item.header.start..item.end]);
            }
        }
        let globals = Arc::new(Globals::new(&variables)?);
        let text = text.to_owned();
        Ok(Module {
            text,
            functions,
            order,
            globals,
            dynamic,
            arrays,
            kernels: Mutex::default(),
        })
    }

    /// The names of the entries, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(String::as_str)
    }

    /// The kernel of this name; `None` when there is none, an error when it cannot be decoded.
    pub fn kernel(&self, name: &str) -> Result<Option<Arc<Kernel>>, String> {
        if !self
            .functions
            .get(name)
            .is_some_and(|function| function.entry)
        {
            return Ok(None);
        }
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Some(kernel.clone()));
        }
        let kernel =
            Arc::new(decode::kernel(self, name).map_err(|error| format!("entry {name}: {error}"))?);
        kernels.insert(name.to_owned(), kernel.clone());
        Ok(Some(kernel))
    }

    /// The address and the bytes of a module variable.
    #[must_use]
    pub fn global(&self, name: &str) -> Option<(u64, usize)> {
        self.globals.symbol(name)
    }

    pub(super) fn globals(&self) -> &Arc<Globals> {
        &self.globals
    }

    pub(super) fn dynamic(&self) -> &[(String, usize)] {
        &self.dynamic
    }

    /// The alignment and the bytes of a shared array outside kernels.
    pub(super) fn array(&self, name: &str) -> Option<(usize, usize)> {
        self.arrays.get(name).copied()
    }

    pub(super) fn has_function(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// A function's parameters, the values it returns, and its body.
    pub(super) fn function(&self, name: &str) -> Result<Signature<'_>, String> {
        let function = self
            .functions
            .get(name)
            .ok_or_else(|| format!("unknown function {name}"))?;
        let header = token::tokens(&self.text[function.header.clone()]);
        let lists = parameter_lists(&header)?;
        let (returns, params) = match lists.as_slice() {
            [] => (Vec::new(), Vec::new()),
            [only] if header_name_first(&header, name) => (Vec::new(), only.clone()),
            [only] => (only.clone(), Vec::new()),
            [returns, params, ..] => (returns.clone(), params.clone()),
        };
        Ok(Signature {
            returns,
            params,
            body: &self.text[function.body.clone()],
        })
    }
}

/// A function's header and body.
#[derive(Debug)]
pub struct Signature<'a> {
    pub returns: Vec<(&'a str, Param)>,
    pub params: Vec<(&'a str, Param)>,
    pub body: &'a str,
}

/// Whether the name stands before the first list of parameters.
fn header_name_first(header: &[&str], name: &str) -> bool {
    let place = |wanted: &str| header.iter().position(|word| *word == wanted);
    place(name) < place("(")
}

/// The parenthesized lists of a header, with the offsets of the parameters.
fn parameter_lists<'a>(header: &[&'a str]) -> Result<Vec<Vec<(&'a str, Param)>>, String> {
    let mut lists = Vec::new();
    let mut rest = header;
    while let Some(open) = rest.iter().position(|word| *word == "(") {
        let close = rest[open..]
            .iter()
            .position(|word| *word == ")")
            .ok_or("( without )")?
            + open;
        let (mut params, mut end) = (Vec::new(), 0usize);
        for declaration in rest[open + 1..close]
            .split(|word| *word == ",")
            .filter(|part| !part.is_empty())
        {
            let (found, _) = variable(declaration)?;
            let size = found.kind.bytes() * found.count.unwrap_or(0);
            let offset = end.next_multiple_of(found.align);
            end = offset + size;
            params.push((found.name, Param { offset, size }));
        }
        lists.push(params);
        rest = &rest[close + 1..];
    }
    Ok(lists)
}

/// The word before the parameters that is the function's name.
fn function_name<'a>(header: &[&'a str]) -> Option<&'a str> {
    let mut rest = header
        .iter()
        .skip_while(|word| !matches!(**word, ".entry" | ".func"))
        .skip(1)
        .copied()
        .peekable();
    if rest.peek() == Some(&"(") {
        for word in rest.by_ref() {
            if word == ")" {
                break;
            }
        }
    }
    rest.find(|word| !word.starts_with('.') && *word != "(")
}

/// A declaration or a function at the top of a module.
struct Item {
    header: Range<usize>,
    body: Option<Range<usize>>,
    end: usize,
}

/// Finds the next item from `at` on, and moves `at` past it.
fn next_item(text: &str, at: &mut usize) -> Result<Option<Item>, String> {
    let bytes = text.as_bytes();
    let mut start = None;
    let (mut depth, mut body, mut initialised) = (0usize, None, false);
    while *at < bytes.len() {
        let here = *at;
        *at += 1;
        match bytes[here] {
            b'/' if bytes.get(here + 1) == Some(&b'/') => *at = token::line_end(text, here),
            b'/' if bytes.get(here + 1) == Some(&b'*') => {
                *at = text[here..].find("*/").map_or(text.len(), |n| here + n + 2);
            }
            b'"' => {
                *at = text[here + 1..]
                    .find('"')
                    .map_or(text.len(), |n| here + n + 2)
            }
            b'.' if start.is_none() && line_directive(&text[here..]) => {
                *at = token::line_end(text, here)
            }
            byte if byte.is_ascii_whitespace() => {}
            b'{' => {
                depth += 1;
                if depth == 1 && !initialised {
                    body = Some(here + 1);
                }
            }
            b'}' => {
                depth = depth.checked_sub(1).ok_or("} without {")?;
                if let (0, Some(open)) = (depth, body) {
                    let header = start.unwrap_or(open - 1)..open - 1;
                    return Ok(Some(Item {
                        header,
                        body: Some(open..here),
                        end: *at,
                    }));
                }
            }
            b';' if depth == 0 => {
                let header = start.unwrap_or(here)..here;
                return Ok(Some(Item {
                    end: here,
                    header,
                    body: None,
                }));
            }
            b'=' if depth == 0 => initialised = true,
            _ => {
                start.get_or_insert(here);
            }
        }
    }
    match start {
        _ if depth > 0 => Err("{ without }".to_owned()),
        Some(_) => Err("the text ends within a declaration".to_owned()),
        None => Ok(None),
    }
}

/// Directives that end at the end of their line.
fn line_directive(text: &str) -> bool {
    [".version", ".target", ".address_size", ".file", ".loc"]
        .iter()
        .any(|word| text.starts_with(word))
}
