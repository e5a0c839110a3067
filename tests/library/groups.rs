//! Groups without MPI: ranks in threads that meet by variables, as processes do.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use candle_headroom::distributed::{Group, GroupBuilder};
use candle_headroom::error::GroupError;
use candle_headroom::{AdaptiveTrainer, Error, Result, Sgd};
use candle_nn::{VarBuilder, VarMap, linear};
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};

/// A free port that nobody else gets meanwhile: below those that the system gives away by itself, and each only once in this process.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 200) as u16 * 100;
    let ports = (0..1_000).map(|_| first + NEXT.fetch_add(1, Relaxed) % 2_000);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port")
}

pub fn open(rank: usize, size: usize, port: u16, timeout: Duration) -> Result<Group> {
    open_with(rank, size, port, timeout, &[])
}

fn open_with(
    rank: usize,
    size: usize,
    port: u16,
    timeout: Duration,
    more: &[(&'static str, &str)],
) -> Result<Group> {
    builder(rank, size, port, timeout, more).open()
}

pub fn builder(
    rank: usize,
    size: usize,
    port: u16,
    timeout: Duration,
    more: &[(&'static str, &str)],
) -> GroupBuilder {
    let numbers = [
        ("RANK", rank),
        ("WORLD_SIZE", size),
        ("LOCAL_RANK", rank),
        ("MASTER_PORT", port.into()),
    ];
    let variables = numbers.map(|(name, value)| (name, value.to_string()));
    let address = [("MASTER_ADDR", "127.0.0.1".to_owned())];
    let more = more
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Group::builder()
        .timeout(timeout)
        .variables(variables.into_iter().chain(address).chain(more))
}

/// Runs `body` in a thread for each rank, and returns the results in their order.
fn ranks<T: Send>(size: usize, timeout: Duration, body: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let port = free_port();
    thread::scope(|scope| {
        let body = &body;
        let threads = (0..size).map(|rank| {
            scope.spawn(move || {
                // Rank 0 comes last: the others wait for it.
                thread::sleep(Duration::from_millis(if rank == 0 { 100 } else { 0 }));
                body(open(rank, size, port, timeout).unwrap())
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

pub const LONG: Duration = Duration::from_secs(60);

fn group_error(error: Error) -> GroupError {
    match error {
        Error::Group(error) => *error,
        other => panic!("not a group's error: {other}"),
    }
}

/// In some calls all ranks begin alike, and in some all give the same.
fn given(call: usize, rank: usize) -> Vec<u8> {
    let alike = vec![9; call % 3 * call];
    let own = vec![rank as u8; call % 2 * call * (rank + 1)];
    [alike, own].concat()
}

#[test]
fn all_ranks_get_what_each_gave_in_their_order() {
    let found = ranks(5, LONG, |group| {
        assert_eq!((group.size(), group.local_rank()), (5, group.rank()));
        (0..200)
            .map(|call| group.gather(&given(call, group.rank())).unwrap())
            .collect::<Vec<_>>()
    });
    for all in found {
        for (call, all) in all.into_iter().enumerate() {
            let expected = (0..5).map(|rank| given(call, rank));
            assert_eq!(all, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn shares_cover_all_samples_once() {
    let shares = ranks(3, LONG, |group| {
        (group.share(10), group.share(2), group.share(0))
    });
    assert_eq!(
        shares,
        [(0..3, 0..0, 0..0), (3..6, 0..1, 0..0), (6..10, 1..2, 0..0)]
    );
}

#[test]
fn ranks_that_did_not_join_are_named_on_each_that_did() {
    // Long enough for both to find each other on a machine that does much else.
    let (port, limit) = (free_port(), Duration::from_secs(3));
    let errors: Vec<_> = thread::scope(|scope| {
        let threads =
            [0, 2].map(|rank| scope.spawn(move || open(rank, 4, port, limit).unwrap_err()));
        threads.map(|thread| thread.join().unwrap()).into()
    });
    for error in errors {
        let text = "ranks 1 and 3 did not join within 3s: check that each of the 4 ranks";
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(error.is_group());
    }
}

#[test]
fn a_rank_that_finds_no_rank_0_says_where_it_looked() {
    let began = Instant::now();
    let error = open(1, 2, free_port(), Duration::from_millis(500)).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(10));
    let text = error.to_string();
    assert!(
        text.contains("rank 1 cannot join rank 0 at 127.0.0.1:")
            && text.contains("no connection within"),
        "{text}"
    );
}

#[test]
fn rank_0_says_where_it_cannot_listen() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = open(0, 2, port, LONG).unwrap_err().to_string();
    let expected = format!(
        "rank 0 cannot let the other ranks join at 127.0.0.1:{port}: it cannot listen there: "
    );
    assert!(
        text.starts_with(&expected) && text.contains("MASTER_PORT"),
        "{text}"
    );
}

#[test]
fn a_second_rank_of_one_number_and_a_stranger_are_refused() {
    let port = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(move || open(0, 3, port, LONG).unwrap());
        let (send, opened) = mpsc::channel();
        for _ in 0..2 {
            let send = send.clone();
            scope.spawn(move || send.send(open(1, 3, port, LONG)).unwrap());
        }
        // Whichever comes second is refused at once, while the other one waits for rank 2.
        let error = opened.recv().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("another process has joined as rank 1"),
            "{error}"
        );
        let error = open(1, 2, port, LONG).unwrap_err().to_string();
        assert!(
            error.contains("one of 2 ranks, rank 0 as one of 3"),
            "{error}"
        );
        // Neither noise nor silence of a stranger keeps the others out.
        let mut noisy = TcpStream::connect(("127.0.0.1", port)).unwrap();
        noisy
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let two = scope.spawn(move || open(2, 3, port, LONG).unwrap());
        let [first, two] = [first, two].map(|thread| thread.join().unwrap());
        let groups = [first, opened.recv().unwrap().unwrap(), two];
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| group.barrier().unwrap());
            }
        });
        drop(silent);
    });
}

#[test]
fn who_does_not_know_the_secret_learns_nothing_and_keeps_nobody_out() {
    let port = free_port();
    let right = [
        ("HEADROOM_SECRET", "of-the-job"),
        ("TORCHELASTIC_RUN_ID", "run-17"),
    ];
    thread::scope(|scope| {
        let first = scope.spawn(move || open_with(0, 2, port, LONG, &right).unwrap());
        for wrong in [
            vec![],
            vec![right[0]],
            vec![("HEADROOM_SECRET", "of-the-jab"), right[1]],
            vec![("HEADROOM_SECRET", "of-the-job-"), right[1]],
        ] {
            let error = open_with(1, 2, port, LONG, &wrong).unwrap_err().to_string();
            assert!(error.contains("HEADROOM_SECRET differs"), "{error}");
            assert!(
                !error.contains("of-the") && !error.contains("run-17"),
                "{error}"
            );
        }
        let second = open_with(1, 2, port, LONG, &right).unwrap();
        let first = first.join().unwrap();
        let other = scope.spawn(move || first.barrier().unwrap());
        second.barrier().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn ranks_may_be_started_again_while_others_join() {
    let (port, short) = (free_port(), Duration::from_millis(300));
    thread::scope(|scope| {
        // A rank 0 that ends before all have come.
        let ending = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let one = scope.spawn(move || open(1, 2, port, LONG).unwrap());
        drop(ending.accept().unwrap());
        drop(ending);
        let first = open(0, 2, port, LONG).unwrap();
        let other = scope.spawn(move || one.join().unwrap().barrier().unwrap());
        first.barrier().unwrap();
        other.join().unwrap();
    });
    // A rank 1 that gives up while rank 2 is awaited.
    let port = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(move || open(0, 3, port, LONG).unwrap());
        open(1, 3, port, short).unwrap_err();
        let one = scope.spawn(move || open(1, 3, port, LONG).unwrap());
        let two = open(2, 3, port, LONG).unwrap();
        let groups = [first.join().unwrap(), one.join().unwrap(), two];
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| group.barrier().unwrap());
            }
        });
    });
}

/// A machine that is gone without a word is noticed, also while nothing is sent to it.
#[cfg(target_os = "linux")]
#[test]
fn both_ends_of_a_connection_ask_whether_the_other_is_there() {
    let port = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(move || open(0, 2, port, LONG).unwrap());
        let _groups = [open(1, 2, port, LONG).unwrap(), first.join().unwrap()];
        // Each end's timer: which one runs, and the hundredths of a second that it has left.
        let timers = || -> Vec<(u8, u64)> {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let own = format!(":{port:04X}");
            let rows = table
                .lines()
                .map(|row| Vec::from_iter(row.split_whitespace()));
            let rows =
                rows.filter(|row| row[3] == "01" && row[1..3].iter().any(|it| it.ends_with(&own)));
            let timers = rows.map(|row| {
                let (kind, left) = row[5].split_once(':').unwrap();
                (
                    kind.parse().unwrap(),
                    u64::from_str_radix(left, 16).unwrap(),
                )
            });
            timers.collect()
        };
        const KEEP_ALIVE: u8 = 2;
        let mut found = timers();
        let began = Instant::now();
        // Until what was sent has arrived, another timer runs.
        while found.iter().any(|(kind, _)| *kind == 1) && began.elapsed() < LONG / 6 {
            thread::sleep(Duration::from_millis(50));
            found = timers();
        }
        assert_eq!(found.len(), 2, "{found:?}");
        for (kind, left) in found {
            assert!(kind == KEEP_ALIVE && left <= 1500, "{kind}: {left}");
        }
    });
}

/// Joins a rank 0 that this test plays, which says of its machine what `other` makes of what rank 1 says of its own. Returns rank 1's number on its
/// machine, which no launcher has told it.
#[cfg(target_os = "linux")]
fn local_rank_beside(other: impl Fn(&str) -> String) -> usize {
    use std::io::Read;

    fn exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let join = move || {
        let variables = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", port.as_str()),
        ];
        let group = Group::builder().timeout(LONG).variables(variables);
        group.open().unwrap().local_rank()
    };
    thread::scope(|scope| {
        let joined = scope.spawn(join);
        let (mut stream, _) = listener.accept().unwrap();
        // What each side says first: a greeting, the length of a message, and the message.
        let greeting = exactly(&mut stream, 16);
        let length = exactly(&mut stream, 2);
        exactly(
            &mut stream,
            u16::from_le_bytes([length[0], length[1]]).into(),
        );
        let welcome = b"{\"Welcome\":null}";
        let length = (welcome.len() as u16).to_le_bytes();
        let reply = [&greeting, &length[..], welcome].concat();
        stream.write_all(&reply).unwrap();
        // Its first call, and the answer: the length of a head, the head, and the bytes whose lengths the head has, first of those with which all
        // parts begin.
        let length = exactly(&mut stream, 4).try_into().unwrap();
        let head = exactly(&mut stream, u32::from_le_bytes(length) as usize);
        let (call, beginning, lengths): (serde_json::Value, usize, [usize; 1]) =
            serde_json::from_slice(&head).unwrap();
        assert_eq!(beginning, 0);
        assert_eq!(call["Call"]["calls"], serde_json::json!([["open", 1]]));
        let own = String::from_utf8(exactly(&mut stream, lengths[0])).unwrap();
        let machines = [other(&own), own];
        let answer = serde_json::json!({"Answer": {"number": call["Call"]["number"]}});
        let head = serde_json::to_vec(&(answer, 0, [0, 1].map(|at| machines[at].len()))).unwrap();
        let length = (head.len() as u32).to_le_bytes();
        let answer = [&length[..], &head, machines.concat().as_bytes()].concat();
        stream.write_all(&answer).unwrap();
        joined.join().unwrap()
    })
}

/// Machines may have one name. The containers of one machine have one boot id, and each may see another GPU as the first.
#[cfg(target_os = "linux")]
#[test]
fn ranks_of_one_machine_have_its_name_and_its_boot_id() {
    assert_eq!(local_rank_beside(str::to_owned), 1);
    for file in ["random/boot_id", "hostname"] {
        let known = std::fs::read_to_string(format!("/proc/sys/kernel/{file}")).unwrap();
        let beside = local_rank_beside(|own| own.replacen(known.trim(), "another", 1));
        assert_eq!(beside, 0, "{file}");
    }
}

#[test]
fn a_rank_that_is_late_or_silent_is_named_without_an_errno() {
    let port = free_port();
    // Something listens and says nothing.
    let silent = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let error = open(1, 2, port, Duration::from_millis(300))
        .unwrap_err()
        .to_string();
    assert!(error.contains("said nothing within 300ms"), "{error}");
    assert!(!error.contains("os error"), "{error}");
    drop(silent);
}

#[test]
fn a_rank_that_leaves_or_is_late_is_named_and_the_group_has_ended() {
    // Who leaves is seen at once and not after the timeout, of which a tenth is time enough on a slow machine.
    let errors = ranks(3, LONG * 10, |group| {
        group.barrier().unwrap();
        match group.rank() {
            1 => None, // leaves
            _ => {
                let began = Instant::now();
                let error = group_error(group.barrier().unwrap_err());
                assert!(began.elapsed() < LONG);
                assert!(matches!(
                    group_error(group.barrier().unwrap_err()),
                    GroupError::Broken(text) if text.contains("has failed before")
                ));
                Some(error)
            }
        }
    });
    for error in errors.into_iter().flatten() {
        assert!(
            matches!(&error, GroupError::PeerLost { ranks, .. } if ranks == &[1]),
            "{error}"
        );
        assert!(error.to_string().contains("left the group"), "{error}");
    }
    let errors = ranks(3, Duration::from_secs(2), |group| {
        // Rank 0 tells the others that it waits for rank 2, so that they do not give it up.
        thread::sleep(Duration::from_millis([0, 400, 6000][group.rank()]));
        group.barrier()
    });
    assert!(
        errors.iter().take(2).all(|done| match done {
            Err(Error::Group(error)) =>
                matches!(&**error, GroupError::PeerLost { ranks, .. } if ranks == &[2]),
            _ => false,
        }),
        "{errors:?}"
    );
}

/// Rank 1 would give rank 0 up 5.5 s after its call, the timeout and the 1.5 s of grace, if rank 0 did not tell it in time that it waits too.
#[test]
fn a_late_rank_0_is_not_taken_for_the_missing_one() {
    let all_done = Barrier::new(3);
    let texts = ranks(3, Duration::from_secs(4), |group| {
        if group.rank() == 0 {
            thread::sleep(Duration::from_millis(4700));
        }
        let text = (group.rank() < 2).then(|| group.barrier().unwrap_err().to_string());
        all_done.wait(); // rank 2 neither calls nor leaves
        text
    });
    for text in texts.into_iter().flatten() {
        assert!(text.starts_with("rank 2 lost in `barrier`"), "{text}");
    }
}

/// A number, a map whose keys are no strings, and a value that cannot be sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Scores {
    loss: f64,
    by_class: BTreeMap<(u8, i64), Option<f32>>,
    #[serde(serialize_with = "unless_13")]
    id: usize,
}

fn unless_13<S: Serializer>(id: &usize, to: S) -> std::result::Result<S::Ok, S::Error> {
    match id {
        13 => Err(S::Error::custom("no 13 on purpose")),
        id => id.serialize(to),
    }
}

#[test]
fn collected_results_keep_every_number() {
    let losses = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -0.,
        0.1 + 0.2,
        5e-324,
    ];
    let found = ranks(2, LONG, |group| {
        let own = losses.map(|loss| {
            let class = (group.rank() as u8, i64::MIN);
            let by_class = [(class, Some(f32::NAN)), ((9, -1), None)].into();
            let id = group.rank();
            Scores { loss, by_class, id }
        });
        group.collect(Ok(own.to_vec())).unwrap()
    });
    for all in found {
        assert_eq!(all.len(), 2 * losses.len());
        for (index, scores) in all.iter().enumerate() {
            let (rank, loss) = (index / losses.len(), losses[index % losses.len()]);
            assert_eq!((scores.id, scores.loss.to_bits()), (rank, loss.to_bits()));
            let by_class = &scores.by_class;
            assert!(by_class[&(rank as u8, i64::MIN)].is_some_and(f32::is_nan));
            assert_eq!((by_class.len(), by_class[&(9, -1)]), (2, None));
        }
    }
}

#[test]
fn results_that_cannot_be_sent_or_read_name_the_rank_and_the_group_goes_on() {
    let texts = ranks(2, LONG, |group| {
        let id = if group.rank() == 1 { 13 } else { 0 };
        let (loss, by_class) = (0., BTreeMap::new());
        let unsent = group.collect(Ok(vec![Scores { loss, by_class, id }]));
        // Rank 1 is another program.
        let unread = match group.rank() {
            0 => group.collect(Ok(vec![1u64])).unwrap_err(),
            _ => group.collect(Ok(vec!["one".to_owned()])).unwrap_err(),
        };
        group.barrier().unwrap();
        [unsent.unwrap_err().to_string(), unread.to_string()]
    });
    let expected = "rank 1 failed in `collect`: ";
    let [unsent, unread] = &texts[0];
    assert!(
        unsent.starts_with(expected) && unsent.contains("no 13 on purpose"),
        "{unsent}"
    );
    assert!(unread.starts_with(expected), "{unread}");
    let [unsent, unread] = &texts[1];
    let reason = "the results cannot be serialized: no 13 on purpose";
    assert!(unsent.starts_with(reason), "{unsent}");
    assert!(
        unread.starts_with("rank 0 failed in `collect`: its results cannot be read"),
        "{unread}"
    );
}

#[test]
fn a_panic_ends_the_group_at_once() {
    let began = Instant::now();
    let port = free_port();
    thread::scope(|scope| {
        let panicking = scope.spawn(move || {
            let _group = open(1, 3, port, LONG).unwrap();
            panic!("on purpose");
        });
        // The panic may come while another rank still opens its group.
        let others = [0, 2].map(|rank| {
            scope.spawn(move || open(rank, 3, port, LONG).and_then(|group| group.barrier()))
        });
        assert!(panicking.join().is_err());
        for other in others {
            let error = group_error(other.join().unwrap().unwrap_err());
            assert!(
                matches!(&error, GroupError::PeerLost { ranks, .. } if ranks == &[1]),
                "{error}"
            );
        }
    });
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn a_trainer_needs_an_engine() {
    let errors = ranks(2, LONG, |group| {
        let varmap = VarMap::new();
        linear(
            3,
            2,
            VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu),
        )
        .unwrap();
        let sgd = Sgd::builder(&varmap).learning_rate(0.1).build().unwrap();
        AdaptiveTrainer::builder(sgd)
            .group(&group)
            .build()
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains("no engine can exchange tensors on the CPU between 2 ranks")
                && error.contains("mpirun"),
            "{error}"
        );
    }
}

/// What the launcher's variables make of this process, without meeting others.
fn refused(variables: &[(&str, &str)]) -> String {
    let variables = variables
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    let group = Group::builder()
        .timeout(Duration::from_millis(200))
        .variables(variables)
        .open();
    let error = group.expect_err("variables that cannot be");
    assert!(error.is_group(), "{error}");
    error.to_string()
}

#[test]
fn variables_that_are_wrong_partial_or_contradict_each_other_are_quoted() {
    let address = [("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
    for (variables, parts) in [
        (&[("RANK", "1")][..], &["RANK=1", "without WORLD_SIZE"][..]),
        (&[("WORLD_SIZE", "2")], &["WORLD_SIZE=2", "without RANK"]),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            &["RANK=2, WORLD_SIZE=2", "counted from 0"],
        ),
        (&[("RANK", "one"), ("WORLD_SIZE", "2")], &["RANK=one"]),
        (&[("RANK", "-1"), ("WORLD_SIZE", "2")], &["RANK=-1"]),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2")],
            &["RANK=0, WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT"],
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "2")],
            &["LOCAL_RANK=2"],
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")],
            &["MASTER_ADDR=a", "without MASTER_PORT"],
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "5")],
            &["MASTER_PORT=5", "without MASTER_ADDR"],
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                address[0],
                ("MASTER_PORT", "70000"),
            ],
            &["MASTER_PORT=70000"],
        ),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                address[0],
                address[1],
            ],
            &["contradict", "OMPI_COMM_WORLD_RANK=1", "RANK=0"],
        ),
        (
            &[
                ("SLURM_PROCID", "1"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_NODELIST", "["),
            ],
            &["SLURM_STEP_NODELIST=["],
        ),
        (
            &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
            &["rank 1 of 2"],
        ),
    ] {
        let text = refused(variables);
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{variables:?}: {text}"
        );
    }
}

#[test]
fn without_a_launcher_a_process_is_alone() {
    let none: [(String, String); 0] = [];
    let group = Group::builder().variables(none).open().unwrap();
    assert_eq!((group.rank(), group.size(), group.local_rank()), (0, 1, 0));
    assert_eq!(group.gather(b"x").unwrap(), [b"x"]);
    // A process of torchrun's, which `srun` or `mpirun` started with other ranks: MPI's variables are those of torchrun itself.
    let port = free_port().to_string();
    let alone = [
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("TORCHELASTIC_RUN_ID", "x"),
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
    ];
    let group = Group::builder().timeout(Duration::MAX).variables(
        alone
            .into_iter()
            .chain([("MASTER_ADDR", "localhost"), ("MASTER_PORT", &port)]),
    );
    assert_eq!(group.open().unwrap().size(), 1);
    // In the script of a job, which `srun` has not started.
    let group = Group::builder().variables([
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("WORLD_SIZE", ""),
    ]);
    assert_eq!(group.open().unwrap().size(), 1);
}
