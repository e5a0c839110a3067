//! What could be updated wrongly without an error, on 2 and on 3 ranks. Each case prints `silent-case: NAME on N ranks = 0`, or `= 1` if a rank
//! returned `Ok` for an update that should have been refused.

mod data;
mod failures;

use candle_headroom::distributed::Group;

use crate::launch::{is_rank, mpirun, open, text};

/// A line of a rank's output, followed by its number and what it found.
const FOUND: &str = "silent-rank:";

/// Runs a case on 2 and on 3 ranks, each of which has to survive. `body` returns whether something was updated wrongly without an error, and
/// asserts what the error says.
pub fn case(name: &str, body: impl FnOnce(&Group) -> bool) {
    if is_rank() {
        let group = open();
        let is_wrong = body(&group);
        return found(group.rank(), is_wrong);
    }
    launch(name, &[], |ranks| ranks);
}

/// In a rank: reports whether something was updated wrongly without an error.
pub fn found(rank: usize, is_wrong: bool) {
    // A line of its own in one write, because this rank's test harness or another's may have begun one.
    let line = format!("\n{FOUND} {rank} = {}\n", u8::from(is_wrong));
    print!("{line}");
}

/// Starts the calling test's ranks with these options of `mpirun`'s. As many of them as `survivors` says, of the number of ranks, have to
/// [report](found).
pub fn launch(name: &str, options: &[&str], survivors: fn(usize) -> usize) {
    let mut wrong = 0;
    for ranks in [2, 3] {
        let output = mpirun(ranks, options);
        let all = text(&output);
        let reports: Vec<_> = all.lines().filter(|line| line.starts_with(FOUND)).collect();
        let is_wrong = reports.iter().any(|report| report.ends_with("= 1"));
        println!(
            "silent-case: {name} on {ranks} ranks = {}",
            u8::from(is_wrong)
        );
        assert_eq!(reports.len(), survivors(ranks), "{all}");
        assert!(survivors(ranks) < ranks || output.status.success(), "{all}");
        wrong += u8::from(is_wrong);
    }
    assert_eq!(wrong, 0, "{name} was updated wrongly without an error");
}
