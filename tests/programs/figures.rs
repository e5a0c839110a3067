//! What programs print for programs: figures, and JSON.

use serde_json::Value;

/// The objects of `--json`: those of the steps, and that of the run.
pub fn objects(output: &str) -> (Vec<Value>, Value) {
    let parse = |line: &str| {
        let parsed = serde_json::from_str::<Value>(line);
        parsed.unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let mut steps: Vec<Value> = output.lines().map(parse).collect();
    let run = steps.pop().expect("the object of the run");
    (steps, run)
}

/// Its number.
pub fn figure(program: &str, output: &str, name: &str) -> f64 {
    let prefix = format!("figure: {program}/{name} = ");
    let line = output.lines().find_map(|line| line.strip_prefix(&prefix));
    let line = line.unwrap_or_else(|| panic!("no figure {name} in {output}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}
