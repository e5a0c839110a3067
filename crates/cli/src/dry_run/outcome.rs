use std::process::ExitStatus;

use candle_headroom_environment::dry_run::{Card, Fit, Report};
use serde::Serialize;

/// How a dry run ended. The number is the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Fits = 0,
    DoesNotFit = 1,
    TooClose = 2,
    /// The program failed, and not for lack of memory.
    ProgramFailed = 3,
    NoDevice = 4,
    NotStarted = 5,
    MissingLibrary = 6,
    NotModelled = 7,
    Forked = 8,
    OtherDriver = 9,
    Addresses = 10,
    TimeLimit = 11,
    UnknownCard = 12,
    NoDriver = 13,
    CannotWrite = 14,
}

impl From<Fit> for Outcome {
    fn from(fit: Fit) -> Self {
        match fit {
            Fit::Yes => Self::Fits,
            Fit::TooClose => Self::TooClose,
            Fit::No => Self::DoesNotFit,
        }
    }
}

impl Outcome {
    /// What came of a program with this report on this card, and a sentence where it is more than whether it fits. A program that was ended at
    /// the limit has no status.
    pub fn of(status: Option<ExitStatus>, report: &Report, card: &Card) -> (Self, Option<String>) {
        if let Some(problem) = report.problems.first() {
            let (outcome, begin) = match problem.problem.as_str() {
                "forked" => (Self::Forked, "the program's forks are not followed: "),
                "other driver" => (
                    Self::OtherDriver,
                    "the program also loaded another driver, which this run did not see: ",
                ),
                "addresses" => (Self::Addresses, "too few addresses: "),
                "time" => (Self::TimeLimit, "the program was ended (--time-limit): "),
                "busy" => (Self::ProgramFailed, "the account is not whole: "),
                _ => (
                    Self::NotModelled,
                    "the simulated driver lacks what the program called: ",
                ),
            };
            return (outcome, Some(format!("{begin}{}", problem.what)));
        }
        let Some(status) = status else {
            let why = "the program did not end within its time (--time-limit)";
            return (Self::TimeLimit, Some(why.to_owned()));
        };
        if !report.killed.is_empty() {
            let why = format!(
                "a signal or `_exit` ended a process that used the device, so that what it held is not known ({status})"
            );
            return (Self::ProgramFailed, Some(why));
        }
        let Some(device) = report.largest() else {
            return Self::without_device(status);
        };
        let ran_out = report.ran_out().map(|(_, refused)| refused);
        match ran_out {
            Some(refused) if !refused.by_limit && !status.success() => {
                return match card.fits(refused.needed_bytes()) {
                    Fit::TooClose => (Self::TooClose, None),
                    _ => (Self::DoesNotFit, None),
                };
            }
            Some(refused) if !refused.by_limit && refused.held_bytes > 0 => {
                let why = "the program ended well, but there was no memory for the last that it asked for";
                return (Self::TooClose, Some(why.to_owned()));
            }
            _ => {}
        }
        if !status.success() {
            let why = match ran_out.filter(|refused| refused.held_bytes > 0) {
                Some(_) => "memory ran out under a limit that the program has set itself",
                None => "not for lack of memory",
            };
            let why = format!(
                "the program failed ({status}), {why}; the figures are of what it did until then"
            );
            return (Self::ProgramFailed, Some(why));
        }
        match (
            card.fits(device.peak_block_bytes),
            card.fits(report.together()),
        ) {
            (Fit::Yes, Fit::No | Fit::TooClose) => {
                let why = "several processes used the card: each fits, and not all of them at once";
                (Self::TooClose, Some(why.to_owned()))
            }
            (fit, _) => (fit.into(), None),
        }
    }

    /// The loader ends a program with 127 if it misses a library.
    fn without_device(status: ExitStatus) -> (Self, Option<String>) {
        let (outcome, why) = match status.code() {
            Some(0) => (
                Self::NoDevice,
                "the program used no CUDA device: build it with candle's feature `cuda` and have it ask for one; a libcuda that it opens by \
                 its absolute path, and an LD_LIBRARY_PATH that it sets for others, are not followed",
            ),
            Some(127) => (
                Self::MissingLibrary,
                "the program did not start: if the loader names a library above, it is not in the set, which is that of CUDA 12 and 13 \
                 (libcuda, cudart, cublas, cublasLt, curand, nvrtc, cudnn 9, NVML, NCCL)",
            ),
            _ => (
                Self::ProgramFailed,
                "the program failed before it used a CUDA device",
            ),
        };
        (outcome, Some(format!("{why} ({status})")))
    }
}
