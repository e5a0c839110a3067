//! Names of many parameters in a few lines: by module, with `*` for the numbers of several. For candle-headroom, not a public API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Number of parameters that are listed for a module.
const LISTED: usize = 3;

/// The parameters of a module, or of several whose paths differ in a number only.
#[derive(Debug)]
pub struct Modules<'a> {
    /// As in `model.layers.*`; empty for parameters without a module.
    path: String,
    /// The parameters without this path.
    parameters: BTreeSet<&'a str>,
    /// The whole names.
    pub names: Vec<&'a str>,
    /// The number of parameters that these modules have in all.
    total: usize,
}

/// Groups `names` by module. `others` are the remaining parameters, for the totals.
pub fn by_module<'a>(
    names: impl Iterator<Item = &'a str>,
    others: impl Iterator<Item = &'a str>,
) -> Vec<Modules<'a>> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        let (module, _) = split(name);
        groups.entry(pattern(module)).or_default().push(name);
    }
    let others: Vec<_> = others.map(|other| split(other).0).collect();
    let modules = groups.into_iter().map(|(numbered, group)| {
        let modules: BTreeSet<&str> = group.iter().map(|name| split(name).0).collect();
        let path = match modules.len() {
            1 => modules.into_iter().collect(),
            _ => numbered,
        };
        let others = others.iter();
        let others = others.filter(|other| **other == path || pattern(other) == path);
        Modules {
            total: group.len() + others.count(),
            path,
            parameters: group.iter().map(|name| split(name).1).collect(),
            names: group,
        }
    });
    modules.collect()
}

/// A parameter's module, up to its first number, such as `model.layers.0`, so that the parts of a layer are not listed one by one; and the
/// rest of its name.
fn split(name: &str) -> (&str, &str) {
    let Some((path, _)) = name.rsplit_once('.') else {
        // A Var without a name has its place in the list.
        let is_place = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
        return (if is_place { "Var" } else { "" }, name);
    };
    let dots = path.match_indices('.').map(|(at, _)| at);
    let modules = dots.filter_map(|end| path.get(..end));
    let mut numbered =
        modules.filter(|module| module.ends_with(|last: char| last.is_ascii_digit()));
    let module = numbered.next().unwrap_or(path);
    let rest = name.strip_prefix(module).unwrap_or(name);
    (module, rest.trim_start_matches('.'))
}

/// The module's path with `*` for the number at its end.
fn pattern(module: &str) -> String {
    match module.trim_end_matches(|last: char| last.is_ascii_digit()) {
        stem if stem.len() < module.len() => format!("{stem}*"),
        whole => whole.to_owned(),
    }
}

/// As in `model.layers.*: mlp.down.weight, mlp.up.weight, norm.weight, … (36 of 36)`.
impl fmt::Display for Modules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        let listed = self.parameters.iter().take(LISTED).copied();
        f.write_str(&listed.collect::<Vec<_>>().join(", "))?;
        let more = if self.parameters.len() > LISTED {
            ", …"
        } else {
            ""
        };
        write!(f, "{more} ({} of {})", self.names.len(), self.total)
    }
}
