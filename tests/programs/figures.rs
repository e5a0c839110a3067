//! Figures that programs print.

/// Its number.
pub fn figure(program: &str, output: &str, name: &str) -> f64 {
    let prefix = format!("figure: {program}/{name} = ");
    let line = output.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.unwrap_or_else(|| panic!("no figure {name} in {output}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}
