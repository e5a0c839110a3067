//! Ranks that cannot use NCCL together, and calls that make no sense.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::distributed::Operation;
use candle_headroom::error::GroupError;
use candle_headroom::testing::{collectives, watch};
use candle_headroom::{AdaptiveTrainer, DeviceMemory, Error, Sgd, recover};

use super::launch::{Rank, Settings, group_error, start, text, together};
use crate::gpu::MIB;

/// These variables on rank 1 keep all ranks from using NCCL, for a reason that names these words.
fn absent(settings: &[(&'static str, &str)], words: &[&str]) {
    let settings = |rank: usize| -> Settings {
        let own = settings.iter().filter(|_| rank == 1);
        own.map(|(name, value)| (*name, (*value).to_owned()))
            .collect()
    };
    together(2, settings, |rank| {
        let error = rank.nccl().map(drop).unwrap_err();
        assert!(error.is_group(), "{error}");
        let text = error.to_string();
        let always = [
            "no engine can exchange tensors",
            "between 2 ranks",
            "rank 1",
            "pip install nvidia-nccl-cu13",
        ];
        for word in words.iter().chain(&always) {
            assert!(text.contains(word), "{text}");
        }
        // The group itself goes on.
        rank.group.barrier().unwrap();
    });
}

#[test]
fn no_library() {
    absent(
        &[("HEADROOM_NCCL", "/nowhere/libnccl.so.2")],
        &["/nowhere/libnccl.so.2"],
    );
}

#[test]
fn another_library() {
    absent(
        &[("HEADROOM_NCCL", "libm.so.6")],
        &["libm.so.6 is not NCCL"],
    );
}

#[test]
fn an_old_library() {
    absent(
        &[("SIMULATED_NCCL_VERSION", "2708")],
        &["NCCL 2.7.8 is too old", "2.14"],
    );
}

#[test]
fn different_versions() {
    let settings = |rank: usize| match rank {
        1 => vec![("SIMULATED_NCCL_VERSION", "22103".to_owned())],
        _ => Vec::new(),
    };
    together(2, settings, |rank| {
        let error = rank.nccl().map(drop).unwrap_err().to_string();
        assert!(
            error.contains("rank 0 has NCCL 2.27.3, rank 1 2.21.3"),
            "{error}"
        );
    });
}

#[test]
fn turned_off() {
    let settings = |_| vec![("HEADROOM_NCCL", String::new())];
    together(2, settings, |rank| {
        let error = rank.nccl().map(drop).unwrap_err();
        assert!(error.is_group(), "{error}");
        assert!(error.to_string().contains("turns NCCL off"), "{error}");
    });
}

#[test]
fn one_gpu_for_two_ranks() {
    let settings = |rank: usize| vec![("TEST_GPU", (rank % 2).to_string())];
    together(3, settings, |rank| {
        let error = rank.nccl().map(drop).unwrap_err();
        assert!(error.is_group(), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("ranks 0 and 2 use one GPU (GPU-"),
            "{text}"
        );
    });
}

/// A device on each thread's own stream, which has no order with NCCL's work.
#[test]
fn a_stream_of_threads() {
    together(
        2,
        |_| Vec::new(),
        |rank| {
            let device = Device::new_cuda(rank.group.local_rank()).unwrap();
            let error = collectives(&rank.group, &device).map(drop).unwrap_err();
            assert!(error.is_group(), "{error}");
            let text = error.to_string();
            assert!(text.contains("new_cuda_with_stream"), "{text}");
        },
    );
}

#[test]
fn one_rank_on_the_cpu() {
    together(
        2,
        |_| Vec::new(),
        |mut rank| {
            if rank.number() == 1 {
                rank.device = Device::Cpu;
            }
            let error = rank.nccl().map(drop).unwrap_err();
            assert!(error.is_group(), "{error}");
            assert!(
                error.to_string().starts_with("the ranks differ in "),
                "{error}"
            );
        },
    );
}

/// Rank 1 follows the host's memory while its parameters are on its GPU: that rank's error, of which the others hear whose it is.
#[test]
fn memory_of_another_device_on_one_rank() {
    together(
        2,
        |_| Vec::new(),
        |rank| {
            let weight = Var::zeros(4, DType::F32, &rank.device).unwrap();
            let build = |memory: &DeviceMemory| {
                let sgd = Sgd::builder(vec![("weight", weight.clone())]).build();
                let trainer = AdaptiveTrainer::builder(sgd.unwrap()).memory(memory);
                trainer.group(&rank.group).build()
            };
            let host = DeviceMemory::host().open().unwrap();
            let memory = [&rank.memory, &host][rank.number()];
            let error = build(memory).unwrap_err();
            match (rank.number(), error) {
                (1, error) if error.is_parameter() => {
                    assert!(error.to_string().starts_with("the Vars are on"), "{error}");
                }
                (0, Error::Group(error)) => match *error {
                    GroupError::PeerFailed {
                        rank: 1, reason, ..
                    } => assert!(reason.contains("not on Cpu"), "{reason}"),
                    other => panic!("{other}"),
                },
                (rank, other) => panic!("rank {rank}: {other}"),
            }
            // The group goes on.
            build(&rank.memory).unwrap();
        },
    );
}

/// The device is full when NCCL starts.
#[test]
fn no_memory_for_nccl() {
    let settings = |_| vec![("TEST_TIMEOUT", "1".to_owned())];
    together(2, settings, |rank| {
        if rank.number() == 1 {
            // What the pool keeps is given to NCCL.
            recover(&rank.device).unwrap();
            let counters = rank.simulator().counters();
            rank.simulator()
                .neighbour(counters.device_capacity - counters.device_used - 4 * MIB);
        }
        let error = group_error(rank.nccl());
        match (rank.number(), &error) {
            (1, GroupError::Broken(reason)) => {
                assert!(reason.starts_with("NCCL "), "{reason}");
                assert!(reason.contains("out of memory"), "{reason}");
                assert!(reason.contains("lower the limit"), "{reason}");
            }
            (0, GroupError::PeerLost { ranks, reason, .. }) => {
                assert_eq!(*ranks, [1]);
                assert!(reason.contains("out of memory"), "{reason}");
            }
            _ => panic!("{error:?}"),
        }
    });
}

/// Tensors that cannot be exchanged end the group on both ranks.
fn refuses(make: fn(&Rank) -> Tensor, words: &str) {
    together(
        2,
        |_| Vec::new(),
        |rank| {
            let nccl = rank.nccl().unwrap();
            // The first error ends the group, also for a rank that is not done with opening.
            rank.group.barrier().unwrap();
            let watch = watch(&rank.group, "a test");
            let tensor = make(&rank);
            let error = group_error(nccl.exchange(&tensor, Operation::ReduceScatter, &watch));
            let text = error.to_string();
            assert!(text.starts_with("NCCL ") && text.contains(words), "{text}");
            let error = group_error(nccl.finish(&watch));
            assert!(error.to_string().contains("has failed before"), "{error:?}");
        },
    );
}

#[test]
fn a_length_that_cannot_be_cut() {
    refuses(
        |rank| Tensor::zeros(7, DType::F32, &rank.device).unwrap(),
        "7 elements cannot be cut into 2 pieces",
    );
}

#[test]
fn a_type_without_a_sum() {
    refuses(
        |rank| Tensor::zeros(8, DType::U32, &rank.device).unwrap(),
        "no sum of type U32",
    );
}

#[test]
fn a_tensor_that_is_not_contiguous() {
    refuses(
        |rank| {
            let matrix = Tensor::zeros((4, 4), DType::F32, &rank.device).unwrap();
            matrix.narrow(1, 0, 2).unwrap()
        },
        "not contiguous",
    );
}

#[test]
fn a_tensor_of_the_host() {
    refuses(
        |_| Tensor::zeros(8, DType::F32, &Device::Cpu).unwrap(),
        "host's memory",
    );
}

#[test]
fn a_tensor_of_another_gpu() {
    refuses(
        |rank| {
            let other = Device::new_cuda_with_stream(rank.number() + 2).unwrap();
            Tensor::zeros(8, DType::F32, &other).unwrap()
        },
        "NCCL was opened on",
    );
}

/// A real NCCL hangs or mixes the data up.
#[test]
fn different_collectives() {
    let settings = |_| vec![("TEST_TIMEOUT", "1".to_owned())];
    let outputs = start(2, settings, |rank| {
        let nccl = rank.nccl().unwrap();
        let watch = watch(&rank.group, "a test");
        let bucket = Tensor::zeros(8, DType::F32, &rank.device).unwrap();
        let called = match rank.number() {
            0 => nccl.exchange(&bucket, Operation::AllGather, &watch),
            _ => nccl.exchange(&bucket, Operation::ReduceScatter, &watch),
        };
        let error = group_error(called.and_then(|()| nccl.finish(&watch)));
        assert!(matches!(error, GroupError::PeerLost { .. }), "{error:?}");
    });
    for output in outputs.into_iter().flatten() {
        assert!(output.status.success(), "{}", text(&output));
    }
}
