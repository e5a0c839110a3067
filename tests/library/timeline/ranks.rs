//! Traces of several ranks, read back: whose clock is ahead, and who is the slowest.

use candle_headroom::timeline::SavedTrace;
use serde_json::{Value, json};

use super::data_of;

/// A record of updates of 100 ms, of which the rank waits for `waited(update)`, on a clock that is `ahead`; all in microseconds. Each row
/// stands for `merged` updates.
fn record(updates: usize, merged: usize, ahead: f64, waited: impl Fn(usize) -> f64) -> Value {
    let rows = (0..updates).step_by(merged).map(|first| {
        let updates = merged.min(updates - first);
        let (began, time) = (1e5 * first as f64 + ahead, 1e5 * updates as f64);
        let waited: f64 = (first..first + updates).map(&waited).sum();
        let reduced = 1e4 * updates as f64;
        json!({
            "began": began, "ended": began + time, "updates": updates, "loaded": 0., "computed": time - waited - reduced,
            "waited": waited, "reduced": reduced, "retries": 0,
        })
    });
    json!({
        "exchanges": { "done": { "rows": rows.collect::<Value>() } },
        "work": [ahead, ahead + 1e5 * updates as f64],
    })
}

/// The part of the page about all ranks.
fn ranks(records: Vec<Value>) -> Value {
    let records = records
        .into_iter()
        .enumerate()
        .map(|(rank, record)| json!({ "host": format!("node{rank}"), "recorder": record }));
    let records: Value = records.collect();
    let trace = json!({ "otherData": { "records": records }, "traceEvents": [] });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    std::fs::write(&path, trace.to_string()).unwrap();
    let mut page = Vec::new();
    let saved = SavedTrace::read(path).unwrap();
    saved.write_page("all", &mut page).unwrap();
    data_of(page)["ranks"].take()
}

/// A field of all lanes.
fn of_all<'a>(ranks: &'a Value, field: &'a str) -> Vec<&'a Value> {
    let lanes = ranks["lanes"].as_array().unwrap();
    lanes.iter().map(|lane| &lane[field]).collect()
}

/// The 1,025th update makes a record merge its rows.
#[test]
fn clocks_are_aligned_and_a_rank_that_is_one_update_ahead_is_merged_alike() {
    let all = ranks(vec![
        record(1025, 2, 5e6, |_| 0.),
        record(1024, 1, 1e6, |_| 5e4),
        record(1024, 1, 9e6, |_| 2e4),
    ]);
    assert_eq!(of_all(&all, "shift"), [0, 4_000_000, -4_000_000]);
    assert_eq!(of_all(&all, "host"), ["node0", "node1", "node2"]);
    for (rank, updates) in of_all(&all, "updates").into_iter().enumerate() {
        let updates = updates.as_array().unwrap();
        assert_eq!(updates[0], 2);
        assert_eq!(updates.len(), if rank == 0 { 513 } else { 512 });
    }
    // The others wait for 50 and 20 of 100 ms.
    let sentence = "rank 0 is the slowest: the others waited 35 % of the time for it";
    assert_eq!(all["sentence"], sentence);
}

#[test]
fn without_an_update_the_machines_clocks_have_to_do() {
    let record = |unix_ms: u64| json!({ "origin": { "unix_ms": unix_ms } });
    let all = ranks(vec![record(5000), record(5250)]);
    assert_eq!(of_all(&all, "shift"), [0, 250_000]);
    assert_eq!(all["sentence"], "no rank keeps the others waiting");
}

/// Every fourth update waits for another rank.
#[test]
fn two_slow_ranks_share_the_blame() {
    let rank = |rank: usize| {
        record(100, 1, 0., move |update| {
            let slowest = if update % 4 == 0 { 2 } else { 1 };
            if rank == slowest { 0. } else { 4e4 }
        })
    };
    let all = ranks((0..3).map(rank).collect());
    let sentence = "rank 1 is the slowest: the others waited 30 % of the time for it, and 10 % for other ranks";
    assert_eq!(all["sentence"], sentence);
}
