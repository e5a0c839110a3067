//! The lines about a step's events that programs print.

use candle_headroom::batch::Event;
use serde_json::{Value, json};

#[path = "../../examples/support/changes.rs"]
mod changes;

fn lines(events: Value) -> Vec<String> {
    let events: Vec<Event> = serde_json::from_value(events).unwrap();
    let lines = changes::lines(&events).into_iter();
    lines.map(|line| line.text).collect()
}

#[test]
fn changes_in_a_row_are_one_line() {
    let grown = |from: usize, to: usize| json!({ "grown": { "from": from, "to": to } });
    let shrunk = |from: usize, to: usize| json!({ "shrunk": { "from": from, "to": to } });
    for (events, line) in [
        (
            json!([grown(1, 7), shrunk(7, 6), grown(6, 16)]),
            Some("micro-batch 1 → 16: more fits"),
        ),
        (
            json!([shrunk(16, 4), grown(4, 8)]),
            Some("micro-batch 16 → 8: less fits"),
        ),
        // More than before, though the last change made it less.
        (
            json!([grown(1, 7), shrunk(7, 6)]),
            Some("micro-batch 1 → 6: more fits"),
        ),
        (json!([grown(1, 7)]), Some("micro-batch 1 → 7: more fits")),
        // As it was.
        (json!([grown(4, 8), shrunk(8, 4)]), None),
        (json!([]), None),
    ] {
        let found = lines(events);
        assert_eq!(found, Vec::from_iter(line));
    }
}

#[test]
fn failures_and_recomputation_have_lines_of_their_own() {
    let events = json!([
        { "grown": { "from": 1, "to": 7 } },
        { "grown": { "from": 7, "to": 16 } },
        { "retried": { "samples": { "start": 8, "end": 24 }, "to": 8, "phase": "backward", "cause": "limit" } },
        { "restarted": { "lost": 3 } },
        { "recomputing": { "from": 8, "to": 12 } },
        { "grown": { "from": 12, "to": 14 } },
        { "shrunk": { "from": 14, "to": 13 } },
        { "over_limit": { "peak": 2048, "limit": 1024 } },
    ]);
    let expected = [
        "micro-batch 1 → 16: more fits",
        "micro-batch 16 → 8: out of memory in backward, the limit is reached",
        "batch restarted: 3 finished samples lost",
        "micro-batch 8 → 12: regions are recomputed",
        "micro-batch 12 → 13: more fits",
        "the update used 2.0 KiB with a limit of 1.0 KiB",
    ];
    assert_eq!(lines(events), expected);
}
