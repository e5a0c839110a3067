//! Starts a test again in a process for each rank.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio, exit};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::Device;
use candle_headroom::DeviceMemory;
use candle_headroom::distributed::{Collectives, Group};
use candle_headroom::error::{Error, GroupError, Result};
use candle_headroom::testing;
use libloading::os::unix::Library;

use crate::simulator::Simulator;

const RANK_OF: &str = "HEADROOM_TEST_RANK_OF";
/// How long ranks wait for each other where a test wants them to wait in vain, and otherwise.
pub const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(100);
/// A rank that runs longer hangs.
const ENDLESS: Duration = Duration::from_secs(150);

/// Variables of one rank.
pub type Settings = Vec<(&'static str, String)>;

/// A rank of the calling test.
pub struct Rank {
    pub group: Group,
    pub device: Device,
    pub memory: DeviceMemory,
}

/// Runs the calling test again in `ranks` processes, in each of which `body` runs. All have to succeed.
pub fn together(ranks: usize, settings: impl Fn(usize) -> Settings, body: impl FnOnce(Rank)) {
    if let Some(outputs) = start(ranks, settings, body) {
        for output in outputs {
            assert!(output.status.success(), "{}", text(&output));
        }
    }
}

/// As [`together`]; the caller judges the outcome. `None` in a rank, and where there is no simulator.
pub fn start(
    ranks: usize,
    settings: impl Fn(usize) -> Settings,
    body: impl FnOnce(Rank),
) -> Option<Vec<Output>> {
    let test = thread::current()
        .name()
        .expect("a test's thread")
        .to_owned();
    if env::var(RANK_OF).is_ok_and(|name| name == test) {
        thread::spawn(|| {
            thread::sleep(ENDLESS);
            eprintln!("the rank hangs");
            exit(3);
        });
        body(open());
        return None;
    }
    if Simulator::of(0).is_none() {
        eprintln!("skipped: it needs several GPUs, and faults that a real one does not have");
        return None;
    }
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.expect("a folder");
    let commands = commands(ranks, folder.path()).into_iter().enumerate();
    let running: Vec<_> = commands
        .map(|(rank, mut command)| {
            command.env(RANK_OF, &test).envs(settings(rank));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a process")
        })
        .collect();
    // Each in a thread, so that none waits for a reader of its output.
    let outputs = running
        .into_iter()
        .map(|rank| thread::spawn(|| rank.wait_with_output().expect("its output")));
    let outputs: Vec<_> = outputs.collect();
    let ended = outputs
        .into_iter()
        .map(|output| output.join().expect("a rank"));
    Some(ended.collect())
}

/// The commands that run the calling test again, one for each rank, with NCCL's files in the folder.
pub fn commands(ranks: usize, folder: &Path) -> Vec<Command> {
    let test = thread::current();
    let test = test.name().expect("a test's thread");
    let port = free_port().to_string();
    let rank = |rank: usize| {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", test, "--nocapture", "--test-threads", "1"]);
        command.envs([
            ("RANK", rank.to_string().as_str()),
            ("WORLD_SIZE", &ranks.to_string()),
            ("LOCAL_RANK", &rank.to_string()),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
            ("RAYON_NUM_THREADS", "1"),
        ]);
        command.env("SIMULATED_NCCL_FOLDER", folder);
        command
    };
    (0..ranks).map(rank).collect()
}

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    address.expect("a free port").port()
}

fn open() -> Rank {
    let is_short = env::var("TEST_TIMEOUT").is_ok();
    let timeout = if is_short { SHORT } else { LONG };
    let group = Group::builder().timeout(timeout).open().expect("a group");
    let gpu = env::var("TEST_GPU").map_or(group.local_rank(), |gpu| gpu.parse().expect("a number"));
    let memory = DeviceMemory::cuda(gpu).open().expect("a GPU");
    let device = memory.device().clone();
    Rank {
        group,
        device,
        memory,
    }
}

impl Rank {
    pub fn number(&self) -> usize {
        self.group.rank()
    }

    /// Opens NCCL.
    pub fn nccl(&self) -> Result<Arc<dyn Collectives>> {
        let engine = testing::collectives(&self.group, &self.device)?;
        Ok(engine.expect("more than one rank"))
    }

    pub fn simulator(&self) -> Simulator {
        let Device::Cuda(cuda) = &self.device else {
            panic!("a GPU");
        };
        Simulator::of(cuda.cuda_stream().context().ordinal()).expect("the simulator")
    }
}

pub fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    format!("{}\n{}\n{}", output.status, parts[0], parts[1])
}

/// The error of a group.
pub fn group_error<T>(result: Result<T>) -> GroupError {
    match result.map(drop).expect_err("an error") {
        Error::Group(error) => *error,
        other => panic!("another error: {other}"),
    }
}

/// What the stand-in of NCCL has counted in this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Counts {
    pub live: u64,
    pub aborts: u64,
    pub destroys: u64,
    pub misuses: u64,
}

pub fn counts() -> Counts {
    let count = |what: u32| {
        // SAFETY: the function has this signature (crates/simulated-cuda/src/nccl/entry.rs) and is in a library that this program is linked with.
        unsafe {
            let name = b"simulated_nccl_count\0";
            let count = Library::this().get::<unsafe extern "C" fn(u32) -> u64>(name);
            count.expect("the simulator")(what)
        }
    };
    Counts {
        live: count(0),
        aborts: count(1),
        destroys: count(2),
        misuses: count(3),
    }
}
