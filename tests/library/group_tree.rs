//! Groups in which messages go through several levels of ranks: with at most two branches each, 7 ranks are a tree of three levels, 0 above 1 and 4,
//! 1 above 2 and 3, 4 above 5 and 6.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use candle_headroom::Result;
use candle_headroom::distributed::Group;
use candle_headroom::testing::{fan_out, watch};
use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::groups::{LONG, builder, free_port};

const RANKS: usize = 7;
const SHORT: Duration = Duration::from_secs(1);
/// What a rank waits beyond the timeout for what another one finds out.
const GRACE: Duration = Duration::from_secs(2);
/// What a busy machine may take more.
const SLACK: Duration = Duration::from_secs(4);

/// Runs `body` in a thread for each rank, and returns the results in their order.
fn ranks<T: Send>(
    size: usize,
    branches: usize,
    timeout: Duration,
    body: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    let port = free_port();
    thread::scope(|scope| {
        let body = &body;
        let threads = (0..size).map(|rank| {
            scope.spawn(move || body(open(rank, size, branches, port, timeout).unwrap()))
        });
        let threads: Vec<_> = threads.collect();
        let done = threads.into_iter().map(|thread| thread.join().unwrap());
        done.collect()
    })
}

fn open(rank: usize, size: usize, branches: usize, port: u16, timeout: Duration) -> Result<Group> {
    fan_out(builder(rank, size, port, timeout, &[]), branches).open()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// As where all are connected to rank 0, for any bytes.
    #[test]
    fn all_ranks_get_what_each_gave_in_their_order(
        size in 2usize..14,
        branches in 1usize..5,
        calls in prop::collection::vec((0usize..2000, any::<u64>()), 1..6),
    ) {
        let given = |rank: usize, length: usize, seed: u64| {
            // Ranks agree on the beginning, some on all.
            let mut random = StdRng::seed_from_u64(seed ^ (rank as u64 % 3));
            let mut bytes = vec![seed as u8; length];
            bytes.extend((0..length % 7 * rank).map(|_| random.random::<u8>()));
            bytes
        };
        let found = ranks(size, branches, LONG, |group| {
            let calls = calls.iter().map(|(length, seed)| {
                group.gather(&given(group.rank(), *length, *seed)).unwrap()
            });
            calls.collect::<Vec<_>>()
        });
        for (call, (length, seed)) in calls.into_iter().enumerate() {
            let expected: Vec<_> = (0..size).map(|rank| given(rank, length, seed)).collect();
            for all in &found {
                prop_assert_eq!(&all[call], &expected);
            }
        }
    }
}

/// What one rank of a tree does in place of a call. Each of the others gets an error that says so.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Late,
    Panics,
    Leaves,
    CallsAnother,
}

fn others_after(trouble: Trouble, rank: usize) -> Vec<(usize, String, Duration)> {
    let port = free_port();
    let (all_done, done) = mpsc::channel::<()>();
    let waits = &Mutex::new(Some(done));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..RANKS)
            .map(|own| {
                let all_done = (own != rank).then(|| all_done.clone());
                scope.spawn(move || {
                    let group = open(own, RANKS, 2, port, SHORT).unwrap();
                    group.barrier().unwrap();
                    let began = Instant::now();
                    let is_it = own == rank;
                    let done = match trouble {
                        Trouble::Late if is_it => {
                            // Until all others have their errors.
                            let done = waits.lock().unwrap().take().unwrap();
                            let _ = done.recv();
                            return None;
                        }
                        Trouble::Panics if is_it => panic!("on purpose"),
                        Trouble::Leaves if is_it => return None,
                        Trouble::CallsAnother if is_it => group.gather(&[]).map(drop),
                        _ => group.barrier(),
                    };
                    let text = done.unwrap_err().to_string();
                    let took = began.elapsed();
                    match trouble {
                        // All made a call, and the next one can be the same.
                        Trouble::CallsAnother => group.barrier().unwrap(),
                        _ => {
                            let again = group.barrier().unwrap_err().to_string();
                            assert!(again.contains("has failed before"), "{again}");
                        }
                    }
                    drop(all_done);
                    Some((own, text, took))
                })
            })
            .collect();
        drop(all_done);
        let found = threads.into_iter().filter_map(|thread| thread.join().ok());
        found.flatten().collect()
    })
}

#[test]
fn every_rank_may_be_late_panic_leave_or_call_another_method() {
    let kinds = [
        (
            Trouble::Late,
            "no call of it within 1s",
            "no answer within 1s",
        ),
        (Trouble::Panics, "it panicked", "it panicked"),
        (
            Trouble::Leaves,
            "it has left the group",
            "it has left the group",
        ),
        (Trouble::CallsAnother, "`gather`", "`gather`"),
    ];
    let mut worst = Duration::ZERO;
    for (trouble, reason, other) in kinds {
        let all = thread::scope(|scope| {
            let jobs: Vec<_> = (0..RANKS)
                .map(|rank| scope.spawn(move || others_after(trouble, rank)))
                .collect();
            let jobs = jobs.into_iter().map(|job| job.join().unwrap());
            jobs.enumerate().collect::<Vec<_>>()
        });
        for (rank, found) in all {
            let expected = if matches!(trouble, Trouble::CallsAnother) {
                RANKS
            } else {
                RANKS - 1
            };
            assert_eq!(found.len(), expected, "{trouble:?} {rank}: {found:?}");
            for (own, text, took) in found {
                let begins = match trouble {
                    Trouble::CallsAnother => format!("rank {rank} `gather`"),
                    _ => format!("rank {rank} lost in `barrier`"),
                };
                assert!(
                    text.contains(&begins) && (text.contains(reason) || text.contains(other)),
                    "{trouble:?} {rank}: rank {own}: {text}"
                );
                assert!(
                    took < SHORT + GRACE + SLACK,
                    "{trouble:?} {rank}: {own}: {took:?}"
                );
                worst = worst.max(took);
            }
        }
    }
    println!(
        "figure: ranks/tree_named_within = {:.2} s",
        worst.as_secs_f64()
    );
}

/// When a process of a tree is killed or stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The others wait for its call.
    Before,
    /// It waits for a rank below it.
    Collecting,
    /// It waits for the answer, and rank 0 has not called yet.
    Waiting,
    /// All wait for an engine, which says nothing of a rank that is lost.
    Exchange,
    /// At any time of many long calls: it may have sent a part of its call, or of the answer.
    Between,
}

/// A rank of a tree, as a process: it makes calls until one fails, and says why.
#[test]
#[ignore = "a process of the tests below"]
fn one_rank() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let [rank, port, lost, held, length] = [
        "TREE_RANK",
        "TREE_PORT",
        "TREE_LOST",
        "TREE_HELD",
        "TREE_LENGTH",
    ]
    .map(number);
    let group = open(rank, RANKS, 2, port as u16, SHORT).unwrap();
    group.barrier().unwrap();
    println!("ready");
    if std::env::var_os("TREE_EXCHANGE").is_some() {
        let watch = watch(&group, "a sum");
        let looks = std::iter::repeat_with(|| watch.check());
        let error = looks
            .inspect(|_| thread::sleep(Duration::from_millis(5)))
            .find_map(Result::err);
        println!("error {}", error.unwrap());
        return;
    }
    let given =
        |rank: usize, call: usize| [vec![call as u8; length], vec![rank as u8; length]].concat();
    for call in 0.. {
        if call == 0 && rank == held {
            // One that is to be lost never calls.
            thread::sleep(if rank == lost { LONG } else { SHORT * 6 / 10 });
        }
        match group.gather(&given(rank, call)) {
            Ok(all) => assert!((0..RANKS).all(|rank| all[rank] == given(rank, call))),
            Err(error) => {
                println!("error {error}");
                let again = group.barrier().unwrap_err().to_string();
                assert!(again.contains("has failed before"), "{again}");
                return;
            }
        }
    }
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(rank: usize, port: u16, phase: Phase, lost: usize, held: usize) -> Self {
        let length = if phase == Phase::Between {
            200_000
        } else {
            100
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "group_tree::one_rank",
            "--exact",
            "--ignored",
            "--nocapture",
        ]);
        let numbers = [
            ("TREE_RANK", rank),
            ("TREE_PORT", port.into()),
            ("TREE_LOST", lost),
            ("TREE_HELD", held),
            ("TREE_LENGTH", length),
        ];
        command.envs(numbers.map(|(name, number)| (name, number.to_string())));
        if phase == Phase::Exchange {
            command.env("TREE_EXCHANGE", "");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let out: ChildStdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::io::Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, lines }
    }

    /// Waits for a line with this beginning, and returns the rest.
    fn line(&self, beginning: &str, limit: Duration) -> Option<String> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            // The test harness writes on the same line.
            if let Some((_, rest)) = line.split_once(beginning) {
                return Some(rest.to_owned());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to one process of a tree, and returns the longest that another one took to say so.
fn after_signal(signal: i32, phase: Phase, lost: usize) -> Duration {
    let held = match phase {
        Phase::Before => lost,
        Phase::Collecting => lost + 2 - lost % 2,
        Phase::Waiting => 0,
        Phase::Exchange | Phase::Between => RANKS,
    };
    let length = if phase == Phase::Between {
        200_000
    } else {
        100
    };
    let port = free_port();
    let all: Vec<_> = (0..RANKS)
        .map(|rank| Process::start(rank, port, phase, lost, held))
        .collect();
    for (rank, process) in all.iter().enumerate() {
        assert!(
            process.line("ready", LONG).is_some(),
            "rank {rank} does not start"
        );
    }
    let random = u64::from(all[0].child.id()) * 7919 % 100;
    thread::sleep(Duration::from_millis(match phase {
        Phase::Between => 50 + random,
        _ => 300,
    }));
    let began = Instant::now();
    // SAFETY: the process is this one's child and has not been waited for, so that the number is still its own.
    assert_eq!(
        unsafe { libc::kill(all[lost].child.id() as i32, signal) },
        0
    );
    for (rank, process) in all.iter().enumerate().filter(|(rank, _)| *rank != lost) {
        let text = process.line("error ", SHORT + GRACE + SLACK);
        let text = text.unwrap_or_else(|| panic!("{phase:?} {lost}: rank {rank} hangs"));
        assert!(
            text.starts_with(&format!("rank {lost} lost in `")),
            "{signal} {phase:?} {lost}: rank {rank}: {text}"
        );
    }
    began.elapsed()
}

#[test]
fn every_rank_may_be_killed_or_stopped_at_any_time_of_a_call() {
    let mut points = Vec::new();
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        points.extend((0..RANKS).map(|lost| (signal, Phase::Before, lost)));
        points.extend([0, 1, 4].map(|lost| (signal, Phase::Collecting, lost)));
        points.extend((1..RANKS).map(|lost| (signal, Phase::Waiting, lost)));
        for phase in [Phase::Exchange, Phase::Between] {
            points.extend((0..RANKS).map(|lost| (signal, phase, lost)));
        }
    }
    let points = Mutex::new(points);
    let worst = thread::scope(|scope| {
        let next = || points.lock().unwrap().pop();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let took = std::iter::from_fn(next)
                        .map(|(signal, phase, lost)| after_signal(signal, phase, lost));
                    took.max().unwrap_or_default()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .max()
    });
    let worst = worst.unwrap_or_default();
    println!(
        "figure: ranks/tree_lost_within = {:.2} s",
        worst.as_secs_f64()
    );
}

/// Threads of one process, so that a message takes longer than between machines: what counts is how it grows with the ranks.
#[test]
fn a_message_of_many_ranks() {
    for size in [2, 16, 64, 128] {
        for (name, branches) in [("", 16), ("_star", size)] {
            if name == "_star" && size < 64 {
                continue;
            }
            let seconds = ranks(size, branches, LONG, |group| {
                let own = [vec![7; 180], vec![group.rank() as u8; 32]].concat();
                let mut best = f64::INFINITY;
                for _ in 0..5 {
                    group.barrier().unwrap();
                    let began = Instant::now();
                    for _ in 0..20 {
                        assert_eq!(group.gather(&own).unwrap().len(), size);
                    }
                    best = best.min(began.elapsed().as_secs_f64() / 20.);
                }
                best
            });
            let worst = seconds.into_iter().fold(0., f64::max);
            println!(
                "figure: ranks/message_ms_{size}{name} = {:.2} ms",
                1e3 * worst
            );
        }
    }
}
