//! What docs/reference/ports.md records of programs that are kept out of this repository.

use regex::Regex;

use super::page::read;

/// Inserted lines in the middle of the programs and in the worst, and how far losses may be apart where the original was right.
const MEDIAN: f64 = 40.;
const WORST: f64 = 80.;
const LOSS: f64 = 1e-5;

#[test]
fn programs_of_others_were_moved_with_few_lines() {
    let page = read("docs/reference/ports.md");
    let row = r"(?m)^\| \[.*\| (\d+), \d+ \| \**\d+ → (\d+) of (\d+)\** \| ([\d.e-]+) .*\|$";
    let mut lines = Vec::new();
    for row in Regex::new(row).unwrap().captures_iter(&page) {
        let number = |part: usize| row[part].parse::<f64>().unwrap();
        let (reached, parameters, difference) = (number(2), number(3), number(4));
        assert_eq!(reached, parameters, "{}", &row[0]);
        assert!(difference <= LOSS, "{}", &row[0]);
        println!("recorded: {}", &row[0]);
        lines.push(number(1));
    }
    lines.sort_by(f64::total_cmp);
    assert_eq!(lines.len(), 4, "each program has a row");
    let (median, worst) = ((lines[1] + lines[2]) / 2., lines[3]);
    println!("figure: ports/lines_inserted = {median} lines, {worst} at worst, as recorded");
    assert!(median <= MEDIAN && worst <= WORST, "{median}, {worst}");
}
