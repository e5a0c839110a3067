//! What can happen to a rank at each point of a job, and how the job ends.

use serde::{Deserialize, Serialize};

/// Where a rank is struck.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum At {
    /// In the forward pass, before its status message.
    Message,
    /// When it has the status messages of all, before the sum of gradients.
    Agreed,
    /// In the sum: killed and stopped while it waits for another rank there, else when it has the sum and before its update.
    Sum,
    /// When it has updated: before it shares what it has updated if the optimizer is sharded.
    Update,
    /// While a checkpoint is made.
    Saving,
    /// In `Group::open`, or as the trainer is built.
    Joining,
    /// While the state of a checkpoint is loaded.
    Loading,
}

/// What strikes it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    /// SIGKILL.
    Kill,
    /// A panic that ends the program.
    Panic,
    /// A panic after which the program tries the same again.
    Caught,
    /// Memory runs out, and a retry does not help.
    Exhaustion,
    /// Another error: of the program, of the engine, of a setting, or a full disk.
    Error,
    /// SIGSTOP until all others have ended, then SIGCONT.
    Stop,
    /// A file operation that takes longer than the others wait for each other.
    SlowDisk,
    /// Its loader is at another place, or has another order.
    Loader,
    /// It comes after a fourth of the timeout.
    Late,
    /// It comes when all others have ended.
    TooLate,
}

/// How the job ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// All ranks go on, those that had an error by trying again, and have the bits of an undisturbed job in the end.
    GoesOn,
    /// Every rank that lives has an error that names the struck one, within the timeout and 2 s. Started again, the job has these bits.
    Ends,
    /// It cannot happen, for this reason.
    Cannot(&'static str),
}

pub const POINTS: [At; 7] = [
    At::Message,
    At::Agreed,
    At::Sum,
    At::Update,
    At::Saving,
    At::Joining,
    At::Loading,
];
pub const KINDS: [Kind; 10] = [
    Kind::Kill,
    Kind::Panic,
    Kind::Caught,
    Kind::Exhaustion,
    Kind::Error,
    Kind::Stop,
    Kind::SlowDisk,
    Kind::Loader,
    Kind::Late,
    Kind::TooLate,
];
/// Numbers of ranks, with the one that is struck: rank 0, the last and one in the middle.
pub const RANKS: [(usize, usize); 6] = [(2, 0), (2, 1), (3, 0), (3, 2), (4, 0), (4, 2)];

pub fn end(at: At, kind: Kind, victim: usize) -> End {
    use At::*;
    use End::*;
    match (kind, at) {
        (Kind::Kill | Kind::Panic | Kind::Stop | Kind::TooLate, _) => Ends,
        (Kind::Late, _) => GoesOn,
        (Kind::Caught, Message) => GoesOn,
        // What the others wait for does not come any more, and they may have updated.
        (Kind::Caught, _) => Ends,
        (Kind::Exhaustion | Kind::Error, Agreed) => Cannot(
            "nothing is allocated and no code of the program runs there that could return an error",
        ),
        (Kind::Exhaustion | Kind::Error, Sum | Update) => Ends,
        (Kind::Exhaustion | Kind::Error, _) => GoesOn,
        (Kind::SlowDisk, Saving) => GoesOn,
        (Kind::SlowDisk, Loading) if victim == 0 => GoesOn,
        (Kind::SlowDisk, Loading) => Cannot("rank 0 reads for all"),
        (Kind::SlowDisk, Message) => Cannot("a loader that waits for a disk is a late rank"),
        (Kind::SlowDisk, _) => Cannot("no file is read or written there"),
        (Kind::Loader, Message | Update) => GoesOn,
        (Kind::Loader, Loading) => Ends,
        (Kind::Loader, _) => Cannot("batches are compared in the status message of their update"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    pub at: At,
    pub kind: Kind,
    pub ranks: usize,
    pub victim: usize,
    /// Each rank keeps, updates and saves a part of the optimizer's state.
    pub is_sharded: bool,
    pub ends: bool,
}

/// All that can happen, in an order in which neighbours differ in the kind.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (at_number, at) in POINTS.into_iter().enumerate() {
        for (number, (ranks, victim)) in RANKS.into_iter().enumerate() {
            for (kind_number, kind) in KINDS.into_iter().enumerate() {
                let ends = match end(at, kind, victim) {
                    End::Cannot(_) => continue,
                    end => end == End::Ends,
                };
                let is_sharded = (at_number + kind_number + number + ranks).is_multiple_of(2);
                let is_sharded = is_sharded || only_sharded(at, kind, victim);
                all.push(Case {
                    at,
                    kind,
                    ranks,
                    victim,
                    is_sharded,
                    ends,
                });
            }
        }
    }
    all
}

/// Whether only a rank with a part of the state can be struck so.
fn only_sharded(at: At, kind: Kind, victim: usize) -> bool {
    match (at, kind) {
        (At::Saving, Kind::Exhaustion | Kind::Error | Kind::SlowDisk) => victim > 0,
        // Else it does nothing while rank 0 saves.
        (At::Saving, Kind::Caught) => victim > 0,
        (At::Joining, Kind::Exhaustion) => true,
        _ => false,
    }
}
