//! Failures that a test orders with the environment variable `SIMULATED_NCCL_FAULT`, as in `hang:2`.

use std::env;

/// What fails, and at which collective of a communicator, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Creating the communicator fails at once.
    Init,
    /// Creating the communicator fails after it has begun.
    InitLate,
    /// Creating the communicator never ends.
    InitHang,
    /// The call fails.
    Call(u64),
    /// The call is accepted, and the communicator reports an error afterwards.
    Async(u64),
    /// The collective never ends, unless the communicator is aborted.
    Hang(u64),
    /// The process is killed in the call.
    Die(u64),
    /// The collective never ends, and aborting the communicator does not return.
    AbortHang(u64),
}

impl Fault {
    /// The fault that the environment orders.
    pub fn ordered() -> Option<Fault> {
        let text = env::var("SIMULATED_NCCL_FAULT").ok()?;
        let (kind, nth) = text.split_once(':').unwrap_or((&text, "1"));
        let nth = nth.parse().expect("SIMULATED_NCCL_FAULT is KIND:NUMBER");
        Some(match kind {
            "init" => Fault::Init,
            "init-late" => Fault::InitLate,
            "init-hang" => Fault::InitHang,
            "call" => Fault::Call(nth),
            "async" => Fault::Async(nth),
            "hang" => Fault::Hang(nth),
            "die" => Fault::Die(nth),
            "abort-hang" => Fault::AbortHang(nth),
            _ => panic!("SIMULATED_NCCL_FAULT knows no `{kind}`"),
        })
    }
}
