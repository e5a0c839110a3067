//! Counts what each checker reports, by docs/reference/conditions.tsv.

const LIST: &str = include_str!("../../../../docs/reference/conditions.tsv");

/// The columns after `condition` and `applies`, this crate first.
pub const CHECKERS: [&str; 6] = [
    "here",
    "torch_collect_env",
    "ds_report",
    "accelerate_env",
    "bitsandbytes",
    "dcgm",
];

/// The name and the checkers' columns of each condition that applies to candle.
pub fn conditions() -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = LIST
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let applying = lines.filter(|line| line[1] == "yes");
    applying.map(|line| (line[0], line[2..].to_vec())).collect()
}

/// The number of conditions that each checker reports.
pub fn covered() -> Vec<(&'static str, usize)> {
    let conditions = conditions();
    let count = |column: usize| {
        conditions
            .iter()
            .filter(|(_, says)| says[column] != "-")
            .count()
    };
    CHECKERS
        .iter()
        .enumerate()
        .map(|(column, name)| (*name, count(column)))
        .collect()
}
