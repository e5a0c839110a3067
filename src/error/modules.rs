//! Names of many parameters in a few lines: by module, and equal modules that are numbered as one.

use std::collections::BTreeMap;
use std::fmt;

/// Number of parameters that are listed for a module.
const LISTED: usize = 3;

/// A module, or several with the same parameters that differ in a number only.
#[derive(Debug)]
pub(crate) struct Modules<'a> {
    /// The path, as in `model.layers.0..=3`; empty for parameters without a module, and `Var 0..=3` for Vars without a name.
    path: String,
    /// The number of modules.
    count: usize,
    /// The parameters of each one, without its path.
    parameters: Vec<&'a str>,
    /// The number of parameters that each one has in all.
    total: usize,
    /// The whole names.
    pub(crate) names: Vec<&'a str>,
}

/// A module's stem and number, and whether a parameter itself has this path, as `w1` beside `w1.bias`.
type Place<'a> = (&'a str, Option<u64>, bool);

/// Parameters of modules with this stem, these parameters and this total.
type Key<'a> = (&'a str, Vec<&'a str>, usize);

/// Groups `names` by module. `others` are the remaining parameters, for the totals.
pub(crate) fn by_module<'a>(
    names: impl Iterator<Item = &'a str>,
    others: impl Iterator<Item = &'a str>,
) -> Vec<Modules<'a>> {
    let mut places: BTreeMap<Place<'_>, Vec<(&str, &str)>> = BTreeMap::new();
    for name in names {
        let (place, parameter) = place(name);
        places.entry(place).or_default().push((name, parameter));
    }
    let mut totals: BTreeMap<_, usize> = BTreeMap::new();
    for name in others {
        *totals.entry(place(name).0).or_default() += 1;
    }
    // Modules of one list are neighbours, in the order of their numbers.
    let mut equal: BTreeMap<Key<'a>, (Vec<u64>, Vec<&str>)> = BTreeMap::new();
    for (place, listed) in places {
        let total = listed.len() + totals.get(&place).copied().unwrap_or(0);
        let (stem, number, _) = place;
        let parameters = listed.iter().map(|(_, parameter)| *parameter).collect();
        let (numbers, names) = equal.entry((stem, parameters, total)).or_default();
        numbers.extend(number);
        names.extend(listed.iter().map(|(name, _)| *name));
    }
    let modules = equal
        .into_iter()
        .map(|((stem, parameters, total), (numbers, names))| Modules {
            path: match stem.is_empty() && !numbers.is_empty() && is_whole(&parameters) {
                true => format!("Var {}", ranges(&numbers)),
                false => format!("{stem}{}", ranges(&numbers)),
            },
            count: numbers.len().max(1),
            parameters,
            total,
            names,
        });
    modules.collect()
}

/// Where a parameter is listed, and under which name.
fn place(name: &str) -> (Place<'_>, &str) {
    let (path, parameter) = split(name);
    let (stem, number) = numbered(path);
    ((stem, number, parameter.is_empty()), parameter)
}

/// A parameter's module and the rest of its name. The module ends with the first number of the name, as in `model.layers.0`,
/// so that the parts of a layer are not listed one by one.
fn split(name: &str) -> (&str, &str) {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let ends_in_number = |part: &str| part.ends_with(|last: char| last.is_ascii_digit());
    let end = end_of(name, is_number).or_else(|| end_of(name, ends_in_number));
    match end.and_then(|end| name.split_at_checked(end)) {
        Some((path, rest)) => (path, rest.strip_prefix('.').unwrap_or(rest)),
        None => name.rsplit_once('.').unwrap_or(("", name)),
    }
}

/// Where the first such part of a path ends. The last part names the parameter, as `weight_ih_l0` of an LSTM, unless it is all
/// there is.
fn end_of(name: &str, is_it: impl Fn(&str) -> bool) -> Option<usize> {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        let is_parameter = end == name.len() && part.len() < end;
        if is_it(part) && !is_parameter {
            return Some(end);
        }
        end += 1; // the dot
    }
    None
}

/// A path without the number at its end, and the number.
fn numbered(path: &str) -> (&str, Option<u64>) {
    let stem = path.trim_end_matches(|last: char| last.is_ascii_digit());
    let digits = path.get(stem.len()..).unwrap_or_default();
    // With a leading zero, the number would not lead back to the name.
    let is_plain = digits == "0" || !digits.starts_with('0');
    match digits.parse().ok().filter(|_| is_plain) {
        Some(number) => (stem, Some(number)),
        None => (path, None),
    }
}

/// Sorted numbers as ranges, such as `0..=3, 7`.
fn ranges(numbers: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = ranges.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}..={last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Whether the path is the whole name.
fn is_whole(parameters: &[&str]) -> bool {
    parameters.iter().all(|parameter| parameter.is_empty())
}

/// As in `model.layers.0..=3: mlp.down.weight, mlp.up.weight, norm.weight, … (9 of 9 each)`.
impl fmt::Display for Modules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        let found = self.parameters.len();
        if is_whole(&self.parameters) {
            return Ok(());
        }
        if !self.path.is_empty() {
            f.write_str(": ")?;
        }
        let listed = self.parameters.iter().take(LISTED).copied();
        f.write_str(&listed.collect::<Vec<_>>().join(", "))?;
        let more = if found > LISTED { ", …" } else { "" };
        let each = if self.count > 1 { " each" } else { "" };
        write!(f, "{more} ({found} of {}{each})", self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::by_module;

    fn lines(names: &[&str], others: &[&str]) -> Vec<String> {
        let groups = by_module(names.iter().copied(), others.iter().copied());
        groups.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_layers_are_one_line() {
        let layers: Vec<String> = (0..12)
            .flat_map(|layer| {
                ["a.weight", "b.bias", "b.weight", "c.w"].map(|p| format!("m.layers.{layer}.{p}"))
            })
            .chain(["m.norm.weight".to_owned(), "head".to_owned()])
            .collect();
        let mut names: Vec<&str> = layers.iter().map(String::as_str).collect();
        assert_eq!(
            lines(&names, &["m.norm.bias"]),
            [
                "head (1 of 1)",
                "m.layers.0..=11: a.weight, b.bias, b.weight, … (4 of 4 each)",
                "m.norm: weight (1 of 2)",
            ]
        );
        // One layer has one parameter less that is unreached.
        names.retain(|name| *name != "m.layers.4.b.bias");
        assert_eq!(
            lines(&names, &["m.layers.4.b.bias"])[1..3],
            [
                "m.layers.0..=3, 5..=11: a.weight, b.bias, b.weight, … (4 of 4 each)",
                "m.layers.4: a.weight, b.weight, c.w (3 of 4)",
            ]
        );
    }

    #[test]
    fn numbers_at_the_end_of_a_part_count_where_no_part_is_a_number() {
        let names = [
            "block0.qkv.weight",
            "block1.qkv.weight",
            "layer1.0.conv2.weight",
        ];
        assert_eq!(
            lines(&names, &[]),
            [
                "block0..=1: qkv.weight (1 of 1 each)",
                "layer1.0: conv2.weight (1 of 1)"
            ]
        );
    }

    #[test]
    fn the_last_part_of_a_name_is_no_module() {
        let lstm = [
            "bias_hh_l0",
            "bias_ih_l0",
            "weight_hh_l0",
            "weight_ih_l0",
            "weight_ih_l1",
        ]
        .map(|name| format!("lstm.{name}"));
        assert_eq!(
            lines(&lstm.each_ref().map(String::as_str), &[]),
            ["lstm: bias_hh_l0, bias_ih_l0, weight_hh_l0, … (5 of 5)"]
        );
        // A parameter beside a module of the same name.
        assert_eq!(
            lines(&["w1", "w1.bias"], &["w1.scale"]),
            ["w1", "w1: bias (1 of 2)"]
        );
        assert_eq!(
            lines(&["0", "0.bias", "1", "scales.0", "scales.1"], &[]),
            ["Var 0..=1", "0: bias (1 of 1)", "scales: 0, 1 (2 of 2)"]
        );
    }

    #[test]
    fn odd_names_are_kept() {
        assert_eq!(lines(&["0", "1", "2", "10"], &["3"]), ["Var 0..=2, 10"]);
        assert_eq!(
            lines(&["", "a..b", "x.007.y"], &[]),
            ["", "a.: b (1 of 1)", "x.007: y (1 of 1)"]
        );
        let huge = "layers.99999999999999999999.w";
        assert_eq!(
            lines(&[huge], &[]),
            ["layers.99999999999999999999: w (1 of 1)"]
        );
        assert_eq!(lines(&["π.2.ß"], &[]), ["π.2: ß (1 of 1)"]);
    }
}
