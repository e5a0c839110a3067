//! The moments at which a rank is killed.

use crate::death::{At, Death};

pub const RANKS: usize = 4;

/// The deaths of one job, one in each of its processes' lives.
pub struct Case {
    pub deaths: Vec<Death>,
    pub is_wide: bool,
    pub in_background: bool,
}

/// A death in update `step`, or outside of updates if it is 0.
fn once(rank: usize, step: u64, at: At) -> Case {
    Case {
        deaths: vec![Death { rank, step, at }],
        is_wide: false,
        in_background: (rank as u64 + step).is_multiple_of(2),
    }
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |ranks: &[usize], steps: &[u64], at: &dyn Fn(usize) -> At| {
        for (index, &rank) in ranks.iter().enumerate() {
            all.extend(steps.iter().map(|&step| once(rank, step, at(index))));
        }
    };
    for at in [At::Start, At::Joined, At::Opened, At::Resumed] {
        add(&[0, 3], &[0], &|_| at);
    }
    add(&[0, 1, 3], &[1, 4, 8], &|_| At::Forward);
    // In updates 5 and 10 rank 0 has no samples.
    add(&[1, 2], &[1, 5, 10], &|_| At::Backward);
    add(&[0, 1], &[3, 6], &|_| At::Awaited);
    add(&[0, 3], &[2, 5, 9], &|_| At::Waiting);
    add(&[0, 1, 3], &[1, 4, 7], &|_| At::Commit);
    add(&[0, 2], &[2, 6], &|_| At::Committed);
    add(&[0, 2], &[2, 5], &|_| At::Stepped);
    add(&[0, 1, 3], &[4], &|index| At::Saving(100 << (2 * index)));
    add(&[0, 1], &[2, 7], &|_| At::Saved);
    add(&[0, 2], &[0], &|_| At::Ended);
    add(&[0, 2], &[0], &|_| At::Finishing);
    let micros = [200, 1000, 2000, 4000, 6000, 8000, 12_000, 20_000];
    for (index, micros) in micros.into_iter().enumerate() {
        let wide = once(index % RANKS, 3 + index as u64 % 4, At::Exchange(micros));
        all.push(Case {
            is_wide: true,
            ..wide
        });
    }
    // Rank 0 as it writes: in the first checkpoint, the second, and as it removes the first.
    for (index, point) in (0..70).step_by(4).enumerate() {
        let mut writing = once(0, 0, At::File(point));
        // A disk that is slow gets fewer checkpoints in the background: two in any case.
        writing.in_background = index % 2 == 1 && point < 24;
        all.push(writing);
    }
    // Rank 1 as it writes its part of the state: in the first checkpoint, and in the second.
    for point in 0..8 {
        let mut writing = once(1, 0, At::File(point));
        writing.in_background = point % 2 == 1;
        all.push(writing);
    }
    // Killed in the middle, and again as it resumes.
    let again = [
        At::Start,
        At::Opened,
        At::Resuming(300),
        At::Resuming(1500),
        At::Resumed,
    ];
    for (index, at) in again.into_iter().enumerate() {
        let mut twice = once(index % RANKS, 6 + index as u64 % 3, At::Forward);
        let (rank, step) = ((index + 1) % RANKS, 0);
        twice.deaths.push(Death { rank, step, at });
        all.push(twice);
    }
    all
}
