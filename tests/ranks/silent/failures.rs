//! Ranks that fail, are slow or are disturbed: an error by name on every other rank within the timeout, or the same bits as without it.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, exit, id};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use candle_headroom::Timeline;
use candle_headroom::checkpoint::{Checkpoints, Saving};
use candle_headroom::distributed::Group;
use candle_headroom::error::{Error, GroupError};
use candle_headroom::testing::{FileFaults, FileOperation};

use super::{found, launch};
use crate::launch::is_rank;
use crate::run::{Run, folder};

/// More than any case takes, also on a busy machine.
const HANG: Duration = Duration::from_secs(40);
/// What is at once, on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// Survivors end by themselves, without the end of MPI.
const RECOVERY: &[&str] = &["--enable-recovery"];

const fn seconds(seconds: f64) -> Duration {
    Duration::from_millis((seconds * 1000.) as u64)
}

/// This rank, which the launcher has told.
fn told(name: &str) -> usize {
    let text = std::env::var(name).expect("a launcher");
    text.parse().expect("a number")
}

/// Runs `body` in each rank, which has to end in time.
fn ranks(name: &str, survivors: fn(usize) -> usize, body: impl FnOnce(usize, usize) -> bool) {
    if !is_rank() {
        return launch(name, RECOVERY, survivors);
    }
    let (rank, size) = (told("OMPI_COMM_WORLD_RANK"), told("OMPI_COMM_WORLD_SIZE"));
    thread::spawn(move || {
        sleep(HANG);
        println!("rank {rank} hangs");
        found(rank, true);
        exit(0)
    });
    found(rank, body(rank, size));
}

fn open(timeout: Duration) -> Group {
    let group = Group::builder().timeout(timeout).open();
    group.expect("a group")
}

/// Whether the error names this rank as lost or missing.
fn names(error: &Error, rank: usize) -> bool {
    match error {
        Error::Group(error) => match &**error {
            GroupError::PeerLost { ranks, .. } => *ranks == [rank],
            _ => false,
        },
        error => match error.to_string().split_once(" did not join within ") {
            Some((ranks, _)) => {
                let mut numbers = ranks.split(|c: char| !c.is_ascii_digit());
                error.is_group() && numbers.any(|number| number == rank.to_string())
            }
            None => false,
        },
    }
}

fn values(run: &Run) -> Vec<u64> {
    let values = run.model.values();
    values.into_iter().map(f64::to_bits).collect()
}

/// The values after some updates that nothing disturbs.
fn undisturbed(group: &Group, updates: usize) -> Vec<u64> {
    let mut run = Run::new(group, 7);
    for _ in 0..updates {
        run.step().expect("a step");
    }
    values(&run)
}

/// The last rank is killed in `MPI_Init`, before rank 0 has come there.
#[test]
fn a_rank_that_is_killed_while_ranks_join_is_named() {
    const TIMEOUT: Duration = seconds(2.);
    ranks(
        "killed while joining",
        |ranks| ranks - 1,
        |rank, size| {
            let job = std::env::var("PMIX_NAMESPACE").expect("a job");
            let killed = std::env::temp_dir().join(format!("headroom-killed-{job}"));
            if rank == size - 1 {
                let killed = killed.clone();
                thread::spawn(move || {
                    sleep(seconds(0.5));
                    fs::write(killed, "").expect("a file");
                    // SAFETY: the call takes two numbers.
                    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }
                });
            }
            if rank == 0 {
                while fs::remove_file(&killed).is_err() {
                    sleep(seconds(0.02));
                }
                sleep(seconds(0.1));
            }
            let began = Instant::now();
            let error = Group::builder().timeout(TIMEOUT).open().map(drop);
            let error = error.expect_err("a rank is missing");
            !names(&error, size - 1) || began.elapsed() > TIMEOUT * 3
        },
    );
}

/// All ranks stop for longer than the timeout, and go on.
#[test]
fn a_job_that_is_suspended_as_a_whole_goes_on() {
    const TIMEOUT: Duration = seconds(2.);
    const UPDATES: usize = 16;
    ranks(
        "suspended",
        |ranks| ranks,
        |rank, _| {
            let group = open(TIMEOUT);
            let expected = undisturbed(&group, UPDATES);
            let processes = group.collect(Ok(vec![id()])).expect("the processes");
            let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
            let began = Instant::now();
            let signals = (rank == 0).then(|| {
                let all = processes.join(" ");
                // One after another, as a scheduler does.
                let stop = format!(
                    "sleep 0.3; for p in {all}; do kill -STOP $p; sleep 0.05; done; sleep 3.5; "
                );
                let go_on = format!("for p in {all}; do kill -CONT $p; sleep 0.05; done");
                let child = Command::new("sh").args(["-c", &(stop + &go_on)]).spawn();
                child.expect("a shell")
            });
            let mut run = Run::new(&group, 7);
            for _ in 0..UPDATES {
                let done = run.step_with(|loss| {
                    sleep(seconds(0.03));
                    Ok(loss)
                });
                done.expect("a step");
            }
            if let Some(mut child) = signals {
                assert!(child.wait().expect("a shell").success());
            }
            group.barrier().expect("all");
            assert!(began.elapsed() > seconds(3.5), "nobody was suspended");
            values(&run) != expected
        },
    );
}

/// Rank 0 writes in the background, and all wait for it at the end.
#[test]
fn a_slow_disk_is_waited_for_at_the_end() {
    const TIMEOUT: Duration = seconds(2.);
    ranks(
        "slow end",
        |ranks| ranks,
        |_, _| {
            let group = open(TIMEOUT);
            let expected = undisturbed(&group, 2);
            let (_made, folder) = folder(&group);
            let mut run = Run::new(&group, 7);
            let checkpoints = Checkpoints::builder(&folder).every_updates(2);
            let mut checkpoints = checkpoints.group(&group).open().expect("a folder");
            let slow = FileFaults::in_folder(&folder).only(FileOperation::Sync);
            let armed = slow.at(0).delaying(seconds(4.8)).arm();
            assert!(matches!(run.on(&mut checkpoints), Saving::NotDue));
            let saved = run.on(&mut checkpoints);
            assert!(matches!(saved, Saving::Started), "{saved:?}");
            checkpoints.finish().expect("an end");
            assert_eq!(armed.fired(), usize::from(group.rank() == 0));
            group.barrier().expect("the group goes on");
            values(&run) != expected
        },
    );
}

/// Rank 0 verifies a checkpoint, and loads a tensor of it, for longer than the others would wait for a rank.
#[test]
fn a_slow_disk_is_waited_for_while_it_is_read() {
    const TIMEOUT: Duration = seconds(2.);
    ranks(
        "slow reads",
        |ranks| ranks,
        |_, _| {
            let group = open(TIMEOUT);
            let expected = undisturbed(&group, 2);
            let (_made, folder) = folder(&group);
            let open = || {
                let checkpoints = Checkpoints::builder(&folder).in_foreground();
                checkpoints.group(&group).open().expect("a folder")
            };
            let mut run = Run::new(&group, 7);
            run.step().expect("a step");
            let mut checkpoints = open();
            checkpoints.save_now(&run.trainer).expect("a checkpoint");
            let slow = |first| {
                let reads = FileFaults::in_folder(&folder).only(FileOperation::Read);
                reads.at(first).delaying(seconds(4.8)).arm()
            };
            // What was saved before is verified.
            let armed = slow(0);
            checkpoints.save_now(&run.trainer).expect("the same");
            let verified = armed.fired();
            drop(armed);
            checkpoints.finish().expect("an end");

            // The first read verifies, and the last one loads.
            let mut resumed = Run::new(&group, 100 + group.rank() as u64);
            let armed = slow(0);
            let loaded = open()
                .resume_trainer(&mut resumed.trainer)
                .expect("a checkpoint");
            assert_eq!(loaded.expect("a checkpoint").step, 1);
            let (first, reads) = (armed.fired(), armed.operations());
            drop(armed);
            let mut resumed = Run::new(&group, 100 + group.rank() as u64);
            let armed = slow(reads.saturating_sub(1));
            let loaded = open()
                .resume_trainer(&mut resumed.trainer)
                .expect("a checkpoint");
            assert_eq!(loaded.expect("a checkpoint").step, 1);
            let fired = usize::from(group.rank() == 0);
            assert_eq!([verified, first, armed.fired()], [fired; 3]);
            drop(armed);
            resumed.step().expect("the group goes on");
            values(&resumed) != expected
        },
    );
}

/// Rank 0 writes the page of all ranks, and the others wait for it in their next call.
#[test]
fn a_slow_page_is_waited_for() {
    const TIMEOUT: Duration = seconds(2.);
    ranks(
        "slow page",
        |ranks| ranks,
        |rank, _| {
            let group = open(TIMEOUT);
            let (_made, folder) = folder(&group);
            let page = folder.with_file_name("page");
            let slow = FileFaults::in_folder(folder.with_file_name("page.html"));
            let slow = slow.only(FileOperation::Write).at(0);
            let armed = slow.delaying(seconds(4.8)).arm();
            let saved = Timeline::new().save_all(&group, "a run", &page);
            saved.expect("a page");
            group.barrier().expect("the group goes on");
            assert_eq!(armed.fired(), usize::from(rank == 0));
            group.barrier().expect("all");
            false
        },
    );
}

/// A link to a folder of somebody else's lies in the run's folder, under the name of a checkpoint that was not finished.
#[test]
fn nothing_is_deleted_through_a_link_while_ranks_save() {
    ranks(
        "link",
        |ranks| ranks,
        |_, _| {
            let group = open(HANG);
            let expected = undisturbed(&group, 2);
            let (made, folder) = folder(&group);
            let foreign = folder.with_file_name("foreign");
            if made.is_some() {
                fs::create_dir_all(&folder).expect("a folder");
                fs::create_dir(&foreign).expect("a folder");
                fs::write(foreign.join("thesis"), "years").expect("a file");
                for name in ["step-1.partial-7", "step-000000002.partial-7"] {
                    std::os::unix::fs::symlink(&foreign, folder.join(name)).expect("a link");
                }
            }
            group.barrier().expect("the links");
            let mut run = Run::new(&group, 7);
            let checkpoints = Checkpoints::builder(&folder)
                .every_updates(1)
                .keep_last(1)
                .in_foreground();
            let mut checkpoints = checkpoints.group(&group).open().expect("a folder");
            for _ in 0..2 {
                let saved = run.on(&mut checkpoints);
                assert!(matches!(saved, Saving::Saved(_)), "{saved:?}");
            }
            group.barrier().expect("all");
            let is_there = fs::read_to_string(foreign.join("thesis")).is_ok_and(|it| it == "years");
            group.barrier().expect("all have looked");
            !is_there || values(&run) != expected
        },
    );
}

/// Connections that say nothing, something else, or the right thing very slowly, come before the ranks.
#[test]
fn strangers_on_the_port_keep_nobody_waiting() {
    ranks(
        "strangers",
        |ranks| ranks,
        |rank, size| {
            let group = open(HANG);
            let free = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
            let port = free.local_addr().expect("a port").port();
            drop(free);
            let port = group.collect(Ok(vec![port])).expect("ports")[0];
            let variables = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", size.to_string()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("HEADROOM_SECRET", "of the job".to_owned()),
            ];
            let met = move || {
                let group = Group::builder().timeout(HANG).variables(variables).open();
                group.expect("a group, whoever else is there")
            };
            let began = Instant::now();
            let second = match rank {
                0 => {
                    let met = thread::spawn(met);
                    let ended = strangers(port);
                    group.barrier().expect("the strangers are there");
                    let second = met.join().expect("no panic");
                    drop(ended);
                    second
                }
                _ => {
                    group.barrier().expect("the strangers are there");
                    met()
                }
            };
            let own = vec![(rank as f64 + 0.1).sin().to_bits()];
            let all = group.collect(Ok(own.clone())).expect("values");
            let too = second.collect(Ok(own)).expect("values");
            began.elapsed() > SOON || all != too
        },
    );
}

/// Connects strangers. They stay until the value is dropped.
fn strangers(port: u16) -> mpsc::Sender<()> {
    const NOISE: [&[u8]; 3] = [b"", b"GET / HTTP/1.1\r\n\r\n", b"headroom group 4"];
    let connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => sleep(seconds(0.01)),
        }
    };
    let mut streams: Vec<_> = (0..12).map(|_| connect()).collect();
    for (stream, noise) in streams.iter_mut().zip(NOISE.iter().cycle()) {
        stream.write_all(noise).expect("rank 0 listens");
    }
    let mut slow = connect();
    let (end, ended) = mpsc::channel();
    thread::spawn(move || {
        let mut letters = b"headroom group 4\xff\xff".iter().chain([&b' '; 400]);
        while let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(seconds(0.1)) {
            let _ = letters.next().map(|letter| slow.write_all(&[*letter]));
        }
        drop(streams);
    });
    end
}
