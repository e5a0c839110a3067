//! What the timeline, the incident log and the monitor say of several ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use candle_core::DType;
use candle_headroom::batch::{EventKind, Halving, Observer, TrainingEvent};
use candle_headroom::distributed::Group;
use candle_headroom::error::{Error, GroupError, Phase};
use candle_headroom::incident::{IncidentKind, IncidentLog, Incidents};
use candle_headroom::monitor::FileSink;
use candle_headroom::testing::Faults;
use candle_headroom::timeline::SavedTrace;
use candle_headroom::{AdaptiveTrainer, Monitor, Sgd, Timeline};
use serde_json::Value;

use crate::launch::{is_rank, mpirun, open, text, together};
use crate::model::{Model, cut, data};

const STEPS: usize = 12;
/// Much longer than a step of this model, also on a busy machine.
const NAP: Duration = Duration::from_millis(150);
const SLOW: usize = 1;

/// What an event says of its rank, the phase that ended, and whether it succeeded.
type Ended = (Option<usize>, Phase, bool);

#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Vec<Ended>>>);

impl Observer for Seen {
    fn observe(&self, event: &TrainingEvent<'_>) {
        if let EventKind::PhaseEnded {
            phase, succeeded, ..
        } = event.kind
        {
            let mut seen = self.0.lock().expect("the list");
            seen.push((event.rank, phase, succeeded));
        }
    }
}

/// The same folder on all ranks, without files.
fn folder(group: &Group, name: &str) -> PathBuf {
    let parents = group.gather(&std::process::id().to_le_bytes());
    let first = parents.expect("the process numbers").swap_remove(0);
    let number = u32::from_le_bytes(first.try_into().expect("four bytes"));
    let folder = std::env::temp_dir().join(format!("headroom-{name}-{number}"));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn trainer(model: &Model, group: &Group, timeline: &Timeline) -> AdaptiveTrainer<Sgd> {
    let sgd = Sgd::builder(&model.varmap).learning_rate(0.1).build();
    let builder = AdaptiveTrainer::builder(sgd.expect("an optimizer")).group(group);
    let policy = Halving::builder().start(4).build().expect("a policy");
    let builder = builder.policy(policy).observer(timeline.clone());
    builder.build().expect("a trainer")
}

fn read_trace(path: &Path) -> Vec<Value> {
    let bytes = fs::read(path).expect("the trace");
    let trace: Value = serde_json::from_slice(&bytes).expect("JSON");
    trace["traceEvents"].as_array().expect("events").clone()
}

fn read_page(path: &Path) -> Value {
    let page = fs::read_to_string(path).expect("the page");
    let data = page.split("id=\"data\">").nth(1).expect("the data");
    let data = data.split("</script>").next().expect("its end");
    serde_json::from_str(data).expect("JSON")
}

fn close(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.max(b)
}

/// One rank sleeps in each step, and memory runs out once on another: page, trace, summary and reports say so.
#[test]
fn the_slow_rank_is_named() {
    together(3, |group| {
        // Records that begin at different times still have to fit together.
        sleep(Duration::from_millis(150 * group.rank() as u64));
        let timeline = Timeline::new();
        group.barrier().expect("all");
        let model = Model::new(&[3, 5, 2], DType::F32, 7);
        let mut trainer = trainer(&model, group, &timeline);
        let batch = data(4, (3, 2), DType::F32, group.rank() as u64);
        let mut lines = Vec::new();
        for step in 0..STEPS {
            let fails = group.rank() == 2 && step == 5;
            let armed = fails.then(|| Faults::in_phase(Phase::Backward, 0).arm());
            let report = trainer.step(&batch, |(x, y), micro| {
                if group.rank() == SLOW && micro.index == 0 {
                    sleep(NAP);
                }
                model.loss(&x, &y)
            });
            drop(armed);
            lines.push(report.expect("a step").to_string());
        }
        let path = folder(group, "slow").join("run");
        let times = timeline.save_all(group, "three ranks", &path);
        let times = times.expect("the record of all");

        // Every rank knows.
        let (slowest, share) = times.slowest().expect("a slow rank");
        assert_eq!(slowest, SLOW);
        assert!(share > 0.5, "{share}");
        let sentence = times.to_string();
        let expected = "rank 1 is the slowest: the others waited ";
        assert!(sentence.starts_with(expected), "{sentence}");
        if group.rank() != SLOW {
            let told = |line: &&String| line.contains("ms waiting for rank 1");
            assert!(lines.iter().filter(told).count() >= STEPS - 2, "{lines:?}");
        }
        let seconds = |of: fn(&candle_headroom::timeline::RankTime) -> Duration| -> Vec<f64> {
            times.ranks.iter().map(|it| of(it).as_secs_f64()).collect()
        };
        let (computing, waiting) = (seconds(|it| it.computing), seconds(|it| it.waiting));
        let (reducing, total) = (seconds(|it| it.reducing), seconds(|it| it.total));
        assert!(computing[SLOW] >= STEPS as f64 * NAP.as_secs_f64());
        // What one rank computes longer is what the other waits longer: nothing else happens on these two. The third also recovers from
        // its exhaustion.
        let longer = computing[SLOW] - computing[0];
        let waited = waiting[0] - waiting[SLOW];
        assert!(close(longer, waited, 0.2), "{longer} {waited}, {times:?}");
        for rank in [0, SLOW] {
            let parts = computing[rank] + waiting[rank] + reducing[rank];
            assert!(close(parts, total[rank], 0.2), "{times:?}");
        }
        let waited_for: Vec<_> = times.waited_for.iter().map(Duration::as_secs_f64).collect();
        // In the step in which memory runs out, rank 2 may be later.
        let least = (STEPS - 2) as f64 * NAP.as_secs_f64();
        assert!(waited_for[SLOW] > least, "{waited_for:?}");
        let exhaustions: Vec<_> = times.ranks.iter().map(|it| it.exhaustions).collect();
        assert_eq!(exhaustions, [0, 0, 1]);

        group.barrier().expect("the files of rank 0");
        if group.rank() == 0 {
            check_trace(&read_trace(&path.with_extension("json")), group);
            let page = read_page(&path.with_extension("html"));
            check_page(&page, &sentence);
            // The trace tells as much of all ranks.
            let saved = SavedTrace::read(path.with_extension("json")).expect("a trace");
            let again = path.with_extension("again.html");
            saved.save_page("again", &again).expect("a page");
            assert_eq!(read_page(&again)["ranks"], page["ranks"]);
            fs::remove_file(again).expect("the page");
            let folder = path.parent().expect("the folder");
            assert_eq!(fs::read_dir(folder).expect("the folder").count(), 2);
            match std::env::var_os("HEADROOM_KEEP") {
                Some(_) => println!("kept: {}", folder.display()),
                None => fs::remove_dir_all(folder).expect("the folder"),
            }
        }
    });
}

fn check_trace(events: &[Value], group: &Group) {
    let mut names = BTreeMap::new();
    let mut ends: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let mut waits: BTreeMap<u64, f64> = BTreeMap::new();
    for event in events {
        let process = event["pid"].as_u64().expect("a number");
        let at = event["ts"].as_f64().expect("a time");
        assert!(at >= 0., "{event}");
        if event["name"] == "process_name" {
            names.insert(process, event["args"]["name"].clone());
        }
        if event["cat"] == "exchange" {
            let ended = at + event["dur"].as_f64().expect("a duration");
            match event["name"].as_str().expect("a name") {
                "reduce" => ends.entry(process).or_default().push(ended),
                "wait" => *waits.entry(process).or_default() += ended - at,
                other => panic!("{other}"),
            }
        }
    }
    let expected = group.hosts().iter().enumerate().map(|(rank, host)| {
        let name = format!("rank {rank} on {host}");
        (rank as u64 + 1, Value::from(name))
    });
    assert_eq!(names, expected.collect());
    // The exchanges end together, though the records began 150 ms apart: on one machine within the time that a process waits for a core.
    for (process, times) in &ends {
        assert_eq!(times.len(), STEPS);
        let mut apart: Vec<_> = times.iter().zip(&ends[&1]).map(|(a, b)| a - b).collect();
        apart.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
        assert!(apart[STEPS / 2].abs() < 20e3, "{process}: {apart:?}");
    }
    let nap = STEPS as f64 * NAP.as_micros() as f64;
    assert!(waits[&1] > 0.8 * nap && waits[&3] > 0.8 * nap, "{waits:?}");
}

fn check_page(page: &Value, sentence: &str) {
    assert_eq!(page["ranks"]["sentence"], sentence);
    let lanes = page["ranks"]["lanes"].as_array().expect("lanes");
    assert_eq!(lanes.len(), 3);
    for (rank, lane) in lanes.iter().enumerate() {
        let list = |name: &str| -> Vec<f64> {
            let list = lane[name].as_array().expect("a list").iter();
            list.map(|value| value.as_f64().expect("a number"))
                .collect()
        };
        let (began, ended) = (list("began"), list("ended"));
        assert_eq!(ended.len(), STEPS);
        assert_eq!(list("retries").iter().sum::<f64>(), f64::from(rank == 2));
        let parts = ["loaded", "computed", "waited", "reduced"].map(list);
        for at in 0..STEPS {
            let parts: f64 = parts.iter().map(|part| part[at]).sum();
            // Each of five numbers is rounded to a microsecond.
            assert!(parts <= ended[at] - began[at] + 5., "{lane}");
        }
    }
    let phases = page["totals"]["phases"].as_array().expect("phases");
    for name in ["wait", "reduce", "optimizer"] {
        let phase = phases.iter().find(|phase| phase["phase"] == name);
        assert_eq!(phase.expect(name)["count"], STEPS);
    }
}

/// With a sharded state each update has a second exchange, and one rank has no samples in every other update: the records still have one
/// row for each.
#[test]
fn an_update_is_one_row_on_all_ranks() {
    together(2, |group| {
        let timeline = Timeline::new();
        let model = Model::new(&[3, 5, 2], DType::F32, 7);
        let sgd = Sgd::builder(&model.varmap).learning_rate(0.1).sharded();
        let mut trainer = AdaptiveTrainer::builder(sgd.build().expect("an optimizer"))
            .group(group)
            .observer(timeline.clone())
            .build()
            .expect("a trainer");
        let batch = data(4, (3, 2), DType::F32, 0);
        for step in 0..STEPS {
            let own = if group.rank() == 1 && step % 2 == 1 {
                0..0
            } else {
                0..4
            };
            let report = trainer.step(&cut(&batch, own), |(x, y), _| model.loss(&x, &y));
            let exchange = report.expect("a step").exchange.expect("of a group");
            assert!(exchange.reduced > Duration::ZERO);
            assert!(exchange.computed() <= exchange.ranks[group.rank()].elapsed);
        }
        let path = folder(group, "rows").join("run");
        let times = timeline.save_all(group, "rows", &path).expect("the record");
        assert!(times.ranks.iter().all(|it| it.reducing > Duration::ZERO));
        if group.rank() == 0 {
            let page = read_page(&path.with_extension("html"));
            for lane in page["ranks"]["lanes"].as_array().expect("lanes") {
                let updates = lane["updates"].as_array().expect("a list");
                assert_eq!(updates, &vec![Value::from(1); STEPS]);
            }
            let phases = page["totals"]["phases"].as_array().expect("phases");
            let count = |name: &str| {
                let phase = phases.iter().find(|phase| phase["phase"] == name);
                phase.expect(name)["count"].as_u64()
            };
            assert_eq!(count("wait"), Some(STEPS as u64));
            assert_eq!(count("reduce"), Some(2 * STEPS as u64));
            fs::remove_dir_all(path.parent().expect("the folder")).expect("the folder");
        }
    });
}

/// The events, the incidents and the samples of a rank carry its number, and waiting is a phase that can fail.
#[test]
fn what_is_recorded_carries_the_rank() {
    together(2, |group| {
        let rank = group.rank();
        let folder = folder(group, "carried");
        let samples = folder.join(format!("samples.{rank}.jsonl"));
        let sink = FileSink::json_lines(&samples).open();
        let monitor = Monitor::builder()
            .group(group)
            .sink(sink.expect("a file"))
            .start()
            .expect("a monitor");
        let path = folder.join(format!("incidents.{rank}.jsonl"));
        let log = IncidentLog::builder(&path).monitor(&monitor).open();
        let seen = Seen::default();
        let model = Model::new(&[3, 2], DType::F32, 7);
        let sgd = Sgd::builder(&model.varmap).learning_rate(0.1).build();
        let mut trainer = AdaptiveTrainer::builder(sgd.expect("an optimizer"))
            .group(group)
            .observer(log.expect("a log"))
            .observer(seen.clone())
            .build()
            .expect("a trainer");
        let batch = data(4, (3, 2), DType::F32, 0);
        // Twice, so that it is not retried: the ranks exchange nothing.
        let armed = (rank == 1).then(|| Faults::in_phase(Phase::Reduce, 0).times(2).arm());
        let failed = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        drop(armed);
        match (rank, failed.expect_err("rank 1 cannot prepare")) {
            (1, Error::ResourceExhausted(exhausted)) => {
                assert_eq!(exhausted.phase, Some(Phase::Reduce));
                assert!(!exhausted.held.is_empty(), "who holds the memory");
            }
            (0, Error::Group(error)) => assert!(
                matches!(*error, GroupError::PeerFailed { rank: 1, .. }),
                "{error}"
            ),
            (_, error) => panic!("{error}"),
        }
        let step = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
        step.expect("the next step");
        let seen = seen.0.lock().expect("the list");
        assert!(seen.iter().all(|(told, ..)| *told == Some(rank)));
        let of = |wanted: Phase| -> Vec<_> {
            let of = seen.iter().filter(|(_, phase, _)| *phase == wanted);
            of.map(|(.., succeeded)| *succeeded).collect()
        };
        let expected: &[bool] = if rank == 0 { &[false, true] } else { &[true] };
        assert_eq!(of(Phase::Wait), expected);
        assert_eq!(of(Phase::Reduce), [true]);

        let incidents = Incidents::read(&path).expect("the log").list;
        let last = incidents.last().expect("an incident");
        assert_eq!((last.kind, last.rank), (IncidentKind::Failed, Some(rank)));
        assert!(!last.samples.is_empty());
        assert!(last.samples.iter().all(|it| it.rank == Some(rank)));
        assert!(monitor.sources().iter().all(|it| it.rank == Some(rank)));
        drop(monitor);
        let json = fs::read_to_string(samples).expect("the samples");
        let end = format!(",\"rank\":{rank}}}");
        assert!(
            !json.is_empty() && json.lines().all(|line| line.ends_with(&end)),
            "{json}"
        );
        group.barrier().expect("all have read");
        if rank == 0 {
            fs::remove_dir_all(folder).expect("the folder");
        }
    });
}

/// Where a rank is killed, each of the others keeps a record of its own.
#[test]
fn the_records_of_the_others_outlive_a_killed_rank() {
    if is_rank() {
        let group = open();
        let folder = folder(&group, "killed");
        let timeline = Timeline::new();
        let model = Model::new(&[3, 2], DType::F32, 7);
        let mut trainer = trainer(&model, &group, &timeline);
        let batch = data(4, (3, 2), DType::F32, 0);
        for _ in 0..3 {
            let step = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
            step.expect("a step");
        }
        if group.rank() == 1 {
            // SAFETY: the call takes two numbers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let path = folder.join("run");
        let error = timeline.save_all(&group, "two ranks", &path);
        let error = error.expect_err("rank 1 is dead");
        assert!(
            matches!(&error, Error::Group(lost) if matches!(&**lost, GroupError::PeerLost { ranks, .. } if ranks == &[1])),
            "{error}"
        );
        let page = read_page(&folder.join("run.rank0.html"));
        assert_eq!(page["totals"]["steps"], 3);
        assert!(page["ranks"].is_null());
        let trace = read_trace(&folder.join("run.rank0.json"));
        let name = trace[0]["args"]["name"].as_str().expect("a name");
        assert!(name.starts_with("rank 0 on "), "{name}");
        assert!(!folder.join("run.html").exists());
        fs::remove_dir_all(folder).expect("the folder");
        println!("kept");
        return;
    }
    // By default mpirun kills the others too, at once.
    let output = mpirun(2, &["--enable-recovery"]);
    assert!(text(&output).contains("kept"), "{}", text(&output));
}
