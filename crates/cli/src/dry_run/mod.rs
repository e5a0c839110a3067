//! `headroom dry-run`: does a program of one's own fit onto a card, without the card?

mod answer;
mod driver;
pub mod environment;
mod outcome;
mod page;

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use answer::Answer;
use candle_headroom_environment::dry_run::{Card, Report, Setting};
pub use outcome::Outcome;

use super::output::{self, Status, print, say};

/// Run a program without its GPU, and see whether it fits
///
/// PROGRAM is built for CUDA and unchanged. It runs on a driver that computes
/// nothing: allocations, copies' bounds, streams and errors are real, and what
/// kernels would compute reads as zeros. It is given the first of the cards;
/// whether its peak fits is said of all.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Exit status: 0 if it fits onto the first card, 1 if not, 2 if it is too close
to say, and for bad arguments. Without an answer: 3 if the program failed for
another reason, 4 if it used no CUDA device, 5 if it cannot be started, 6 if it
needs a library that is not in the set, 7 if it called what the driver lacks, 8
if it forked, 9 if it loaded another driver, 10 if there are too few addresses,
11 at the time limit, 12 for an unknown card, 13 where there is no simulated
driver, 14 for output that cannot be written.")]
pub struct Arguments {
    /// A card's name or memory, such as "RTX 4090" or 24GiB; may be repeated
    #[arg(long = "gpu", value_name = "CARD", required = true)]
    cards: Vec<String>,
    /// The number of such cards that the program sees
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=16))]
    devices: u32,
    /// End the program after so long
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    time_limit: u64,
    /// Also list what each layer held at the peak
    #[arg(long)]
    layers: bool,
    /// Print the answer as JSON; the program's output goes to standard error
    #[arg(long)]
    json: bool,
    /// Also write a page with what was held over time
    #[arg(long, value_name = "PAGE")]
    report: Option<PathBuf>,
    /// The program and its arguments, after --
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> output::Result<Status> {
    let outcome = match answer(arguments) {
        Ok(outcome) => outcome,
        Err((outcome, why)) => {
            say("error", &why);
            outcome
        }
    };
    Ok(Status::DryRun(outcome))
}

/// The error's text, and the status with which the program then ends.
type Failure = (Outcome, String);

fn answer(arguments: &Arguments) -> Result<Outcome, Failure> {
    let unknown = |error: candle_headroom_environment::dry_run::UnknownCard| {
        (Outcome::UnknownCard, error.to_string())
    };
    let cards = arguments
        .cards
        .iter()
        .map(|name| name.parse::<Card>().map_err(unknown));
    let cards = cards.collect::<Result<Vec<_>, _>>()?;
    let [card, ..] = cards.as_slice() else {
        return Err((Outcome::UnknownCard, "no card is given".to_owned()));
    };
    let libraries = driver::unpack().map_err(|error| (Outcome::NoDriver, error.to_string()))?;
    let cannot_write = |error: &dyn std::fmt::Display| (Outcome::CannotWrite, error.to_string());
    let file = report_file().map_err(|error| cannot_write(&error))?;
    let setting = Setting {
        card,
        devices: arguments.devices,
        seconds: arguments.time_limit,
        report: &file,
        libraries: Some(&libraries),
    };
    let done = execute(arguments, &setting);
    let report = Report::read(&file);
    _ = std::fs::remove_file(&file);
    let status = done?;
    let report = report
        .map_err(|error| cannot_write(&format!("the driver's report cannot be read: {error}")))?;
    let ended = Outcome::of(status, &report, card);
    let succeeded = status.is_some_and(|status| status.success());
    let answer = Answer::new(ended, succeeded, &cards, &report);
    if let Some(page) = &arguments.report {
        page::save(&answer, page).map_err(|error| cannot_write(&error))?;
    }
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&answer).map_err(|error| cannot_write(&error))? + "\n",
        false => answer.text(arguments.layers),
    };
    print(&text).map_err(|error| cannot_write(&error))?;
    if let Some(why) = &answer.why {
        say("error", why);
    }
    Ok(answer.outcome)
}

/// A new file of a name that nobody else has, in a folder that does not depend on where the program goes.
fn report_file() -> output::Result<PathBuf> {
    let folder = std::env::temp_dir().canonicalize()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let (process, now) = (std::process::id(), now.as_nanos());
    let file = folder.join(format!("headroom-dry-run-{process}-{now}.jsonl"));
    File::create_new(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// Runs the program to its end. The driver ends it at the limit; a program that never gets to the driver is ended here, and has no status.
fn execute(arguments: &Arguments, setting: &Setting<'_>) -> Result<Option<ExitStatus>, Failure> {
    let Some((name, rest)) = arguments.program.split_first() else {
        return Err((Outcome::NotStarted, "no program is given".to_owned()));
    };
    let mut program = Command::new(name);
    program.args(rest);
    if arguments.json {
        program.stdout(Stdio::from(std::io::stderr()));
    }
    setting.apply(&mut program);
    let wrong = |error: std::io::Error| {
        let why = match (error.kind(), error.raw_os_error()) {
            (ErrorKind::NotFound, _) => "there is no such program: give a path, such as ./target/release/my-training".to_owned(),
            (ErrorKind::PermissionDenied, _) => "it may not be executed".to_owned(),
            // ENOEXEC
            (_, Some(8)) => "it is no program of this machine: the simulated driver runs programs of Linux on x86-64".to_owned(),
            _ => error.to_string(),
        };
        (
            Outcome::NotStarted,
            format!("{} cannot be started: {why}", name.display()),
        )
    };
    let mut running = program.spawn().map_err(wrong)?;
    let grace = Duration::from_secs(5);
    let limit = Duration::from_secs(setting.seconds) + grace;
    let began = std::time::Instant::now();
    loop {
        if let Some(status) = running.try_wait().map_err(wrong)? {
            return Ok(Some(status));
        }
        if began.elapsed() > limit {
            _ = running.kill();
            _ = running.wait();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
