//! NCCL fails, hangs, or a rank dies: every other rank gets an error in time, and communicators are aborted once.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use candle_core::{DType, Tensor};
use candle_headroom::distributed::Operation;
use candle_headroom::error::{GroupError, Result};
use candle_headroom::testing::watch;

use super::launch::{Rank, SHORT, Settings, counts, group_error, start, text};
use crate::simulator::Simulator;

/// Three rounds of collectives.
fn work(rank: &Rank, bucket: &Tensor) -> Result<()> {
    let nccl = rank.nccl()?;
    let watch = watch(&rank.group, "a test");
    for _ in 0..3 {
        nccl.exchange(bucket, Operation::ReduceScatter, &watch)?;
        nccl.exchange(bucket, Operation::AllGather, &watch)?;
        nccl.finish(&watch)?;
    }
    Ok(())
}

/// Bytes of the device that are not the pool's.
fn outside_pool(simulator: Simulator) -> u64 {
    let counters = simulator.counters();
    counters.device_used - counters.reserved_bytes
}

/// With a fault on rank 1, of which rank 1 makes `own` and rank 0 a lost rank. `aborts` are rank 1's.
fn fails(fault: &str, own: fn(&GroupError) -> bool, aborts: u64) {
    let settings = |rank: usize| -> Settings {
        let mut settings = vec![("TEST_TIMEOUT", "1".to_owned())];
        if rank == 1 {
            settings.push(("SIMULATED_NCCL_FAULT", fault.to_owned()));
        }
        settings
    };
    let outputs = start(2, settings, |rank| {
        let used = outside_pool(rank.simulator());
        let bucket = Tensor::ones(64, DType::F32, &rank.device).unwrap();
        let began = Instant::now();
        let error = group_error(work(&rank, &bucket));
        // The time of an abort that does not return, and of a busy machine.
        let limit = SHORT + Duration::from_secs(20);
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
        let is_lost = |error: &GroupError| matches!(error, GroupError::PeerLost { .. });
        match rank.number() {
            0 => assert!(is_lost(&error), "{error:?}"),
            _ => assert!(own(&error), "{error:?}"),
        }
        // A second attempt ends at once.
        let began = Instant::now();
        let error = group_error(work(&rank, &bucket));
        assert!(error.to_string().contains("has failed before"), "{error:?}");
        assert!(began.elapsed() < SHORT / 2, "{:?}", began.elapsed());
        let simulator = rank.simulator();
        let number = rank.number();
        drop(rank.group);
        let counts = counts();
        let expected = if number == 0 { 1 } else { aborts };
        assert_eq!(
            (counts.aborts, counts.destroys, counts.misuses),
            (expected, 0, 0)
        );
        assert_eq!(counts.live, 0);
        if fault.starts_with("abort") && number == 1 {
            // The device would never be done with its work.
            std::process::exit(0);
        }
        assert_eq!(outside_pool(simulator), used, "memory of NCCL is left");
    });
    let Some(outputs) = outputs else {
        return;
    };
    for (rank, output) in outputs.iter().enumerate() {
        let is_killed = rank == 1 && fault.starts_with("die");
        match is_killed {
            true => assert_eq!(output.status.signal(), Some(libc::SIGKILL)),
            false => assert!(output.status.success(), "rank {rank}: {}", text(output)),
        }
    }
}

fn is_engine(error: &GroupError) -> bool {
    let GroupError::Broken(text) = error else {
        return false;
    };
    let failed = text.strip_prefix("NCCL 2.27.3 failed in ");
    let failed = failed.and_then(|failed| failed.split_once(": "));
    failed.is_some_and(|(_, reason)| !reason.is_empty())
}

fn is_lost(error: &GroupError) -> bool {
    matches!(error, GroupError::PeerLost { .. })
}

#[test]
fn the_start_is_refused() {
    fails("init", is_engine, 0);
}

#[test]
fn the_start_fails_later() {
    fails("init-late", is_engine, 1);
}

#[test]
fn the_start_hangs() {
    fails("init-hang", is_lost, 1);
}

#[test]
fn a_call_fails() {
    fails("call:2", is_engine, 1);
}

#[test]
fn an_error_comes_after_the_call() {
    fails("async:3", is_engine, 1);
}

#[test]
fn a_collective_hangs() {
    fails("hang:2", is_lost, 1);
}

#[test]
fn an_abort_hangs() {
    fails("abort-hang:1", is_lost, 1);
}

#[test]
fn a_rank_is_killed() {
    fails("die:3", is_lost, 1);
}
